"""Producers of a live log: sequences, duplicates, transactions, verification, expiry (kafka-log 04 §3; 07 J)."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sediment.engine.live.log import producer_appends
from sediment.engine.live.log.fetched_data import Isolation
from sediment.engine.live.log.partition_log import AppendOrigin
from sediment.engine.live.log.producer_appends import LogProducers, ProducerUpdate, _EndedTransaction
from sediment.segment_io.errors import (
    InvalidProducerEpochError,
    InvalidTransactionStateError,
    OutOfOrderSequenceError,
    TransactionCoordinatorFencedError,
    UsageError,
)
from sediment.segment_io.partition.producer_state import ProducerState
from tests.engine.live_logs import NOW_MS, LiveLog, batch
from tests.twin.batches import ControlType, Record, encode_batch
from tests.twin.indexes import parse_transaction_index

ABORT, COMMIT = ControlType.ABORT, ControlType.COMMIT
TWO = (("a", "1"), ("b", "2"))
LAST = 2147483647


def aborted_in(log: LiveLog, base: int = 0) -> list[tuple[int, int, int, int]]:
    path = log.directory / f"{base:020d}.txnindex"
    entries = parse_transaction_index(path.read_bytes()) if path.exists() else []
    return [(e.producer_id, e.first_offset, e.last_offset, e.last_stable_offset) for e in entries]


def test_ps_01_sequences_follow_each_other(tmp_path: Path) -> None:
    log = LiveLog(tmp_path)
    log.lead(batch(pid=1, seq=0, producer_epoch=3))
    log.lead(batch(pid=1, seq=1, producer_epoch=3))
    for sequence in (5, 3, LAST):
        with pytest.raises(OutOfOrderSequenceError):
            log.lead(batch(pid=1, seq=sequence, producer_epoch=3))
    with pytest.raises(OutOfOrderSequenceError):
        log.lead(batch(pid=1, seq=2, producer_epoch=4))
    log.lead(batch(pid=1, seq=0, producer_epoch=4))
    with pytest.raises(InvalidProducerEpochError):
        log.lead(batch(pid=1, seq=2, producer_epoch=3))
    assert log.log.log_end_offset == 3


def test_ps_02_after_a_marker_alone_a_producer_begins_with_sequence_0(tmp_path: Path) -> None:
    log = LiveLog(tmp_path)
    log.mark(1, COMMIT, epoch=2)
    with pytest.raises(InvalidProducerEpochError):
        log.lead(batch(pid=1, seq=0, producer_epoch=0))
    with pytest.raises(OutOfOrderSequenceError):
        log.lead(batch(pid=1, seq=17, producer_epoch=2))
    log.lead(batch(pid=1, seq=0, producer_epoch=2))


def test_ps_03_sequences_wrap(tmp_path: Path) -> None:
    log = LiveLog(tmp_path)
    log.lead(batch(pid=1, seq=LAST))
    with pytest.raises(OutOfOrderSequenceError):
        log.lead(batch(pid=1, seq=1))
    assert log.lead(batch(pid=1, seq=0)).first_offset == 1


def test_ps_03_a_batch_over_the_wrap_is_recognised_again(tmp_path: Path) -> None:
    log = LiveLog(tmp_path)
    log.lead(batch(*TWO, ("c", "3"), pid=1, seq=LAST - 1))
    again = log.lead(batch(*TWO, ("c", "3"), pid=1, seq=LAST - 1))
    assert (again.is_duplicate, again.first_offset, again.last_offset) == (True, 0, 2)
    assert log.lead(batch(pid=1, seq=1)).first_offset == 3


def test_ps_04_an_unknown_producer_begins_anywhere(tmp_path: Path) -> None:
    log = LiveLog(tmp_path)
    log.lead(batch(pid=1, seq=16, producer_epoch=5))
    log.follow(batch(at=1, pid=2, seq=16, producer_epoch=5))
    assert log.log.producers.entries[2].last_sequence == 16


def test_ps_05_no_batch_is_outside_of_the_open_transaction(tmp_path: Path) -> None:
    log = LiveLog(tmp_path)
    log.lead(batch(pid=1, seq=0, tx=True))
    with pytest.raises(InvalidTransactionStateError):
        log.lead(batch(pid=1, seq=1))
    assert log.log.log_end_offset == 1


def test_ps_06_a_transaction_is_unstable_until_its_marker_is_replicated(tmp_path: Path) -> None:
    log = LiveLog(tmp_path)
    log.log.truncate_fully_and_start_at(99)
    log.lead(batch(pid=1, seq=0, tx=True), high_watermark=False)
    for _ in range(5):
        log.lead(batch(), high_watermark=False)
    log.lead(batch(pid=2, seq=0, tx=True), high_watermark=False)
    for _ in range(3):
        log.lead(batch(), high_watermark=False)
    assert log.log.log_end_offset == 109
    log.mark_quietly(1, COMMIT)
    for high_watermark, unstable in ((99, 99), (109, 99), (110, 105)):
        log.log.update_high_watermark(high_watermark)
        assert log.log.first_unstable_offset == unstable
    for _ in range(2):
        log.lead(batch())
    log.mark_quietly(2, ABORT)
    for high_watermark, last in ((112, 105), (113, None)):
        log.log.update_high_watermark(high_watermark)
        assert log.log.first_unstable_offset == last


def test_ps_06_the_marker_itself_must_be_below_the_high_watermark(tmp_path: Path) -> None:
    log = LiveLog(tmp_path)
    log.lead(batch(pid=1, seq=0, tx=True))
    log.lead(batch())
    log.mark_quietly(1, COMMIT)
    assert (log.log.log_end_offset, log.log.high_watermark) == (3, 2)
    assert (log.log.first_unstable_offset, log.log.last_stable_offset) == (0, 0)
    log.log.update_high_watermark(3)
    assert (log.log.first_unstable_offset, log.log.last_stable_offset) == (None, 3)


def _marker(producer_id: int, kind: ControlType = COMMIT) -> bytes:
    from tests.segments import marker_bytes

    return marker_bytes(0, kind, producer_id=producer_id)


def test_ps_07_old_coordinators_are_fenced_and_followers_take_what_came(tmp_path: Path) -> None:
    log = LiveLog(tmp_path)
    for coordinator in (1, 1, 2):
        log.mark(1, COMMIT, coordinator=coordinator)
    with pytest.raises(TransactionCoordinatorFencedError):
        log.mark(1, COMMIT, coordinator=1)
    assert log.log.log_end_offset == 3
    from tests.segments import marker_bytes

    log.follow(marker_bytes(3, COMMIT, producer_id=1))
    assert log.log.log_end_offset == 4


def test_ps_07_markers_of_transaction_version_2_raise_the_epoch(tmp_path: Path) -> None:
    log = LiveLog(tmp_path)
    log.lead(batch(pid=1, seq=0, tx=True))
    with pytest.raises(InvalidProducerEpochError):
        log.mark(1, ABORT, epoch=0, version=2)
    log.mark(1, ABORT, epoch=1, version=2)
    assert aborted_in(log) == [(1, 0, 1, 2)]
    log.mark(1, ABORT, epoch=1, version=2)
    assert aborted_in(log) == [(1, 0, 1, 2)]
    with pytest.raises(InvalidProducerEpochError):
        log.mark(1, ABORT, epoch=0, version=2)
    with pytest.raises(UsageError):
        log.mark(1, ABORT, epoch=1, version=-1)
    with pytest.raises(OutOfOrderSequenceError):
        log.lead(batch(pid=1, seq=1, producer_epoch=1, tx=True))
    log.lead(batch(pid=1, seq=0, producer_epoch=1, tx=True))


def test_ps_08_a_marker_without_data_ends_nothing(tmp_path: Path) -> None:
    log = LiveLog(tmp_path)
    log.mark(1, ABORT)
    assert (aborted_in(log), log.names(".txnindex")) == ([], [])
    assert log.log.last_stable_offset == 1


def test_ps_09_the_stable_offset_of_a_marker_is_that_of_the_earliest_other_transaction(tmp_path: Path) -> None:
    log = LiveLog(tmp_path)
    log.log.truncate_fully_and_start_at(100)
    for producer_id, offset in ((1, 100), (2, 125), (3, 157)):
        log.follow(batch(at=offset, pid=producer_id, seq=0, tx=True))
    log.log.update_high_watermark(158)
    from tests.segments import marker_bytes

    for offset, producer_id in ((172, 1), (180, 3), (190, 2)):
        log.follow(marker_bytes(offset, ABORT, producer_id=producer_id))
    assert aborted_in(log, 100) == [(1, 100, 172, 125), (3, 157, 180, 125), (2, 125, 190, 191)]


def test_ps_10_and_ps_16_duplicates_are_answered_with_their_offsets(tmp_path: Path) -> None:
    log = LiveLog(tmp_path)
    for sequence in range(0, 12, 2):
        log.lead(batch(*TWO, pid=1, seq=sequence, ts=NOW_MS + sequence))
    size = log.log.size_bytes
    for sequence in (2, 4, 6, 8, 10):
        again = log.lead(batch(*TWO, pid=1, seq=sequence, ts=5))
        assert again.is_duplicate
        assert (again.first_offset, again.last_offset) == (sequence, sequence + 1)
        assert again.max_timestamp_ms == NOW_MS + sequence
    with pytest.raises(OutOfOrderSequenceError):
        log.lead(batch(*TWO, pid=1, seq=0))
    assert (log.log.size_bytes, log.log.log_end_offset) == (size, 12)
    log.restart()
    assert [(b.first_sequence, b.last_sequence) for b in log.log.remembered_batches(1)] == [(10, 11)]
    assert log.lead(batch(*TWO, pid=1, seq=10)).is_duplicate


def sent_again(log: LiveLog, sequences: range) -> list[bool]:
    """Return for each batch True if it is recognised as a duplicate, False if it is refused."""
    answers = []
    for sequence in sequences:
        try:
            answers.append(log.lead(batch(pid=1, seq=sequence)).is_duplicate)
        except OutOfOrderSequenceError:
            answers.append(False)
    return answers


def test_ps_16_after_a_truncation_the_last_five_batches_are_recognised_again(tmp_path: Path) -> None:
    log = LiveLog(tmp_path)
    for sequence in range(9):
        log.lead(batch(pid=1, seq=sequence))
    log.log.truncate_to(8)
    assert sent_again(log, range(8)) == [False] * 3 + [True] * 5
    assert log.lead(batch(pid=1, seq=8)).first_offset == 8


@pytest.mark.parametrize("kept", [3, 6])
def test_ps_16_after_a_restart_what_lies_after_the_snapshot_is_recognised(tmp_path: Path, kept: int) -> None:
    log = LiveLog(tmp_path)
    for sequence in range(8):
        log.lead(batch(pid=1, seq=sequence))
        if sequence + 1 == kept:
            log.log.roll()
    log.stop()
    (log.directory / f"{8:020d}.snapshot").write_bytes(b"torn")
    log.log = log.opened(clean=True)
    first = max(kept - 1, 3)
    assert sent_again(log, range(8)) == [sequence >= first for sequence in range(8)]


def test_a_log_forgets_the_producers_that_wrote_least_recently(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_appends, "MAX_PRODUCERS", 10)
    monkeypatch.setattr(producer_appends, "_FORGOTTEN_AT_ONCE", 4)
    log = LiveLog(tmp_path)
    log.lead(batch(pid=0, tx=True))
    for pid in range(1, 10):
        log.lead(batch(pid=pid))
    for pid in (1, 2):
        log.lead(batch(pid=pid, seq=1))
    assert set(log.log.producers.entries) == set(range(10))
    log.lead(batch(pid=10))
    assert set(log.log.producers.entries) == {0, 1, 2, 7, 8, 9, 10}
    assert log.lead(batch(pid=3, seq=77)).is_duplicate is False  # as after an expiration
    assert log.lead(batch(pid=8)).is_duplicate
    log.mark(0, COMMIT)
    log.restart()
    assert set(log.log.producers.entries) == {0, 1, 2, 3, 7, 8, 9, 10}


def test_ps_16_an_expired_producer_is_not_remembered_after_a_truncation(tmp_path: Path) -> None:
    log = LiveLog(tmp_path)
    for sequence in range(4):
        log.lead(batch(pid=1, seq=sequence, ts=5))
    log.log.roll()
    log.lead(batch())
    log.log.truncate_to(4)
    assert log.log.remembered_batches(1) == ()
    assert log.lead(batch(pid=1, seq=3)).first_offset == 4


def test_a_duplicate_does_not_roll_the_log(tmp_path: Path) -> None:
    log = LiveLog(tmp_path, segment_bytes=142)
    for sequence in range(2):
        log.lead(batch(pid=1, seq=sequence))
    assert log.lead(batch(pid=1, seq=1)).is_duplicate
    with pytest.raises(OutOfOrderSequenceError):
        log.lead(batch(pid=1, seq=9), epoch=5)
    assert log.bases() == [0]
    assert [(entry.epoch, entry.start_offset) for entry in log.log.leader_epochs] == [(0, 0)]


def test_ps_10_an_open_transaction_is_open_after_a_restart(tmp_path: Path) -> None:
    log = LiveLog(tmp_path)
    log.lead(batch(pid=1, seq=0, tx=True))
    log.lead(batch(pid=2, seq=0, tx=True))
    log.mark(2, COMMIT)
    entries = log.restart().producers.entries
    assert (entries[1].current_txn_first_offset, entries[2].current_txn_first_offset) == (0, -1)
    log.log.update_high_watermark(3)
    assert log.log.last_stable_offset == 0
    log.mark(1, ABORT)
    assert aborted_in(log) == [(1, 0, 3, 4)]


def test_ps_11_a_snapshot_is_named_after_the_end_and_taken_once(tmp_path: Path) -> None:
    log = LiveLog(tmp_path)
    log.lead(batch(pid=1, seq=0))
    log.log.roll()
    log.log.roll()
    log.stop()
    assert log.names(".snapshot") == [f"{1:020d}.snapshot"]


def test_ps_14_idle_producers_expire_to_the_millisecond(tmp_path: Path) -> None:
    log = LiveLog(tmp_path)
    log.lead(batch(pid=1, seq=0))
    log.lead(batch(pid=2, seq=0, tx=True))
    log.tasks.move(86_399_999)
    log.log.remove_expired_producers()
    assert set(log.log.producers.entries) == {1, 2}
    log.tasks.move(1)
    log.log.remove_expired_producers()
    assert set(log.log.producers.entries) == {2}


def test_idle_producers_do_not_expire_where_no_expiration_is_stated(tmp_path: Path) -> None:
    log = LiveLog(tmp_path, producer_id_expiration_ms=None)
    log.lead(batch(pid=1, seq=0))
    log.tasks.move(10 * 365 * 86_400_000)
    log.log.remove_expired_producers()
    assert set(log.log.producers.entries) == {1}


def test_ps_15_followers_take_gaps_and_old_epochs(tmp_path: Path) -> None:
    log = LiveLog(tmp_path)
    log.follow(batch(at=0, pid=1, seq=0, producer_epoch=5))
    log.follow(batch(at=1, pid=1, seq=90, producer_epoch=3))
    assert (log.log.producers.entries[1].producer_epoch, log.log.producers.entries[1].last_sequence) == (3, 90)


def test_ps_17_a_part_of_a_batch_is_no_duplicate(tmp_path: Path) -> None:
    log = LiveLog(tmp_path)
    log.lead(batch(*TWO, ("c", "3"), pid=1, seq=0))
    with pytest.raises(OutOfOrderSequenceError):
        log.lead(batch(*TWO, pid=1, seq=1))


def test_ps_18_sequences_of_coordinators_are_not_checked(tmp_path: Path) -> None:
    log = LiveLog(tmp_path)
    for _ in range(3):
        log.lead(batch(pid=1, seq=-1), origin=AppendOrigin.COORDINATOR)
    assert log.log.log_end_offset == 3


def test_ps_19_an_emptied_control_batch_changes_nothing_but_is_an_entry(tmp_path: Path) -> None:
    from tests.twin.batches import encode_empty_batch, parse_batch

    log = LiveLog(tmp_path)
    log.follow(encode_empty_batch(parse_batch(_marker(1))))
    entry = log.log.producers.entries[1]
    assert (entry.producer_epoch, entry.last_sequence, entry.coordinator_epoch) == (-1, -1, -1)


def test_ps_20_a_transaction_that_is_open_too_long_is_late(tmp_path: Path) -> None:
    log = LiveLog(tmp_path, transaction_max_timeout_ms=300_000)
    log.lead(batch(pid=1, seq=0, tx=True))
    log.tasks.move(600_000)
    assert not log.log.has_late_transaction()
    log.tasks.move(1)
    assert log.log.has_late_transaction()
    log.mark(1, COMMIT)
    assert not log.log.has_late_transaction()
    log.lead(batch(pid=1, seq=1, tx=True))
    log.tasks.move(600_001)
    assert log.log.has_late_transaction()
    log.log.truncate_to(0)
    assert not log.log.has_late_transaction()


def test_ps_21_a_transaction_begins_with_its_guard(tmp_path: Path) -> None:
    log = LiveLog(tmp_path, verify_transactions=True)
    first = batch(pid=1, seq=4, tx=True)
    with pytest.raises(InvalidTransactionStateError):
        log.lead(first)
    guard = log.log.maybe_start_transaction_verification(1, 4, 0)
    other = log.log.maybe_start_transaction_verification(2, 0, 0)
    assert guard is not None
    with pytest.raises(InvalidTransactionStateError):
        log.lead(first, verification_guard=other)
    assert log.lead(first, verification_guard=guard).first_offset == 0
    assert log.log.maybe_start_transaction_verification(1, 5, 0) is None
    log.lead(batch(pid=1, seq=5, tx=True))
    log.mark(1, COMMIT)
    with pytest.raises(InvalidTransactionStateError):
        log.lead(batch(pid=1, seq=6, tx=True), verification_guard=guard)


def test_ps_21_an_announced_sequence_comes_first(tmp_path: Path) -> None:
    log = LiveLog(tmp_path, verify_transactions=True)
    guard = log.log.maybe_start_transaction_verification(1, 4, 0)
    assert log.log.maybe_start_transaction_verification(1, 0, 0) is guard
    with pytest.raises(OutOfOrderSequenceError):
        log.lead(batch(pid=1, seq=4, tx=True), verification_guard=guard)
    log.lead(batch(pid=1, seq=0, tx=True), verification_guard=guard)


def test_ps_21_with_epoch_bumps_a_new_producer_begins_with_sequence_0(tmp_path: Path) -> None:
    log = LiveLog(tmp_path, verify_transactions=True)
    guard = log.log.maybe_start_transaction_verification(1, 3, 0, supports_epoch_bump=True)
    with pytest.raises(OutOfOrderSequenceError):
        log.lead(batch(pid=1, seq=3, tx=True), verification_guard=guard)
    log.lead(batch(pid=1, seq=0, tx=True), verification_guard=guard)


def test_ps_21_an_old_epoch_is_refused_before_the_guard_is_looked_at(tmp_path: Path) -> None:
    log = LiveLog(tmp_path, verify_transactions=True)
    log.mark(1, COMMIT, epoch=2)
    with pytest.raises(InvalidProducerEpochError):
        log.log.maybe_start_transaction_verification(1, 0, 1)
    with pytest.raises(InvalidProducerEpochError):
        log.lead(batch(pid=1, seq=0, producer_epoch=1, tx=True))


def test_a_control_record_of_a_producer_that_is_no_marker_is_refused(tmp_path: Path) -> None:
    log = LiveLog(tmp_path)
    record = Record(0, NOW_MS, (3).to_bytes(4, "big"), b"\0" * 6)
    data = encode_batch(
        [record], base_offset=0, producer_id=1, producer_epoch=0, transactional=True, control=True, leader_epoch=0
    )
    with pytest.raises(UsageError):
        log.lead(data, origin=AppendOrigin.COORDINATOR, transaction_version=0)
    assert log.log.log_end_offset == 0


def test_a_transaction_below_the_log_start_is_unstable_from_there(tmp_path: Path) -> None:
    log = LiveLog(tmp_path)
    log.lead(batch(pid=1, seq=0, tx=True))
    for _ in range(3):
        log.lead(batch())
    log.log.maybe_increment_log_start_offset(2)
    assert (log.log.first_unstable_offset, log.log.last_stable_offset) == (2, 2)
    assert log.log.read(2, 100, Isolation.TXN_COMMITTED).size_bytes == 0


class CountedOffset(int):
    """An offset that counts how often it is compared."""

    comparisons = 0

    def __lt__(self, other: object) -> bool:
        type(self).comparisons += 1
        return int(self) < int(other)  # type: ignore[call-overload, no-any-return]

    def __gt__(self, other: object) -> bool:
        type(self).comparisons += 1
        return int(self) > int(other)  # type: ignore[call-overload, no-any-return]

    def __ge__(self, other: object) -> bool:
        type(self).comparisons += 1
        return int(self) >= int(other)  # type: ignore[call-overload, no-any-return]

    def __eq__(self, other: object) -> bool:
        type(self).comparisons += 1
        return int(self) == other

    def __hash__(self) -> int:
        return hash(int(self))


def test_ended_transactions_above_the_high_watermark_cost_the_same_however_many_there_are() -> None:
    producers = LogProducers(ProducerState.at(0), expiration_ms=1, verifies_transactions=False)
    count = 2_000
    CountedOffset.comparisons = 0
    for number in range(count):
        first, last = CountedOffset(2 * number), CountedOffset(2 * number + 1)
        producers.apply(ProducerUpdate(begun={first: 7}, ended=[_EndedTransaction(7, first, last, is_aborted=False)]))
        producers.on_high_watermark(0)
        assert producers.first_unstable_offset() == 0
    assert 0 < CountedOffset.comparisons < 40 * count
    assert len(producers.state(2 * count).completed) == count
    for number in range(count):
        producers.on_high_watermark(2 * number + 2)
        assert producers.first_unstable_offset() == (2 * number + 2 if number < count - 1 else None)
    assert CountedOffset.comparisons < 80 * count


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["begin", "end", "watermark"]), st.integers(0, 5)), max_size=60))
def test_the_first_unstable_offset_is_that_of_all_transactions_looked_through(steps: list[tuple[str, int]]) -> None:
    producers = LogProducers(ProducerState.at(0), expiration_ms=1, verifies_transactions=False)
    opened: dict[int, int] = {}
    ended: list[tuple[int, int]] = []
    high_watermark = 0
    for end_offset, (what, number) in enumerate(steps):
        if what == "begin" and number not in opened:
            opened[number] = end_offset
            producers.apply(ProducerUpdate(begun={end_offset: number}))
        elif what == "end" and number in opened:
            first = opened.pop(number)
            ended.append((first, end_offset))
            producers.apply(ProducerUpdate(ended=[_EndedTransaction(number, first, end_offset, is_aborted=False)]))
        elif what == "watermark":
            high_watermark = max(high_watermark, end_offset - number)
            producers.on_high_watermark(high_watermark)
            ended = [(first, last) for first, last in ended if last >= high_watermark]
        assert producers.first_unstable_offset() == min(
            [*opened.values(), *(first for first, _ in ended)], default=None
        )
        assert [(txn.first_offset, txn.last_offset) for txn in producers.state(end_offset).completed] == ended

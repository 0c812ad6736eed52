import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sediment.segment_io.errors import CorruptBatchError
from sediment.segment_io.format.batch_headers import BATCH_ROW
from sediment.segment_io.format.layout import CONTROL_BIT, TRANSACTIONAL_BIT
from sediment.segment_io.format.transaction_index import AbortedTxn
from sediment.segment_io.partition.producer_snapshots import (
    encode_snapshot,
    parse_snapshot,
)
from sediment.segment_io.partition.producer_state import (
    CompletedTransaction,
    ProducerEntry,
    ProducerState,
    last_sequence,
    replay,
)

DAY_MS = 86_400_000
INT32_MAX = 2**31 - 1
ABORT, COMMIT = 0, 1


def row(base_offset, **fields):
    """Return a row of a batch header: by default one data record without a producer."""
    values = {
        "base_offset": base_offset,
        "last_offset": base_offset,
        "magic": 2,
        "producer_id": -1,
        "producer_epoch": -1,
        "base_sequence": -1,
        "record_count": 1,
        "control_type": -1,
        "coordinator_epoch": -1,
        "control_timestamp": -1,
        **fields,
    }
    return tuple(values.get(name, 0) for name in BATCH_ROW.names)


def data(producer_id, base_offset, sequence=0, *, epoch=0, count=1, timestamp=0, transactional=False):
    return row(
        base_offset,
        last_offset=base_offset + count - 1,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        record_count=count,
        max_timestamp=timestamp,
        attributes=TRANSACTIONAL_BIT if transactional else 0,
    )


def transaction(producer_id, base_offset, **fields):
    return data(producer_id, base_offset, transactional=True, **fields)


def marker(producer_id, base_offset, kind, *, epoch=0, coordinator_epoch=0, timestamp=0):
    return row(
        base_offset,
        producer_id=producer_id,
        producer_epoch=epoch,
        attributes=TRANSACTIONAL_BIT | CONTROL_BIT,
        max_timestamp=timestamp,
        control_type=kind,
        coordinator_epoch=coordinator_epoch,
        control_timestamp=timestamp,
    )


def emptied_marker(producer_id, base_offset):
    return row(
        base_offset,
        producer_id=producer_id,
        record_count=0,
        attributes=TRANSACTIONAL_BIT | CONTROL_BIT,
        producer_epoch=5,
    )


def replayed(*rows, state=None):
    return replay(state or ProducerState.at(0), np.array(list(rows), dtype=BATCH_ROW))


# --------------------------------------------------------------------------------------------------------- snapshots


def test_batches_without_a_producer_only_move_the_end_offset():
    before = replayed(data(1, 0, count=3, timestamp=50))
    after = replayed(row(3, last_offset=9), state=before)
    assert after == replace(before, end_offset=10)
    assert replayed(state=before) == before


def test_batches_of_old_magic_have_no_producer_whatever_their_row_says():
    assert replayed(row(0, magic=1, producer_id=7)).entries == {}


def test_a_data_batch_becomes_the_last_batch_of_its_producer():
    state = replayed(data(7, 100, 12, epoch=3, count=3, timestamp=1010))
    assert state == ProducerState.at(103, [ProducerEntry(7, 3, 14, 102, 2, 1010, -1, -1)])


def test_replay_leaves_the_state_it_starts_from_alone():
    before = ProducerState.at(0, [ProducerEntry(7)])
    replayed(data(7, 0), data(8, 1), state=before)
    assert before == ProducerState.at(0, [ProducerEntry(7)])


def test_bf_10_sequences_wrap_to_zero():
    assert [last_sequence(*pair) for pair in ((5, 3), (INT32_MAX, 1), (INT32_MAX - 1, 3))] == [8, 0, 1]
    assert last_sequence(-1, 4) == -1


def test_ps_04_the_first_batch_of_an_unknown_producer_may_have_any_sequence():
    entry = replayed(data(1, 0, 16, epoch=5)).entries[1]
    assert (entry.producer_epoch, entry.last_sequence) == (5, 16)


def test_ps_05_a_batch_outside_of_its_producers_open_transaction_is_corrupt():
    with pytest.raises(CorruptBatchError, match=r"outside the producer's transaction that began at offset 0.*offset 3"):
        replayed(transaction(1, 0), data(2, 1), data(2, 2), data(1, 3), data(1, 4))


def test_ps_06_the_first_unstable_offset_waits_for_markers_to_be_replicated():
    state = replayed(transaction(1, 99), transaction(2, 105))
    assert state.first_unstable_offset(106) == 99
    state = replayed(marker(1, 109, COMMIT), state=state)
    assert state.first_undecided_offset() == 105
    assert [state.first_unstable_offset(high_watermark) for high_watermark in (100, 109, 110)] == [99, 99, 105]
    state = replayed(marker(2, 112, ABORT), state=state)
    assert [state.first_unstable_offset(high_watermark) for high_watermark in (110, 112, 113)] == [105, 105, None]


def test_the_last_stable_offset_is_never_above_the_high_watermark_nor_below_the_log_start():
    state = replayed(transaction(1, 99))
    assert state.last_stable_offset(90) == 90
    assert state.last_stable_offset(200) == 99
    assert state.last_stable_offset(200, log_start_offset=120) == 120
    assert ProducerState.at(0).last_stable_offset(200) == 200


def test_ps_07_lower_coordinator_epochs_are_taken_from_a_log():
    state = replayed(*(marker(1, i, COMMIT, coordinator_epoch=epoch) for i, epoch in enumerate([1, 1, 2, 1])))
    assert state.entries[1].coordinator_epoch == 1


def test_ps_08_a_marker_without_data_completes_no_transaction():
    state = replayed(marker(1, 5, ABORT, epoch=2, coordinator_epoch=9, timestamp=70))
    assert state.completed == ()
    assert state.entries[1] == ProducerEntry(1, 2, -1, -1, 0, 70, 9, -1)


def test_ps_09_the_last_stable_offset_of_a_completion_is_the_earliest_other_open_transaction():
    state = replayed(
        transaction(1, 100),
        transaction(2, 125),
        transaction(3, 157),
        marker(1, 172, ABORT),
        marker(3, 180, ABORT),
        marker(2, 190, ABORT),
    )
    assert [txn.last_stable_offset for txn in state.completed] == [125, 125, 191]


def test_rc_18_aborted_transactions_are_the_entries_of_the_transaction_index():
    rows = (
        transaction(1, 100, count=2),
        transaction(2, 102, count=2),
        row(104, last_offset=105),
        marker(2, 106, ABORT),
        marker(1, 107, COMMIT),
    )
    state = replayed(*rows)
    assert state.end_offset == 108
    assert state.aborted() == (AbortedTxn(2, 102, 106, 100),)
    assert state.completed[1] == CompletedTransaction(1, 100, 107, is_aborted=False, last_stable_offset=108)

    known = ProducerState.at(100, [ProducerEntry(2, 0, 1, 75, 0, 0, 0, current_txn_first_offset=75)])
    assert replayed(*rows, state=known).aborted() == (AbortedTxn(2, 75, 106, 100),)


def test_ps_10_a_snapshot_keeps_the_last_batch_and_the_open_transaction():
    state = replayed(
        transaction(1, 0, sequence=0, count=2, timestamp=10),
        transaction(1, 2, sequence=2, count=3, timestamp=20),
        transaction(2, 5),
        marker(2, 6, COMMIT, coordinator_epoch=4, timestamp=30),
    )
    reloaded = ProducerState.at(state.end_offset, parse_snapshot(encode_snapshot(state.entries.values())))
    assert reloaded.entries == state.entries
    assert reloaded.entries[1] == ProducerEntry(1, 0, 4, 4, 2, 20, -1, current_txn_first_offset=0)
    assert reloaded.entries[2] == ProducerEntry(2, 0, 0, 5, 0, 30, 4, -1)
    assert reloaded.first_undecided_offset() == 0


def test_a_marker_of_the_same_epoch_keeps_the_last_batch_and_one_of_another_epoch_clears_it():
    data_row = transaction(1, 10, sequence=5, epoch=1, count=2)
    same = replayed(data_row, marker(1, 12, COMMIT, epoch=1, coordinator_epoch=3, timestamp=9)).entries[1]
    assert same == ProducerEntry(1, 1, 6, 11, 1, 9, 3, -1)
    bumped = replayed(data_row, marker(1, 12, COMMIT, epoch=2, coordinator_epoch=3, timestamp=9)).entries[1]
    assert bumped == ProducerEntry(1, 2, -1, -1, 0, 9, 3, -1)


def test_data_keeps_the_coordinator_epoch_of_the_last_marker():
    state = replayed(marker(1, 5, COMMIT, coordinator_epoch=9), data(1, 6))
    assert state.entries[1].coordinator_epoch == 9


def test_ps_15_sequence_gaps_and_lower_epochs_of_a_log_are_taken_as_they_are():
    state = replayed(data(1, 0, 0, epoch=3), data(1, 1, 50, epoch=3), data(1, 2, 7, epoch=1, timestamp=5))
    assert state.entries[1] == ProducerEntry(1, 1, 7, 2, 0, 5, -1, -1)


def test_ps_19_an_emptied_marker_changes_nothing_besides_an_entry():
    assert replayed(emptied_marker(1, 5)) == ProducerState.at(6, [ProducerEntry(1)])
    opened = replayed(transaction(1, 0, timestamp=4))
    assert replayed(emptied_marker(1, 5), state=opened) == replace(opened, end_offset=6)


def test_control_records_of_a_producer_that_are_no_markers_are_corrupt():
    with pytest.raises(CorruptBatchError, match="type 2"):
        replayed(marker(1, 5, 2))


def test_control_batches_without_a_producer_are_not_looked_at():
    assert replayed(row(5, attributes=CONTROL_BIT, control_type=2)).entries == {}


def test_states_survive_the_way_to_an_executor():
    state = replayed(transaction(1, 0), marker(1, 1, ABORT), data(2, 2))
    assert pickle.loads(pickle.dumps(state)) == state


@st.composite
def histories(draw):
    """Rows of a log that a broker loads: transactions of three producers with others' data between."""
    kinds = ["data", "data", "data", "transaction", "transaction", "marker", "emptied", "none"]
    open_now, offset, rows = set(), 0, []
    for _ in range(draw(st.integers(0, 40))):
        producer_id = draw(st.integers(0, 2))
        epoch = draw(st.sampled_from([0, 0, 0, 1, 2]))
        what = draw(st.sampled_from(kinds))
        count = 1
        if what == "data" and producer_id not in open_now:
            count = draw(st.integers(1, 3))
            rows.append(data(producer_id, offset, draw(st.integers(0, 9)), epoch=epoch, count=count, timestamp=offset))
        elif what in ("data", "transaction"):
            open_now.add(producer_id)
            rows.append(transaction(producer_id, offset, epoch=epoch, timestamp=2 * offset))
        elif what == "marker":
            open_now.discard(producer_id)
            rows.append(marker(producer_id, offset, draw(st.integers(0, 1)), epoch=epoch, coordinator_epoch=epoch))
        elif what == "emptied":
            rows.append(emptied_marker(producer_id, offset))
        else:
            rows.append(row(offset))
        offset += count
    return rows


@settings(deadline=None)
@given(histories(), st.integers(0, 40))
def test_a_log_replayed_at_once_in_two_parts_or_by_batch_ends_in_the_same_state(rows, cut):
    at_once = replayed(*rows)
    assert replayed(*rows[cut:], state=replayed(*rows[:cut])) == at_once
    by_batch = ProducerState.at(0)
    for one in rows:
        by_batch = replayed(one, state=by_batch)
    assert by_batch == at_once


@settings(deadline=None)
@given(histories())
def test_ps_16_the_last_five_batches_of_an_epoch_are_remembered(rows):
    epochs, batches = {}, {}
    for one in np.array(rows, dtype=BATCH_ROW):
        key, epoch = int(one["producer_id"]), int(one["producer_epoch"])
        is_marker = bool(one["attributes"] & CONTROL_BIT)
        if key < 0 or (is_marker and not one["record_count"]):
            continue
        if epochs.get(key) != epoch:
            batches[key] = []
        epochs[key] = epoch
        if not is_marker:
            last_sequence = int(one["base_sequence"]) + int(one["last_offset"]) - int(one["base_offset"])
            batches[key].append((last_sequence, int(one["last_offset"]), int(one["max_timestamp"])))
    state = replayed(*rows)
    found = {
        key: [(batch.last_sequence, batch.last_offset, batch.timestamp_ms) for batch in state.batches(key)]
        for key in epochs
    }
    assert found == {key: expected[-5:] for key, expected in batches.items()}


def test_ps_16_a_replay_goes_on_from_the_batch_that_a_snapshot_knows():
    known = ProducerState.at(10, [ProducerEntry(1, 0, 3, 9, 0, 5)])
    state = replayed(*(data(1, 10 + n, 4 + n) for n in range(3)), state=known)
    assert [batch.last_sequence for batch in state.batches(1)] == [3, 4, 5, 6]
    assert state.batches(7) == ()
    assert state.without_expired(10**12, 1).batches(1) == ()


def test_committed_transactions_are_left_out_where_only_aborted_ones_are_wanted():
    rows = (transaction(1, 0), marker(1, 1, COMMIT), transaction(1, 2), marker(1, 3, ABORT))
    table = np.array(list(rows), dtype=BATCH_ROW)
    state = replay(ProducerState.at(0), table, only_aborted=True)
    assert state.completed == replay(ProducerState.at(0), table).completed[1:]
    assert state.entries == replayed(*rows).entries

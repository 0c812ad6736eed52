"""Validation of appends by a leader (kafka-log 04 §1.1, §2; 07 AP-01 to AP-14)."""

from __future__ import annotations

from pathlib import Path

import pytest

from sediment.engine.live.log.partition_log import AppendOrigin
from sediment.segment_io.errors import (
    CorruptBatchError,
    InvalidRecordError,
    RecordBatchTooLargeError,
    RecordTooLargeError,
    RecordValidationError,
)
from tests.engine.live_logs import NOW_MS, LiveLog, batch
from tests.twin import framing
from tests.twin.batches import ControlType, Record, assemble_batch, encode_record, parse_batch
from tests.twin.legacy import encode_legacy, encode_legacy_record

GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4
THREE = (("a", "1"), ("b", "2"), ("c", "3"))
COORDINATOR = AppendOrigin.COORDINATOR


def headed(count: int, last_offset: int, records: int = 2) -> bytes:
    """Return a batch of `records` records whose header has another count."""
    payload = b"".join(encode_record(Record(n, NOW_MS, b"k", b"v"), 0, NOW_MS) for n in range(records))
    return assemble_batch(
        payload,
        base_offset=0,
        last_offset=last_offset,
        leader_epoch=0,
        attributes=0,
        base_timestamp=NOW_MS,
        max_timestamp=NOW_MS,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        count=count,
    )


def assert_untouched(log: LiveLog) -> None:
    """Nothing was appended, rolled or noted."""
    assert log.log.log_end_offset == 0
    assert log.bases() == [0]
    assert log.size(f"{0:020d}.log") == 0
    assert log.log.leader_epochs == ()
    assert log.log.read(0, 1000).read() == b""


def test_ap_01_a_leader_gives_offsets_and_its_epoch(tmp_path: Path) -> None:
    log = LiveLog(tmp_path)
    info = log.lead(batch(*THREE, epoch=9), epoch=4)
    assert (info.first_offset, info.last_offset, log.log.log_end_offset) == (0, 2, 3)
    again = log.lead(batch(*THREE), epoch=4)
    assert (again.first_offset, again.last_offset) == (3, 5)
    stored = log.batches()
    assert [(b.base_offset, b.last_offset, b.leader_epoch, b.is_valid()) for b in stored] == [
        (0, 2, 4, True),
        (3, 5, 4, True),
    ]
    assert [(entry.epoch, entry.start_offset) for entry in log.log.leader_epochs] == [(4, 0)]
    assert (log.directory / "leader-epoch-checkpoint").read_text() == "0\n1\n4 0\n"


def test_what_the_caller_passes_stays_as_it_was(tmp_path: Path) -> None:
    log = LiveLog(tmp_path)
    data = bytearray(batch(*THREE))
    before = bytes(data)
    log.lead(batch())
    log.lead(data)
    assert bytes(data) == before


def test_ap_02_a_client_may_not_bring_offsets_and_a_coordinator_may(tmp_path: Path) -> None:
    log = LiveLog(tmp_path)
    with pytest.raises(InvalidRecordError):
        log.lead(batch(at=1))
    assert_untouched(log)
    assert log.lead(batch(at=1), origin=COORDINATOR).first_offset == 0


def test_ap_03_two_batches_of_magic_2_are_refused_and_two_messages_of_magic_1_are_not(tmp_path: Path) -> None:
    log = LiveLog(tmp_path)
    with pytest.raises(InvalidRecordError):
        log.lead(batch() + batch())
    assert_untouched(log)
    messages = encode_legacy([Record(0, NOW_MS, b"a", b"1"), Record(1, NOW_MS + 1, None, b"2")], magic=1)
    assert log.lead(messages).last_offset == 1
    (stored,) = log.batches()
    assert [(r.offset, r.timestamp, r.key, r.value) for r in stored.records()] == [
        (0, NOW_MS, b"a", b"1"),
        (1, NOW_MS + 1, None, b"2"),
    ]


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [GZIP, LZ4])
def test_compressed_messages_of_old_formats_become_one_batch_of_their_codec(
    tmp_path: Path, magic: int, codec: int
) -> None:
    log = LiveLog(tmp_path)
    log.lead(batch())
    records = [Record(0, NOW_MS, b"a", b"1"), Record(1, NOW_MS + 1, b"b", b"2")]
    info = log.lead(encode_legacy(records, magic=magic, codec=codec))
    assert (info.first_offset, info.last_offset) == (1, 2)
    stored = log.batches()[1]
    times = [-1, -1] if magic == 0 else [NOW_MS, NOW_MS + 1]
    assert (stored.codec, stored.is_valid()) == (codec, True)
    assert [(r.offset, r.timestamp, r.key) for r in stored.records()] == [(1, times[0], b"a"), (2, times[1], b"b")]


@pytest.mark.parametrize("outer", [0, 1])
def test_a_message_whose_magic_differs_from_that_of_its_wrapper_is_refused(tmp_path: Path, outer: int) -> None:
    log = LiveLog(tmp_path)
    mixed = [
        encode_legacy_record(Record(0, NOW_MS, b"a", b"1"), magic=outer),
        encode_legacy_record(Record(1, NOW_MS, b"b", b"2"), magic=1 - outer),
    ]
    mixed[1] = mixed[1][:-1] + b"x"  # the checksum of such a message is not read
    wrapper = Record(1, NOW_MS, None, framing.compress(GZIP, b"".join(mixed), magic=outer))
    with pytest.raises(RecordValidationError, match="its magic differs") as refused:
        log.lead(encode_legacy_record(wrapper, magic=outer, attributes=GZIP))
    assert [index for index, _what in refused.value.record_errors] == [1]
    assert not refused.value.has_invalid_timestamp
    assert_untouched(log)


def test_ap_04_a_client_whose_count_and_offsets_differ_is_refused(tmp_path: Path) -> None:
    log = LiveLog(tmp_path)
    for data in (headed(2, 2), headed(0, 0, records=0), headed(-1, 1), headed(2, -1)):
        with pytest.raises(InvalidRecordError):
            log.lead(data)
    assert_untouched(log)


@pytest.mark.parametrize("count", [1, 3])
def test_a_batch_whose_records_are_more_or_fewer_than_it_says_is_refused(tmp_path: Path, count: int) -> None:
    log = LiveLog(tmp_path)
    with pytest.raises(InvalidRecordError):
        log.lead(headed(count, count - 1))
    assert_untouched(log)


def test_ap_05_control_records_and_producers_without_sequence_are_refused_from_clients(tmp_path: Path) -> None:
    log = LiveLog(tmp_path)
    with pytest.raises(InvalidRecordError):
        log.lead(parse_batch(_marker()).data)
    with pytest.raises(InvalidRecordError):
        log.lead(batch(pid=5, seq=-1))
    assert_untouched(log)


def _marker() -> bytes:
    from tests.twin.batches import encode_marker

    return encode_marker(
        ControlType.COMMIT,
        offset=0,
        timestamp=NOW_MS,
        leader_epoch=0,
        producer_id=1,
        producer_epoch=0,
        coordinator_epoch=0,
    )


@pytest.mark.parametrize("codec", [0, GZIP])
def test_ap_06_a_compacted_topic_needs_keys(tmp_path: Path, codec: int) -> None:
    log = LiveLog(tmp_path, cleanup_policy=("compact",))
    for pairs, index in (((((None, "v")), ("k", "v")), 0), ((("k", "v"), (None, "v")), 1)):
        with pytest.raises(RecordValidationError) as refused:
            log.lead(batch(*pairs, codec=codec))
        assert [place for place, _what in refused.value.record_errors] == [index]
        assert not refused.value.has_invalid_timestamp
    assert_untouched(log)


@pytest.mark.parametrize("codec", [0, ZSTD])
def test_ap_07_timestamps_must_be_within_the_limits(tmp_path: Path, codec: int) -> None:
    log = LiveLog(tmp_path, message_timestamp_before_max_ms=1000, message_timestamp_after_max_ms=1000)
    for ts in (NOW_MS - 1001, NOW_MS + 1001):
        with pytest.raises(RecordValidationError) as refused:
            log.lead(batch(ts=ts, codec=codec))
        assert refused.value.has_invalid_timestamp
    assert_untouched(log)
    for ts in (NOW_MS - 1000, NOW_MS + 1000, -1):
        log.lead(batch(ts=ts, codec=codec))
    assert log.log.log_end_offset == 3


def test_ap_08_a_timestamp_among_the_errors_decides_the_cause(tmp_path: Path) -> None:
    log = LiveLog(tmp_path, cleanup_policy=("compact",), message_timestamp_before_max_ms=1000)
    with pytest.raises(RecordValidationError) as refused:
        log.lead(batch((None, "v"), ("k", "v"), ts=[NOW_MS, NOW_MS - 5000]))
    assert [place for place, _what in refused.value.record_errors] == [0, 1]
    assert refused.value.has_invalid_timestamp


@pytest.mark.parametrize("codec", [0, SNAPPY])
def test_ap_09_log_append_time_is_stamped_and_deltas_stay(tmp_path: Path, codec: int) -> None:
    log = LiveLog(tmp_path, message_timestamp_type="LogAppendTime", index_interval_bytes=0)
    sent = batch(*THREE, ts=[5, 7, 6], codec=codec)
    info = log.lead(sent)
    log.lead(sent)
    assert info.log_append_time_ms == info.max_timestamp_ms == NOW_MS
    for stored in log.batches():
        assert stored.attributes & 0x08
        assert (stored.max_timestamp, stored.base_timestamp, stored.is_valid()) == (NOW_MS, 5, True)
        assert stored.data[61:] == sent[61:]
    assert log.log.lookup_timestamp(NOW_MS).offset == 0  # type: ignore[union-attr]
    assert log.log.lookup_timestamp(NOW_MS + 1) is None


def test_a_flag_of_append_time_is_cleared_by_a_create_time_topic(tmp_path: Path) -> None:
    log = LiveLog(tmp_path, message_timestamp_after_max_ms=1000)
    log.lead(batch(*THREE, ts=[5, 7, 6], append_time=NOW_MS))
    (stored,) = log.batches()
    assert not stored.attributes & 0x08
    assert stored.max_timestamp == NOW_MS
    assert [record.timestamp for record in stored.records()] == [5, 7, 6]
    with pytest.raises(RecordValidationError):
        log.lead(batch(*THREE, append_time=NOW_MS + 1001))
    log.reconfigure(message_timestamp_type="LogAppendTime")
    with pytest.raises(RecordValidationError):
        log.lead(batch(*THREE, append_time=NOW_MS))


def test_the_largest_timestamp_of_a_batch_is_computed_anew(tmp_path: Path) -> None:
    log = LiveLog(tmp_path)
    lying = bytearray(batch(*THREE, ts=[5, 7, 6]))
    lying[35:43] = (99).to_bytes(8, "big")
    from tests.twin.batches import sign_batch

    log.lead(sign_batch(bytes(lying)))
    (stored,) = log.batches()
    assert (stored.max_timestamp, stored.is_valid()) == (7, True)


@pytest.mark.parametrize(
    ("topic", "sent", "stored_codec"),
    [("gzip", 0, GZIP), ("producer", ZSTD, ZSTD), ("uncompressed", GZIP, 0), ("lz4", SNAPPY, LZ4), ("zstd", 0, ZSTD)],
)
def test_ap_10_the_topic_decides_the_codec(tmp_path: Path, topic: str, sent: int, stored_codec: int) -> None:
    log = LiveLog(tmp_path, compression_type=topic)
    log.lead(batch())
    log.lead(batch(*THREE, ts=[5, 7, 6], codec=sent, pid=3, seq=8))
    stored = log.batches()[1]
    assert (stored.codec, stored.base_offset, stored.last_offset) == (stored_codec, 1, 3)
    assert (stored.producer_id, stored.base_sequence, stored.max_timestamp, stored.is_valid()) == (3, 8, 7, True)
    assert [(r.offset, r.timestamp, r.key, r.value) for r in stored.records()] == [
        (1, 5, b"a", b"1"),
        (2, 7, b"b", b"2"),
        (3, 6, b"c", b"3"),
    ]


def test_ap_10_the_same_codec_at_another_level_keeps_the_payload(tmp_path: Path) -> None:
    log = LiveLog(tmp_path, compression_type="gzip", compression_gzip_level=9)
    sent = batch(*THREE, codec=GZIP)
    log.lead(sent)
    assert log.batches()[0].data[61:] == sent[61:]


@pytest.mark.parametrize(("topic", "levels"), [("gzip", (1, 9)), ("lz4", (1, 17)), ("zstd", (-50, 19))])
def test_the_level_of_the_topic_is_used_when_the_log_compresses(
    tmp_path: Path, topic: str, levels: tuple[int, int]
) -> None:
    text = "".join(chr(97 + n * n * 7 % 26) for n in range(4000)) * 2
    sizes = []
    for level in levels:
        (tmp_path / str(level)).mkdir()
        log = LiveLog(tmp_path / str(level), compression_type=topic, **{f"compression_{topic}_level": level})
        log.lead(batch(("k", text)))
        assert log.batches()[0].records()[0].value == text.encode()
        sizes.append(log.log.size_bytes)
    assert sizes[0] > sizes[1]


def test_ap_11_control_batches_are_never_compressed(tmp_path: Path) -> None:
    log = LiveLog(tmp_path, compression_type="gzip")
    log.mark(1, ControlType.COMMIT)
    (stored,) = log.batches()
    assert (stored.codec, stored.is_control, stored.is_valid()) == (0, True, True)


def test_ap_12_a_batch_above_the_limit_is_refused_from_a_leader_only(tmp_path: Path) -> None:
    log = LiveLog(tmp_path, max_message_bytes=70)
    with pytest.raises(RecordTooLargeError):
        log.lead(batch())
    assert_untouched(log)
    assert log.follow(batch()).last_offset == 0


def test_ap_12_a_batch_that_grows_beyond_the_limit_is_refused(tmp_path: Path) -> None:
    sent = batch(("k", "v" * 500), codec=GZIP)
    log = LiveLog(tmp_path, compression_type="uncompressed", max_message_bytes=len(sent))
    with pytest.raises(RecordTooLargeError):
        log.lead(sent)
    assert_untouched(log)


def test_ap_13_an_append_above_the_segment_size_is_refused(tmp_path: Path) -> None:
    log = LiveLog(tmp_path, segment_bytes=70)
    with pytest.raises(RecordBatchTooLargeError):
        log.lead(batch())
    assert_untouched(log)
    log.reconfigure(segment_bytes=71)
    assert log.lead(batch()).last_offset == 0


@pytest.mark.parametrize("position", [17, 21, 40, 65])
def test_ap_14_a_wrong_checksum_is_refused_from_leader_and_follower(tmp_path: Path, position: int) -> None:
    log = LiveLog(tmp_path)
    data = bytearray(batch())
    data[position] ^= 1
    with pytest.raises(CorruptBatchError):
        log.lead(data)
    with pytest.raises(CorruptBatchError):
        log.follow(bytes(data))
    assert_untouched(log)


def test_an_incomplete_last_batch_is_cut_off(tmp_path: Path) -> None:
    log = LiveLog(tmp_path)
    log.follow(batch(), batch(at=1)[:40])
    assert log.log.log_end_offset == 1
    assert log.follow(batch(at=1)[:40]).last_offset == -1


@pytest.mark.parametrize("length", [0, 13, -1])
def test_a_length_that_is_none_is_corrupt(tmp_path: Path, length: int) -> None:
    log = LiveLog(tmp_path)
    data = bytearray(batch())
    data[8:12] = length.to_bytes(4, "big", signed=True)
    with pytest.raises(CorruptBatchError):
        log.lead(data)
    assert_untouched(log)

"""The twin's filter and cleaner against the golden vectors of kafka-log 02 and the compaction scenarios of 07."""

import os

import pytest

from tests.twin import framing, vectors
from tests.twin.batches import ControlType, Record, encode_batch, encode_marker
from tests.twin.cleaner import TopicConfig, clean_directory, group_segments
from tests.twin.errors import CorruptRecordError, IllegalStateError
from tests.twin.filtering import Retention, filter_batch
from tests.twin.indexes import (
    OffsetEntry,
    TimeEntry,
    build_indexes,
    encode_transaction_index,
    parse_offset_index,
    parse_time_index,
    parse_transaction_index,
)
from tests.twin.legacy import encode_legacy, encode_legacy_record
from tests.twin.segments import (
    LOG,
    OFFSET_INDEX,
    SNAPSHOT,
    TIME_INDEX,
    TRANSACTION_INDEX,
    buffer_batches,
    list_segments,
    list_snapshots,
    parse_any,
)
from tests.twin.snapshots import ProducerStates, encode_snapshot

ABORT, COMMIT = ControlType.ABORT, ControlType.COMMIT
DAY_MS = 86_400_000
NOW_MS = 5_000_000

# ------------------------------------------------------------------------------------------------ filter vectors (§11)
IDEMPOTENT = encode_batch(
    vectors.RECORDS, base_offset=100, leader_epoch=5, producer_id=7, producer_epoch=3, base_sequence=12
)


def filtered(data, *offsets, retention=Retention.DELETE_EMPTY, marker_for_empty_transaction=False):
    return filter_batch(
        data,
        lambda record: record.offset in offsets,
        now_ms=1_000_000,
        delete_retention_ms=DAY_MS,
        retention=retention,
        marker_for_empty_transaction=marker_for_empty_transaction,
    )


@pytest.mark.parametrize(
    ("data", "offsets", "expected"),
    [
        pytest.param(IDEMPOTENT, (100, 102), vectors.KEPT_100_102, id="a tombstone gets a horizon"),
        pytest.param(IDEMPOTENT, (100,), vectors.KEPT_100, id="no tombstone, no horizon"),
        pytest.param(IDEMPOTENT, (101,), vectors.KEPT_101, id="maxTimestamp is recomputed"),
        pytest.param(IDEMPOTENT, (), b"", id="nothing kept"),
        pytest.param(vectors.KEPT_100_102, (100, 102), vectors.KEPT_100_102, id="all kept, horizon there: copied"),
        pytest.param(vectors.KEPT_100_102, (100,), vectors.KEPT_100_102_THEN_100, id="a horizon stays"),
        pytest.param(vectors.APPEND_TIME, (100,), vectors.APPEND_TIME_KEPT_100, id="append time"),
        pytest.param(vectors.APPEND_TIME, (100, 102), vectors.APPEND_TIME_KEPT_100_102, id="append time and horizon"),
        pytest.param(vectors.V1_GZIP, (100, 102), vectors.V1_GZIP_KEPT_100_102, id="magic 1 wrapper, horizon"),
        pytest.param(vectors.V1_GZIP, (100, 101), vectors.V1_GZIP_KEPT_100_101, id="magic 1 wrapper"),
    ],
)
def test_the_filter_writes_what_kafkas_filter_writes(data, offsets, expected):
    assert filtered(data, *offsets) == expected


def test_a_null_value_without_a_key_gets_a_horizon_too():
    data = encode_batch([Record(0, 5, None, None), Record(1, 5, b"a", b"v")], base_offset=0)
    assert parse_any(filtered(data, 0, 1)).delete_horizon_ms == 1_000_000 + DAY_MS
    assert parse_any(filtered(data, 1)).delete_horizon_ms is None


def test_an_emptied_batch_leaves_its_header_when_it_must_stay():
    assert filtered(vectors.KEPT_100_102, retention=Retention.RETAIN_EMPTY) == vectors.KEPT_100_102_THEN_NONE
    assert filtered(vectors.COMMIT, retention=Retention.RETAIN_EMPTY) == vectors.COMMIT_EMPTIED
    assert filtered(vectors.EMPTY, retention=Retention.RETAIN_EMPTY) == vectors.EMPTY
    assert filtered(vectors.EMPTY) == b""


def test_a_marker_of_an_emptied_transaction_gets_a_horizon():
    assert filtered(vectors.COMMIT, 20, marker_for_empty_transaction=True) == vectors.COMMIT_WITH_HORIZON
    assert filtered(vectors.COMMIT_WITH_HORIZON, 20, marker_for_empty_transaction=True) == vectors.COMMIT_WITH_HORIZON


def test_legacy_records_become_batches_of_magic_2_one_by_one():
    v0 = b"".join(filtered(batch.data, 100, 102) for _position, batch in buffer_batches(vectors.V0))
    v1 = b"".join(filtered(batch.data, 100) for _position, batch in buffer_batches(vectors.V1_APPEND_TIME))
    assert v0 == vectors.V0_KEPT_100_102
    assert v1 == vectors.V1_APPEND_TIME_KEPT_100


def test_a_deleted_batch_is_not_looked_at():
    damaged = vectors.PLAIN[:61] + b"\xff" * 32
    assert filtered(damaged, 100, retention=Retention.DELETE) == b""


def test_a_legacy_batch_cannot_stay_empty():
    with pytest.raises(IllegalStateError):
        filtered(vectors.V1_GZIP, retention=Retention.RETAIN_EMPTY)


# ------------------------------------------------------------------------------------------------------ a log to clean
class Log:
    """Writes a partition directory as a leader of epoch 0 would: offsets from 0, a timestamp of 1000 + offset."""

    def __init__(self, directory, *, interval_bytes=4096):
        self.directory = directory
        directory.mkdir()
        self.interval_bytes = interval_bytes
        self.base_offset = 0
        self.next_offset = 0
        self.batches = []
        self.aborted = []
        self.states = ProducerStates()
        self.sequences = {}
        self._write()

    def append(self, fields, *, pid=-1, transactional=False, codec=framing.NONE, append_time=None):
        """Append one batch of `fields`: "a=1" key and value, "a" the value v, "a=" a tombstone, "=v" no key."""
        records = []
        for index, field in enumerate(fields.split()):
            key, equals, value = field.partition("=")
            records.append(
                Record(
                    self.next_offset + index,
                    1000 + self.next_offset + index,
                    key.encode() or None,
                    (value.encode() or None) if equals else b"v",
                )
            )
        sequence = -1
        if pid >= 0:
            sequence = self.sequences.get(pid, 0)
            self.sequences[pid] = sequence + len(records)
        return self.append_bytes(
            encode_batch(
                records,
                base_offset=self.next_offset,
                leader_epoch=0,
                codec=codec,
                append_time=append_time,
                producer_id=pid,
                producer_epoch=0 if pid >= 0 else -1,
                base_sequence=sequence,
                transactional=transactional,
            )
        )

    def marker(self, control_type, pid):
        return self.append_bytes(
            encode_marker(
                control_type,
                offset=self.next_offset,
                timestamp=1000 + self.next_offset,
                leader_epoch=0,
                producer_id=pid,
                producer_epoch=0,
                coordinator_epoch=0,
            )
        )

    def append_bytes(self, data):
        """Append one batch as it is."""
        batch = parse_any(data)
        completed = self.states.fold(batch)
        if completed is not None and completed.is_aborted:
            self.aborted.append(self.states.aborted(completed))
        self.batches.append(batch)
        self.next_offset = batch.next_offset
        self._write()
        return self

    def roll(self, base_offset=None):
        """Begin a new active segment, `base_offset` is the log's end unless given."""
        self.base_offset = self.next_offset = self.next_offset if base_offset is None else base_offset
        self.batches, self.aborted = [], []
        self._path(SNAPSHOT).write_bytes(encode_snapshot(self.states.entries))
        self._write()
        return self

    def clean(self, now_ms=NOW_MS, *, first_dirty=None, slots=None, load_factor=0.75, **config):
        settings = {key.replace("_", "."): str(value) for key, value in config.items()}
        settings.setdefault("index.interval.bytes", str(self.interval_bytes))
        return clean_directory(
            self.directory,
            config=settings,
            now_ms=now_ms,
            first_dirty_offset=first_dirty,
            map_bytes=None if slots is None else slots * 24,
            load_factor=load_factor,
        )

    def _path(self, suffix):
        return self.directory / f"{self.base_offset:020d}{suffix}"

    def _write(self):
        offset_index, time_index = build_indexes(self.batches, self.base_offset, interval_bytes=self.interval_bytes)
        self._path(LOG).write_bytes(b"".join(batch.data for batch in self.batches))
        self._path(OFFSET_INDEX).write_bytes(offset_index)
        self._path(TIME_INDEX).write_bytes(time_index)
        if self.aborted:
            self._path(TRANSACTION_INDEX).write_bytes(encode_transaction_index(self.aborted))

    # ---------------------------------------------------------------------------------------------------- what is left
    def all_batches(self):
        return [batch for segment in list_segments(self.directory) for _position, batch in segment.batches()]

    def last_offsets(self):
        return [batch.last_offset for batch in self.all_batches()]

    def empty_batches(self):
        return [batch.last_offset for batch in self.all_batches() if batch.count == 0]

    def offsets(self):
        return [record.offset for batch in self.all_batches() for record in batch.records()]

    def keys(self):
        """Keys of the data records, as one string."""
        data = (batch for batch in self.all_batches() if not batch.is_control)
        return " ".join(record.key.decode() for batch in data for record in batch.records())

    def aborted_ranges(self):
        """(first offset, last offset) of every transaction index entry of the inactive segments."""
        segments = list_segments(self.directory)[:-1]
        entries = [entry for segment in segments for entry in parse_transaction_index(segment.read(TRANSACTION_INDEX))]
        return [(entry.first_offset, entry.last_offset) for entry in entries]


@pytest.fixture
def log(tmp_path):
    return Log(tmp_path / "t-0")


# ----------------------------------------------------------------------------------------------------------- the basics
def test_cp_01_the_golden_run(tmp_path):
    log = Log(tmp_path / "t-0", interval_bytes=100)
    log.append("a=1 b=1 c=1").append("a=2 b=").append("d=1").append("a=3 d=2 e=1").roll()
    first = list_segments(log.directory)[0]
    assert first.read(LOG) == vectors.CLEANING_INPUT
    result = log.clean(delete_retention_ms=60000)
    assert result.end_offset == 9
    assert first.read(LOG) == vectors.CLEANING_OUTPUT
    assert parse_offset_index(first.read(OFFSET_INDEX), 0) == [OffsetEntry(8, 142)]
    assert parse_time_index(first.read(TIME_INDEX), 0) == [TimeEntry(1008, 8)]
    assert sorted(path.name[18:] for path in log.directory.iterdir()) == sorted(
        ["00.log", "00.index", "00.timeindex", "09.log", "09.index", "09.timeindex", "09.snapshot"]
    )
    log.clean(5059999, delete_retention_ms=60000)
    assert first.read(LOG) == vectors.CLEANING_OUTPUT
    log.clean(5060000, delete_retention_ms=60000)
    assert log.last_offsets() == [2, 8]


def test_cp_02_a_tombstone_lives_until_its_horizon_and_the_horizon_stays(log):
    log.append("a=1 b=1").append("a=2 b=").append("c=1").roll().clean(delete_retention_ms=60000)
    assert [(batch.last_offset, batch.delete_horizon_ms) for batch in log.all_batches()] == [(3, 5060000), (4, None)]
    assert log.offsets() == [2, 3, 4]
    before = list_segments(log.directory)[0].read(LOG)
    log.clean(5059999, delete_retention_ms=60000)
    assert list_segments(log.directory)[0].read(LOG) == before
    for now_ms in (5060000, 9000000):
        log.clean(now_ms, delete_retention_ms=60000)
        assert log.offsets() == [2, 4]
        assert [batch.delete_horizon_ms for batch in log.all_batches()] == [5060000, None]


def test_cp_03_the_rounds_last_batch_leaves_its_header(log):
    log.append("a=1").append("b=").roll().append("a=2")
    log.clean(delete_retention_ms=60000)
    assert log.offsets() == [0, 1, 2]
    log.clean(5060000, delete_retention_ms=60000)
    empty = log.all_batches()[1]
    assert (empty.count, empty.last_offset, empty.delete_horizon_ms, empty.max_timestamp) == (0, 1, None, 1001)
    log.roll().clean(5060000, delete_retention_ms=60000)
    assert log.last_offsets() == [2]


@pytest.mark.parametrize(
    ("first_dirty", "slots", "end_offset", "left"),
    [
        pytest.param(2, 2, 3, [1, 2, 3, 4], id="cp-05, from 2"),
        pytest.param(3, 2, 4, [0, 2, 3, 4], id="cp-05, from 3 of the original log"),
        pytest.param(2, 4, 5, [3, 4], id="cp-06"),
    ],
)
def test_cp_05_cp_06_a_full_map_ends_the_round(log, first_dirty, slots, end_offset, left):
    for key in (0, 1, 0, 1, 0):
        log.append(f"{key}")
    result = log.roll().clean(first_dirty=first_dirty, slots=slots)
    assert result.end_offset == end_offset
    assert log.offsets() == left


def test_cp_05_rounds_with_a_map_of_one_key_go_on_where_the_last_one_ended(log):
    for key in (0, 1, 0, 1, 0):
        log.append(f"{key}")
    log.roll()
    for first_dirty, left in ((2, [1, 2, 3, 4]), (3, [2, 3, 4]), (4, [3, 4])):
        log.clean(first_dirty=first_dirty, slots=2)
        assert log.offsets() == left


def test_cp_06_counts_of_a_round_over_single_record_batches(log):
    for key in (0, 1, 0, 1, 0):
        log.append(f"{key}")
    stats = log.roll().clean(first_dirty=2, slots=4).stats
    assert (stats.messages_read, stats.messages_written, stats.map_messages_read) == (5, 2, 5)


def test_cp_07_a_known_key_too_finds_the_map_full(log):
    for key in ("k0", "k1", "k2", "k3", "k0", "k1"):
        log.append(key)
    log.roll()
    assert log.clean(slots=4).end_offset == 3
    assert log.offsets() == [0, 1, 2, 3, 4, 5]
    assert log.clean(first_dirty=3, slots=4).end_offset == 6
    assert log.offsets() == [2, 3, 4, 5]


def test_cp_08_the_map_can_be_full_inside_of_a_batch(log):
    log.append("a b c d a").append("b").roll()
    assert log.clean(slots=4).end_offset == 3
    assert log.offsets() == [0, 1, 2, 3, 4, 5]
    assert log.clean(first_dirty=3, slots=4).end_offset == 6
    assert log.offsets() == [2, 3, 4, 5]


def test_cp_09_records_without_a_key_go_and_are_counted(log):
    for number in range(20):
        log.append("=v").append(f"k{number}")
    log.append("=v").roll()
    result = log.clean()
    assert result.stats.invalid_messages == 21
    assert log.offsets() == list(range(1, 40, 2))
    assert log.empty_batches() == [40]


def test_cp_10_a_record_without_a_key_goes_below_the_maps_end_and_stays_above_it(log):
    for fields in ("a", "=v", "b", "c", "d", "=v", "a"):
        log.append(fields)
    assert log.roll().clean(slots=4).end_offset == 4
    assert log.offsets() == [0, 2, 3, 4, 5, 6]


def test_cp_11_a_segment_that_loses_everything_stays_with_empty_files(log):
    log.append("a b").roll().append("a b").roll().append("c").roll()
    log.clean(segment_bytes=1)
    assert [segment.base_offset for segment in list_segments(log.directory)] == [0, 2, 4, 5]
    first = list_segments(log.directory)[0]
    assert (first.read(LOG), first.read(OFFSET_INDEX), first.read(TIME_INDEX)) == (b"", b"", b"")


def test_cp_12_a_round_that_loses_everything_leaves_one_header(log):
    log.append("=v").append("=v").roll().append("=v").roll()
    log.clean()
    (batch,) = log.all_batches()
    assert (batch.count, batch.last_offset) == (0, 2)
    assert [segment.base_offset for segment in list_segments(log.directory)] == [0, 3]


def test_cp_14_cleaned_files_have_the_modification_time_of_the_last_source(log):
    log.append("a").roll().append("a").roll()
    segments = list_segments(log.directory)
    for number, segment in enumerate(segments[:2]):
        os.utime(segment.path(LOG), ns=(10**18, 10**18 + number * 10**9))
    log.clean()
    for suffix in (LOG, OFFSET_INDEX, TIME_INDEX):
        assert segments[0].path(suffix).stat().st_mtime_ns == 10**18 + 10**9


def test_cp_26_append_time_survives_a_rebuild(log):
    log.append("a=1 b=1 c=", append_time=7000).append("a=2").roll().clean(delete_retention_ms=60000)
    rebuilt = log.all_batches()[0]
    assert (rebuilt.base_timestamp, rebuilt.max_timestamp, rebuilt.attributes) == (5060000, 7000, 0x48)
    assert {record.timestamp for record in rebuilt.records()} == {7000}
    plain = Log(log.directory.parent / "u-0")
    plain.append("a=1 b=1", append_time=7000).append("a=2").roll().clean()
    rebuilt = plain.all_batches()[0]
    assert (rebuilt.base_timestamp, rebuilt.max_timestamp, rebuilt.attributes) == (7000, 7000, 0x08)


def test_cp_27_a_compressed_batch_is_rebuilt_with_its_codec_and_copied_when_it_loses_nothing(log):
    log.append("a b c", codec=framing.GZIP).append("d e", codec=framing.GZIP).append("a").roll()
    untouched = log.all_batches()[1].data
    log.clean()
    rebuilt, copied, _last = log.all_batches()
    assert (rebuilt.codec, rebuilt.base_offset, rebuilt.last_offset, rebuilt.count) == (framing.GZIP, 0, 2, 2)
    assert copied.data == untouched


def test_cp_34_a_wrong_checksum_is_copied_and_a_rebuild_signs_anew(log):
    data = bytearray(encode_batch([Record(0, 0, b"a", b"v"), Record(1, 0, b"b", b"v")], base_offset=0, leader_epoch=0))
    data[17] ^= 1
    log.append_bytes(bytes(data)).append("c").roll().clean()
    assert [batch.is_valid() for batch in log.all_batches()] == [False, True]
    log.append("a").roll().clean()
    assert log.offsets() == [1, 2, 3]
    assert all(batch.is_valid() for batch in log.all_batches())


def test_cp_33_a_batch_of_an_unknown_magic_stops_the_cleaner(log):
    log.append("a").roll()
    path = list_segments(log.directory)[0].path(LOG)
    path.write_bytes(path.read_bytes()[:16] + b"\x07" + path.read_bytes()[17:])
    with pytest.raises(CorruptRecordError):
        log.clean()


def test_cp_32_a_torn_segment_stops_the_cleaner(log):
    log.append("a").append("b").roll()
    path = list_segments(log.directory)[0].path(LOG)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorruptRecordError):
        log.clean()


def test_cp_37_a_gap_at_the_end_of_a_segment_is_jumped(log):
    for number in range(10):
        log.append(f"{number}")
    assert log.roll(11).clean().end_offset == 11


def test_cp_38_an_open_transaction_inside_of_a_segment_bounds_the_round_at_its_base(log):
    log.append("a").append("a").roll().append("a").append("b", pid=1, transactional=True).append("a").roll()
    result = log.clean()
    assert (result.cleanable.uncleanable_offset, result.cleanable.first_uncleanable_offset) == (3, 2)
    assert log.offsets() == [1, 2, 3, 4]


def test_cp_42_snapshots_of_merged_segments_go(log):
    log.append("a").roll().append("b").roll().append("c").roll()
    assert list_snapshots(log.directory) == [1, 2, 3]
    log.clean(segment_bytes=140)
    assert [segment.base_offset for segment in list_segments(log.directory)] == [0, 2, 3]
    assert list_snapshots(log.directory) == [2, 3]


def test_cp_43_a_batch_is_rewritten_for_its_horizon_alone(log):
    log.append("a=1 b=").append("c=1").roll()
    size_bytes = len(log.all_batches()[0].data)
    log.clean()
    rewritten = log.all_batches()[0]
    assert (rewritten.count, rewritten.delete_horizon_ms) == (2, NOW_MS + DAY_MS)
    assert len(rewritten.data) > size_bytes
    log.clean(NOW_MS + 1)
    assert log.all_batches()[0] == rewritten


# ----------------------------------------------------------------------------------------------------------- the range
def test_cm_08_cm_24_the_first_uncleanable_offset_is_rounded_down_and_a_split_segment_counts_twice(log):
    for _ in range(3):
        log.append("a").append("b").roll()
    cleanable = log.clean(first_dirty=3).cleanable
    assert (cleanable.first_dirty_offset, cleanable.first_uncleanable_offset) == (3, 6)
    assert cleanable.ratio == pytest.approx(280 / (280 + 280))


@pytest.mark.parametrize("checkpoint", [-1, 99])
def test_cm_04_cm_05_a_checkpoint_outside_of_the_log_counts_as_none(log, checkpoint):
    log.append("a").append("a").roll()
    assert log.clean(first_dirty=checkpoint).cleanable.first_dirty_offset == 0


@pytest.mark.parametrize(("now_ms", "uncleanable"), [(2000, 0), (2001, 1), (2002, 2)])
def test_cm_10_min_lag_stops_at_the_first_segment_that_is_too_new(log, now_ms, uncleanable):
    log.append("a").roll().append("a").roll()
    assert log.clean(now_ms, min_compaction_lag_ms=1001).cleanable.first_uncleanable_offset == uncleanable


def test_an_empty_dirty_range_changes_nothing(log):
    log.append("a").append("a").roll()
    result = log.clean(first_dirty=2)
    assert (result.end_offset, result.groups, log.offsets()) == (0, (), [0, 1])


# -------------------------------------------------------------------------------------------------------------- groups
def three_hundred_bytes_each(log, count):
    for number in range(count):
        log.append_bytes(encode_batch([Record(number, 0, b"k", b"v" * 229)], base_offset=number, leader_epoch=0)).roll()
    segments = list_segments(log.directory)[:-1]
    size_bytes = {segment.log_bytes() for segment in segments}
    assert len(size_bytes) == 1
    return segments, size_bytes.pop()


def test_cp_35_groups_stay_within_the_sizes_of_a_segment(log):
    segments, size_bytes = three_hundred_bytes_each(log, 7)

    def sizes(**config):
        return [len(group) for group in group_segments(segments, TopicConfig(**config), 7)]

    assert sizes() == [7]
    assert sizes(segment_bytes=1) == [1] * 7
    assert sizes(segment_index_bytes=1) == [1] * 7
    assert sizes(segment_bytes=3 * size_bytes + 1) == [3, 3, 1]
    assert sizes(segment_index_bytes=36) == [3, 3, 1]


@pytest.mark.parametrize(("first_uncleanable", "groups"), [(2147483648, 1), (2147483649, 2)])
def test_cp_36_groups_stay_within_2_31_offsets(log, first_uncleanable, groups):
    segments, _size_bytes = three_hundred_bytes_each(log, 2)
    assert len(group_segments(segments, TopicConfig(), first_uncleanable)) == groups
    segments[1].path(LOG).write_bytes(b"")
    assert len(group_segments(segments, TopicConfig(), first_uncleanable)) == 1


# ------------------------------------------------------------------------------------------------------------ producers
def test_cp_15_the_last_batch_of_each_producer_leaves_its_header(log):
    log.append("1 2 3", pid=1).append("3 1 4", pid=2).append("1 4", pid=3).roll().clean()
    assert (log.last_offsets(), log.offsets(), log.keys()) == ([2, 5, 7], [1, 3, 6, 7], "2 3 1 4")
    log.append("2", pid=4).roll().clean()
    assert (log.last_offsets(), log.offsets()) == ([2, 5, 7, 8], [3, 6, 7, 8])
    assert log.empty_batches() == [2]
    assert log.all_batches()[0].last_sequence == 2


def test_cp_16_an_earlier_batch_of_a_producer_goes_whole(log):
    log.append("0=0").append("0=1", pid=1).append("0=2", pid=2).append("0=3", pid=3).append("1=1", pid=2)
    log.roll().clean()
    assert (log.last_offsets(), log.empty_batches(), log.offsets()) == ([1, 3, 4], [1], [3, 4])


def test_an_expired_producer_leaves_nothing(log):
    log.append("a", pid=1).append("a").append("b").roll().clean(1000 + DAY_MS - 1)
    assert log.empty_batches() == [0]
    log.clean(1000 + DAY_MS)
    assert log.last_offsets() == [1, 2]


def test_producers_come_from_the_newest_snapshot_and_later_batches(log):
    log.append("a", pid=1).append("a").roll().append("c", pid=1)
    log.clean()
    assert log.last_offsets() == [1, 2]


# --------------------------------------------------------------------------------------------------------- transactions
def test_cp_17_an_aborted_transaction_leaves_its_producers_last_header_and_its_marker(log):
    log.append("1", pid=1, transactional=True).append("2 3", pid=1, transactional=True).marker(ABORT, 1).roll().clean()
    assert (log.last_offsets(), log.empty_batches()) == ([2, 3], [2])
    empty = log.all_batches()[0]
    assert (empty.base_sequence, empty.last_sequence) == (1, 2)
    log.append("1 5", pid=1, transactional=True).roll()
    log.marker(COMMIT, 1).clean()
    assert (log.last_offsets()[:2], log.keys()) == ([3, 5], "1 5")


def test_cp_18_committed_and_aborted_transactions_between_each_other(log):
    log.append("1 2", pid=1, transactional=True).append("2 3", pid=2, transactional=True)
    log.append("3 4", pid=1, transactional=True).marker(ABORT, 1).marker(COMMIT, 2)
    log.append("2", pid=1, transactional=True).marker(COMMIT, 1).roll().clean()
    assert (log.keys(), log.offsets(), log.aborted_ranges()) == ("3 2", [3, 6, 7, 8, 9], [(0, 6)])


def test_cp_19_a_commit_marker_goes_after_all_its_batches(log):
    log.append("1", pid=1, transactional=True).append("2 3", pid=1, transactional=True).marker(COMMIT, 1)
    log.append("2", pid=1, transactional=True).marker(COMMIT, 1).roll().clean(delete_retention_ms=1000)
    assert log.offsets() == [0, 2, 3, 4, 5]
    log.append("1 3", pid=1, transactional=True).marker(COMMIT, 1).roll()
    log.clean(delete_retention_ms=1000)
    assert log.offsets() == [3, 4, 5, 6, 7, 8]
    assert log.all_batches()[0].delete_horizon_ms is None
    log.clean(delete_retention_ms=1000)
    assert log.offsets() == [3, 4, 5, 6, 7, 8]
    assert log.all_batches()[0].delete_horizon_ms == NOW_MS + 1000
    log.clean(NOW_MS + 999, delete_retention_ms=1000)
    assert log.offsets() == [3, 4, 5, 6, 7, 8]
    log.clean(NOW_MS + 1000, delete_retention_ms=1000)
    assert log.offsets() == [4, 5, 6, 7, 8]


def test_cp_20_an_abort_marker_goes_after_all_its_batches(log):
    log.append("1", pid=1, transactional=True).append("2 3", pid=1, transactional=True).marker(ABORT, 1)
    log.append("3", pid=1, transactional=True).marker(COMMIT, 1).roll()
    for now_ms, left, horizon_ms in (
        (NOW_MS, [3, 4, 5], None),
        (NOW_MS, [3, 4, 5], NOW_MS + 1000),
        (NOW_MS + 1000, [4, 5], None),
    ):
        log.clean(now_ms, delete_retention_ms=1000)
        assert log.offsets() == left
        assert log.all_batches()[0].delete_horizon_ms == horizon_ms


def test_cp_21_an_empty_batch_keeps_the_abort_marker_and_its_index_entry(log):
    log.append("2 3", pid=1, transactional=True).marker(ABORT, 1).roll()
    for now_ms in (NOW_MS, NOW_MS + 10**6, NOW_MS + 10**7):
        log.clean(now_ms, delete_retention_ms=1000)
        assert (log.last_offsets(), log.empty_batches(), log.aborted_ranges()) == ([1, 2], [1], [(0, 2)])
    log.append("1", pid=1, transactional=True).marker(COMMIT, 1).roll()
    log.clean(delete_retention_ms=1000)
    assert (log.last_offsets(), log.aborted_ranges()) == ([2, 3, 4], [(0, 2)])
    log.clean(delete_retention_ms=1000)
    assert (log.last_offsets(), log.aborted_ranges()) == ([2, 3, 4], [])
    assert not list_segments(log.directory)[0].path(TRANSACTION_INDEX).exists()
    log.clean(NOW_MS + 1000, delete_retention_ms=1000)
    assert log.last_offsets() == [3, 4]


def test_cp_22_a_transaction_is_decided_by_a_marker_in_the_active_segment(log):
    log.append("1 2", pid=1, transactional=True).append("2 3", pid=3, transactional=True)
    log.append("3 4", pid=2, transactional=True).roll()
    log.append("5 6", pid=2, transactional=True).append("6 7", pid=3, transactional=True)
    log.append("7 8", pid=1, transactional=True).marker(ABORT, 2).append("8 9", pid=3, transactional=True)
    log.marker(COMMIT, 3).append("9 10", pid=1, transactional=True).marker(ABORT, 1)
    log.clean()
    assert log.keys() == "2 3 5 6 6 7 7 8 8 9 9 10"
    log.roll().append("11", pid=2).append("12", pid=1).clean()
    assert log.keys() == "2 3 6 7 8 9 11 12"


def test_cp_23_a_marker_in_a_later_segment_stays_with_its_data(log):
    log.append("1", pid=1, transactional=True).roll().append("2").marker(COMMIT, 1).append("3", pid=1).roll()
    for now_ms in (NOW_MS, NOW_MS + 1, NOW_MS + DAY_MS // 2):
        log.clean(now_ms, delete_retention_ms=1000, segment_bytes=1)
        assert log.offsets() == [0, 1, 2, 3]


def test_cp_24_each_commit_marker_goes_by_its_own_transaction(log):
    log.append("1", pid=1, transactional=True).marker(COMMIT, 1)
    log.append("2", pid=1, transactional=True).marker(COMMIT, 1).append("1").append("2").roll()
    log.clean(delete_retention_ms=1000)
    assert (log.last_offsets(), log.empty_batches()) == ([1, 2, 3, 4, 5], [2])
    log.clean(delete_retention_ms=1000)
    log.clean(NOW_MS + 1000, delete_retention_ms=1000)
    assert (log.last_offsets(), log.empty_batches()) == ([2, 3, 4, 5], [2])


def test_cp_25_the_marker_of_a_producer_without_data_leaves_its_header(log):
    log.marker(COMMIT, 1).append("2").append("3").roll()
    log.clean(10000, delete_retention_ms=1000)
    assert log.all_batches()[0].delete_horizon_ms == 11000
    for now_ms in (11000, 12000, 99000):
        log.clean(now_ms, delete_retention_ms=1000)
        assert (log.last_offsets(), log.empty_batches(), log.offsets()) == ([0, 1, 2], [0], [1, 2])


def test_cp_44_a_batch_outside_of_the_transaction_is_not_discarded_with_it(log):
    log.append("a", pid=1, transactional=True).append("b").append("c", pid=2).marker(ABORT, 1).roll().clean()
    assert (log.keys(), log.aborted_ranges()) == ("b c", [(0, 3)])


def test_the_worked_example_of_two_producers(log):
    log.append("a=1 b=1", pid=1, transactional=True).append("b=2 c=2", pid=2, transactional=True)
    log.marker(COMMIT, 1).marker(ABORT, 2).append("a=9").append("z=1").roll()
    for now_ms in (NOW_MS, NOW_MS + 60000):
        log.clean(now_ms, delete_retention_ms=60000)
        assert (log.offsets(), log.empty_batches()) == ([1, 4, 5, 6, 7], [3])
        first = list_segments(log.directory)[0]
        (entry,) = parse_transaction_index(first.read(TRANSACTION_INDEX))
        assert (entry.producer_id, entry.first_offset, entry.last_offset, entry.last_stable_offset) == (2, 2, 5, 6)
    log.append("x=1 x=2", pid=1, transactional=True).append("y=1", pid=2).marker(COMMIT, 1).roll()
    log.clean(6000000, delete_retention_ms=60000)
    assert (log.last_offsets()[:3], log.aborted_ranges()) == ([1, 4, 5], [(2, 5)])
    log.clean(6000001, delete_retention_ms=60000)
    horizons = {batch.last_offset: batch.delete_horizon_ms for batch in log.all_batches()}
    assert (horizons[5], log.aborted_ranges()) == (6060001, [])
    log.clean(6060000, delete_retention_ms=60000)
    assert 5 in log.last_offsets()
    log.clean(6060001, delete_retention_ms=60000)
    assert 5 not in log.last_offsets()


def test_an_abort_before_the_first_dirty_position_hides_the_producers_later_keys_from_the_map(tmp_path):
    """Check a map that is read from after the marker, but knows the transaction, which so never ends."""
    log = Log(tmp_path / "t-0", interval_bytes=0)
    log.append("a=1").append("x=1", pid=1, transactional=True).marker(ABORT, 1)
    log.append("b=1").append("a=2", pid=1, transactional=True).marker(COMMIT, 1).append("c=1").roll()
    result = log.clean(first_dirty=4)
    assert result.end_offset == 7
    assert result.stats.map_messages_read == 3
    assert log.keys() == "a b a c"
    log.clean(first_dirty=0)
    assert log.keys() == "b a c"


# --------------------------------------------------------------------------------------------------------------- legacy
@pytest.mark.parametrize("magic", [0, 1])
def test_cp_28_every_retained_legacy_record_becomes_a_batch_of_magic_2(log, magic):
    for offset, key in enumerate((b"a", b"b", b"a", b"c")):
        log.append_bytes(encode_legacy([Record(offset, 7, key, b"v")], magic=magic))
    log.roll().clean()
    batches = log.all_batches()
    assert [(batch.magic, batch.base_offset, batch.last_offset, len(batch.data)) for batch in batches] == [
        (2, offset, offset, 70) for offset in (1, 2, 3)
    ]
    assert {(batch.leader_epoch, batch.producer_id) for batch in batches} == {(-1, -1)}
    assert {record.timestamp for batch in batches for record in batch.records()} == {-1 if magic == 0 else 7}


@pytest.mark.parametrize(("later_keys", "offsets"), [("y", (0, 2)), ("x", (1, 2)), ("z", (0, 1)), ("other", (0, 2))])
def test_cp_28_a_wrapper_becomes_one_batch_of_what_it_keeps(log, later_keys, offsets):
    records = [Record(offset, 7, key, b"v") for offset, key in enumerate((b"x", b"y", b"z"))]
    log.append_bytes(encode_legacy(records, magic=1, codec=framing.GZIP)).append(later_keys).roll().clean()
    batch = log.all_batches()[0]
    assert (batch.magic, batch.codec, batch.base_offset, batch.last_offset) == (2, framing.GZIP, *offsets)


def test_cp_29_inner_records_of_magic_0_in_a_wrapper_of_magic_1_have_no_timestamp(log):
    payload = b"".join(
        encode_legacy_record(Record(offset, 7, key, b"v"), magic=offset % 2)
        for offset, key in enumerate((b"a", b"b", b"c", b"a"))
    )
    value = framing.compress(framing.GZIP, payload, magic=1)
    log.append_bytes(encode_legacy_record(Record(3, 7, None, value), magic=1, attributes=framing.GZIP))
    log.append("d").roll().clean()
    batch = log.all_batches()[0]
    assert batch.magic == 2
    assert [(record.offset, record.timestamp) for record in batch.records()] == [(1, 7), (2, -1), (3, 7)]


def test_a_legacy_batch_that_ends_the_round_empty_stops_the_cleaner(log):
    log.append("a").append_bytes(encode_legacy([Record(1, 7, None, b"v")], magic=1)).roll()
    with pytest.raises(IllegalStateError):
        log.clean()


@pytest.mark.parametrize(("newer_by_ms", "keeps_tombstone"), [(0, True), (59999, True), (60000, False)])
def test_a_legacy_tombstone_goes_by_the_modification_times_of_clean_segments(log, newer_by_ms, keeps_tombstone):
    log.append_bytes(encode_legacy([Record(0, 7, b"a", None)], magic=1)).roll()
    log.append("b").roll().append("c").roll()
    for number, segment in enumerate(list_segments(log.directory)[:2]):
        mtime_ns = (1_600_000_000_000 + number * newer_by_ms) * 1_000_000
        os.utime(segment.path(LOG), ns=(mtime_ns, mtime_ns))
    log.clean(first_dirty=2, delete_retention_ms=60000)
    assert log.offsets() == ([0, 1, 2] if keeps_tombstone else [1, 2])
    if keeps_tombstone:
        assert log.all_batches()[0].delete_horizon_ms == NOW_MS + 60000

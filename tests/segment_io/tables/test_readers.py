"""Every table compared with Kafka's own dumps and files, and the rows of damaged files."""

import contextlib
import logging
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sediment.segment_io.errors import CorruptBatchError, CorruptIndexError, UsageError
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.slices import Bounds
from sediment.segment_io.partition.sources import find_sources
from sediment.segment_io.tables.planning import parse_range, plan_table
from sediment.segment_io.tables.readers import read_table
from sediment.segment_io.tables.schema import CLUSTER_TABLES, TABLES, TableRequest, arrow_schema, timestamps_from_ms
from tests.corpus import cleaning_cases, load_case, load_loading_case, loading_cases
from tests.logs import LogShape, write_random_log
from tests.segments import ABORT, NOW_MS, batch_bytes, marker_bytes, write_segment, write_snapshot
from tests.tables import dumped_batches, dumped_records, read_rows
from tests.twin.batches import Record, encode_batch, sign_batch
from tests.twin.errors import TwinError
from tests.twin.indexes import AbortedTransaction, parse_offset_index, parse_time_index, parse_transaction_index
from tests.twin.segments import (
    LOG,
    OFFSET_INDEX,
    TIME_INDEX,
    TRANSACTION_INDEX,
    file_batches,
    list_segments,
    list_snapshots,
)
from tests.twin.snapshots import ProducerEntry, parse_snapshot

ALL_CASES = cleaning_cases(magic2_only=False)


def stages(case):
    """(directory, topic, partition, dump) of each stage; directories are named after their stage."""
    yield case.before, "before", -1, case.dump("before")
    for number, round_ in enumerate(case.rounds, 1):
        yield round_.after, "after", number, case.dump(f"after-{number}")


def picked(rows, like):
    return [{name: row[name] for name in like[0]} for row in rows] if like else rows


# ------------------------------------------------------------------------------------------- the corpus, field by field
@pytest.mark.parametrize("task_bytes", [1 << 26, 3000])
@pytest.mark.parametrize("name", ALL_CASES)
def test_records_are_what_kafka_dumped(name, task_bytes, tmp_path):
    for directory, topic, partition, dump in stages(load_case(name, tmp_path)):
        expected = dumped_records(dump, topic, partition)
        rows = read_rows(directory, task_bytes=task_bytes, columns=("*", "segment", "position"))
        assert picked(rows, expected) == expected
        assert [(row["segment"], row["position"]) for row in rows] == [
            (segment.base_offset, batch.position)
            for segment in dump
            for batch in segment.batches
            for _ in batch.records
        ]


@pytest.mark.parametrize("task_bytes", [1 << 26, 3000])
@pytest.mark.parametrize("name", ALL_CASES)
def test_batches_are_what_kafka_dumped(name, task_bytes, tmp_path):
    for directory, topic, partition, dump in stages(load_case(name, tmp_path)):
        expected = dumped_batches(dump, topic, partition)
        assert picked(read_rows(directory, what="batches", task_bytes=task_bytes), expected) == expected


@pytest.mark.parametrize("name", ALL_CASES)
def test_index_and_snapshot_tables_are_what_the_files_say(name, tmp_path):
    for directory, _topic, _partition, _dump in stages(load_case(name, tmp_path)):
        assert_small_tables(directory)


@pytest.mark.parametrize("name", loading_cases())
def test_logs_that_kafka_loaded_are_read_whole(name, tmp_path):
    case = load_loading_case(name, tmp_path)
    if name == "zeroed-index-clean":
        with pytest.raises(CorruptIndexError, match="index entry 1 is negative or does not follow"):
            read_rows(case.after, what="offset_index")
    else:
        assert_small_tables(case.after)
    rows = read_rows(case.after, on_corruption="skip", columns=("offset", "value"))
    twin = [(r.offset, r.value) for s in list_segments(case.after) for r in readable_records(s)]
    assert [(row["offset"], row["value"]) for row in rows] == twin
    segments = read_rows(case.after, what="segments")
    assert [(s["baseOffset"], s["size"]) for s in segments] == [
        (s.base_offset, s.log_bytes) for s in case.kafka.segments
    ]


@pytest.mark.parametrize("name", loading_cases())
def test_logs_as_they_were_before_kafka_loaded_them_are_read_as_far_as_they_are_good(name, tmp_path):
    case = load_loading_case(name, tmp_path)
    rows = read_rows(case.before, on_corruption="skip", columns=("offset", "value"))
    assert rows
    offsets = [row["offset"] for row in rows]
    assert offsets == sorted(set(offsets))
    if "swap" not in name:
        twin = [(r.offset, r.value) for s in list_segments(case.before) for r in readable_records(s)]
        assert [(row["offset"], row["value"]) for row in rows] == twin
    else:
        after = read_rows(case.after, columns=("offset", "value"))
        assert rows == after


def readable_records(segment):
    """Return the records of a segment's good batches, up to the first whose size is wrong."""
    batches = file_batches(segment.read(LOG))
    with contextlib.suppress(StopIteration, TwinError):
        while True:
            _position, batch = next(batches)
            if batch.is_valid():
                yield from batch.records()


def or_none(value):
    return None if value == -1 else value


def assert_small_tables(directory):
    segments = list_segments(directory)
    active = segments[-1].base_offset

    def entries(parse, suffix, *names):
        return [
            {"segment": segment.base_offset, **{column: getattr(entry, name) for column, name in names}}
            for segment in segments
            for entry in parse(segment.read(suffix), segment.base_offset)
            if not (segment.base_offset == active and entry.offset == segment.base_offset)
        ]

    for what, parse, suffix, names in (
        ("offset_index", parse_offset_index, OFFSET_INDEX, (("offset", "offset"), ("position", "position"))),
        ("time_index", parse_time_index, TIME_INDEX, (("timestamp", "timestamp"), ("offset", "offset"))),
    ):
        expected = entries(parse, suffix, *names)
        assert picked(read_rows(directory, what=what), expected) == expected, what
    expected = [
        {
            "segment": segment.base_offset,
            "producerId": entry.producer_id,
            "firstOffset": entry.first_offset,
            "lastOffset": entry.last_offset,
            "lastStableOffset": entry.last_stable_offset,
        }
        for segment in segments
        for entry in parse_transaction_index(segment.read(TRANSACTION_INDEX))
    ]
    assert picked(read_rows(directory, what="transactions"), expected) == expected
    expected = [
        {
            "snapshot": offset,
            "producerId": entry.producer_id,
            "producerEpoch": entry.epoch,
            "lastSequence": or_none(entry.last_sequence),
            "firstOffset": None if entry.last_offset < 0 else entry.last_offset - entry.offset_delta,
            "lastOffset": or_none(entry.last_offset),
            "timestamp": or_none(entry.timestamp),
            "coordinatorEpoch": or_none(entry.coordinator_epoch),
            "currentTxnFirstOffset": or_none(entry.transaction_first_offset),
        }
        for offset in list_snapshots(directory)
        for entry in parse_snapshot((directory / f"{offset:020d}.snapshot").read_bytes()).values()
    ]
    assert picked(read_rows(directory, what="producers"), expected) == expected
    epochs = (directory / "leader-epoch-checkpoint").read_text().split("\n")[2:-1]
    assert [f"{row['epoch']} {row['startOffset']}" for row in read_rows(directory, what="epochs")] == epochs


# -------------------------------------------------------------------------------------------------------- single tables
@pytest.fixture
def partition(tmp_path):
    directory = tmp_path / "logs" / "t-0"
    batches = [batch_bytes(offset, "abc", timestamp=1000 + offset) for offset in range(0, 30, 3)]
    write_segment(directory, 0, batches, index_interval_bytes=150, mtime_ms=5000)
    aborted = [AbortedTransaction(1, 30, 31, 32)]
    more = [batch_bytes(30, producer_id=1, transactional=True), marker_bytes(31, ABORT, producer_id=1)]
    write_segment(directory, 30, more, aborted=aborted, preallocated_index_bytes=96, mtime_ms=6000)
    return directory


def test_segments_are_told_by_names_sizes_and_indexes(partition):
    first, second = read_rows(partition, what="segments")
    assert (first["baseOffset"], first["active"], first["largestTimestamp"], first["modified"]) == (
        0,
        False,
        1027,
        5000,
    )
    assert first["size"] == (partition / f"{0:020d}.log").stat().st_size
    assert first["path"] == str(partition / f"{0:020d}.log")
    assert first["abortedTransactions"] is None
    assert (second["active"], second["abortedTransactions"]) == (True, 1)
    assert (second["offsetIndexEntries"], second["timeIndexEntries"]) == (0, 1)
    (partition / f"{0:020d}.index").unlink()
    assert read_rows(partition, what="segments")[0]["offsetIndexEntries"] is None


def test_control_batches_say_what_they_are(partition):
    marker = read_rows(partition, what="batches")[-1]
    assert (marker["controlType"], marker["coordinatorEpoch"], marker["control"]) == ("ABORT", 0, True)
    data = read_rows(partition, what="batches")[0]
    assert (data["controlType"], data["coordinatorEpoch"], data["control"]) == (None, None, False)


def test_a_delete_horizon_is_no_base_timestamp(tmp_path):
    data = encode_batch([Record(0, 1000, b"k", None)], base_offset=0, delete_horizon_ms=9000)
    write_segment(tmp_path / "t-0", 0, [data, batch_bytes(1, timestamp=1000)])
    first, second = read_rows(tmp_path / "t-0", what="batches")
    assert (first["deleteHorizon"], first["baseTimestamp"], first["maxTimestamp"]) == (9000, None, 1000)
    assert (second["deleteHorizon"], second["baseTimestamp"]) == (None, 1000)
    assert [row["timestamp"] for row in read_rows(tmp_path / "t-0")] == [1000, 1000]


def test_last_sequences_wrap(tmp_path):
    data = encode_batch(
        [Record(offset, 0, b"k", b"v") for offset in range(4)],
        base_offset=0,
        producer_id=1,
        producer_epoch=0,
        base_sequence=2**31 - 2,
    )
    write_segment(tmp_path / "t-0", 0, [data])
    assert read_rows(tmp_path / "t-0", what="batches")[0]["lastSequence"] == 1
    assert [row["sequence"] for row in read_rows(tmp_path / "t-0")] == [2**31 - 2, 2**31 - 1, 0, 1]


def test_many_partitions_are_one_table(partition):
    write_segment(partition.parent / "u-3", 0, [batch_bytes(0)])
    rows = read_rows(partition.parent)
    assert {(row["topic"], row["partition"]) for row in rows} == {("t", 0), ("u", 3)}
    narrowed = TableRequest(topics=frozenset({"u"}))
    assert {row["topic"] for row in read_rows(partition.parent, narrowed)} == {"u"}
    for what in ("segments", "offset_index"):
        assert {
            row["topic"] for row in read_rows(partition.parent, TableRequest(what=what, topics=frozenset({"u"})))
        } <= {"u"}


@pytest.mark.parametrize("what", sorted(TABLES.keys() - CLUSTER_TABLES))
def test_every_table_has_its_schema_and_gives_any_column(what, partition):
    request = TableRequest(what=what)
    for task in plan_table(request, find_sources([partition], Fs()), Fs()):
        for batch in read_table(request, task, Fs()):
            assert batch.schema.equals(arrow_schema(request.selected()))
            assert all(field.nullable for field in batch.schema)
    whole = read_rows(partition, what=what)
    for column in TABLES[what]:
        assert read_rows(partition, what=what, columns=(column.name,)) == [
            {column.name: row[column.name]} for row in whole
        ]


def test_all_columns_may_stand_among_others_and_columns_on_request_are_not_among_them(partition):
    own = list(read_rows(partition)[0])
    assert own == [column.name for column in TABLES["records"]]
    assert list(read_rows(partition, columns=("position", "*", "log_dir"))[0]) == ["position", *own, "log_dir"]
    with pytest.raises(UsageError, match="'segments' has no column 'position'"):
        TableRequest(what="segments", columns=("*", "position")).selected()


def test_unknown_tables_and_columns_are_told_with_those_there_are():
    with pytest.raises(UsageError, match="table 'rows' does not exist; it is one of records, batches"):
        TableRequest(what="rows").selected()
    with pytest.raises(
        UsageError, match="'epochs' has no column 'offset'; it has topic, partition, epoch, startOffset"
    ):
        TableRequest(what="epochs", columns=("offset",)).selected()


@pytest.mark.parametrize(
    ("text", "expected"), [("3:7", (3, 7)), (":7", (Bounds().first_offset, 7)), ("-1:", (-1, Bounds().end_offset))]
)
def test_ranges_may_be_open(text, expected):
    assert parse_range(text, "offsets") == expected


@pytest.mark.parametrize("text", ["7", "a:b", "1:2:3", "1-2"])
def test_what_is_no_range_is_told(text):
    with pytest.raises(UsageError, match="is not a range; write A:B"):
        parse_range(text, "offsets")


def test_a_range_that_ends_before_it_begins_is_refused():
    with pytest.raises(UsageError, match="offsets '12:10' ends before it begins"):
        parse_range("12:10", "offsets")
    assert parse_range("12:12", "offsets") == (12, 12)


def test_missing_timestamps_are_null():
    assert timestamps_from_ms([None, -1, 0, 2**62]).cast("int64").to_pylist() == [
        None,
        None,
        0,
        (2**63 - 1) // 1000 * 1000,
    ]


# --------------------------------------------------------------------------------------------------------------- damage
def damaged(partition, change, segment=0):
    path = partition / f"{segment:020d}.log"
    content = bytearray(path.read_bytes())
    change(content)
    path.write_bytes(bytes(content))


def flip(position):
    def change(content):
        content[position] ^= 1

    return change


SIZE = len(batch_bytes(0, "abc", timestamp=1000))


def test_a_wrong_crc_fails_with_its_place(partition):
    damaged(partition, flip(3 * SIZE + 70))
    with pytest.raises(CorruptBatchError, match="fails its CRC") as raised:
        read_rows(partition)
    error = raised.value
    assert (error.partition, error.position, error.offset) == ("t-0", 3 * SIZE, 9)
    assert error.path == str(partition / f"{0:020d}.log")
    assert error.advice


def with_policy(partition, policy, what="records"):
    found = []
    request = TableRequest(what=what, on_corruption=policy)
    rows = []
    for task in plan_table(request, find_sources([partition], Fs()), Fs()):
        for batch in read_table(request, task, Fs(), on_unreadable=found.append):
            rows += batch.to_pylist()
    return rows, found


def test_bad_batches_are_skipped_and_counted(partition):
    damaged(partition, flip(3 * SIZE + 70))
    damaged(partition, flip(5 * SIZE + 70))
    rows, found = with_policy(partition, "skip")
    assert [row["offset"] for row in rows] == [*range(9), 12, 13, 14, *range(18, 32)]
    assert [(damage.position, damage.end_position) for damage in found] == [
        (3 * SIZE, 4 * SIZE),
        (5 * SIZE, 6 * SIZE),
    ]


def test_bad_batches_are_rows_with_their_bytes(partition):
    damaged(partition, flip(3 * SIZE + 70))
    rows, found = with_policy(partition, "rows")
    assert len(found) == 1
    (bad,) = [row for row in rows if row["corruption"] is not None]
    assert rows.index(bad) == 9
    content = (partition / f"{0:020d}.log").read_bytes()
    assert (bad["value"], bad["offset"], bad["topic"], bad["partition"]) == (content[3 * SIZE : 4 * SIZE], 9, "t", 0)
    assert "fails its CRC" in bad["corruption"]
    assert bad["key"] is None
    assert bad["timestamp"] is None
    assert len(rows) == 30 + 1 - 3 + 2
    placed = read_rows(partition, on_corruption="rows", columns=("corruption", "segment", "position"))
    assert [(row["segment"], row["position"]) for row in placed if row["corruption"]] == [(0, 3 * SIZE)]


def test_a_wrong_crc_is_a_row_of_batches(partition):
    damaged(partition, flip(3 * SIZE + 70))
    rows = read_rows(partition, what="batches")
    assert [row["valid"] for row in rows].count(False) == 1
    assert not rows[3]["valid"]


def test_after_a_broken_frame_reading_goes_on_at_the_next_indexed_batch(partition):
    damaged(partition, flip(4 * SIZE + 8))
    with pytest.raises(CorruptBatchError):
        read_rows(partition)
    with pytest.raises(CorruptBatchError):
        read_rows(partition, what="batches")
    indexed = [entry.position for entry in parse_offset_index((partition / f"{0:020d}.index").read_bytes(), 0)]
    resumed = min(position for position in indexed if position > 4 * SIZE)
    rows, (damage,) = with_policy(partition, "skip")
    assert (damage.position, damage.end_position) == (4 * SIZE, resumed)
    assert [row["offset"] for row in rows] == [*range(12), *range(resumed // SIZE * 3, 32)]
    rows, _ = with_policy(partition, "rows", "batches")
    (bad,) = [row for row in rows if row["corruption"]]
    assert (bad["position"], bad["size"], bad["valid"], len(bad["value"])) == (
        4 * SIZE,
        resumed - 4 * SIZE,
        False,
        resumed - 4 * SIZE,
    )


def test_without_an_index_the_rest_of_the_segment_is_lost_and_counted(partition):
    (partition / f"{0:020d}.index").unlink()
    damaged(partition, flip(4 * SIZE + 8))
    rows, (damage,) = with_policy(partition, "skip")
    assert damage.end_position == 10 * SIZE
    assert [row["offset"] for row in rows] == [*range(12), 30, 31]


@pytest.mark.parametrize(
    "tail", [batch_bytes(32)[:-1], batch_bytes(32)[:40], bytes(17), bytes(5000), bytes(3 << 20)], ids=len
)
def test_the_tail_of_the_active_segment_is_no_damage_where_a_broker_left_it(tail, partition):
    damaged(partition, lambda content: content.extend(tail), segment=30)
    assert [row["offset"] for row in read_rows(partition)] == list(range(32))
    assert len(read_rows(partition, what="batches")) == 12


def test_garbage_after_the_active_segment_is_damage(partition):
    damaged(partition, lambda content: content.extend(b"\xff" * 100), segment=30)
    with pytest.raises(CorruptBatchError):
        read_rows(partition)


@pytest.mark.parametrize("tail", [b"garbage", batch_bytes(30)[:-1]])
def test_a_segment_below_that_ends_inside_of_a_batch_is_damage(tail, partition):
    damaged(partition, lambda content: content.extend(tail))
    with pytest.raises(CorruptBatchError, match="ends inside a batch"):
        read_rows(partition)
    rows, (damage,) = with_policy(partition, "skip")
    assert [row["offset"] for row in rows] == list(range(32))
    assert damage.end_position - damage.position == len(tail)


@pytest.mark.parametrize(
    ("byte", "value", "text"), [(22, 7, "unknown codec"), (16, 9, "unknown magic"), (23, 255, "last offset")]
)
def test_a_batch_of_an_unknown_kind_is_damage_of_that_batch_only(byte, value, text, partition):
    (partition / f"{0:020d}.index").unlink()
    path = partition / f"{0:020d}.log"
    content = path.read_bytes()
    batch = bytearray(content[2 * SIZE : 3 * SIZE])
    batch[byte] = value
    path.write_bytes(content[: 2 * SIZE] + sign_batch(bytes(batch)) + content[3 * SIZE :])
    with pytest.raises(CorruptBatchError, match=text):
        read_rows(partition)
    rows, (damage,) = with_policy(partition, "skip")
    assert (damage.position, damage.end_position) == (2 * SIZE, 3 * SIZE)
    assert [row["offset"] for row in rows] == [*range(6), *range(9, 32)]


def test_a_length_that_leads_after_the_active_segment_is_damage_where_batches_follow(partition):
    for suffix in (".log", ".index", ".timeindex", ".txnindex"):
        (partition / f"{30:020d}{suffix}").unlink()
    damaged(partition, flip(4 * SIZE + 8))
    with pytest.raises(CorruptBatchError, match="ends inside a batch"):
        read_rows(partition)
    rows, (damage,) = with_policy(partition, "skip")
    assert [row["offset"] for row in rows] == [*range(12), *range(damage.end_position // SIZE * 3, 30)]


@settings(max_examples=150)
@given(st.integers(0, 5), st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=6))
def test_flipped_bytes_never_show_a_key_or_value_that_was_not_there(tmp_path_factory, seed, changes):
    directory = tmp_path_factory.mktemp("logs") / "t-0"
    write_random_log(directory, seed, LogShape(batches=25, codecs=(0, 1, 2, 3, 4)))
    pairs = {(row["key"], row["value"]) for row in read_rows(directory)}
    logs = sorted(directory.glob("*.log"))
    for position, value in changes:
        log = logs[position % len(logs)]
        content = bytearray(log.read_bytes())
        if content:
            content[position % len(content)] ^= value
            log.write_bytes(bytes(content))
    rows = read_rows(directory, on_corruption="rows")
    assert {(row["key"], row["value"]) for row in rows if row["corruption"] is None} <= pairs
    assert read_rows(directory, on_corruption="skip", what="batches")


def test_damage_outside_of_the_bounds_is_not_met(partition):
    damaged(partition, flip(0 * SIZE + 70))
    assert [row["offset"] for row in read_rows(partition, bounds=Bounds(first_offset=20, end_offset=22))] == [20, 21]


def test_nothing_is_logged_by_reading(partition, caplog):
    damaged(partition, flip(3 * SIZE + 70))
    with caplog.at_level(logging.DEBUG):
        with_policy(partition, "skip")
    assert not caplog.records


# --------------------------------------------------------------------------------------------------- open transactions
def test_open_transactions_are_those_without_a_marker_at_the_log_end(tmp_path):
    directory = tmp_path / "t-0"
    write_segment(
        directory,
        0,
        [
            batch_bytes(0, "ab", timestamp=NOW_MS, producer_id=7, transactional=True),
            batch_bytes(2, "c", timestamp=NOW_MS, producer_id=8, transactional=True),
            marker_bytes(3, ABORT, producer_id=7, timestamp=NOW_MS),
        ],
    )
    write_snapshot(
        directory, 4, [ProducerEntry(8, epoch=0, last_offset=2, timestamp=NOW_MS, transaction_first_offset=2)]
    )
    write_segment(
        directory,
        4,
        [
            batch_bytes(4, "de", timestamp=NOW_MS + 1, producer_id=7, transactional=True),
            batch_bytes(6, "f", timestamp=NOW_MS + 2, producer_id=8, transactional=True),
            batch_bytes(7, "g", timestamp=NOW_MS + 3, producer_id=9),
        ],
    )
    found = [
        (row["producerId"], row["producerEpoch"], row["firstOffset"], row["lastOffset"])
        for row in read_rows(tmp_path, what="open_transactions")
    ]
    assert found == [(8, 0, 2, 6), (7, 0, 4, 5)]
    with (directory / f"{4:020d}.log").open("ab") as log:
        log.write(marker_bytes(8, ABORT, producer_id=8, timestamp=NOW_MS))
    assert [row["producerId"] for row in read_rows(tmp_path, what="open_transactions")] == [7]


# ---------------------------------------------------------------------------------------------------------------- guide
def test_the_guide_lists_every_column():
    guide = (Path(__file__).parents[3] / "docs" / "query" / "tables.md").read_text()
    for what, columns in TABLES.items():
        section = guide.split(f"### `{what}`\n", 1)[1].split("\n### ", 1)[0].split("\n## ", 1)[0]
        listed = next(block for block in section.split("\n\n") if re.fullmatch(r"\n?(`\w+`,?\s*)+", block))
        common = {"topic", "partition"} if what not in CLUSTER_TABLES else set()
        assert re.findall(r"`(\w+)`", listed) == [column.name for column in columns if column.name not in common]

"""`sediment dump`: its output for people, programs and Parquet readers, its messages and its exit statuses."""

import json
import struct

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from sediment.jobs.dump import command
from sediment.jobs.dumping import parquet_output
from tests.corpus import load_case
from tests.jobs.log_dirs import sediment_process, tree
from tests.segments import COMMIT, batch_bytes, marker_bytes, write_segment, write_snapshot
from tests.tables import dumped_records, read_rows
from tests.twin.batches import Record, RecordHeader, encode_batch
from tests.twin.snapshots import ProducerEntry

START_MS = 1_700_000_000_000


@pytest.fixture
def log_dir(tmp_path):
    directory = tmp_path / "logs"
    records = [
        Record(0, START_MS, b"plain", b"text"),
        Record(1, START_MS + 1, b"\xff\x00", b"line\nbreak", (RecordHeader(b"h", b"\x01"), RecordHeader(b"n", None))),
        Record(2, START_MS + 2, None, None),
        Record(3, START_MS + 3, b"[red]markup[/red]", b"v" * 200),
    ]
    batches = [
        encode_batch(
            records, base_offset=0, leader_epoch=0, producer_id=9, producer_epoch=0, base_sequence=0, transactional=True
        ),
        marker_bytes(4, COMMIT, producer_id=9, timestamp=START_MS + 4),
    ]
    write_segment(directory / "t-0", 0, batches)
    write_segment(directory / "t-0", 5, [batch_bytes(5, "z")])
    write_segment(directory / "t-1", 0, [batch_bytes(0, "y")])
    write_snapshot(directory / "t-0", 5, [ProducerEntry(9, epoch=0)])
    return directory


def run(*arguments):
    """Run the command in this process, with stdout and stderr apart."""
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


def lines(*arguments):
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


# ----------------------------------------------------------------------------------------------------------- JSON lines
def test_json_is_a_line_a_row_with_text_where_bytes_are_text(log_dir):
    rows = lines(log_dir / "t-0", "--what", "records")
    assert [row["offset"] for row in rows] == [0, 1, 2, 3, 4, 5]
    assert [row["key"] for row in rows[:4]] == ["plain", {"hex": "ff00"}, None, "[red]markup[/red]"]
    assert [row["value"] for row in rows[:3]] == ["text", "line\nbreak", None]
    assert rows[1]["headers"] == [{"key": "h", "value": {"hex": "01"}}, {"key": "n", "value": None}]
    assert rows[1]["timestamp"] == START_MS + 1


def test_a_transaction_marker_is_decoded(log_dir):
    (marker,) = [row for row in lines(log_dir / "t-0", "--what", "records") if row["control"]]
    assert (marker["key"], marker["value"]) == ({"type": "COMMIT", "coordinatorEpoch": 0}, None)


def test_json_rows_are_those_of_the_corpus_dumps(tmp_path):
    case = load_case("headers", tmp_path)
    expected = dumped_records(case.dump("before"), "before", -1)
    rows = lines(case.before, "--what", "records")
    assert [{name: row[name] for name in ("offset", "timestamp", "producerId")} for row in rows] == [
        {name: row[name] for name in ("offset", "timestamp", "producerId")} for row in expected
    ]
    assert [row["key"] for row in rows] == [row["key"] and row["key"].decode() for row in expected]


@pytest.mark.parametrize(
    "what", ["batches", "segments", "offset_index", "time_index", "producers", "epochs", "indexes"]
)
def test_json_has_every_column_of_a_table(what, log_dir):
    rows = lines(log_dir / "t-0", "--what", what)
    expected = read_rows(log_dir / "t-0", what=what)
    assert rows == expected


def test_coordinator_topics_are_decoded(tmp_path):
    key = struct.pack(">hh", 1, 1) + b"g" + struct.pack(">h", 1) + b"t" + struct.pack(">i", 3)
    value = struct.pack(">hqi", 3, 42, 7) + struct.pack(">h", 0) + struct.pack(">q", START_MS)
    offsets = encode_batch([Record(0, START_MS, key, value), Record(1, START_MS, b"?", b"!")], base_offset=0)
    write_segment(tmp_path / "__consumer_offsets-7", 0, [offsets])
    known, unknown = lines(tmp_path / "__consumer_offsets-7", "--what", "records", "--columns", "key,value")
    assert known["key"] == {"type": 1, "data": {"group": "g", "topic": "t", "partition": 3}}
    assert known["value"]["data"] == {"offset": 42, "leaderEpoch": 7, "metadata": "", "commitTimestamp": START_MS}
    assert unknown == {"key": "?", "value": "!"}

    key = struct.pack(">hh", 0, 2) + b"tx"
    value = struct.pack(">hqhib", 0, 9, 1, 60000, 4) + struct.pack(">i", -1) + struct.pack(">qq", 5, 6)
    write_segment(tmp_path / "__transaction_state-0", 0, [encode_batch([Record(0, 0, key, value)], base_offset=0)])
    (row,) = lines(tmp_path / "__transaction_state-0", "--what", "records")
    assert row["key"]["data"] == {"transactionalId": "tx"}
    assert (row["value"]["data"]["producerId"], row["value"]["data"]["transactionPartitions"]) == (9, None)


def test_the_topics_of_metadata_and_tiered_storage_are_decoded(tmp_path):
    partition = bytes([2]) + b"t" + bytes(16) + struct.pack(">i", 3) + bytes([0])
    deletion = bytes([1, 2, 0]) + partition + struct.pack(">iqb", 1, START_MS, 2) + bytes([0])
    level = bytes([1, 12, 0, 17]) + b"metadata.version" + struct.pack(">h", 27) + bytes([0])
    for topic, value, kind, data in (
        (
            "__remote_log_metadata",
            deletion,
            "REMOTE_PARTITION_DELETE_METADATA_RECORD",
            {
                "topicIdPartition": {"name": "t", "id": "AAAAAAAAAAAAAAAAAAAAAA", "partition": 3},
                "brokerId": 1,
                "eventTimestampMs": START_MS,
                "remotePartitionDeleteState": 2,
            },
        ),
        (
            "__cluster_metadata",
            level,
            "FEATURE_LEVEL_RECORD",
            {"name": "metadata.version", "featureLevel": 27},
        ),
    ):
        records = [Record(0, START_MS, None, value), Record(1, START_MS, None, b"!"), Record(2, START_MS, None, None)]
        write_segment(tmp_path / f"{topic}-0", 0, [encode_batch(records, base_offset=0)])
        known, unknown, empty = lines(tmp_path / f"{topic}-0", "--what", "records", "--columns", "key,value")
        assert known == {"key": None, "value": {"type": kind, "version": 0, "data": data}}
        assert (unknown["value"], empty["value"]) == ("!", None)


# ----------------------------------------------------------------------------------------------------- table for people
def test_the_table_shortens_and_never_interprets(log_dir):
    shown = run(log_dir / "t-0", "--what", "records").stdout
    assert "[red]markup[/red]" in shown
    assert "0xff00" in shown
    assert "line\\nbreak" in shown
    assert "h=0x01, n=" in shown
    assert "v" * 59 + "…" in shown
    assert '{"type":"COMMIT","coordinatorEpoch":0}' in shown
    assert "2023-11-14 22:13:20.001" in shown
    assert "control" not in shown


def test_keys_are_shown_without_values(log_dir):
    shown = run(log_dir / "t-0", "--what", "records", "--keys").stdout
    assert "plain" in shown
    assert "text" not in shown
    assert set(lines(log_dir / "t-0", "--what", "records", "--keys")[0]) == {
        "topic",
        "partition",
        "offset",
        "timestamp",
        "key",
        "size",
    }


def test_a_long_table_is_cut_and_says_so(log_dir):
    result = run(log_dir / "t-0", "--what", "records", "--limit", 2)
    assert "plain" in result.stdout
    assert "markup" not in result.stdout
    assert "these are the first 2 rows; --limit 0 shows all" in result.stderr
    assert "markup" in run(log_dir / "t-0", "--what", "records", "--limit", 0).stdout
    assert not run(log_dir / "t-0", "--what", "records", "--limit", 2, "--quiet").stderr
    assert len(lines(log_dir / "t-0", "--what", "records", "--limit", 2)) == 2


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("", "abortedTransactions"),
        (f"{0:020d}.log", "headers"),
        (f"{0:020d}.index", "position"),
        (f"{0:020d}.timeindex", "timestamp"),
        (f"{5:020d}.snapshot", "producerEpoch"),
    ],
)
def test_the_kind_of_path_says_which_table(name, column, log_dir):
    result = run(log_dir / "t-0" / name)
    assert result.exit_code == 0, result.output
    assert column in result.stdout


# ------------------------------------------------------------------------------------------------------------ selection
def test_offsets_times_partitions_and_columns_select(log_dir):
    def offsets(*arguments):
        return [(r["partition"], r["offset"]) for r in lines(log_dir, "--what", "records", *arguments)]

    assert offsets() == [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (0, 5), (1, 0)]
    assert offsets("--offsets", "3:5") == [(0, 3), (0, 4)]
    assert offsets("--offsets", "4:") == [(0, 4), (0, 5)]
    assert offsets("--timestamps-ms", f"{START_MS + 1}:{START_MS + 3}") == [(0, 1), (0, 2)]
    assert offsets("--partition", "*-1") == [(1, 0)]
    assert offsets("--isolation", "read_committed", "--partition", "t-0") == [(0, 0), (0, 1), (0, 2), (0, 3), (0, 5)]
    assert list(lines(log_dir, "--what", "records", "--columns", "size, key")[0]) == ["size", "key"]


# -------------------------------------------------------------------------------------------------------------- Parquet
def test_parquet_holds_the_rows_with_their_types(log_dir, tmp_path):
    assert run(log_dir, "--what", "records", "--to", tmp_path / "out").exit_code == 0
    table = pq.read_table(tmp_path / "out")
    assert table.column("key").to_pylist()[:2] == [b"plain", b"\xff\x00"]
    assert str(table.schema.field("timestamp").type) == "timestamp[us, tz=UTC]"
    assert table.num_rows == 7


def test_spark_writes_the_same_parquet_in_a_job_with_a_name(log_dir, tmp_path, sc, monkeypatch):
    monkeypatch.setattr(parquet_output, "new_run_id", lambda: "this-dump")
    arguments = (log_dir, "--what", "records", "--offsets", "1:5")
    assert run(*arguments, "--to", tmp_path / "direct").exit_code == 0
    result = run(*arguments, "--to", tmp_path / "spark", "--master", "local[2]")
    assert result.exit_code == 0, result.output
    direct, spark = (
        pq.read_table(tmp_path / name).sort_by([("partition", "ascending"), ("offset", "ascending")]).to_pylist()
        for name in ("direct", "spark")
    )
    assert spark == direct
    assert len(direct) == 4
    tracker = sc.statusTracker()
    stages = [stage for job in tracker.getJobIdsForGroup("this-dump") for stage in tracker.getJobInfo(job).stageIds]
    assert {tracker.getStageInfo(stage).name for stage in stages} == {"dump t-0 and 1 more"}


def test_much_goes_through_spark_by_itself(log_dir, tmp_path, monkeypatch):
    monkeypatch.setattr(parquet_output, "DIRECT_BYTES", 10)
    result = run(log_dir / "t-0" / f"{5:020d}.index", "--what", "records", "--to", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "out" / "_SUCCESS").exists()
    assert pq.read_table(tmp_path / "out").column("offset").to_pylist() == [5]


def test_an_output_that_exists_or_fails_is_left_or_removed(log_dir, tmp_path):
    (tmp_path / "out").mkdir()
    result = run(log_dir, "--to", tmp_path / "out")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "the output already exists" in result.stderr
    log = log_dir / "t-0" / f"{0:020d}.log"
    log.write_bytes(log.read_bytes()[:70] + b"\xff" + log.read_bytes()[71:])
    for more in ((), ("--master", "local[1]")):
        assert run(log_dir, "--what", "records", "--to", tmp_path / "new", *more).exit_code == 1
        assert not (tmp_path / "new").exists()


# --------------------------------------------------------------------------------------------------------------- checks
def test_indexes_are_checked_and_problems_are_an_exit_status(log_dir):
    result = run(log_dir, "--what", "indexes")
    assert (result.exit_code, result.stderr) == (0, "7 files checked, 0 problems\n")
    (log_dir / "t-0" / f"{0:020d}.timeindex").write_bytes(b"\0" * 11 + b"\x09")
    result = run(log_dir, "--what", "indexes", "--limit", 1)
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (1, "7 files checked, 1 problem")
    assert run(log_dir, "--what", "indexes", "--json").exit_code == 1


def test_a_corrupt_batch_fails_or_is_counted(log_dir):
    log = log_dir / "t-0" / f"{0:020d}.log"
    log.write_bytes(log.read_bytes()[:70] + b"\xff" + log.read_bytes()[71:])
    result = run(log_dir / "t-0", "--what", "records", "--json")
    assert result.exit_code == 1
    assert "the batch fails its CRC (partition t-0" in result.stderr
    result = run(log_dir / "t-0", "--what", "records", "--json", "--on-corruption", "skip")
    assert (result.exit_code, len(result.stdout.splitlines())) == (0, 2)
    assert result.stderr.startswith("1 unreadable batches, ")
    shown = run(log_dir / "t-0", "--what", "records", "--on-corruption", "rows").stdout
    assert "corruption" in shown
    assert "fails its CRC" in shown


def test_a_segment_file_with_foreign_content_is_reported_in_one_line(log_dir):
    log = log_dir / "t-1" / f"{0:020d}.log"
    log.write_bytes(b"a,b\n" * 50)
    for what in ("records", "batches"):
        result = run(log, "--what", what)
        assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
        assert f"the batch has an unknown magic (partition t-1, file {log}, position 0" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nothing"], "no such file or directory"),
        (["logs", "--offsets", "5"], "--offsets '5' is not a range"),
        (["logs", "--what", "records", "--columns", "x"], "has no column 'x'"),
        (["logs", "--what", "row"], "table 'row' does not exist; it is one of records, batches"),
        (["text.csv"], "the file name is not that of a segment file"),
        (["logs", "--keys"], "--keys is for records only"),
        (["logs", "--master", "local"], "--master needs --to"),
        (["logs", "--json", "--to", "out"], "--json and --to exclude each other"),
        (["empty"], "the directory is empty"),
    ],
)
def test_wrong_use_is_one_sentence_and_exit_status_2(arguments, sentence, log_dir, tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.csv").write_text("a,b")
    monkeypatch.chdir(tmp_path)
    result = run(*arguments)
    assert result.exit_code == 2
    assert sentence in result.stderr
    assert result.stderr.count("\n") == 1
    assert not result.stdout


def test_the_command_line_reads_without_spark_and_changes_nothing(log_dir):
    before = tree(log_dir)
    outcome = sediment_process(
        "dump", log_dir, "--what", "records", "--json", environment={"JAVA_HOME": "/nonexistent"}
    )
    assert outcome.status == 0, outcome.stderr
    assert len(outcome.stdout.splitlines()) == 7
    assert tree(log_dir) == before

"""`kafka-log` under Spark: schemas, every table, filters, tasks, streams, and the error texts for wrong use."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import threading
import time
from operator import itemgetter

import pytest
from chispa import assert_df_equality
from chispa.schema_comparer import assert_schema_equality
from pyspark.errors import AnalysisException, PythonException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from sediment.jobs.data_source.options import SourceOptions
from sediment.jobs.datasource import KafkaLogSource, KafkaLogStreamReader, register, spark_schema
from sediment.jobs.table_readers.read_rows import read_rows
from sediment.segment_io.format.names import PARTITION_METADATA_FILE
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import write_partition_metadata
from sediment.segment_io.partition.sources import find_sources
from sediment.segment_io.tables.planning import plan_table
from sediment.segment_io.tables.schema import TABLES, TableRequest, arrow_schema
from tests.corpus import cleaning_cases, load_case, load_loading_case, loading_cases
from tests.jobs.log_dirs import sediment, write_checkpoint
from tests.segments import ABORT, batch_bytes, marker_bytes, write_segment, write_snapshot
from tests.server.groups.coordinator_logs import CoordinatorLogBuilder
from tests.tables import dumped_batches, dumped_records, dumped_segments, in_ms, twin_dump
from tests.twin.batches import Record, RecordHeader, encode_batch
from tests.twin.indexes import AbortedTransaction, build_indexes
from tests.twin.segments import file_batches, list_segments
from tests.twin.snapshots import ProducerEntry
from tests.waiting import LIMIT_SECONDS, wait_until

START_MS = 1_700_000_000_000

# What Spark 4.2.0's own Kafka source answers with includeHeaders; asked in
# tests/conformance/formats/test_spark_schema.py.
KAFKA_SOURCE_SCHEMA = StructType.fromJson(
    json.loads(
        """{"type":"struct","fields":[
        {"metadata":{},"name":"key","nullable":true,"type":"binary"},
        {"metadata":{},"name":"value","nullable":true,"type":"binary"},
        {"metadata":{},"name":"topic","nullable":true,"type":"string"},
        {"metadata":{},"name":"partition","nullable":true,"type":"integer"},
        {"metadata":{},"name":"offset","nullable":true,"type":"long"},
        {"metadata":{},"name":"timestamp","nullable":true,"type":"timestamp"},
        {"metadata":{},"name":"timestampType","nullable":true,"type":"integer"},
        {"metadata":{},"name":"headers","nullable":true,"type":{"containsNull":true,"elementType":{"fields":[
            {"metadata":{},"name":"key","nullable":true,"type":"string"},
            {"metadata":{},"name":"value","nullable":true,"type":"binary"}],"type":"struct"},"type":"array"}}]}"""
    )
)


@pytest.fixture(scope="module")
def spark(sc):
    session = SparkSession(sc)
    register(session)
    return session


@pytest.fixture
def log_dir(tmp_path):
    """Topic t: in t-0 two segments, an aborted transaction and a producer snapshot; t-1 is compressed."""
    directory = tmp_path / "logs"
    first = [batch_bytes(o, "abc", timestamp=START_MS + o) for o in range(0, 300, 3)]
    write_segment(directory / "t-0", 0, first, index_interval_bytes=300)
    second = [
        batch_bytes(300, "d", timestamp=START_MS + 300, producer_id=7, transactional=True),
        marker_bytes(301, ABORT, producer_id=7, timestamp=START_MS + 301),
        encode_batch(
            [Record(302, START_MS + 302, None, None, (RecordHeader(b"h", b"x"),))], base_offset=302, leader_epoch=0
        ),
    ]
    aborted = [AbortedTransaction(7, 300, 301, 302)]
    write_segment(directory / "t-0", 300, second, aborted=aborted)
    write_snapshot(directory / "t-0", 300, [ProducerEntry(7, epoch=0, timestamp=START_MS)])
    (directory / "t-0" / "leader-epoch-checkpoint").write_text("0\n2\n0 0\n3 100\n")
    write_segment(directory / "t-1", 0, [batch_bytes(0, "xyz", codec=4, timestamp=START_MS)])
    return directory


def load(spark, path, **options):
    return spark.read.format("kafka-log").options(**options).load(str(path))


def direct(spark, path, **options):
    """Return the same table without the source: read in this process and given to Spark as rows."""
    request = TableRequest(**options)
    rows = []
    for task in plan_table(request, find_sources([path], Fs()), Fs()):
        for batch in read_rows(request, task, Fs()):
            rows += [tuple(row.values()) for row in batch.to_pylist()]
    return spark.createDataFrame(rows, spark_schema(request.selected()))


def offsets(frame):
    return [row.offset for row in frame.select("offset").collect()]


# -------------------------------------------------------------------------------------------------------------- schemas
def test_records_begin_with_the_columns_of_sparks_own_kafka_source(spark, log_dir):
    schema = load(spark, log_dir).schema
    assert_schema_equality(StructType(schema.fields[: len(KAFKA_SOURCE_SCHEMA)]), KAFKA_SOURCE_SCHEMA)
    extras = schema.fieldNames()[len(KAFKA_SOURCE_SCHEMA) :]
    assert extras == [
        "batchBaseOffset",
        "codec",
        "producerId",
        "producerEpoch",
        "sequence",
        "transactional",
        "control",
        "leaderEpoch",
        "size",
    ]


@pytest.mark.parametrize("what", sorted(TABLES))
def test_arrow_and_spark_agree_about_every_column(what):
    columns = TableRequest(what=what, on_corruption="rows").selected()
    assert to_arrow_schema(spark_schema(columns), timezone="UTC").equals(arrow_schema(columns))


# ---------------------------------------------------------------------------------------------------------- every table
@pytest.mark.parametrize("what", sorted(TABLES))
def test_a_table_is_what_is_read_without_spark(what, spark, log_dir):
    write_segment(log_dir / "t-2", 0, [batch_bytes(0, "a", producer_id=9, transactional=True)])
    groups = CoordinatorLogBuilder(log_dir)
    groups.commit("readers", 1)
    groups.write()
    frame = load(spark, log_dir, what=what)
    assert frame.count() > 0
    assert_df_equality(frame, direct(spark, log_dir, what=what), ignore_row_order=True)


PLACE = ("topic", "partition", "segment", "baseOffset", "offset")


def assert_table(frame, rows):
    """Check that `frame` holds `rows` in the columns that they have, timestamps as ms."""
    place = [name for name in PLACE if name in rows[0]]
    table = frame.select(*rows[0]).toArrow().sort_by([(name, "ascending") for name in place])
    found = [row for batch in table.to_batches() for row in in_ms(batch).to_pylist()]
    for got, wanted in zip(found, sorted(rows, key=itemgetter(*place)), strict=True):
        assert got == wanted


def assert_tables(spark, log_dir, dumps, **options):
    """Check that the partitions in `log_dir` equal `dumps`, by (topic, partition), field by field."""
    for what, dumped in (("records", dumped_records), ("batches", dumped_batches), ("segments", dumped_segments)):
        rows = [row for (topic, partition), dump in dumps.items() for row in dumped(dump, topic, partition)]
        frame = load(spark, log_dir, what=what, **options)
        assert_table(frame.filter("valid") if what == "batches" else frame, rows)


def test_every_corpus_dump_of_a_cleaning_before_and_after_is_what_the_source_returns(spark, tmp_path):
    log_dir, dumps = tmp_path / "logs", {}
    log_dir.mkdir()
    for name in cleaning_cases(magic2_only=False):
        case = load_case(name, tmp_path / "cases")
        stages = [(case.before, "before"), *((r.after, f"after-{n}") for n, r in enumerate(case.rounds, 1))]
        for number, (directory, stage) in enumerate(stages):
            directory.rename(log_dir / f"{name}-{number}")
            dumps[name, number] = case.dump(stage)
    assert len({name for name, _ in dumps}) == 29
    assert_tables(spark, log_dir, dumps)


def test_every_corpus_log_before_and_after_loading_is_what_the_source_returns(spark, tmp_path):
    log_dir, dumps = tmp_path / "logs", {}
    log_dir.mkdir()
    for name in loading_cases():
        case = load_loading_case(name, tmp_path / "cases")
        dumps[name, 1] = twin_dump(case.after)
        # A replacement that was interrupted is read as Kafka's loader completes it.
        dumps[name, 0] = dumps[name, 1] if "swap" in name else twin_dump(case.before)
        case.before.rename(log_dir / f"{name}-0")
        case.after.rename(log_dir / f"{name}-1")
    assert len(dumps) == 2 * 23
    assert_tables(spark, log_dir, dumps, on_corruption="skip")


# -------------------------------------------------------------------------------------------------------------- options
def test_columns_are_an_option_or_a_schema(spark, log_dir):
    assert load(spark, log_dir, columns="offset, key").columns == ["offset", "key"]
    narrowed = spark.read.schema("key binary, offset long").format("kafka-log").load(str(log_dir / "t-1"))
    assert [tuple(row) for row in narrowed.orderBy("offset").collect()] == [(b"x", 0), (b"y", 1), (b"z", 2)]


def test_places_are_columns_on_request_by_which_records_are_joined_with_their_batches(spark, log_dir):
    every = load(spark, log_dir, columns="*, log_dir, segment, position")
    assert every.columns == [*load(spark, log_dir).columns, "log_dir", "segment", "position"]
    place = ["log_dir", "topic", "partition", "segment", "position"]
    batches = load(spark, log_dir, what="batches", columns=",".join([*place, "baseOffset", "lastOffset"]))
    joined = every.join(batches, place).where("offset between baseOffset and lastOffset")
    assert joined.count() == every.count()


def test_bounds_are_options_with_exclusive_ends(spark, log_dir):
    assert offsets(load(spark, log_dir / "t-0", offsets="298:301")) == [298, 299, 300]
    assert offsets(load(spark, log_dir / "t-0", timestamps_ms=f"{START_MS + 301}:")) == [301, 302]


def test_paths_are_one_a_list_or_a_segment(spark, log_dir):
    paths = [str(log_dir / "t-1"), str(log_dir / "t-0" / f"{300:020d}.log")]
    assert sorted(offsets(spark.read.format("kafka-log").load(paths))) == [0, 1, 2, 300, 301, 302]


def test_read_committed_hides_aborted_data_and_markers(spark, log_dir):
    frame = load(spark, log_dir / "t-0", isolation="read_committed", offsets="299:")
    assert offsets(frame) == [299, 302]
    assert load(spark, log_dir / "t-0", isolation="read_committed", what="batches").filter("control").count() == 0


def test_an_empty_partition_is_an_empty_table(spark, tmp_path):
    write_segment(tmp_path / "t-0", 0)
    assert load(spark, tmp_path / "t-0").collect() == []
    assert load(spark, tmp_path / "t-0").filter("offset > 5").collect() == []


# ----------------------------------------------------------------------------------------------------------- corruption
@pytest.fixture
def corrupt(log_dir):
    path = log_dir / "t-0" / f"{0:020d}.log"
    content = bytearray(path.read_bytes())
    content[5 * len(batch_bytes(0, "abc", timestamp=START_MS)) + 80] ^= 1
    path.write_bytes(bytes(content))
    return log_dir


def test_corruption_fails_with_one_sentence(spark, corrupt):
    with pytest.raises(PythonException) as raised:
        load(spark, corrupt).collect()
    (sentence,) = [line for line in str(raised.value).splitlines() if "Error: " in line]
    assert "the batch fails its CRC (partition t-0, file " in sentence
    assert "offset 15); restore the segment from a replica" in sentence
    assert "Traceback" not in str(raised.value)


def test_a_segment_file_with_foreign_content_is_reported_in_one_line(spark, log_dir):
    log = log_dir / "t-1" / f"{0:020d}.log"
    log.write_bytes(b"a,b\n" * 50)
    with pytest.raises(PythonException) as raised:
        load(spark, log).collect()
    (sentence,) = [line for line in str(raised.value).splitlines() if "Error: " in line]
    assert f"the batch has an unknown magic (partition t-1, file {log}, position 0, offset " in sentence
    assert "Traceback" not in str(raised.value)


def test_corruption_is_skipped_or_shown(spark, corrupt):
    assert load(spark, corrupt / "t-0", on_corruption="skip").count() == 300
    rows = load(spark, corrupt / "t-0", on_corruption="rows").filter("corruption is not null").collect()
    assert [(row.offset, row.key, len(row.value)) for row in rows] == [(15, None, len(batch_bytes(0, "abc")))]
    assert load(spark, corrupt / "t-0", what="batches").filter("not valid").select("baseOffset").collect()[0][0] == 15


# ------------------------------------------------------------------------------------------------------------ wrong use
@pytest.mark.parametrize(
    ("path", "options", "sentence"),
    [
        ("nothing", {}, "no such file or directory (file {}); name a log directory"),
        ("", {"waht": "records"}, "kafka-log has no option 'waht'; did you mean 'what'"),
        ("", {"what": "rows"}, "table 'rows' does not exist; it is one of records, batches"),
        ("", {"columns": "ofset"}, "table 'records' has no column 'ofset'; it has key, value"),
        ("", {"isolation": "none"}, "isolation cannot be 'none'; give one of read_uncommitted, read_committed"),
        ("", {"on_corruption": "x"}, "on_corruption cannot be 'x'; give one of fail, skip, rows"),
        ("", {"offsets": "5"}, "offsets '5' is not a range; write A:B"),
        ("", {"topics": "t,tt"}, "the paths contain no topic 'tt'; did you mean 't'"),
        ("", {"topics": "zebra"}, "the paths contain no topic 'zebra'; there are t"),
        ("", {"topics": "t", "partitions": "1,7"}, "the paths contain no partition 7; there are 0, 1"),
        ("", {"partitions": "one"}, "partitions cannot be 'one'; write numbers, separated by commas"),
        ("", {"task_bytes": "0"}, "task_bytes cannot be '0'; give a number above 0"),
        ("empty", {}, "the directory is empty (file {}); name a log directory"),
        ("data.csv", {}, "the file name is not that of a segment file (file {}); name a log directory"),
    ],
)
def test_wrong_use_is_one_sentence_at_load(path, options, sentence, spark, log_dir):
    (log_dir.parent / "empty").mkdir()
    (log_dir.parent / "data.csv").write_text("a\n")
    target = log_dir.parent / path if path else log_dir
    with pytest.raises(AnalysisException) as raised:
        load(spark, target, **options)
    assert sentence.format(target) in str(raised.value)
    assert "Traceback" not in str(raised.value)


def test_replicas_are_one_by_default_and_all_with_their_places_on_request(spark, log_dir, tmp_path):
    shutil.copytree(log_dir, tmp_path / "copy")
    paths = [str(log_dir), str(tmp_path / "copy")]
    reader = spark.read.format("kafka-log")
    alone = spark.read.format("kafka-log").load(str(log_dir))
    assert_df_equality(reader.load(paths), alone, ignore_row_order=True)
    every = reader.option("replicas", "all").load(paths)
    assert every.columns == [*alone.columns, "node_id", "log_dir"]
    counts = {row.log_dir: row["count"] for row in every.groupBy("log_dir").count().collect()}
    assert counts == dict.fromkeys(paths, alone.count())


def test_a_schema_that_is_given_moves_an_error_to_the_first_query(spark, tmp_path):
    frame = spark.read.format("kafka-log").schema("key binary").load(str(tmp_path / "nothing"))
    with pytest.raises(AnalysisException, match="no such file or directory"):
        frame.count()


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_a_frame_is_not_written_wherever_it_is_told_to_go(mode, spark, log_dir, tmp_path):
    writer = spark.range(1).write.format("kafka-log").mode(mode)
    for write in (
        lambda: writer.save(str(log_dir)),
        lambda: writer.save(str(tmp_path / "nothing")),
        lambda: writer.saveAsTable("nothing"),
    ):
        with pytest.raises(AnalysisException, match='kafka-log only reads; write to a table format such as "parquet"'):
            write()
    assert not spark.catalog.tableExists("nothing")


def test_a_schema_of_other_types_is_refused(spark, log_dir):
    with pytest.raises(Exception, match="column 'offset' is bigint, not int; leave out"):
        spark.read.schema("offset int").format("kafka-log").load(str(log_dir)).collect()


# -------------------------------------------------------------------------------------------------- filters and pruning
@pytest.mark.parametrize(
    "condition",
    [
        "offset between 100 and 110",
        "offset = 301 or offset = 5",
        "offset in (5, 301) and partition = 0",
        "timestamp >= timestamp'2023-11-14 22:13:20.250 UTC'",
        "timestamp < timestamp'2023-11-14 22:13:20.0005 UTC'",
        "topic = 'u'",
        "topic = 't' and partition = 1 and offset > 0",
        "key is null",
    ],
)
def test_filters_let_the_rows_through_that_they_do_without_the_source(condition, spark, log_dir):
    expected = direct(spark, log_dir).filter(condition)
    assert_df_equality(load(spark, log_dir).filter(condition), expected, ignore_row_order=True)


def test_a_small_log_is_broadcast_while_the_query_runs_or_from_the_start_with_a_hint(spark, log_dir):
    large = spark.range(2_000_000)
    small = load(spark, log_dir / "t-1", columns="offset, key").withColumnRenamed("offset", "id")
    joined = large.join(small, "id")
    assert "SortMergeJoin" in plan_of(joined)
    assert len(joined.collect()) == 3
    assert "BroadcastHashJoin" in plan_of(joined).partition("Initial Plan")[0]
    assert "SortMergeJoin" not in plan_of(large.join(f.broadcast(small), "id"))


def plan_of(frame):
    return frame._jdf.queryExecution().executedPlan().toString()


def test_what_options_exclude_is_not_read(spark, log_dir):
    for segment in (log_dir / "t-1").glob("*.log"):
        segment.write_bytes(b"\xff" * 500)
    content = bytearray((log_dir / "t-0" / f"{0:020d}.log").read_bytes())
    content[70] ^= 1
    (log_dir / "t-0" / f"{0:020d}.log").write_bytes(bytes(content))
    assert load(spark, log_dir, partitions="0", offsets="200:").count() == 103
    with pytest.raises(PythonException):
        load(spark, log_dir, offsets="200:").count()


@pytest.mark.parametrize(
    ("options", "rows", "most"),
    [
        ({}, 3600, 6.0),
        ({"topics": "t", "partitions": "1"}, 1800, 3.0),
        ({"partitions": "0, 1"}, 3600, 6.0),
        ({"partitions": "0", "offsets": "900:930"}, 30, 0.2),
        ({"partitions": "0", "offsets": "5:8"}, 3, 0.2),
        ({"partitions": "0", "offsets": "1800:"}, 0, 0.0),
        ({"partitions": "1", "timestamps_ms": f"{START_MS + 1650}:"}, 150, 0.4),
        ({"timestamps_ms": f"{START_MS + 1801}:"}, 0, 0.0),
    ],
)
def test_bytes_that_options_exclude_are_not_read(options, rows, most, two_partitions, log_bytes_read):
    """`most` in segments, of which two partitions have three each; planning counts too."""
    log_dir, segment_bytes = two_partitions
    source = KafkaLogSource({"path": str(log_dir), "columns": "offset", **options})
    reader = source.reader(source.schema())
    found = [batch for partition in reader.partitions() for batch in reader.read(partition)]
    assert sum(log_bytes_read.values()) <= most * segment_bytes
    assert sum(batch.num_rows for batch in found) == rows


@pytest.fixture(scope="module")
def two_partitions(tmp_path_factory):
    """(log directory, bytes of a segment): two partitions of three segments of 600 records, and the active one."""
    log_dir = tmp_path_factory.mktemp("logs")
    for number in range(2):
        for base in (0, 600, 1200):
            batches = [
                batch_bytes(o, "abc", value=b"v" * 60, timestamp=START_MS + o) for o in range(base, base + 600, 3)
            ]
            log = write_segment(log_dir / f"t-{number}", base, batches, index_interval_bytes=500)
        write_segment(log_dir / f"t-{number}", 1800)
    return log_dir, log.stat().st_size


# ---------------------------------------------------------------------------------------------------------------- tasks
def test_one_large_segment_is_read_by_several_tasks(spark, log_dir):
    frame = load(spark, log_dir / "t-0", task_bytes=1000, offsets=":300")
    assert frame.rdd.getNumPartitions() > 5
    rows = frame.select("offset", f.spark_partition_id().alias("task")).collect()
    assert [row.offset for row in sorted(rows)] == list(range(300))
    assert len({row.task for row in rows}) > 5


def test_what_goes_to_every_task_does_not_hold_the_whole_plan(two_partitions):
    log_dir, _ = two_partitions
    source = pickle.loads(pickle.dumps(KafkaLogSource({"path": str(log_dir), "task_bytes": "1000"})))
    reader = source.reader(source.schema())
    assert len(pickle.dumps(reader.partitions())) > 20_000
    assert len(pickle.dumps((source, reader))) < 4_000


# -------------------------------------------------------------------------------------------------------------- streams
@pytest.fixture
def live(tmp_path):
    directory = tmp_path / "live" / "s-0"
    write_segment(directory, 0, [batch_bytes(o, "ab") for o in range(0, 40, 2)], index_interval_bytes=200)
    return directory


class Stream:
    """A running query; `rows` are the offsets that it has delivered, by batch."""

    def __init__(self, spark, path, checkpoint, *, trigger=None, **options):
        self.batches = {}
        self.partitions = set()
        self.keys = {}
        frame = (
            spark.readStream.format("kafka-log").options(**options).load(str(path)).select("partition", "offset", "key")
        )
        trigger = trigger or {"processingTime": "100 milliseconds"}
        writer = frame.writeStream.foreachBatch(self._take).option("checkpointLocation", str(checkpoint))
        self.query = writer.trigger(**trigger).start()

    def _take(self, frame, number):
        rows = frame.collect()
        self.partitions |= {row.partition for row in rows}
        self.keys |= {row.offset: bytes(row.key) for row in rows}
        self.batches[number] = [row.offset for row in rows]  # the last, because it is what others wait for

    @property
    def rows(self):
        return [offset for number in sorted(self.batches) for offset in self.batches[number]]

    def until(self, count):
        wait_until(lambda: len(self.rows) >= count or not self.query.isActive)
        if self.query.exception():
            raise self.query.exception()
        return self.rows

    def settle(self):
        """Wait until what was delivered is in the checkpoint too, so that a later query does not begin with it."""
        self.query.processAllAvailable()

    def stop(self):
        self.query.stop()


@pytest.fixture
def stream(spark, tmp_path):
    running = []

    def start(path, **options):
        running.append(Stream(spark, path, tmp_path / "checkpoint", **options))
        return running[-1]

    yield start
    for one in running:
        one.stop()


def append(directory, base, batches):
    with (directory / f"{base:020d}.log").open("ab") as log:
        log.write(b"".join(batches))


def test_a_stream_tails_appends_rolls_and_new_partitions(stream, live):
    tail = stream(live.parent)
    assert tail.until(40) == list(range(40))
    append(live, 0, [batch_bytes(40, "ab"), batch_bytes(42)[:-3]])
    assert tail.until(42) == list(range(42))
    content = (live / f"{0:020d}.log").read_bytes()
    (live / f"{0:020d}.log").write_bytes(content[: -len(batch_bytes(42)[:-3])])
    append(live, 0, [batch_bytes(42, "a")])
    write_segment(live, 43, [batch_bytes(43, "b")])
    assert tail.until(44) == list(range(44))
    write_segment(live.with_name("s-1"), 0, [batch_bytes(0, "xy")])
    assert tail.until(46)[44:] == [0, 1]
    assert tail.partitions == {0, 1}


def test_a_stream_outlives_retention_and_a_compaction_between_its_batches(stream, live):
    write_segment(live, 40, [batch_bytes(o, "ab") for o in range(40, 60, 2)], index_interval_bytes=200)
    write_segment(live, 60, [batch_bytes(60, "ab")])
    tail = stream(live.parent)
    assert tail.until(62) == list(range(62))
    # The first segment goes; the second keeps every other batch and is swapped in as a broker does it.
    kept = [batch_bytes(o, "ab") for o in range(40, 60, 4)]
    work = live.parent.parent / "work"
    write_segment(work, 40, kept)
    for suffix in (".log", ".index", ".timeindex"):
        (live / f"{0:020d}{suffix}").unlink()
        (work / f"{40:020d}{suffix}").rename(live / f"{40:020d}{suffix}.swap")
    for suffix in (".log", ".index", ".timeindex"):
        (live / f"{40:020d}{suffix}").rename(live / f"{40:020d}{suffix}.deleted")
    append(live, 60, [batch_bytes(62, "ab")])
    time.sleep(0.3)
    for suffix in (".log", ".index", ".timeindex"):
        (live / f"{40:020d}{suffix}.swap").rename(live / f"{40:020d}{suffix}")
    assert tail.until(64) == list(range(64))


def test_a_stream_that_was_stopped_goes_on_where_it_was_whatever_happened_to_the_log(stream, live):
    first = stream(live.parent)
    first.until(40)
    first.settle()
    first.stop()
    write_segment(live, 40, [batch_bytes(o, "ab") for o in range(40, 60, 2)])
    write_segment(live, 60, [batch_bytes(60, "ab")])
    for suffix in (".log", ".index", ".timeindex"):
        (live / f"{0:020d}{suffix}").unlink()
        (live / f"{40:020d}{suffix}").unlink()
    second = stream(live.parent)
    assert second.until(2) == [60, 61]


def roll(directory, base):
    """Roll as a broker does: the last segment gets its final indexes, the new one is empty."""
    log = max(directory.glob("*.log"))
    write_indexes(log)
    write_segment(directory, base)


def write_indexes(log):
    offset_index, time_index = build_indexes(
        (batch for _, batch in file_batches(log.read_bytes())), int(log.stem), interval_bytes=200
    )
    log.with_suffix(".index").write_bytes(offset_index)
    log.with_suffix(".timeindex").write_bytes(time_index)


def delete_first(directory, base):
    """Delete the first segment as retention does: checkpoint the log start, rename files, remove them."""
    following = sorted(int(log.stem) for log in directory.glob("*.log"))[1]
    write_checkpoint(directory.parent / "log-start-offset-checkpoint", {directory.name: following})
    for path in sorted(directory.glob(f"{base:020d}.*")):
        path.rename(path.with_name(path.name + ".deleted")).unlink()


def records_of(directory, first=0):
    return {
        r.offset: r.key
        for s in list_segments(directory)
        for _, b in s.batches()
        for r in b.records()
        if r.offset >= first
    }


def test_a_stream_gives_each_record_once_through_appends_rolls_retention_compaction_and_a_restart(stream, live):
    log_dir = live.parent
    write_segment(
        live, 0, [batch_bytes(o, "ab", timestamp=START_MS) for o in range(0, 40, 2)], index_interval_bytes=200
    )
    tail = stream(log_dir, task_bytes=500)
    tail.until(40)
    append(live, 0, [batch_bytes(40, "cd")])
    tail.until(42)
    roll(live, 42)
    append(live, 42, [batch_bytes(o, "xy") for o in range(42, 60, 2)])
    assert tail.until(60) == list(range(60))
    tail.settle()
    tail.stop()

    # While it does not run: more is appended, the first segment goes, and what the stream has not seen is compacted.
    append(live, 42, [batch_bytes(60, "xy"), batch_bytes(62, "pq")])
    roll(live, 64)
    append(live, 64, [batch_bytes(o, "rs") for o in range(64, 80, 2)])
    roll(live, 80)
    append(live, 80, [batch_bytes(80, "r")])
    delete_first(live, 0)
    compacted = sediment("compact", log_dir, "--force", "--set=cleanup.policy=compact", "--json")
    assert compacted.partitions()["s-0"]["messages_written"] < compacted.partitions()["s-0"]["messages_read"]
    survivors = records_of(live, 60)
    assert survivors == {60: b"x", 61: b"y", 62: b"p", 63: b"q", 78: b"r", 79: b"s", 80: b"r"}
    again = stream(log_dir, task_bytes=500)
    assert again.until(len(survivors)) == list(survivors)
    assert again.keys == survivors

    # While it runs: the same once more, the swap between two of its batches.
    append(live, 80, [batch_bytes(o, "uv") for o in range(81, 101, 2)])
    assert again.until(len(survivors) + 20)[-20:] == list(range(81, 101))
    roll(live, 101)
    append(live, 101, [batch_bytes(101, "u")])
    delete_first(live, 42)
    assert sediment("compact", log_dir, "--force", "--set=cleanup.policy=compact", "--json").status == 0
    append(live, 101, [batch_bytes(102, "w")])
    assert again.until(len(survivors) + 22) == [*survivors, *range(81, 103)]
    again.settle()
    again.stop()
    last = stream(log_dir)
    append(live, 101, [batch_bytes(103, "z")])
    assert last.until(1) == [103]
    time.sleep(0.5)
    assert (last.rows, last.keys) == ([103], {103: b"z"})


def test_a_log_that_changes_under_a_running_stream_is_delivered_once_and_in_order(stream, live):
    done = threading.Event()

    def write():
        base, size = 0, 0
        for offset in range(40, 400, 2):
            if offset == 200:
                tail.until(41)  # so that what follows is of a later batch
            if size > 1500:
                base, size = offset, 0
                write_segment(live, base)
            append(live, base, [batch_bytes(offset, "ab")])
            size += 80
            time.sleep(0.01)
        done.set()

    tail = stream(live.parent)
    tail.until(40)
    writer = threading.Thread(target=write)
    writer.start()
    rows = tail.until(400)
    writer.join()
    assert done.is_set()
    assert rows == list(range(400))
    assert len(tail.batches) > 2


def test_a_limit_spreads_a_backlog_over_batches(stream, live):
    tail = stream(live.parent, trigger={"availableNow": True}, max_offsets_per_trigger=10)
    assert tail.query.awaitTermination(LIMIT_SECONDS)
    assert tail.rows == list(range(40))
    assert max(len(rows) for rows in tail.batches.values()) == 10


def test_a_topic_that_was_created_again_between_two_runs_is_read_from_its_start_or_fails_the_query(stream, live):
    def run(**options):
        tail = stream(live.parent, trigger={"availableNow": True}, **options)
        tail.query.awaitTermination(LIMIT_SECONDS)
        return tail

    write_partition_metadata(Fs(), live / PARTITION_METADATA_FILE, "AAAAAAAAAAAAAAAAAAAAAQ")
    assert run().rows == list(range(40))
    shutil.rmtree(live)
    write_segment(live, 0, [batch_bytes(offset, "xy") for offset in range(0, 60, 2)])
    write_partition_metadata(Fs(), live / PARTITION_METADATA_FILE, "BBBBBBBBBBBBBBBBBBBBAg")
    with pytest.raises(StreamingQueryException, match="the offset was changed from 40 to 0, because the partition was"):
        run(failOnDataLoss="true")
    assert run().rows == list(range(60))
    assert run(failOnDataLoss="true").rows == []


def test_a_stream_may_begin_at_the_end(stream, live):
    tail = stream(live.parent, starting="latest")
    wait_until(lambda: tail.query.status["message"] == "Waiting for data to arrive")
    append(live, 0, [batch_bytes(40, "ab")])
    assert tail.until(2) == [40, 41]


def test_a_stream_of_committed_data_waits_for_the_marker(stream, live):
    append(live, 0, [batch_bytes(40, "ab", producer_id=5, transactional=True), batch_bytes(42)])
    tail = stream(live.parent, isolation="read_committed")
    assert tail.until(40) == list(range(40))
    time.sleep(1)
    assert tail.rows == list(range(40))
    append(live, 0, [marker_bytes(43, ABORT, producer_id=5), batch_bytes(44)])
    assert tail.until(42) == [*range(40), 42, 44]


@pytest.fixture
def many(tmp_path):
    """Write a log directory of 120 partitions of two records each."""
    for number in range(120):
        write_segment(tmp_path / "many" / f"m-{number}", 0, [batch_bytes(0, "ab")])
    return tmp_path / "many"


def test_a_trigger_reads_small_partitions_in_as_few_tasks_as_a_batch_query(many):
    options = {"path": str(many)}
    reader = KafkaLogStreamReader(SourceOptions.parse(options))
    tasks = reader.partitions({}, reader.reportLatestOffset())
    source = KafkaLogSource(options)
    assert len(tasks) == len(source.reader(source.schema()).partitions()) == 1
    assert sum(batch.num_rows for task in tasks for batch in reader.read(task)) == 240
    assert (
        len(KafkaLogStreamReader(SourceOptions.parse({**options, "task_bytes": "1000"})).partitions({}, {"m-7": 2}))
        == 1
    )


def test_a_trigger_looks_at_each_directory_a_few_times_however_many_there_are(many, monkeypatch):
    listed = []
    scan = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: listed.append(path) or scan(path))
    reader = KafkaLogStreamReader(SourceOptions.parse({"path": str(many), "max_offsets_per_trigger": "100"}))
    start = reader.initialOffset()
    reader.partitions(start, reader.latestOffset(start, reader.getDefaultReadLimit()))
    assert 120 < len(listed) < 120 * 20


def test_a_stream_over_many_small_partitions_runs_few_tasks(spark, many, tmp_path):
    tasks, rows = [], []

    def take(frame, _number):
        tasks.append(frame.rdd.getNumPartitions())
        rows.extend((row.partition, row.offset) for row in frame.select("partition", "offset").collect())

    frame = spark.readStream.format("kafka-log").option("max_offsets_per_trigger", 160).load(str(many))
    writer = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path / "checkpoint"))
    assert writer.trigger(availableNow=True).start().awaitTermination(LIMIT_SECONDS)
    assert sorted(rows) == [(number, offset) for number in range(120) for offset in range(2)]
    assert len(tasks) >= 2
    assert max(tasks) == 1


def test_a_stream_reads_the_topics_and_partitions_that_are_asked_for(stream, live):
    write_segment(live.with_name("s-1"), 0, [batch_bytes(0, "xy")])
    write_segment(live.with_name("u-1"), 0, [batch_bytes(0, "xyz")])
    tail = stream(live.parent, topics="s", partitions="1")
    assert tail.until(2) == [0, 1]
    append(live, 0, [batch_bytes(40, "ab")])
    append(live.with_name("s-1"), 0, [batch_bytes(2, "ab")])
    assert tail.until(4) == list(range(4))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [({"what": "batches"}, "cannot be streamed"), ({"starting": "now"}, "starting cannot be 'now'")],
)
def test_options_that_cannot_be_streamed_are_refused(options, sentence, spark, live, tmp_path):
    with pytest.raises((AnalysisException, StreamingQueryException), match=sentence):
        frame = spark.readStream.format("kafka-log").options(**options).load(str(live))
        writer = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
        writer.start().awaitTermination(LIMIT_SECONDS)


def test_a_partition_in_two_directories_cannot_be_streamed_as_one(spark, live, tmp_path):
    shutil.copytree(live.parent, tmp_path / "other")
    with pytest.raises(StreamingQueryException, match="is in two directories"):
        Stream(spark, f"{tmp_path}/[lo]*", tmp_path / "c").query.awaitTermination(LIMIT_SECONDS)

"""`kafka-log` under Spark: schemas, every table, pushed filters, tasks, streams, and the sentences for wrong use."""

from __future__ import annotations

import json
import shutil
import threading
import time
from datetime import UTC, datetime, timedelta

import pytest
from chispa import assert_df_equality
from chispa.schema_comparer import assert_schema_equality
from pyspark.errors import AnalysisException, PythonException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from sediment.jobs.datasource import (
    PUSHDOWN_SETTING,
    KafkaLogReader,
    SourceOptions,
    narrowed_by,
    register,
    spark_schema,
)
from sediment.segment_io.fs import Fs
from sediment.segment_io.locate import locate
from sediment.segment_io.slices import Bounds
from sediment.segment_io.tables import TABLES, TableRequest, arrow_schema, plan_table, read_table
from tests.corpus import cleaning_cases, load_case
from tests.segments import ABORT, batch_bytes, marker_bytes, write_segment, write_snapshot
from tests.tables import dumped_batches, dumped_records
from tests.twin.batches import Record, RecordHeader, encode_batch
from tests.twin.indexes import AbortedTransaction
from tests.twin.snapshots import ProducerEntry

START_MS = 1_700_000_000_000

# What Spark 4.2.0's own Kafka source (spark-sql-kafka-0-10) answers with includeHeaders.
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
    """The same table without the source: read here, handed to Spark as rows."""
    request = TableRequest(**options)
    rows = []
    for task in plan_table(request, locate([path], Fs()), Fs()):
        for batch in read_table(request, task, Fs()):
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
    frame = load(spark, log_dir, what=what)
    assert frame.count() > 0
    assert_df_equality(frame, direct(spark, log_dir, what=what), ignore_row_order=True)


def frame_of(spark, rows, like):
    fields = [field for field in like.schema.fields if field.name in rows[0]]
    return spark.createDataFrame([tuple(row[field.name] for field in fields) for row in rows], StructType(fields))


def with_times(rows, *names):
    """Rows with timestamps of ms as Spark shows them."""
    epoch = datetime(1970, 1, 1, tzinfo=UTC)

    def at(value):
        return None if value is None else epoch + timedelta(milliseconds=value)

    return [{name: at(value) if name in names else value for name, value in row.items()} for row in rows]


@pytest.mark.parametrize(
    "name", ["everything", "transactions", "headers", "legacy-v0-codecs", "legacy-v1", "log-append-time"]
)
def test_corpus_dumps_are_what_the_source_returns(name, spark, tmp_path):
    case = load_case(name, tmp_path)
    for number, round_ in enumerate(case.rounds, 1):
        dump = case.dump(f"after-{number}")
        for what, rows, times in (
            ("records", dumped_records(dump, "after", number), ("timestamp",)),
            ("batches", dumped_batches(dump, "after", number), ("maxTimestamp", "deleteHorizon")),
        ):
            frame = load(spark, round_.after, what=what, columns=",".join(rows[0]), task_bytes=20000)
            assert_df_equality(
                frame, frame_of(spark, with_times(rows, *times), frame), ignore_row_order=True, ignore_column_order=True
            )


def test_the_whole_corpus_is_one_glob(spark, tmp_path):
    expected = 0
    for name in cleaning_cases(magic2_only=False)[:8]:
        case = load_case(name, tmp_path)
        expected += sum(len(batch.records) for segment in case.dump("before") for batch in segment.batches)
    assert load(spark, tmp_path / "*" / "before").count() == expected


# -------------------------------------------------------------------------------------------------------------- options
def test_columns_are_an_option_or_a_schema(spark, log_dir):
    assert load(spark, log_dir, columns="offset, key").columns == ["offset", "key"]
    narrowed = spark.read.schema("key binary, offset long").format("kafka-log").load(str(log_dir / "t-1"))
    assert [tuple(row) for row in narrowed.orderBy("offset").collect()] == [(b"x", 0), (b"y", 1), (b"z", 2)]


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
    (sentence,) = [line for line in str(raised.value).splitlines() if "sediment" in line]
    assert "the batch fails its CRC (partition t-0, file " in sentence
    assert "offset 15); restore the segment from a replica" in sentence
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
        ("", {"what": "rows"}, "there is no table 'rows'; it is one of records, batches"),
        ("", {"columns": "ofset"}, "table 'records' has no column 'ofset'; it has key, value"),
        ("", {"isolation": "none"}, "isolation cannot be 'none'; it is one of read_uncommitted, read_committed"),
        ("", {"on_corruption": "x"}, "on_corruption cannot be 'x'; it is one of fail, skip, rows"),
        ("", {"offsets": "5"}, "offsets '5' is no range; write A:B"),
        ("", {"task_bytes": "0"}, "task_bytes cannot be '0'; it is a number above 0"),
        ("empty", {}, "the directory is empty (file {}); name a log directory"),
        ("data.csv", {}, "the file is not named as a segment's file is (file {}); name a log directory"),
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


def test_a_schema_of_other_types_is_refused(spark, log_dir):
    with pytest.raises(Exception, match="column 'offset' is bigint, not int; leave out"):
        spark.read.schema("offset int").format("kafka-log").load(str(log_dir)).collect()


# ------------------------------------------------------------------------------------------------------- pushed filters
MOMENT = datetime(2023, 11, 14, 22, 13, 20, 100_000, tzinfo=UTC)
MOMENT_MS = START_MS + 100


def narrowed(*filters, what="records"):
    return narrowed_by(TableRequest(what=what), filters)


def test_filters_narrow_the_request():
    offset, timestamp = ("offset",), ("timestamp",)
    for pushed, bounds in (
        (GreaterThan(offset, 5), Bounds(first_offset=6)),
        (GreaterThanOrEqual(offset, 5), Bounds(first_offset=5)),
        (LessThan(offset, 5), Bounds(end_offset=5)),
        (LessThanOrEqual(offset, 5), Bounds(end_offset=6)),
        (EqualTo(offset, 5), Bounds(first_offset=5, end_offset=6)),
        (In(offset, (9, 5, 7)), Bounds(first_offset=5, end_offset=10)),
        (GreaterThan(timestamp, MOMENT), Bounds(first_timestamp_ms=MOMENT_MS + 1)),
        (GreaterThanOrEqual(timestamp, MOMENT), Bounds(first_timestamp_ms=MOMENT_MS)),
        (LessThan(timestamp, MOMENT), Bounds(end_timestamp_ms=MOMENT_MS)),
        (LessThanOrEqual(timestamp, MOMENT), Bounds(end_timestamp_ms=MOMENT_MS + 1)),
        (EqualTo(timestamp, MOMENT), Bounds(first_timestamp_ms=MOMENT_MS, end_timestamp_ms=MOMENT_MS + 1)),
    ):
        assert narrowed(pushed).bounds == bounds, pushed


def test_timestamps_between_milliseconds_let_no_record_through_too_few():
    later = MOMENT + timedelta(microseconds=1)
    timestamp = ("timestamp",)
    assert narrowed(GreaterThanOrEqual(timestamp, later)).bounds == Bounds(first_timestamp_ms=MOMENT_MS + 1)
    assert narrowed(GreaterThan(timestamp, later)).bounds == Bounds(first_timestamp_ms=MOMENT_MS + 1)
    assert narrowed(LessThan(timestamp, later)).bounds == Bounds(end_timestamp_ms=MOMENT_MS + 1)
    assert narrowed(LessThanOrEqual(timestamp, later)).bounds == Bounds(end_timestamp_ms=MOMENT_MS + 1)


def test_topics_and_partitions_are_sets_that_meet():
    request = narrowed(In(("topic",), ("a", "b")), EqualTo(("topic",), "b"), In(("partition",), (1, 2)))
    assert (request.topics, request.partitions) == (frozenset({"b"}), frozenset({1, 2}))


def test_bounds_of_batches_take_in_every_batch_that_may_pass():
    assert narrowed(GreaterThan(("lastOffset",), 5), what="batches").bounds == Bounds(first_offset=6)
    assert narrowed(LessThan(("baseOffset",), 5), what="batches").bounds == Bounds(end_offset=5)
    assert narrowed(LessThan(("maxTimestamp",), MOMENT), what="batches").bounds == Bounds()
    assert narrowed(GreaterThan(("offset",), 5), what="offset_index").bounds == Bounds()


@pytest.mark.parametrize(
    "pushed",
    [IsNotNull(("offset",)), Not(EqualTo(("offset",), 5)), EqualTo(("key",), b"k"), EqualTo(("offset",), None)],
)
def test_other_filters_change_nothing(pushed):
    assert narrowed(pushed) == TableRequest()


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
def test_filtered_rows_are_the_same_with_and_without_pushdown(condition, spark, log_dir):
    expected = direct(spark, log_dir).filter(condition)
    assert_df_equality(load(spark, log_dir).filter(condition), expected, ignore_row_order=True)


def test_what_filters_exclude_is_not_read(spark, log_dir):
    for segment in (log_dir / "t-1").glob("*.log"):
        segment.write_bytes(b"\xff" * 500)
    content = bytearray((log_dir / "t-0" / f"{0:020d}.log").read_bytes())
    content[70] ^= 1
    (log_dir / "t-0" / f"{0:020d}.log").write_bytes(bytes(content))
    frame = load(spark, log_dir)
    assert frame.filter("partition = 0 and offset >= 200").count() == 103
    assert frame.filter(f.col("topic").eqNullSafe("u")).count() == 0
    with pytest.raises(PythonException):
        frame.filter("offset >= 200").count()


def test_a_session_without_pushdown_is_told_how_to_turn_it_on(spark, log_dir):
    spark.conf.set(PUSHDOWN_SETTING, "false")
    try:
        with pytest.raises(Exception, match=PUSHDOWN_SETTING):
            load(spark, log_dir).collect()
    finally:
        spark.conf.set(PUSHDOWN_SETTING, "true")


# ---------------------------------------------------------------------------------------------------------------- tasks
def test_one_large_segment_is_read_by_several_tasks(spark, log_dir):
    frame = load(spark, log_dir / "t-0", task_bytes=1000, offsets=":300")
    assert frame.rdd.getNumPartitions() > 5
    rows = frame.select("offset", f.spark_partition_id().alias("task")).collect()
    assert [row.offset for row in sorted(rows)] == list(range(300))
    assert len({row.task for row in rows}) > 5


def test_the_default_tasks_suit_the_table():
    options = SourceOptions.parse({"path": "x", "what": "batches"})
    assert options.task_bytes is None
    assert KafkaLogReader(options).pushFilters([]) == []


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
        frame = spark.readStream.format("kafka-log").options(**options).load(str(path)).select("partition", "offset")
        trigger = trigger or {"processingTime": "100 milliseconds"}
        writer = frame.writeStream.foreachBatch(self._take).option("checkpointLocation", str(checkpoint))
        self.query = writer.trigger(**trigger).start()

    def _take(self, frame, number):
        rows = frame.collect()
        self.batches[number] = [row.offset for row in rows]
        self.partitions |= {row.partition for row in rows}

    @property
    def rows(self):
        return [offset for number in sorted(self.batches) for offset in self.batches[number]]

    def until(self, count, seconds=60):
        deadline = time.monotonic() + seconds
        while len(self.rows) < count and time.monotonic() < deadline:
            if self.query.exception():
                raise self.query.exception()
            time.sleep(0.05)
        return self.rows

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
    first.stop()
    write_segment(live, 40, [batch_bytes(o, "ab") for o in range(40, 60, 2)])
    write_segment(live, 60, [batch_bytes(60, "ab")])
    for suffix in (".log", ".index", ".timeindex"):
        (live / f"{0:020d}{suffix}").unlink()
        (live / f"{40:020d}{suffix}").unlink()
    second = stream(live.parent)
    assert second.until(2) == [60, 61]


def test_a_log_that_changes_under_a_running_stream_is_delivered_once_and_in_order(stream, live):
    done = threading.Event()

    def write():
        base, size = 0, 0
        for offset in range(40, 400, 2):
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
    tail.query.awaitTermination(120)
    assert tail.rows == list(range(40))
    assert max(len(rows) for rows in tail.batches.values()) == 10


def test_a_stream_may_begin_at_the_end(stream, live):
    tail = stream(live.parent, starting="latest")
    while tail.query.status["message"] != "Waiting for data to arrive":
        time.sleep(0.05)
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


@pytest.mark.parametrize(
    ("options", "sentence"),
    [({"what": "batches"}, "cannot be streamed"), ({"starting": "now"}, "starting cannot be 'now'")],
)
def test_what_cannot_be_streamed_is_told(options, sentence, spark, live, tmp_path):
    with pytest.raises((AnalysisException, StreamingQueryException), match=sentence):
        frame = spark.readStream.format("kafka-log").options(**options).load(str(live))
        frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start().awaitTermination(60)


def test_a_partition_in_two_directories_cannot_be_streamed_as_one(spark, live, tmp_path):
    shutil.copytree(live.parent, tmp_path / "other")
    with pytest.raises(StreamingQueryException, match="is in two directories"):
        Stream(spark, f"{tmp_path}/[lo]*", tmp_path / "c").query.awaitTermination(60)

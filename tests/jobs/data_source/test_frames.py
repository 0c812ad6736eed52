"""Many queries of one `kafka-log` frame: each returns the rows of a new frame, even after other queries.

Spark 4.2 keeps one read plan for a frame and all its queries.  The session setting that hands filters to Python sources
is off in these tests as it is by default, and on as another library of the session may leave it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pyspark.errors import PythonException
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from sediment.jobs.datasource import register
from sediment.jobs.spark.cds_options import archive_options
from sediment.jobs.spark.session import QUICK_JVM
from tests.segments import batch_bytes, write_segment

START_MS = 1_700_000_000_000
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
IN_A_SESSION_OF_ITS_OWN_SECONDS = 180


@pytest.fixture(scope="module")
def session(sc):
    """A session for itself, so that its settings reach no other test."""
    return SparkSession(sc).newSession()


@pytest.fixture(params=["false", "true"])
def spark(request, session):
    session.conf.set(PUSHDOWN, request.param)
    register(session)
    yield session
    session.conf.unset(PUSHDOWN)


def load(spark, path, **options):
    return spark.read.format("kafka-log").options(**options).load(str(path))


# ----------------------------------------------------------------------------------------------- an unchanged directory
@dataclass(frozen=True)
class Condition:
    """A filter as SQL, and as Python on (topic, partition, offset, ms since the start)."""

    sql: str
    holds: Callable[..., bool]


CONDITIONS = [
    Condition("topic = 'users'", lambda t, p, o, m: t == "users"),
    Condition("topic = 'bank'", lambda t, p, o, m: t == "bank"),
    Condition("topic = 'nope'", lambda t, p, o, m: False),
    Condition("partition = 1", lambda t, p, o, m: p == 1),
    Condition("partition = 3", lambda t, p, o, m: False),
    Condition("offset >= 20 and offset < 50", lambda t, p, o, m: 20 <= o < 50),
    Condition("offset in (3, 70) or topic = 'bank'", lambda t, p, o, m: o in (3, 70) or t == "bank"),
    Condition(
        "timestamp >= timestamp_millis(1700000000040)",
        lambda t, p, o, m: m >= 40,
    ),
    Condition("true", lambda t, p, o, m: True),
]
SHAPE = {"users-0": 90, "users-1": 60, "bank-0": 30}


@pytest.fixture(scope="module")
def log_dir(tmp_path_factory):
    """Return three partitions, two segments each, and the rows that they hold."""
    directory = tmp_path_factory.mktemp("logs")
    for name, count in SHAPE.items():
        for base in (0, count // 2):
            batches = [batch_bytes(o, "abc", timestamp=START_MS + o) for o in range(base, base + count // 2, 3)]
            write_segment(directory / name, base, batches, index_interval_bytes=200)
    return directory


ROWS = [(*name.split("-"), offset) for name, count in SHAPE.items() for offset in range(count)]


def rows_of(*conditions):
    """Return the number of rows that satisfy all `conditions`; each batch of three has one timestamp."""
    return sum(
        all(c.holds(topic, int(partition), offset, offset // 3 * 3) for c in conditions)
        for topic, partition, offset in ROWS
    )


def test_rows_of_a_frame_do_not_depend_on_earlier_queries(spark, log_dir):
    log = load(spark, log_dir)
    log.createOrReplaceTempView("log")

    def count(condition="true"):
        return spark.sql(f"select count(*) from log where {condition}").first()[0]

    assert count() == 180
    assert count("topic = 'users'") == 150
    assert count() == 180
    assert spark.sql("select max(offset) from log").first()[0] == 89
    assert count("topic = 'nope'") == 0
    assert (count(), log.count()) == (180, 180)
    partitions = log.rdd.getNumPartitions()
    log.filter("topic = 'bank'").explain()
    assert log.count() == 180
    assert log.rdd.getNumPartitions() == partitions
    both = spark.sql("select (select count(*) from log where topic = 'bank'), (select count(*) from log)").first()
    assert tuple(both) == (30, 180)
    bank, users = log.filter("topic = 'bank'"), log.filter("topic = 'users'")
    assert (bank.count(), users.count(), bank.union(users).count(), bank.union(log).count()) == (30, 150, 180, 210)
    assert log.filter("partition = 3").count() == 0
    assert log.select(f.min("timestamp"), f.max("timestamp")).first()[0] is not None


def test_no_sequence_of_queries_changes_the_rows_of_a_frame_or_view(spark, log_dir):
    log = load(spark, log_dir, columns="topic,partition,offset,timestamp")
    log.createOrReplaceTempView("rows")
    spark.sql(
        "create or replace temporary view made_in_sql using `kafka-log` "
        f"options (path '{log_dir}', columns 'topic,partition,offset,timestamp')"
    )
    key = ["topic", "partition", "offset"]

    def counted(one, _other):
        return log.filter(one.sql).count(), rows_of(one)

    def in_sql(one, _other):
        return spark.sql(f"select count(*) from rows where {one.sql}").first()[0], rows_of(one)

    def in_a_view_of_sql(one, _other):
        return spark.sql(f"select count(*) from made_in_sql where {one.sql}").first()[0], rows_of(one)

    def unioned(one, other):
        return log.filter(one.sql).union(log.filter(other.sql)).count(), rows_of(one) + rows_of(other)

    def joined(one, other):
        return log.filter(one.sql).join(log.filter(other.sql), key).count(), rows_of(one, other)

    def excluded(one, other):
        left = log.filter(one.sql).join(log.filter(other.sql), key, "left_anti").count()
        return left, rows_of(one) - rows_of(one, other)

    def explained(one, _other):
        log.filter(one.sql).explain()
        return None, None

    def cached(one, other):
        frame = log.filter(one.sql).cache()
        try:
            return (frame.count(), frame.filter(other.sql).count()), (rows_of(one), rows_of(one, other))
        finally:
            frame.unpersist()

    def limited(one, _other):
        return log.filter(one.sql).limit(7).count(), min(7, rows_of(one))

    def nested(one, other):
        sql = f"select count(*), (select count(*) from rows where {one.sql}) from rows where {other.sql}"
        return tuple(spark.sql(sql).first()), (rows_of(other), rows_of(one))

    steps = [counted, in_sql, in_a_view_of_sql, unioned, joined, excluded, explained, cached, limited, nested]
    condition = st.sampled_from(CONDITIONS)
    step = st.tuples(st.sampled_from(steps), condition, condition)

    @settings(max_examples=6, phases=[Phase.generate])
    @given(st.lists(step, min_size=2, max_size=5))
    def queries(sequence):
        for ask, one, other in sequence:
            found, expected = ask(one, other)
            assert found == expected, (ask.__name__, one.sql, other.sql)

    queries()


def test_two_loads_of_one_path_are_two_frames(spark, log_dir):
    narrow, whole = load(spark, log_dir, topics="bank"), load(spark, log_dir)
    for _ in range(2):
        assert (narrow.count(), whole.count(), narrow.union(whole).count()) == (30, 180, 210)


def test_a_cached_table_stays_what_it_was(spark, log_dir):
    load(spark, log_dir).createOrReplaceTempView("kept")
    spark.sql("cache table kept")
    try:
        for condition, count in (("topic = 'bank'", 30), ("true", 180), ("partition = 1", 60), ("true", 180)):
            assert spark.sql(f"select count(*) from kept where {condition}").first()[0] == count
    finally:
        spark.sql("uncache table kept")


def test_register_changes_no_setting_of_the_session(session):
    before = {row.key: row.value for row in session.sql("set").collect()}
    register(session)
    assert {row.key: row.value for row in session.sql("set").collect()} == before


def test_a_session_that_comes_from_one_with_the_source_may_register_it_again(session, tmp_path):
    write_segment(tmp_path / "t-0", 0, [batch_bytes(0, "abc", timestamp=START_MS)])
    register(session)
    child = session.newSession()
    register(child)
    register(child)
    assert load(child, tmp_path).count() == 3


# ------------------------------------------------------------------------------------------------ a changing directory
@pytest.fixture
def changing(tmp_path):
    """t-0 with the segments 0 and 30, the second one written to."""
    for base in (0, 30):
        batches = [batch_bytes(o, "abc", timestamp=START_MS + o) for o in range(base, base + 30, 3)]
        write_segment(tmp_path / "t-0", base, batches, index_interval_bytes=200)
    return tmp_path


def test_a_frame_keeps_the_listing_of_its_load(spark, changing):
    log = load(spark, changing)
    log.createOrReplaceTempView("listed")
    with (changing / "t-0" / f"{30:020d}.log").open("ab") as file:
        file.write(batch_bytes(60, "abc"))
    write_segment(changing / "t-0", 63, [batch_bytes(63, "abc")])
    write_segment(changing / "t-1", 0, [batch_bytes(0, "abc")])
    for condition, count in (("true", 60), ("offset >= 30", 30), ("partition = 1", 0), ("true", 60)):
        assert log.filter(condition).count() == count
        assert spark.sql(f"select count(*) from listed where {condition}").first()[0] == count
    assert log.filter("offset >= 30").union(log).count() == 90
    assert load(spark, changing).count() == 69


def first_segment(directory):
    return [directory / f"{0:020d}{suffix}" for suffix in (".log", ".index", ".timeindex")]


def remove_first_segment(directory):
    for path in first_segment(directory):
        path.unlink()


def replace_first_segment(directory):
    """Replace segment 0 like a cleaner: keep only its last batch."""
    remove_first_segment(directory)
    write_segment(directory, 0, [batch_bytes(27, "abc", timestamp=START_MS + 27)])


@pytest.mark.parametrize("change", [replace_first_segment, remove_first_segment])
@pytest.mark.parametrize("what", ["records", "batches"])
def test_a_frame_fails_with_a_sentence_once_a_segment_is_another_one(change, what, spark, changing):
    log = load(spark, changing, what=what)
    before = log.count()
    change(changing / "t-0")
    for query in (log, log.filter("partition = 0"), log.filter("partition = 0").union(log)):
        with pytest.raises(PythonException) as raised:
            query.count()
        (sentence,) = [line for line in str(raised.value).splitlines() if "Error: " in line]
        assert "the segment was replaced or removed after it was listed (partition t-0, file " in sentence
        assert "load the directory again" in sentence
        assert "Traceback" not in str(raised.value)
    assert 0 < load(spark, changing, what=what).count() < before


@pytest.mark.parametrize("change", [replace_first_segment, remove_first_segment])
def test_a_segment_is_read_while_its_file_waits_for_deletion(change, spark, changing):
    log = load(spark, changing)
    for path in first_segment(changing / "t-0"):
        path.with_name(path.name + ".deleted").hardlink_to(path)
    change(changing / "t-0")
    assert log.count() == log.filter("partition = 0").count() == 60


# --------------------------------------------------------------------------------------------------- a session of Spark
PLAIN_SESSION = """
import sys
from pyspark.sql import SparkSession
from sediment.jobs.datasource import register

settings = {"spark.ui.enabled": "false", "spark.driver.extraJavaOptions": sys.argv[2]}
spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
register(spark)
log = spark.read.format("kafka-log").load(sys.argv[1])
log.show(3)
print(len(log.limit(5).collect()))
spark.stop()
"""


def test_a_limit_prints_no_traceback_in_a_session_that_is_not_of_sediment(tmp_path):
    batches = [batch_bytes(o, "ab" * 50, value=b"v" * 4000) for o in range(0, 3000, 100)]
    for number in range(3):
        write_segment(tmp_path / f"t-{number}", 0, batches)
    run = subprocess.run(
        [sys.executable, "-c", PLAIN_SESSION, str(tmp_path), f"{QUICK_JVM} {archive_options()}".strip()],
        capture_output=True,
        text=True,
        timeout=IN_A_SESSION_OF_ITS_OWN_SECONDS,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.endswith("\n5\n")
    assert "Traceback" not in run.stderr
    assert "BrokenPipe" not in run.stderr

"""`kafka-log` without `register`: Spark finds it, and SQL creates tables of it."""

from __future__ import annotations

import subprocess
import sys

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from sediment.jobs.datasource import register
from sediment.jobs.spark.session import spark_context
from sediment.segment_io.errors import UsageError
from tests.segments import batch_bytes, write_segment


@pytest.fixture(scope="module")
def spark(sc):
    """Return a session in which nothing was registered."""
    return SparkSession(sc).newSession()


@pytest.fixture
def log_dir(tmp_path):
    directory = tmp_path / "log dir"
    for name in ("t-0", "u-0"):
        write_segment(directory / name, 0, [batch_bytes(o, "abc") for o in range(0, 30, 3)])
    return directory


@pytest.fixture
def table(spark, log_dir):
    spark.sql(f"create table log using `kafka-log` options (path '{log_dir}', subscribe 't', columns 'key, offset')")
    yield "log"
    spark.sql("drop table if exists log")


def test_a_table_of_the_catalog_is_what_a_frame_with_its_options_is(spark, log_dir, table):
    frame = spark.read.format("kafka-log").options(subscribe="t", columns="key, offset").load(str(log_dir))
    assert spark.table(table).schema.simpleString() == frame.schema.simpleString()
    assert sorted(spark.table(table).collect()) == sorted(frame.collect())
    assert spark.sql(f"select count(*) from {table} with (offsets = '3:8')").first()[0] == 5
    write_segment(log_dir / "t-0", 30, [batch_bytes(30, "abc")])
    assert (spark.table(table).count(), frame.count()) == (33, 30)


def test_a_table_is_never_written_and_dropping_it_deletes_no_file(spark, log_dir, table):
    before = {path: path.read_bytes() for path in log_dir.rglob("*") if path.is_file()}
    for statement in (f"insert into {table} select * from {table}", f"insert overwrite {table} select * from {table}"):
        with pytest.raises(AnalysisException) as raised:
            spark.sql(statement)
        assert "Traceback" not in str(raised.value)
    with pytest.raises(AnalysisException):
        spark.sql(f"truncate table {table}")
    spark.sql(f"drop table {table} purge")
    for definition in (
        f"table other using `kafka-log` location '{log_dir}'",
        f"external table other using `kafka-log` options (path '{log_dir}')",
    ):
        spark.sql(f"create {definition}")
        assert spark.table("other").count() == 60
        spark.sql("drop table other purge")
    assert {path: path.read_bytes() for path in log_dir.rglob("*") if path.is_file()} == before


def test_a_table_describes_its_columns_and_is_external(spark, log_dir, table):
    described = {row.col_name: row.comment for row in spark.sql(f"describe {table}").collect()}
    assert described == {"key": "null if the record has no key", "offset": "offset of the record"}
    (shown,) = spark.sql(f"show table extended like '{table}'").collect()
    assert "Type: EXTERNAL" in shown.information
    assert f"Location: file:{log_dir}" in shown.information.replace("%20", " ")


@pytest.mark.parametrize(
    ("definition", "sentence"),
    [
        ("using `kafka-log` options (path '{}', subscrbe 't')", "no option 'subscrbe'; did you mean 'subscribe'"),
        ("using `kafka-log` options (what 'batches')", "no path is given; give a path to load"),
    ],
)
def test_a_table_with_wrong_options_is_refused_when_it_is_created(definition, sentence, spark, log_dir):
    with pytest.raises(AnalysisException) as raised:
        spark.sql(f"create table refused {definition.format(log_dir)}")
    assert f"UsageError: {'kafka-log has ' if 'no option' in sentence else ''}{sentence}" in str(raised.value)
    assert "Traceback" not in str(raised.value)
    assert "sediment." not in str(raised.value)


@pytest.fixture
def other_python(sc, tmp_path, monkeypatch):
    """A Python without this package, which Spark runs in this test."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "other")], check=True)
    other = str(tmp_path / "other" / "bin" / "python")
    monkeypatch.setattr(sc, "pythonExec", other)
    monkeypatch.chdir(tmp_path)
    return other


def register_again(spark):
    register(spark)


def compact(spark):
    with spark_context(None, "a command"):
        raise AssertionError


@pytest.mark.parametrize("use", [register_again, compact])
def test_a_python_of_spark_without_the_package_is_named(use, spark, other_python):
    with pytest.raises(UsageError) as raised:
        use(spark)
    assert str(raised.value) == (
        f"Spark runs Python code with {other_python}, which lacks the package sediment; activate the virtual "
        f"environment, or set PYSPARK_PYTHON to {sys.executable}, before the session starts"
    )

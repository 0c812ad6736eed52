"""`kafka-log` on Spark 4.0 and 4.1, which have no read limits, and on 3.5, which has no data sources."""

from __future__ import annotations

import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import AnalysisException

from sediment.jobs.datasource import register
from tests.segments import batch_bytes, write_segment

_WITHOUT_READ_LIMITS = """
import sys
import pyspark.sql.datasource
sys.modules["pyspark.sql.streaming.datasource"] = None
from pyspark_kafkalog import DefaultSource
"""
_WITHOUT_DATA_SOURCES = """
import sys
sys.modules["pyspark.sql.datasource"] = None
"""


def run(program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_stream_without_read_limits_goes_on_where_its_last_batch_ended(tmp_path: Path) -> None:
    write_segment(tmp_path / "t-0", 0, [batch_bytes(0), batch_bytes(1)])
    program = """
from tests.segments import batch_bytes, write_segment
def offsets(start, end):
    batches = [batch for task in reader.partitions(start, end) for batch in reader.read(task)]
    return [each for batch in batches for each in batch["offset"].to_pylist()]
reader = DefaultSource({"path": sys.argv[1]}).streamReader(DefaultSource({"path": sys.argv[1]}).schema())
first = reader.latestOffset()  # Spark asks for the end first
found = [offsets(reader.initialOffset(), first), reader.latestOffset() == first]
write_segment(__import__("pathlib").Path(sys.argv[1], "t-0"), 2, [batch_bytes(2)])
print([*found, offsets(first, reader.latestOffset())])
"""
    done = run(_WITHOUT_READ_LIMITS + program, tmp_path)
    assert (done.stderr, done.stdout) == ("", "[[0, 1], True, [2]]\n")


def test_a_limit_that_spark_would_ignore_is_refused(tmp_path: Path) -> None:
    write_segment(tmp_path / "t-0", 0, [batch_bytes(0)])
    program = """
for name in ("max_offsets_per_trigger", "maxOffsetsPerTrigger"):
    source = DefaultSource({"path": sys.argv[1], name.lower(): "5"})
    source.reader(source.schema())
    try:
        source.streamReader(source.schema()).latestOffset()
    except Exception as error:
        print(error)
"""
    done = run(_WITHOUT_READ_LIMITS + program, tmp_path)
    first, second = done.stdout.splitlines()
    assert first.startswith("max_offsets_per_trigger needs Spark 4.2 or newer, but this is Spark ")
    assert first.endswith("; leave it out") and second == first


class AlreadyExistsError(AnalysisException):
    def getCondition(self) -> str:
        return "DATA_SOURCE_ALREADY_EXISTS"


@pytest.mark.parametrize(("version", "is_refused"), [("4.0.4", False), ("4.1.4", True)])
def test_a_source_that_spark_has_found_by_itself_counts_as_registered_where_it_cannot_be_replaced(
    version: str, is_refused: bool
) -> None:
    def refuse(_source: object) -> None:
        raise AlreadyExistsError("Data source 'kafka-log' already exists")

    session: Any = SimpleNamespace(
        version=version, dataSource=SimpleNamespace(register=refuse), createDataFrame=lambda *_given: None
    )
    with pytest.raises(AlreadyExistsError) if is_refused else nullcontext():
        register(session)


def test_without_data_sources_register_is_one_sentence() -> None:
    done = run(_WITHOUT_DATA_SOURCES + "from sediment.jobs.datasource import register")
    last = done.stderr.splitlines()[-1]
    assert last.startswith("sediment.segment_io.errors.UsageError: the format kafka-log needs Spark 4.0 or newer, but")

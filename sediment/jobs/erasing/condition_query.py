"""The query that finds the records for which a condition of Spark SQL is true.

Invariant: errors contain only the kind of Spark's error, never its text, which may quote the condition or a record.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sediment.jobs.erasing.repeatable_condition import check_parsed, check_resolved
from sediment.jobs.spark.job_names import named_job, titled
from sediment.segment_io.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Int64s = npt.NDArray[np.int64]

_ANSI = "spark.sql.ansi.enabled"
_ROW = ("topic", "partition", "offset")
_BINARY = ("key", "value")
_LOGGERS_OF_QUERIES = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")


class ConditionFailedError(Exception):
    """Spark could not evaluate the condition; the text of this exception is the kind of Spark's error."""


def matching_offsets(
    session: SparkSession, condition: str, directories: Sequence[Path], *, group: str
) -> Mapping[str, Int64s]:
    """Return the ascending offsets of the matching data records, int64[n], by the name of the partition directory.

    `group` is the job group of the run.
    """
    from pyspark.errors import AnalysisException, ParseException

    from sediment.jobs.data_source.options import FORMAT

    # The session has `spark.sql.ansi.enabled=false`: an expression that cannot be computed is null, and its record does
    # not match.  With ANSI rules, an error would quote the condition in the executor's log.
    session.conf.set(_ANSI, "false")
    paths = json.dumps(list(map(str, directories)))
    frame = session.read.format(FORMAT).option("paths", paths).load()
    found: dict[str, list[Int64s]] = {}
    # PySpark's own log of failed queries also quotes the condition, so that log is switched off during the query.
    with _without_logs_of_queries():
        try:
            check_parsed(session, condition)
            matching = frame.where(~frame.control).where(condition)
            check_resolved(session, matching)
            # Spark writes the plan of a SQL query to its event log and shows it in its UI.  Therefore, this query runs
            # as an RDD, without a SQL execution: the condition leaves the driver only in the code of the tasks.
            rows = matching.select(*_ROW).rdd
        except (AnalysisException, ParseException) as error:
            raise UsageError(
                f"--where is not a condition on the table records: {_kind(error)}",
                advice="use Spark SQL; key and value are binary, as in CAST(key AS STRING) LIKE 'a%', and the other "
                f"columns are {', '.join(name for name in frame.columns if name not in _BINARY)}",
            ) from None
        try:
            with named_job(session.sparkContext, group, titled("search", _partition)(directories)):
                packed = rows.mapPartitions(_packed).collect()
            for topic, number, content in packed:
                found.setdefault(f"{topic}-{number}", []).append(np.frombuffer(content, dtype=np.int64))
        except Exception as error:
            raise ConditionFailedError(_kind(error)) from None
    return {partition: np.sort(np.concatenate(arrays)) for partition, arrays in found.items()}


def _partition(directory: Path) -> str:
    return directory.name


@contextmanager
def _without_logs_of_queries() -> Iterator[None]:
    from pyspark.logger import PySparkLogger

    loggers = [PySparkLogger.getLogger(name) for name in _LOGGERS_OF_QUERIES]
    before = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    finally:
        for logger, was_disabled in zip(loggers, before, strict=True):
            logger.disabled = was_disabled


def _packed(rows: Iterable[Any]) -> Iterator[tuple[str, int, bytes]]:
    offsets: dict[tuple[str, int], list[int]] = {}
    for topic, number, offset in rows:
        offsets.setdefault((topic, number), []).append(offset)
    for (topic, number), found in offsets.items():
        yield topic, number, np.array(found, dtype=np.int64).tobytes()


def _kind(error: Any) -> str:
    try:
        return str(error.getCondition() or type(error).__name__)
    except Exception:
        return type(error).__name__

"""The Delta table of `snapshot`: its rows, and the progress of each refresh in the metadata of the commit.

table property `sediment.snapshot`      kind of the table: the latest values, or the state at a moment
user metadata of a commit               progress: run, number of the refresh, offset of each partition
application transaction                 number of the refresh; Delta refuses a second refresh with the same number
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from sediment.jobs.delta_lake.latest_per_key import SPARK_SCHEMA
from sediment.jobs.delta_lake.paths import is_uri
from sediment.jobs.delta_lake.refresh_plan import LATEST, RefreshProgress, parse_progress, progress_json
from sediment.jobs.reporting.error_text import first_line
from sediment.segment_io.errors import SedimentError, UsageError

if TYPE_CHECKING:
    from delta.tables import DeltaTable
    from pyspark.sql import Column, DataFrame, SparkSession

_KIND_PROPERTY = "sediment.snapshot"
_DELETION_VECTORS_PROPERTY = "delta.enableDeletionVectors"
_DELTA_LOG = "_delta_log"
_UNFINISHED_COMMIT = re.compile(r"\..*\.tmp")  # a temporary file, renamed when it is complete
_APPLICATION = "sediment-snapshot"
_USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
_TXN_APPLICATION = "spark.databricks.delta.write.txnAppId"
_TXN_VERSION = "spark.databricks.delta.write.txnVersion"
_LIKELY_COMMITS = 10
_RESTORE = "RESTORE"  # the operation in the commit of RESTORE TABLE
_STATISTICS_PROPERTY = "delta.dataSkippingStatsColumns"
_NOT_KEY = ("offset", "timestamp", "timestampType", "headers", "value")
_STATISTICS = "partition,offset,timestamp"  # statistics of headers, keys and values would not let Delta skip files
_WRITE_SETTINGS = {
    # Keys and most values differ from row to row, so dictionary encoding costs time and saves no space.
    "parquet.enable.dictionary#key": "false",
    "parquet.enable.dictionary#value": "false",
    # Spark's default, INT96, takes more time and space, and has no statistics.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Rows of a single topic need no sort.
    "spark.sql.maxConcurrentOutputFileWriters": "1",
}


class SnapshotTable:
    def __init__(self, spark: SparkSession, path: str, deletion_vectors: bool) -> None:
        self._spark = spark
        self._deletion_vectors = deletion_vectors
        self.path = path if is_uri(path) else str(Path(path).absolute())

    def open(self, kind: str) -> RefreshProgress:
        from delta.tables import DeltaTable

        if not DeltaTable.isDeltaTable(self._spark, self.path):
            return self._create(kind)
        progress = _first_progress(self._commits(_LIKELY_COMMITS)) or _first_progress(self._commits(None))
        if progress is None:
            progress = self._progress_without_commits()
        if progress.kind != kind:
            raise UsageError(
                "this table contains the latest values, and each refresh continues from the offsets of the previous "
                "refresh"
                if progress.kind == LATEST
                else "this table contains the state as of an offset or time, and cannot be refreshed",
                path=self.path,
                advice="name another path",
            )
        return progress

    def _create(self, kind: str) -> RefreshProgress:
        from delta.tables import DeltaTable
        from pyspark.sql.types import StructType

        self._remove_empty_log()
        columns = cast("StructType", StructType.fromDDL(SPARK_SCHEMA))
        progress = RefreshProgress(kind, "", 0, {})
        with _commit_settings(self._spark, progress):
            (
                DeltaTable.createIfNotExists(self._spark)
                .location(self.path)
                .addColumns(columns)
                .partitionedBy("topic")
                .property(_KIND_PROPERTY, kind)
                .property(_STATISTICS_PROPERTY, _STATISTICS)
                # Set the property to true or false explicitly, because a session may have its own default.
                .property(_DELETION_VECTORS_PROPERTY, "true" if self._deletion_vectors else "false")
                .execute()
            )
        return progress

    def _remove_empty_log(self) -> None:
        """Remove a `_delta_log` that has no commit: a failed creation left it, and Delta would treat it as a table."""
        context = self._spark.sparkContext
        assert context._jvm is not None
        folder = context._jvm.org.apache.hadoop.fs.Path(self.path, _DELTA_LOG)
        files = folder.getFileSystem(context._jsc.hadoopConfiguration())
        if not files.exists(folder):
            return

        def holds_nothing(status: Any) -> bool:
            if status.isDirectory():
                return len(files.listStatus(status.getPath())) == 0
            return _UNFINISHED_COMMIT.fullmatch(status.getPath().getName()) is not None

        left = files.listStatus(folder)
        if all(map(holds_nothing, left)):
            # Remove files one by one, never recursively, because another process may be creating the table.
            for path in [*(status.getPath() for status in left), folder]:
                files.delete(path, False)

    def _progress_without_commits(self) -> RefreshProgress:
        """Return the progress for a table whose log no longer contains a refresh: the run reads everything again."""
        properties = self._table().detail().select("properties").first()
        kind = (properties[0] if properties else {}).get(_KIND_PROPERTY)
        if kind is None:
            raise UsageError(
                "this Delta table was not made by snapshot", path=self.path, advice="name a path that does not exist"
            )
        # The number of a refresh never exceeds the version of its commit.  Therefore, no refresh has used a number
        # above the table's version.
        return RefreshProgress(kind, "", self._commits(1)[0].version, {})

    def _commits(self, limit: int | None) -> list[Any]:
        table = self._table()
        history = table.history() if limit is None else table.history(limit)
        commits = history.select("version", "operation", "userMetadata", "operationMetrics").collect()
        return sorted(commits, key=lambda commit: int(commit.version), reverse=True)

    def _table(self) -> DeltaTable:
        from delta.tables import DeltaTable

        return DeltaTable.forPath(self._spark, self.path)

    def fill(self, rows: DataFrame, progress: RefreshProgress) -> None:
        with _commit_settings(self._spark, progress):
            rows.where("value is not null").write.format("delta").mode("append").save(self.path)

    def replace(self, rows: DataFrame, progress: RefreshProgress) -> None:
        with _commit_settings(self._spark, progress):
            rows.where("value is not null").write.format("delta").mode("overwrite").save(self.path)

    def merge(
        self,
        rows: DataFrame,
        stale: Column | None,
        partitions: Mapping[str, Sequence[int]],
        progress: RefreshProgress,
    ) -> None:
        """Replace the rows of the keys in `rows`; delete the other rows of the table for which `stale` is true.

        `rows` has only rows of `partitions`, which lists partition numbers by topic.
        """
        from pyspark.sql import functions as f

        # Delta skips a file if it has no row of a listed topic, or no row between the lowest and the highest listed
        # partition.
        same_key = (
            f.col("t.topic").isin(list(partitions))
            & f.col("t.partition").between(min(map(min, partitions.values())), max(map(max, partitions.values())))
            & (f.col("t.topic") == f.col("s.topic"))
            & (f.col("t.partition") == f.col("s.partition"))
            & (f.col("t.key") == f.col("s.key"))
        )
        is_tombstone = f.col("s.value").isNull()
        is_other = f.struct(*(f"t.{name}" for name in _NOT_KEY)) != f.struct(*(f"s.{name}" for name in _NOT_KEY))
        merge = (
            self._table()
            .alias("t")
            .merge(rows.alias("s"), same_key)
            .whenMatchedDelete(is_tombstone)
            .whenMatchedUpdateAll(is_other)
            .whenNotMatchedInsertAll(~is_tombstone)
        )
        if stale is not None:
            merge = merge.whenNotMatchedBySourceDelete(stale)
        with _commit_settings(self._spark, progress):
            merge.execute()

    def outcome(self, run_id: str) -> tuple[int, Mapping[str, str]] | None:
        for commit in self._commits(_LIKELY_COMMITS):
            progress = parse_progress(commit.userMetadata)
            if progress is not None:
                return (commit.version, commit.operationMetrics or {}) if progress.run_id == run_id else None
        return None


def _first_progress(commits: Sequence[Any]) -> RefreshProgress | None:
    is_restored = False
    for commit in commits:
        is_restored |= commit.operation == _RESTORE
        found = parse_progress(commit.userMetadata)
        if found is not None:
            # If the table was restored to an earlier version since, its rows are older than this progress.  Then the
            # progress has no partitions, so the run reads everything again; its number still counts, because Delta
            # never forgets a number.
            return replace(found, partitions={}) if is_restored else found
    return None


@contextmanager
def _commit_settings(spark: SparkSession, progress: RefreshProgress) -> Iterator[None]:
    settings = {
        **_WRITE_SETTINGS,
        _USER_METADATA: progress_json(progress),
        _TXN_APPLICATION: _APPLICATION,
        _TXN_VERSION: str(progress.sequence),
    }
    for key, value in settings.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key in settings:
            spark.conf.unset(key)


@contextmanager
def delta_failures(to: str) -> Iterator[None]:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (Py4JError, PySparkException) as error:
        raise SedimentError(
            f"the table cannot be read or written: {_root_cause(error)}",
            path=to,
            advice="run again: the next run continues from the last committed refresh",
        ) from error


def _root_cause(error: Exception) -> str:
    cause = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    while cause is not None and cause.getCause() is not None:
        cause = cause.getCause()
    said = None if cause is None else cause.getMessage() or cause.toString()
    return first_line(Exception(said) if said else error)

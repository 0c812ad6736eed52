"""Rows as Parquet files in a new directory, written by this process, or by Spark if there is much data."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from sediment.jobs.dumping.row_query import RowQuery
from sediment.jobs.process.standard_output import error_console
from sediment.jobs.spark.job_names import named_job, titled
from sediment.segment_io.errors import UsageError
from sediment.segment_io.format.names import SegmentFileKind, TopicPartition, new_run_id, segment_file_name
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.slices import Bounds
from sediment.segment_io.partition.sources import Source
from sediment.segment_io.tables.planning import UnreadableRange
from sediment.segment_io.tables.schema import TableRequest, arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

DIRECT_BYTES = 1 << 30  # up to this size, one process writes the Parquet files in less time than Spark needs to start


def write_parquet(
    query: RowQuery,
    to: Path,
    unreadable: list[UnreadableRange],
    *,
    master: str | None,
    quiet: bool,
    spark: SparkSession | None = None,
) -> None:
    if to.exists():
        raise UsageError("the output already exists", path=str(to), advice="name a directory that does not exist")
    is_asked = master is not None or spark is not None
    if query.is_whole and (is_asked or sum(task.size_bytes for task in query.tasks(Fs())) > DIRECT_BYTES):
        _write_with_spark(query, to, master, spark, quiet=quiet)
    else:
        _write_here(query.batches(Fs(), unreadable.append), arrow_schema(query.request.selected()), to)


def _write_here(batches: Iterator[pa.RecordBatch], schema: pa.Schema, to: Path) -> None:
    import pyarrow.parquet as pq

    to.mkdir(parents=True)
    part = to / "part-00000.parquet"
    try:
        with pq.ParquetWriter(part, schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
    except BaseException:
        Fs().unlink(part, missing_ok=True)
        with contextlib.suppress(OSError):
            to.rmdir()
        raise


def _write_with_spark(
    query: RowQuery, to: Path, master: str | None, given: SparkSession | None, *, quiet: bool
) -> None:
    from sediment.jobs.command_line.progress import stages_of
    from sediment.jobs.spark.session import create_session, require_spark

    require_spark()  # the import of the data source needs PySpark
    from sediment.jobs.data_source.options import FORMAT
    from sediment.jobs.datasource import register

    messages = error_console(quiet=quiet)
    try:
        with (
            create_session(master, "sediment dump", given) as spark,
            stages_of(spark.sparkContext, messages),
        ):
            register(spark)
            spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
            reader = spark.read.format(FORMAT)
            for name, value in _as_options(query.request).items():
                reader = reader.option(name, value)
            rows = reader.load([_path(source) for source in query.sources])
            with named_job(spark.sparkContext, new_run_id(), titled("dump", _partition)(query.sources)):
                rows.write.parquet(str(to))
    except BaseException:
        # Remove only the files of this run, because another process may have written to the directory at the same time.
        shutil.rmtree(to / "_temporary", ignore_errors=True)  # Spark may have removed it when it gave up the write
        with contextlib.suppress(OSError):
            to.rmdir()
        raise


def _partition(source: Source) -> TopicPartition:
    return source.partition


def _path(source: Source) -> str:
    if source.base_offset is None:
        return str(source.directory)
    return str(source.directory / (source.log_name or segment_file_name(source.base_offset, SegmentFileKind.LOG)))


def _as_options(request: TableRequest) -> dict[str, str]:
    bounds, everything = request.bounds, Bounds()

    def side(value: int, unbounded: int) -> str:
        return "" if value == unbounded else str(value)

    return {
        **({} if request.config is None else {"config": request.config}),
        **({} if request.replicas is None else {"replicas": request.replicas}),
        "what": request.what,
        "columns": ",".join(column.name for column in request.selected()),
        "isolation": request.isolation,
        "on_corruption": request.on_corruption,
        "offsets": f"{side(bounds.first_offset, everything.first_offset)}:"
        f"{side(bounds.end_offset, everything.end_offset)}",
        "timestamps_ms": f"{side(bounds.first_timestamp_ms, everything.first_timestamp_ms)}:"
        f"{side(bounds.end_timestamp_ms, everything.end_timestamp_ms)}",
    }

"""The latest rows of the planned logs, read in tasks, and the rows of the table that they make stale."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sediment.jobs.delta_lake.latest_per_key import (
    SPARK_SCHEMA,
    SUMMARY_TOPIC,
    LatestPerKey,
    PartitionPart,
    ReadSummary,
    allow_errors,
    parse_read_summary,
)
from sediment.jobs.reporting.run_report import FAILED
from sediment.jobs.snapshotting.planned_logs import PlannedLog, log_changed
from sediment.jobs.snapshotting.report import PartitionSnapshot
from sediment.jobs.spark.job_names import JobName, named_job, titled
from sediment.jobs.spark.live_slots import await_slots
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.packing import pack_by_weight, pack_in_order
from sediment.segment_io.tables.planning import ScanTask

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"

_SOURCE_CHANGED = "source-changed"
_PART_BYTES = 64 << 20
_SHUFFLED_BYTES = 64 << 20
_TASKS_PER_SLOT = 3


def stale_rows(planned: Sequence[PlannedLog]) -> Column | None:
    """Return the condition for rows that are deleted if no new row has their key; None if no row is deleted."""
    from pyspark.sql import functions as f

    rebuilt: dict[str, list[int]] = {}
    conditions = []
    for partition in planned:
        name = partition.log.partition
        if partition.refresh.rebuild is not None:
            rebuilt.setdefault(name.topic, []).append(name.partition)
        elif partition.refresh.drop_below_offset is not None:
            conditions.append(
                (f.col("t.topic") == name.topic)
                & (f.col("t.partition") == name.partition)
                & (f.col("t.offset") < partition.refresh.drop_below_offset)
            )
    conditions += [
        (f.col("t.topic") == topic) & f.col("t.partition").isin(numbers) for topic, numbers in rebuilt.items()
    ]
    stale = None
    for condition in conditions:
        stale = condition if stale is None else stale | condition
    return stale


@dataclass(frozen=True, slots=True)
class ReadLogs:
    """Rows and summaries of planned logs; `failed_parts` are all parts of the logs that could not be read."""

    rows: DataFrame
    summaries: tuple[tuple[ReadSummary, ...], ...]
    failed_parts: tuple[int, ...] = ()


def job_name(verb: str, planned: Sequence[PlannedLog]) -> JobName:
    return titled(verb, _partition)(planned)


def _partition(planned: PlannedLog) -> TopicPartition:
    return planned.log.partition


@contextmanager
def read_logs(spark: SparkSession, planned: Sequence[PlannedLog], *, group: str) -> Iterator[ReadLogs]:
    """Read the planned records, in a job of `group`; if a partition has an error, its rows are incomplete.

    Until the end of the context, the executors keep the rows, and Spark reads the rows of a lost executor again.
    """
    from py4j.protocol import Py4JError
    from pyspark.sql import functions as f

    sc = spark.sparkContext
    slots = await_slots(sc, group).to_plan_for
    parts: list[PartitionPart] = []
    owners: list[int] = []
    for owner, scan_tasks in _cut(planned, slots):
        parts.append(PartitionPart(len(parts), scan_tasks))
        owners.append(owner)
    tasks = pack_by_weight(parts, PartitionPart.size_bytes, slots * _TASKS_PER_SLOT)
    rows = spark.range(0, len(tasks), 1, max(len(tasks), 1)).mapInArrow(LatestPerKey(tasks), SPARK_SCHEMA).persist()
    try:
        allow_errors(sc, None)
        with named_job(sc, group, job_name("read", planned)):
            found = rows.where(f.col("topic") == SUMMARY_TOPIC).select("partition", "value").collect()
        summaries: list[list[ReadSummary]] = [[] for _ in planned]
        for row in found:
            summaries[owners[row.partition]].append(parse_read_summary(bytes(row.value)))
        failed = {owner for owner, each in enumerate(summaries) if any(summary.reason_code for summary in each)}
        failed_parts = tuple(part.number for part in parts if owners[part.number] in failed)
        allow_errors(sc, failed_parts)
        yield ReadLogs(rows, tuple(map(tuple, summaries)), failed_parts)
    finally:
        with suppress(Py4JError, OSError):  # a JVM that has ended keeps no rows
            rows.unpersist()
            allow_errors(sc, ())


def _cut(planned: Sequence[PlannedLog], slots: int) -> Iterator[tuple[int, tuple[ScanTask, ...]]]:
    """Yield (index of a partition, slices that one task reads together)."""
    total_bytes = sum(map(_size_bytes, planned))
    # The function makes few such groups, because a key can have a row in each group.
    part_bytes = max(total_bytes // slots, _PART_BYTES)
    for owner, partition in enumerate(planned):
        for scan_tasks in pack_in_order(partition.scan_tasks, lambda each: each.slice.size_bytes, part_bytes):
            yield owner, tuple(scan_tasks)


def _size_bytes(partition: PlannedLog) -> int:
    return sum(scan_task.slice.size_bytes for scan_task in partition.scan_tasks)


def latest_rows(read: ReadLogs, planned: Sequence[PlannedLog]) -> DataFrame:
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    # With speculation, two attempts of a task keep their rows, and only one of them has given its summaries.
    is_incomplete = (
        (f.col("topic") == SUMMARY_TOPIC)
        & ~f.col("partition").isin(list(read.failed_parts))
        & f.get_json_object(f.col("value").cast("string"), "$.reason_code").isNotNull()
    )
    refused = f.raise_error("one of two attempts of a task could not read the log")
    rows = read.rows.where(f.when(is_incomplete, refused).otherwise(_of_partitions(planned)))
    if all(sum(summary.emissions for summary in summaries) <= 1 for summaries in read.summaries):
        return rows
    newest = Window.partitionBy("topic", "partition", "key").orderBy(f.col("offset").desc())
    return rows.withColumn("rank", f.row_number().over(newest)).where("rank = 1").drop("rank")


def shuffle_by_size(spark: SparkSession, planned: Sequence[PlannedLog]) -> None:
    """Set the number of shuffle partitions according to the number of bytes to read, which Spark's default ignores."""
    size_bytes = sum(map(_size_bytes, planned))
    slots = await_slots(spark.sparkContext, "sediment snapshot").to_plan_for
    spark.conf.set(_SHUFFLE_PARTITIONS, str(max(slots, size_bytes // _SHUFFLED_BYTES)))


def numbers_by_topic(planned: Sequence[PlannedLog]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for partition in planned:
        topics.setdefault(partition.log.partition.topic, []).append(partition.log.partition.partition)
    return topics


def _of_partitions(planned: Sequence[PlannedLog]) -> Column:
    from pyspark.sql import functions as f

    chosen = f.lit(False)
    for topic, numbers in numbers_by_topic(planned).items():
        chosen = chosen | ((f.col("topic") == topic) & f.col("partition").isin(numbers))
    return chosen


def split_by_result(
    planned: Sequence[PlannedLog], summaries: Sequence[Sequence[ReadSummary]]
) -> tuple[list[PlannedLog], list[PartitionSnapshot]]:
    """Return the partitions that were read, and a report of each partition that could not be read.

    Raises:
        SourceChangedError: a log changed while it was read.
    """
    good, failed = [], []
    for partition, parts in zip(planned, summaries, strict=True):
        broken = next((summary for summary in parts if summary.reason_code is not None), None)
        if broken is None:
            good.append(partition)
        elif broken.reason_code == _SOURCE_CHANGED:
            raise log_changed(str(partition.log.partition), None)
        else:
            failed.append(partition.log.report(FAILED, broken.reason_code, broken.reason))
    return good, failed

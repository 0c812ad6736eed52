"""Archive: a Delta table with the records of segments that are about to be deleted, each record exactly once.

1. Measure: tasks count the records of each segment, and compute its digest.
2. Write: tasks write the records as Parquet files (topic=…/day=…/), in bounded memory.
3. Commit: the driver commits the files of many segments at once, with an application transaction for each segment.
4. Verify: the driver counts the rows of each segment in the table.

The rows are those of the `records` table of the kafka-log source, including aborted and control records.

Invariants
* A file is durable before its commit. A commit is durable before its segments are reported as archived.

Source: Delta transaction protocol, sections Add File and Transaction Identifiers.
"""

from __future__ import annotations

import operator
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, TypeVar

from sediment.engine.directory.lock import place_run_token, remove_run_token
from sediment.jobs.command_line.options import CommonOptions
from sediment.jobs.command_line.progress import Progress
from sediment.jobs.expiring.archive_table import ArchiveTable, WrittenFile
from sediment.jobs.expiring.archive_task import (
    Failure,
    LogKey,
    Measured,
    SegmentWork,
    WriteWork,
    count_archived,
    measure,
    of_counting,
    of_measuring,
    of_writing,
    write,
)
from sediment.jobs.process.cancellation import RunStopped, cancel_when
from sediment.jobs.reporting.error_text import describe_in_expire, describe_lost_task, first_line
from sediment.jobs.reporting.figures import counted
from sediment.jobs.reporting.statuses import STOPPED, STOPPED_BEFORE_DONE
from sediment.jobs.spark.job_names import JobName, titled
from sediment.jobs.spark.session import spark_context
from sediment.jobs.spark.task_figures import Figures
from sediment.jobs.spark.task_pool import run_on_executors
from sediment.segment_io.errors import SedimentError
from sediment.segment_io.format.layout import INT64_MAX
from sediment.segment_io.format.names import SegmentFileKind, TopicPartition, segment_file_name
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.slices import ALL, plan_slices
from sediment.segment_io.partition.sources import Source
from sediment.segment_io.tables.planning import ScanTask

Work = TypeVar("Work", SegmentWork, WriteWork)
Result = TypeVar("Result")

_TRANSACTIONS = "sediment-archive"
_GROUP_SEGMENTS = 256


def archive_segments(
    path: str,
    wanted: Mapping[LogKey, Sequence[int]],
    options: CommonOptions,
    run_id: str,
    stop: threading.Event,
) -> dict[LogKey, int | tuple[str, str]]:
    """Write the records of the `wanted` segments (base offsets by log) to the archive at `path`; then count the rows.

    The caller must hold the locks of the log directories.

    Returns:
        For each log, the number of archived records of its segments, or the reason code and text of a failure.  If a
        segment is not completely in the archive, its log counts as a failure.
    """
    fs = Fs()
    with ExitStack() as stack:
        for log_dir in {log_dir for log_dir, _ in wanted}:
            place_run_token(log_dir, run_id, fs)
            stack.callback(remove_run_token, log_dir)
        works = [work for key, bases in wanted.items() for work in _works(key, bases, run_id, fs)]
        total_bytes = sum(work.size_bytes for work in works)
        progress = stack.enter_context(Progress(options.messages(), len(works), total_bytes, phase="archiving"))
        try:
            with progress.starting_spark():
                sc = stack.enter_context(spark_context(options.master, "sediment expire"))
        except RunStopped:
            return dict.fromkeys(wanted, STOPPED_BEFORE_DONE)
        stack.enter_context(cancel_when(stop, sc, run_id))
        return _Archiving(sc, path, run_id, stop, progress).archive(works)


def _works(key: LogKey, bases: Sequence[int], run_id: str, fs: Fs) -> Iterator[SegmentWork]:
    log_dir, partition = key
    directory = log_dir / str(partition)
    for base in bases:
        entry = fs.entry(directory / segment_file_name(base, SegmentFileKind.LOG))
        yield SegmentWork(Source(partition, directory, base), entry.size_bytes if entry else 0, run_id)


class _Archiving:
    def __init__(self, sc: Any, path: str, run_id: str, stop: threading.Event, progress: Progress) -> None:
        self._sc = sc
        self._path = path
        self._run_id = run_id
        self._stop = stop
        self._progress = progress
        self._failed: dict[LogKey, tuple[str, str]] = {}
        self._totals: Counter[LogKey] = Counter()

    def archive(self, works: Sequence[SegmentWork]) -> dict[LogKey, int | tuple[str, str]]:
        keys = list(dict.fromkeys(work.key for work in works))
        try:
            table = ArchiveTable(self._path)
            for group in _groups(works):
                if self._stop.is_set():
                    self._fail({work.key for work in group}, *STOPPED_BEFORE_DONE)
                    continue
                self._archive_group(table, group)
        except Exception as error:
            if not isinstance(error, SedimentError | OSError):
                error = SedimentError(f"the archive cannot be written: {first_line(error)}", path=self._path)
            self._fail(set(keys) - self._totals.keys(), *describe_in_expire(error))
        return {key: self._failed.get(key, self._totals[key]) for key in keys}

    def _fail(self, keys: Iterable[LogKey], code: str, reason: str) -> None:
        for key in keys:
            self._failed.setdefault(key, (code, reason))

    def _archive_group(self, table: ArchiveTable, group: Sequence[SegmentWork]) -> None:
        measured = dict(self._done(group, measure, titled("measure", SegmentWork.partition), of_measuring))
        good = {work: found for work, found in measured.items() if work.key not in self._failed}
        # If a log exists twice, for example on two disks, only the first copy is archived.
        unknown = {_transaction(work, found): (work, found) for work, found in reversed(good.items())}
        new = dict(pair for name, pair in unknown.items() if not table.has(name))
        archived = self._count_archived(table, _changed(table, good))
        files = self._write(table, new, archived)
        ready = [work for work in new if work.key not in self._failed]
        if ready:
            added = [file for work in ready for file in files.get(work, ())]
            once = [_transaction(work, new[work]) for work in ready]
            # Delta refuses the later of two commits at once that share a transaction, as those of two replicas must.
            alone = {f"{_TRANSACTIONS}/{work.source.partition}" for work in ready}
            table.commit(added, [*once, *sorted(alone)], self._run_id)
        self._verify(table, {work: found for work, found in good.items() if work.key not in self._failed}, archived)
        for work in group:
            self._progress.advance(work.size_bytes)

    def _done(
        self,
        works: Sequence[Work],
        perform: Callable[[Work, str], Result | Failure],
        title: Callable[[Sequence[Work]], JobName],
        figures: Callable[[Work, Result | Failure], Figures],
    ) -> Iterator[tuple[Work, Result]]:
        """Yield what tasks found; the log of a work that failed fails."""
        for answers in run_on_executors(
            self._sc,
            works,
            perform,
            operator.methodcaller("weight"),
            group=self._run_id,
            is_stopped=self._stop.is_set,
            title=title,
            figures=figures,
        ):
            for answer in answers:
                if isinstance(answer.result, Failure):
                    self._fail([answer.item.key], answer.result.code, answer.result.reason)
                elif answer.result is None:
                    self._lost(answer.item.key, answer.error)
                else:
                    yield answer.item, answer.result

    def _lost(self, key: LogKey, error: Exception | None) -> None:
        if self._stop.is_set():
            self._fail([key], STOPPED, "the run was stopped before this partition was archived")
        else:
            self._fail([key], *describe_lost_task(error))

    def _count_archived(self, table: ArchiveTable, changed: Mapping[SegmentWork, Measured]) -> Counter[SegmentWork]:
        archived = Counter(dict.fromkeys(changed, 0))
        works = _slices(changed, table, archived)
        title = titled("compare with the archive", WriteWork.partition)
        for work, count in self._done(works, count_archived, title, of_counting):
            archived[work.segment] += count
        return archived

    def _write(
        self, table: ArchiveTable, new: Mapping[SegmentWork, Measured], archived: Mapping[SegmentWork, int]
    ) -> dict[SegmentWork, tuple[WrittenFile, ...]]:
        """Write the files of each segment; if a slice fails or rows are missing, the whole partition fails.

        `archived` has the number of records to leave out, of the segments that need a comparison with the table.
        """
        works = _slices(new, table, archived)
        files: dict[SegmentWork, tuple[WrittenFile, ...]] = {}
        for work, written in self._done(works, write, titled("archive", WriteWork.partition), of_writing):
            files[work.segment] = files.get(work.segment, ()) + written
        for segment, found in new.items():
            rows = sum(file.rows for file in files.get(segment, ())) + archived.get(segment, 0)
            if rows != found.records:
                self._fail([segment.key], *_short(segment, rows, found.records, "were read"))
        return files

    def _verify(
        self, table: ArchiveTable, good: Mapping[SegmentWork, Measured], archived: Mapping[SegmentWork, int]
    ) -> None:
        for key in dict.fromkeys(work.key for work in good):
            mine = {work: found for work, found in good.items() if work.key == key}
            counts = table.counts(key[1], [work.base_offset for work in mine])
            for work, found in mine.items():
                rows = counts[work.base_offset, found.digest]
                if rows < found.records:
                    rows += archived.get(work, 0)
                if rows != found.records:
                    self._fail([key], *_short(work, rows, found.records, f"are in the archive {table.path}"))
            if key not in self._failed:
                self._totals[key] = sum(found.records for found in mine.values())


def _slices(
    segments: Mapping[SegmentWork, Measured], table: ArchiveTable, compared: Mapping[SegmentWork, int]
) -> list[WriteWork]:
    fs = Fs()
    return [
        WriteWork(work, measured.digest, ScanTask(found, ALL), table.path, table.version if work in compared else None)
        for work, measured in segments.items()
        for found in plan_slices(work.source, ALL, fs)
    ]


def _changed(table: ArchiveTable, good: Mapping[SegmentWork, Measured]) -> dict[SegmentWork, Measured]:
    # If the segment has changed since an earlier commit (a broker appended to it or cleaned it), or another replica of
    # the log was archived, only those of its records are written that the table lacks. Two rows with the same offset,
    # timestamp, key and value are one record; a topic that was created again has other records.
    changed = {}
    for key in dict.fromkeys(work.key for work in good):
        works = sorted((work for work in good if work.key == key), key=lambda work: work.base_offset)
        digests = {good[work].digest for work in works}
        if table.digests(key[1], works[0].base_offset, INT64_MAX) <= digests:
            continue
        for work, end in zip(works, [*(work.base_offset for work in works[1:]), INT64_MAX], strict=True):
            if not table.digests(key[1], work.base_offset, end) <= {good[work].digest}:
                changed[work] = good[work]
    return changed


def _transaction(work: SegmentWork, found: Measured) -> str:
    # A segment is in the table exactly once and completely, or not at all. The name of its transaction is derived from
    # the content of the segment. Therefore, the next run after a killed run either finds the commit or makes it.
    return f"{_TRANSACTIONS}/{work.source.partition}/{work.base_offset}/{found.digest}"


def _short(work: SegmentWork, rows: int, records: int, where: str) -> tuple[str, str]:
    name = segment_file_name(work.base_offset, SegmentFileKind.LOG)
    return (
        "archive-incomplete",
        f"{name} of {work.source.partition} contains {counted(records, 'record')}, but {rows} {where}; nothing of the "
        "partition was deleted",
    )


def _groups(works: Sequence[SegmentWork]) -> Iterator[list[SegmentWork]]:
    """Yield groups of complete logs, of different partitions; a group ends after `_GROUP_SEGMENTS` segments."""
    group: list[SegmentWork] = []
    partitions: set[TopicPartition] = set()
    for index, work in enumerate(works):
        # Of two replicas, the second one is compared with the table that has the first one.
        is_full = len(group) >= _GROUP_SEGMENTS or work.source.partition in partitions
        if group and work.key != works[index - 1].key and is_full:
            yield group
            group, partitions = [], set()
        group.append(work)
        partitions.add(work.source.partition)
    if group:
        yield group

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

import json
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sediment.engine.directory.lock import check_run_token, place_run_token, remove_run_token
from sediment.jobs.command_line.options import CommonOptions
from sediment.jobs.command_line.progress import Progress
from sediment.jobs.delta_lake.paths import (
    check_table_path,
    is_uri,
    local_directory,
    outside_log_dirs,
    read_table_rows,
    table_filesystem,
)
from sediment.jobs.process.cancellation import RunStopped, cancel_when
from sediment.jobs.reporting.error_text import describe_in_expire, describe_lost_task, first_line
from sediment.jobs.reporting.figures import counted
from sediment.jobs.reporting.statuses import STOPPED
from sediment.jobs.spark.session import spark_context
from sediment.jobs.spark.task_pool import run_on_executors
from sediment.segment_io.errors import CorruptBatchError, SedimentError, UsageError
from sediment.segment_io.extras import install_command
from sediment.segment_io.format.layout import INT64_MAX
from sediment.segment_io.format.names import SegmentFileKind, TopicPartition, segment_file_name
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.slices import ALL, plan_slices
from sediment.segment_io.partition.sources import Source
from sediment.segment_io.tables.planning import ScanTask, TableTask
from sediment.segment_io.tables.readers import read_table
from sediment.segment_io.tables.schema import TABLES, TableRequest, arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

LogKey = tuple[Path, TopicPartition]

_PARTITION_COLUMNS = ("topic", "day")
_IDENTITY = ("offset", "timestamp", "key", "value")
_STATISTICS = ("partition", "offset", "segment")
_TRANSACTIONS = "sediment-archive"
_BUFFERED_BYTES = 64 << 20
_OPEN_FILES = 32
_GROUP_SEGMENTS = 256
_COMMIT_ATTEMPTS = 5
_CONSTRAINT = "delta.constraints."
_LAST_DAY = 2_932_896  # 9999-12-31, the last date with a year of four digits
_OTHER_PATH = "name another path for the archive"


# ------------------------------------------------------------------------------------------------------------- checking
def check(path: str, log_dirs: Iterable[Path]) -> None:
    """Check that `path`, a directory or a URI, can be an archive; a run calls this before it changes anything."""
    try:
        from deltalake import DeltaTable, Schema
        from deltalake.exceptions import DeltaError
    except ImportError as error:
        raise UsageError(
            "an archive needs the Python package deltalake, which is missing", advice=install_command("delta")
        ) from error
    outside_log_dirs(path, log_dirs)
    check_table_path(path)
    try:
        if not DeltaTable.is_deltatable(path):
            local = Path(path)
            if not is_uri(path) and local.exists() and not (local.is_dir() and not any(local.iterdir())):
                raise UsageError("this is not a Delta table", path=path, advice=_OTHER_PATH)
            return
        table = DeltaTable(path)
        fields = {field.name: field for field in table.schema().fields}
        partitions = tuple(table.metadata().partition_columns)
        settings = table.metadata().configuration
    except (DeltaError, OSError) as error:
        if (torn := _torn_commit(path)) is not None:
            raise UsageError(
                "the last commit file of the archive is incomplete, for example after a power failure",
                path=str(torn),
                advice="remove this file and run again; no segment of this commit was deleted",
            ) from error
        raise UsageError(f"the archive cannot be opened: {first_line(error)}", path=path, advice=_OTHER_PATH) from error
    ours = {field.name: field for field in Schema.from_arrow(_schema()).fields}
    if any(name not in fields or fields[name].type != ours[name].type for name in ours) or (
        partitions != _PARTITION_COLUMNS
    ):
        raise UsageError("this Delta table is not an archive of segments", path=path, advice=_OTHER_PATH)
    # The commit names files that are already written, so Delta would not compare their rows with these rules.
    required = [f"column {name} is NOT NULL" for name, field in fields.items() if not field.nullable]
    constraints = [f"constraint {name}" for name in settings if name.startswith(_CONSTRAINT)]
    if rules := [*required, *constraints]:
        raise UsageError(
            f"records would break a rule of this table: {rules[0].replace(_CONSTRAINT, '')}",
            path=path,
            advice="remove the rule, or name another path for the archive",
        )


def _torn_commit(path: str) -> Path | None:
    """Return the newest commit file of a local table if this file is incomplete; nothing depends on such a commit."""
    if is_uri(path):
        return None
    fs, log = Fs(), Path(path) / "_delta_log"
    commits = [log / entry.name for entry in fs.scan(log) if entry.name.endswith(".json")]
    if not commits:
        return None
    try:
        lines = [json.loads(line) for line in fs.read_bytes(commits[-1]).decode().splitlines()]
    except ValueError:
        return commits[-1]
    return None if lines else commits[-1]


def _schema() -> pa.Schema:
    import pyarrow as pa

    records = arrow_schema(TABLES["records"])
    return pa.schema([*records, ("segment", pa.int64()), ("digest", pa.string()), ("day", pa.date32())])


# ------------------------------------------------------------------------------------------------------------ measuring
@dataclass(frozen=True, slots=True)
class SegmentWork:
    """Segment to archive; the token of `run_id` lets a task check that it sees the driver's log directory."""

    source: Source
    size_bytes: int
    run_id: str

    def weight(self) -> int:
        return self.size_bytes

    @property
    def key(self) -> LogKey:
        return self.source.directory.parent, self.source.partition

    @property
    def base_offset(self) -> int:
        assert self.source.base_offset is not None
        return self.source.base_offset


@dataclass(frozen=True, slots=True)
class Failure:
    code: str
    reason: str


@dataclass(frozen=True, slots=True)
class Measured:
    """Number of records in a segment, and a digest of all its bytes, 32 hexadecimal digits."""

    records: int
    digest: str


def measure(work: SegmentWork, _attempt: str) -> Measured | Failure:
    """Count the records of a segment, in a task: from batch headers, or one by one for magic 0 and 1."""
    try:
        check_run_token(work.source.directory.parent, work.run_id)
        return _measure(work)
    except (SedimentError, OSError) as error:
        return Failure(*describe_in_expire(error))


def _measure(work: SegmentWork) -> Measured:
    import xxhash

    from sediment.segment_io.segment.reader import HeaderScan

    path = work.source.directory / segment_file_name(work.base_offset, SegmentFileKind.LOG)
    digest = xxhash.xxh3_128()
    scan = HeaderScan(path, size_bytes=work.size_bytes)
    records, has_old = 0, False
    for span in scan.spans():
        digest.update(span.buffer.data[span.start : span.end])
        records += int(span.rows["record_count"].sum())
        has_old = has_old or bool((span.rows["magic"] < 2).any())
    if scan.end_position < work.size_bytes:
        raise CorruptBatchError(
            "the segment ends inside a batch",
            partition=str(work.source.partition),
            path=str(path),
            position=scan.end_position,
            advice="run sediment recover, which truncates an incomplete batch after a crash",
        )
    if has_old:
        request = TableRequest(columns=("offset",))
        records = sum(batch.num_rows for batch in read_table(request, _task(work.source), Fs()))
    return Measured(records, digest.hexdigest())


def _task(source: Source) -> TableTask:
    return TableTask(scan_tasks=tuple(ScanTask(found, ALL) for found in plan_slices(source, ALL, Fs())))


# -------------------------------------------------------------------------------------------------------------- writing
@dataclass(frozen=True, slots=True)
class WriteWork:
    """With a `version`, records that this version of the table has from files with another digest are left out."""

    segment: SegmentWork
    digest: str
    scan_task: ScanTask
    table: str
    version: int | None = None

    def weight(self) -> int:
        return self.scan_task.slice.size_bytes


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """Parquet file at `path`, relative to the table; `day` is None for records without a timestamp.

    `lowest` and `highest` are the smallest and largest values by column, for the statistics of the commit.
    """

    path: str
    size_bytes: int
    topic: str
    day: str | None
    rows: int
    lowest: Mapping[str, int]
    highest: Mapping[str, int]


def write(work: WriteWork, attempt: str) -> tuple[WrittenFile, ...] | Failure:
    """Write the records of a slice, in a task; when the function returns, every file is durable."""
    try:
        check_run_token(work.segment.source.directory.parent, work.segment.run_id)
        archive = None if work.version is None else _opened(work)
        with _Files(work, attempt) as files:
            for batch in read_table(TableRequest(), TableTask(scan_tasks=(work.scan_task,)), Fs()):
                files.add(batch if archive is None else batch.filter(_lacking(work, archive, batch)))
        return tuple(files.written)
    except (SedimentError, OSError) as error:
        return Failure(*describe_in_expire(error))


def count_archived(work: WriteWork, _attempt: str) -> int | Failure:
    try:
        check_run_token(work.segment.source.directory.parent, work.segment.run_id)
        request = TableRequest(columns=_IDENTITY)
        archive = _opened(work)
        batches = read_table(request, TableTask(scan_tasks=(work.scan_task,)), Fs())
        archived: int = sum(batch.num_rows - _lacking(work, archive, batch).true_count for batch in batches)
        return archived
    except (SedimentError, OSError) as error:
        return Failure(*describe_in_expire(error))


def _opened(work: WriteWork) -> DeltaTable:
    from deltalake import DeltaTable

    return DeltaTable(work.table, version=work.version)


def _lacking(work: WriteWork, archive: DeltaTable, batch: pa.RecordBatch) -> pa.BooleanArray:
    """Return for each record of a batch whether `archive` has it from no file with another digest."""
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow.compute import field

    if not batch.num_rows:
        return pa.array([], pa.bool_())
    partition, offsets = work.segment.source.partition, pc.min_max(batch.column("offset")).as_py()
    wanted = (field("topic") == partition.topic) & (field("partition") == partition.partition)
    wanted &= (field("offset") >= offsets["min"]) & (field("offset") <= offsets["max"])
    columns = [*_IDENTITY, "topic", "partition", "digest"]
    known: set[tuple[object, ...]] = set()
    for rows in read_table_rows(archive, work.table, wanted, columns):
        known.update(_identities(rows.filter(pc.not_equal(rows.column("digest"), work.digest))))
    return pa.array([row not in known for row in _identities(batch)], pa.bool_())


def _identities(batch: pa.RecordBatch) -> Iterator[tuple[object, ...]]:
    """Yield what makes each record of a batch another one than those of the same log."""
    import pyarrow as pa
    import pyarrow.compute as pc

    columns = [batch.column(name) for name in _IDENTITY]
    columns[1] = pc.cast(pc.cast(columns[1], pa.timestamp("us")), pa.int64())
    return zip(*(column.to_pylist() for column in columns), strict=True)


class _Files:
    """Files of one slice, with one open file for each day; memory is bounded by `_BUFFERED_BYTES` and one batch."""

    def __init__(self, work: WriteWork, attempt: str) -> None:
        self.written: list[WrittenFile] = []
        self._work = work
        self._attempt = attempt
        self._topic = work.segment.source.partition.topic
        self._waiting: dict[str | None, list[pa.RecordBatch]] = {}
        self._waiting_bytes = 0
        self._open: dict[str | None, _DayFile] = {}

    def __enter__(self) -> _Files:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_rest: object) -> None:
        if kind is None:
            self._flush()
            self._close()
        else:
            for file in self._open.values():
                file.abandon()

    def add(self, batch: pa.RecordBatch) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        count = batch.num_rows
        columns = [batch.column(name) for name in batch.schema.names if name != "topic"]
        columns += [
            pa.repeat(pa.scalar(self._work.segment.base_offset, pa.int64()), count),
            pa.repeat(pa.scalar(self._work.digest), count),
        ]
        rows = pa.RecordBatch.from_arrays(columns, schema=_file_schema())
        numbers = pc.cast(pc.cast(batch.column("timestamp"), pa.timestamp("us")), pa.date32()).cast(pa.int32())
        numbers = pc.if_else(pc.and_(pc.greater_equal(numbers, 0), pc.less_equal(numbers, _LAST_DAY)), numbers, None)
        for number in numbers.unique().to_pylist():
            wanted = pc.is_null(numbers) if number is None else pc.equal(numbers, number)
            name = None if number is None else date.fromordinal(date(1970, 1, 1).toordinal() + number).isoformat()
            self._waiting.setdefault(name, []).append(rows.filter(wanted))
        self._waiting_bytes += rows.nbytes
        if self._waiting_bytes >= _BUFFERED_BYTES:
            self._flush()

    def _flush(self) -> None:
        import pyarrow as pa

        for day, batches in self._waiting.items():
            if day not in self._open:
                if len(self._open) >= _OPEN_FILES:
                    self._close()
                self._open[day] = _DayFile(self._work.table, self._topic, day, self._attempt)
            self._open[day].add(pa.Table.from_batches(batches))
        self._waiting = {}
        self._waiting_bytes = 0

    def _close(self) -> None:
        self.written += [file.finish() for file in self._open.values()]
        self._open = {}


class _DayFile:
    def __init__(self, table: str, topic: str, day: str | None, attempt: str) -> None:
        import pyarrow.parquet as pq

        self._table, self._topic, self._day = table, topic, day
        folder = f"topic={topic}/day={day or '__HIVE_DEFAULT_PARTITION__'}"
        # The name is unique to the task attempt, so a lost attempt cannot overwrite the file of the successful attempt.
        self.path = f"{folder}/part-{attempt}-{uuid.uuid4()}.parquet"
        if (local := local_directory(table)) is not None:
            (Path(local) / folder).mkdir(parents=True, exist_ok=True)
        self._sink = table_filesystem(table).open_output_stream(self.path)
        self._writer = pq.ParquetWriter(self._sink, _file_schema(), compression="zstd", use_dictionary=["digest"])
        self._rows = 0
        self._lowest: dict[str, int] = {}
        self._highest: dict[str, int] = {}

    def add(self, rows: pa.Table) -> None:
        import pyarrow.compute as pc

        self._writer.write_table(rows)
        self._rows += rows.num_rows
        for name in _STATISTICS:
            bounds = pc.min_max(rows.column(name)).as_py()
            self._lowest[name] = min(self._lowest.get(name, bounds["min"]), bounds["min"])
            self._highest[name] = max(self._highest.get(name, bounds["max"]), bounds["max"])

    def finish(self) -> WrittenFile:
        self._writer.close()
        self._sink.close()
        size_bytes = table_filesystem(self._table).get_file_info(self.path).size
        if (local := local_directory(self._table)) is not None:
            fs, file, top = Fs(), Path(local) / self.path, Path(local)
            fs.sync_file(file)
            for folder in file.parents:
                fs.sync_directory(folder)
                if folder == top:
                    break
        return WrittenFile(self.path, size_bytes, self._topic, self._day, self._rows, self._lowest, self._highest)

    def abandon(self) -> None:
        self._sink.close()


def _file_schema() -> pa.Schema:
    import pyarrow as pa

    return pa.schema([field for field in _schema() if field.name not in _PARTITION_COLUMNS])


# ------------------------------------------------------------------------------------------------------------ the table
class _Archive:
    def __init__(self, path: str) -> None:
        from deltalake import DeltaTable

        self.path = path if is_uri(path) else str(Path(path).absolute())
        self._table = DeltaTable.create(
            self.path, _schema(), mode="ignore", partition_by=list(_PARTITION_COLUMNS), name="sediment archive"
        )
        self._make_durable()

    def has(self, transaction: str) -> bool:
        return self._table.transaction_version(transaction) is not None

    def commit(self, files: Sequence[WrittenFile], transactions: Sequence[str], run_id: str) -> None:
        from deltalake import CommitProperties, Transaction
        from deltalake.exceptions import DeltaError

        once = CommitProperties(
            app_transactions=[Transaction(name, 1) for name in transactions],
            custom_metadata={"sediment.run_id": run_id},
            max_commit_retries=_COMMIT_ATTEMPTS,
        )
        try:
            # Tasks write Parquet files themselves, and the driver commits with the deltalake library.  Therefore,
            # values of any size go directly from the log to the table, no JARs are needed, and a single commit adds all
            # files.
            self._table.create_write_transaction(
                [_add_action(file) for file in files],
                "append",
                _schema(),
                list(_PARTITION_COLUMNS),
                commit_properties=once,
            )
            self._table.update_incremental()
        except (DeltaError, OSError) as error:
            raise SedimentError(
                f"the archive cannot be written: {first_line(error)}",
                path=self.path,
                advice="nothing was deleted; run again",
            ) from error
        self._make_durable()

    @property
    def version(self) -> int:
        return self._table.version()

    def counts(self, partition: TopicPartition, bases: Sequence[int]) -> Counter[tuple[int, str]]:
        import pyarrow as pa
        from pyarrow.compute import field

        found: Counter[tuple[int, str]] = Counter()
        within = (field("segment") >= min(bases)) & (field("segment") <= max(bases))
        wanted = (field("topic") == partition.topic) & (field("partition") == partition.partition) & within
        columns = ["topic", "partition", "segment", "digest"]
        for batch in read_table_rows(self._table, self.path, wanted, columns):
            grouped = pa.Table.from_batches([batch]).group_by(["segment", "digest"]).aggregate([([], "count_all")])
            for row in grouped.to_pylist():
                found[row["segment"], row["digest"]] += row["count_all"]
        return found

    def digests(self, partition: TopicPartition, start: int, end: int) -> set[str]:
        import pyarrow.compute as pc
        from pyarrow.compute import field

        wanted = (field("topic") == partition.topic) & (field("partition") == partition.partition)
        wanted &= (field("offset") >= start) & (field("offset") < end)
        columns = ["topic", "partition", "offset", "digest"]
        found: set[str] = set()
        for batch in read_table_rows(self._table, self.path, wanted, columns):
            found.update(pc.unique(batch.column("digest")).to_pylist())
        return found

    def _make_durable(self) -> None:
        """Sync the transaction log of a local table to disk, because the library does not."""
        local = local_directory(self.path)
        if local is None:
            return
        fs, log = Fs(), Path(local) / "_delta_log"
        newest = [entry.name for entry in fs.scan(log) if entry.name.endswith(".json")][-_COMMIT_ATTEMPTS:]
        for name in newest:
            fs.sync_file(log / name)
        for folder in (log, log.parent, log.parent.parent):
            fs.sync_directory(folder)


def _add_action(file: WrittenFile) -> Any:
    from deltalake.transaction import AddAction

    statistics = {
        "numRecords": file.rows,
        "minValues": dict(file.lowest),
        "maxValues": dict(file.highest),
        "nullCount": dict.fromkeys(file.lowest, 0),
    }
    now_ms = time.time_ns() // 1_000_000
    values = {"topic": file.topic, "day": file.day}
    return AddAction(file.path, file.size_bytes, values, now_ms, True, json.dumps(statistics))


# -------------------------------------------------------------------------------------------------------------- the run
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
            return dict.fromkeys(wanted, (STOPPED, "the run was stopped before this partition was done"))
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
            table = _Archive(self._path)
            for group in _groups(works):
                if self._stop.is_set():
                    self._fail(
                        {work.key for work in group}, STOPPED, "the run was stopped before this partition was done"
                    )
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

    def _archive_group(self, table: _Archive, group: Sequence[SegmentWork]) -> None:
        measured: dict[SegmentWork, Measured] = {}
        for answers in run_on_executors(
            self._sc, group, measure, SegmentWork.weight, group=self._run_id, is_stopped=self._stop.is_set
        ):
            for answer in answers:
                match answer.result:
                    case Measured() as found:
                        measured[answer.item] = found
                    case Failure(code, reason):
                        self._fail([answer.item.key], code, reason)
                    case None:
                        self._lost(answer.item.key, answer.error)
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

    def _lost(self, key: LogKey, error: Exception | None) -> None:
        if self._stop.is_set():
            self._fail([key], STOPPED, "the run was stopped before this partition was archived")
        else:
            self._fail([key], *describe_lost_task(error))

    def _count_archived(self, table: _Archive, changed: Mapping[SegmentWork, Measured]) -> Counter[SegmentWork]:
        archived = Counter(dict.fromkeys(changed, 0))
        works = _slices(changed, table, archived)
        if not works:
            return archived
        for answers in run_on_executors(
            self._sc, works, count_archived, WriteWork.weight, group=self._run_id, is_stopped=self._stop.is_set
        ):
            for answer in answers:
                segment = answer.item.segment
                match answer.result:
                    case int() as count:
                        archived[segment] += count
                    case Failure(code, reason):
                        self._fail([segment.key], code, reason)
                    case None:
                        self._lost(segment.key, answer.error)
        return archived

    def _write(
        self, table: _Archive, new: Mapping[SegmentWork, Measured], archived: Mapping[SegmentWork, int]
    ) -> dict[SegmentWork, tuple[WrittenFile, ...]]:
        """Write the files of each segment; if a slice fails or rows are missing, the whole partition fails.

        `archived` has the number of records to leave out, of the segments that need a comparison with the table.
        """
        works = _slices(new, table, archived)
        files: dict[SegmentWork, tuple[WrittenFile, ...]] = {}
        if not works:
            return files
        for answers in run_on_executors(
            self._sc, works, write, WriteWork.weight, group=self._run_id, is_stopped=self._stop.is_set
        ):
            for answer in answers:
                segment = answer.item.segment
                match answer.result:
                    case tuple() as written:
                        files[segment] = files.get(segment, ()) + written
                    case Failure(code, reason):
                        self._fail([segment.key], code, reason)
                    case None:
                        self._lost(segment.key, answer.error)
        for work, found in new.items():
            rows = sum(file.rows for file in files.get(work, ())) + archived.get(work, 0)
            if rows != found.records:
                self._fail([work.key], *_short(work, rows, found.records, "were read"))
        return files

    def _verify(
        self, table: _Archive, good: Mapping[SegmentWork, Measured], archived: Mapping[SegmentWork, int]
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
    segments: Mapping[SegmentWork, Measured], table: _Archive, compared: Mapping[SegmentWork, int]
) -> list[WriteWork]:
    fs = Fs()
    return [
        WriteWork(work, measured.digest, ScanTask(found, ALL), table.path, table.version if work in compared else None)
        for work, measured in segments.items()
        for found in plan_slices(work.source, ALL, fs)
    ]


def _changed(table: _Archive, good: Mapping[SegmentWork, Measured]) -> dict[SegmentWork, Measured]:
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

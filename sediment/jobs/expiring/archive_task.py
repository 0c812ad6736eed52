"""Tasks of an archive: they count the records of segments, and write them as Parquet files."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from sediment.engine.directory.lock import check_run_token
from sediment.jobs.delta_lake.paths import local_directory, read_table_rows, table_filesystem
from sediment.jobs.expiring.archive_table import PARTITION_COLUMNS, WrittenFile, archive_schema
from sediment.jobs.reporting.error_text import describe_in_expire
from sediment.jobs.spark.task_figures import Figures
from sediment.segment_io.errors import CorruptBatchError, SedimentError
from sediment.segment_io.format.names import SegmentFileKind, TopicPartition, segment_file_name
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.slices import ALL, plan_slices
from sediment.segment_io.partition.sources import Source
from sediment.segment_io.tables.planning import ScanTask, TableTask
from sediment.segment_io.tables.readers import read_table
from sediment.segment_io.tables.schema import TableRequest

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

LogKey = tuple[Path, TopicPartition]
_IDENTITY = ("offset", "timestamp", "key", "value")
_STATISTICS = ("partition", "offset", "segment")
_BUFFERED_BYTES = 64 << 20
_OPEN_FILES = 32
_LAST_DAY = 2_932_896  # 9999-12-31, the last date with a year of four digits


@dataclass(frozen=True, slots=True)
class SegmentWork:
    """Segment to archive; the token of `run_id` lets a task check that it sees the driver's log directory."""

    source: Source
    size_bytes: int
    run_id: str

    def weight(self) -> int:
        return self.size_bytes

    def partition(self) -> TopicPartition:
        return self.source.partition

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


def of_measuring(work: SegmentWork, result: Measured | Failure) -> Figures:
    if isinstance(result, Failure):
        return Figures()
    return Figures(bytes_read=work.size_bytes, records_read=result.records)


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

    def partition(self) -> TopicPartition:
        return self.segment.source.partition

    @property
    def key(self) -> LogKey:
        return self.segment.key


def of_writing(work: WriteWork, result: tuple[WrittenFile, ...] | Failure) -> Figures:
    if isinstance(result, Failure):
        return Figures()
    rows = sum(file.rows for file in result)
    written_bytes = sum(file.size_bytes for file in result)
    return Figures(bytes_read=work.weight(), bytes_written=written_bytes, records_read=rows, records_kept=rows)


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


def of_counting(work: WriteWork, result: int | Failure) -> Figures:
    return Figures() if isinstance(result, Failure) else Figures(bytes_read=work.weight())


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

    return pa.schema([field for field in archive_schema() if field.name not in PARTITION_COLUMNS])

"""`sediment recover LOG_DIR …`: load every partition as a broker's start would, repair it, and leave a clean directory.

    per partition     load_log (passes, recovery, snapshots, leader epochs)        threads, kernels without the lock
    per directory     recovery points and log starts · the marker of a clean stop  when its partitions are done

Invariants: a directory is marked as cleanly stopped only when it was so before or every log of it that a broker would
open was loaded without fault; recovery points are written only for logs that are durable up to them; whatever fails in
one partition leaves the others alone.
"""

from __future__ import annotations

if __name__ == "__main__":
    from sediment.jobs.command_line.early_signals import end_on_early_signals

    end_on_early_signals()  # before the imports that take time

import fnmatch
import json
import os
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import click
from rich import box
from rich.console import Console
from rich.table import Table

from sediment.engine.config import LogConfig
from sediment.engine.directory.dry_run_overlay import OverlayFs, overlay_of
from sediment.engine.directory.loader import LoadedLog, load_log
from sediment.engine.directory.lock import DirectoryLock
from sediment.jobs.command_line.options import CommonOptions, common_options
from sediment.jobs.command_line.progress import Progress
from sediment.jobs.command_line.stderr_log import log_partition
from sediment.jobs.reporting.error_text import describe
from sediment.jobs.reporting.run_report import FAILED, SCHEMA, human_bytes, print_failures
from sediment.jobs.settings.cluster_settings import check_patterns
from sediment.jobs.settings.directories import SelectedDirectory
from sediment.jobs.spark.cancellation import stop_on_signals
from sediment.segment_io.errors import LockLostError, SedimentError
from sediment.segment_io.format.checkpoints import format_offset_checkpoint
from sediment.segment_io.format.names import (
    CLEAN_SHUTDOWN_FILE,
    LOCK_FILE,
    LOG_START_FILE,
    RECOVERY_POINT_FILE,
    DirectoryState,
    TopicPartition,
    parse_segment_file,
)
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import read_offset_checkpoint
from sediment.segment_io.partition.log_dir import PartitionCheckpoints
from sediment.segment_io.partition.partition_directories import find_partitions

RECOVERED = "recovered"

_THREADS_KEY = "num.recovery.threads.per.data.dir"
_NOT_LOADED = frozenset({DirectoryState.DELETE, DirectoryState.STRAY})


# --------------------------------------------------------------------------------------------------------------- report
@dataclass(frozen=True, slots=True)
class SegmentReport:
    """A segment of a loaded log; `largest_timestamp` in ms."""

    base_offset: int
    bytes: int
    offset_index_entries: int
    time_index_entries: int
    next_offset: int
    largest_timestamp: int


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """One partition as a broker would have it after its start; offsets are None where it did not load.

    `producers` are (id, last sequence), `aborted` are (producer id, first, last, last stable offset); `damage` is what
    was found in parts that a broker trusts and was left alone.  `housekeeping` is what a broker does without a word at
    the start of a healthy log.  Every batch from `verified_from_offset` on was verified.

    Source: docs/reference/commands.md, JSON.
    """

    partition: str
    log_dir: str
    status: str
    reason_code: str | None = None
    reason: str | None = None
    log_start_offset: int | None = None
    log_end_offset: int | None = None
    high_watermark: int | None = None
    last_stable_offset: int | None = None
    first_unstable_offset: int | None = None
    recovery_point: int | None = None
    segments: tuple[SegmentReport, ...] = ()
    producers: tuple[tuple[int, int], ...] = ()
    aborted: tuple[tuple[int, int, int, int], ...] = ()
    repairs: tuple[str, ...] = ()
    housekeeping: tuple[str, ...] = ()
    damage: tuple[str, ...] = ()
    verified_from_offset: int | None = None


@dataclass(frozen=True, slots=True)
class RecoveryRun:
    """One run; `clean_directories` are those that a broker would now start on as cleanly stopped."""

    run_id: str
    command: str
    now_ms: int
    seconds: float
    dry_run: bool
    clean_directories: tuple[str, ...]
    partitions: tuple[RecoveryReport, ...]

    def failed(self) -> bool:
        """Whether the exit status is to be 1."""
        return any(partition.status == FAILED for partition in self.partitions)


def _report_of(name: str, log_dir: Path, log: LoadedLog) -> RecoveryReport:
    return RecoveryReport(
        partition=name,
        log_dir=str(log_dir),
        status=FAILED if log.damage else RECOVERED,
        reason_code="corrupt-batch" if log.damage else None,
        reason=_damage_sentence(log) if log.damage else None,
        log_start_offset=log.log_start_offset,
        log_end_offset=log.log_end_offset,
        high_watermark=log.high_watermark,
        last_stable_offset=log.last_stable_offset,
        first_unstable_offset=log.first_unstable_offset,
        recovery_point=log.recovery_point,
        segments=tuple(
            SegmentReport(
                segment.base_offset,
                segment.log_bytes,
                segment.offset_index_entries,
                segment.time_index_entries,
                segment.next_offset,
                segment.largest_timestamp_ms,
            )
            for segment in log.segments
        ),
        producers=tuple((key, entry.last_sequence) for key, entry in sorted(log.producers.entries.items())),
        aborted=tuple(
            (entry.producer_id, entry.first_offset, entry.last_offset, entry.last_stable_offset)
            for entry in log.aborted
        ),
        repairs=tuple(str(repair) for repair in log.repairs if not repair.is_routine),
        housekeeping=tuple(str(repair) for repair in log.repairs if repair.is_routine),
        damage=tuple(map(str, log.damage)),
        verified_from_offset=log.verified_from_offset,
    )


def _damage_sentence(log: LoadedLog) -> str:
    found = "; ".join(map(str, log.damage))
    return (
        f"{found}. A broker does not notice it, and cutting the log there would lose what follows, so it was left as "
        "it is; restore the segment from a replica or a backup"
    )


# ---------------------------------------------------------------------------------------------------------- a partition
@dataclass(frozen=True, slots=True)
class _Work:
    """A log to load: `name` is that of its directory, live or of a future replica."""

    name: str
    partition: TopicPartition
    state: DirectoryState
    directory: SelectedDirectory
    checkpoints: PartitionCheckpoints
    config: LogConfig
    log_bytes: int

    @property
    def path(self) -> Path:
        return self.directory.path / self.name


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What became of a piece of work; `log` is None where it could not be loaded."""

    work: _Work
    report: RecoveryReport
    log: LoadedLog | None


def _load(work: _Work, path: Path, fs: Fs, now_ms: int) -> LoadedLog:
    return load_log(
        work.partition,
        path,
        work.config,
        work.checkpoints,
        fs,
        now_ms=now_ms,
        verify_trusted=work.checkpoints.clean_shutdown,
        state=work.state,
    )


def _rehearse(work: _Work, now_ms: int) -> LoadedLog:
    """`_load` in a shadow of the partition; errors name the real files."""
    with overlay_of(work.path) as shadow:
        try:
            return _load(work, shadow, OverlayFs(), now_ms)
        except SedimentError as error:
            if error.path is not None:
                error.path = error.path.replace(str(shadow), str(work.path))
            raise
        except OSError as error:
            if error.filename is not None:
                error.filename = os.fsdecode(error.filename).replace(str(shadow), str(work.path))
            raise


def _recover(work: _Work, lock: DirectoryLock | None, stop: threading.Event, options: CommonOptions) -> _Outcome:
    """Load one log; its errors are part of the outcome."""

    def failed(code: str, reason: str) -> _Outcome:
        return _Outcome(work, RecoveryReport(work.name, str(work.directory.path), FAILED, code, reason), None)

    if stop.is_set():
        return failed("stopped", "the run was stopped before this partition")
    try:
        if lock is None:
            log = _rehearse(work, options.now_ms)
        else:
            lock.check()
            log = _load(work, work.path, Fs(), options.now_ms)
    except LockLostError:
        stop.set()
        raise
    except (SedimentError, OSError) as error:
        return failed(*describe(error))
    return _Outcome(work, _report_of(work.name, work.directory.path, log), log)


# ---------------------------------------------------------------------------------------------------------- a directory
def _open_directories(options: CommonOptions, fs: Fs) -> list[SelectedDirectory]:
    """`CommonOptions.open_directories`, where a `--partition` may select a future replica by its directory's name.

    Raises:
        UsageError: a pattern matches no log that would be loaded.
    """
    directories = replace(options, allow_empty_selection=True).open_directories(fs)
    if not options.allow_empty_selection:
        names = [name for directory in directories for name, _, _ in _logs(directory, fs)]
        check_patterns(options.partitions, names, where=", ".join(map(str, options.log_dirs)))
    return directories


def _logs(directory: SelectedDirectory, fs: Fs) -> list[tuple[str, TopicPartition, DirectoryState]]:
    """The logs of a directory that a broker would load, by the names of their directories."""
    names = [entry.name for entry in fs.scan(directory.path) if entry.is_directory]
    found = find_partitions(directory.path, names).items()
    return [(name, partition, state) for name, (partition, state) in found if state not in _NOT_LOADED]


def _works(directory: SelectedDirectory, options: CommonOptions, fs: Fs) -> tuple[list[_Work], bool]:
    """The selected logs of a directory, and whether they are all that a broker would go on writing to."""
    works = []
    is_whole = True
    for name, partition, state in _logs(directory, fs):
        if options.partitions and not any(fnmatch.fnmatchcase(name, glob) for glob in options.partitions):
            is_whole = False
            continue
        files = fs.scan(directory.path / name)
        works.append(
            _Work(
                name=name,
                partition=partition,
                state=state,
                directory=directory,
                checkpoints=directory.checkpoints.of(partition),
                config=directory.config_of(partition, fs, name=name),
                log_bytes=sum(file.size_bytes for file in files if parse_segment_file(file.name)),
            )
        )
    return works, is_whole


def _settle_directory(directory: SelectedDirectory, outcomes: Sequence[_Outcome], is_whole: bool, fs: Fs) -> bool:
    """Write what a broker writes when it stops; whether the directory now counts as cleanly stopped.

    Source: kafka-log 04 §14 step 3.
    """
    # Of a live log and a future replica of one partition the live log's offsets count: they are sorted last.
    loaded = {
        outcome.work.partition: outcome.log
        for outcome in sorted(outcomes, key=lambda outcome: outcome.work.state is DirectoryState.LIVE)
        if outcome.log is not None and not outcome.log.damage
    }
    like = directory.path / LOCK_FILE
    starts = {
        partition: log.log_start_offset
        for partition, log in loaded.items()
        if log.log_start_offset > log.segments[0].base_offset
    }
    _update(fs, directory.path / LOG_START_FILE, starts, loaded.keys() - starts.keys(), like)
    _update(fs, directory.path / RECOVERY_POINT_FILE, {p: log.log_end_offset for p, log in loaded.items()}, (), like)
    if directory.checkpoints.clean_shutdown:
        return True
    if not is_whole or len(loaded) < len(outcomes):
        return False
    # No broker epoch: a controller must not take a replica that lost its tail for one that stopped cleanly.
    fs.replace_file(directory.path / CLEAN_SHUTDOWN_FILE, b"", like=like)
    return True


def _update(
    fs: Fs,
    path: Path,
    offsets: Mapping[TopicPartition, int],
    gone: Sequence[TopicPartition] | set[TopicPartition],
    like: Path,
) -> None:
    """Set `offsets` in a checkpoint file and drop `gone`; other entries stay, and so does a file that fits."""
    before = read_offset_checkpoint(fs, path)
    after = {partition: offset for partition, offset in (before or {}).items() if partition not in gone} | dict(offsets)
    if after != before and (after or before is not None):
        fs.replace_file(path, format_offset_checkpoint(after), like=like)


# -------------------------------------------------------------------------------------------------------------- the run
def recover(
    options: CommonOptions, *, dry_run: bool = False, threads: int | None = None, stop: threading.Event | None = None
) -> RecoveryRun:
    """Load and repair the selected partitions of `options.log_dirs`, `threads` at a time in each directory.

    `stop`, once set, ends the run after the partitions that are under way; the others are reported as failed.

    Raises:
        UsageError: a directory or setting is wrong; nothing was touched.
        CorruptCheckpointError: a checkpoint file of a log directory is malformed; nothing was touched.
        DirectoryInUseError: a broker or another run holds a directory.
    """
    stop = stop or threading.Event()
    started = time.monotonic()
    run_id = uuid.uuid4().hex[:12]
    fs = Fs()
    directories = _open_directories(options, fs)
    reports: list[RecoveryReport] = []
    clean: list[str] = []
    with ExitStack() as stack:
        locks: dict[Path, DirectoryLock] = {}
        if not dry_run:
            for directory in directories:
                locks[directory.path] = stack.enter_context(DirectoryLock(directory.path))
            # What a broker wrote before it gave up the lock counts.
        directories = _open_directories(options, fs)
        per_directory = [(directory, *_works(directory, options, fs)) for directory in directories]
        works = [work for _, some, _ in per_directory for work in some]
        progress = stack.enter_context(Progress(options.messages(), len(works), sum(work.log_bytes for work in works)))
        per_thread = threads or max(map(_default_threads, directories), default=1)
        pool = stack.enter_context(ThreadPoolExecutor(per_thread * len(directories), "sediment-recover"))
        for directory, outcomes, is_whole in _outcomes(per_directory, pool, locks, stop, options, progress):
            reports += [outcome.report for outcome in outcomes]
            for outcome in outcomes:
                log_partition(run_id, "recover", outcome.report)
            lock = locks.get(directory.path)
            if lock is not None:
                lock.check()
                if _settle_directory(directory, outcomes, is_whole, fs):
                    clean.append(str(directory.path))
            elif directory.checkpoints.clean_shutdown:
                clean.append(str(directory.path))
    ordered = tuple(sorted(reports, key=lambda report: (report.log_dir, report.partition)))
    seconds = time.monotonic() - started
    return RecoveryRun(run_id, "recover", options.now_ms, seconds, dry_run, tuple(sorted(clean)), ordered)


def _default_threads(directory: SelectedDirectory) -> int:
    value = directory.settings.broker_value(_THREADS_KEY)
    assert isinstance(value, int)
    return value


def _outcomes(
    per_directory: Sequence[tuple[SelectedDirectory, list[_Work], bool]],
    pool: ThreadPoolExecutor,
    locks: Mapping[Path, DirectoryLock],
    stop: threading.Event,
    options: CommonOptions,
    progress: Progress,
) -> Iterator[tuple[SelectedDirectory, list[_Outcome], bool]]:
    """Each directory with the outcomes of its partitions, when the last of them is done; large ones begin first."""
    left = {directory.path: len(works) for directory, works, _ in per_directory}
    done: dict[Path, list[_Outcome]] = {path: [] for path in left}
    by_path = {directory.path: (directory, is_whole) for directory, _, is_whole in per_directory}
    for path in [path for path, count in left.items() if not count]:
        directory, is_whole = by_path[path]
        yield directory, [], is_whole
    works = sorted((work for _, some, _ in per_directory for work in some), key=lambda w: w.log_bytes, reverse=True)
    futures = [pool.submit(_recover, work, locks.get(work.directory.path), stop, options) for work in works]
    for future in as_completed(futures):
        outcome = future.result()
        path = outcome.work.directory.path
        progress.advance(outcome.work.log_bytes)
        done[path].append(outcome)
        left[path] -= 1
        if not left[path]:
            directory, is_whole = by_path[path]
            yield directory, done[path], is_whole


# ------------------------------------------------------------------------------------------------------------- the text
def run_json(run: RecoveryRun) -> str:
    """The one JSON object of `--json`."""
    return json.dumps({"schema": SCHEMA, **asdict(run), "seconds": round(run.seconds, 3)})


def print_run(run: RecoveryRun, console: Console) -> None:
    """The table for people, then what was repaired and what is wrong."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("partition", "status", "offsets", "segments", "bytes", "repairs"):
        table.add_column(column, justify="left" if column in ("partition", "status") else "right")
    for partition in run.partitions:
        has_offsets = partition.log_start_offset is not None
        table.add_row(
            partition.partition,
            partition.status,
            f"{partition.log_start_offset:,} … {partition.log_end_offset:,}" if has_offsets else "",
            str(len(partition.segments)) if has_offsets else "",
            human_bytes(sum(segment.bytes for segment in partition.segments)) if has_offsets else "",
            str(len(partition.repairs)),
        )
    console.print(table)
    for partition in run.partitions:
        for sentence in partition.repairs:
            would = "would be: " if run.dry_run else ""
            console.print(f"{partition.partition}: {would}{sentence}", soft_wrap=True, markup=False)
    print_failures(((p.partition, p.reason) for p in run.partitions if p.status == FAILED), console)
    console.print(_summary(run), soft_wrap=True, markup=False)


def _summary(run: RecoveryRun) -> str:
    failed = sum(partition.status == FAILED for partition in run.partitions)
    repairs = sum(len(partition.repairs) for partition in run.partitions)
    if repairs or failed:
        verb = "would be recovered" if run.dry_run else "recovered"
        counts = f"{len(run.partitions) - failed} {verb} with {repairs} repairs, {failed} failed"
    else:
        where = "" if all(map(_is_verified, run.partitions)) else " from their recovery points on"
        counts = f"{len(run.partitions)} checked{where}, nothing to repair"
    return f"{counts} in {run.seconds:.1f} s (run {run.run_id})"


def _is_verified(partition: RecoveryReport) -> bool:
    """True if every batch of a loaded partition was verified."""
    verified_from = partition.verified_from_offset
    return verified_from is not None and verified_from <= partition.segments[0].base_offset


@click.command("recover")
@common_options
@click.option("--dry-run", is_flag=True, help="Change nothing, report what would be repaired.")
@click.option(
    "--threads", type=click.IntRange(min=1), help=f"Partitions at a time in each directory (default: {_THREADS_KEY})."
)
def command(options: CommonOptions, dry_run: bool, threads: int | None) -> None:
    """Load every partition of LOG_DIR... as a broker's start would and repair it."""
    with stop_on_signals() as stop:
        run = recover(options, dry_run=dry_run, threads=threads, stop=stop)
    options.conclude(run, run_json, print_run)


if __name__ == "__main__":
    command()

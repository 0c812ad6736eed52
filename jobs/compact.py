"""`sediment compact LOG_DIR …`: lock, list, finish what was interrupted, spread the cleaning, commit, account.

    driver    lock · list · finish_interrupted            commit (one group at a time, ascending) · checkpoint · report
    tasks                                       view · plan · clean

Invariants: only the driver renames; a partition is committed as a whole task result, its checkpoint after its last
group; whatever fails in one partition leaves that partition as it was and the others go on.
"""

from __future__ import annotations

import errno
import signal
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from sediment.compaction.config import CompactionConfig
from sediment.compaction.handoff import PreparedSwap
from sediment.engine.lock import DirectoryLock, check_run_token, place_run_token, remove_run_token
from sediment.engine.swap import commit, discard_parts, finish_interrupted
from sediment.jobs.directories import LogDirectory, open_directory
from sediment.jobs.options import EXIT_DONE, EXIT_FAILED, CommonOptions, common_options
from sediment.jobs.progress import Progress
from sediment.jobs.report import COMPACTED, FAILED, SKIPPED, PartitionReport, RunReport, print_report, report_json
from sediment.jobs.session import spark_context
from sediment.jobs.spread import Answer, spread
from sediment.segment_io.checkpoints import update_offset_checkpoint
from sediment.segment_io.errors import NoSpaceError, SedimentError, SourceChangedError
from sediment.segment_io.format import INT64_MAX
from sediment.segment_io.fs import Fs, PretendingFs
from sediment.segment_io.listing import LogListing, list_log
from sediment.segment_io.log_dir import PartitionCheckpoints
from sediment.segment_io.names import CLEANER_FILE, TopicPartition

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_STOP_POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class CompactOptions:
    """What `compact` itself takes (commands.md)."""

    force: bool
    dry_run: bool
    from_start: bool


@dataclass(frozen=True, slots=True)
class CleaningTask:
    """One partition's work, as it goes to an executor."""

    listing: LogListing
    checkpoints: PartitionCheckpoints
    config: CompactionConfig
    options: CompactOptions
    now_ms: int
    run_id: str

    def weight(self) -> int:
        """Bytes of log: what tasks are packed by."""
        return self.listing.log_bytes()


@dataclass(frozen=True, slots=True)
class CleaningResult:
    """What a task found and prepared: a `swap` to commit, or the `reason` why there is none.

    `failed` tells an error from a partition that simply has nothing to do; `reset_checkpoint` is a first dirty offset
    that replaces an impossible one even where nothing was cleaned.
    """

    swap: PreparedSwap | None
    first_dirty_offset: int | None
    first_uncleanable_offset: int | None
    reset_checkpoint: int | None
    reason_code: str | None
    reason: str | None
    failed: bool


# ------------------------------------------------------------------------------------------------------------ in a task
def clean_partition(task: CleaningTask, attempt: str) -> CleaningResult:
    """View, plan and clean one partition; errors of this partition are part of the result."""
    try:
        return _clean_partition(task, attempt)
    except SedimentError as error:
        return _failure(type(error).__name__, str(error))
    except OSError as error:
        return _failure(
            "NoSpaceError" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "OSError", _os_sentence(error)
        )


def _failure(code: str, reason: str) -> CleaningResult:
    return CleaningResult(None, None, None, None, _reason_code(code), reason, failed=True)


def _reason_code(error_name: str) -> str:
    """`CorruptBatchError` -> `corrupt-batch`."""
    words = "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in error_name.removesuffix("Error"))
    return words.lstrip("-") if error_name != "OSError" else "io-error"


def _os_sentence(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk is full ({error.filename}); free some space and run again, nothing was changed"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"no permission for {error.filename}; run as the broker's user or as root"
    return f"{error.strerror} ({error.filename})"


def _clean_partition(task: CleaningTask, attempt: str) -> CleaningResult:
    # The driver needs none of these: kernels are loaded where they run.
    from sediment.compaction.cleaner import clean_log
    from sediment.compaction.grouping import plan_cleaning
    from sediment.compaction.policy import cleanable_range, explain
    from sediment.segment_io.view import open_view

    options, config, now_ms = task.options, task.config, task.now_ms
    fs = PretendingFs() if options.dry_run else Fs()
    listing = list_log(task.listing.partition, task.listing.path, fs)
    if not options.dry_run:
        check_run_token(listing.path.parent, task.run_id)
    if listing.segments != task.listing.segments:
        raise SourceChangedError(
            "the segments are not those that the driver listed",
            partition=str(listing.partition),
            path=str(listing.path),
            advice="another disk is mounted under this path, or another process writes to it",
        )
    view = open_view(
        listing,
        task.checkpoints,
        fs,
        now_ms=now_ms,
        producer_id_expiration_ms=config.producer_id_expiration_ms,
        first_batch_timestamps=config.max_compaction_lag_ms < INT64_MAX,
    )
    cleanable = cleanable_range(view, config, now_ms=now_ms, force=options.force, from_start=options.from_start)
    found = partial(
        CleaningResult,
        first_dirty_offset=cleanable.first_dirty_offset,
        first_uncleanable_offset=cleanable.first_uncleanable_offset,
        reset_checkpoint=cleanable.force_checkpoint,
    )
    if cleanable.blocked_by is not None:
        return found(
            swap=None, reason_code=cleanable.blocked_by.value, reason=explain(cleanable, view, config), failed=False
        )
    plan = plan_cleaning(view, cleanable, config, now_ms=now_ms)
    _check_headroom(plan, fs)
    try:
        swap = clean_log(plan, fs, run_id=task.run_id, attempt=attempt)
    except BaseException:
        if not options.dry_run:
            discard_parts(listing.path, task.run_id, fs, attempt=attempt)
        raise
    return found(swap=swap, reason_code=None, reason=None, failed=False)


def _check_headroom(plan: Any, fs: Fs) -> None:
    """Room for the largest group, which is what Kafka's cleaner needs; more is met, and undone, when it runs out."""
    listing = plan.view.listing
    needed = max((sum(segment.log_bytes for segment in group.segments) for group in plan.groups), default=0)
    free = fs.free_bytes(listing.path)
    if free < needed:
        raise NoSpaceError(
            f"the disk has {free} bytes free and cleaning needs up to {needed}",
            partition=str(listing.partition),
            path=str(listing.path),
            advice="free some space and run again, nothing was changed",
        )


# -------------------------------------------------------------------------------------------------------- on the driver
def compact(options: CommonOptions, own: CompactOptions, stop: threading.Event | None = None) -> RunReport:
    """Compact the selected partitions of `options.log_dirs`, with Spark if there is anything to clean.

    `stop`, once set, ends the run after the group being committed; what was not done is reported as failed.

    Raises:
        UsageError: a directory or setting is wrong; nothing was touched.
        DirectoryInUseError: a broker or another run holds a directory.
    """
    stop = stop or threading.Event()
    started = time.monotonic()
    run_id = uuid.uuid4().hex[:12]
    fs = Fs()
    directories = [open_directory(path, options.partitions, fs) for path in options.log_dirs]
    topics = {partition.topic for directory in directories for partition in directory.partitions}
    options.settings.check_selection(topics, have_metadata=False)
    with ExitStack() as stack:
        if not own.dry_run:
            for directory in directories:
                lock = stack.enter_context(DirectoryLock(directory.path))
                lock.check()
                place_run_token(directory.path, run_id)
                stack.callback(remove_run_token, directory.path)
        reports: list[PartitionReport] = []
        tasks: list[CleaningTask] = []
        for directory in directories:
            for prepared in _prepare(directory, options, own, run_id, fs):
                if isinstance(prepared, CleaningTask):
                    tasks.append(prepared)
                else:
                    reports.append(prepared)
        if tasks:
            reports.extend(_clean_and_commit(tasks, options, own, run_id, fs, stop))
    ordered = tuple(sorted(reports, key=lambda report: (report.log_dir, report.partition)))
    return RunReport(run_id, "compact", options.now_ms, time.monotonic() - started, own.dry_run, ordered)


def _clean_and_commit(
    tasks: Sequence[CleaningTask],
    options: CommonOptions,
    own: CompactOptions,
    run_id: str,
    fs: Fs,
    stop: threading.Event,
) -> list[PartitionReport]:
    reports = []
    with ExitStack() as stack:
        progress = stack.enter_context(
            Progress(options.messages(), len(tasks), sum(task.listing.log_bytes() for task in tasks))
        )
        sc = stack.enter_context(spark_context(options.master, "sediment compact"))
        stack.enter_context(_cancel_when(stop, sc, run_id))
        for answers in _batches(spread(sc, tasks, clean_partition, CleaningTask.weight, group=run_id)):
            for report in _commit_all(answers, own, fs, stop):
                reports.append(report)
                progress.advance(report.bytes_before)
    if not own.dry_run:
        for task in tasks:
            discard_parts(task.listing.path, run_id, fs)
    return reports


def _prepare(
    directory: LogDirectory, options: CommonOptions, own: CompactOptions, run_id: str, fs: Fs
) -> Iterator[CleaningTask | PartitionReport]:
    """A task for each partition that is to be compacted, a report for each that is not."""
    for partition in directory.partitions:
        path = directory.path / str(partition)
        try:
            config = options.settings.for_topic(partition.topic)
            if not config.compacts:
                listing = list_log(partition, path, fs)
                policy = ",".join(config.cleanup_policy) or "empty"
                yield _report(listing, SKIPPED, "not-compacted", f"cleanup.policy is {policy}")
                continue
            if not own.dry_run:
                finish_interrupted(path, fs)
            listing = list_log(partition, path, fs)
            yield CleaningTask(
                listing, directory.checkpoints.of(partition), config.compaction, own, options.now_ms, run_id
            )
        except (SedimentError, OSError) as error:
            sentence = _os_sentence(error) if isinstance(error, OSError) else str(error)
            yield PartitionReport(
                str(partition), str(directory.path), FAILED, _reason_code(type(error).__name__), sentence
            )


def _report(listing: LogListing, status: str, code: str | None, reason: str | None) -> PartitionReport:
    size_bytes = listing.log_bytes()
    return PartitionReport(
        partition=str(listing.partition),
        log_dir=str(listing.path.parent),
        status=status,
        reason_code=code,
        reason=reason,
        bytes_before=size_bytes,
        bytes_after=size_bytes,
        segments_before=len(listing.segments),
        segments=tuple(segment.base_offset for segment in listing.segments),
    )


def _batches(
    answers: Iterator[Answer[CleaningTask, CleaningResult]],
) -> Iterator[list[Answer[CleaningTask, CleaningResult]]]:
    """Answers one by one, a list each: a checkpoint file is written once for all that are committed together."""
    for answer in answers:
        yield [answer]


def _commit_all(
    answers: Sequence[Answer[CleaningTask, CleaningResult]], own: CompactOptions, fs: Fs, stop: threading.Event
) -> list[PartitionReport]:
    """Commit what the tasks prepared, then write each directory's checkpoint once."""
    reports = []
    checkpoints: dict[Path, dict[TopicPartition, int]] = {}
    for answer in answers:
        task = answer.work
        result = answer.result or _failure("TaskLostError", f"Spark gave up on the task: {answer.error}".split("\n")[0])
        report = _settle(task, result, own, fs, stop)
        reports.append(report)
        if report.status == COMPACTED and result.swap is not None:
            offset: int | None = result.swap.next_dirty_offset
        else:
            offset = None if result.failed else result.reset_checkpoint
        if offset is not None and not own.dry_run:
            checkpoints.setdefault(task.listing.path.parent, {})[task.listing.partition] = offset
    for directory, offsets in checkpoints.items():
        update_offset_checkpoint(fs, directory / CLEANER_FILE, offsets)
    return reports


def _settle(
    task: CleaningTask, result: CleaningResult, own: CompactOptions, fs: Fs, stop: threading.Event
) -> PartitionReport:
    listing = task.listing
    report = replace(
        _report(listing, FAILED if result.failed else SKIPPED, result.reason_code, result.reason),
        first_dirty_offset=result.first_dirty_offset,
        first_uncleanable_offset=result.first_uncleanable_offset,
    )
    swap = result.swap
    if swap is None:
        return report
    if stop.is_set():
        return replace(report, status=FAILED, reason_code="stopped", reason="the run was stopped before this partition")
    if not own.dry_run:
        try:
            finished = commit(swap, fs, should_stop=stop.is_set)
        except (SedimentError, OSError) as error:
            sentence = _os_sentence(error) if isinstance(error, OSError) else str(error)
            return replace(report, status=FAILED, reason_code=_reason_code(type(error).__name__), reason=sentence)
        if not finished:
            return replace(report, status=FAILED, reason_code="stopped", reason="the run was stopped in this partition")
    return _compacted(report, listing, swap)


def _compacted(report: PartitionReport, listing: LogListing, swap: PreparedSwap) -> PartitionReport:
    replaced = {segment.base_offset for group in swap.groups if group.parts for segment in group.sources}
    kept = [segment for segment in listing.segments if segment.base_offset not in replaced]
    made = [(part.base_offset, part.files[0].size_bytes) for group in swap.groups for part in group.parts]
    return replace(
        report,
        status=COMPACTED,
        strategy="whole",
        next_dirty_offset=swap.next_dirty_offset,
        messages_read=sum(group.stats.messages_read for group in swap.groups),
        messages_written=sum(group.stats.messages_written for group in swap.groups),
        bytes_after=sum(segment.log_bytes for segment in kept) + sum(size for _, size in made),
        segments=tuple(sorted([segment.base_offset for segment in kept] + [base for base, _ in made])),
        groups_rewritten=sum(bool(group.parts) for group in swap.groups),
        groups_skipped=sum(not group.parts for group in swap.groups),
        corrupt_batches=sum(group.stats.corrupt_batches for group in swap.groups),
    )


@contextmanager
def _cancel_when(stop: threading.Event, sc: Any, group: str) -> Iterator[None]:
    """Cancel the run's Spark jobs as soon as `stop` is set."""
    over = threading.Event()

    def watch() -> None:
        while not over.is_set():
            if stop.wait(_STOP_POLL_SECONDS) and not over.is_set():
                sc.cancelJobGroup(group)
                return

    # Not joined: it ends by itself, and a short run would wait for it.
    threading.Thread(target=watch, name="sediment-stop", daemon=True).start()
    try:
        yield
    finally:
        over.set()


@contextmanager
def stop_on_signals() -> Iterator[threading.Event]:
    """An event that SIGINT and SIGTERM set; a second signal ends the process as usual."""
    stop = threading.Event()
    before = {number: signal.getsignal(number) for number in _SIGNALS}

    def request(number: int, _frame: Any) -> None:
        stop.set()
        signal.signal(number, before[signal.Signals(number)] or signal.SIG_DFL)

    for number in _SIGNALS:
        signal.signal(number, request)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)


@click.command("compact")
@common_options
@click.option("--force", is_flag=True, help="Ignore the dirty ratio; an empty dirty range still changes nothing.")
@click.option("--dry-run", is_flag=True, help="Clean in memory, write nothing, report what would be.")
@click.option("--from-start", is_flag=True, help="Ignore the cleaner checkpoint: everything is dirty.")
def command(options: CommonOptions, force: bool, dry_run: bool, from_start: bool) -> None:
    """Compact the partitions of LOG_DIR... whose cleanup.policy has compact."""
    own = CompactOptions(force=force, dry_run=dry_run, from_start=from_start)
    with stop_on_signals() as stop:
        report = compact(options, own, stop)
    if options.as_json:
        click.echo(report_json(report))
    else:
        from rich.console import Console

        print_report(report, Console())
    raise SystemExit(EXIT_FAILED if report.failed() else EXIT_DONE)


if __name__ == "__main__":
    # Tasks are pickled by the name of their module, which `__main__` is not on an executor.
    from sediment.jobs.compact import command as importable

    importable()

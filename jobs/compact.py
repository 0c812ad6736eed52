"""`sediment compact LOG_DIR …`: lock, list, finish what was interrupted, spread the cleaning, commit, account.

    driver    lock · list · finish_interrupted            commit (one group at a time, ascending) · checkpoint · report
    tasks                                       view · plan · clean

Invariants: only the driver renames; a partition is committed as a whole task result, its checkpoint after its last
group; whatever fails in one partition leaves that partition as it was and the others go on.
"""

from __future__ import annotations

import signal
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
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
from sediment.jobs import ledger
from sediment.jobs.directories import LogDirectory, open_directory
from sediment.jobs.options import EXIT_DONE, EXIT_FAILED, CommonOptions, common_options
from sediment.jobs.progress import Progress
from sediment.jobs.report import COMPACTED, FAILED, SKIPPED, PartitionReport, RunReport, print_report, report_json
from sediment.jobs.sentences import told
from sediment.jobs.session import spark_context
from sediment.jobs.spread import Answer, spread
from sediment.segment_io.checkpoints import update_offset_checkpoint
from sediment.segment_io.errors import NoSpaceError, SedimentError, SourceChangedError
from sediment.segment_io.format import INT64_MAX
from sediment.segment_io.fs import Buffer, Fs, PretendingFs
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
class _RunFs(Fs):
    """Writes only as long as the run's token is there: a task that outlives its run leaves nothing behind."""

    def __init__(self, log_dir: Path, run_id: str) -> None:
        self._log_dir = log_dir
        self._run_id = run_id

    def write_new(self, path: Path, chunks: Iterable[Buffer]) -> int:
        check_run_token(self._log_dir, self._run_id)
        return super().write_new(path, chunks)


def clean_partition(task: CleaningTask, attempt: str) -> CleaningResult:
    """View, plan and clean one partition; errors of this partition are part of the result."""
    try:
        return _clean_partition(task, attempt)
    except (SedimentError, OSError) as error:
        return _failure(*told(error))


def _failure(code: str, reason: str) -> CleaningResult:
    return CleaningResult(None, None, None, None, code, reason, failed=True)


def _clean_partition(task: CleaningTask, attempt: str) -> CleaningResult:
    # The driver needs none of these: kernels are loaded where they run.
    from sediment.compaction.cleaner import clean_log
    from sediment.compaction.grouping import plan_cleaning
    from sediment.compaction.policy import cleanable_range, explain
    from sediment.segment_io.view import open_view

    options, config, now_ms = task.options, task.config, task.now_ms
    fs = PretendingFs() if options.dry_run else _RunFs(task.listing.path.parent, task.run_id)
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
    if options.dry_run and list_log(listing.partition, listing.path, fs).segments[:-1] != listing.segments[:-1]:
        raise SourceChangedError(
            "the segments changed while they were read",
            partition=str(listing.partition),
            path=str(listing.path),
            advice="stop the broker or work on a copy; a dry run takes no lock",
        )
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
    started = time.monotonic()
    with ExitStack() as stack:
        run = _Run(options, own, stop or threading.Event(), stack)
        reports = run.perform()
    ordered = tuple(sorted(reports, key=lambda report: (report.log_dir, report.partition)))
    return RunReport(run.run_id, "compact", options.now_ms, time.monotonic() - started, own.dry_run, ordered)


class _Run:
    """One run of the command on the driver; the stack ends what it holds: locks, tokens, Spark."""

    def __init__(self, options: CommonOptions, own: CompactOptions, stop: threading.Event, stack: ExitStack) -> None:
        self.run_id = uuid.uuid4().hex[:12]
        self._options = options
        self._own = own
        self._stop = stop
        self._stack = stack
        self._fs = Fs()
        self._locks: dict[Path, DirectoryLock] = {}

    def perform(self) -> list[PartitionReport]:
        """Lock, list, clean, commit; a report for every selected partition."""
        reports: list[PartitionReport] = []
        tasks: list[CleaningTask] = []
        for directory in self._open_directories():
            for prepared in self._prepare(directory):
                if isinstance(prepared, CleaningTask):
                    tasks.append(prepared)
                else:
                    reports.append(prepared)
        if tasks:
            reports.extend(self._clean_and_commit(tasks))
        return reports

    def _open_directories(self) -> list[LogDirectory]:
        """Check that every directory is one before any of them is touched; read them once they are ours."""
        options = self._options
        for path in options.log_dirs:
            open_directory(path, options.partitions, self._fs)
        if not self._own.dry_run:
            for path in options.log_dirs:
                self._locks[path] = self._stack.enter_context(DirectoryLock(path))
                place_run_token(path, self.run_id)
                self._stack.callback(remove_run_token, path)
        directories = [open_directory(path, options.partitions, self._fs) for path in options.log_dirs]
        topics = {partition.topic for directory in directories for partition in directory.partitions}
        options.settings.check_selection(topics, have_metadata=False)
        return directories

    def _prepare(self, directory: LogDirectory) -> Iterator[CleaningTask | PartitionReport]:
        """A task for each partition that is to be compacted, a report for each that is not."""
        for partition in directory.partitions:
            try:
                yield self._prepare_partition(directory, partition)
            except (SedimentError, OSError) as error:
                code, sentence = told(error)
                yield PartitionReport(str(partition), str(directory.path), FAILED, code, sentence)

    def _prepare_partition(self, directory: LogDirectory, partition: TopicPartition) -> CleaningTask | PartitionReport:
        path = directory.path / str(partition)
        config = self._options.settings.for_topic(partition.topic)
        listing = list_log(partition, path, self._fs)
        if not config.compacts:
            policy = ",".join(config.cleanup_policy) or "empty"
            return _report(listing, SKIPPED, "not-compacted", f"cleanup.policy is {policy}")
        if listing.leftovers and self._own.dry_run:
            return _report(
                listing,
                SKIPPED,
                "interrupted",
                "an earlier run or broker was interrupted here; a run without --dry-run finishes that first",
            )
        if not self._own.dry_run and finish_interrupted(path, self._fs):
            listing = list_log(partition, path, self._fs)
        checkpoints = directory.checkpoints.of(partition)
        return CleaningTask(listing, checkpoints, config.compaction, self._own, self._options.now_ms, self.run_id)

    def _clean_and_commit(self, tasks: Sequence[CleaningTask]) -> list[PartitionReport]:
        reports = []
        total_bytes = sum(task.weight() for task in tasks)
        progress = self._stack.enter_context(Progress(self._options.messages(), len(tasks), total_bytes))
        sc = self._stack.enter_context(spark_context(self._options.master, "sediment compact"))
        self._stack.enter_context(_cancel_when(self._stop, sc, self.run_id))
        for answers in spread(sc, tasks, clean_partition, CleaningTask.weight, group=self.run_id):
            for report in self._settle_all(answers):
                reports.append(report)
                progress.advance(report.bytes_before)
        if not self._own.dry_run:
            # The tokens first: an attempt that lost, frozen on a host that has not noticed, may still want to write.
            for path in self._locks:
                remove_run_token(path)
            for task in tasks:
                discard_parts(task.listing.path, self.run_id, self._fs)
        return reports

    def _settle_all(self, answers: Sequence[Answer[CleaningTask, CleaningResult]]) -> list[PartitionReport]:
        """Commit what a task prepared, then write each directory's checkpoint once."""
        reports = []
        checkpoints: dict[Path, dict[TopicPartition, int]] = {}
        for answer in answers:
            result = answer.result or _task_lost(answer.error)
            report, offset = self._settle(answer.work, result)
            reports.append(report)
            if offset is not None and not self._own.dry_run:
                checkpoints.setdefault(answer.work.listing.path.parent, {})[answer.work.listing.partition] = offset
        for directory, offsets in checkpoints.items():
            try:
                update_offset_checkpoint(self._fs, directory / CLEANER_FILE, offsets)
            except (SedimentError, OSError) as error:
                late = f"its segments are clean, but the checkpoint was not written: {told(error)[1]}"
                reports = [
                    replace(report, status=FAILED, reason_code="checkpoint-not-written", reason=late)
                    if report.log_dir == str(directory) and report.partition in map(str, offsets)
                    else report
                    for report in reports
                ]
        return reports

    def _settle(self, task: CleaningTask, result: CleaningResult) -> tuple[PartitionReport, int | None]:
        """Commit one partition: its report, and what its checkpoint is to become."""
        report = replace(
            _report(task.listing, FAILED if result.failed else SKIPPED, result.reason_code, result.reason),
            first_dirty_offset=result.first_dirty_offset,
            first_uncleanable_offset=result.first_uncleanable_offset,
        )
        swap = result.swap
        if swap is None:
            return report, None if result.failed else result.reset_checkpoint
        if not self._own.dry_run:
            where = "before this partition"
            try:
                finished = not self._stop.is_set()
                if finished:
                    lock = self._locks[task.listing.path.parent]
                    finished = commit(swap, self._fs, before_group=lock.check, should_stop=self._stop.is_set)
                    where = "in this partition"
            except (SedimentError, OSError) as error:
                code, sentence = told(error)
                return replace(report, status=FAILED, reason_code=code, reason=sentence), None
            if not finished:
                return replace(
                    report, status=FAILED, reason_code="stopped", reason=f"the run was stopped {where}"
                ), None
        return _compacted(report, task.listing, swap), swap.next_dirty_offset


def _task_lost(error: Exception | None) -> CleaningResult:
    sentence = str(error).strip().split("\n")[0] if error else "no reason given"
    return _failure("task-lost", f"Spark gave up on the task: {sentence}")


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
@ledger.ledger_option
def command(options: CommonOptions, force: bool, dry_run: bool, from_start: bool, ledger_path: str | None) -> None:
    """Compact the partitions of LOG_DIR... whose cleanup.policy has compact."""
    own = CompactOptions(force=force, dry_run=dry_run, from_start=from_start)
    if ledger_path is not None:
        ledger.check(ledger_path, options.log_dirs)
    with stop_on_signals() as stop:
        report = compact(options, own, stop)
    if ledger_path is not None:
        ledger.record(report_json(report), ledger_path, options.messages())
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

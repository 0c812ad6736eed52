"""`sediment expire LOG_DIR …`: lock, list, finish what was interrupted, decide, archive, delete, account.

    per partition     list · finish_interrupted · view · plan                       threads, a few small reads each
    archive           records of doomed segments -> Delta, counted                  Spark, only with --archive
    catalogue         planned, with --keep-originals
    per group         originals linked · roll · log starts moved · segments deleted · log starts settled
    catalogue         done

Invariants: nothing is deleted before the log start offset above it is durable, nor with --archive before the table was
seen to hold every record of it, nor with --keep-originals before its files have durable links and are in the catalogue;
log start entries are left as a broker leaves them, only where a log starts inside its first segment; whatever fails in
one partition leaves the others alone; a run that asks changes nothing before the answer, and then deletes exactly the
segments that it showed.
"""

from __future__ import annotations

if __name__ == "__main__":
    from sediment.jobs.command_line.early_signals import end_on_early_signals

    end_on_early_signals()  # before the imports that take time

import errno
import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich import box
from rich.console import Console
from rich.table import Table

from sediment.engine.config import LogConfig
from sediment.engine.directory.backup_catalogue import OriginalPartition, partition_before
from sediment.engine.directory.backup_links import BackupLinks, check_originals_path
from sediment.engine.directory.delete_segments import (
    expire_log,
    expired_files,
    roll_empty,
    rolled_files,
    segments_after,
    settle_epochs,
)
from sediment.engine.directory.lock import DirectoryLock
from sediment.engine.directory.swap import finish_interrupted
from sediment.jobs.cleaning.backup_links import catalogue_of_run, end_originals
from sediment.jobs.command_line.confirmation import ask_on_terminal, may_ask
from sediment.jobs.command_line.options import CommonOptions, common_options
from sediment.jobs.command_line.progress import Progress
from sediment.jobs.command_line.standard_output import error_console
from sediment.jobs.delta_lake.paths import outside_log_dirs
from sediment.jobs.reporting.error_text import describe
from sediment.jobs.reporting.run_report import (
    FAILED,
    SCHEMA,
    SKIPPED,
    counted,
    human_bytes,
    print_failures,
    skipped_lines,
)
from sediment.jobs.settings.directories import SelectedDirectory, check_filesystem
from sediment.jobs.settings.resolve import Settings
from sediment.jobs.settings.running_brokers import warn_of_running
from sediment.jobs.settings.unstated_settings import why_not_expired
from sediment.jobs.spark.cancellation import stop_on_signals
from sediment.retention.policy import KeepReason, RetentionPlan, explain_retention, plan_view
from sediment.segment_io.errors import (
    CorruptCheckpointError,
    DeclinedError,
    SedimentError,
    SettingsError,
    SourceChangedError,
)
from sediment.segment_io.format.names import LEADER_EPOCH_FILE, LOCK_FILE, LOG_START_FILE, TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import read_leader_epochs, update_offset_checkpoint
from sediment.segment_io.partition.listing import LogListing, list_log
from sediment.segment_io.partition.log_dir import PartitionCheckpoints, read_checkpoints

if TYPE_CHECKING:
    from sediment.segment_io.partition.log_view import LogView

EXPIRED = "expired"
NOTHING_TO_DELETE = "nothing-to-delete"

_LOCAL_KEYS = ("local.retention.ms", "local.retention.bytes")
_NO_ROOM = "the disk was full, so that the active segment stays for the next run: an empty one has to be made first"
_STOPPED = ("stopped", "the run was stopped before this partition")
_THREADS = 8
_GROUP_PARTITIONS = 64
"""Partitions whose log starts are moved, and settled, by one write of the checkpoint file."""


# --------------------------------------------------------------------------------------------------------------- report
@dataclass(frozen=True, slots=True)
class DeletedSegment:
    """A segment that went, or would go: its `.log` bytes and the rule that let it go."""

    base_offset: int
    bytes: int
    rule: str


@dataclass(frozen=True, slots=True)
class ExpiryReport:
    """One partition.  Offsets and `segments`, by base offset, are those afterwards; None where not known.

    `messages_archived` are the records of the deleted segments that the archive was seen to hold; None without one.
    """

    partition: str
    log_dir: str
    status: str
    reason_code: str | None = None
    reason: str | None = None
    log_start_offset: int | None = None
    high_watermark: int | None = None
    log_end_offset: int | None = None
    bytes_before: int = 0
    bytes_after: int = 0
    segments_before: int = 0
    segments: tuple[int, ...] = ()
    deleted_segments: tuple[DeletedSegment, ...] = ()
    messages_archived: int | None = None


@dataclass(frozen=True, slots=True)
class ExpiryRun:
    """One run; `archive` is the Delta table that holds the records of deleted segments, None without one.

    `originals` is the directory of --keep-originals, `catalogue` the file in it that says what this run kept; None: it
    kept nothing.
    """

    run_id: str
    command: str
    now_ms: int
    seconds: float
    dry_run: bool
    archive: str | None
    partitions: tuple[ExpiryReport, ...]
    originals: str | None = None
    catalogue: str | None = None

    def failed(self) -> bool:
        """Whether the exit status is to be 1."""
        return any(partition.status == FAILED for partition in self.partitions)


def run_json(run: ExpiryRun) -> str:
    """The one JSON object of `--json`."""
    return json.dumps({"schema": SCHEMA, **asdict(run), "seconds": round(run.seconds, 3)})


def print_run(run: ExpiryRun, console: Console) -> None:
    """The table for people."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("partition", overflow="fold")
    table.add_column("status", overflow="fold")
    for column in ("log start", "segments", "bytes"):
        table.add_column(column, justify="right")
    for partition in run.partitions:
        status = f"{partition.status}: {partition.reason_code}" if partition.reason_code else partition.status
        gone = partition.status == EXPIRED
        table.add_row(
            partition.partition,
            status,
            "" if partition.log_start_offset is None else f"{partition.log_start_offset:,}",
            f"{partition.segments_before} → {len(partition.segments)}" if gone else str(partition.segments_before),
            f"{human_bytes(partition.bytes_before)} → {human_bytes(partition.bytes_after)}"
            if gone
            else human_bytes(partition.bytes_before),
        )
    console.print(table)
    print_failures(((p.partition, p.reason) for p in run.partitions if p.status == FAILED), console)
    for line in (_summary(run), *skipped_lines(run.partitions, short=(NOTHING_TO_DELETE,))):
        console.print(line, soft_wrap=True, markup=False, highlight=False)


def _summary(run: ExpiryRun) -> str:
    counts = {
        status: sum(partition.status == status for partition in run.partitions) for status in (EXPIRED, SKIPPED, FAILED)
    }
    done = ", ".join(f"{count} {status}" for status, count in counts.items() if count) or "no partitions"
    expired = [partition for partition in run.partitions if partition.status == EXPIRED]
    freed = sum(partition.bytes_before - partition.bytes_after for partition in expired)
    segments = sum(len(partition.deleted_segments) for partition in expired)
    verb = "would go" if run.dry_run else "went"
    size = f"; {segments} segments with {human_bytes(freed)} {verb}" if expired else ""
    archived = sum(partition.messages_archived or 0 for partition in run.partitions)
    kept = f", {archived:,} records are in {run.archive}" if run.archive and not run.dry_run and archived else ""
    if run.originals and expired:
        kept += f", the files would be kept in {run.originals}" if run.dry_run else ""
        kept += f", the files are in {run.originals}" if run.catalogue else ""
    return f"{done}{size}{kept} in {run.seconds:.1f} s (run {run.run_id})"


# ---------------------------------------------------------------------------------------------------------- a partition
@dataclass(frozen=True, slots=True)
class ExpiryTask:
    """A partition of which segments go: what its files say, what is to happen, and the report once it has.

    With `keep_deleted` the files stay under their `.deleted` names for the next start to remove.  `files` are the names
    of those that go, known once they are in the catalogue of originals.
    """

    view: LogView
    plan: RetentionPlan
    report: ExpiryReport
    keep_deleted: bool
    checkpoints: PartitionCheckpoints
    files: tuple[str, ...] = ()

    @property
    def partition(self) -> TopicPartition:
        """Whose segments they are."""
        return self.view.listing.partition

    @property
    def log_dir(self) -> Path:
        """The log directory."""
        return self.view.listing.path.parent


def _listed(listing: LogListing, status: str, code: str | None, reason: str | None) -> ExpiryReport:
    return ExpiryReport(
        str(listing.partition),
        str(listing.path.parent),
        status,
        code,
        reason,
        bytes_before=listing.log_bytes(),
        bytes_after=listing.log_bytes(),
        segments_before=len(listing.segments),
        segments=tuple(segment.base_offset for segment in listing.segments),
    )


# -------------------------------------------------------------------------------------------------------------- the run
def expire(
    options: CommonOptions,
    *,
    dry_run: bool = False,
    archive: str | None = None,
    keep_originals: Path | None = None,
    allow_network_fs: bool = False,
    confirm: Callable[[ExpiryRun], bool] | None = None,
    stop: threading.Event | None = None,
    fs: Fs | None = None,
) -> ExpiryRun:
    """Delete the segments of the selected partitions of `options.log_dirs` that retention lets go.

    `archive` is the path or URI of a Delta table that first gets their records; `keep_originals` is a directory on the
    same filesystem that first gets links to their files.  `confirm` is asked once, if anything is to go, with the run
    as a dry run would report it.  `stop`, once set, ends the run after the partitions that are under way; the others
    are reported as failed.

    Raises:
        UsageError: a directory or setting is wrong, or the archive or the directory of originals cannot be one; nothing
            was touched.
        DeclinedError: `confirm` returned False; nothing was changed.
        SourceChangedError: a partition changed while `confirm` waited; nothing was deleted.
        CorruptCheckpointError: a checkpoint file of a log directory is malformed; nothing was touched.
        DirectoryInUseError: a broker or another run holds a directory.
    """
    if not dry_run:
        for path in options.log_dirs:
            check_filesystem(path, allow_network=allow_network_fs)
    with ExitStack() as stack:
        run = _Run(options, dry_run, archive, stop or threading.Event(), stack, fs or Fs(), keep_originals, confirm)
        return run.result(run.perform())


class _Run:
    """One run of the command; the stack ends what it holds."""

    def __init__(
        self,
        options: CommonOptions,
        dry_run: bool,
        archive: str | None,
        stop: threading.Event,
        stack: ExitStack,
        fs: Fs,
        keep_originals: Path | None = None,
        confirm: Callable[[ExpiryRun], bool] | None = None,
    ) -> None:
        self.run_id = uuid.uuid4().hex[:12]
        self._options = options
        self._dry_run = dry_run
        self._archive = archive
        self._stop = stop
        self._stack = stack
        self._fs = fs
        self._locks: dict[Path, DirectoryLock] = {}
        self._keep_originals = keep_originals
        self._confirm = None if dry_run else confirm
        self._only_looks = dry_run or confirm is not None
        self._catalogue: Path | None = None
        self._started = time.monotonic()

    def perform(self) -> list[ExpiryReport]:
        """Lock, decide, ask, archive, keep, delete; a report for every selected partition."""
        if self._archive is not None:
            from sediment.jobs.delta_lake import archive

            archive.check(self._archive, self._options.log_dirs)
        directories = self._open_directories()
        reports: list[ExpiryReport] = []
        doomed: list[ExpiryTask] = []
        for found in self._prepare_all(directories):
            if isinstance(found, ExpiryTask):
                doomed.append(found)
            else:
                reports.append(found)
        if self._dry_run:
            return reports + [each.report for each in doomed]
        if self._confirm is not None and doomed:
            self._ask(self._confirm, reports, doomed)
        if self._archive is not None and doomed:
            doomed, unarchived = self._archived(self._archive, doomed)
            reports += unarchived
        originals: BackupLinks | None = None
        if self._keep_originals is not None and doomed:
            originals, doomed, unlisted = self._begin_originals(self._keep_originals, doomed)
            reports += unlisted
        reports += self._delete_all(doomed, originals)
        if originals is not None:
            self._catalogue = end_originals(originals, reports)
        self._drop_redundant_starts(directories, reports)
        return reports

    def result(self, reports: Sequence[ExpiryReport], *, dry_run: bool | None = None) -> ExpiryRun:
        """Return the run with `reports`, in order, as it stands now."""
        return ExpiryRun(
            run_id=self.run_id,
            command="expire",
            now_ms=self._options.now_ms,
            seconds=time.monotonic() - self._started,
            dry_run=self._dry_run if dry_run is None else dry_run,
            archive=self._archive,
            partitions=tuple(sorted(reports, key=lambda report: (report.log_dir, report.partition))),
            originals=None if self._keep_originals is None else str(self._keep_originals),
            catalogue=None if self._catalogue is None else str(self._catalogue),
        )

    def _open_directories(self) -> list[SelectedDirectory]:
        """Check every directory and the selection before anything is touched; read them again under their locks."""
        options = self._options
        directories = options.open_directories(self._fs, in_place=not self._dry_run)
        if self._keep_originals is not None:
            outside_log_dirs(str(self._keep_originals), options.log_dirs)
        if not self._dry_run:
            for path in options.log_dirs:
                if self._keep_originals is not None:
                    check_originals_path(self._keep_originals, path, self._fs)
                self._locks[path] = self._stack.enter_context(DirectoryLock(path))
            directories = options.open_directories(self._fs, in_place=True)
        else:
            warn_of_running(directories)
        for directory in directories:
            for topic in sorted({partition.topic for partition in directory.partitions}):
                self._check_local_keys(directory.settings, topic)
        return directories

    def _check_local_keys(self, settings: Settings, topic: str) -> None:
        given = [name for name in _LOCAL_KEYS if settings.origin(topic, name) == "--set"]
        if given and settings.for_topic(topic).retention.is_tiered:
            raise SettingsError(
                f"{given[0]} in --set is for topic {topic}, which is tiered: which of its segments remote storage "
                "holds only its broker knows",
                advice="leave it to the broker, or set remote.log.copy.disable=true",
            )

    # ----------------------------------------------------------------------------------------------------------- decide
    def _prepare_all(self, directories: Sequence[SelectedDirectory]) -> Iterator[ExpiryTask | ExpiryReport]:
        pairs = [(directory, partition) for directory in directories for partition in directory.partitions]
        with ThreadPoolExecutor(_THREADS, "sediment-expire") as pool:
            yield from pool.map(lambda pair: self._prepare(*pair), pairs)

    def _prepare(self, directory: SelectedDirectory, partition: TopicPartition) -> ExpiryTask | ExpiryReport:
        """What is to happen to a partition, or the report of one to which nothing does."""
        failed = partial(ExpiryReport, str(partition), str(directory.path), FAILED)
        if self._stop.is_set():
            return failed(*_STOPPED)
        try:
            return self._decide(directory, partition)
        except (SedimentError, OSError) as error:
            return failed(*describe(error))

    def _decide(self, directory: SelectedDirectory, partition: TopicPartition) -> ExpiryTask | ExpiryReport:
        # It loads compiled loops, which a wrong command line need not wait for.
        from sediment.segment_io.partition.log_view import open_view

        path = directory.path / str(partition)
        settings = directory.settings_of(partition, self._fs)
        listing = list_log(partition, path, self._fs)
        if self._only_looks and listing.is_replacement_open():
            other = "without --dry-run" if self._dry_run else "with --yes"
            return _listed(
                listing,
                SKIPPED,
                "interrupted",
                f"an earlier run or broker was interrupted here; a run {other} finishes that first",
            )
        if not self._only_looks and finish_interrupted(path, self._fs):
            listing = list_log(partition, path, self._fs)
        config = settings.for_topic(partition.topic)
        if skipped := why_not_expired(partition, directory.checkpoints.of(partition), settings, config):
            return _listed(listing, SKIPPED, *skipped)
        view = open_view(
            listing,
            directory.checkpoints.of(partition),
            self._fs,
            now_ms=self._options.now_ms,
            producer_id_expiration_ms=config.compaction.producer_id_expiration_ms,
        )
        asked = settings.origin(partition.topic, "file.delete.delay.ms") != "default"
        checkpoints = directory.checkpoints.of(partition)
        _check_log_start(view, checkpoints)
        read_leader_epochs(self._fs, path / LEADER_EPOCH_FILE)  # a malformed file fails it before the log start moves
        found = self._planned(view, config, checkpoints, keep_deleted=asked and config.file_delete_delay_ms > 0)
        if isinstance(found, ExpiryReport) and not self._only_looks:
            # What fails here is left to the next run.
            with suppress(SedimentError, OSError):
                settle_epochs(view, self._fs)
        return found

    def _planned(
        self, view: LogView, config: LogConfig, checkpoints: PartitionCheckpoints, *, keep_deleted: bool
    ) -> ExpiryTask | ExpiryReport:
        plan = plan_view(view, config.retention, now_ms=self._options.now_ms)
        report = replace(
            _listed(view.listing, EXPIRED, None, None),
            log_start_offset=plan.log_start_offset,
            high_watermark=view.high_watermark,
            log_end_offset=view.log_end_offset,
        )
        if not plan.deleted:
            first = plan.fates[0] if plan.fates else None
            why = (
                f"segment {first.segment.base_offset} stays: {explain_retention(first, config.retention)}"
                if first
                else None
            )
            return replace(
                report, status=SKIPPED, reason_code=NOTHING_TO_DELETE, reason=why or "the log has no segment"
            )
        return ExpiryTask(view, plan, _carried_out(report, view, plan), keep_deleted, checkpoints)

    # -------------------------------------------------------------------------------------------------------------- ask
    def _ask(
        self, confirm: Callable[[ExpiryRun], bool], reports: Sequence[ExpiryReport], doomed: Sequence[ExpiryTask]
    ) -> None:
        """Show what is to go and go on only if that is wanted, and if the files are still those that were shown."""
        shown = self.result([*reports, *(each.report for each in doomed)], dry_run=True)
        if not confirm(shown):
            raise DeclinedError("nothing was deleted", advice="answer y, or give --yes, to delete")
        checkpoints = {}
        for log_dir in dict.fromkeys(each.log_dir for each in doomed):
            self._locks[log_dir].check()
            checkpoints[log_dir] = read_checkpoints(log_dir, self._fs)
        for each in doomed:
            path, partition = each.view.listing.path, each.partition
            now = list_log(partition, path, self._fs)
            if (
                (now.segments, now.snapshots) != (each.view.listing.segments, each.view.listing.snapshots)
                or now.is_replacement_open()
                or checkpoints[each.log_dir].of(partition) != each.checkpoints
            ):
                raise SourceChangedError(
                    "the partition changed while the question was open, and nothing was deleted",
                    partition=str(partition),
                    path=str(path),
                    advice="run again",
                )
            finish_interrupted(path, self._fs)

    # ---------------------------------------------------------------------------------------------------------- archive
    def _archived(self, path: str, doomed: Sequence[ExpiryTask]) -> tuple[list[ExpiryTask], list[ExpiryReport]]:
        """The partitions whose doomed segments the archive holds now, and reports of the others."""
        from sediment.jobs.delta_lake.archive import archive_segments

        wanted = {
            (each.log_dir, each.partition): [fate.segment.base_offset for fate in each.plan.deleted] for each in doomed
        }
        results = archive_segments(path, wanted, self._options, self.run_id, self._stop)
        archived, failed = [], []
        for each in doomed:
            result = results[each.log_dir, each.partition]
            if isinstance(result, int):
                archived.append(replace(each, report=replace(each.report, messages_archived=result)))
            else:
                failed.append(_left_alone(each, *result, self._fs))
        return archived, failed

    # -------------------------------------------------------------------------------------------------------- originals
    def _begin_originals(
        self, target: Path, doomed: Sequence[ExpiryTask]
    ) -> tuple[BackupLinks | None, list[ExpiryTask], list[ExpiryReport]]:
        """The originals of the run once their catalogue is durable, the partitions in it, and reports of the others."""
        listed: list[ExpiryTask] = []
        failed: list[ExpiryReport] = []
        before: list[OriginalPartition] = []
        checkpoints = {path: read_checkpoints(path, self._fs) for path in self._locks}
        for each in doomed:
            directory = each.view.listing.path
            try:
                names = expired_files(each.view, each.plan, self._fs)
                new = rolled_files(each.view) if each.plan.rolls_active else ()
                before.append(
                    partition_before(each.partition, directory, checkpoints[each.log_dir], names, new, self._fs)
                )
                listed.append(replace(each, files=names))
            except (SedimentError, OSError) as error:
                failed.append(_left_alone(each, *describe(error), self._fs))
        header = catalogue_of_run(self._options, "expire", self.run_id, checkpoints, before)
        originals = BackupLinks(target, header, self._fs)
        try:
            originals.begin()
        except (SedimentError, OSError) as error:
            code, sentence = describe(error)
            reason = f"the catalogue of originals cannot be written, and nothing was deleted: {sentence}"
            return None, [], failed + [_left_alone(each, code, reason, self._fs) for each in listed]
        return originals, listed, failed

    # ----------------------------------------------------------------------------------------------------------- delete
    def _delete_all(self, doomed: Sequence[ExpiryTask], originals: BackupLinks | None) -> list[ExpiryReport]:
        reports = []
        total_bytes = sum(each.plan.deleted_bytes for each in doomed)
        progress = self._stack.enter_context(Progress(self._options.messages(), len(doomed), total_bytes))
        for log_dir in dict.fromkeys(each.log_dir for each in doomed):
            here = [each for each in doomed if each.log_dir == log_dir]
            for start in range(0, len(here), _GROUP_PARTITIONS):
                group = here[start : start + _GROUP_PARTITIONS]
                if self._stop.is_set():
                    reports += [_left_alone(each, *_STOPPED, self._fs) for each in group]
                    continue
                reports += delete_group(log_dir, group, self._locks[log_dir], self._fs, originals)
                for each in group:
                    progress.advance(each.plan.deleted_bytes)
        return reports

    def _drop_redundant_starts(self, directories: Sequence[SelectedDirectory], reports: Sequence[ExpiryReport]) -> None:
        """Log start entries of logs that say themselves where they start go, as with a broker.

        A run that was cut off leaves them; what fails here leaves them to the next one.
        """
        first = {
            (report.log_dir, report.partition): report.segments[0]
            for report in reports
            if report.reason_code == NOTHING_TO_DELETE and report.segments
        }
        for directory in directories:
            starts = (directory.checkpoints.log_start or {}).items()
            redundant = {
                partition
                for partition, start in starts
                if first.get((str(directory.path), str(partition)), start - 1) >= start
            }
            with suppress(SedimentError, OSError):
                self._locks[directory.path].check()
                update_offset_checkpoint(self._fs, directory.path / LOG_START_FILE, {}, redundant)


def delete_group(
    log_dir: Path, doomed: Sequence[ExpiryTask], lock: DirectoryLock, fs: Fs, originals: BackupLinks | None = None
) -> list[ExpiryReport]:
    """Carry out the plans of partitions of one log directory, whose lock is held.

    0. With `originals` the files that go get their links there.
       A start: nothing has changed.
    1. `roll_empty` where every segment goes.
       A start: an empty active segment, as a broker may leave one.
    2. The log start checkpoint says each new log start.
       A start: what lies below it is dead, and goes by the rule of the log start offset.
    3. `expire_log`, partition by partition.
       A start: as behind 2; whatever is `.deleted` is removed.
    4. The checkpoint keeps a log start only where it is inside the first segment; others say themselves where they
       start, and so a broker writes it.
       A start: the log starts where its first segment does, or where the checkpoint says.

    On a full disk, where step 1 finds no room, the active segment stays; where step 2 finds none, segments go in an
    order that is true without it.
    """
    reports: list[ExpiryReport] = []
    ready: list[ExpiryTask] = []
    for each in doomed:
        try:
            lock.check()
            if originals is not None:
                originals.keep(each.partition, each.view.listing.path, each.files)
        except (SedimentError, OSError) as error:
            reports.append(_left_alone(each, *describe(error), fs))
            continue
        try:
            if each.plan.rolls_active:
                roll_empty(each.view, fs)
            ready.append(each)
        except (SedimentError, OSError) as error:
            smaller = replace(each, plan=each.plan.keeping_active())
            if _is_full(error) and smaller.plan.deleted:
                report = replace(each.report, reason_code=str(KeepReason.NO_ROOM), reason=_NO_ROOM)
                ready.append(replace(smaller, report=_carried_out(report, each.view, smaller.plan)))
            else:
                reports.append(_left_alone(each, *describe(error), fs))
    checkpoint, like = log_dir / LOG_START_FILE, log_dir / LOCK_FILE
    starts = {each.partition: each.plan.log_start_offset for each in ready}
    is_durable = True
    try:
        lock.check()
        update_offset_checkpoint(fs, checkpoint, starts, like=like)
    except (SedimentError, OSError) as error:
        if not _is_full(error):
            return reports + [_left_alone(each, *describe(error), fs) for each in ready]
        is_durable = False
    done: list[ExpiryTask] = []
    for each in ready:
        try:
            lock.check()
            expire_log(each.view, each.plan, fs, keep_deleted=each.keep_deleted, log_start_is_durable=is_durable)
            done.append(each)
        except (SedimentError, OSError) as error:
            reports.append(_broken_off(each, error, fs))
    try:
        inside = {
            each.partition: each.plan.log_start_offset
            for each in done
            if each.plan.log_start_offset > each.report.segments[0]
        }
        settled = {each.partition for each in done} - inside.keys()
        lock.check()
        update_offset_checkpoint(fs, checkpoint, inside, settled, like=like)
    except (SedimentError, OSError) as error:
        late = f"its segments are deleted, but the log start checkpoint was not settled: {describe(error)[1]}"
        unsettled = (
            replace(each.report, status=FAILED, reason_code="checkpoint-not-written", reason=late) for each in done
        )
        return [*reports, *unsettled]
    return reports + [each.report for each in done]


def _check_log_start(view: LogView, checkpoints: PartitionCheckpoints) -> None:
    """Refuse a log start above the log end: the checkpoint and the segments are not of one moment.

    Raises:
        CorruptCheckpointError: every segment would go by the log start offset.
    """
    start, end = checkpoints.log_start, view.log_end_offset
    if start is not None and start > end and view.listing.log_bytes():
        raise CorruptCheckpointError(
            f"the log start offset {start} is above the log end {end}, so that every segment would be deleted",
            partition=str(view.listing.partition),
            path=str(view.listing.path.parent / LOG_START_FILE),
            advice="restore the checkpoint that belongs to these segments, or remove the partition from it",
        )


def _is_full(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def _carried_out(report: ExpiryReport, view: LogView, plan: RetentionPlan) -> ExpiryReport:
    """`report` with what is left, and what went, once `plan` is carried out."""
    return replace(
        report,
        log_start_offset=plan.log_start_offset,
        bytes_after=report.bytes_before - plan.deleted_bytes,
        segments=segments_after(view, plan),
        deleted_segments=tuple(
            DeletedSegment(fate.segment.base_offset, fate.segment.log_bytes, str(fate.rule)) for fate in plan.deleted
        ),
    )


def _broken_off(each: ExpiryTask, error: SedimentError | OSError, fs: Fs) -> ExpiryReport:
    """The report of a partition whose deletion failed midway."""
    code, sentence = describe(error)
    if code == "no-space" and isinstance(error, OSError):
        sentence = f"the disk is full ({error.filename})"
    start = each.plan.log_start_offset
    reason = f"{sentence}; the log starts at {start} now, and the next run removes what is left below"
    return _as_it_is(replace(each.report, status=FAILED, reason_code=code, reason=reason), each, fs)


def _left_alone(each: ExpiryTask, code: str, reason: str, fs: Fs) -> ExpiryReport:
    """The report of a partition of which nothing went."""
    report = replace(
        each.report,
        status=FAILED,
        reason_code=code,
        reason=reason,
        log_start_offset=each.view.log_start_offset,
        messages_archived=None,
    )
    return _as_it_is(report, each, fs)


def _as_it_is(report: ExpiryReport, each: ExpiryTask, fs: Fs) -> ExpiryReport:
    """`report` with the segments that the directory holds."""
    try:
        listing = list_log(each.partition, each.view.listing.path, fs)
    except (SedimentError, OSError):
        return report
    left = tuple(segment.base_offset for segment in listing.segments)
    return replace(
        report,
        bytes_after=listing.log_bytes(),
        segments=left,
        deleted_segments=tuple(gone for gone in report.deleted_segments if gone.base_offset not in left),
    )


@click.command("expire")
@common_options
@click.option("--dry-run", is_flag=True, help="Delete nothing, report what would be deleted.")
@click.option(
    "--archive", metavar="DELTA_PATH", help="First copy the records of these segments to this Delta table and count."
)
@click.option(
    "--keep-originals",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Link the files that go into DIR first, with a catalogue; it must be on the same filesystem.",
)
@click.option("--yes", is_flag=True, help="Delete without asking; only on a terminal is anybody asked.")
@click.option("--allow-network-fs", is_flag=True, help="Work on a network filesystem; no other host may use it.")
def command(
    options: CommonOptions,
    dry_run: bool,
    archive: str | None,
    keep_originals: Path | None,
    yes: bool,
    allow_network_fs: bool,
) -> None:
    """Delete the segments of LOG_DIR... that retention lets go."""
    asks = may_ask() and not (yes or dry_run or options.as_json or options.quiet)
    with stop_on_signals() as stop:
        run = expire(
            options,
            dry_run=dry_run,
            archive=archive,
            keep_originals=None if keep_originals is None else keep_originals.absolute(),
            allow_network_fs=allow_network_fs,
            confirm=partial(_confirmed, stop=stop) if asks else None,
            stop=stop,
        )
    options.conclude(run, run_json, print_run)


def _confirmed(shown: ExpiryRun, *, stop: threading.Event) -> bool:
    """Show on stderr what is to go, and ask once."""
    print_run(shown, error_console(markup=False, emoji=False))
    expired = [report for report in shown.partitions if report.status == EXPIRED]
    segments = sum(len(report.deleted_segments) for report in expired)
    freed = human_bytes(sum(report.bytes_before - report.bytes_after for report in expired))
    return ask_on_terminal(
        f"Delete {counted(segments, 'segment')} with {freed} from {counted(len(expired), 'partition')}?", stop
    )


if __name__ == "__main__":
    command()

"""`sediment expire LOG_DIR …`: delete the segments past their retention limits.

1. Threads prepare each partition with a few small reads.  They list it, finish an interrupted replacement
   (`finish_interrupted`), view it and plan it.
2. With --archive, Spark writes the records of the expired segments to the Delta table, and counts them there.
3. With --keep-originals, the run writes the catalogue in the state `planned`.
4. For each group of partitions, the run links the originals, rolls the active segments, moves the log starts, deletes
   the segments, and settles the log starts (`delete_group`).
5. With --keep-originals, the run completes the catalogue.

Invariants: a segment is deleted only after the log start offset above it is durable.  A run that asks for confirmation
changes nothing before the answer, and then deletes exactly the segments that it showed.
"""

from __future__ import annotations

if __name__ == "__main__":
    from sediment.jobs.process.early_signals import end_on_early_signals

    end_on_early_signals()  # before the slow imports

import errno
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sediment.engine.directory.delete_segments import (
    bases_after,
    expire_log,
    expired_files,
    roll_empty,
    rolled_files,
    settle_epochs,
)
from sediment.engine.directory.loading.interrupted_swaps import finish_interrupted
from sediment.engine.directory.lock import DirectoryLock
from sediment.engine.directory.originals.backup_links import BackupLinks
from sediment.engine.directory.originals.catalogue import OriginalPartition, partition_before
from sediment.engine.directory.originals.kept_in import KeptIn, kept_in
from sediment.engine.log_config import LogConfig
from sediment.jobs.command_line.confirmation import ask_on_terminal, may_ask
from sediment.jobs.command_line.declaration import ONE_COMMAND, Directory, option
from sediment.jobs.command_line.options import CommonOptions, log_command
from sediment.jobs.command_line.progress import Progress
from sediment.jobs.command_line.shared_options import allow_network_fs_option
from sediment.jobs.expiring.report import COLUMNS, EXPIRED, DeletedSegment, ExpiryReport, ExpiryRunReport, print_report
from sediment.jobs.process.cancellation import stop_on_signals
from sediment.jobs.process.standard_output import error_console
from sediment.jobs.reporting.error_text import describe_in_expire
from sediment.jobs.reporting.figures import counted, human_bytes
from sediment.jobs.reporting.run_report import FAILED, SKIPPED
from sediment.jobs.reporting.screen import Screen, View, named
from sediment.jobs.reporting.statuses import STOPPED
from sediment.jobs.rewriting.kept_originals import KeptOriginals
from sediment.jobs.rewriting.report import unchanged_fields
from sediment.jobs.rewriting.run import Run, check_outside, read_locked
from sediment.jobs.settings.cluster_settings import warn_of_refusals
from sediment.jobs.settings.directories import SelectedDirectory, check_filesystem
from sediment.jobs.settings.policy_warnings import policy_warning
from sediment.jobs.settings.resolve import Settings
from sediment.jobs.settings.running_brokers import warn_of_running
from sediment.jobs.settings.unstated_settings import why_not_expired
from sediment.retention.date_warnings import date_warnings
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
from sediment.segment_io.partition.checkpoint_files import (
    PartitionCheckpoints,
    log_start_entries,
    read_checkpoints,
    read_leader_epochs,
    update_offset_checkpoint,
)
from sediment.segment_io.partition.listing import LogListing, check_segments_are_files, list_log

if TYPE_CHECKING:
    from sediment.segment_io.partition.log_view import LogView

_LOGGER = logging.getLogger(__name__)

NOTHING_TO_DELETE = "nothing-to-delete"

_LOCAL_KEYS = ("local.retention.ms", "local.retention.bytes")
_NO_ROOM = "the disk was full, so the active segment was not deleted; free some space and run again"
_STOPPED = (STOPPED, "the run was stopped before this partition was done")
_THREADS = 8
_GROUP_PARTITIONS = 64
"""Number of partitions whose log starts are written to the checkpoint file together."""


# ---------------------------------------------------------------------------------------------------------- a partition
@dataclass(frozen=True, slots=True)
class ExpiryTask:
    """Partition with expired segments: its view, its plan, and the report to return after the deletion.

    With `keep_deleted`, the files keep their `.deleted` names until the next broker start removes them.  `files` are
    the names of the files to remove; this field is set when the files are in the catalogue of originals.
    """

    view: LogView
    plan: RetentionPlan
    report: ExpiryReport
    keep_deleted: bool
    checkpoints: PartitionCheckpoints
    files: tuple[str, ...] = ()

    @property
    def partition(self) -> TopicPartition:
        return self.view.listing.partition

    @property
    def log_dir(self) -> Path:
        return self.view.listing.path.parent


def _listed(listing: LogListing, status: str, code: str | None, reason: str | None) -> ExpiryReport:
    return ExpiryReport(**unchanged_fields(listing), status=status, reason_code=code, reason=reason)


# -------------------------------------------------------------------------------------------------------------- the run
@dataclass(frozen=True, slots=True)
class ExpireOptions:
    dry_run: bool = option(
        False, "Delete nothing; report the segments that would be deleted.", from_settings=ONE_COMMAND
    )
    archive: str | None = option(
        None,
        "Before segments are deleted, copy their records to this Delta table, and check that the row counts match.",
        metavar="DELTA_PATH",
        from_settings=ONE_COMMAND,
    )
    keep_originals: Directory | None = option(
        None,
        "Before files are deleted, hard-link them into DIR (on the same filesystem) and list them there in a "
        "catalogue, so that `restore` can undo the run.  {log_dir} in DIR stands for each log directory.",
        from_settings=ONE_COMMAND,
    )
    yes: bool = option(
        False,
        "Delete without asking; otherwise, the command asks first if it runs on a terminal.",
        of_terminal=True,
    )
    allow_network_fs: bool = allow_network_fs_option()


def expire(
    options: CommonOptions,
    own: ExpireOptions | None = None,
    *,
    confirm: Callable[[ExpiryRunReport], bool] | None = None,
    stop: threading.Event | None = None,
    fs: Fs | None = None,
) -> ExpiryRunReport:
    """If there is anything to delete, `confirm` is called once, with the report that a dry run would return.

    Setting `stop` ends the run after the partitions in progress; the others are reported as failed.

    Raises:
        DeclinedError: `confirm` returned False; nothing was changed.
        SourceChangedError: a partition changed while `confirm` waited; nothing was deleted.
    """
    own = own or ExpireOptions()
    run = Run[ExpiryReport]("expire", options, stop, dry_run=own.dry_run, fs=fs)
    if not own.dry_run:
        for path in options.log_dirs:
            check_filesystem(path, allow_network=own.allow_network_fs)
    with run.stack:
        expiry = _Expiry(run, own, confirm)
        return expiry.report(expiry.perform())


class _Expiry:
    def __init__(
        self, run: Run[ExpiryReport], own: ExpireOptions, confirm: Callable[[ExpiryRunReport], bool] | None
    ) -> None:
        self._run = run
        self._own = own
        self._confirm = None if own.dry_run else confirm
        self._locks: Mapping[Path, DirectoryLock] = {}
        self._only_looks = own.dry_run or confirm is not None
        self._kept_in = kept_in(own.keep_originals, run.options.log_dirs, shares=True)
        self._catalogue: Path | None = None

    def perform(self) -> list[ExpiryReport]:
        if self._own.archive is not None:
            from sediment.jobs.expiring import archive

            archive.check(self._own.archive, self._run.options.log_dirs)
        directories = self._open_directories()
        reports: list[ExpiryReport] = []
        expiring: list[ExpiryTask] = []
        for found in self._prepare_all(directories):
            if isinstance(found, ExpiryTask):
                expiring.append(found)
            else:
                reports.append(found)
        if self._own.dry_run:
            return reports + [each.report for each in expiring]
        if self._confirm is not None and expiring:
            self._ask(self._confirm, reports, expiring)
        elif expiring:
            _warn_before([each.report for each in expiring])
        if self._own.archive is not None and expiring:
            expiring, unarchived = self._archived(self._own.archive, expiring)
            reports += unarchived
        originals: KeptOriginals | None = None
        if self._kept_in is not None and expiring:
            originals, expiring, unlisted = self._begin_originals(self._kept_in, expiring)
            reports += unlisted
        reports += self._delete_all(expiring, originals)
        if originals is not None:
            self._catalogue = originals.end(reports)
        self._drop_redundant_starts(directories, reports)
        return reports

    def report(self, reports: Sequence[ExpiryReport], *, dry_run: bool | None = None) -> ExpiryRunReport:
        return ExpiryRunReport(
            **self._run.header(reports),
            dry_run=self._own.dry_run if dry_run is None else dry_run,
            archive=self._own.archive,
            originals=None if self._kept_in is None else str(self._kept_in),
            catalogue=None if self._catalogue is None else str(self._catalogue),
        )

    def _open_directories(self) -> list[SelectedDirectory]:
        """Check every directory and the selection before any change; then lock the directories and read them again."""
        run, own = self._run, self._own
        directories, self._locks = read_locked(
            run,
            partial(run.options.open_directories, run.fs, in_place=not own.dry_run),
            partial(check_outside, self._kept_in, run.options.log_dirs),
            originals_of=None if self._kept_in is None else self._kept_in.of,
        )
        if own.dry_run:
            warn_of_refusals(directories)
            warn_of_running(directories)
        for directory in directories:
            for topic in sorted({partition.topic for partition in directory.partitions}):
                self._check_local_keys(directory.settings, topic)
        return directories

    def _check_local_keys(self, settings: Settings, topic: str) -> None:
        given = [name for name in _LOCAL_KEYS if settings.origin(topic, name) == "--set"]
        if given and settings.for_topic(topic).retention.is_tiered:
            raise SettingsError(
                f"{given[0]} in --set applies to {topic}, a topic with tiered storage, but only its broker knows the "
                "segments in remote storage",
                advice="let the broker delete its segments, or set remote.log.copy.disable=true",
            )

    # ----------------------------------------------------------------------------------------------------------- decide
    def _prepare_all(self, directories: Sequence[SelectedDirectory]) -> Iterator[ExpiryTask | ExpiryReport]:
        pairs = [(directory, partition) for directory in directories for partition in directory.partitions]
        with ThreadPoolExecutor(_THREADS, "sediment-expire") as pool:
            yield from pool.map(lambda pair: self._prepare(*pair), pairs)

    def _prepare(self, directory: SelectedDirectory, partition: TopicPartition) -> ExpiryTask | ExpiryReport:
        failed = partial(ExpiryReport, str(partition), str(directory.path), FAILED)
        if self._run.stop.is_set():
            return failed(*_STOPPED)
        try:
            return self._decide(directory, partition)
        except (SedimentError, OSError) as error:
            return failed(*describe_in_expire(error))

    def _decide(self, directory: SelectedDirectory, partition: TopicPartition) -> ExpiryTask | ExpiryReport:
        # Imported late, because this module compiles kernels, and a wrong command line should be reported sooner.
        from sediment.segment_io.partition.log_view import open_view

        path = directory.path / str(partition)
        settings = directory.settings_of(partition, self._run.fs)
        listing = list_log(partition, path, self._run.fs)
        if self._only_looks and listing.is_replacement_open():
            other = "without --dry-run" if self._own.dry_run else "with --yes"
            return _listed(
                listing,
                SKIPPED,
                "interrupted",
                f"an earlier run or broker was interrupted here; run {other} to finish its work first",
            )
        check_segments_are_files(partition, path, self._run.fs)
        if not self._only_looks and finish_interrupted(path, self._run.fs):
            listing = list_log(partition, path, self._run.fs)
        config = settings.for_topic(partition.topic)
        if skipped := why_not_expired(partition, directory.checkpoints.of(partition), settings, config):
            return _listed(listing, SKIPPED, *skipped)
        view = open_view(
            listing,
            directory.checkpoints.of(partition),
            self._run.fs,
            now_ms=self._run.options.now_ms,
            producer_id_expiration_ms=config.compaction.producer_id_expiration_ms,
        )
        asked = settings.origin(partition.topic, "file.delete.delay.ms") != "default"
        checkpoints = directory.checkpoints.of(partition)
        _check_log_start(view, checkpoints)
        read_leader_epochs(
            self._run.fs, path / LEADER_EPOCH_FILE
        )  # if the file is malformed, the partition must fail before its log start is changed
        found = self._planned(view, config, checkpoints, keep_deleted=asked and config.file_delete_delay_ms > 0)
        if isinstance(found, ExpiryReport) and not self._only_looks:
            # This error is ignored, because the next run tries again.
            with suppress(SedimentError, OSError):
                settle_epochs(view, self._run.fs)
        return found

    def _planned(
        self, view: LogView, config: LogConfig, checkpoints: PartitionCheckpoints, *, keep_deleted: bool
    ) -> ExpiryTask | ExpiryReport:
        plan = plan_view(view, config.retention, now_ms=self._run.options.now_ms)
        dates = date_warnings(plan, config.retention, now_ms=self._run.options.now_ms)
        policy = policy_warning(view.listing.partition.topic, config, expires=bool(plan.deleted))
        report = replace(
            _listed(view.listing, EXPIRED, None, None),
            warnings=dates if policy is None else (*dates, policy),
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
        self,
        confirm: Callable[[ExpiryRunReport], bool],
        reports: Sequence[ExpiryReport],
        expiring: Sequence[ExpiryTask],
    ) -> None:
        """Show the segments to delete and ask; return only if the answer is yes and the files are still unchanged."""
        shown = self.report([*reports, *(each.report for each in expiring)], dry_run=True)
        if not confirm(shown):
            raise DeclinedError("nothing was deleted", advice="answer y, or give --yes, to delete")
        checkpoints = {}
        for log_dir in dict.fromkeys(each.log_dir for each in expiring):
            self._locks[log_dir].check()
            checkpoints[log_dir] = read_checkpoints(log_dir, self._run.fs)
        for each in expiring:
            path, partition = each.view.listing.path, each.partition
            now = list_log(partition, path, self._run.fs)
            if (
                (now.segments, now.snapshots) != (each.view.listing.segments, each.view.listing.snapshots)
                or now.is_replacement_open()
                or checkpoints[each.log_dir].of(partition) != each.checkpoints
            ):
                raise SourceChangedError(
                    "the partition changed before the answer, and nothing was deleted",
                    partition=str(partition),
                    path=str(path),
                    advice="run again",
                )
            finish_interrupted(path, self._run.fs)

    # ---------------------------------------------------------------------------------------------------------- archive
    def _archived(self, path: str, expiring: Sequence[ExpiryTask]) -> tuple[list[ExpiryTask], list[ExpiryReport]]:
        from sediment.jobs.expiring.archive import archive_segments

        wanted = {
            (each.log_dir, each.partition): [fate.segment.base_offset for fate in each.plan.deleted]
            for each in expiring
        }
        results = archive_segments(path, wanted, self._run.options, self._run.run_id, self._run.stop)
        archived, failed = [], []
        for each in expiring:
            result = results[each.log_dir, each.partition]
            if isinstance(result, int):
                archived.append(replace(each, report=replace(each.report, messages_archived=result)))
            else:
                failed.append(_left_alone(each, *result, self._run.fs))
        return archived, failed

    # -------------------------------------------------------------------------------------------------------- originals
    def _begin_originals(
        self, kept_in: KeptIn, expiring: Sequence[ExpiryTask]
    ) -> tuple[KeptOriginals | None, list[ExpiryTask], list[ExpiryReport]]:
        listed: list[ExpiryTask] = []
        failed: list[ExpiryReport] = []
        before: list[OriginalPartition] = []
        checkpoints = {path: read_checkpoints(path, self._run.fs) for path in self._locks}
        for each in expiring:
            directory = each.view.listing.path
            try:
                names = expired_files(each.view, each.plan, self._run.fs)
                new = rolled_files(each.view) if each.plan.rolls_active else ()
                before.append(
                    partition_before(each.partition, directory, checkpoints[each.log_dir], names, new, self._run.fs)
                )
                listed.append(replace(each, files=names))
            except (SedimentError, OSError) as error:
                failed.append(_left_alone(each, *describe_in_expire(error), self._run.fs))
        try:
            originals = KeptOriginals(self._run, kept_in, checkpoints, before)
        except (SedimentError, OSError) as error:
            code, text = describe_in_expire(error)
            reason = f"the catalogue of originals cannot be written, and nothing was deleted: {text}"
            return None, [], failed + [_left_alone(each, code, reason, self._run.fs) for each in listed]
        return originals, listed, failed

    # ----------------------------------------------------------------------------------------------------------- delete
    def _delete_all(self, expiring: Sequence[ExpiryTask], originals: KeptOriginals | None) -> list[ExpiryReport]:
        reports = []
        total_bytes = sum(each.plan.deleted_bytes for each in expiring)
        progress = self._run.stack.enter_context(
            Progress(self._run.options.messages(), len(expiring), total_bytes, phase="expiring")
        )
        for log_dir in dict.fromkeys(each.log_dir for each in expiring):
            here = [each for each in expiring if each.log_dir == log_dir]
            for start in range(0, len(here), _GROUP_PARTITIONS):
                group = here[start : start + _GROUP_PARTITIONS]
                if self._run.stop.is_set():
                    reports += [_left_alone(each, *_STOPPED, self._run.fs) for each in group]
                    continue
                links = None if originals is None else originals.of(log_dir)
                reports += delete_group(log_dir, group, self._locks[log_dir], self._run.fs, links)
                for each in group:
                    progress.advance(each.plan.deleted_bytes)
        return reports

    def _drop_redundant_starts(self, directories: Sequence[SelectedDirectory], reports: Sequence[ExpiryReport]) -> None:
        """Remove log start entries of logs that start with their first segment, as a broker does.

        An interrupted run leaves such entries.  After an error here, the next run removes the entries.
        """
        first = {
            (report.log_dir, report.partition): report.segments[0]
            for report in reports
            if report.reason_code == NOTHING_TO_DELETE and report.segments
        }
        for directory in directories:
            starts = directory.checkpoints.log_start or {}
            bases = {partition: first.get((str(directory.path), str(partition))) for partition in starts}
            known = [(partition, starts[partition], base) for partition, base in bases.items() if base is not None]
            redundant = {partition for partition, _, _ in known} - log_start_entries(known).keys()
            with suppress(SedimentError, OSError):
                self._locks[directory.path].check()
                update_offset_checkpoint(self._run.fs, directory.path / LOG_START_FILE, {}, redundant)


def _warn_before(expiring: Sequence[ExpiryReport]) -> None:
    names: dict[str, list[str]] = {}
    for report in expiring:
        for warning in report.warnings:
            names.setdefault(warning, []).append(report.partition)
    for warning, partitions in names.items():
        _LOGGER.warning("%s: %s", named(partitions), warning)


def delete_group(
    log_dir: Path, expiring: Sequence[ExpiryTask], lock: DirectoryLock, fs: Fs, originals: BackupLinks | None = None
) -> list[ExpiryReport]:
    """Delete the expired segments of partitions of one log directory, whose lock the caller holds.

    0. With `originals`, make hard links in that directory to the files that the run removes.
       After a crash here, the broker finds the log unchanged.
    1. `roll_empty` if every segment is expired.
       After a crash here, the broker finds an empty active segment, which a stop of the broker may also leave.
    2. Write each new log start to the log start checkpoint.
       After a crash here, the broker's retention deletes the segments below the log start.
    3. `expire_log`, partition by partition.
       After a crash here, the broker does the same as after step 2, and removes `.deleted` files.
    4. Keep a checkpoint entry only for a log that starts inside its first segment, as a broker does.
       After a crash here, the broker finds a log that starts with its first segment, or at its checkpoint entry.

    If the disk has too little space for step 1, the active segment is not deleted.  If the disk has too little space
    for step 2, the segments are deleted in an order that is safe without the checkpoint.
    """
    reports: list[ExpiryReport] = []
    ready: list[ExpiryTask] = []
    for each in expiring:
        try:
            lock.check()
            if originals is not None:
                originals.keep(each.view.listing.path, each.files)
        except (SedimentError, OSError) as error:
            reports.append(_left_alone(each, *describe_in_expire(error), fs))
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
                reports.append(_left_alone(each, *describe_in_expire(error), fs))
    checkpoint, like = log_dir / LOG_START_FILE, log_dir / LOCK_FILE
    starts = {each.partition: each.plan.log_start_offset for each in ready}
    is_durable = True
    try:
        lock.check()
        update_offset_checkpoint(fs, checkpoint, starts, like=like)
    except (SedimentError, OSError) as error:
        if not _is_full(error):
            return reports + [_left_alone(each, *describe_in_expire(error), fs) for each in ready]
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
        inside = log_start_entries(
            (each.partition, each.plan.log_start_offset, each.report.segments[0]) for each in done
        )
        settled = {each.partition for each in done} - inside.keys()
        lock.check()
        update_offset_checkpoint(fs, checkpoint, inside, settled, like=like)
    except (SedimentError, OSError) as error:
        late = f"its segments are deleted, but the log start checkpoint was not written: {describe_in_expire(error)[1]}"
        unsettled = (
            replace(each.report, status=FAILED, reason_code="checkpoint-not-written", reason=late) for each in done
        )
        return [*reports, *unsettled]
    return reports + [each.report for each in done]


def _check_log_start(view: LogView, checkpoints: PartitionCheckpoints) -> None:
    start, end = checkpoints.log_start, view.log_end_offset
    if start is not None and start > end and view.listing.log_bytes():
        raise CorruptCheckpointError(
            f"the log start offset {start} is above the log end {end}, so every segment would be deleted",
            partition=str(view.listing.partition),
            path=str(view.listing.path.parent / LOG_START_FILE),
            advice="restore the checkpoint that belongs to these segments, or remove the partition from it",
        )


def _is_full(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def _carried_out(report: ExpiryReport, view: LogView, plan: RetentionPlan) -> ExpiryReport:
    return replace(
        report,
        log_start_offset=plan.log_start_offset,
        bytes_after=report.bytes_before - plan.deleted_bytes,
        segments=bases_after(view, plan),
        deleted_segments=tuple(
            DeletedSegment(fate.segment.base_offset, fate.segment.log_bytes, str(fate.rule)) for fate in plan.deleted
        ),
    )


def _broken_off(each: ExpiryTask, error: SedimentError | OSError, fs: Fs) -> ExpiryReport:
    code, text = describe_in_expire(error)
    if code == "no-space" and isinstance(error, OSError):
        text = f"the disk is full ({error.filename})"
    start = each.plan.log_start_offset
    reason = f"{text}; the log now starts at offset {start}, and the next run removes the segments below this offset"
    return _as_it_is(replace(each.report, status=FAILED, reason_code=code, reason=reason), each, fs)


def _left_alone(each: ExpiryTask, code: str, reason: str, fs: Fs) -> ExpiryReport:
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
    try:
        listing = list_log(each.partition, each.view.listing.path, fs)
    except (SedimentError, OSError):
        return report
    left = tuple(segment.base_offset for segment in listing.segments)
    return replace(
        report,
        bytes_after=listing.log_bytes(),
        segments=left,
        deleted_segments=tuple(each for each in report.deleted_segments if each.base_offset not in left),
    )


@log_command("expire", ExpireOptions, COLUMNS)
def command(options: CommonOptions, own: ExpireOptions) -> None:
    """Delete the segments of LOG_DIR... that are past their retention limits.

    SIGINT or SIGTERM ends the run after the partitions in progress; the run then prints its report and exits with
    status 1.
    """
    asks = may_ask() and not (own.yes or own.dry_run or options.as_json or options.quiet)
    with stop_on_signals() as stop:
        confirm = partial(_confirmed, stop=stop, view=options.view) if asks else None
        report = expire(options, own, confirm=confirm, stop=stop)
    options.conclude(report, print_report)


def _confirmed(shown: ExpiryRunReport, *, stop: threading.Event, view: View) -> bool:
    print_report(shown, Screen(error_console(), view))
    expired = [report for report in shown.partitions if report.status == EXPIRED]
    segments = sum(len(report.deleted_segments) for report in expired)
    freed = human_bytes(sum(report.bytes_before - report.bytes_after for report in expired))
    return ask_on_terminal(
        f"Delete {counted(segments, 'segment')} with {freed} from {counted(len(expired), 'partition')}?", stop
    )


if __name__ == "__main__":
    command()

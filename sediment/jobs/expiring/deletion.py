"""Deletion of expired segments, group by group; with originals, they are linked first."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from sediment.engine.directory.delete_segments import expire_log, expired_files, roll_empty, rolled_files
from sediment.engine.directory.lock import DirectoryLock
from sediment.engine.directory.originals.backup_links import BackupLinks
from sediment.engine.directory.originals.catalogue import OriginalPartition, partition_before
from sediment.engine.directory.originals.kept_in import KeptIn
from sediment.jobs.command_line.progress import Progress
from sediment.jobs.expiring.expiry_task import ExpiryTask, carried_out
from sediment.jobs.expiring.planner import NOTHING_TO_DELETE
from sediment.jobs.expiring.report import ExpiryReport
from sediment.jobs.reporting.error_text import describe_in_expire
from sediment.jobs.reporting.run_report import FAILED
from sediment.jobs.reporting.statuses import STOPPED_BEFORE_DONE
from sediment.jobs.rewriting.kept_originals import KeptOriginals
from sediment.jobs.rewriting.run import Run
from sediment.jobs.settings.directories import SelectedDirectory
from sediment.retention.policy import KeepReason
from sediment.segment_io.errors import SedimentError
from sediment.segment_io.format.names import LOCK_FILE, LOG_START_FILE
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import log_start_entries, read_checkpoints, update_offset_checkpoint

_NO_ROOM = "the disk was full, so the active segment was not deleted; free some space and run again"
_GROUP_PARTITIONS = 64
"""Number of partitions whose log starts are written to the checkpoint file together."""


def originals_of_expired(
    run: Run[ExpiryReport], kept_in: KeptIn, expiring: Sequence[ExpiryTask], log_dirs: Iterable[Path]
) -> tuple[KeptOriginals | None, list[ExpiryTask], list[ExpiryReport]]:
    listed: list[ExpiryTask] = []
    failed: list[ExpiryReport] = []
    before: list[OriginalPartition] = []
    checkpoints = {path: read_checkpoints(path, run.fs) for path in log_dirs}
    for each in expiring:
        directory = each.view.listing.path
        try:
            names = expired_files(each.view, each.plan, run.fs)
            new = rolled_files(each.view) if each.plan.rolls_active else ()
            before.append(partition_before(each.partition, directory, checkpoints[each.log_dir], names, new, run.fs))
            listed.append(replace(each, files=names))
        except (SedimentError, OSError) as error:
            failed.append(each.left_alone(*describe_in_expire(error), run.fs))
    try:
        originals = KeptOriginals(run, kept_in, checkpoints, before)
    except (SedimentError, OSError) as error:
        code, text = describe_in_expire(error)
        reason = f"the catalogue of originals cannot be written, and nothing was deleted: {text}"
        return None, [], failed + [each.left_alone(code, reason, run.fs) for each in listed]
    return originals, listed, failed


def delete_all(
    run: Run[ExpiryReport],
    expiring: Sequence[ExpiryTask],
    locks: Mapping[Path, DirectoryLock],
    originals: KeptOriginals | None,
) -> list[ExpiryReport]:
    reports = []
    total_bytes = sum(each.plan.deleted_bytes for each in expiring)
    progress = run.stack.enter_context(Progress(run.options.messages(), len(expiring), total_bytes, phase="expiring"))
    for log_dir in dict.fromkeys(each.log_dir for each in expiring):
        here = [each for each in expiring if each.log_dir == log_dir]
        for start in range(0, len(here), _GROUP_PARTITIONS):
            group = here[start : start + _GROUP_PARTITIONS]
            if run.stop.is_set():
                reports += [each.left_alone(*STOPPED_BEFORE_DONE, run.fs) for each in group]
                continue
            links = None if originals is None else originals.of(log_dir)
            reports += delete_group(log_dir, group, locks[log_dir], run.fs, links)
            for each in group:
                progress.advance(each.plan.deleted_bytes)
    return reports


def drop_redundant_starts(
    directories: Sequence[SelectedDirectory],
    reports: Sequence[ExpiryReport],
    locks: Mapping[Path, DirectoryLock],
    fs: Fs,
) -> None:
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
            locks[directory.path].check()
            update_offset_checkpoint(fs, directory.path / LOG_START_FILE, {}, redundant)


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
            reports.append(each.left_alone(*describe_in_expire(error), fs))
            continue
        try:
            if each.plan.rolls_active:
                roll_empty(each.view, fs)
            ready.append(each)
        except (SedimentError, OSError) as error:
            smaller = replace(each, plan=each.plan.keeping_active())
            if _is_full(error) and smaller.plan.deleted:
                report = replace(each.report, reason_code=str(KeepReason.NO_ROOM), reason=_NO_ROOM)
                ready.append(replace(smaller, report=carried_out(report, each.view, smaller.plan)))
            else:
                reports.append(each.left_alone(*describe_in_expire(error), fs))
    checkpoint, like = log_dir / LOG_START_FILE, log_dir / LOCK_FILE
    starts = {each.partition: each.plan.log_start_offset for each in ready}
    is_durable = True
    try:
        lock.check()
        update_offset_checkpoint(fs, checkpoint, starts, like=like)
    except (SedimentError, OSError) as error:
        if not _is_full(error):
            return reports + [each.left_alone(*describe_in_expire(error), fs) for each in ready]
        is_durable = False
    done: list[ExpiryTask] = []
    for each in ready:
        try:
            lock.check()
            expire_log(each.view, each.plan, fs, keep_deleted=each.keep_deleted, log_start_is_durable=is_durable)
            done.append(each)
        except (SedimentError, OSError) as error:
            reports.append(each.broken_off(error, fs))
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


def _is_full(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)

"""The loads of logs in threads, largest first; a dry run loads in an overlay of the directory."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from sediment.engine.clone.partition_clone import note_producers_of_bare_copy
from sediment.engine.directory.dry_run_overlay import OverlayFs, overlay_of
from sediment.engine.directory.loading.load_state import LoadMode
from sediment.engine.directory.loading.loaded_losses import losses_of
from sediment.engine.directory.loading.log_loader import LoadedLog, load_log
from sediment.engine.directory.lock import DirectoryLock
from sediment.engine.directory.missing_records import LogCut, LogLosses
from sediment.engine.directory.partition_metadata import write_topic_id
from sediment.engine.directory.repair import Repair
from sediment.jobs.command_line.options import CommonOptions
from sediment.jobs.command_line.progress import Progress
from sediment.jobs.recovering.kept_files import KeptBeforeCuts
from sediment.jobs.recovering.log_report import report_of_load, with_future, with_losses, with_repairs
from sediment.jobs.recovering.logs_to_load import LogsOfDirectories, LogToLoad
from sediment.jobs.recovering.report import RecoveryReport
from sediment.jobs.reporting.error_text import describe
from sediment.jobs.reporting.run_report import FAILED
from sediment.jobs.reporting.statuses import STOPPED_BEFORE_DONE
from sediment.jobs.settings.directories import SelectedDirectory
from sediment.segment_io.errors import LockLostError, RecordsWouldBeLostError, SedimentError
from sediment.segment_io.format.names import DirectoryState
from sediment.segment_io.fs import Fs


@dataclass(frozen=True, slots=True)
class LoadOutcome:
    source: LogToLoad
    report: RecoveryReport
    log: LoadedLog | None


_BeforeCut = Callable[[LogToLoad, LogCut], None]


def _load(
    source: LogToLoad, path: Path, fs: Fs, now_ms: int, before_cut: _BeforeCut | None, repairs: list[Repair]
) -> tuple[LoadedLog, LogLosses]:
    """Load the log; each repair is added to `repairs` when it is made, because a repair stays after an error."""
    fault = source.topic_id_fault
    if fault is not None and fault.topic_id is not None:
        repairs.append(write_topic_id(path, source.partition, fault, fs))
    if source.keeps_producers and source.state is DirectoryState.LIVE:
        note_producers_of_bare_copy(source.partition, path, source.checkpoints, fs)
    log = load_log(
        source.partition,
        path,
        source.config,
        source.checkpoints,
        fs,
        now_ms=now_ms,
        mode=LoadMode(
            verify_trusted=source.checkpoints.clean_shutdown,
            directory_state=source.state,
            on_cut=None if before_cut is None else partial(before_cut, source),
            repairs=repairs,
        ),
    )
    losses = LogLosses() if source.known is None else losses_of(log, source.known, source.orphans, fs)
    return replace(log, repairs=tuple(repairs)), losses


def _load_in_overlay(
    source: LogToLoad, now_ms: int, before_cut: _BeforeCut | None, repairs: list[Repair]
) -> tuple[LoadedLog, LogLosses]:
    """Load the log in an overlay of its directory; errors name the real files."""
    with overlay_of(source.path) as overlay:
        try:
            return _load(source, overlay, OverlayFs(), now_ms, before_cut, repairs)
        except SedimentError as error:
            if error.path is not None:
                error.path = error.path.replace(str(overlay), str(source.path))
            raise
        except OSError as error:
            if error.filename is not None:
                error.filename = os.fsdecode(error.filename).replace(str(overlay), str(source.path))
            raise


def _check_can_be_kept(source: LogToLoad, now_ms: int, before_cut: _BeforeCut) -> None:
    """Check that the files of a log with links can be kept, before the first change.

    Hard links may be impossible, and a cut may need them.  Any other error is left to the load that follows.
    """
    try:
        _load_in_overlay(source, now_ms, before_cut, [])
    except RecordsWouldBeLostError:
        raise
    except (SedimentError, OSError):
        return


def _has_links(path: Path) -> bool:
    """Return True if the log is in another directory, possibly on another filesystem, or one of its files is."""
    if path.is_symlink():
        return True
    with os.scandir(path) as entries:
        return any(entry.is_symlink() for entry in entries)


def _recover(
    source: LogToLoad,
    lock: DirectoryLock | None,
    stop: threading.Event,
    options: CommonOptions,
    before_cut: KeptBeforeCuts,
) -> LoadOutcome:
    """Load one log; its errors are part of the outcome.

    Raises:
        LockLostError: the lock is lost; `stop` has been set.
    """
    repairs = list(source.finished)

    def failed(code: str, reason: str) -> LoadOutcome:
        report = RecoveryReport(source.name, str(source.directory.path), FAILED, code, reason)
        return LoadOutcome(source, with_repairs(report, repairs), None)

    if stop.is_set():
        return failed(*STOPPED_BEFORE_DONE)
    if source.failure is not None:
        return failed(*source.failure)
    try:
        if lock is None:
            log, losses = _load_in_overlay(source, options.now_ms, None, repairs)
        else:
            lock.check()
            if before_cut.may_refuse and _has_links(source.path):
                _check_can_be_kept(source, options.now_ms, before_cut)
                lock.check()
            log, losses = _load(source, source.path, Fs(), options.now_ms, before_cut, repairs)
    except LockLostError:
        stop.set()
        raise
    except (SedimentError, OSError) as error:
        return failed(*describe(error))
    report = report_of_load(source.name, source.directory.path, log)
    fault = source.topic_id_fault
    if fault is not None and fault.topic_id is None:
        report = replace(report, warnings=(str(fault),))
    report = with_losses(report, losses)
    return LoadOutcome(source, report if source.future is None else with_future(report, source.future), log)


def load_all(
    per_directory: LogsOfDirectories,
    pool: ThreadPoolExecutor,
    locks: Mapping[Path, DirectoryLock],
    stop: threading.Event,
    options: CommonOptions,
    progress: Progress,
    before_cut: KeptBeforeCuts,
) -> Iterator[tuple[SelectedDirectory, list[LoadOutcome], bool]]:
    """Load the logs, largest first; yield each directory with its outcomes as soon as all its partitions are done."""
    left = {directory.path: len(logs) for directory, logs, _ in per_directory}
    done: dict[Path, list[LoadOutcome]] = {path: [] for path in left}
    by_path = {directory.path: (directory, is_whole) for directory, _, is_whole in per_directory}
    for path in [path for path, count in left.items() if not count]:
        directory, is_whole = by_path[path]
        yield directory, [], is_whole
    logs = sorted((log for _, some, _ in per_directory for log in some), key=lambda log: log.log_bytes, reverse=True)
    futures = [pool.submit(_recover, log, locks.get(log.directory.path), stop, options, before_cut) for log in logs]
    for future in as_completed(futures):
        outcome = future.result()
        path = outcome.source.directory.path
        progress.advance(outcome.source.log_bytes)
        done[path].append(outcome)
        left[path] -= 1
        if not left[path]:
            directory, is_whole = by_path[path]
            yield directory, done[path], is_whole

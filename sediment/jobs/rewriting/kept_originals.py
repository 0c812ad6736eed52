"""Creation and completion of the catalogue that lists the original files that a run keeps."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sediment.engine.directory.originals.backup_links import BackupLinks, originals_directory
from sediment.engine.directory.originals.catalogue import (
    Catalogue,
    OriginalPartition,
    catalogue_file,
    log_dir_before,
    partition_before,
    segment_file_names,
)
from sediment.engine.directory.originals.kept_in import KeptIn
from sediment.jobs.delta_lake.paths import outside_log_dirs
from sediment.jobs.reporting.error_text import describe
from sediment.segment_io.errors import SedimentError
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.partition.checkpoint_files import LogDirCheckpoints, read_checkpoints
from sediment.segment_io.partition.listing import LogListing
from sediment.segment_io.uris import without_secret

if TYPE_CHECKING:
    from sediment.compaction.prepared_swap import PreparedSwap
    from sediment.jobs.reporting.run_report import PartitionOutcome
    from sediment.jobs.rewriting.run import Run

_LOGGER = logging.getLogger(__name__)


def catalogue_of_run(
    run: Run[Any],
    checkpoints: Mapping[Path, LogDirCheckpoints],
    partitions: Iterable[OriginalPartition],
    *,
    run_id: str | None = None,
    restores: str | None = None,
) -> Catalogue:
    """Return the first catalogue, still without files, of a run.

    Call this before the run removes a file.  A restore has a catalogue with another `run_id` for each run that it
    undoes; `restores` is the id of that run.
    """
    return Catalogue(
        run_id=run_id or run.run_id,
        command=run.command,
        arguments=_shown_arguments(run.options.log_dirs, run.options.given),
        now_ms=run.options.now_ms,
        started_ms=time.time_ns() // 1_000_000,
        log_dirs=tuple(log_dir_before(path, found) for path, found in checkpoints.items()),
        partitions=tuple(partitions),
        restores=restores,
    )


class _Originals:
    def __init__(self, run: Run[Any], kept_in: KeptIn) -> None:
        self.kept_in = kept_in
        self._run = run
        self._links: dict[Path, BackupLinks] = {}

    def end(self, reports: Iterable[PartitionOutcome]) -> Path | None:
        """Complete the catalogues; return their path, with `{log_dir}` in it if a pattern names the directories.

        Returns None if no file was removed.
        """
        reports = list(reports)
        ended = [end_originals(links, reports) for links in self._links.values()]
        return catalogue_file(Path(str(self.kept_in)), self._run.run_id) if any(ended) else None


class KeptOriginals(_Originals):
    """The originals of one run, all of them listed before its first change."""

    def __init__(
        self,
        run: Run[Any],
        kept_in: KeptIn,
        checkpoints: Mapping[Path, LogDirCheckpoints],
        partitions: Iterable[OriginalPartition],
    ) -> None:
        super().__init__(run, kept_in)
        partitions = list(partitions)
        for target in {kept_in.of(path): None for path in checkpoints}:
            here = {path: found for path, found in checkpoints.items() if kept_in.of(path) == target}
            of_target = [partition for partition in partitions if Path(partition.log_dir) in here]
            if of_target:
                catalogue = catalogue_of_run(run, here, of_target)
                self._links[target] = BackupLinks(target, catalogue, run.fs)
                self._links[target].begin()

    def of(self, log_dir: Path) -> BackupLinks:
        return self._links[self.kept_in.of(log_dir)]

    def keep_swap(self, swap: PreparedSwap) -> None:
        self.of(Path(swap.directory).parent).keep_swap(swap)


class OriginalsOnDemand(_Originals):
    """Originals of single partitions, for a run that turns out to need them while it is in progress.

    Nothing is created before the first `keep`.  Threads may call `keep` at the same time.
    """

    def __init__(self, run: Run[Any], kept_in: KeptIn) -> None:
        super().__init__(run, kept_in)
        self._lock = threading.Lock()
        self._done: set[Path] = set()

    def keep(self, partition: TopicPartition, path: Path, checkpoints: LogDirCheckpoints) -> Path:
        """Link all segment files of the partition in `path`, durably; return the directory of the originals."""
        log_dir = path.parent
        target = self.kept_in.of(log_dir)
        # A second call changes nothing: the files that the run has replaced since then are no originals.
        if path in self._done:
            return target
        names = segment_file_names(path, self._run.fs)
        before = partition_before(partition, path, checkpoints, names, None, self._run.fs)
        with self._lock:
            links = self._links.get(target)
            if links is None:
                outside_log_dirs(str(target), self._run.options.log_dirs)
                self._run.stack.enter_context(originals_directory(target, log_dir, self._run.fs))
                first = catalogue_of_run(self._run, {log_dir: checkpoints}, [before])
                links = BackupLinks(target, first, self._run.fs)
                links.begin()
                self._links[target] = links
            else:
                links.add(before)
        links.keep(path, names)
        self._done.add(path)
        return target


def begin_originals(
    run: Run[Any], kept_in: KeptIn, listings: Iterable[LogListing]
) -> tuple[KeptOriginals, list[tuple[LogListing, str, str]]]:
    """Write the catalogues of the files that a run may replace; call this before the run replaces a file.

    Returns the originals, and one tuple (listing, reason code, text) for each partition with unreadable files.
    Partitions with unreadable files are in no catalogue and must not be changed.
    """
    failed: list[tuple[LogListing, str, str]] = []
    before: list[OriginalPartition] = []
    fs = run.fs
    checkpoints = {path: read_checkpoints(path, fs) for path in run.options.log_dirs}
    for listing in listings:
        try:
            names = segment_file_names(listing.path, fs)
            known = checkpoints[listing.path.parent]
            before.append(partition_before(listing.partition, listing.path, known, names, None, fs))
        except (SedimentError, OSError) as error:
            failed.append((listing, *describe(error)))
    return KeptOriginals(run, kept_in, checkpoints, before), failed


def end_originals(originals: BackupLinks, reports: Iterable[PartitionOutcome]) -> Path | None:
    statuses = {(report.log_dir, report.partition): report.status for report in reports}
    try:
        return originals.end(statuses, time.time_ns() // 1_000_000)
    except (SedimentError, OSError) as error:
        # An error is logged, even with --quiet, but not raised, because the run is done and the planned catalogue is
        # still correct.
        _LOGGER.error(
            "%s: the catalogue cannot be completed and stays in the state `planned`: %s",
            originals.path,
            describe(error)[1],
        )
        return originals.path


def _shown_arguments(log_dirs: Iterable[Path], given: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    options = [name if not value else f"{name}={value}" for name, value in given]
    return (*(without_secret(str(path)) for path in log_dirs), *options)

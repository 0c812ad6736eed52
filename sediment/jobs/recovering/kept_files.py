"""Files that `restore` puts back: of every log before it is loaded, or of a log before records are cut off."""

from __future__ import annotations

import logging
from dataclasses import replace

from sediment.engine.directory.loading.interrupted_swaps import finish_interrupted
from sediment.engine.directory.missing_records import LogCut, doubtful_cut, missing_after_cut
from sediment.engine.directory.originals.catalogue import OriginalPartition, partition_before, segment_file_names
from sediment.engine.directory.originals.kept_in import KeptIn
from sediment.jobs.recovering.logs_to_load import LogsOfDirectories, LogToLoad
from sediment.jobs.recovering.report import RecoveryReport
from sediment.jobs.reporting.error_text import describe
from sediment.jobs.rewriting.kept_originals import KeptOriginals, OriginalsOnDemand
from sediment.jobs.rewriting.run import Run
from sediment.segment_io.errors import RecordsWouldBeLostError, SedimentError, UsageError
from sediment.segment_io.format.names import DirectoryState
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.listing import check_segments_are_files

_LOGGER = logging.getLogger(__name__)


class KeptBeforeCuts:
    """Keeps the files of a log before records are cut off from it, so that `restore` can put them back.

    A torn batch above all offsets that the broker's checkpoints name is cut off without this: it is the end of a write
    that was never acknowledged, and nobody can read it.  In a copy without checkpoints nobody knows that, so its files
    are kept if they can be.
    """

    def __init__(self, originals: OriginalsOnDemand | None) -> None:
        self._originals = originals
        self._said: set[str] = set()  # a log with links is loaded twice

    @property
    def may_refuse(self) -> bool:
        """True if files are kept, so a log whose files cannot be kept is refused."""
        return self._originals is not None

    def __call__(self, source: LogToLoad, cut: LogCut) -> None:
        """Say what is about to be cut off, and keep the files.

        Raises:
            RecordsWouldBeLostError: they cannot be kept.
        """
        if source.known is None:
            return
        lost = missing_after_cut(cut, source.known)
        doubt = doubtful_cut(cut, source.known)
        if lost is None and doubt is None:
            return
        self._say(f"{source.path}: {lost or doubt}")
        if self._originals is None:
            return
        try:
            kept = self._originals.keep(source.partition, source.path, source.directory.checkpoints)
        except (UsageError, OSError) as error:
            if lost is None:
                self._say(f"{source.path}: the files before the cut are not kept: {describe(error)[1]}")
                return
            raise RecordsWouldBeLostError(
                f"{lost.what}, and the files cannot be kept beside the log directory: {describe(error)[1]}",
                partition=source.name,
                advice="give --keep-originals DIR, a directory on the same filesystem; or --without-undo, to cut the "
                "log off although nothing can put the records back",
            ) from error
        self._say(f"{source.path}: the files before the cut are kept in {kept}; `sediment restore` puts them back")

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            _LOGGER.warning("%s", text)


def keep_before_loads(
    run: Run[RecoveryReport], kept_in: KeptIn, per_directory: LogsOfDirectories
) -> tuple[KeptOriginals, LogsOfDirectories]:
    """Link the segment files of every log except future replicas, with a catalogue, before any log is loaded.

    Returns:
        The backup links, and the logs with the repairs made before linking.  A log whose files cannot be linked is
            returned with a failure.

    Raises:
        SedimentError, OSError: the catalogue could not be written; no log was changed, except that interrupted
            replacements may have been finished.
    """
    fs = run.fs
    checkpoints = {directory.path: directory.checkpoints for directory, _, _ in per_directory}
    before: list[OriginalPartition] = []
    prepared: LogsOfDirectories = []
    for directory, logs, is_whole in per_directory:
        listed = []
        for log in logs:
            try:
                check_segments_are_files(log.partition, log.path, fs)
                found = finish_interrupted(log.path, fs)
                if log.state is DirectoryState.LIVE:
                    names = segment_file_names(log.path, fs)
                    before.append(partition_before(log.partition, log.path, directory.checkpoints, names, None, fs))
                listed.append(replace(log, finished=found))
            except (SedimentError, OSError) as error:
                listed.append(replace(log, failure=describe(error)))
        prepared.append((directory, listed, is_whole))
    originals = KeptOriginals(run, kept_in, checkpoints, before)
    kept: LogsOfDirectories = []
    for directory, logs, is_whole in prepared:
        kept.append((directory, [_kept(log, originals, fs) for log in logs], is_whole))
    return originals, kept


def _kept(log: LogToLoad, originals: KeptOriginals, fs: Fs) -> LogToLoad:
    if log.failure is not None or log.state is not DirectoryState.LIVE:
        return log
    try:
        originals.of(log.path.parent).keep(log.path, segment_file_names(log.path, fs))
    except (SedimentError, OSError) as error:
        return replace(log, failure=describe(error))
    return log

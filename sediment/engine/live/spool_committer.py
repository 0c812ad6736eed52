"""Taking in what jobs cleaned while this engine owns the directory (`hand_off` has the folder).

Invariants: a swap is committed only in the partition, the directory and the state that it was prepared in, through
`engine.swap`, and while nobody else cleans the partition; whatever is not committed is removed; a swap whose outcome is
not known stays until a start has settled it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from sediment.compaction.prepared_swap import PreparedSwap, from_json
from sediment.engine.directory.spool import PREPARED, CommitReply, reply
from sediment.engine.directory.swap import discard_parts
from sediment.engine.live.log_cleaner import LogCleaner
from sediment.engine.live.log_directory import LogDirectory
from sediment.engine.live.partition_log import PartitionLog
from sediment.segment_io.errors import (
    CommitStateUnknownError,
    CorruptDataError,
    LockLostError,
    OpenFilesLimitError,
    SedimentError,
    SourceChangedError,
    StorageError,
    UsageError,
)
from sediment.segment_io.format.names import TopicPartition, parse_partition_directory
from sediment.segment_io.fs import Fs

_LOGGER = logging.getLogger(__name__)


class SpoolOwner(Protocol):
    """What the intake asks of the one who owns logs and directories."""

    cleaner: LogCleaner

    def get_log(self, partition: TopicPartition) -> PartitionLog | None:
        """The live log of a partition."""
        ...

    def directory_of(self, log: PartitionLog) -> LogDirectory:
        """Where a log is."""
        ...

    def directories(self) -> list[LogDirectory]:
        """Every directory, offline or not."""
        ...

    def handle_directory_failure(self, directory: LogDirectory, error: OSError) -> None:
        """A directory failed; its logs are to go offline."""
        ...


class SpoolCommitter:
    """The engine's side of a hand-off folder."""

    def __init__(self, folder: Path, owner: SpoolOwner, fs: Fs) -> None:
        self._folder = folder
        self._owner = owner
        self._fs = fs

    def commit_all(self) -> list[CommitReply]:
        """Commit or refuse the swaps that lie there; those of partitions that somebody works on stay for later.

        Raises:
            OSError: the folder cannot be read or written.
        """
        answers = []
        for entry in self._fs.scan(self._folder):
            match = PREPARED.fullmatch(entry.name)
            if match is None or entry.is_directory:
                continue
            told = self._take(self._folder / entry.name, match["partition"], match["run_id"])
            if told is not None:
                reply(self._folder / entry.name, told, self._fs)
                answers.append(told)
        return answers

    def _take(self, path: Path, name: str, run_id: str) -> CommitReply | None:
        """What is to be answered; None: not yet."""
        try:
            log = self._owner.get_log(parse_partition_directory(name)[0])
        except UsageError as error:
            return self._refused(path, CommitReply(name, run_id, str(error)))
        if log is None:
            if any(directory.is_offline for directory in self._owner.directories()):
                return None
            return self._refused(path, CommitReply(name, run_id, "the engine has no log of this partition"))
        states = self._owner.cleaner.states
        if not states.start(log.partition):
            return None
        checkpoint: Callable[[], None] | None = None
        try:
            next_dirty_offset = self._commit(path, log)
            checkpoint = self._checkpoint(log, next_dirty_offset)
            return CommitReply(name, run_id, None)
        except (StorageError, OpenFilesLimitError, CommitStateUnknownError, LockLostError) as error:
            _LOGGER.error("%s is left where it is: %s", path, error)
            if isinstance(error, CommitStateUnknownError | LockLostError):
                self._owner.handle_directory_failure(self._owner.directory_of(log), OSError(str(error)))
            return None
        except SedimentError as error:
            discard_parts(log.directory, run_id, self._fs)
            return self._refused(path, CommitReply(name, run_id, str(error)))
        finally:
            try:
                states.finish(log.partition, checkpoint)
            except OSError as error:
                self._owner.handle_directory_failure(self._owner.directory_of(log), error)

    def _commit(self, path: Path, log: PartitionLog) -> int:
        """Commit the swap in `path`, if it is one for `log` as it is; returns the next dirty offset.

        Raises:
            CorruptDataError: it is no swap.
            SourceChangedError: it is for another log, for other segments, or for segments that nobody may clean.
        """
        swap = from_json(self._fs.read_bytes(path), path=str(path))
        if swap.partition != log.partition:
            raise CorruptDataError("the swap is of another partition than its file is named after", path=str(path))
        why = _mismatch(swap, log)
        if why is not None:
            raise SourceChangedError(why, partition=str(log.partition), path=str(path), advice="run the job again")
        lock = self._owner.directory_of(log).lock
        log.flush(swap.next_dirty_offset)
        log.replace_segments(replace(swap, directory=str(log.directory)), before_group=lock.check)
        _LOGGER.info("%s was committed", path)
        return swap.next_dirty_offset

    def _checkpoint(self, log: PartitionLog, next_dirty_offset: int) -> Callable[[], None]:
        """Move the cleaner checkpoint up to where the swap has cleaned; it never goes back."""
        cleaner, directory = self._owner.cleaner, self._owner.directory_of(log)

        def write() -> None:
            if directory.first_dirty_offsets().get(log.partition, 0) < next_dirty_offset:
                cleaner.update_checkpoint(directory, log.partition, next_dirty_offset)

        return write

    @staticmethod
    def _refused(path: Path, told: CommitReply) -> CommitReply:
        _LOGGER.warning("%s was refused: %s", path, told.refusal)
        return told


def _mismatch(swap: PreparedSwap, log: PartitionLog) -> str | None:
    """Why the swap is not for this log; None: nothing speaks against it before the files are compared."""
    if Path(swap.directory).resolve() != log.directory.resolve():
        return f"the swap was prepared in {swap.directory}, and the log is in {log.directory}"
    if not log.config.compacts:
        return "cleanup.policy of the topic does not contain compact any more"
    bases = [source.base_offset for group in swap.groups for source in group.sources]
    if max(bases, default=-1) >= log.active_base_offset or swap.next_dirty_offset > log.active_base_offset:
        return "the swap reaches into the active segment"
    return None

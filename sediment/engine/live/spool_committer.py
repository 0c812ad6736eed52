"""Commits of the swaps that jobs put into the spool while this engine owns the directory (`directory.spool`).

Invariants: a swap is committed only for the partition, directory and segments for which it was prepared. No other
cleaning of the partition may be running. The parts of a refused swap are deleted. If the outcome of a swap is unknown,
its file is kept until the next start has completed or undone the swap.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from sediment.compaction.prepared_swap import PreparedSwap, swap_from_json
from sediment.engine.directory.spool import PREPARED, CommitReply, file_stem, reply
from sediment.engine.directory.swap import discard_parts
from sediment.engine.live.log.partition_log import PartitionLog
from sediment.engine.live.log_cleaner import LogCleaner
from sediment.engine.live.log_directory import LogDirectory
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
from sediment.segment_io.format.names import SHORTENED, TopicPartition, parse_partition_directory
from sediment.segment_io.fs import Fs

_LOGGER = logging.getLogger(__name__)


class SpoolOwner(Protocol):
    cleaner: LogCleaner

    def get_log(self, partition: TopicPartition) -> PartitionLog | None: ...

    def directory_of(self, log: PartitionLog) -> LogDirectory: ...

    def directories(self) -> list[LogDirectory]: ...

    def handle_directory_failure(self, directory: LogDirectory, error: OSError) -> None: ...


class SpoolCommitter:
    def __init__(self, folder: Path, owner: SpoolOwner, fs: Fs) -> None:
        self._folder = folder
        self._owner = owner
        self._fs = fs

    def commit_all(self) -> list[CommitReply]:
        answers = []
        for entry in self._fs.scan(self._folder):
            match = PREPARED.fullmatch(entry.name)
            if match is None or entry.is_directory:
                continue
            answer = self._commit_or_refuse(self._folder / entry.name, match["partition"], match["run_id"])
            if answer is not None:
                reply(self._folder / entry.name, answer, self._fs)
                answers.append(answer)
        return answers

    def _commit_or_refuse(self, path: Path, name: str, run_id: str) -> CommitReply | None:
        try:
            if SHORTENED in name:
                name = str(swap_from_json(self._fs.read_bytes(path), path=str(path)).partition)
            log = self._owner.get_log(parse_partition_directory(name)[0])
        except (UsageError, CorruptDataError) as error:
            return self._refused(path, CommitReply(name, run_id, str(error)))
        if log is None:
            if any(directory.is_offline for directory in self._owner.directories()):
                return None
            return self._refused(path, CommitReply(name, run_id, "the engine has no log of this partition"))
        states = self._owner.cleaner.manager.states
        if not states.start(log.partition):
            return None
        checkpoint: Callable[[], None] | None = None
        try:
            next_dirty_offset = self._commit(path, log)
            checkpoint = self._checkpoint(log, next_dirty_offset)
            return CommitReply(name, run_id, None)
        except (StorageError, OpenFilesLimitError, CommitStateUnknownError, LockLostError) as error:
            _LOGGER.error("the commit of %s did not end: %s", path, error)
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
        swap = swap_from_json(self._fs.read_bytes(path), path=str(path))
        if swap.partition != log.partition or not path.name.startswith(f"{file_stem(str(swap.partition))}."):
            raise CorruptDataError("the partition in the swap differs from the one in its file name", path=str(path))
        mismatch = _mismatch(swap, log)
        if mismatch is not None:
            raise SourceChangedError(mismatch, partition=str(log.partition), path=str(path), advice="run the job again")
        lock = self._owner.directory_of(log).lock
        log.flush(swap.next_dirty_offset)
        log.replace_segments(replace(swap, directory=str(log.directory)), before_group=lock.check)
        _LOGGER.info("%s was committed", path)
        return swap.next_dirty_offset

    def _checkpoint(self, log: PartitionLog, next_dirty_offset: int) -> Callable[[], None]:
        """Return a function that raises the cleaner checkpoint to `next_dirty_offset`, but never lowers it."""
        cleaner, directory = self._owner.cleaner, self._owner.directory_of(log)

        def write() -> None:
            if directory.first_dirty_offsets().get(log.partition, 0) < next_dirty_offset:
                cleaner.manager.checkpoints.update(directory, log.partition, next_dirty_offset)

        return write

    @staticmethod
    def _refused(path: Path, answer: CommitReply) -> CommitReply:
        _LOGGER.warning("%s was refused: %s", path, answer.refusal)
        return answer


def _mismatch(swap: PreparedSwap, log: PartitionLog) -> str | None:
    if Path(swap.directory).resolve() != log.directory.resolve():
        return f"the swap was prepared in {swap.directory}, but the log is in {log.directory}"
    if not log.config.compacts:
        return "cleanup.policy of the topic no longer contains compact"
    bases = [source.base_offset for group in swap.groups for source in group.sources]
    if max(bases, default=-1) >= log.active_base_offset or swap.next_dirty_offset > log.active_base_offset:
        return "the swap includes offsets of the active segment"
    return None

"""The choice of the log to clean, and the cleaning state of each partition: Kafka's LogCleanerManager.

    candidates   compacted logs that are free (`cleaning_states`), not marked uncleanable, and not already clean
    choice       the candidate with the largest dirty ratio among those that may be cleaned (`filthiest_first`)
    checkpoints  `log_directory` reads them, and treats a malformed file as empty; if a checkpoint is outside the log,
                 it is replaced at once, even if the log is not chosen
    range        `compaction.cleanable_range` computes the cleanable range
    retention    while old segments are deleted, a compacted log is InProgress, and any other log is Paused

One lock is held during a whole choice.

Source: kafka-log 02 §2, §9.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sediment.compaction.cleanable_range import CleanableRange, cleanable_range, filthiest_first
from sediment.engine.live.cleaner_checkpoints import CleanerCheckpoints
from sediment.engine.live.cleaning_failures import CleanerOwner, CleaningFailures
from sediment.engine.live.cleaning_states import CleaningStates
from sediment.engine.live.log.partition_log import PartitionLog
from sediment.engine.live.log_directory import LogDirectory
from sediment.engine.live.scheduler import Clock
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.log_view import LogView


@dataclass(frozen=True, slots=True)
class LogToClean:
    log: PartitionLog
    directory: LogDirectory
    view: LogView
    range: CleanableRange


class LogCleanerManager:
    """Cleaning states and checkpoints of the logs of `owner`; every method may be called from any thread."""

    def __init__(self, owner: CleanerOwner, fs: Fs, clock: Clock) -> None:
        self.states = CleaningStates()
        self.checkpoints = CleanerCheckpoints(owner, fs)
        self.failures = CleaningFailures(owner, self.checkpoints, clock)
        self._owner = owner
        self._clock = clock
        self.last_run_ms = clock.now_ms()
        """The time at which the dirty ratios were last compared."""

        self.max_dirty_ratio = 0.0
        """The dirty ratio of the filthiest log at that time."""

    # --------------------------------------------------------------------------------------------------------- choosing
    def grab_filthiest(self) -> LogToClean | None:
        """Source: kafka-log 02 §2."""
        now_ms = self._clock.now_ms()
        checkpoints: dict[LogDirectory, dict[TopicPartition, int]] = {}
        with self.states.lock:
            candidates: list[tuple[LogToClean, CleanableRange]] = []
            for log in self._owner.all_logs():
                if not log.config.compacts or self.states.of(log.partition) is not None:
                    continue
                directory = self._owner.directory_of(log)
                with self.failures.isolating(log, directory):
                    if directory not in checkpoints:
                        checkpoints[directory] = directory.first_dirty_offsets()
                    first_dirty = checkpoints[directory].get(log.partition)
                    if _is_clean(log, first_dirty) or self.checkpoints.is_uncleanable(log, directory):
                        continue
                    candidate = self._select(log, directory, first_dirty, now_ms)
                    candidates.append((candidate, candidate.range))
            self.last_run_ms = now_ms
            self.max_dirty_ratio = max((found.cleanable_ratio for _, found in candidates), default=0.0)
            for chosen in filthiest_first(candidates):
                if self.states.start(chosen.log.partition):
                    return chosen
        return None

    def _select(self, log: PartitionLog, directory: LogDirectory, first_dirty: int | None, now_ms: int) -> LogToClean:
        view = log.view(first_dirty_checkpoint=first_dirty, now_ms=now_ms)
        found = cleanable_range(view, log.config.compaction, now_ms=now_ms)
        if found.force_checkpoint is not None:
            self.checkpoints.update(directory, log.partition, found.force_checkpoint)
        return LogToClean(log, directory, view, found)

    def start_deletion(self, log: PartitionLog) -> bool:
        """Source: kafka-log 02 §9 (deletableLogs)."""
        return log.config.compacts and not self.checkpoints.has_mark(log.partition) and self.states.start(log.partition)

    # ---------------------------------------------------------------------------------------------------- pause, resume
    def abort_and_pause(self, partition: TopicPartition) -> None:
        self.states.abort_and_pause(partition)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self.states.resume(partition)

    def abort(self, partition: TopicPartition) -> None:
        self.states.abort_and_pause(partition)
        self.states.resume(partition)

    def pause_for_retention(self) -> list[PartitionLog]:
        """Pause the free logs that are not compacted and return them; the caller resumes them."""
        logs = {log.partition: log for log in self._owner.all_logs() if not log.config.compacts}
        return [logs[partition] for partition in self.states.pause_free(logs)]


def _is_clean(log: PartitionLog, first_dirty: int | None) -> bool:
    """Return True if only the active segment is dirty, which is so for most logs; the check reads no file."""
    return first_dirty is not None and log.active_base_offset <= first_dirty <= log.log_end_offset

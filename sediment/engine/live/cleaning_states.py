"""The cleaning state of each partition, and how cleaning is aborted, paused and resumed.

    none ── start ──> InProgress ── finish ──> none
     │                    │ abort and pause
     │ pause              v
     └──> Paused(n) <── finish ── Aborted          resume: Paused(n) -> Paused(n - 1), Paused(1) -> none

`LogCleanerManager.abort` aborts, pauses and then resumes.

Invariants: a partition without a state is free. The thread that starts a cleaning or a deletion also finishes it. Only
this thread works on a partition that is InProgress or Aborted.

Source: kafka-log 02 §2.4 (LogCleanerManager).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from sediment.segment_io.errors import CleaningAbortedError, UsageError
from sediment.segment_io.format.names import TopicPartition


@dataclass(frozen=True, slots=True)
class InProgress:
    pass


@dataclass(frozen=True, slots=True)
class Aborted:
    pass


@dataclass(frozen=True, slots=True)
class Paused:
    """Cleaning is paused until `resume` has been called `times` times."""

    times: int


State: TypeAlias = InProgress | Aborted | Paused | None


class CleaningStates:
    """The states of all partitions; every method may be called from any thread."""

    def __init__(self) -> None:
        self._states: dict[TopicPartition, InProgress | Aborted | Paused] = {}
        self._changed = threading.Condition(threading.RLock())

    @property
    def lock(self) -> threading.Condition:
        """The lock of all states; hold it to make several calls atomic."""
        return self._changed

    def of(self, partition: TopicPartition) -> State:
        with self._changed:
            return self._states.get(partition)

    def start(self, partition: TopicPartition) -> bool:
        with self._changed:
            if partition in self._states:
                return False
            self._states[partition] = InProgress()
            return True

    def pause_free(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        with self._changed:
            free = [partition for partition in partitions if partition not in self._states]
            self._states.update(dict.fromkeys(free, Paused(1)))
            return free

    def abort_and_pause(self, partition: TopicPartition) -> None:
        """Pause a partition until `resume`; if the partition is InProgress, wait until the work has stopped."""
        with self._changed:
            match self._states.get(partition):
                case None:
                    self._states[partition] = Paused(1)
                case Paused(times):
                    self._states[partition] = Paused(times + 1)
                case InProgress():
                    self._states[partition] = Aborted()
                    self._changed.wait_for(lambda: isinstance(self._states.get(partition), Paused))
                case Aborted():
                    raise self._refusal(partition, "aborted")

    def resume(self, partition: TopicPartition) -> None:
        with self._changed:
            match self._states.get(partition):
                case Paused(1):
                    del self._states[partition]
                case Paused(times):
                    self._states[partition] = Paused(times - 1)
                case _:
                    raise self._refusal(partition, "resumed")

    def check_not_aborted(self, partition: TopicPartition) -> None:
        """Check that a cleaning may continue; call this between its steps."""
        if isinstance(self._states.get(partition), Aborted):
            raise CleaningAbortedError("the cleaning was aborted", partition=str(partition))

    def finish(self, partition: TopicPartition, before: Callable[[], None] | None = None) -> bool:
        """If the work was not aborted, `before` is called first."""
        with self._changed:
            match self._states.get(partition):
                case InProgress():
                    try:
                        if before is not None:
                            before()
                    finally:
                        del self._states[partition]
                    return True
                case Aborted():
                    self._states[partition] = Paused(1)
                    self._changed.notify_all()
                    return False
                case _:
                    raise self._refusal(partition, "finished")

    def _refusal(self, partition: TopicPartition, what: str) -> UsageError:
        state = self._states.get(partition)
        return UsageError(f"cleaning cannot be {what} while its state is {state}", partition=str(partition))

"""What cleaning is doing with each partition, and how others make it stop.

    none ── start ──> InProgress ── finish ──> none
     │                    │ abort and pause
     │ pause              v
     └──> Paused(n) <── finish ── Aborted          resume: Paused(n) -> Paused(n - 1), Paused(1) -> none

Invariants: a partition that is not here is free; whoever started a cleaning or a deletion finishes it, whatever comes
between; nobody but the one who started it works on a partition that is InProgress or Aborted.

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
    """It is being cleaned, or its old segments are being deleted."""


@dataclass(frozen=True, slots=True)
class Aborted:
    """It was InProgress, and the one who works on it is to stop."""


@dataclass(frozen=True, slots=True)
class Paused:
    """Nobody cleans it before it was resumed `times` times."""

    times: int


State: TypeAlias = InProgress | Aborted | Paused | None


class CleaningStates:
    """The states of all partitions; every method may be called from any thread."""

    def __init__(self) -> None:
        self._states: dict[TopicPartition, InProgress | Aborted | Paused] = {}
        self._changed = threading.Condition(threading.RLock())

    @property
    def lock(self) -> threading.Condition:
        """For several calls as one."""
        return self._changed

    def of(self, partition: TopicPartition) -> State:
        """None: nobody works on it."""
        with self._changed:
            return self._states.get(partition)

    def start(self, partition: TopicPartition) -> bool:
        """Begin to clean it or to delete from it; False, and nothing changed, where it is not free."""
        with self._changed:
            if partition in self._states:
                return False
            self._states[partition] = InProgress()
            return True

    def pause_free(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Pause those that are free, once each, and return them."""
        with self._changed:
            free = [partition for partition in partitions if partition not in self._states]
            self._states.update(dict.fromkeys(free, Paused(1)))
            return free

    def abort_and_pause(self, partition: TopicPartition) -> None:
        """Keep it from being cleaned until it is resumed; where it is InProgress, wait until that stopped.

        Raises:
            UsageError: another thread is waiting for the same.
        """
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
        """Take one pause back.

        Raises:
            UsageError: it is not paused.
        """
        with self._changed:
            match self._states.get(partition):
                case Paused(1):
                    del self._states[partition]
                case Paused(times):
                    self._states[partition] = Paused(times - 1)
                case _:
                    raise self._refusal(partition, "resumed")

    def check_not_aborted(self, partition: TopicPartition) -> None:
        """To be called between the steps of a cleaning.

        Raises:
            CleaningAbortedError: it is to stop.
        """
        if isinstance(self._states.get(partition), Aborted):
            raise CleaningAbortedError("the cleaning was aborted", partition=str(partition))

    def finish(self, partition: TopicPartition, before: Callable[[], None] | None = None) -> bool:
        """End what `start` began; `before` is done first, unless it was aborted.  Returns whether it was not aborted.

        Raises:
            UsageError: nothing was begun.
        """
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

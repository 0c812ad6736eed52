"""Waiting for the replication of coordinators' appends, without blocking a thread.

Source: Kafka's DelayedProduce, for appends with acks=-1.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sediment.segment_io.errors import SedimentError
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.delayed import DelayedOperations
from sediment.server.errors import error_code_of
from sediment.server.live.partition import Partition

Codes = Mapping[TopicPartition, ErrorCode]
RunLater = Callable[[Callable[[], object]], object]

REQUEST_TIMEOUT_MS = 30_000
"""Kafka's default of `request.timeout.ms`."""


@dataclass(frozen=True, slots=True)
class ReplicatingAppend:
    partition: Partition
    required_offset: int

    @property
    def code(self) -> ErrorCode | None:
        """NONE after the replication, an error after a disk failure or a deletion of the topic, else None."""
        failure: SedimentError | None = self.partition.failure
        if failure is not None:
            return error_code_of(failure)
        return ErrorCode.NONE if self.partition.high_watermark >= self.required_offset else None


class ReplicationWaits:
    """Waits for appends, with `delayed`; if a continuation has to wait, `run_later` runs the continuation.

    A continuation never runs in the thread that raises a high watermark, because that thread may hold locks.
    """

    def __init__(self, delayed: DelayedOperations, run_later: RunLater) -> None:
        self._delayed = delayed
        self.run_later = run_later

    def then(self, appends: Sequence[ReplicatingAppend], act: Callable[[Codes], object]) -> None:
        """Call `act` with the code of each append, now if all are replicated, else later in another thread.

        After REQUEST_TIMEOUT_MS, the code of an append that is not replicated is REQUEST_TIMED_OUT.
        """
        wait = _DelayedAppend(appends, act, self.run_later)
        if wait.is_replicated():
            act(wait.codes)
        else:
            keys = dict.fromkeys(each.partition.topic_partition for each in appends)
            self._delayed.watch(wait, keys, REQUEST_TIMEOUT_MS)


class _DelayedAppend:
    def __init__(
        self, appends: Sequence[ReplicatingAppend], act: Callable[[Codes], object], run_later: RunLater
    ) -> None:
        self._waiting = appends
        self._act = act
        self._run_later = run_later
        self.codes: dict[TopicPartition, ErrorCode] = {}

    def is_replicated(self) -> bool:
        waiting = []
        for each in self._waiting:
            code = each.code
            if code is None:
                waiting.append(each)
            else:
                self.codes[each.partition.topic_partition] = code
        self._waiting = waiting
        return not waiting

    def try_complete(self, changed: Collection[Any] | None) -> bool:
        if not self.is_replicated():
            return False
        self._run_later(lambda: self._act(self.codes))
        return True

    def expire(self) -> None:
        """Call the continuation, with an error for each append that is not replicated yet.

        The records of such an append remain in the log.
        """
        for each in self._waiting:
            self.codes[each.partition.topic_partition] = ErrorCode.REQUEST_TIMED_OUT
        self._run_later(lambda: self._act(self.codes))

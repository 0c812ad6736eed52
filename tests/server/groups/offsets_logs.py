"""A topic `__consumer_offsets` in real logs, and a coordinator over it whose clock the test moves."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from sediment.engine.live.log.partition_log import AppendInfo, PartitionLog
from sediment.segment_io.buffers import Buffer
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.slices import Bounds
from sediment.segment_io.partition.sources import Source
from sediment.segment_io.units import NS_PER_MS
from sediment.server.coordinator_log import CoordinatorLog, CoordinatorTopic
from sediment.server.delayed import Timer
from sediment.server.groups.group_coordinator import ConsumerGroupSupport, GroupCoordinator
from sediment.server.groups.group_offsets import CommittedOffset
from sediment.server.groups.group_requests import JoinAnswer, JoinRequest, MemberIdentity, SyncAnswer, SyncRequest
from sediment.server.groups.offsets_topic import OffsetsTopic
from sediment.server.groups.stored_groups import StoredGroup, replay_groups
from sediment.server.live.log_flusher import LogFlusher
from sediment.server.live.partition import Partition
from sediment.server.server_config import ServerConfig
from tests.engine.live_logs import NOW_MS, LiveLog
from tests.waiting import LIMIT_SECONDS

CHECK_MS = 600_000
SESSION_MS = 10_000
NOT_A_MEMBER = MemberIdentity("")


class HeldPartition(Partition):
    """A partition whose appends wait while it is held."""

    def __init__(self, log: PartitionLog, flusher: LogFlusher | None) -> None:
        super().__init__(log, 0, flusher)
        self._waiting = threading.Event()
        self._released = threading.Event()
        self._released.set()

    def append_of_coordinator(self, records: Buffer, *, wait: bool = True) -> AppendInfo:
        self._waiting.set()
        assert self._released.wait(LIMIT_SECONDS)
        return super().append_of_coordinator(records, wait=wait)

    @contextlib.contextmanager
    def held(self, *threads: threading.Thread) -> Iterator[None]:
        """Start threads; an append of one waits until the end of the block, and then all threads end."""
        self._waiting.clear()
        self._released.clear()
        try:
            for thread in threads:
                thread.start()
                assert self._waiting.wait(LIMIT_SECONDS)
            yield
        finally:
            self._released.set()
            for thread in threads:
                thread.join(LIMIT_SECONDS)


class OffsetsLogs:
    """The logs; with `flushes`, an append is durable only once a caller has waited for it."""

    def __init__(self, path: Path, count: int = 1, *, flushes: bool = False, **config: Any) -> None:
        self.logs = []
        for number in range(count):
            (path / str(number)).mkdir()
            self.logs.append(LiveLog(path / str(number), **config))
        flusher = LogFlusher(0, lambda _: None) if flushes else None
        self.partitions: dict[int, HeldPartition | None] = {
            number: HeldPartition(log.log, flusher) for number, log in enumerate(self.logs)
        }
        self.topic = OffsetsTopic(lambda: self.partitions, lambda: NOW_MS)

    @property
    def partition(self) -> HeldPartition:
        """The first partition."""
        partition = self.partitions[0]
        assert partition is not None
        return partition

    @property
    def batches(self) -> int:
        """Number of batches in all logs."""
        return sum(len(log.batches()) for log in self.logs)

    def replay(self) -> Mapping[str, StoredGroup]:
        """Return what a start finds."""
        logs = [
            CoordinatorLog(
                Source(each.topic_partition, each.directory),
                Bounds(first_offset=each.log_start_offset, end_offset=each.log.log_end_offset),
            )
            for each in self.partitions.values()
            if each is not None
        ]
        return CoordinatorTopic(logs, len(logs)).replay(lambda log: replay_groups(log, Fs()))


class Coordinated:
    """A coordinator over the logs."""

    def __init__(
        self,
        logs: OffsetsLogs,
        *,
        support: Callable[[Timer], ConsumerGroupSupport] | None = None,
        **config: Any,
    ) -> None:
        """Make a coordinator; `support` makes what the new protocol needs, with a timer that `pass_ms` runs."""
        self.logs = logs
        self._now_ms = 0
        self.timer = Timer(lambda: self._now_ms * NS_PER_MS, name=None)
        keys = {"group_initial_rebalance_delay_ms": 0, "offsets_retention_check_interval_ms": CHECK_MS, **config}
        self.coordinator = GroupCoordinator(
            ServerConfig(**keys),
            self.timer,
            lambda: self._now_ms * NS_PER_MS,
            logs.topic,
            logs.topic,
            None if support is None else support(self.timer),
            lambda: self._now_ms,
        )

    def load(self) -> None:
        self.coordinator.load(self.logs.replay())

    def pass_ms(self, duration_ms: int) -> None:
        self._now_ms += duration_ms
        self.timer.run_due()

    def commit(self, group: str, offset: int = 5, *, topic: str = "t") -> int:
        (error,) = self.coordinator.commit(group, NOT_A_MEMBER, -1, [(topic, 0, CommittedOffset(offset))])
        return error

    def offset(self, group: str, topic: str = "t") -> int | None:
        """Return the committed offset of partition 0 of a topic."""
        _, ((_, (fetched,)),) = self.coordinator.fetch(group, [(topic, [0])], require_stable=False)
        return None if fetched.value is None else fetched.value.offset

    def groups(self) -> set[str]:
        return {each.group_id for each in self.coordinator.list_groups()[1]}

    def join(self, group: str, *, known: bool = True) -> JoinAnswer:
        """Join alone, or with `known=False` only reserve an id."""
        answers: list[JoinAnswer] = []
        protocols = (("range", b""),)
        request = JoinRequest("", None, "c", "/h", SESSION_MS, SESSION_MS, "consumer", protocols, not known)
        self.coordinator.join(group, request, answers.append)
        self.pass_ms(1)
        (answer,) = answers
        return answer

    def stable(self, group: str) -> str:
        """Make a stable group of one member, and return the member's id."""
        joined = self.join(group)
        answers: list[SyncAnswer] = []
        request = SyncRequest(joined.member_id, None, joined.generation, assignments=((joined.member_id, b"a"),))
        self.coordinator.sync(group, request, answers.append)
        (answer,) = answers
        assert answer.assignment == b"a"
        return joined.member_id

"""A live log in its own directory, with a clock and a scheduler that the test moves."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from sediment.compaction.config import CompactionConfig
from sediment.engine.live.log.fetched_data import Isolation
from sediment.engine.live.log.partition_log import AppendInfo, AppendOrigin, PartitionLog
from sediment.engine.log_config import LogConfig
from sediment.retention.policy import RetentionConfig
from sediment.segment_io.format.layout import INT64_MAX
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import PartitionCheckpoints
from tests.twin.batches import Batch, ControlType, Record, encode_batch, encode_marker
from tests.twin.segments import file_batches

NOW_MS = 1_700_000_000_000
_COMPACTION = set(CompactionConfig.__dataclass_fields__)
_RETENTION = set(RetentionConfig.__dataclass_fields__)


class Tasks:
    """A scheduler: a task without delay runs at once, any other when the clock reaches its time.

    With `held` no task runs before `run`.
    """

    def __init__(self, *, held: bool = False) -> None:
        self.held = held
        self.now_ms = NOW_MS
        self._order = count()
        self._waiting: list[tuple[int, int, str, Callable[[], None]]] = []

    def schedule_once(self, name: str, task: Callable[[], None], *, delay_ms: int = 0) -> None:
        if delay_ms <= 0 and not self.held:
            task()
        else:
            heapq.heappush(self._waiting, (self.now_ms + delay_ms, next(self._order), name, task))

    def move(self, duration_ms: int) -> None:
        self.now_ms += duration_ms
        self.run()

    def run(self) -> None:
        while self._waiting and self._waiting[0][0] <= self.now_ms:
            heapq.heappop(self._waiting)[3]()


def config(**keys: Any) -> LogConfig:
    """Return a config by Kafka's keys with underscores; small indexes, unlimited timestamps, as in kafka-log 07."""
    policy = {"cleanup_policy": keys.pop("cleanup_policy")} if "cleanup_policy" in keys else {}
    compaction = {"segment_index_bytes": 1000, **policy}
    compaction |= {key: keys.pop(key) for key in list(keys) if key in _COMPACTION}
    retention = policy | {key: keys.pop(key) for key in list(keys) if key in _RETENTION}
    keys = {"message_timestamp_after_max_ms": INT64_MAX, **keys}
    return LogConfig(compaction=CompactionConfig(**compaction), retention=RetentionConfig(**retention), **keys)


class LiveLog:
    """A log with shorthands; `log` is the open PartitionLog."""

    def __init__(self, directory: Path, *, fs: Fs | None = None, held: bool = False, **keys: Any) -> None:
        self.directory = directory / "t-0"
        self.directory.mkdir(exist_ok=True)
        self.fs = fs or Fs()
        self.tasks = Tasks(held=held)
        names = ("verify_transactions", "random_jitter", "on_failure", "on_readable_change")
        self.options: dict[str, Any] = {name: keys.pop(name) for name in names if name in keys}
        self.options.setdefault("verify_transactions", False)
        self.config = config(**keys)
        self.log = self.opened(clean=True)

    def opened(self, *, clean: bool, recovery_point: int = 0, log_start: int = 0) -> PartitionLog:
        checkpoints = PartitionCheckpoints(
            clean_shutdown=clean, recovery_point=recovery_point, log_start=log_start, high_watermark=None
        )
        return PartitionLog.open(
            TopicPartition("t", 0),
            self.directory,
            self.config,
            checkpoints,
            self.fs,
            clock=lambda: self.tasks.now_ms,
            scheduler=self.tasks,
            **self.options,
        )

    def stop(self) -> None:
        self.log.flush(force_last_segment=True)
        self.log.close()

    def restart(self, *, clean: bool = True, recovery_point: int | None = None) -> PartitionLog:
        """Stop cleanly, or close without a flush, and open again."""
        if clean:
            self.stop()
        else:
            self.log.close_handlers()
        point = self.log.recovery_point if recovery_point is None else recovery_point
        self.log = self.opened(clean=clean, recovery_point=point, log_start=self.log.log_start_offset)
        return self.log

    def reconfigure(self, **keys: Any) -> None:
        self.config = config(**keys)
        self.log.update_config(self.config)

    # ----------------------------------------------------------------------------------------------------------- append
    def lead(self, data: bytes, *, epoch: int = 0, high_watermark: bool = True, **options: Any) -> AppendInfo:
        info = self.log.append_as_leader(data, epoch, **options)
        if high_watermark:
            self.log.maybe_increment_high_watermark()
        return info

    def follow(self, *batches: bytes, epoch: int = 0) -> AppendInfo:
        return self.log.append_as_follower(b"".join(batches), epoch)

    def mark(
        self,
        producer_id: int,
        kind: ControlType,
        *,
        epoch: int = 0,
        coordinator: int = 0,
        version: int = 0,
        high_watermark: bool = True,
    ) -> AppendInfo:
        """Append a transaction marker as the coordinator does."""
        data = encode_marker(
            kind,
            offset=0,
            timestamp=self.tasks.now_ms,
            leader_epoch=0,
            producer_id=producer_id,
            producer_epoch=epoch,
            coordinator_epoch=coordinator,
        )
        return self.lead(
            data, high_watermark=high_watermark, origin=AppendOrigin.COORDINATOR, transaction_version=version
        )

    def mark_quietly(self, producer_id: int, kind: ControlType) -> AppendInfo:
        """Append a marker that is not replicated yet."""
        return self.mark(producer_id, kind, high_watermark=False)

    # ------------------------------------------------------------------------------------------------------------ state
    def names(self, suffix: str = "") -> list[str]:
        return sorted(path.name for path in self.directory.iterdir() if path.name.endswith(suffix))

    def bases(self) -> list[int]:
        return list(self.log.base_offsets)

    def size(self, name: str) -> int:
        return (self.directory / name).stat().st_size

    def batches(self) -> list[Batch]:
        """Return all batches as the twin reads them from the files."""
        found = []
        for ref in self.log.segments():
            content = (self.directory / f"{ref.base_offset:020d}.log").read_bytes()
            found += [batch for _position, batch in file_batches(content)]
        return found

    def fetch(self, offset: int, isolation: Isolation = Isolation.LOG_END, size: int = 1 << 20) -> list[Batch]:
        data = self.log.read(offset, size, isolation).read()
        return [batch for _position, batch in file_batches(data)]

    def fetched_offsets(self, offset: int, isolation: Isolation = Isolation.LOG_END, size: int = 1 << 20) -> list[int]:
        return [record.offset for batch in self.fetch(offset, isolation, size) for record in batch.records()]


def batch(
    *pairs: tuple[str | None, str | None],
    at: int = 0,
    ts: int | list[int] = NOW_MS,
    epoch: int = 0,
    pid: int = -1,
    producer_epoch: int = 0,
    seq: int = 0,
    tx: bool = False,
    codec: int = 0,
    append_time: int | None = None,
) -> bytes:
    """Return a batch of (key, value) records at offset `at`; by default one of 71 bytes."""
    pairs = pairs or (("kk", "v"),)
    times = ts if isinstance(ts, list) else [ts] * len(pairs)
    records = [
        Record(at + delta, time, None if key is None else key.encode(), None if value is None else value.encode())
        for delta, ((key, value), time) in enumerate(zip(pairs, times, strict=True))
    ]
    return encode_batch(
        records,
        base_offset=at,
        leader_epoch=epoch,
        codec=codec,
        append_time=append_time,
        producer_id=pid,
        producer_epoch=producer_epoch if pid >= 0 else -1,
        base_sequence=seq if pid >= 0 else -1,
        transactional=tx,
    )


def with_retention(log: LiveLog, **keys: Any) -> None:
    """Change retention only."""
    log.config = replace(log.config, retention=RetentionConfig(**keys))
    log.log.update_config(log.config)

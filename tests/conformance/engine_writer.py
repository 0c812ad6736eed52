"""The steps of `logs.writing_steps` carried out by a PartitionLog, as java/Generate.java does with Kafka."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from sediment.compaction.config import CompactionConfig
from sediment.engine.live.log.partition_log import AppendOrigin, PartitionLog
from sediment.engine.log_config import LogConfig
from sediment.retention.policy import RetentionConfig
from sediment.segment_io.format.layout import CODEC_NAMES
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import PartitionCheckpoints
from tests.twin.batches import ControlType, Record, RecordHeader, encode_batch, encode_marker
from tests.twin.legacy import encode_legacy

_INTEGERS = {
    "segment.bytes": (CompactionConfig, "segment_bytes"),
    "segment.index.bytes": (CompactionConfig, "segment_index_bytes"),
    "index.interval.bytes": (CompactionConfig, "index_interval_bytes"),
    "delete.retention.ms": (CompactionConfig, "delete_retention_ms"),
    "segment.ms": (LogConfig, "segment_ms"),
}
_WORDS = {"message.timestamp.type": "message_timestamp_type", "compression.type": "compression_type"}


def log_config(configs: Mapping[str, str]) -> LogConfig:
    """Return the config that these topic keys stand for."""
    policy = tuple(configs.get("cleanup.policy", "delete").split(","))
    fields: dict[type, dict[str, Any]] = {CompactionConfig: {"cleanup_policy": policy}, LogConfig: {}}
    for key, value in configs.items():
        if key in _INTEGERS:
            kind, name = _INTEGERS[key]
            fields[kind][name] = int(value)
        elif key in _WORDS:
            fields[LogConfig][_WORDS[key]] = value
        elif key != "cleanup.policy":
            raise KeyError(key)
    return LogConfig(
        compaction=CompactionConfig(**fields[CompactionConfig]),
        retention=RetentionConfig(cleanup_policy=policy),
        **fields[LogConfig],
    )


class _AtOnce:
    """What is due at once runs at once, the rest with `run`."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def schedule_once(self, _name: str, task: Callable[[], None], *, delay_ms: int = 0) -> None:
        if delay_ms:
            self.waiting.append(task)
        else:
            task()

    def run(self) -> None:
        for task in self.waiting:
            task()
        self.waiting.clear()


class EngineWriter:
    """A log in `directory` that takes steps; `log` is the PartitionLog."""

    def __init__(self, directory: Path, configs: Mapping[str, str], now_ms: int, *, fs: Fs | None = None) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.now_ms = now_ms
        self.tasks = _AtOnce()
        self.log = PartitionLog.open(
            TopicPartition(*_named(directory)),
            directory,
            log_config(configs),
            PartitionCheckpoints(clean_shutdown=True),
            fs or Fs(),
            clock=lambda: self.now_ms,
            scheduler=self.tasks,
            verify_transactions=False,
        )
        # As the oracle, which knows no checkpoint when it begins.
        self.log.maybe_increment_high_watermark()

    def take(self, steps: Iterable[Mapping[str, Any]]) -> None:
        for step in steps:
            self.now_ms = step.get("now_ms", self.now_ms)
            self._take(step)
            self.log.maybe_increment_high_watermark()

    def stop(self) -> None:
        self.log.flush(force_last_segment=True)
        self.tasks.run()
        self.log.close()

    def _take(self, step: Mapping[str, Any]) -> None:
        log, epoch = self.log, step.get("leader_epoch", 0)
        match step["do"]:
            case "append":
                log.append_as_leader(_batch(step, 0), epoch)
            case "replicate":
                log.append_as_follower(_batch(step, step["base_offset"]), epoch)
            case "end_transaction":
                marker = encode_marker(
                    ControlType.COMMIT if step["commit"] else ControlType.ABORT,
                    offset=0,
                    timestamp=self.now_ms,
                    leader_epoch=epoch,
                    producer_id=step["producer_id"],
                    producer_epoch=step["producer_epoch"],
                    coordinator_epoch=step["coordinator_epoch"],
                )
                log.append_as_leader(
                    marker,
                    epoch,
                    origin=AppendOrigin.COORDINATOR,
                    transaction_version=step.get("transaction_version", 1),
                )
            case "roll":
                log.roll()
            case "log_start":
                log.maybe_increment_log_start_offset(step["offset"])
            case "truncate":
                log.truncate_to(step["offset"])
            case other:
                raise KeyError(other)


def _named(directory: Path) -> tuple[str, int]:
    topic, _, number = directory.name.rpartition("-")
    return topic, int(number)


def _batch(step: Mapping[str, Any], base_offset: int) -> bytes:
    records = []
    offset = base_offset
    for one in step["records"]:
        offset = one.get("o", offset)
        headers = tuple(
            RecordHeader(key.encode(), None if value is None else bytes.fromhex(value))
            for key, value in one.get("h", [])
        )
        records.append(Record(offset, one.get("ts", -1), _bytes(one["k"]), _bytes(one["v"]), headers))
        offset += 1
    codec = CODEC_NAMES.index(step.get("codec", "none"))
    magic = step.get("magic", 2)
    if magic < 2:
        return encode_legacy(records, magic=magic, codec=codec, append_time=step.get("log_append_time"))
    producer_id, producer_epoch, sequence = step.get("producer", (-1, -1, -1))
    return encode_batch(
        records,
        base_offset=base_offset,
        last_offset=step.get("last_offset"),
        leader_epoch=step["leader_epoch"],
        codec=codec,
        append_time=step.get("log_append_time"),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=sequence,
        transactional=step.get("transactional", False),
    )


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)

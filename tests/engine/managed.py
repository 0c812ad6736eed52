"""Engines for tests: managers whose clock a test moves, logs with records, disks that fail below one directory."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from sediment.compaction.config import CompactionConfig
from sediment.engine.live.broker_config import BrokerConfig
from sediment.engine.live.log.partition_log import PartitionLog
from sediment.engine.live.log_manager import LogManager
from sediment.engine.log_config import LogConfig
from sediment.retention.policy import RetentionConfig
from sediment.segment_io.buffers import Buffer
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.fs import FileEntry, FileMapping, Fs, OpenFile
from tests.clocks import ManualClock
from tests.twin.batches import Record, encode_batch
from tests.twin.segments import file_batches

SEGMENT_BYTES = 213  # three batches of a record with a key and a value of one character each

T0, T1, T2 = (TopicPartition("t", number) for number in range(3))


def topic_config(*policies: str, **fields: Any) -> LogConfig:
    """Return a config of small segments; `fields` are those of all three configs."""
    values: dict[type, dict[str, Any]] = {
        CompactionConfig: {"segment_bytes": SEGMENT_BYTES, "segment_index_bytes": 1000},
        RetentionConfig: {},
        LogConfig: {},
    }
    for key, value in fields.items():
        kinds = [kind for kind in values if key in kind.__dataclass_fields__]
        assert kinds, key
        for kind in kinds:
            values[kind][key] = value
    return LogConfig(
        compaction=CompactionConfig(cleanup_policy=policies, **values[CompactionConfig]),
        retention=RetentionConfig(cleanup_policy=policies, **values[RetentionConfig]),
        **values[LogConfig],
    )


COMPACTED = topic_config("compact")
DELETED = topic_config("delete")


def manager_of(
    *log_dirs: Path,
    topic: LogConfig | Mapping[str, LogConfig] = COMPACTED,
    clock: ManualClock | None = None,
    **options: Any,
) -> LogManager:
    """Return a manager without threads: `run_due` runs due tasks.  `options` are keys of its config or arguments."""
    keys = {key: options.pop(key) for key in [*options] if key in BrokerConfig.__dataclass_fields__}
    configs = topic if isinstance(topic, Mapping) else {}
    return LogManager(
        log_dirs,
        lambda name: configs.get(name, COMPACTED) if isinstance(topic, Mapping) else topic,
        replace(BrokerConfig(background_threads=0), **keys),
        clock=clock or ManualClock(),
        **options,
    )


@contextmanager
def running(*log_dirs: Path, **options: Any) -> Iterator[LogManager]:
    """Run a manager and stop it cleanly."""
    with manager_of(*log_dirs, **options) as manager:
        yield manager


def clock_of(manager: LogManager) -> ManualClock:
    assert isinstance(manager.clock, ManualClock)
    return manager.clock


def advance(manager: LogManager, duration_ms: int) -> None:
    """Advance the clock and run due tasks."""
    clock_of(manager).advance(duration_ms)
    manager.run_due()


def one_batch(*entries: tuple[str, str | None], timestamp_ms: int) -> bytes:
    records = [
        Record(delta, timestamp_ms, key.encode(), None if value is None else value.encode())
        for delta, (key, value) in enumerate(entries)
    ]
    return encode_batch(records, base_offset=0)


def append(log: PartitionLog, *entries: tuple[str, str | None], timestamp_ms: int | None = None) -> int:
    """Append each (key, value) as a batch of its own, and raise the high watermark; returns the last offset."""
    offset = -1
    for entry in entries:
        offset = log.append_as_leader(one_batch(entry, timestamp_ms=timestamp_ms or log._clock()), 0).last_offset
    log.maybe_increment_high_watermark()
    return offset


def records_of(log: PartitionLog) -> list[Record]:
    """Return all records that a reader sees, in order."""
    found: list[Record] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        data = log.read(offset, 1 << 20, min_one_message=True).read()
        batches = [batch for _, batch in file_batches(data)]
        if not batches:
            return found
        for batch in batches:
            found += [record for record in batch.records() if record.offset >= offset]
        offset = batches[-1].last_offset + 1
    return found


def latest_of(log: PartitionLog) -> dict[bytes, bytes]:
    """Return the latest value per key, as a consumer has it after reading everything."""
    latest: dict[bytes, bytes] = {}
    for record in records_of(log):
        assert record.key is not None
        if record.value is None:
            latest.pop(record.key, None)
        else:
            latest[record.key] = record.value
    return latest


def dirty_log(manager: LogManager, partition: TopicPartition = T0, rounds: int = 6) -> PartitionLog:
    """Make a log of two keys with `rounds` batches each, so that only their last values survive cleaning."""
    log = manager.create_log(partition)
    for number in range(rounds):
        append(log, ("a", str(number % 10)), ("b", str(number % 10)))
    return log


class FailingFile(OpenFile):
    """An open file of a FailingFs."""

    __slots__ = ("_check",)

    def __init__(self, check: Callable[[Path], None], path: Path, *, create: bool) -> None:
        self._check = check
        OpenFile.__init__(self, path, create=create)

    def read(self, position: int, count: int) -> bytes:
        self._check(self.path)
        return super().read(position, count)

    def read_into(self, target: memoryview, position: int) -> int:
        self._check(self.path)
        return super().read_into(target, position)

    def send(self, target: socket.socket, position: int, count: int) -> int:
        self._check(self.path)
        return super().send(target, position, count)

    def map(self, size_bytes: int) -> FileMapping:
        self._check(self.path)
        return super().map(size_bytes)

    def write(self, content: Buffer, position: int) -> None:
        self._check(self.path)
        super().write(content, position)

    def resize(self, size_bytes: int) -> None:
        self._check(self.path)
        super().resize(size_bytes)

    def sync(self) -> None:
        self._check(self.path)
        super().sync()


class FailingFs(Fs):
    """The local filesystem; what is in `broken` or below fails with EIO, be it read, written or synced.

    Only memory that was mapped before is read on.
    """

    def __init__(self) -> None:
        self.broken: set[Path] = set()

    def write_new(self, path: Path, chunks: Any) -> int:
        self._check(path)
        return super().write_new(path, chunks)

    def replace_file(self, path: Path, content: bytes, *, like: Path | None = None) -> None:
        self._check(path)
        super().replace_file(path, content, like=like)

    def open_file(self, path: Path) -> Any:
        self._check(path)
        return FailingFile(self._check, path, create=False)

    def open_to_read(self, path: Path) -> int:
        self._check(path)
        return super().open_to_read(path)

    def create_file(self, path: Path, *, like: Path) -> Any:
        self._check(path)
        is_new = not path.exists()
        file = FailingFile(self._check, path, create=True)
        if is_new:
            self.adopt_owner(path, like)
        return file

    def make_directory(self, path: Path, *, like: Path | None = None) -> None:
        self._check(path)
        super().make_directory(path, like=like)

    def sync_file(self, path: Path) -> None:
        self._check(path)
        super().sync_file(path)

    def sync_directory(self, path: Path) -> None:
        self._check(path)
        super().sync_directory(path)

    def rename(self, source: Path, target: Path) -> None:
        self._check(source)
        super().rename(source, target)

    def unlink(self, path: Path, *, missing_ok: bool = False) -> None:
        self._check(path)
        super().unlink(path, missing_ok=missing_ok)

    def read_bytes(self, path: Path) -> bytes:
        self._check(path)
        return super().read_bytes(path)

    def scan(self, directory: Path) -> Any:
        self._check(directory)
        return super().scan(directory)

    def file_names(self, directory: Path) -> list[str]:
        self._check(directory)
        return super().file_names(directory)

    def _check(self, path: Path) -> None:
        if any(path.is_relative_to(broken) for broken in self.broken):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))


def corrupt(log, base_offset=0):
    """Turn a bit in a batch of a rolled segment."""
    path = log.directory / f"{base_offset:020d}.log"
    content = bytearray(path.read_bytes())
    content[65] ^= 1
    path.write_bytes(content)


def open_files_below(directory):
    """Paths of the descriptors that this process has open in a directory."""
    paths = []
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            paths.append(str(entry.readlink()))
    return sorted(path for path in paths if path.startswith(f"{directory}/"))


class ShortFs(Fs):
    """The local filesystem; while it `is_short`, nothing can be opened any more."""

    def __init__(self) -> None:
        self.is_short = False
        self.left = 0
        """So many files can still be opened although it is short."""

    def _check(self, path: Path | None = None) -> None:
        if self.is_short:
            if self.left <= 0:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), None if path is None else str(path))
            self.left -= 1

    def require_descriptors(self, count: int) -> None:
        if self.is_short and self.left < count:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    def open_file(self, path: Path) -> OpenFile:
        self._check(path)
        return super().open_file(path)

    def create_file(self, path: Path, *, like: Path) -> OpenFile:
        self._check(path)
        return super().create_file(path, like=like)

    def scan(self, directory: Path) -> list[FileEntry]:
        self._check(directory)
        return super().scan(directory)

    def file_names(self, directory: Path) -> list[str]:
        self._check(directory)
        return super().file_names(directory)

    def read_bytes(self, path: Path) -> bytes:
        self._check(path)
        return super().read_bytes(path)

    def open_to_read(self, path: Path) -> int:
        self._check(path)
        return super().open_to_read(path)

    def write_new(self, path: Path, chunks: Iterable[Buffer]) -> int:
        self._check(path)
        return super().write_new(path, chunks)

    def sync_file(self, path: Path) -> None:
        self._check(path)
        super().sync_file(path)

    def sync_directory(self, path: Path) -> None:
        self._check(path)
        super().sync_directory(path)


@contextmanager
def short(fs: ShortFs, left: int = 0) -> Iterator[None]:
    fs.is_short, fs.left = True, left
    try:
        yield
    finally:
        fs.is_short = False

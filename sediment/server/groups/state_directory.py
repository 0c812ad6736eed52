"""StateDirectory: offsets that consumers commit to a read-only server, stored durably outside the log directories.

* `DIR/.lock` allows only one server at a time.
* `DIR/__consumer_offsets-0/00000000000000000000.log` contains commits as Kafka's records, one batch for each commit.

Invariants: a commit is on disk before `append` returns. After a failed write or sync, the file is not used again. The
next commit rewrites the log from the offsets in memory, which include only acknowledged commits. The log is also
rewritten when it is several times as large as after the last rewrite.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

from sediment.engine.directory.lock import DirectoryLock
from sediment.segment_io.errors import UsageError
from sediment.segment_io.format.batch_builder import BatchHead, NewRecord, build_batch
from sediment.segment_io.format.names import LOCK_FILE, SegmentFileKind, TopicPartition, segment_file_name
from sediment.segment_io.fs import Fs, OpenFile, without_links
from sediment.segment_io.internal_topics.coordinator_records import CONSUMER_OFFSETS
from sediment.segment_io.partition.slices import ALL
from sediment.segment_io.partition.sources import Source
from sediment.server.coordinator_log import CoordinatorLog
from sediment.server.groups.group_offsets import CommittedOffset, GroupOffsets
from sediment.server.groups.offset_records import encode_offset_commit
from sediment.server.groups.stored_groups import replay_groups

_PARTITION = TopicPartition(CONSUMER_OFFSETS, 0)
_RECORDS_PER_BATCH = 1000
_LEAST_BYTES_TO_REWRITE = 64 << 20
_GROWTH_TO_REWRITE = 4


class StateDirectory:
    """The commits of a server, in memory and on disk; any thread may call the methods."""

    def __init__(self, path: Path, log_directories: Iterable[Path], fs: Fs) -> None:
        _check_location(path, log_directories)
        if not fs.exists(path):
            fs.make_directory(path)
        others = {entry.name for entry in fs.scan(path)} - {LOCK_FILE, str(_PARTITION)}
        if others:
            raise UsageError(
                f"the state directory contains other files, such as {min(others)}",
                path=str(path),
                advice="give an empty directory, or the state directory of an earlier server",
            )
        self._fs = fs
        self._directory = path / str(_PARTITION)
        self._path = self._directory / segment_file_name(0, SegmentFileKind.LOG)
        self._guard = threading.Lock()
        self._file: OpenFile | None = None
        self._size_bytes = self._rewritten_bytes = self._end_offset = 0
        self._lock = DirectoryLock(path)
        self._lock.acquire()
        try:
            if not fs.exists(self._directory):
                fs.make_directory(self._directory)
            log = CoordinatorLog(Source(_PARTITION, self._directory), ALL)
            self._offsets = {group_id: group.offsets for group_id, group in replay_groups(log, fs).items()}
            self._rewrite()
        except BaseException:
            self._lock.release()
            raise

    @property
    def offsets(self) -> Mapping[str, GroupOffsets]:
        return self._offsets

    def append(
        self, group_id: str, commits: Sequence[tuple[str, int, CommittedOffset]]
    ) -> Sequence[tuple[str, int, CommittedOffset]]:
        with self._guard:
            if self._file is None or self._has_grown():
                self._rewrite()
            batch = self._batch([(group_id, *commit) for commit in commits])
            try:
                assert self._file is not None
                self._file.write(batch, self._size_bytes)
                self._file.sync()
            except OSError:
                self._file = None
                raise
            self._size_bytes += len(batch)
            self._end_offset += len(commits)
            offsets = self._offsets.setdefault(group_id, GroupOffsets())
            for topic, partition, value in commits:
                offsets.commit(topic, partition, value)
        return commits

    def close(self) -> None:
        with self._guard:
            if self._file is not None:
                self._file.close()
                self._file = None
            self._lock.release()

    def _has_grown(self) -> bool:
        return self._size_bytes > max(_LEAST_BYTES_TO_REWRITE, _GROWTH_TO_REWRITE * self._rewritten_bytes)

    def _rewrite(self) -> None:
        temporary = self._path.with_name(self._path.name + ".tmp")
        self._fs.unlink(temporary, missing_ok=True)
        self._end_offset = 0
        self._size_bytes = self._rewritten_bytes = self._fs.write_new(temporary, self._current_batches())
        self._fs.sync_file(temporary)
        self._fs.rename(temporary, self._path)
        self._fs.sync_directory(self._directory)
        self._file = self._fs.open_file(self._path)

    def _current_batches(self) -> Iterator[bytes]:
        commits = ((group_id, *commit) for group_id, offsets in self._offsets.items() for commit in offsets)
        while batch := list(islice(commits, _RECORDS_PER_BATCH)):
            yield self._batch(batch)
            self._end_offset += len(batch)

    def _batch(self, commits: Sequence[tuple[str, str, int, CommittedOffset]]) -> bytes:
        records = [
            NewRecord(value.commit_timestamp_ms, *encode_offset_commit(group_id, topic, partition, value))
            for group_id, topic, partition, value in commits
        ]
        return build_batch(records, BatchHead(base_offset=self._end_offset, leader_epoch=0))


def _check_location(path: Path, log_directories: Iterable[Path]) -> None:
    """Raise UsageError if `path`, with links resolved, is one of `log_directories` or is inside one."""
    resolved = without_links(path)
    for directory in log_directories:
        if resolved.is_relative_to(without_links(directory)):
            raise UsageError(
                f"the state directory is inside the log directory {directory}",
                path=str(path),
                advice="give another directory; nothing is written into a log directory that is served read-only",
            )

"""The identity of a partition, which changes if the partition is deleted and created again.

The topic id in `partition.metadata` identifies a partition.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from sediment.segment_io.errors import SedimentError
from sediment.segment_io.format.names import PARTITION_METADATA_FILE
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import read_partition_metadata
from sediment.segment_io.partition.sources import Source


@dataclass(frozen=True, slots=True)
class PartitionIdentity:
    """`created_ns` is the time at which the directory was created, or None if the system does not tell."""

    topic_id: str | None
    inode: int
    created_ns: int | None

    @classmethod
    def of(cls, source: Source, fs: Fs) -> PartitionIdentity:
        topic_id = None
        # If `partition.metadata` cannot be read, the directory identifies the partition.
        with contextlib.suppress(SedimentError, OSError):
            topic_id = read_partition_metadata(fs, source.directory / PARTITION_METADATA_FILE)
        return cls(topic_id, source.directory.stat().st_ino, fs.created_ns(source.directory))

    @property
    def directory(self) -> str:
        """The directory as text, which stays the same as long as the directory exists, and differs for a copy."""
        return str(self.inode) if self.created_ns is None else f"{self.inode}-{self.created_ns}"

    def is_same(self, other: PartitionIdentity) -> bool:
        if self.topic_id is None or other.topic_id is None:
            # A topic of a ZooKeeper broker may have no id.  Then the directory identifies the partition: its inode, and
            # the time of its creation, because filesystems use inodes again.
            return self.directory == other.directory
        return self.topic_id == other.topic_id


class Identities:
    """The identities of partitions; a topic id is read again only after the directory has changed."""

    def __init__(self, fs: Fs) -> None:
        self._fs = fs
        self._known: dict[Path, tuple[tuple[int, int], PartitionIdentity]] = {}

    def of(self, source: Source) -> PartitionIdentity:
        # A new or renamed file changes the time of its directory.  So if the time is the same, no topic id was written.
        found = source.directory.stat()
        state = (found.st_ino, found.st_mtime_ns)
        known = self._known.get(source.directory)
        if known is None or known[0] != state:
            known = (state, PartitionIdentity.of(source, self._fs))
            self._known[source.directory] = known
        return known[1]

"""The identity of a partition, by which one that was deleted and created again is another partition."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from sediment.segment_io.errors import SedimentError
from sediment.segment_io.format.names import PARTITION_METADATA_FILE
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import read_partition_metadata
from sediment.segment_io.partition.sources import Source


@dataclass(frozen=True, slots=True)
class PartitionIdentity:
    """Identity of a partition in its directory; `topic_id` is None without `partition.metadata`."""

    topic_id: str | None
    inode: int

    @classmethod
    def of(cls, source: Source, fs: Fs) -> PartitionIdentity:
        """Return the identity of the partition of `source`.

        Raises:
            FileNotFoundError: the directory does not exist.
        """
        topic_id = None
        with contextlib.suppress(SedimentError):
            topic_id = read_partition_metadata(fs, source.directory / PARTITION_METADATA_FILE)
        return cls(topic_id, source.directory.stat().st_ino)

    def is_same(self, other: PartitionIdentity) -> bool:
        """Return True if both identify the same partition: compare topic ids if both are known, else directories."""
        if self.topic_id is None or other.topic_id is None:
            return self.inode == other.inode
        return self.topic_id == other.topic_id

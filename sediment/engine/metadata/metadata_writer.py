"""MetadataWriter: the interface to the durable metadata of a single-node cluster.

MetadataLogWriter   a node that has been started: records are appended to its metadata log
BootstrapWriter     a node that was never started: `bootstrap.checkpoint` is replaced
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class MetadataWriter(Protocol):
    """A writer of metadata records; safe for several threads."""

    def append(self, values: Sequence[bytes]) -> None:
        """Make the records `values`, as encoded by `encode_metadata_record`, durable as one change of the cluster.

        Raises:
            CommitStateUnknownError: the write broke off; the metadata may or may not have the records.
            StorageError: an earlier write failed; nothing changed.
        """
        ...

    def close(self) -> None:
        """Close the files, as for a clean stop."""
        ...

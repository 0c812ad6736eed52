"""MetadataWriter: the interface to the durable metadata of a single-node cluster.

MetadataLogWriter   appends records to the metadata log of a node that has been started
BootstrapWriter     replaces the `bootstrap.checkpoint` of a node that was never started
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from sediment.segment_io.errors import StorageError

DirectoryFailure = Callable[[], str | None]
"""A function that returns the reason why the log directory of the metadata is offline; None while it is online."""

DiskFailed = Callable[[OSError], None]
"""A function that takes the log directory of the metadata offline because its disk failed."""


def ignore_disk_failure(_error: OSError) -> None: ...
def never_fails() -> str | None:
    return None


def check_metadata_online(path: Path, failure: DirectoryFailure) -> None:
    reason = failure()
    if reason is not None:
        raise StorageError(
            f"the log directory with the metadata has failed: {reason}",
            path=str(path),
            advice="repair it and start again",
        )


def check_open(path: Path, is_closed: bool) -> None:
    # After the writer is closed, another process may own the directory.
    if is_closed:
        raise StorageError("the server has stopped", path=str(path), advice="start it again")


class MetadataPosition(NamedTuple):
    leader_epoch: int
    end_offset: int


class MetadataWriter(Protocol):
    """A writer of metadata records; any thread may use it."""

    @property
    def position(self) -> MetadataPosition: ...
    def append(self, values: Sequence[bytes]) -> None:
        """Make the records `values`, as encoded by `encode_metadata_record`, durable as one atomic change."""
        ...

    def close(self) -> None: ...

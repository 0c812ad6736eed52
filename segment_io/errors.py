"""The exception tree.

SedimentError
 ├── CorruptDataError          bytes on disk contradict their format
 │    ├── CorruptBatchError         a record batch or a record in it
 │    ├── CorruptIndexError         an offset, time or transaction index
 │    │    ├── IndexOrderError           an entry would go back behind the last one
 │    │    └── IndexOffsetOverflowError  an offset does not fit 31 bits above the segment's base
 │    ├── CorruptSnapshotError      a producer snapshot
 │    └── CorruptCheckpointError    a checkpoint or metadata file
 ├── UnsupportedDataError      well-formed, but of a kind this version does not read (a codec, a magic)
 ├── UsageError                wrong use; nothing was touched
 │    ├── NotALogDirectoryError
 │    └── SettingsError
 ├── OwnershipError            the directory is not ours to change now
 │    ├── DirectoryInUseError       another process holds `.lock`
 │    ├── LockLostError             `.lock` was replaced under us
 │    ├── SourceChangedError        files are not those that were planned
 │    ├── UncleanDirectoryError     the last stop was not clean; `recover` first
 │    └── OwnerNotKeptError         new files could not get the owner, group and mode of the old
 ├── NoSpaceError              the disk cannot hold the result
 ├── IndexFullError            an index cannot hold one more entry
 ├── MapFullError              the offset map cannot hold one more key
 └── CommitStateUnknownError   a commit began and its outcome is not known; the next start repairs it

An error is one sentence for a person: what, where (partition, path, position in bytes, offset in the log) and what to
do.
It survives pickling, because tasks raise it on executors.
"""

from __future__ import annotations

from typing import Any


class SedimentError(Exception):
    """Root of the tree.

    `partition` is `topic-N`, `path` the file or directory, `position` a byte position in `path`, `offset` a log offset,
    `advice` what the user can do.  All are optional and all are part of `str(error)`.
    """

    def __init__(
        self,
        what: str,
        *,
        partition: str | None = None,
        path: str | None = None,
        position: int | None = None,
        offset: int | None = None,
        advice: str | None = None,
    ) -> None:
        super().__init__(what)
        self.what = what
        self.partition = partition
        self.path = path
        self.position = position
        self.offset = offset
        self.advice = advice

    def __str__(self) -> str:
        places = [
            f"{name} {value}"
            for name, value in (
                ("partition", self.partition),
                ("file", self.path),
                ("position", self.position),
                ("offset", self.offset),
            )
            if value is not None
        ]
        where = f" ({', '.join(places)})" if places else ""
        advice = f"; {self.advice}" if self.advice else ""
        return f"{self.what}{where}{advice}"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.__dict__.copy())


def _rebuild(kind: type[SedimentError], fields: dict[str, Any]) -> SedimentError:
    return kind(**fields)


class CorruptDataError(SedimentError):
    """Bytes on disk contradict their format."""


class CorruptBatchError(CorruptDataError):
    """A record batch, or a record in it, is malformed or fails its checksum."""


class CorruptIndexError(CorruptDataError):
    """An offset, time or transaction index contradicts its format."""


class IndexOrderError(CorruptIndexError):
    """An offset or timestamp goes back behind the last entry: batches of the log are out of order."""


class IndexOffsetOverflowError(CorruptIndexError):
    """An offset is below the base offset or more than 2^31 − 1 above it: the segment has to be split."""


class CorruptSnapshotError(CorruptDataError):
    """A producer snapshot is malformed or fails its checksum."""


class CorruptCheckpointError(CorruptDataError):
    """A checkpoint, leader epoch, partition.metadata or meta.properties file is malformed."""


class UnsupportedDataError(SedimentError):
    """Well-formed as far as can be told, but of a kind this version does not read."""


class UsageError(SedimentError):
    """Wrong use; nothing was touched."""


class NotALogDirectoryError(UsageError):
    """The path is not an entry of a broker's `log.dirs`."""


class SettingsError(UsageError):
    """A key or value of the settings is wrong."""


class OwnershipError(SedimentError):
    """The directory is not ours to change now."""


class DirectoryInUseError(OwnershipError):
    """Another process holds the directory's `.lock`."""


class LockLostError(OwnershipError):
    """The `.lock` file was replaced while we held it."""


class SourceChangedError(OwnershipError):
    """Files are not those that were planned: another disk under the same path, or another writer."""


class UncleanDirectoryError(OwnershipError):
    """The last stop of the broker was not clean; `sediment recover` repairs the directory first."""


class OwnerNotKeptError(OwnershipError):
    """New files could not get the owner, group and mode of those they replace."""


class NoSpaceError(SedimentError):
    """The disk cannot hold the result."""


class IndexFullError(SedimentError):
    """The index has no room for one more entry: `segment.index.bytes` is too small for the segment."""


class MapFullError(SedimentError):
    """The offset map cannot hold one more key; only maps bounded by `--set` can be full."""


class CommitStateUnknownError(SedimentError):
    """A commit began and its outcome could not be established.  The next run or broker start completes or undoes it."""

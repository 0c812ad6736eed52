"""The exception tree.

SedimentError
 ├── CorruptDataError          bytes on disk contradict their format
 │    ├── CorruptBatchError         a record batch or a record in it
 │    │    └── ExpandsTooFarError        its records have more bytes than the limit
 │    ├── CorruptIndexError         an offset, time or transaction index
 │    │    ├── IndexOrderError           an entry is not above the last one
 │    │    └── IndexOffsetOverflowError  an offset is more than 2^31 - 1 above the segment's base
 │    ├── CorruptSnapshotError      a producer snapshot
 │    └── CorruptCheckpointError    a checkpoint or metadata file
 ├── ProtocolError            a message contradicts its schema, or the schema cannot express it
 ├── UnsupportedDataError      well-formed, but not readable by this version (a codec, a magic)
 ├── LongWorkError            the work would take long, and others wait for this thread; nothing was changed
 ├── UsageError                wrong use; nothing was changed
 │    ├── NotALogDirectoryError
 │    ├── SettingsError
 │    ├── PolicyViolationError      the topic's cleanup.policy forbids the request
 │    └── InvalidTopicError         this topic does not support the request
 ├── OwnershipError            this process may not change the directory now
 │    ├── DirectoryInUseError       another process holds `.lock`
 │    ├── LockLostError             `.lock` was replaced while held
 │    ├── SourceChangedError        files changed after planning
 │    ├── UncleanDirectoryError     the last stop was not clean; run `recover` first
 │    └── OwnerNotKeptError         new files cannot get the owner, group and mode of the old files
 ├── RejectedAppendError       an append broke a rule of the log; nothing changed
 │    ├── InvalidRecordError        a batch or record breaks the rules of its topic
 │    │    └── RecordValidationError     as above, with a list of the invalid records
 │    ├── RecordTooLargeError       a batch above max.message.bytes
 │    ├── RecordBatchTooLargeError  an append above segment.bytes
 │    ├── UnsupportedForFormatError   the message format cannot express the batch
 │    ├── OffsetsOutOfOrderError    assigned offsets do not ascend
 │    ├── UnexpectedAppendOffsetError  assigned offsets are in the log, or their range is too large
 │    ├── OutOfOrderSequenceError   a producer's batch does not follow the producer's last batch
 │    ├── InvalidProducerEpochError    the producer was fenced
 │    ├── InvalidTransactionStateError  a batch is outside its transaction
 │    └── TransactionCoordinatorFencedError  a marker of a replaced coordinator
 ├── OffsetOutOfRangeError     the log does not contain that offset
 ├── StorageError              the disk failed; the log is offline
 ├── OpenFilesLimitError       the process has no free file descriptors; the disk is healthy
 ├── NoSpaceError              the disk cannot hold the result
 ├── RecordsWouldBeLostError   records cannot be kept before they are cut off; nothing was changed
 ├── IndexFullError            an index has no room for another entry
 ├── MapFullError              the offset map has no room for another key
 ├── MemoryBudgetError         a task needs more memory than its limit
 ├── HashCollisionError        two keys have the same hash, and the run compares whole keys
 ├── LimitReachedError         a limit of the run is reached
 ├── DeclinedError             the user declined; nothing was changed
 ├── RunFailedError            some partitions of a run failed; the others are done
 ├── CleaningAbortedError      another thread needs the partition; its cleaning changed nothing
 └── CommitStateUnknownError   the outcome of a commit is unknown; the next start repairs it
      └── ReplacedFilesLeftError    the commit is done; the next start removes the old files

The text of an error is one sentence for an operator.  It states the fact, its location (partition, path, position in
bytes, offset in the log) and the next action.  Errors can be pickled, because tasks raise them on executors.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from sediment.segment_io.printable import error_line
from sediment.segment_io.uris import public_uri

RESTORE_OR_LEAVE_OUT = "restore the segment from a replica or a backup, or leave this partition out"
"""The advice for a segment whose records cannot be read."""

_MOST_NAMED = 5


class SedimentError(Exception):
    """The root of the tree.

    `partition` is `topic-N`, and `path` is the file or directory.  `position` is a byte position in `path`, and
    `offset` is a log offset.  `advice` is the next action.  All these fields are optional, and all are part of
    `str(error)`.
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
        locations = [
            f"{name} {value}"
            for name, value in (
                ("partition", self.partition),
                ("file", None if self.path is None else public_uri(self.path)),
                ("position", self.position),
                ("offset", self.offset),
            )
            if value is not None
        ]
        where = f" ({', '.join(locations)})" if locations else ""
        advice = f"; {self.advice}" if self.advice else ""
        # The name or content of a file may contain terminal commands and characters that cannot be encoded.
        return error_line(f"{self.what}{where}{advice}")

    @property
    def reason_code(self) -> str:
        """The kind of the error, for programs; for example, `corrupt-batch` for `CorruptBatchError`."""
        return re.sub(r"(?<!^)(?=[A-Z])", "-", type(self).__name__.removesuffix("Error")).lower()

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.__dict__.copy())


def _rebuild(kind: type[SedimentError], fields: dict[str, Any]) -> SedimentError:
    return kind(**fields)


class CorruptDataError(SedimentError):
    pass


class CorruptBatchError(CorruptDataError):
    """A record batch, or a record in it, is malformed or fails its checksum."""


class ExpandsTooFarError(CorruptBatchError):
    pass


class CorruptIndexError(CorruptDataError):
    pass


class IndexOrderError(CorruptIndexError):
    """An offset or timestamp does not follow the last index entry: batches of the log are out of order."""


class IndexOffsetOverflowError(CorruptIndexError):
    """An offset is below the segment's base offset or more than 2^31 − 1 above it; the segment must be split."""


class CorruptSnapshotError(CorruptDataError):
    pass


class CorruptCheckpointError(CorruptDataError):
    """A checkpoint, leader epoch, partition.metadata or meta.properties file is malformed."""


class ProtocolError(SedimentError):
    """A message of Kafka's protocol contradicts its schema, or has a version without a schema.

    `api` is the message's name.  `position` is the approximate point at which decoding stopped, in bytes from the
    message's start.
    """

    def __init__(self, what: str, *, api: str = "", version: int = -1, **locations: Any) -> None:
        super().__init__(what, **locations)
        self.api = api
        self.version = version


class LongWorkError(SedimentError):
    pass


class UnsupportedDataError(SedimentError):
    pass


class UsageError(SedimentError):
    """Wrong use; nothing was changed."""


class NotALogDirectoryError(UsageError):
    """The path is not an entry of a broker's `log.dirs`."""


class SettingsError(UsageError):
    pass


class PolicyViolationError(UsageError):
    """The topic's cleanup.policy forbids the request (Kafka's PolicyViolationException)."""


class InvalidTopicError(UsageError):
    """This topic does not support the request (Kafka's InvalidTopicException)."""


class OwnershipError(SedimentError):
    pass


class DirectoryInUseError(OwnershipError):
    pass


class LockLostError(OwnershipError):
    pass


class SourceChangedError(OwnershipError):
    """Files differ from the plan: the path leads to another disk, or another process has changed the files."""


class UncleanDirectoryError(OwnershipError):
    pass


class OwnerNotKeptError(OwnershipError):
    pass


class RejectedAppendError(SedimentError):
    """An append broke a rule of the log; nothing visible to readers changed."""


class InvalidRecordError(RejectedAppendError):
    """A batch or record breaks the rules of its topic (Kafka's InvalidRecordException)."""


class RecordValidationError(InvalidRecordError):
    """Records of a batch break the rules of their topic (Kafka's RecordValidationException).

    `record_errors` are pairs (index of the record in its batch, reason), sorted by index.  `has_invalid_timestamp` is
    True if one of the reasons is an invalid timestamp; in this case, Kafka raises InvalidTimestampException.
    """

    def __init__(
        self,
        what: str,
        *,
        record_errors: tuple[tuple[int, str], ...] = (),
        has_invalid_timestamp: bool = False,
        **locations: Any,
    ) -> None:
        super().__init__(what, **locations)
        self.record_errors = record_errors
        self.has_invalid_timestamp = has_invalid_timestamp


class RecordTooLargeError(RejectedAppendError):
    pass


class RecordBatchTooLargeError(RejectedAppendError):
    pass


class UnsupportedForFormatError(RejectedAppendError):
    """The message format cannot express the batch (Kafka's UnsupportedForMessageFormatException)."""


class OffsetsOutOfOrderError(RejectedAppendError):
    pass


class UnexpectedAppendOffsetError(RejectedAppendError):
    """Batches with assigned offsets begin below the log end offset, or span more than a segment's 2^31 offsets.

    `first_offset` and `last_offset` are the offsets of the append.
    """

    def __init__(self, what: str, *, first_offset: int = -1, last_offset: int = -1, **locations: Any) -> None:
        super().__init__(what, **locations)
        self.first_offset = first_offset
        self.last_offset = last_offset


class OutOfOrderSequenceError(RejectedAppendError):
    pass


class InvalidProducerEpochError(RejectedAppendError):
    pass


class InvalidTransactionStateError(RejectedAppendError):
    """A batch is outside its transaction, or its transaction was not verified."""


class TransactionCoordinatorFencedError(RejectedAppendError):
    pass


class OffsetOutOfRangeError(SedimentError):
    pass


class StorageError(SedimentError):
    """The disk failed, so the log is offline (Kafka's KafkaStorageException)."""


class OpenFilesLimitError(SedimentError):
    pass


class NoSpaceError(SedimentError):
    pass


class RecordsWouldBeLostError(SedimentError):
    pass


class IndexFullError(SedimentError):
    """The index is full: `segment.index.bytes` is too small for the segment."""


class MapFullError(SedimentError):
    """The offset map is full; this happens only if `--set` limits the map."""


class DeclinedError(SedimentError):
    pass


class PartitionFailure(NamedTuple):
    partition: str
    log_dir: str | None
    reason_code: str | None
    reason: str | None


class RunFailedError(SedimentError):
    """Some partitions of a run failed or were quarantined; the others are done."""

    def __init__(self, what: str, *, failures: tuple[PartitionFailure, ...] = (), **locations: Any) -> None:
        super().__init__(what, **locations)
        self.failures = failures

    def __str__(self) -> str:
        named = [f"{each.partition}: {each.reason or each.reason_code or 'wrong'}" for each in self.failures]
        shown, left = named[:_MOST_NAMED], len(named) - _MOST_NAMED
        more = [f"and {left} more"] if left > 0 else []
        return error_line("; ".join([super().__str__(), *shown, *more]))


class CleaningAbortedError(SedimentError):
    pass


class MemoryBudgetError(SedimentError):
    """Cleaning the partition needs more memory than `sediment.task.memory.bytes` allows for a task."""


class HashCollisionError(SedimentError):
    pass


class LimitReachedError(SedimentError):
    """A limit that the user set for the run is reached; the remaining partitions are unchanged."""


class CommitStateUnknownError(SedimentError):
    """The outcome of a commit is unknown; the next run or broker start completes or undoes the commit."""


class ReplacedFilesLeftError(CommitStateUnknownError):
    """A commit is done, but old files could not be removed; the next run or broker start removes them.

    An open log treats this error like a commit with an unknown outcome, because the disk has failed.
    """

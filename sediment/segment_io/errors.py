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
 │    ├── SettingsError
 │    ├── PolicyViolationError      the topic's policy does not allow it
 │    └── InvalidTopicError         not of this topic
 ├── OwnershipError            the directory is not ours to change now
 │    ├── DirectoryInUseError       another process holds `.lock`
 │    ├── LockLostError             `.lock` was replaced under us
 │    ├── SourceChangedError        files are not those that were planned
 │    ├── UncleanDirectoryError     the last stop was not clean; `recover` first
 │    └── OwnerNotKeptError         new files could not get the owner, group and mode of the old
 ├── RejectedAppendError       an append broke a rule of the log; nothing changed
 │    ├── InvalidRecordError        a batch or record that may not be appended
 │    │    └── RecordValidationError     records of a batch that may not; it lists them
 │    ├── RecordTooLargeError       a batch above max.message.bytes
 │    ├── RecordBatchTooLargeError  an append above segment.bytes
 │    ├── UnsupportedForFormatError   the message format cannot say what the batch says
 │    ├── OffsetsOutOfOrderError    given offsets do not ascend
 │    ├── UnexpectedAppendOffsetError  given offsets are in the log already
 │    ├── OutOfOrderSequenceError   a producer's batch does not follow its last one
 │    ├── InvalidProducerEpochError    the producer was fenced
 │    ├── InvalidTransactionStateError  a batch outside the transaction it should be in
 │    └── TransactionCoordinatorFencedError  a marker of an old coordinator
 ├── OffsetOutOfRangeError     the log does not hold that offset
 ├── StorageError              the disk failed; the log is offline
 ├── OpenFilesLimitError       the process may open no more files; nothing is wrong with the disk
 ├── NoSpaceError              the disk cannot hold the result
 ├── IndexFullError            an index cannot hold one more entry
 ├── MapFullError              the offset map cannot hold one more key
 ├── MemoryBudgetError         a task would need more memory than it is given
 ├── HashCollisionError        two different keys have one hash, and keys were to be told apart exactly
 ├── LimitReachedError         a limit that the user set ends the run here
 ├── DeclinedError             the user was asked and did not agree; nothing was changed
 ├── CleaningAbortedError      somebody asked for the partition while it was being cleaned; nothing was changed
 └── CommitStateUnknownError   a commit began and its outcome is not known; the next start repairs it

An error is one sentence for a person: what, where (partition, path, position in bytes, offset in the log) and what to
do.
It survives pickling, because tasks raise it on executors.
"""

from __future__ import annotations

import re
from typing import Any

from sediment.segment_io.printable import printable


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
        # A file's name or content may hold what a terminal obeys and what no encoding has.
        return printable(f"{self.what}{where}{advice}")

    @property
    def reason_code(self) -> str:
        """The kind of error for programs: `CorruptBatchError` is `corrupt-batch`."""
        return re.sub(r"(?<!^)(?=[A-Z])", "-", type(self).__name__.removesuffix("Error")).lower()

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


class PolicyViolationError(UsageError):
    """The topic's cleanup.policy does not allow what was asked for (Kafka's PolicyViolationException)."""


class InvalidTopicError(UsageError):
    """What was asked for is not done to this topic (Kafka's InvalidTopicException)."""


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


class RejectedAppendError(SedimentError):
    """An append broke a rule of the log; nothing that a reader can see has changed."""


class InvalidRecordError(RejectedAppendError):
    """A batch or record that may not be appended as it is (Kafka's InvalidRecordException)."""


class RecordValidationError(InvalidRecordError):
    """Records of a batch that may not be appended (Kafka's RecordValidationException).

    `record_errors` are (index of the record in its batch, what is wrong), ascending; `has_invalid_timestamp` says that
    a timestamp is among them, which Kafka answers as InvalidTimestampException.
    """

    def __init__(
        self,
        what: str,
        *,
        record_errors: tuple[tuple[int, str], ...] = (),
        has_invalid_timestamp: bool = False,
        **places: Any,
    ) -> None:
        super().__init__(what, **places)
        self.record_errors = record_errors
        self.has_invalid_timestamp = has_invalid_timestamp


class RecordTooLargeError(RejectedAppendError):
    """A batch is larger than `max.message.bytes`."""


class RecordBatchTooLargeError(RejectedAppendError):
    """An append is larger than `segment.bytes`."""


class UnsupportedForFormatError(RejectedAppendError):
    """The message format of the batch cannot express what is asked (Kafka's UnsupportedForMessageFormatException)."""


class OffsetsOutOfOrderError(RejectedAppendError):
    """The offsets of batches that bring their own do not ascend."""


class UnexpectedAppendOffsetError(RejectedAppendError):
    """Batches that bring their own offsets begin below the log end offset.

    `first_offset` and `last_offset` are those of the append.
    """

    def __init__(self, what: str, *, first_offset: int = -1, last_offset: int = -1, **places: Any) -> None:
        super().__init__(what, **places)
        self.first_offset = first_offset
        self.last_offset = last_offset


class OutOfOrderSequenceError(RejectedAppendError):
    """A producer's batch does not follow the last one of that producer."""


class InvalidProducerEpochError(RejectedAppendError):
    """A producer writes under an epoch that was fenced."""


class InvalidTransactionStateError(RejectedAppendError):
    """A batch is outside the transaction that it should be in, or its transaction was not verified."""


class TransactionCoordinatorFencedError(RejectedAppendError):
    """A marker comes from a coordinator that was replaced."""


class OffsetOutOfRangeError(SedimentError):
    """The log does not hold that offset."""


class StorageError(SedimentError):
    """The disk failed, so the log is offline (Kafka's KafkaStorageException)."""


class OpenFilesLimitError(SedimentError):
    """The process or the system may open no more files; no disk failed."""


class NoSpaceError(SedimentError):
    """The disk cannot hold the result."""


class IndexFullError(SedimentError):
    """The index has no room for one more entry: `segment.index.bytes` is too small for the segment."""


class MapFullError(SedimentError):
    """The offset map cannot hold one more key; only maps bounded by `--set` can be full."""


class DeclinedError(SedimentError):
    """The user was asked and did not agree; nothing was changed."""


class CleaningAbortedError(SedimentError):
    """Somebody asked for the partition while it was being cleaned; nothing was changed."""


class MemoryBudgetError(SedimentError):
    """Cleaning the partition needs more memory than `sediment.task.memory.bytes` gives a task."""


class HashCollisionError(SedimentError):
    """Two different keys have one 128-bit hash; raised only where whole keys are compared."""


class LimitReachedError(SedimentError):
    """A limit that the user set for the run is reached; what was not done is left as it was."""


class CommitStateUnknownError(SedimentError):
    """A commit began and its outcome could not be established.  The next run or broker start completes or undoes it."""

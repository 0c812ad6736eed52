"""The mapping from Sediment's errors to the error codes of Kafka's protocol.

Source: Kafka 4.2.0, Errors.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sediment.segment_io.errors import (
    CommitStateUnknownError,
    CorruptDataError,
    InvalidProducerEpochError,
    InvalidRecordError,
    InvalidTopicError,
    InvalidTransactionStateError,
    OffsetOutOfRangeError,
    OpenFilesLimitError,
    OutOfOrderSequenceError,
    PolicyViolationError,
    RecordBatchTooLargeError,
    RecordTooLargeError,
    RecordValidationError,
    SedimentError,
    StorageError,
    TransactionCoordinatorFencedError,
    UnsupportedDataError,
    UnsupportedForFormatError,
    UsageError,
)
from sediment.segment_io.protocol.error_codes import ErrorCode

_CODES: tuple[tuple[type[BaseException], ErrorCode], ...] = (
    (OffsetOutOfRangeError, ErrorCode.OFFSET_OUT_OF_RANGE),
    (StorageError, ErrorCode.KAFKA_STORAGE_ERROR),
    (OpenFilesLimitError, ErrorCode.KAFKA_STORAGE_ERROR),
    (OSError, ErrorCode.KAFKA_STORAGE_ERROR),
    (CommitStateUnknownError, ErrorCode.KAFKA_STORAGE_ERROR),
    (RecordTooLargeError, ErrorCode.MESSAGE_TOO_LARGE),
    (RecordBatchTooLargeError, ErrorCode.RECORD_LIST_TOO_LARGE),
    (InvalidRecordError, ErrorCode.INVALID_RECORD),
    (UnsupportedForFormatError, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
    (OutOfOrderSequenceError, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
    (InvalidProducerEpochError, ErrorCode.INVALID_PRODUCER_EPOCH),
    (InvalidTransactionStateError, ErrorCode.INVALID_TXN_STATE),
    (TransactionCoordinatorFencedError, ErrorCode.TRANSACTION_COORDINATOR_FENCED),
    # CORRUPT_MESSAGE would make a client retry without success, because the bytes of a log never change.
    (CorruptDataError, ErrorCode.UNKNOWN_SERVER_ERROR),
    (UnsupportedDataError, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
    (InvalidTopicError, ErrorCode.INVALID_TOPIC_EXCEPTION),
    (PolicyViolationError, ErrorCode.POLICY_VIOLATION),
    (UsageError, ErrorCode.INVALID_REQUEST),
)


class ApiError(SedimentError):
    """An error of Kafka's protocol; `message` is the text for the client, or None (Kafka's ApiError)."""

    def __init__(self, code: ErrorCode, message: str | None = None) -> None:
        super().__init__(message or code.name)
        self.code = code
        self.message = message


class StartStoppedError(SedimentError):
    def __init__(self) -> None:
        super().__init__("the server was stopped before it had finished starting", advice="start it again")


def error_code_of(error: BaseException) -> ErrorCode:
    if isinstance(error, ApiError):
        return error.code
    return next((code for kind, code in _CODES if isinstance(error, kind)), ErrorCode.UNKNOWN_SERVER_ERROR)


def append_error_code_of(error: BaseException) -> ErrorCode:
    """The code for corrupt bytes lets the client retry, because the bytes came from the client."""
    if isinstance(error, CorruptDataError):
        return ErrorCode.CORRUPT_MESSAGE
    if isinstance(error, RecordValidationError) and error.has_invalid_timestamp:
        return ErrorCode.INVALID_TIMESTAMP
    return error_code_of(error)


@contextmanager
def naming_option(option: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"{option} cannot be used: {(error.strerror or str(error)).lower()}",
            path=str(path),
            advice="give a path that this user may write to",
        ) from error

"""Errors of Sediment as error codes of Kafka's protocol."""

from __future__ import annotations

from sediment.segment_io.errors import (
    CorruptDataError,
    InvalidTopicError,
    OffsetOutOfRangeError,
    OpenFilesLimitError,
    PolicyViolationError,
    StorageError,
    UnsupportedDataError,
    UsageError,
)
from sediment.segment_io.protocol.error_codes import ErrorCode

_CODES: tuple[tuple[type[BaseException], ErrorCode], ...] = (
    (OffsetOutOfRangeError, ErrorCode.OFFSET_OUT_OF_RANGE),
    (StorageError, ErrorCode.KAFKA_STORAGE_ERROR),
    (OpenFilesLimitError, ErrorCode.KAFKA_STORAGE_ERROR),
    (OSError, ErrorCode.KAFKA_STORAGE_ERROR),
    # CORRUPT_MESSAGE would be retried in vain, because the bytes of a read-only log never change.
    (CorruptDataError, ErrorCode.UNKNOWN_SERVER_ERROR),
    (UnsupportedDataError, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
    (InvalidTopicError, ErrorCode.INVALID_TOPIC_EXCEPTION),
    (PolicyViolationError, ErrorCode.POLICY_VIOLATION),
    (UsageError, ErrorCode.INVALID_REQUEST),
)


def error_code_of(error: BaseException) -> ErrorCode:
    """Return the code of the error's nearest base class in the table; UNKNOWN_SERVER_ERROR if there is none."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), ErrorCode.UNKNOWN_SERVER_ERROR)

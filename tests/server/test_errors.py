"""Errors of Sediment as codes that clients know."""

from __future__ import annotations

import pytest

from sediment.segment_io.errors import (
    CorruptBatchError,
    InvalidTopicError,
    OffsetOutOfRangeError,
    OpenFilesLimitError,
    SedimentError,
    StorageError,
    UnsupportedDataError,
    UsageError,
)
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.errors import error_code_of
from tests.retriable_errors import RETRIABLE


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OffsetOutOfRangeError("x"), ErrorCode.OFFSET_OUT_OF_RANGE),
        (StorageError("x"), ErrorCode.KAFKA_STORAGE_ERROR),
        (OpenFilesLimitError("x"), ErrorCode.KAFKA_STORAGE_ERROR),
        (OSError(5, "x"), ErrorCode.KAFKA_STORAGE_ERROR),
        (UnsupportedDataError("x"), ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
        (InvalidTopicError("x"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (UsageError("x"), ErrorCode.INVALID_REQUEST),
        (SedimentError("x"), ErrorCode.UNKNOWN_SERVER_ERROR),
        (ValueError("x"), ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_errors_have_the_code_of_their_class(error: Exception, code: ErrorCode) -> None:
    assert error_code_of(error) is code


def test_clients_do_not_read_corrupt_data_again_and_again() -> None:
    assert error_code_of(CorruptBatchError("x")) not in RETRIABLE

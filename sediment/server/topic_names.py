"""Kafka's rule for the names of topics, with Kafka's error messages.

Source: Kafka 4.2.0, Topic.validate.
"""

from __future__ import annotations

from sediment.segment_io.format.names import is_topic_name
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.errors import ApiError

_LONGEST_NAME = 249


def check_topic_name(name: str) -> None:
    if not is_topic_name(name):
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {_why_invalid(name)}")


def _why_invalid(name: str) -> str:
    if not name:
        return "the empty string is not allowed"
    if name in (".", ".."):
        return f"'{name}' is not allowed"
    if len(name) > _LONGEST_NAME:
        return f"the length of '{name}' is longer than the max allowed length {_LONGEST_NAME}"
    return f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"

"""The message classes of responses."""

from __future__ import annotations

from typing import Any

from sediment.segment_io.protocol import messages
from sediment.segment_io.protocol.api_keys import request_lines


def response_class(api_key: int) -> Any:
    """Return the message class of an API's responses."""
    return getattr(messages, request_lines()[api_key].name.removesuffix("Request") + "Response")

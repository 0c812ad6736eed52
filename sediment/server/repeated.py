"""Requests that a client repeats, which are answered without decoding, also a run of them that arrived together.

`handlers.repeated_produce` and `handlers.repeated_fetch` implement `RepeatedRequest`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from sediment.segment_io.compiled.padding import padded_buffer
from sediment.segment_io.protocol.api_keys import ApiKey
from sediment.segment_io.segment.append_run_kernels import MOST_IN_RUN, RUN_FIELDS


class ReceiveBuffer:
    def __init__(self, size_bytes: int) -> None:
        self._buffer = padded_buffer(size_bytes)
        self.memory = self._buffer.data[:size_bytes]
        """The buffer without its padding."""

        self.address = self._buffer.ctypes.data
        self.rows = np.zeros((MOST_IN_RUN, RUN_FIELDS), dtype=np.int64)


class AnsweredRun(NamedTuple):
    requests: int
    size_bytes: int
    """The number of received bytes of these requests, including the size fields of their frames."""

    responses: bytes | bytearray
    """The responses one after the other, each with its size field."""


class RepeatedRequest(Protocol):
    api_key: ApiKey
    api_version: int
    client_id: str | None

    @property
    def is_in_use(self) -> bool: ...

    has_runs: bool
    """False if `answer_run` always returns None."""

    def answer(self, frame: memoryview) -> tuple[int, Sequence[Any]] | None: ...

    def answer_run(self, received: ReceiveBuffer, start: int, end: int, largest_bytes: int) -> AnsweredRun | None:
        """Return None, and change nothing, if the first request must be decoded completely."""
        ...

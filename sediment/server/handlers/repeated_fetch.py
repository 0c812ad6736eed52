"""RepeatedFetch: a fast response to a fetch that differs in only two fields from an earlier fetch on its connection.

    request     ... | *correlation id* | ... | *fetch offset* | ...
    response    *correlation id* | ... | *size of the records* | *records* | tagged fields

A consumer of one partition sends nearly the same bytes in every fetch. Decoding such a request and encoding its
response would take longer than finding the records. So only the fields between asterisks are decoded or encoded. The
log start, the high watermark and the last stable offset of a read-only log never change.

Invariant: the response has the same bytes as a response that is encoded completely. Errors, fetches without data, and
reads with aborted transactions are always encoded completely.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from sediment.engine.live.log.fetched_data import Isolation
from sediment.segment_io.errors import ProtocolError, SedimentError
from sediment.segment_io.partition.file_slice import FileSlice
from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.headers import decode_request_header, encode_response_header
from sediment.segment_io.protocol.primitives import write_unsigned_varint
from sediment.server.repeated import ReceiveBuffer
from sediment.server.requests import Request
from sediment.server.topic_catalog import ServedLog

_LARGEST_FRAME_BYTES = 1024
"""The largest request that is remembered; client ids, racks and topic names are usually short."""

_MOST_MISSES = 16
"""After this many different fetches in a row, the remembered fetch is replaced, which costs as much as two fetches."""

_MOST_CANDIDATES = 4
_HEADER_BYTES = 4
"""API key and version."""

_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")


class RepeatedFetch:
    has_runs = False  # a client seldom sends a fetch before it has the response to the previous one

    __slots__ = (
        "_is_flexible",
        "_isolation",
        "_log",
        "_max_bytes",
        "_middle",
        "_misses",
        "_offset_position",
        "_request",
        "_response",
        "_response_end",
        "_size_bytes",
        "_start",
        "api_key",
        "api_version",
        "client_id",
    )

    def __init__(
        self, request: Request, response: Any, log: ServedLog, max_bytes: int, isolation: Isolation, position: int
    ) -> None:
        frame = bytes(request.frame)
        self.api_key = request.api_key
        self.api_version = version = request.api_version
        self.client_id = request.client_id
        self._log = log
        self._max_bytes = max_bytes
        self._isolation = isolation
        self._size_bytes = len(frame)
        self._start = frame[:_HEADER_BYTES]
        self._middle = frame[_HEADER_BYTES + _INT32.size : position]
        self._offset_position = position
        self._request = frame[position + _INT64.size :]
        self._is_flexible = m.FetchResponse.is_flexible(version)
        header = encode_response_header(request.api_key, version, 0)[_INT32.size :]
        first, records, *end = response.encode(version)
        self._response = header + first.removesuffix(self._size_field(records.size_bytes))
        self._response_end = tuple(end)
        self._misses = 0

    @classmethod
    def following(
        cls, request: Request, response: Any, log: ServedLog, max_bytes: int, isolation: Isolation
    ) -> RepeatedFetch | None:
        earlier = request.connection.repeated
        if (earlier is not None and earlier.is_in_use) or len(request.frame) > _LARGEST_FRAME_BYTES:
            return None
        position = _offset_position(request)
        return None if position is None else cls(request, response, log, max_bytes, isolation, position)

    @property
    def is_in_use(self) -> bool:
        return self._misses < _MOST_MISSES

    def answer(self, frame: memoryview) -> tuple[int, Sequence[bytes | memoryview | FileSlice]] | None:
        """Return None if the request differs, or if it must be decoded completely."""
        given = bytes(frame)
        position = self._offset_position
        if (
            len(given) != self._size_bytes
            or not given.startswith(self._start)
            or not given.startswith(self._middle, _HEADER_BYTES + _INT32.size)
            or not given.endswith(self._request)
        ):
            self._misses += 1
            return None
        self._misses = 0
        (offset,) = _INT64.unpack_from(given, position)
        try:
            fetched = self._log.read(offset, self._max_bytes, isolation=self._isolation, min_one=True)
        except (SedimentError, OSError):
            return None
        records = fetched.records
        if records is None or fetched.aborted:
            return None
        correlation = given[_HEADER_BYTES : _HEADER_BYTES + _INT32.size]
        first = correlation + self._response + self._size_field(records.size_bytes)
        return _INT32.unpack(correlation)[0], (first, records, *self._response_end)

    def answer_run(self, _received: ReceiveBuffer, _start: int, _end: int, _largest_bytes: int) -> None: ...
    def _size_field(self, size_bytes: int) -> bytes:
        return write_unsigned_varint(size_bytes + 1) if self._is_flexible else _INT32.pack(size_bytes)


def _offset_position(request: Request) -> int | None:
    # To verify the position, the frame is decoded with another value at this position. Only the fetch offset may then
    # differ.
    message = request.message
    asked = message.topics[0].partitions[0]
    frame = bytes(request.frame)
    start = len(frame) - len(decode_request_header(frame).body)
    known, other = _INT64.pack(asked.fetch_offset), ~asked.fetch_offset
    changed = m.FetchRequest.decode(frame[start:], request.api_version)
    changed.topics[0].partitions[0].fetch_offset = other
    position = len(frame)
    for _ in range(_MOST_CANDIDATES):
        position = frame.rfind(known, start, position + _INT64.size - 1)
        if position < 0:
            return None
        body = frame[start:position] + _INT64.pack(other) + frame[position + _INT64.size :]
        try:
            if m.FetchRequest.decode(body, request.api_version) == changed:
                return position
        except ProtocolError:
            continue
    return None

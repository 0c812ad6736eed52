"""RepeatedProduce: a fast response to a produce that differs only in its records from an earlier one.

    request     ... | *correlation id* | ... | *size of the records* | *records* | tagged fields
    response    *correlation id* | ... | *base offset* | *log append time* | *log start* | ... | tagged fields

If a producer writes to one partition, its requests differ only in their correlation ids and records. If batches are
small, decoding the request and encoding the response would take longer than the append. So only the fields between
asterisks are decoded or encoded.

A *run* is one such request, or several of them that arrived together on one connection.

Invariants: the response has the same bytes as a response that is encoded completely. If a batch is refused, nothing has
changed, and the request is decoded completely.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sediment.engine.live.log.partition_log import AppendedRun, AppendInfo
from sediment.segment_io.buffers import Buffer
from sediment.segment_io.errors import SedimentError
from sediment.segment_io.format.layout import NO_TIMESTAMP
from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.headers import encode_response_header
from sediment.segment_io.protocol.primitives import MalformedError, read_unsigned_varint, write_unsigned_varint
from sediment.segment_io.segment.append_run_kernels import (
    RUN_CORRELATION,
    RUN_END,
    RUN_RECORDS,
    RunRows,
    repeated_requests,
)
from sediment.server.repeated import AnsweredRun, ReceiveBuffer
from sediment.server.requests import Request

Append = Callable[[Buffer], AppendInfo | None]
"""A function that appends a batch; it returns None if the batch is refused."""

AppendRun = Callable[[int, RunRows, int], AppendedRun | None]
"""`Partition.append_run`."""

_FIRST_VERSION = 5  # the first version with a log start in the response
_LARGEST_START_BYTES = 1024
"""The largest part of a request that is remembered; client ids and topic names are usually short."""

_MOST_MISSES = 16
"""After this many different requests in a row, the remembered request is replaced."""

_HEADER_BYTES = 4
"""API key and version."""

_CORRELATION_END = 8
_FLEXIBLE_END = b"\0\0\0"
"""The three empty lists of tagged fields, for the partition, the topic and the request."""

_INT32 = struct.Struct(">i")
_OFFSETS = struct.Struct(">qqq")


class RepeatedProduce:
    __slots__ = (
        "_append",
        "_append_run",
        "_end",
        "_is_flexible",
        "_middle",
        "_misses",
        "_response",
        "_response_end",
        "_run_response",
        "_run_start",
        "_size_position",
        "_start",
        "api_key",
        "api_version",
        "client_id",
    )

    has_runs = True

    def __init__(
        self,
        request: Request,
        response: Any,
        append: Append,
        append_run: AppendRun,
        size_position: int,
        offsets: int,
    ) -> None:
        frame = bytes(request.frame[:size_position])
        self.api_key = request.api_key
        self.api_version = version = request.api_version
        self.client_id = request.client_id
        self._append = append
        self._append_run = append_run
        self._is_flexible = m.ProduceRequest.is_flexible(version)
        self._start = frame[:_HEADER_BYTES]
        self._middle = frame[_CORRELATION_END:]
        self._size_position = size_position
        self._end = _FLEXIBLE_END if self._is_flexible else b""
        header = encode_response_header(request.api_key, version, 0)[_INT32.size :]
        body = b"".join(response.encode(version))
        self._response = header + body[:offsets]
        self._response_end = body[offsets + _OFFSETS.size :]
        self._run_start = np.frombuffer(frame, dtype=np.uint8)
        self._run_response = _framed(bytes(_INT32.size) + self._response + bytes(_OFFSETS.size) + self._response_end)
        self._misses = 0

    @classmethod
    def following(
        cls, request: Request, response: Any, append: Append, append_run: AppendRun
    ) -> RepeatedProduce | None:
        earlier = request.connection.repeated
        if (earlier is not None and earlier.is_in_use) or request.api_version < _FIRST_VERSION:
            return None
        position = _size_position(request)
        offsets = _offsets_position(response, request.api_version)
        if position is None or offsets is None:
            return None
        return cls(request, response, append, append_run, position, offsets)

    @property
    def is_in_use(self) -> bool:
        return self._misses < _MOST_MISSES

    def answer(self, frame: memoryview) -> tuple[int, Sequence[bytes]] | None:
        records = self._records(frame)
        if records is None:
            self._misses += 1
            return None
        self._misses = 0
        info = self._append(records)
        if info is None:
            return None
        offsets = _OFFSETS.pack(info.first_offset, info.log_append_time_ms, info.log_start_offset)
        correlation = bytes(frame[_HEADER_BYTES:_CORRELATION_END])
        return _INT32.unpack(correlation)[0], (correlation + self._response + offsets + self._response_end,)

    def answer_run(self, received: ReceiveBuffer, start: int, end: int, largest_bytes: int) -> AnsweredRun | None:
        """Append the batches of the requests from `start` up to the first request that differs or has no plain batch.

        Return None, and change nothing, if the first request must be decoded completely.
        """
        rows, address = received.rows, received.address + start
        count = repeated_requests(
            address, end - start, largest_bytes, self._run_start, self._is_flexible, len(self._end), rows
        )
        if not count:
            return None
        try:
            run = self._append_run(address, rows, count)
        except SedimentError:
            return None
        if run is None:
            return None
        self._misses = 0
        batches, offset, log_start = run
        responses = bytearray(self._run_response * batches)
        values = rows.data
        position, offsets, step = _INT32.size, 2 * _INT32.size + len(self._response), len(self._run_response)
        for index in range(batches):
            _INT32.pack_into(responses, position, values[index, RUN_CORRELATION])
            _OFFSETS.pack_into(responses, offsets, offset, NO_TIMESTAMP, log_start)
            offset += values[index, RUN_RECORDS]
            position += step
            offsets += step
        return AnsweredRun(batches, values[batches - 1, RUN_END], responses)

    def _records(self, frame: memoryview) -> memoryview | None:
        position = self._size_position
        if frame[:_HEADER_BYTES] != self._start or bytes(frame[_CORRELATION_END:position]) != self._middle:
            return None
        end = len(frame) - len(self._end)
        try:
            if self._is_flexible:
                size_bytes, position = read_unsigned_varint(frame, position)
                size_bytes -= 1
            else:
                (size_bytes,) = _INT32.unpack_from(frame, position)
                position += _INT32.size
        except (IndexError, MalformedError, struct.error):
            return None
        if size_bytes < 0 or position + size_bytes != end or frame[end:] != self._end:
            return None
        return frame[position:end]


def _framed(response: bytes) -> bytes:
    return _INT32.pack(len(response)) + response


def _size_position(request: Request) -> int | None:
    is_flexible = m.ProduceRequest.is_flexible(request.api_version)
    records = request.message.topic_data[0].partition_data[0].records
    size = write_unsigned_varint(len(records) + 1) if is_flexible else _INT32.pack(len(records))
    end = _FLEXIBLE_END if is_flexible else b""
    position = len(request.frame) - len(end) - len(records) - len(size)
    has_fields = request.frame[position : position + len(size)] == size and bytes(request.frame).endswith(end)
    return position if has_fields and _CORRELATION_END < position <= _LARGEST_START_BYTES else None


def _offsets_position(response: Any, version: int) -> int | None:
    # The position is found by comparing two encoded responses that differ only in these offsets.
    encoded = []
    for value in (0, -1):
        answer = response.responses[0].partition_responses[0]
        kept = answer.base_offset, answer.log_append_time_ms, answer.log_start_offset
        answer.base_offset = answer.log_append_time_ms = answer.log_start_offset = value
        encoded.append(b"".join(response.encode(version)))
        answer.base_offset, answer.log_append_time_ms, answer.log_start_offset = kept
    zeros, ones = encoded
    differences = [at for at, (zero, one) in enumerate(zip(zeros, ones, strict=True)) if zero != one]
    if len(differences) != _OFFSETS.size or differences[-1] - differences[0] != _OFFSETS.size - 1:
        return None
    return differences[0]

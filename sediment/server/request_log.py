"""Request log: one JSON object per line for each request, without the contents of the request.

The file may be moved at any time, for example by logrotate; the next request starts a new file.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from datetime import UTC, datetime
from pathlib import Path

from sediment.segment_io.units import NS_PER_MS
from sediment.server.limited_log import LimitedLog
from sediment.server.request_metrics import request_name, stage_durations_ns
from sediment.server.requests import Request

_LOGGER = logging.getLogger(__name__)
_STAGE_FIELDS = ("request_queue_ms", "local_ms", "remote_ms", "response_queue_ms", "response_send_ms")
_DIGITS = 3
_MODE = 0o640


class RequestLog:
    """A log file to which several threads may write."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._open()
        self._errors = LimitedLog(_LOGGER, lines_per_second=1)
        self._guard = threading.Lock()

    def log(self, request: Request, response_bytes: int) -> None:
        """Write a line for a request whose response was sent; if the disk is full, the line is lost."""
        times = request.times
        line = json.dumps(
            {
                "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
                "request": request_name(request.api_key),
                "version": request.api_version,
                "correlation_id": request.correlation_id,
                "client_id": request.client_id,
                "connection": request.connection.id,
                "listener": request.connection.listener,
                "principal": request.connection.principal,
                "client_software": request.connection.client_software,
                "request_bytes": request.size_bytes,
                "response_bytes": response_bytes,
                "total_ms": _ms(times.sent_ns - times.received_ns),
                **dict(zip(_STAGE_FIELDS, map(_ms, stage_durations_ns(times)), strict=True)),
            }
        )
        with self._guard:
            try:
                if self._was_moved():
                    previous = self._descriptor
                    self._open()
                    os.close(previous)
                os.write(self._descriptor, line.encode() + b"\n")
            except OSError as error:
                self._errors.warning(f"the request log cannot be written: {error.strerror}")

    def close(self) -> None:
        os.close(self._descriptor)

    def _open(self) -> None:
        self._descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, _MODE)

    def _was_moved(self) -> bool:
        try:
            return not os.path.samestat(os.fstat(self._descriptor), self._path.stat())
        except FileNotFoundError:
            return True


def _ms(duration_ns: int) -> float:
    return round(duration_ns / NS_PER_MS, _DIGITS)

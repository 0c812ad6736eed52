"""FileSlice: a range of bytes of an open segment file, for sockets and readers.

Invariant: a slice keeps its file open until the slice is closed or unreferenced.  So the slice can be sent completely
even if the segment is deleted.  Several slices of a file share one descriptor.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable

from sediment.segment_io.errors import UsageError
from sediment.segment_io.fs import ReadableFile


class FileSlice:
    __slots__ = ("_file", "position", "size_bytes")

    def __init__(self, file: ReadableFile, position: int, size_bytes: int) -> None:
        self._file: ReadableFile | None = file
        self.position = position
        self.size_bytes = size_bytes

    def fileno(self) -> int:
        """Return the file descriptor for a sendfile that begins at `position`; the descriptor is open until `close`."""
        return self._open().descriptor

    def read(self, position: int = 0, size_bytes: int | None = None) -> bytes:
        left = self.size_bytes - position
        wanted = left if size_bytes is None else min(size_bytes, left)
        content = self._open().read(self.position + position, wanted)
        if len(content) < wanted:
            raise self._truncated()
        return content

    def send_some(self, target: socket.socket, already_sent: int) -> int:
        """Send the slice from byte `already_sent` with sendfile, until the socket would block.

        Return the number of bytes sent; 0 if the socket would block at once, or if all bytes were already sent.
        """
        return self.send_waiting(target, already_sent, lambda: False)

    def send_waiting(self, target: socket.socket, already_sent: int, wait: Callable[[], bool]) -> int:
        file, end = self._open(), self.position + self.size_bytes
        start = position = self.position + already_sent
        while position < end:
            try:
                count = file.send(target, position, end - position)
            except BlockingIOError:
                pass
            else:
                if count == 0:
                    raise self._truncated()
                position += count
            if position < end and not wait():
                break
        return position - start

    def close(self) -> None:
        self._file = None

    def _open(self) -> ReadableFile:
        if self._file is None:
            raise UsageError("the slice is closed", advice="read or send it before close()")
        return self._file

    def _truncated(self) -> OSError:
        return OSError(errno.EIO, "truncated while it was read", str(self._open().path))

"""Files that a user names for reading: regular files and pipes, within a limit.

A path may name a device that never ends, a disk image, or a pipe.  A pipe is waited for, because it may be the result
of `<(command)`; a signal whose handler raises ends the wait.
"""

from __future__ import annotations

import os
import select
import stat
from pathlib import Path

from sediment.segment_io.errors import UsageError

_READ_BYTES = 1 << 20
_POLL_MILLISECONDS = 200


def read_input_file(
    path: Path, most_bytes: int, what: str, *, advice: str | None = None, error_type: type[UsageError] = UsageError
) -> bytes:
    """Return the content of a file or pipe; `what` names it in errors.

    Raises:
        UsageError: as `error_type`: the file cannot be read, is neither a file nor a pipe, or has more than
            `most_bytes`.
    """
    try:
        content = _read(path, most_bytes + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise error_type(f"{what} cannot be read: {reason}", path=str(path), advice=advice) from error
    if len(content) > most_bytes:
        raise error_type(f"{what} is larger than {most_bytes} bytes", path=str(path), advice=advice)
    return content


def _read(path: Path, most_bytes: int) -> bytes:
    # Not blocking, because a signal just before a blocking call would wait with it for the writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK)
    with open(descriptor, "rb", buffering=0) as source:
        mode = os.fstat(descriptor).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
            raise ValueError("it is neither a file nor a pipe")
        content = bytearray()
        while len(content) < most_bytes:
            if stat.S_ISFIFO(mode):
                _wait_for_writer(descriptor)
            read = source.read(min(most_bytes - len(content), _READ_BYTES))
            if read is None:
                continue  # another reader of the pipe was quicker
            if not read:
                break
            content += read
        return bytes(content)


def _wait_for_writer(descriptor: int) -> None:
    """Return once the pipe has content, or its last writer has closed it."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    while not poll.poll(_POLL_MILLISECONDS):
        pass

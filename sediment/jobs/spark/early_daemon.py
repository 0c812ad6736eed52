"""Daemon of Python workers that the driver starts beside the JVM of a local master, and hands to Spark later.

    driver       starts the daemon, which loads the kernels while the JVM starts
    Spark        starts its own daemon before the first task
    that daemon  sends its stdin, stdout, stderr and environment to the early one, and waits until this one ends
    early one    serves Spark in its place

Invariants: a daemon that cannot hand over loads the kernels itself.  Only processes of the same user, Python and
installation hand over to each other.  The early daemon ends with the driver, or with the JVM that it serves.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping

VARIABLE = "SEDIMENT_EARLY_DAEMON"
"""Environment variable of Spark's workers with the name of the early daemon's socket."""

_OPTION = "--early"
_STREAMS = (0, 1, 2)
_ACCEPTED = b"1"
_LENGTH = struct.Struct(">I")
_CREDENTIALS = struct.Struct("3i")
_HASH_SEED, _THREADS = "PYTHONHASHSEED", "OMP_NUM_THREADS"


class EarlyDaemon:
    """The running process; `name` is what Spark's workers need in `VARIABLE`."""

    def __init__(self, module: str, output: int, environment: Mapping[str, str]) -> None:
        self.name = f"sediment-{secrets.token_hex(16)}"
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
            # A name in the abstract namespace of Linux, so there is no file that could be left.
            listening.bind(f"\0{self.name}")
            listening.listen(1)
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, _OPTION, str(listening.fileno())],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=_as_spark_sets(environment),
                pass_fds=[listening.fileno()],
                process_group=0,
            )
        threading.Thread(target=self._process.wait, name="sediment-early-daemon", daemon=True).start()

    def end(self) -> None:
        """End the daemon unless it serves Spark, with which it ends."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()


def _as_spark_sets(environment: Mapping[str, str]) -> dict[str, str]:
    return {_HASH_SEED: "0", _THREADS: "1", **environment}


def early_socket() -> socket.socket | None:
    """Return the listening socket if this process was started as the early daemon."""
    return socket.socket(fileno=int(sys.argv[2])) if sys.argv[1:2] == [_OPTION] else None


def hand_over() -> bool:
    """Let the early daemon serve Spark in place of this process; return after its end, or False if there is none."""
    name = os.environ.pop(VARIABLE, "")
    if not name:
        return False
    state = {"identity": _identity(), "argv": sys.argv, "path": sys.path, "environment": dict(os.environ)}
    content = json.dumps(state).encode()
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as early:
        early.connect(f"\0{name}")
        if _user_of(early) == os.getuid():
            socket.send_fds(early, [_LENGTH.pack(len(content))], _STREAMS)
            early.sendall(content)
            if early.recv(1) == _ACCEPTED:
                early.recv(1)  # returns at the end of the early daemon and its workers
                return True
    return False


def take_over(listening: socket.socket) -> bool:
    """Wait for Spark's daemon, and take its streams, arguments and environment; return False if there is none."""
    driver = sys.stdin.fileno()
    with listening:
        ready, _, _ = select.select([listening, driver], [], [])
        if listening not in ready:
            return False  # the driver ended, or stopped Spark
        connection, _ = listening.accept()
    if _user_of(connection) != os.getuid():
        return False
    head, streams, _, _ = socket.recv_fds(connection, _LENGTH.size, len(_STREAMS))
    with connection.makefile("rb") as source:
        state = json.loads(source.read(*_LENGTH.unpack(head)))
    if state["identity"] != _identity():
        return False
    for given, own in zip(streams, _STREAMS, strict=True):
        os.dup2(given, own)
        os.close(given)
    sys.argv[:], sys.path[:] = state["argv"], state["path"]
    os.environ.clear()
    os.environ.update(state["environment"])
    connection.sendall(_ACCEPTED)
    connection.detach()  # stays open until this process and its workers end
    return True


def _identity() -> list[str]:
    return [sys.version, sys.prefix, __file__]


def _user_of(peer: socket.socket) -> int:
    size = _CREDENTIALS.size
    _, user, _ = _CREDENTIALS.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return int(user)

"""`sediment serve` on one port, in a process that is killed and starts again within a fraction of a second."""

from __future__ import annotations

import multiprocessing
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from unittest import mock

from sediment.segment_io.fs import Fs
from tests.faults.live.unsynced_fs import UnsyncedFs, power_loss
from tests.ports import free_port
from tests.waiting import wait_until

# The process from which all servers are forked has imported everything, and has one thread.
_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload([__name__, "sediment.jobs.serve", "sediment.server.kafka_server"])


@dataclass
class KilledServer:
    """A server of `data` that `kill` ends as kill -9 does, or, with `loses_power`, as a power loss does."""

    data: Path
    options: Sequence[str]
    loses_power: bool
    port: int = field(default_factory=free_port)
    _process: BaseProcess | None = None

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def durable(self) -> Path:
        return self.data.with_name(f"{self.data.name}-durable")

    @property
    def said(self) -> Path:
        """Return the file with all that the servers print on stderr."""
        return self.data.with_name(f"{self.data.name}.stderr")

    def start(self) -> None:
        """Start the server and wait until it answers."""
        arguments = [str(self.data), "--listen", self.bootstrap, *self.options]
        durable = self.durable if self.loses_power else None
        process = _PROCESSES.Process(target=_serve, args=(arguments, self.data, durable, self.said))
        self._process = process
        process.start()

        def answers() -> bool:
            assert process.is_alive(), self.said.read_text()
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", self.port)) == 0

        wait_until(answers)

    def kill(self) -> None:
        """End the server at once."""
        self._end()
        if self.loses_power:
            power_loss(self.data, self.durable)

    def stop(self) -> None:
        """End the server as an operator does, if it runs."""
        if self._process is not None and self._process.is_alive():
            self._process.terminate()
            self._process.join()
            assert self._process.exitcode == 0, self.said.read_text()

    def _end(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.join()


def _serve(arguments: Sequence[str], data: Path, durable: Path | None, said: Path) -> None:
    from sediment.jobs import serve

    os.dup2(os.open(said, os.O_WRONLY | os.O_APPEND | os.O_CREAT), 2)
    fs = Fs() if durable is None else UnsyncedFs(data, durable)
    with mock.patch.object(serve, "Fs", lambda: fs):
        serve.command.main(list(arguments), prog_name="serve")

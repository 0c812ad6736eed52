"""A broker on the loopback interface, in this process, for tests of Kafka clients; it needs neither Docker nor Java.

    with sediment.broker() as broker:
        producer = KafkaProducer(bootstrap_servers=broker.bootstrap)

The broker is the server of `sediment serve`, on a new or an existing log directory.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from sediment.engine.clone.new_node import format_new_node, is_new
from sediment.jobs.serve import live_options, server_config
from sediment.jobs.settings.resolve import Settings
from sediment.segment_io.fs import Fs
from sediment.segment_io.units import NS_PER_MS
from sediment.server.kafka_server import KafkaServer, ServerOptions
from sediment.server.network.endpoints import Endpoint

_HOST = "127.0.0.1"
_DEFAULTS: Mapping[str, object] = {
    "auto.create.topics.enable": True,
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
}


@dataclass(frozen=True, slots=True)
class Broker:
    """A running broker."""

    bootstrap: str
    """Host and port for the `bootstrap.servers` of clients."""

    path: Path
    """The log directory."""


@contextmanager
def broker(path: str | Path | None = None, *, port: int = 0, **configs: object) -> Iterator[Broker]:
    """Run a single-node broker on 127.0.0.1 until the end of the block.

    Clients can create topics, consume, and produce, also in transactions.  Like a Kafka broker, the server does not
    flush each record to disk.  At the end, the server stops cleanly.  If a process was forked inside the block, the end
    of the block has no effect in that process.

    Args:
        path: the log directory.  A missing or empty directory becomes the log directory of a new node; any other
            directory is used as with `sediment serve`.  By default, a temporary directory is used, and removed at the
            end.
        port: the port; 0 picks a free one.
        configs: Kafka's broker keys with underscores instead of dots, such as `num_partitions=3`.  By default,
            topics are created automatically, and groups do not wait for further members.

    Raises:
        SettingsError: a key is unknown, or its value is out of range.
        UsageError: the directory does not belong to a single node.
        DirectoryInUseError: another process uses or formats the directory.
        SedimentError, OSError: a log cannot be read, or the port is in use.
    """
    fs = Fs()
    with ExitStack() as stack:
        if path is None:
            directory = stack.enter_context(_temporary_directory())
        else:
            directory = Path(path).absolute()
            directory.mkdir(parents=True, exist_ok=True)
        if is_new(directory, fs):
            format_new_node(directory, fs, now_ms=time.time_ns() // NS_PER_MS)
        server = stack.enter_context(KafkaServer(_options(directory, port, configs, fs), fs))
        yield Broker(str(server.bound), directory)


@contextmanager
def _temporary_directory() -> Iterator[Path]:
    """Make a temporary directory, and remove it at the end; a forked process does not remove it."""
    process = os.getpid()
    directory = Path(tempfile.mkdtemp(prefix="sediment-broker-")).absolute()
    try:
        yield directory
    finally:
        if os.getpid() == process:
            shutil.rmtree(directory)


def _options(directory: Path, port: int, configs: Mapping[str, object], fs: Fs) -> ServerOptions:
    given = {**_DEFAULTS, **{name.replace("_", "."): value for name, value in configs.items()}}
    settings = Settings.load(None, [f"{key}={_text(value)}" for key, value in given.items()])
    backend = live_options((directory,), settings, fs)
    return ServerOptions(backend, Endpoint(_HOST, port), config=server_config(settings))


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)

"""A broker on the loopback interface, in this process, for tests of Kafka clients; it needs neither Docker nor Java.

    with sediment.broker() as broker:
        producer = KafkaProducer(bootstrap_servers=broker.bootstrap)

The broker is the server of `sediment serve`, on a new or an existing log directory.
"""

from __future__ import annotations

import difflib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from sediment.engine.clone.new_node import format_new_node, is_new
from sediment.engine.config_definitions import BROKER_KEYS, TOPIC_KEYS
from sediment.jobs.serve import live_options, server_config
from sediment.jobs.settings.resolve import Origin, Settings, parse_value
from sediment.segment_io.errors import SettingsError, UsageError
from sediment.segment_io.fs import Fs
from sediment.segment_io.units import NS_PER_MS
from sediment.server.backends.read_only import ReadOnlyOptions
from sediment.server.kafka_server import KafkaServer, ServerOptions
from sediment.server.network.endpoints import Endpoint
from sediment.server.network.socket_server import CannotListenError

_HOST = "127.0.0.1"
_MOST_PORT = 65_535
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
def broker(
    path: str | Path | None = None, *, port: int = 0, read_only: bool = False, **configs: object
) -> Iterator[Broker]:
    """Run a single-node broker on 127.0.0.1 until the end of the block.

    Clients can create topics, consume, and produce, also in transactions.  Like a Kafka broker, the server does not
    flush each record to disk.  At the end, the server stops cleanly.  If a process was forked inside the block, the end
    of the block has no effect in that process.

    Args:
        path: the log directory.  A missing or empty directory becomes the log directory of a new node; any other
            directory is used as with `sediment serve`.  By default, a temporary directory is used, and removed at the
            end.
        port: the port; 0 picks a free one.
        read_only: serve the directory `path` unchanged, as with `sediment serve --read-only`.
        configs: Kafka's broker keys with underscores instead of dots, such as `num_partitions=3`.  By default,
            topics are created automatically, and groups do not wait for further members.

    Raises:
        SettingsError: a key is unknown, or its value is out of range.
        UsageError: the directory does not belong to a single node, or the port is in use.
        DirectoryInUseError: another process uses or formats the directory.
        SedimentError, OSError: a log cannot be read.
    """
    fs = Fs()
    settings = _settings(configs)
    if not 0 <= port <= _MOST_PORT:
        raise UsageError(f"port={port} is not a port", advice=f"give 0 to {_MOST_PORT}; 0 picks a free port")
    if read_only and path is None:
        raise UsageError("read_only needs the path of a log directory", advice="give path, or leave out read_only")
    with ExitStack() as stack:
        directory = stack.enter_context(_temporary_directory()) if path is None else Path(path).absolute()
        if not read_only:
            directory.mkdir(parents=True, exist_ok=True)
            if is_new(directory, fs):
                format_new_node(directory, fs, now_ms=time.time_ns() // NS_PER_MS)
        backend = ReadOnlyOptions((directory,)) if read_only else live_options((directory,), settings, fs)
        options = ServerOptions(backend, Endpoint(_HOST, port), config=server_config(settings))
        try:
            server = stack.enter_context(KafkaServer(options, fs))
        except CannotListenError as error:
            error.advice = "choose another port, or leave it out to get a free one"
            raise
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


def _settings(configs: Mapping[str, object]) -> Settings:
    """Return the settings of the broker; errors name the keywords as the caller wrote them."""
    given = {}
    for keyword, value in configs.items():
        name, text = keyword.replace("_", "."), _text(value)
        if name not in BROKER_KEYS:
            raise _unknown(keyword, name)
        try:
            parse_value(BROKER_KEYS[name], text, Origin.SET)
        except SettingsError as error:
            raise SettingsError(
                f"{keyword}={value!r} is not a value that Kafka accepts",
                advice=f"give {BROKER_KEYS[name].range_text()}",
            ) from error
        given[name] = text
    defaults = {name: _text(value) for name, value in _DEFAULTS.items() if name not in given}
    return Settings.load(None, [f"{name}={text}" for name, text in {**defaults, **given}.items()])


def _unknown(keyword: str, name: str) -> SettingsError:
    if name in TOPIC_KEYS:
        names = [_keyword(each.name) for each in TOPIC_KEYS[name].broker_names]
        return SettingsError(
            f"{keyword} is a config of topics",
            advice=f"give the broker's key, {names[0]}, or set it when you create a topic"
            if names
            else "set it when you create a topic",
        )
    nearest = difflib.get_close_matches(keyword, map(_keyword, BROKER_KEYS), n=1)
    return SettingsError(
        f"{keyword} is not a broker key that this broker has",
        advice=f"the nearest one is {nearest[0]}"
        if nearest
        else "give Kafka's broker keys with underscores, such as num_partitions",
    )


def _keyword(name: str) -> str:
    return name.replace(".", "_")


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)

"""`sediment serve LOG_DIR…`: a Kafka listener over log directories, until SIGINT or SIGTERM.

With --read-only, the server writes nothing into the directories and takes no lock.  Without --read-only, the
directories belong to one node, and this process owns the node until the server stops.

The server runs in this process, without Spark.  The first signal stops the server: it sends the responses in progress,
closes the connections, stops the logs cleanly and exits with status 0.  A second signal ends the process at once.

Invariant: the line `listening on HOST:PORT` is printed on stderr as soon as clients can connect, even with --quiet.
"""

from __future__ import annotations

if __name__ == "__main__":
    from sediment.jobs.process.early_signals import end_on_early_signals

    end_on_early_signals()  # before the slow imports

import json
import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from sediment.engine.config_definitions import BROKER_KEYS
from sediment.engine.log_config import LogConfig
from sediment.jobs.command_line.configured_command import ConfiguredCommand
from sediment.jobs.command_line.exit_status import EXIT_DONE, errors_as_exit_status
from sediment.jobs.command_line.options import message_console
from sediment.jobs.command_line.partition_completion import complete_partition
from sediment.jobs.command_line.settings_options import config_option, topic_configs_option
from sediment.jobs.process import stderr_log
from sediment.jobs.process.cancellation import RunStopped, stop_on_signals
from sediment.jobs.process.standard_output import write_result
from sediment.jobs.reporting.error_text import describe
from sediment.jobs.reporting.figures import counted
from sediment.jobs.reporting.run_outputs import check_output_file
from sediment.jobs.reporting.run_report import QUARANTINED, SCHEMA, SKIPPED
from sediment.jobs.settings.directories import (
    configured_log_dirs,
    configured_metadata_dirs,
    configured_node_dirs,
    keeps_metadata_apart,
)
from sediment.jobs.settings.node_ids import node_id_of
from sediment.jobs.settings.properties_file import read_quorum_keys
from sediment.jobs.settings.resolve import Origin, Settings
from sediment.jobs.settings.run_settings import load_run_settings
from sediment.jobs.settings.server_settings import (
    config_of_topic,
    server_settings,
    stated_broker_values,
    with_held_keys,
)
from sediment.segment_io.errors import UsageError
from sediment.segment_io.format.names import SERVER_PROPERTIES_FILE, TopicPartition, new_run_id
from sediment.segment_io.fs import Fs
from sediment.segment_io.internal_topics.metadata_log import ClusterMetadata
from sediment.segment_io.units import NS_PER_MS
from sediment.server.backends.live_options import LiveOptions
from sediment.server.backends.read_only import ReadOnlyOptions
from sediment.server.errors import StartStoppedError
from sediment.server.kafka_server import KafkaServer, Security, ServerOptions
from sediment.server.network.endpoints import parse_endpoint
from sediment.server.read_only.catalog import Catalog, CatalogOptions
from sediment.server.read_only.frozen_segment import UnservedRange
from sediment.server.read_only.renaming import parse_renaming
from sediment.server.request_metrics import request_name
from sediment.server.server_config import ServerConfig
from sediment.server.topic_catalog import ServedLog

_LOGGER = logging.getLogger(__name__)

SERVED = "served"
_METRICS_SECONDS = 15.0
_CHECK_SECONDS = 1.0
_NEVER_MS = 10 * 365 * 86_400_000
_OWN_PREFIX = "sediment."
_OWN_FIELDS = frozenset(
    {
        "request_receive_timeout_ms",
        "group_members_max_bytes",
        "groups_max_bytes",
        "transactions_max_bytes",
    }
)
_FROM_DIRECTORY = frozenset({"node_id"})


# ------------------------------------------------------------------------------------------------------------- settings
def server_config(settings: Settings) -> ServerConfig:
    """Return the config of the server; missing keys get the server's own defaults.

    Raises:
        SettingsError: a value is out of range, or two values contradict each other.
    """
    given: dict[str, Any] = {}
    for field in fields(ServerConfig):
        if field.name in _FROM_DIRECTORY:
            continue
        key = (_OWN_PREFIX if field.name in _OWN_FIELDS else "") + field.name.replace("_", ".")
        if settings.origin("", key) != Origin.DEFAULT:
            given[field.name] = settings.broker_value(key)
    # Kafka's values for "no limit" are replaced with a limit, because this server always limits bytes and times.
    if given.get("queued_max_request_bytes", 0) < 0:
        del given["queued_max_request_bytes"]
    if given.get("connections_max_idle_ms", 0) < 0:
        given["connections_max_idle_ms"] = _NEVER_MS
    return ServerConfig(**given)


# -------------------------------------------------------------------------------------------------------------- serving
def serve(options: ServerOptions, *, metrics_file: Path | None = None, quiet: bool = False) -> dict[str, Any]:
    """Serve until a signal arrives, and return the report.

    Raises:
        UsageError, SedimentError, OSError: as in `KafkaServer.start`.
        StorageError: every log directory has failed.
        RunStopped: a second signal arrived, or a first signal arrived before the server had started.
    """
    started, started_ms = time.monotonic(), time.time_ns() // 1_000_000
    fs = Fs()
    messages = message_console(quiet=quiet, plain=True)
    with stop_on_signals() as stop:
        messages.print("loading the log directories")
        server = KafkaServer(options, fs, stop)
        with _stopped_if_start_was(), server:
            _announce(server, options, messages)
            next_metrics = time.monotonic() + _METRICS_SECONDS
            while not stop.wait(_CHECK_SECONDS):
                server.check_usable()
                if time.monotonic() >= next_metrics:
                    _write_metrics(server, metrics_file, fs)
                    next_metrics += _METRICS_SECONDS
            messages.print("stopping")
        _write_metrics(server, metrics_file, fs)
    return _report(server, started_ms, time.monotonic() - started)


@contextmanager
def _stopped_if_start_was() -> Iterator[None]:
    """Raise `RunStopped` if a signal interrupts the start of the server in this block.

    Raises:
        RunStopped: a signal ended the start.
    """
    try:
        yield
    except StartStoppedError as error:
        raise RunStopped from error


def _announce(server: KafkaServer, options: ServerOptions, messages: Any) -> None:
    topics = server.catalog.topics()
    partitions = sum(len(topic.partitions) for topic in topics)
    is_live = isinstance(options.backend, LiveOptions)
    messages.print(
        f"serving {counted(partitions, 'partition')} of {counted(len(topics), 'topic')}, "
        f"{'for reads and writes' if is_live else 'read-only'}, with {server.protocol}"
    )
    if is_live:
        messages.print(server.deletions())
    if options.security.insecure and not server.bound.is_loopback:
        _LOGGER.warning(
            "--insecure: every machine that reaches %s can read %s",
            server.bound,
            "and write every topic, and delete topics, records and groups" if is_live else "every topic",
        )
    if server.advertised != server.bound:
        messages.print(f"clients connect to {server.advertised}")
    stderr_log.log_ready(f"listening on {server.bound}")


def _write_metrics(server: KafkaServer, file: Path | None, fs: Fs) -> None:
    if file is not None:
        try:
            fs.replace_file(file, server.metrics_text())
        except OSError as error:
            _LOGGER.error("the metrics cannot be written to %s: %s", file, error.strerror)


def _report(server: KafkaServer, started_ms: int, seconds: float) -> dict[str, Any]:
    requests: dict[str, int] = {}
    response_bytes = 0
    for (key, _), found in server.metrics.by_request().items():
        requests[request_name(key)] = requests.get(request_name(key), 0) + found.requests
        response_bytes += found.response_bytes
    return {
        "schema": SCHEMA,
        "command": "serve",
        "run_id": new_run_id(),
        "now_ms": started_ms,
        "seconds": round(seconds, 3),
        "listening": str(server.bound),
        "security_protocol": server.protocol,
        "requests": dict(sorted(requests.items())),
        "response_bytes": response_bytes,
        "connections_refused": server.metrics.connections_refused,
        "partitions": _partitions(server),
    }


def _partitions(server: KafkaServer) -> list[Mapping[str, Any]]:
    catalog = server.catalog
    unreadable: dict[TopicPartition, list[UnservedRange]] = {}
    for partition, found in catalog.unreadable() if isinstance(catalog, Catalog) else ():
        unreadable.setdefault(partition, []).append(found)
    served = [
        _partition(TopicPartition(topic.name, number), log, unreadable.get(TopicPartition(topic.name, number), []))
        for topic in catalog.topics()
        for number, log in sorted(topic.partitions.items())
    ]
    left_out = catalog.left_out if isinstance(catalog, Catalog) else ()
    return served + [_row(name, out.path, SKIPPED, *describe(out.error)) for name, out in left_out]


def _partition(name: TopicPartition, log: ServedLog, unreadable: Sequence[UnservedRange]) -> Mapping[str, Any]:
    if log.failure is not None:
        return _row(name, log.directory, QUARANTINED, *describe(log.failure))
    if not unreadable:
        return _row(name, log.directory, SERVED)
    first = unreadable[0]
    reason = (
        f"bytes {first.start_position} to {first.end_position} of {first.path} were left out, after offset "
        f"{first.from_offset}: {first.reason}"
    )
    return _row(name, log.directory, SERVED, "corrupt-batch", reason, len(unreadable))


def _row(
    name: TopicPartition,
    directory: Path,
    status: str,
    reason_code: str | None = None,
    reason: str | None = None,
    unreadable_ranges: int = 0,
) -> Mapping[str, Any]:
    return {
        "partition": str(name),
        "log_dir": str(directory.parent),
        "node_id": node_id_of(directory.parent, Fs()),
        "status": status,
        "reason_code": reason_code,
        "reason": reason,
        "unreadable_ranges": unreadable_ranges,
    }


# ------------------------------------------------------------------------------------------------------------- backends
def _backend(
    directories: tuple[Path, ...],
    settings: Settings,
    catalog: CatalogOptions,
    state: Path | None,
    fs: Fs,
    *,
    read_only: bool,
    flush_acks: bool,
    formats: Any,
) -> ReadOnlyOptions | LiveOptions:
    """Return the options of the backend; `formats` is the console on which a format of a new node is reported, or None.

    Raises:
        UsageError: an option needs --read-only, or excludes it, or excludes several directories.
    """
    if formats is not None:
        if read_only:
            raise UsageError("--format excludes --read-only", advice="leave out one of the two")
        if len(directories) > 1:
            raise UsageError(
                "--format makes a node with one log directory",
                advice="give one LOG_DIR; Kafka's kafka-storage.sh formats several",
            )
        directories[0].mkdir(parents=True, exist_ok=True)
    if read_only:
        if flush_acks:
            raise UsageError("--flush-acks needs a server that accepts writes", advice="leave out --read-only")
        return ReadOnlyOptions(directories, catalog, state)
    for option, is_given in (
        ("--state", state is not None),
        ("--partition", bool(catalog.partitions)),
        ("--metadata", catalog.metadata is not None),
        ("--to-log-end", catalog.to_log_end),
        ("--as", bool(catalog.renamings)),
        ("--topic-configs", catalog.topic_configs is not None),
    ):
        if is_given:
            raise UsageError(f"{option} needs --read-only", advice=f"give --read-only, or leave out {option}")
    options = live_options(directories, settings, fs, flush_acks=flush_acks)
    if formats is None:
        return replace(options, prepare=partial(_check_not_empty, directories, fs))
    return replace(options, prepare=partial(_format, directories[0].absolute(), settings, fs, formats))


def _format(directory: Path, settings: Settings, fs: Fs, messages: Any) -> None:
    """Make the log directory of a new node, unless the directory is already in use by a node.

    Raises:
        DirectoryInUseError: a process holds the lock of the directory.
        OSError: the disk failed.
    """
    from sediment.engine.clone.new_node import DEFAULT_NODE_ID, format_new_node, is_new

    node_id = settings.node_id or DEFAULT_NODE_ID
    if is_new(directory, fs, node_id):
        node = format_new_node(directory, fs, now_ms=time.time_ns() // NS_PER_MS, node_id=node_id)
        messages.print(
            f"made {directory} the log directory of node {node.node_id} in the new cluster {node.cluster_id}"
        )


def _check_not_empty(directories: Sequence[Path], fs: Fs) -> None:
    """Check that no directory is missing or empty.

    Raises:
        UsageError: one is.
    """
    for directory in directories:
        if not fs.exists(directory) or (fs.is_directory(directory) and not fs.scan(directory)):
            raise UsageError(
                "the directory is empty" if fs.exists(directory) else "the directory does not exist",
                path=str(directory),
                advice="add --format to make it the directory of a new node, or give an entry of a broker's log.dirs",
            )


def live_options(directories: tuple[Path, ...], settings: Settings, fs: Fs, *, flush_acks: bool = False) -> LiveOptions:
    """Return the options of a server that accepts writes.

    Raises:
        SettingsError, OSError: as in `server_settings`.
    """
    of_server = server_settings(settings, directories, fs)
    metadata_log_dir, *_ = configured_metadata_dirs(settings) or (None,)
    return LiveOptions(
        directories,
        partial(topic_configs, of_server),
        quorum_keys(directories, settings),
        flush_acks,
        keeps_metadata_apart(settings),
        metadata_log_dir if of_server.is_broker_file else None,
        configured_log_dirs(settings),
        partial(stated_broker_values, of_server),
        {key: text for key, text in of_server.config_file.items() if key in BROKER_KEYS},
    )


def topic_configs(settings: Settings, metadata: ClusterMetadata, node_id: int) -> Callable[[str], LogConfig]:
    """Return a function that returns the configs of a topic according to the settings and a node's metadata."""
    return partial(config_of_topic, settings.of_node(metadata, node_id), metadata)


def quorum_keys(directories: Sequence[Path], settings: Settings) -> Mapping[str, str] | None:
    """Return the quorum keys in --config, or in the properties file that `clone` and `adopt` write into a directory."""
    if settings.quorum:
        return settings.quorum
    files = (directory / SERVER_PROPERTIES_FILE for directory in directories)
    return next((read_quorum_keys(file) for file in files if file.exists()), None)


# --------------------------------------------------------------------------------------------------------- command line
@click.command("serve", cls=ConfiguredCommand)
@click.argument("log_dirs", metavar="LOG_DIR...", nargs=-1, type=click.Path(path_type=Path))
@click.option("--read-only", is_flag=True, help="Serve the directories unchanged, and write nothing into them.")
@click.option(
    "--format",
    "formats",
    is_flag=True,
    help="If LOG_DIR is empty or does not exist, first make it the log directory of a new cluster with a single node.",
)
@click.option(
    "--flush-acks",
    is_flag=True,
    help="Treat records as replicated only after they are flushed to disk; consumers, and producers with acks=all, "
    "wait for the flush.",
)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    default="127.0.0.1:9092",
    show_default=True,
    help="Listen on this address; port 0 picks a free port.",
)
@click.option(
    "--advertise",
    metavar="HOST:PORT",
    help="Give clients this address; required if --listen is a wildcard such as 0.0.0.0.",
)
@click.option(
    "--state",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    help="Store committed offsets of consumers in DIR, which must be outside every LOG_DIR (default: in memory).",
)
@click.option(
    "--partition",
    "partitions",
    multiple=True,
    metavar="TOPIC-N",
    shell_complete=complete_partition,
    help="Serve only these partitions, by name or glob.  A pattern that matches nothing is an error.",
)
@click.option("--allow-empty-selection", is_flag=True, help="Do not fail if a --partition matches nothing.")
@click.option(
    "--metadata",
    "metadata_dir",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Read topic ids, configs and users from __cluster_metadata-0 in DIR.",
)
@click.option(
    "--to-log-end",
    is_flag=True,
    help="Also serve records above the high watermark; meant for a copy of a follower, whose high watermark may lag.",
)
@click.option(
    "--as",
    "renamings",
    multiple=True,
    metavar="NEW=[DIR:]OLD",
    help="Serve topic OLD under the name NEW; if DIR is given, serve only the partitions of OLD in DIR.",
)
@click.option(
    "--tls-cert", metavar="FILE", type=click.Path(path_type=Path), help="Use TLS with the certificate in this PEM file."
)
@click.option(
    "--tls-key",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Read the private key of the certificate from this PEM file.",
)
@click.option(
    "--users",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Admit only the users in FILE, whose lines have the form "
    "NAME:SCRAM-SHA-256:ITERATIONS:SALT:STORED_KEY:SERVER_KEY.",
)
@click.option("--insecure", is_flag=True, help="Let other machines connect even if --tls-cert or users are missing.")
@click.option(
    "--set", "sets", multiple=True, metavar="KEY=VALUE", help="Override a broker configuration for this server."
)
@config_option(
    "Read the server's limits from FILE, the broker's server.properties.  If no LOG_DIR is given, serve every "
    "directory in its log.dirs, and its metadata.log.dir.  With --read-only, give the option once for each broker; the "
    "first FILE gives the limits."
)
@topic_configs_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout after the server has stopped.")
@click.option("--quiet", is_flag=True, help="Print no warnings; the line `listening on` is still printed.")
@click.option(
    "--metrics",
    "metrics_file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Write Prometheus metrics to FILE every 15 seconds, for the node exporter's textfile collector.",
)
@click.option(
    "--request-log",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Append one JSON object for each request to FILE, one per line, without the content of the request.",
)
@click.option(
    "--log-format",
    type=click.Choice([stderr_log.TEXT, stderr_log.JSON]),
    default=stderr_log.TEXT,
    show_default=True,
    help="Print messages on stderr as plain text, or as one JSON object per line.",
)
def command(
    log_dirs: tuple[Path, ...],
    read_only: bool,
    formats: bool,
    flush_acks: bool,
    listen: str,
    advertise: str | None,
    state: Path | None,
    partitions: tuple[str, ...],
    allow_empty_selection: bool,
    metadata_dir: Path | None,
    to_log_end: bool,
    renamings: tuple[str, ...],
    tls_cert: Path | None,
    tls_key: Path | None,
    users: Path | None,
    insecure: bool,
    sets: tuple[str, ...],
    configs: tuple[Path, ...],
    topic_configs: tuple[Path, ...],
    as_json: bool,
    quiet: bool,
    metrics_file: Path | None,
    request_log: Path | None,
    log_format: str,
) -> None:
    """Let Kafka clients use LOG_DIR... over the network, until SIGINT or SIGTERM stops the server.

    No broker is needed.  The server refuses a directory that a broker uses.

    With --read-only, the server serves any log directories, writes nothing into them, and takes no lock.

    Without --read-only, LOG_DIR... must be the log directories of a single-node cluster; `clone`, `adopt` and --format
    make such directories.  The server accepts records from producers, also from idempotent and transactional ones.  It
    also accepts committed offsets, and changes of topics, configs and groups.  A broker can use the directories
    afterwards.

    The server deletes what clients delete.  Retention applies to a topic only if the topic's cleanup.policy and a
    retention limit are set.  The cleaner cleans a topic only if the topic's cleanup.policy is set.  These settings can
    be topic configs, broker configs, values of --set, or keys in the --config file.
    """
    with stderr_log.log_to_stderr(log_format, quiet=quiet, repeats=True), errors_as_exit_status():
        nodes = load_run_settings(configs, sets, topic_configs=topic_configs)
        directories = log_dirs or nodes.log_dirs(partial(configured_node_dirs, fs=Fs()))
        if len(nodes.nodes) > 1 and not read_only:
            raise UsageError(
                "--config is given several times, but a server that accepts writes is one node",
                advice="give the file of this node, or --read-only",
            )
        settings = nodes.nodes[0]
        for option, file in (("--metrics", metrics_file), ("--request-log", request_log)):
            if file is not None:
                check_output_file(file, option, directories)
        catalog = CatalogOptions(
            to_log_end=to_log_end,
            renamings=tuple(map(parse_renaming, renamings)),
            partitions=partitions,
            allow_empty_selection=allow_empty_selection,
            metadata=metadata_dir,
            topic_configs=None if settings.topic_configs is None else settings.topic_configs.own,
        )
        options = ServerOptions(
            backend=_backend(
                directories,
                settings,
                catalog,
                state,
                Fs(),
                read_only=read_only,
                flush_acks=flush_acks,
                formats=message_console(quiet=quiet, plain=True) if formats else None,
            ),
            listen=parse_endpoint(listen, "--listen"),
            advertise=None if advertise is None else parse_endpoint(advertise, "--advertise", least_port=1),
            security=Security(certificate=tls_cert, key=tls_key, users=users, insecure=insecure),
            request_log=request_log,
            config=server_config(settings if read_only else with_held_keys(settings, directories)),
        )
        report = serve(options, metrics_file=metrics_file, quiet=quiet)
        if as_json:
            write_result(json.dumps(report) + "\n")
        sys.exit(EXIT_DONE)


if __name__ == "__main__":
    from sediment.jobs.serve import command as importable

    importable()

"""`sediment serve LOG_DIR…`: a Kafka listener over log directories, until SIGINT or SIGTERM.

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
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from sediment.engine.config_definitions import BROKER_KEYS
from sediment.engine.log_config import LogConfig
from sediment.jobs.command_line.configured_command import plain_command
from sediment.jobs.command_line.declaration import ONE_COMMAND, Directory, File, argument, option
from sediment.jobs.command_line.exit_status import EXIT_DONE, errors_as_exit_status
from sediment.jobs.command_line.options import message_console
from sediment.jobs.command_line.shared_options import (
    OutputFile,
    allow_empty_selection_option,
    configs_option,
    json_option,
    log_format_option,
    metadata_dir_option,
    metrics_file_option,
    partitions_option,
    quiet_option,
    sets_option,
    topic_configs_option,
)
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
from sediment.server.read_only.catalog import Catalog, CatalogOptions, parse_renaming
from sediment.server.read_only.frozen_segment import UnservedRange
from sediment.server.request_metrics import request_name
from sediment.server.security.credentials import read_users
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
    for name, is_given in (
        ("--state", state is not None),
        ("--partition", bool(catalog.partitions)),
        ("--metadata", catalog.metadata is not None),
        ("--to-log-end", catalog.to_log_end),
        ("--as", bool(catalog.renamings)),
        ("--topic-configs", catalog.topic_configs is not None),
    ):
        if is_given:
            raise UsageError(f"{name} needs --read-only", advice=f"give --read-only, or leave out {name}")
    options = live_options(directories, settings, fs, flush_acks=flush_acks)
    if formats is None:
        return replace(options, prepare=partial(_check_not_empty, directories, fs))
    return replace(options, prepare=partial(_format, directories[0].absolute(), settings, fs, formats))


def _format(directory: Path, settings: Settings, fs: Fs, messages: Any) -> None:
    from sediment.engine.clone.new_node import DEFAULT_NODE_ID, format_new_node, is_new

    node_id = settings.node_id or DEFAULT_NODE_ID
    if is_new(directory, fs, node_id):
        node = format_new_node(directory, fs, now_ms=time.time_ns() // NS_PER_MS, node_id=node_id)
        messages.print(
            f"made {directory} the log directory of node {node.node_id} in the new cluster {node.cluster_id}"
        )


def _check_not_empty(directories: Sequence[Path], fs: Fs) -> None:
    for directory in directories:
        if not fs.exists(directory) or (fs.is_directory(directory) and not fs.scan(directory)):
            raise UsageError(
                "the directory is empty" if fs.exists(directory) else "the directory does not exist",
                path=str(directory),
                advice="add --format to make it the directory of a new node, or give an entry of a broker's log.dirs",
            )


def live_options(directories: tuple[Path, ...], settings: Settings, fs: Fs, *, flush_acks: bool = False) -> LiveOptions:
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
    return partial(config_of_topic, settings.of_node(metadata, node_id), metadata)


def quorum_keys(directories: Sequence[Path], settings: Settings) -> Mapping[str, str] | None:
    if settings.quorum:
        return settings.quorum
    files = (directory / SERVER_PROPERTIES_FILE for directory in directories)
    return next((read_quorum_keys(file) for file in files if file.exists()), None)


# --------------------------------------------------------------------------------------------------------- command line
@dataclass(frozen=True, slots=True)
class ServeOptions:
    log_dirs: tuple[Path, ...] = argument("LOG_DIR...")
    read_only: bool = option(
        False, "Serve the directories unchanged, and write nothing into them.", from_settings=ONE_COMMAND
    )
    formats: bool = option(
        False,
        "If LOG_DIR is empty or does not exist, first make it the log directory of a new cluster with a single node.",
        name="format",
    )
    flush_acks: bool = option(
        False,
        "Treat records as replicated only after they are flushed to disk; consumers, and producers with acks=all, wait "
        "for the flush.",
    )
    listen: str = option(
        "127.0.0.1:9092",
        "Listen on this address; port 0 picks a free port.",
        metavar="HOST:PORT",
        shows_default=True,
        from_settings=ONE_COMMAND,
    )
    advertise: str | None = option(
        None,
        "Give clients this address; required if --listen is a wildcard such as 0.0.0.0.",
        metavar="HOST:PORT",
        from_settings=ONE_COMMAND,
    )
    state: Directory | None = option(
        None,
        "Store committed offsets of consumers in DIR, which must be outside every LOG_DIR (default: in memory).",
        from_settings=ONE_COMMAND,
    )
    partitions: tuple[str, ...] = partitions_option(
        "Serve only these partitions, by name or glob.  A pattern that matches nothing is an error."
    )
    allow_empty_selection: bool = allow_empty_selection_option("Do not fail if a --partition matches nothing.")
    metadata_dir: Directory | None = metadata_dir_option(
        "Read topic ids, configs and users from __cluster_metadata-0 in DIR."
    )
    to_log_end: bool = option(
        False,
        "Also serve records above the high watermark; meant for a copy of a follower, whose high watermark may lag.",
        from_settings=ONE_COMMAND,
    )
    renamings: tuple[str, ...] = option(
        (),
        "Serve topic OLD under the name NEW; if DIR is given, serve only the partitions of OLD in DIR.",
        name="as",
        metavar="NEW=[DIR:]OLD",
    )
    tls_cert: OutputFile | None = option(
        None, "Use TLS with the certificate in this PEM file.", from_settings=ONE_COMMAND
    )
    tls_key: OutputFile | None = option(None, "Read the private key of the certificate from this PEM file.")
    users: OutputFile | None = option(
        None,
        "Admit only the users in FILE, whose lines have the form "
        "NAME:SCRAM-SHA-256:ITERATIONS:SALT:STORED_KEY:SERVER_KEY.",
    )
    insecure: bool = option(False, "Let other machines connect even if --tls-cert or users are missing.")
    sets: tuple[str, ...] = sets_option("Override a broker configuration for this server.", "KEY=VALUE")
    configs: tuple[File, ...] = configs_option(
        "Read the server's limits from FILE, the broker's server.properties.  If no LOG_DIR is given, serve every "
        "directory in its log.dirs, and its metadata.log.dir.  With --read-only, give the option once for each broker; "
        "the first FILE gives the limits."
    )
    topic_configs: tuple[File, ...] = topic_configs_option()
    as_json: bool = json_option("Print one JSON object on stdout after the server has stopped.")
    quiet: bool = quiet_option("Print no warnings; the line `listening on` is still printed.")
    metrics_file: OutputFile | None = metrics_file_option(
        "Write Prometheus metrics to FILE every 15 seconds, for the node exporter's textfile collector."
    )
    request_log: OutputFile | None = option(
        None,
        "Append one JSON object for each request to FILE, one per line, without the content of the request.",
        from_settings=ONE_COMMAND,
    )
    log_format: Literal["text", "json"] = log_format_option()


@plain_command("serve", ServeOptions)
def command(own: ServeOptions) -> None:
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
    with stderr_log.log_to_stderr(own.log_format, quiet=own.quiet, repeats=True), errors_as_exit_status():
        nodes = load_run_settings(own.configs, own.sets, topic_configs=own.topic_configs)
        directories = own.log_dirs or nodes.log_dirs(partial(configured_node_dirs, fs=Fs()))
        if len(nodes.nodes) > 1 and not own.read_only:
            raise UsageError(
                "--config is given several times, but a server that accepts writes is one node",
                advice="give the file of this node, or --read-only",
            )
        settings = nodes.nodes[0]
        for name, file in (("--metrics", own.metrics_file), ("--request-log", own.request_log)):
            if file is not None:
                check_output_file(file, name, directories)
        catalog = CatalogOptions(
            to_log_end=own.to_log_end,
            renamings=tuple(map(parse_renaming, own.renamings)),
            partitions=own.partitions,
            allow_empty_selection=own.allow_empty_selection,
            metadata=own.metadata_dir,
            topic_configs=None if settings.topic_configs is None else settings.topic_configs.own,
        )
        options = ServerOptions(
            backend=_backend(
                directories,
                settings,
                catalog,
                own.state,
                Fs(),
                read_only=own.read_only,
                flush_acks=own.flush_acks,
                formats=message_console(quiet=own.quiet, plain=True) if own.formats else None,
            ),
            listen=parse_endpoint(own.listen, "--listen"),
            advertise=None if own.advertise is None else parse_endpoint(own.advertise, "--advertise", least_port=1),
            security=Security(
                certificate=own.tls_cert,
                key=own.tls_key,
                users=None if own.users is None else read_users(own.users),
                insecure=own.insecure,
            ),
            request_log=own.request_log,
            config=server_config(settings if own.read_only else with_held_keys(settings, directories)),
        )
        report = serve(options, metrics_file=own.metrics_file, quiet=own.quiet)
        if own.as_json:
            write_result(json.dumps(report) + "\n")
        sys.exit(EXIT_DONE)


if __name__ == "__main__":
    from sediment.jobs.serve import command as importable

    importable()

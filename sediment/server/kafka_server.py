"""KafkaServer: a server over log directories, with its start and stop.

    start                                             undone by the stop, in reverse order
     1  raise the limit on open files                 restore it
     2  read certificate and users                    -
     3  check the address, bind it                    close it
     4  open the backend: the log directories         close it
     5  choose the credentials                        -
     6  start the timers                               stop them
     7  open the request log                          close it
     8  make the handlers                             -
     9  start handlers and processors                 finish the current requests, send their responses
    10  -                                             respond to all waiting requests; later requests do not wait
    11  listen, and accept connections                accept no connection, close idle ones, read no more requests
    12  load groups and transactions, in a thread     -
    13  delete expired and superseded records         stop deleting; the cleaner abandons its current log

The server refuses a wrong address, or a port that is in use, before it opens a log directory. A stop takes at most
about STOP_SECONDS. In a process that was forked from the server's process, a stop does nothing.

Source: Kafka's BrokerServer and SocketServer.
"""

from __future__ import annotations

import gc
import logging
import os
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from sediment.engine.config_definitions import value_text
from sediment.segment_io.errors import UsageError
from sediment.segment_io.fs import Fs
from sediment.segment_io.internal_topics.coordinator_records import CONSUMER_OFFSETS, TRANSACTION_STATE
from sediment.segment_io.internal_topics.metadata_log import KRAFT_VERSION, ClusterMetadata
from sediment.segment_io.internal_topics.metadata_records import ResourceType
from sediment.segment_io.protocol.api_keys import ApiKey
from sediment.segment_io.units import NS_PER_MS
from sediment.server.apis import Features, KafkaApis
from sediment.server.backends.backend import Backend
from sediment.server.backends.live_options import LiveOptions
from sediment.server.backends.read_only import ReadOnlyBackend, ReadOnlyOptions
from sediment.server.config_descriptions import config_descriptions
from sediment.server.delayed import Timer
from sediment.server.dynamic_config_keys import group_config_defaults
from sediment.server.errors import naming_option
from sediment.server.groups.consumer.cluster_topics import ClusterTopics
from sediment.server.groups.group_coordinator import ConsumerGroupSupport, GroupCoordinator
from sediment.server.groups.stored_groups import replay_groups
from sediment.server.handlers.committed_offsets import CommittedOffsetHandlers
from sediment.server.handlers.configs import ConfigHandlers
from sediment.server.handlers.groups import GroupHandlers
from sediment.server.handlers.list_offsets import OffsetHandlers
from sediment.server.handlers.log_dirs import LogDirHandlers
from sediment.server.handlers.metadata import MetadataHandlers, Node
from sediment.server.handlers.transactions import TransactionHandlers
from sediment.server.handlers.user_descriptions import UserDescriptionHandlers
from sediment.server.metrics_text import server_metrics_text
from sediment.server.network.endpoints import Endpoint, choose_advertised
from sediment.server.network.frames import OTHER_REQUEST_MAX_BYTES
from sediment.server.network.processor import Listener
from sediment.server.network.socket_server import SocketServer, bind
from sediment.server.open_files_limit import raised_open_files_limit
from sediment.server.request_log import RequestLog
from sediment.server.request_metrics import RequestMetrics
from sediment.server.requests import Handler
from sediment.server.security.credentials import ClusterUsers, Credentials, CredentialSource
from sediment.server.security.exposure import check_exposure, choose_credentials, security_protocol
from sediment.server.security.sasl import SaslAuthenticator, SaslHandlers, SaslMechanisms
from sediment.server.security.tls import server_context
from sediment.server.server_config import ServerConfig
from sediment.server.transactions.stored_transactions import replay_transactions

_LOGGER = logging.getLogger(__name__)

STOP_SECONDS = 5.0
_OF_ONE_REPLICA = (
    "offsets.topic.replication.factor",
    "transaction.state.log.min.isr",
    "transaction.state.log.replication.factor",
)


@dataclass(frozen=True, slots=True)
class Security:
    """Files and flags for the listener's security; `certificate` and `key` must be given together."""

    certificate: Path | None = None
    key: Path | None = None
    users: Credentials | None = None
    insecure: bool = False


@dataclass(frozen=True, slots=True)
class ServerOptions:
    backend: ReadOnlyOptions | LiveOptions
    listen: Endpoint
    advertise: Endpoint | None = None
    security: Security = field(default_factory=Security)
    request_log: Path | None = None
    config: ServerConfig = field(default_factory=ServerConfig)


class KafkaServer:
    """A server that runs from `start` to `stop`, or in a `with` block; the event `stop_start` aborts a long start."""

    def __init__(self, options: ServerOptions, fs: Fs, stop_start: threading.Event | None = None) -> None:
        self._options = options
        self._fs = fs
        self._stop_start = stop_start or threading.Event()
        self._undo = ExitStack()
        self._process = os.getpid()

    def __enter__(self) -> KafkaServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Raise StartStoppedError if `stop_start` was set while the logs were being loaded."""
        self._process = os.getpid()
        with ExitStack() as undo:
            self._start(undo)
            self._undo = undo.pop_all()

    def stop(self) -> None:
        if os.getpid() == self._process:
            self._undo.close()

    def check_usable(self) -> None:
        if self.backend.failure is not None:
            raise self.backend.failure

    def deletions(self) -> str:
        return self.backend.deletions()

    def metrics_text(self) -> bytes:
        return server_metrics_text(self.metrics, self._sockets, self.backend.log_metrics())

    def _start(self, undo: ExitStack) -> None:
        options = self._options
        # 1. raise the limit on open files
        undo.enter_context(raised_open_files_limit(options.config.max_connections))

        # 2. read certificate and users
        security = options.security
        tls = _tls_of(security)
        from_file = None if security.users is None else _constant(security.users)

        # 3. check the address, bind it
        resolved = options.listen.resolve()
        check_exposure(resolved, has_tls=tls is not None, has_users=from_file is not None, insecure=security.insecure)
        choose_advertised(options.listen, resolved, options.advertise)
        listening = bind(resolved, options.config)
        undo.callback(listening.close)
        self.bound = replace(resolved, port=listening.getsockname()[1])
        self.advertised = choose_advertised(options.listen, self.bound, options.advertise)

        # 4. open the backend
        self.backend = backend = self._open_backend()
        undo.callback(backend.close)
        self.catalog = backend.catalog
        config = replace(
            options.config,
            node_id=self.catalog.node_id,
            offsets_retention_minutes=backend.offsets_retention_minutes,
            transactional_id_expiration_ms=backend.transactional_id_expiration_ms,
        )
        if not backend.can_write:
            # Here every Produce is refused.  So a Produce must not reserve more memory than other requests.
            max_bytes = min(config.socket_request_max_bytes, OTHER_REQUEST_MAX_BYTES)
            config = replace(config, socket_request_max_bytes=max_bytes)

        # 5. choose the credentials
        of_cluster = ClusterUsers(self._scram_credentials)
        credentials = choose_credentials(resolved, from_file, of_cluster, insecure=security.insecure)
        self.protocol = security_protocol(has_tls=tls is not None, has_users=credentials is not None)

        # 6. start the timers
        timer, group_timer = Timer(), Timer(name="group-timer")  # group callbacks may wait for the disk
        undo.callback(timer.close)
        undo.callback(group_timer.close)

        # 7. open the request log
        request_log = None
        if options.request_log is not None:
            with naming_option("--request-log", options.request_log):
                request_log = RequestLog(options.request_log)
            undo.callback(request_log.close)

        # 8. make the handlers
        consumer_groups = None
        if backend.group_store is not None and _has_consumer_groups(self.catalog.metadata):
            regex_timer = Timer(name="group-regexes")  # matching a pattern may take long
            undo.callback(regex_timer.close)
            consumer_groups = ConsumerGroupSupport(
                ClusterTopics(self.catalog), regex_timer, _wall_ms, self._configs_of_group
            )
        coordinator = GroupCoordinator(
            config, group_timer, time.monotonic_ns, backend.offset_store, backend.group_store, consumer_groups
        )
        transactions = TransactionHandlers(_wall_ms)
        apis = self._apis(config, timer, coordinator, consumer_groups, transactions)

        # 9. start handlers and processors
        self.metrics = RequestMetrics(config.num_network_threads, log=None if request_log is None else request_log.log)
        self._sockets = SocketServer(
            listening,
            Listener(
                self.protocol,
                str(self.bound),
                tls,
                _maker_of_authenticators(
                    credentials, timer, config.connection_failed_authentication_delay_ms, has_tls=tls is not None
                ),
            ),
            config,
            apis.handle,
            self.metrics,
            backend.handled_at_once,
        )
        self._sockets.start()
        undo.callback(self._sockets.stop, STOP_SECONDS)

        # 10. (on a stop) respond to all waiting requests
        undo.callback(backend.stop_waiting)
        undo.callback(coordinator.close)

        # 11. listen, and accept connections
        self._sockets.open()
        undo.callback(self._sockets.stop_reading)
        undo.callback(self._sockets.stop_accepting)

        # 12. load groups and transactions
        self._load_in_background(backend, coordinator, transactions)

        # 13. delete expired and superseded records
        if not self._stop_start.is_set():
            undo.callback(backend.stop_deleting)
            backend.start_deleting()

    def _apis(
        self,
        config: ServerConfig,
        timer: Timer,
        coordinator: GroupCoordinator,
        consumer_groups: ConsumerGroupSupport | None,
        transactions: TransactionHandlers,
    ) -> KafkaApis:
        backend = self.backend
        node = Node(self.catalog.node_id, self.advertised.host, self.advertised.port)
        return KafkaApis(
            _joined(
                SaslHandlers().handlers(),
                MetadataHandlers(
                    self.catalog,
                    node,
                    can_write=backend.can_write,
                    create_topics=backend.create_topics if config.auto_create_topics_enable else None,
                ).handlers(),
                OffsetHandlers(self.catalog).handlers(),
                ConfigHandlers(
                    self.catalog,
                    self.catalog.node_id,
                    can_write=backend.can_write,
                    static=backend.static_configs,
                    own=partial(self._own_configs, config, backend, has_consumer_groups=consumer_groups is not None),
                    group_defaults=group_config_defaults(config),
                ).handlers(),
                LogDirHandlers(self.catalog).handlers(),
                UserDescriptionHandlers(self.catalog).handlers(),
                GroupHandlers(
                    coordinator,
                    (node.id, node.host, node.port),
                    backend.make_coordinator_topic,
                    None if consumer_groups is None else consumer_groups.topics,
                ).handlers(),
                CommittedOffsetHandlers(coordinator, self.catalog, _wall_ms).handlers(),
                transactions.handlers(),
                *backend.handlers(timer, config, coordinator),
            ),
            _features_of(self.catalog.metadata, backend.supported_features),
            backend.unadvertised,
        )

    def _own_configs(self, config: ServerConfig, backend: Backend, *, has_consumer_groups: bool) -> Mapping[str, str]:
        differing = {
            key: text
            for key, description in config_descriptions(ResourceType.BROKER).items()
            if (text := value_text(getattr(config, key.replace(".", "_"), None))) not in (None, description.default)
        }
        listener = self.protocol + "://{}"
        return {
            **{key: text for key, text in differing.items() if key not in backend.static_configs},
            **dict.fromkeys(_OF_ONE_REPLICA, "1"),
            "advertised.listeners": listener.format(self.advertised),
            "broker.id": str(config.node_id),
            "group.coordinator.rebalance.protocols": "classic,consumer" if has_consumer_groups else "classic",
            "listeners": listener.format(self.bound),
            "log.dirs": ",".join(str(directory.path) for directory in self.catalog.directories),
            "node.id": str(config.node_id),
            "process.roles": "broker,controller" if backend.can_write else "broker",
        }

    def _scram_credentials(self) -> Mapping[tuple[int, str], Any]:
        metadata = self.catalog.metadata
        return {} if metadata is None else metadata.scram_credentials

    def _configs_of_group(self, group_id: str) -> Mapping[str, str]:
        metadata = self.catalog.metadata
        return {} if metadata is None else metadata.group_configs.get(group_id, {})

    def _open_backend(self) -> Backend:
        options = self._options.backend
        if isinstance(options, LiveOptions):
            from sediment.server.backends.live import LiveBackend  # imported here: a read-only start saves 0.3 s

            return LiveBackend(options, self._fs, self._stop_start)
        return ReadOnlyBackend(options, self._fs)

    def _load_in_background(
        self, backend: Backend, coordinator: GroupCoordinator, transactions: TransactionHandlers
    ) -> None:
        def load() -> None:
            with _without_collections():
                load_groups()
                load_transactions()

        def load_groups() -> None:
            try:
                topic = backend.coordinator_topic(CONSUMER_OFFSETS)
                coordinator.load(topic.replay(lambda log: replay_groups(log, self._fs)), topic.is_unreadable)
            except Exception:
                _LOGGER.exception("the groups cannot be loaded; requests for groups get an error")
                coordinator.load({}, lambda _: True)

        def load_transactions() -> None:
            try:
                topic = backend.coordinator_topic(TRANSACTION_STATE)
                stored = topic.replay(lambda log: replay_transactions(log, self._fs))
                transactions.load(backend.load_transactions(stored, topic.is_unreadable), topic.is_unreadable)
            except Exception:
                _LOGGER.exception("the transactions cannot be loaded; requests for transactions get an error")
                transactions.load(backend.load_transactions({}, lambda _: True), lambda _: True)

        threading.Thread(target=load, name="group-metadata-manager-0", daemon=True).start()


@contextmanager
def _without_collections() -> Iterator[None]:
    """Pause the garbage collector during the load, because it would scan a million loaded offsets again and again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _tls_of(security: Security) -> ssl.SSLContext | None:
    if security.certificate is None and security.key is None:
        return None
    if security.certificate is None or security.key is None:
        raise UsageError("--tls-cert and --tls-key must be given together", advice="give both, or neither")
    return server_context(security.certificate, security.key)


def _constant(credentials: Credentials) -> CredentialSource:
    return lambda: credentials


def _maker_of_authenticators(
    credentials: CredentialSource | None, timer: Timer, failure_delay_ms: int, *, has_tls: bool
) -> Callable[[], SaslAuthenticator] | None:
    if credentials is None:
        return None
    mechanisms = SaslMechanisms(credentials, has_tls=has_tls)
    return lambda: SaslAuthenticator(mechanisms, timer, failure_delay_ms)


def _has_consumer_groups(metadata: ClusterMetadata | None) -> bool:
    return metadata is not None and metadata.features.get("group.version", 0) >= 1


def _features_of(metadata: ClusterMetadata | None, ranges: Mapping[str, tuple[int, int]]) -> Features:
    if metadata is None:
        return Features({}, {})
    levels, supported = dict(metadata.features), dict(ranges)
    if metadata.kraft_version:
        levels[KRAFT_VERSION] = metadata.kraft_version
    for name, level in levels.items():
        lowest, highest = supported.get(name, (level, level))
        supported[name] = min(lowest, level), max(highest, level)
    return Features(supported, levels, metadata.end_offset)


def _joined(*mappings: Mapping[ApiKey, Handler]) -> dict[ApiKey, Handler]:
    joined: dict[ApiKey, Handler] = {}
    for mapping in mappings:
        assert not joined.keys() & mapping.keys(), joined.keys() & mapping.keys()
        joined.update(mapping)
    return joined


def _wall_ms() -> int:
    return time.time_ns() // NS_PER_MS

"""ReadOnlyBackend: log directories without a broker, and a state directory outside them.

open                                                      undone by `close`
1  open the log directories, load compiled code           close their files
2  lock and read the state directory                      release it
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from sediment.segment_io.errors import SedimentError
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.slices import Bounds
from sediment.segment_io.partition.sources import Source
from sediment.segment_io.protocol.api_keys import ApiKey
from sediment.server.coordinator_log import CoordinatorLog, CoordinatorTopic
from sediment.server.delayed import DelayedOperations, Timer
from sediment.server.errors import naming_option
from sediment.server.groups.group_coordinator import GroupCoordinator
from sediment.server.groups.state_directory import StateDirectory
from sediment.server.handlers.fetch import FetchHandlers
from sediment.server.handlers.refused import READ_ONLY, RefusedHandlers
from sediment.server.read_only.catalog import CatalogOptions, open_catalog
from sediment.server.read_only.warm_up import warm_up
from sediment.server.requests import Handler
from sediment.server.server_config import ServerConfig
from sediment.server.transactions.transaction import Transaction


@dataclass(frozen=True, slots=True)
class ReadOnlyOptions:
    directories: tuple[Path, ...]
    catalog: CatalogOptions = field(default_factory=CatalogOptions)
    state: Path | None = None
    """Directory for committed offsets.  If it is None, offsets are kept only in memory."""


class ReadOnlyBackend:
    handled_at_once = frozenset({ApiKey.API_VERSIONS, ApiKey.FETCH, ApiKey.FIND_COORDINATOR, ApiKey.HEARTBEAT})
    # Java's producers repeat InitProducerId for ever if a permission is missing, librdkafka's after most other errors.
    # Both give up if the server does not have the request, and franz-go then sends a plain Produce, which is refused.
    unadvertised = frozenset({ApiKey.INIT_PRODUCER_ID})
    can_write = False
    supported_features: Mapping[str, tuple[int, int]] = MappingProxyType({})
    failure = None
    group_store = None
    offsets_retention_minutes = None
    transactional_id_expiration_ms = None
    static_configs: Mapping[str, str] = MappingProxyType({})

    def __init__(self, options: ReadOnlyOptions, fs: Fs) -> None:
        with ExitStack() as undo:
            self.catalog = open_catalog(options.directories, options.catalog, fs)  # 1
            undo.callback(self.catalog.close)
            warm_up()
            self.offset_store: StateDirectory | None = None
            if options.state is not None:  # 2
                directories = [directory.path for directory in self.catalog.directories]
                with naming_option("--state", options.state):
                    self.offset_store = StateDirectory(options.state, directories, fs)
                undo.callback(self.offset_store.close)
            self._undo = undo.pop_all()

    def coordinator_topic(self, name: str) -> CoordinatorTopic:
        topic = self.catalog.coordinator_topics.get(name)
        if topic is None:
            return CoordinatorTopic([], 1)
        metadata = self.catalog.metadata
        stated = metadata.partitions.get(name, ()) if metadata is not None else ()
        logs: list[CoordinatorLog] = []
        partition_count = max((*stated, *topic.partitions, *topic.unreadable)) + 1
        found = CoordinatorTopic(logs, partition_count, set(topic.unreadable))
        for log in topic.partitions.values():
            try:
                bounds = Bounds(first_offset=log.log_start_offset, end_offset=log.high_watermark)
            except (SedimentError, OSError) as error:
                found.leave_out(log.topic_partition, error)
            else:
                logs.append(CoordinatorLog(Source(log.topic_partition, log.directory), bounds))
        return found

    def create_topics(self, names: Collection[str]) -> None: ...
    def make_coordinator_topic(self, name: str) -> None:
        """Do nothing: nothing is created in these directories."""

    def handlers(
        self, timer: Timer, config: ServerConfig, coordinator: GroupCoordinator
    ) -> Sequence[Mapping[ApiKey, Handler]]:
        delayed = DelayedOperations(timer)
        fetch = FetchHandlers(self.catalog, delayed, fetch_max_bytes=config.fetch_max_bytes, logs_grow=False)
        return fetch.handlers(), RefusedHandlers(READ_ONLY).handlers()

    def start_deleting(self) -> None:
        """Do nothing, because nothing is deleted."""

    def stop_deleting(self) -> None: ...
    def deletions(self) -> str:
        return "nothing is deleted"

    def log_metrics(self) -> None: ...
    def load_transactions(
        self, stored: Mapping[str, Transaction], _is_unreadable: Callable[[str], bool]
    ) -> Callable[[], Mapping[str, Transaction]]:
        return lambda: stored

    def stop_waiting(self) -> None:
        """Do nothing: a waiting fetch ends when its connection is closed."""

    def close(self) -> None:
        self._undo.close()

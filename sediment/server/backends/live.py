"""LiveBackend: the log directories of a single node, owned by this process.

    open                                                       undone by `close`
    1  check the directories and the metadata (owned_node)     -
    2  lock them, remove .kafka_cleanshutdown, load the logs   flush and close the logs, write checkpoints and markers
    3  check that the metadata is still the same               -
    4  open the writer of the metadata                         close it
    5  finish interrupted moves to other log directories       -
    6  after an unclean stop, raise the leader epochs          -
    7  finish other interrupted changes: rename the folders    -
       of deleted topics to -stray, create the absent logs
    8  make all logs durable, raise the high watermarks to     -
       the log ends; if something was interrupted, write
       the checkpoints, because they may be stale
    9  start the flushers                                      finish their flushes
   10  load the compiled code, once in a process               -

A marker is the file `.kafka_cleanshutdown` of a directory. A crash before step 2 leaves the directories unchanged. A
crash in step 2 or later leaves no marker. If step 3 fails, or if the start is stopped during step 2, each directory
that had a marker gets it again.

Nothing is deleted before `start_deleting`, the last step of a start.

Source: Kafka's ReplicaManager, LogManager and BrokerServer.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, TypeGuard

from sediment.engine.clone.cluster_records import CloneNode, next_producer_id
from sediment.engine.clone.features import SUPPORTED_LEVELS
from sediment.engine.config_definitions import Value
from sediment.engine.live.broker_config import BrokerConfig
from sediment.engine.live.log.partition_log import PartitionLog
from sediment.engine.live.log_directory import LogDirectory
from sediment.engine.live.log_manager import LogManager
from sediment.engine.live.scheduler import Clock
from sediment.engine.log_config import LogConfig
from sediment.engine.metadata.bootstrap_writer import BootstrapWriter
from sediment.engine.metadata.leader_changes import directory_change_record, leader_change_records
from sediment.engine.metadata.metadata_log_writer import MetadataLogWriter
from sediment.engine.metadata.metadata_writer import MetadataWriter
from sediment.segment_io.errors import SedimentError, SourceChangedError, StorageError
from sediment.segment_io.format.checkpoints import parse_uuid
from sediment.segment_io.format.layout import INT64_MAX
from sediment.segment_io.format.names import INTERNAL_TOPICS, DirectoryState, TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.internal_topics.coordinator_records import CONSUMER_OFFSETS, TRANSACTION_STATE
from sediment.segment_io.internal_topics.metadata_batches import split_into_batches
from sediment.segment_io.internal_topics.metadata_log import SERVER_TRANSACTION, ClusterMetadata
from sediment.segment_io.partition.clean_shutdown_file import (
    NEW_DIRECTORY,
    RAISED_EPOCHS,
    SERVED_NODE,
    CleanShutdown,
)
from sediment.segment_io.partition.slices import Bounds
from sediment.segment_io.partition.sources import Source
from sediment.segment_io.protocol.api_keys import ApiKey
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.backends.live_options import LiveOptions
from sediment.server.coordinator_log import CoordinatorLog, CoordinatorTopic
from sediment.server.delayed import DelayedOperations, Timer
from sediment.server.dynamic_config_keys import MOVE_LIMIT_KEY
from sediment.server.errors import ApiError, StartStoppedError
from sediment.server.groups.group_coordinator import GroupCoordinator
from sediment.server.groups.offsets_topic import OffsetsTopic
from sediment.server.handlers.alter_configs import AlterConfigHandlers
from sediment.server.handlers.delete_records import DeleteRecordsHandlers
from sediment.server.handlers.fetch import FetchHandlers
from sediment.server.handlers.group_deletions import GroupDeletionHandlers
from sediment.server.handlers.log_dirs import AlterLogDirsHandlers
from sediment.server.handlers.metadata import QuorumHandlers
from sediment.server.handlers.produce import ProduceHandlers
from sediment.server.handlers.producer_ids import ProducerIdHandlers
from sediment.server.handlers.refused import RefusedHandlers
from sediment.server.handlers.topics import TopicHandlers
from sediment.server.handlers.transactional_producers import TransactionalProducerHandlers
from sediment.server.handlers.users import UserHandlers
from sediment.server.live.delayed_append import ReplicationWaits
from sediment.server.live.deletions import describe_deletions
from sediment.server.live.live_catalog import LiveCatalog
from sediment.server.live.log_dir_moves import LogDirMoves
from sediment.server.live.log_flusher import LogFlusher, flush_and_replicate
from sediment.server.live.owned_node import OwnedNode, directories_for_partitions, open_node, read_metadata
from sediment.server.live.partition import Partition
from sediment.server.live.producer_ids import ProducerIdManager
from sediment.server.live.topic_configs import TopicConfigs, internal_topic_configs
from sediment.server.live.topic_rules import NewTopic
from sediment.server.live.topic_store import CreatedTopic, TopicStore
from sediment.server.live.warm_up import warm_up
from sediment.server.log_metrics import LogMetrics, log_metrics
from sediment.server.requests import Handler
from sediment.server.server_config import ServerConfig
from sediment.server.transactions.marker_writer import MarkerWriter
from sediment.server.transactions.transaction import Transaction
from sediment.server.transactions.transaction_coordinator import TransactionCoordinator
from sediment.server.transactions.transaction_log import TransactionLog
from sediment.server.transactions.transactional_offsets import TransactionalOffsets

_LOGGER = logging.getLogger(__name__)

NOT_OFFERED = "this server does not offer this request"
TRANSACTION_VERSION = "transaction.version"
_FLUSHER_THREADS = 4
_FIRST_LEADER_EPOCH = 0
_EXPIRATION_KEYS = ("offsets.retention.minutes", "transactional.id.expiration.ms")
_MAYBE_STALE = (
    "bootstrap.checkpoint may be older than a broker's configs, because %s; retention and the cleaner are off until a "
    "broker has started on the directory"
)


class LiveBackend:
    """The open log directories of one node, for reads and writes; `stop` interrupts the load of the logs.

    Raises:
        StartStoppedError: `stop` was set.
    """

    # Fetches are not included, because a read may wait for the log's lock while a flush or a roll holds this lock.  A
    # produce may also wait, but passing every produce to another thread and back would take longer than a small
    # produce.  If produces are slow on average, they go through the request channel.
    handled_at_once = frozenset({ApiKey.API_VERSIONS, ApiKey.HEARTBEAT, ApiKey.PRODUCE})
    unadvertised: frozenset[ApiKey] = frozenset()
    can_write = True
    supported_features = SUPPORTED_LEVELS

    def __init__(self, options: LiveOptions, fs: Fs, stop: threading.Event, clock: Clock | None = None) -> None:
        self._delayed: DelayedOperations | None = None
        self._moves: LogDirMoves | None = None
        with ExitStack() as undo:
            self._open(options, fs, stop, clock or Clock(), undo)
            self._undo = undo.pop_all()

    def _open(self, options: LiveOptions, fs: Fs, stop: threading.Event, clock: Clock, undo: ExitStack) -> None:
        options.prepare()
        # 1. check the directories and the metadata
        owned = open_node(
            options.directories,
            options.quorum,
            fs,
            metadata_apart=options.metadata_apart,
            metadata_log_dir=options.metadata_log_dir,
            log_dirs=options.log_dirs,
        )
        # 2. lock the directories and load the logs
        configs = TopicConfigs(partial(_topic_configs, options, owned.node.node_id), owned.metadata)
        broker_config = partial(_broker_config, options, owned.node)
        self._manager = manager = LogManager(
            options.directories,
            configs,
            broker_config(owned.metadata),
            fs=fs,
            clock=clock,
            on_readable_change=self._check_delayed,
            deletes=False,
            left_out=(*owned.removed, *owned.unused),
        )
        manager.start(stop=stop)
        undo.callback(self._close_logs)
        if stop.is_set():
            raise StartStoppedError
        _check_every_directory_is_online(manager)

        # 3. check that the metadata is still the same
        if read_metadata(owned.metadata_dir, owned.is_started, fs) != owned.metadata:
            raise SourceChangedError(
                "the cluster's metadata changed during the start",
                path=str(owned.metadata_dir),
                advice="stop the broker that used the directory, and start again",
            )

        # If the metadata comes from `bootstrap.checkpoint`, a marker or the state after a format must prove that this
        # file is current. Otherwise neither retention nor the cleaner runs, because a broker may have changed the
        # configs after the file was written.
        self._why_stale = owned.why_stale({each.path.absolute(): each.clean_shutdown for each in manager.directories()})

        # 4. open the writer of the metadata
        writer = _metadata_writer(owned, manager, fs)
        undo.callback(writer.close)

        # 5. finish interrupted moves
        metadata, moves = _finish_moves(owned, manager, writer)

        # 6. after an unclean stop, raise the leader epochs
        unclean = _after_unclean_stop(manager)
        raised = _raise_leader_epochs(owned, manager, writer, unclean)
        _choose_markers(owned, manager, unclean)

        # 7. finish other interrupted changes
        _put_away_removed(owned, manager)
        _create_absent(owned, manager)

        # 8. make all logs durable
        for log in manager.all_logs():
            flush_and_replicate(log)
        if unclean or owned.removed or owned.promoted:
            manager.checkpoint_all()
        leader_epochs = _leader_epochs(manager, owned.metadata, raised=raised)

        # 9. start the flushers
        self._flusher = None
        if options.flush_acks:
            self._flusher = LogFlusher(_FLUSHER_THREADS, self._check_delayed)
            undo.callback(self._flusher.close)

        # 10. load the compiled code
        warm_up()

        partitions = {
            log.partition: Partition(log, leader_epochs[log.partition], self._flusher) for log in manager.all_logs()
        }
        self.catalog = LiveCatalog(
            owned.node.cluster_id,
            owned.node.node_id,
            metadata,
            partitions,
            options.directories,
            manager.future_logs,
        )
        known_ids = [producer.producer_id for each in partitions.values() for producer in each.producers]
        self._producer_ids = ProducerIdManager(owned.node, next_producer_id(owned.metadata, known_ids), writer)
        self._writer, self._directory_id = writer, _voter_directory_id(owned)
        self._configs = configs
        stated = {} if self._why_stale else options.broker_values(owned.metadata, owned.node.node_id)
        minutes, expiration_ms = (stated.get(key) for key in _EXPIRATION_KEYS)
        self.offsets_retention_minutes = minutes if isinstance(minutes, int) else None
        self.transactional_id_expiration_ms = expiration_ms if isinstance(expiration_ms, int) else None
        self.static_configs = options.static_configs
        self._broker_values = partial(_broker_values, options, owned.node.node_id)
        self._interrupted_moves = moves
        self._directories = directories_for_partitions(
            options.directories,
            {log.directory.parent for log in manager.all_logs()},
            metadata_dir=owned.metadata_dir,
            metadata_apart=options.metadata_apart,
            log_dirs=options.log_dirs,
        )
        self._make_store = partial(
            TopicStore,
            self.catalog,
            manager,
            writer,
            configs,
            broker_config=broker_config,
            broker_values=self._broker_values,
            directories=self._directories,
            lead=self._lead,
            on_deleted=self._check_delayed_of,
        )
        self.offset_store = self.group_store = OffsetsTopic(
            lambda: self._partitions_of(CONSUMER_OFFSETS), manager.clock.now_ms
        )

    def _lead(self, log: PartitionLog) -> Partition:
        return Partition(log, _FIRST_LEADER_EPOCH, self._flusher)

    def _close_logs(self) -> None:
        # The marker keeps the broker's epoch, so when the broker registers again, the controller treats the stop as
        # clean.  A directory without a marker at the start gets a marker only if step 6 has raised the epochs of its
        # logs.
        self._manager.shutdown(None, marks_unclean=False)

    def _partitions_of(self, topic: str) -> Mapping[int, Partition | None]:
        found = self.catalog.topic(topic)
        return {} if found is None else found.all_partitions

    def _check_delayed(self, log: PartitionLog) -> None:
        self._check_delayed_of(log.partition)

    def _check_delayed_of(self, partition: TopicPartition) -> None:
        if self._delayed is not None:
            self._delayed.check(partition)

    def coordinator_topic(self, name: str) -> CoordinatorTopic:
        partitions = self._partitions_of(name)
        logs = [
            CoordinatorLog(
                Source(each.topic_partition, each.directory),
                Bounds(first_offset=each.log_start_offset, end_offset=each.high_watermark),
            )
            for each in partitions.values()
            if each is not None
        ]
        return CoordinatorTopic(logs, max(len(partitions), 1))

    def handlers(
        self, timer: Timer, config: ServerConfig, coordinator: GroupCoordinator
    ) -> Sequence[Mapping[ApiKey, Handler]]:
        self._delayed = delayed = DelayedOperations(timer)
        self.topics = self._make_store(server_config=config, on_topics_deleted=coordinator.topics_deleted)
        self._moves = moves = LogDirMoves(self.catalog, self._manager, self.topics, self._directories)
        self._internal_topics = {
            CONSUMER_OFFSETS: config.offsets_topic_num_partitions,
            TRANSACTION_STATE: config.transaction_state_log_num_partitions,
        }
        clock, scheduler = self._manager.clock, self._manager.scheduler
        waits = ReplicationWaits(delayed, partial(scheduler.schedule_once, "transactions"))
        markers = MarkerWriter(self.catalog, coordinator, waits, clock.now_ms)
        self._transactions = TransactionCoordinator(
            config,
            self.catalog.metadata.features.get(TRANSACTION_VERSION, 0),
            TransactionLog(lambda: self._partitions_of(TRANSACTION_STATE), waits),
            markers,
            self._producer_ids,
            scheduler,
            clock,
        )
        offsets = TransactionalOffsets(
            lambda: self._partitions_of(CONSUMER_OFFSETS), self._transactions, coordinator, waits
        )
        producer_ids = ProducerIdHandlers(self._producer_ids)
        own = {
            **FetchHandlers(self.catalog, delayed, fetch_max_bytes=config.fetch_max_bytes, logs_grow=True).handlers(),
            **ProduceHandlers(self.catalog, delayed, self._transactions).handlers(),
            **TransactionalProducerHandlers(
                self._transactions,
                offsets,
                markers,
                producer_ids,
                self.catalog,
                self.make_coordinator_topic,
                clock.now_ms,
            ).handlers(),
            **TopicHandlers(self.topics, self.catalog).handlers(),
            **AlterConfigHandlers(self.topics, self.catalog.node_id).handlers(),
            **DeleteRecordsHandlers(self.catalog, self._manager.checkpoint_log_starts).handlers(),
            **AlterLogDirsHandlers(moves.alter).handlers(),
            **GroupDeletionHandlers(coordinator, self.catalog).handlers(),
            **UserHandlers(self.topics).handlers(),
            **QuorumHandlers(
                self.catalog.node_id, self._directory_id, lambda: self._writer.position, clock.now_ms
            ).handlers(),
        }
        refused = RefusedHandlers(NOT_OFFERED).handlers()
        return own, {key: handler for key, handler in refused.items() if key not in own}

    def load_transactions(
        self, stored: Mapping[str, Transaction], is_unreadable: Callable[[str], bool]
    ) -> Callable[[], Mapping[str, Transaction]]:
        if self._moves is not None:
            self._moves.coordinators_loaded()
        self._transactions.load(stored, is_unreadable)
        return lambda: self._transactions.transactions

    def create_topics(self, names: Collection[str]) -> None:
        errors: list[ApiError] = []
        for name in INTERNAL_TOPICS.intersection(names):
            try:
                self.make_coordinator_topic(name)
            except ApiError as error:
                errors.append(error)
        try:
            outcomes = self.topics.create([NewTopic(name) for name in names if name not in INTERNAL_TOPICS])
            errors += [each for each in outcomes if _is_failure(each)]
        except ApiError as error:
            errors.append(error)
        if errors:
            _LOGGER.info("topics that a client asked for are not created: %s", errors[0].what)

    def make_coordinator_topic(self, name: str) -> None:
        count = self._internal_topics.get(name)
        if count is None:
            return
        if self.catalog.topic(name) is None:
            configs = internal_topic_configs(name, self._broker_values(self.catalog.metadata))
            self._create(NewTopic(name, count, configs=tuple(configs.items())))
        missing = [number for number, partition in self._partitions_of(name).items() if partition is None]
        if missing:
            raise ApiError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"partition {missing[0]} of {name} has no log; remove the cause and start again",
            )

    def _create(self, topic: NewTopic) -> None:
        (outcome,) = self.topics.create([topic])
        if _is_failure(outcome):
            raise outcome

    def start_deleting(self) -> None:
        """Restart the moves between log directories that the last stop interrupted."""
        if self._why_stale:
            _LOGGER.warning(_MAYBE_STALE, self._why_stale)
        if self._moves is not None:
            self._moves.resume(self._interrupted_moves)
        self._manager.start_deleting(by_limits=not self._why_stale)

    def stop_deleting(self) -> None:
        self._manager.stop_deleting_by_limits()

    def deletions(self) -> str:
        if self._why_stale:
            return "retention and the cleaner are off, because bootstrap.checkpoint may be stale"
        return describe_deletions(
            {topic.name: self._configs(topic.name) for topic in self.catalog.topics()},
            cleans=self._manager.config.log_cleaner_enable,
            offsets_retention_minutes=self.offsets_retention_minutes,
            transactional_id_expiration_ms=self.transactional_id_expiration_ms,
        )

    def log_metrics(self) -> LogMetrics:
        return log_metrics(self._manager)

    @property
    def failure(self) -> SedimentError | None:
        if not self._manager.is_halted():
            return None
        return StorageError("every log directory has failed", advice="repair them and start again")

    def stop_waiting(self) -> None:
        if self._delayed is not None:
            self._delayed.close()

    def close(self) -> None:
        self._undo.close()


def _topic_configs(options: LiveOptions, node_id: int, metadata: ClusterMetadata) -> Callable[[str], LogConfig]:
    return options.topic_configs(metadata, node_id)


def _broker_values(options: LiveOptions, node_id: int, metadata: ClusterMetadata) -> Mapping[str, Value]:
    return options.broker_values(metadata, node_id)


def _broker_config(options: LiveOptions, node: CloneNode, metadata: ClusterMetadata) -> BrokerConfig:
    values = options.broker_values(metadata, node.node_id)
    stated: dict[str, Any] = {
        field.name: values[key] for field in fields(BrokerConfig) if (key := field.name.replace("_", ".")) in values
    }
    limit = metadata.configs_of_broker(node.node_id).get(MOVE_LIMIT_KEY, "")
    if limit.isdecimal() and int(limit) <= INT64_MAX:
        stated["replica_alter_log_dirs_io_max_bytes_per_second"] = int(limit)
    return BrokerConfig(**{**stated, "cluster_id": node.cluster_id, "node_id": node.node_id})


def _is_failure(outcome: CreatedTopic | ApiError) -> TypeGuard[ApiError]:
    return isinstance(outcome, ApiError) and outcome.code is not ErrorCode.TOPIC_ALREADY_EXISTS


def _voter_directory_id(owned: OwnedNode) -> uuid.UUID | None:
    """Return the id of the directory that votes; None in a static quorum, which has no directory ids."""
    is_dynamic = owned.metadata.kraft_version > 0
    return uuid.UUID(bytes=parse_uuid(owned.node.directory_id)) if is_dynamic else None


def _metadata_directory(owned: OwnedNode, manager: LogManager) -> LogDirectory:
    (found,) = (each for each in manager.directories() if each.path.absolute() == owned.metadata_dir)
    return found


def _metadata_writer(owned: OwnedNode, manager: LogManager, fs: Fs) -> MetadataWriter:
    clock = manager.clock.now_ms
    directory = _metadata_directory(owned, manager)

    def failure() -> str | None:
        return directory.failure

    disk_failed = partial(manager.handle_directory_failure, directory)
    if not owned.is_started:
        return BootstrapWriter(owned.metadata_dir, fs, clock=clock, directory_failure=failure, disk_failed=disk_failed)
    return MetadataLogWriter(
        owned.metadata_dir,
        owned.metadata,
        fs,
        transaction=SERVER_TRANSACTION,
        clock=clock,
        scheduler=manager.scheduler,
        directory_failure=failure,
        disk_failed=disk_failed,
    )


def _finish_moves(
    owned: OwnedNode, manager: LogManager, writer: MetadataWriter
) -> tuple[ClusterMetadata, Mapping[TopicPartition, Path]]:
    # A broker may stop after the metadata names the directory of a future log, but before the future log has every
    # record. In this case, the metadata is changed so that it names the directory of the current log again.
    promoted = manager.promote_future_logs(owned.promoted)
    lacking = {partition: path for partition, path in owned.promoted.items() if partition not in promoted}
    paths = {each.path.absolute(): each.path for each in manager.directories()}
    moves = {partition: paths[path] for partition, path in {**owned.moves, **lacking}.items()}
    values = []
    for partition in lacking:
        manager.delete_future_log(partition)
        log = manager.get_log(partition)
        meta = None if log is None else manager.directory_of(log).meta
        assert meta is not None and meta.directory_id is not None
        values.append(directory_change_record(partition, meta.directory_id, owned.metadata))
    if not values:
        return owned.metadata, moves
    for part in split_into_batches(values):
        writer.append(part)
    return owned.metadata.with_records(values), moves


def _raise_leader_epochs(
    owned: OwnedNode, manager: LogManager, writer: MetadataWriter, unclean: Collection[Path]
) -> set[TopicPartition]:
    raised = {log.partition for log in manager.all_logs() if log.directory.parent in unclean}
    changes = list(leader_change_records(sorted(raised), owned.node.node_id, owned.metadata))
    for values in split_into_batches(changes):  # batches that are appended one by one need no metadata transaction
        writer.append(values)
    return raised


def _choose_markers(owned: OwnedNode, manager: LogManager, unclean: Collection[Path]) -> None:
    """Call this only after the epochs were raised, because a start that finds a marker does not raise them."""
    directories = manager.directories()
    for directory in directories:
        if directory.path.absolute() in owned.formatted:
            # It has no log that could have lost records.
            directory.clean_shutdown = NEW_DIRECTORY
        elif directory.path in unclean:
            directory.clean_shutdown = RAISED_EPOCHS
        if directory.clean_shutdown == NEW_DIRECTORY and len(directories) > 1:
            # Records of its partitions may be in the other directories, and a later start may open only this
            # directory. The mark still proves that no broker has used it.
            directory.clean_shutdown = SERVED_NODE


def _put_away_removed(owned: OwnedNode, manager: LogManager) -> None:
    for folder in owned.removed:
        if not folder.name.endswith((DirectoryState.DELETE, DirectoryState.FUTURE)):
            _LOGGER.warning("%s belongs to a deleted topic; it is renamed to -stray, not removed", folder)
    manager.put_away(owned.removed)


def _create_absent(owned: OwnedNode, manager: LogManager) -> None:
    for partition in owned.absent:
        _LOGGER.warning("%s has no folder and was never written to; its log is created empty", partition)
    paths = {each.path.absolute(): each.path for each in manager.directories()}
    topic_ids = {partition: owned.metadata.topic_ids[partition.topic] for partition in owned.absent}
    manager.create_logs(topic_ids, {partition: paths[path] for partition, path in owned.absent.items()})
    _check_every_directory_is_online(manager)


def _check_every_directory_is_online(manager: LogManager) -> None:
    for directory in manager.directories():
        if directory.is_offline:
            raise StorageError(
                f"the log directory cannot be used: {directory.failure}",
                path=str(directory),
                advice="repair the directory and start again; a server needs every directory of its node",
            )


def _leader_epochs(
    manager: LogManager, metadata: ClusterMetadata, raised: Collection[TopicPartition]
) -> dict[TopicPartition, int]:
    """Return the epoch under which this node leads each log.

    It is the later of two epochs: the one in the cluster's metadata and the latest one in the log.  For the partitions
    in `raised`, it is one more than this.  `metadata` is the state before the epochs were raised.
    """
    return {
        log.partition: max(
            metadata.leader_epochs[log.partition.topic].get(log.partition.partition, 0), log.latest_epoch
        )
        + (log.partition in raised)
        for log in manager.all_logs()
    }


def _after_unclean_stop(manager: LogManager) -> set[Path]:
    """Return the log directories whose logs may have lost records at their end.

    Such a directory had no marker of a clean stop, or had an empty marker, which `recover` writes.
    """
    return {each.path for each in manager.directories() if each.clean_shutdown in (None, CleanShutdown(None))}

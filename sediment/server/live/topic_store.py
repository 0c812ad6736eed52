"""TopicStore: the creation, change and deletion of a node's topics.

The store also makes the move of a partition to another log directory durable, while the partition's log is locked
(`log_moves`).

    create, add partitions         delete                          alter configs
    1  check the request           1  check the request            1  check the request
    2  make the records durable    2  make the records durable     2  make the records durable
    3  create the logs             3  hide the topics              3  change the configs of the logs
    4  show the topics             4  rename the logs to -delete

After a crash in step 3 or 4, the next start creates the missing logs or renames the folders (`owned_node`). Folders
marked with -delete are removed after `log.segment.delete.delay.ms`.

Step 1 also checks that the process may open enough files for the later steps. If a rename of a log still fails in step
4, the rename is tried again. Until the rename succeeds, no topic with this name can be created. If it is not known
whether step 2 of a deletion is durable, the partitions accept no more records, because the next start may delete the
topic.

Invariants: one change runs at a time. A change is durable before its request is answered.

Source: Kafka 4.2.0, ReplicationControlManager, ConfigurationControlManager, ReplicaManager.applyDelta.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sediment.engine.config_definitions import Value
from sediment.engine.live.broker_config import BrokerConfig
from sediment.engine.live.log.partition_log import PartitionLog
from sediment.engine.live.log_directory import LogDirectory
from sediment.engine.live.log_manager import LogManager
from sediment.engine.metadata.leader_changes import ELIGIBLE_REPLICAS, directory_change_record
from sediment.engine.metadata.metadata_writer import MetadataWriter
from sediment.engine.metadata.topic_records import (
    DIRECTORIES_SINCE,
    METADATA_VERSION,
    config_record,
    partition_record,
    remove_topic_record,
    topic_record,
)
from sediment.segment_io.errors import CommitStateUnknownError, SedimentError, SettingsError
from sediment.segment_io.format.names import INTERNAL_TOPICS, TopicPartition
from sediment.segment_io.internal_topics.metadata_log import ClusterMetadata
from sediment.segment_io.internal_topics.metadata_records import ResourceType
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.errors import ApiError, error_code_of
from sediment.server.live.dynamic_configs import (
    check_dynamic_configs,
    check_eligible_replicas,
    check_thread_counts,
    configs_of,
    invalid_configuration,
)
from sediment.server.live.live_catalog import LiveCatalog, LiveTopic
from sediment.server.live.partition import Partition
from sediment.server.live.scram_users import UserDeletion, UserUpsertion, user_changes
from sediment.server.live.topic_configs import ConfigChange, TopicConfigs, changed_configs
from sediment.server.live.topic_rules import (
    MorePartitions,
    NewTopic,
    check_folder_name,
    check_more_partitions,
    check_new_name,
    check_record_count,
    check_total_count,
    colliding_names,
    partition_count_of,
)
from sediment.server.server_config import ServerConfig
from sediment.server.topic_names import check_topic_name

_LOGGER = logging.getLogger(__name__)

MOST_PREFERRED = 10_000
"""The largest number of missing partitions for which a preferred log directory is remembered."""


@dataclass(frozen=True, slots=True)
class CreatedTopic:
    name: str
    id: uuid.UUID
    partition_count: int
    configs: Mapping[str, str]


class TopicStore:
    # A deletion calls `on_deleted` with each deleted partition, and then `on_topics_deleted` with the names of the
    # topics. For the given metadata, `broker_config` returns the engine's config, and `broker_values` returns the
    # stated broker keys with their values.

    def __init__(
        self,
        catalog: LiveCatalog,
        manager: LogManager,
        writer: MetadataWriter,
        configs: TopicConfigs,
        *,
        broker_config: Callable[[ClusterMetadata], BrokerConfig],
        broker_values: Callable[[ClusterMetadata], Mapping[str, Value]],
        directories: Collection[Path],
        lead: Callable[[PartitionLog], Partition],
        on_deleted: Callable[[TopicPartition], object],
        on_topics_deleted: Callable[[Collection[str]], object],
        server_config: ServerConfig,
    ) -> None:
        self._catalog = catalog
        self._manager = manager
        self._writer = writer
        self._configs = configs
        self._broker_config = broker_config
        self._broker_values = broker_values
        self._directories = directories
        self._lead = lead
        self._on_deleted = on_deleted
        self._on_topics_deleted = on_topics_deleted
        self._server_config = server_config
        self._preferred: dict[TopicPartition, Path] = {}
        self._guard = threading.RLock()

    # ---------------------------------------------------------------------------------------------------------- create
    def create(self, topics: Sequence[NewTopic], *, validate_only: bool = False) -> list[CreatedTopic | ApiError]:
        check_total_count(topics, self._server_config.num_partitions)
        with self._guard:
            existing = self._catalog.metadata.topic_ids
            colliding = colliding_names(existing)
            outcomes = [self._checked(topic, existing, colliding) for topic in topics]
            made = [outcome for outcome in outcomes if isinstance(outcome, CreatedTopic)]
            if validate_only or not made:
                return outcomes
            wanted = {topic.name: range(topic.partition_count) for topic in made}
            directories = self._choose_directories(wanted)
            values: list[bytes] = []
            for topic in made:
                values.append(topic_record(topic.name, topic.id))
                values += (
                    config_record(ResourceType.TOPIC, topic.name, *each) for each in sorted(topic.configs.items())
                )
                values += self._partition_records(topic.name, topic.id, wanted[topic.name], directories)
            self._commit_partitions(values, directories)
            lacking = {name for name in wanted if not self._is_complete(name)}
            return [
                _log_missing() if isinstance(each, CreatedTopic) and each.name in lacking else each for each in outcomes
            ]

    def _checked(
        self, topic: NewTopic, existing: Collection[str], colliding: Mapping[str, str]
    ) -> CreatedTopic | ApiError:
        try:
            check_new_name(topic.name, existing, colliding)
            without_value = [key for key, value in topic.configs if value is None]
            if without_value:
                raise ApiError(
                    ErrorCode.INVALID_CONFIG,
                    f"Null value not supported for topic configs: {','.join(without_value)}",
                )
            configs = {key: value for key, value in topic.configs if value is not None}
            self._configs.check(topic.name, configs)
            count = partition_count_of(topic, self._catalog.node_id, self._server_config.num_partitions)
            check_folder_name(topic.name, count)
        except ApiError as error:
            return error
        return CreatedTopic(topic.name, uuid.uuid4(), count, configs)

    # ------------------------------------------------------------------------------------------------------ partitions
    def add_partitions(
        self, changes: Sequence[MorePartitions], *, validate_only: bool = False
    ) -> list[ApiError | None]:
        with self._guard:
            wanted: dict[str, range] = {}
            outcomes: list[ApiError | None] = []
            added = 0
            for change in changes:
                try:
                    wanted[change.name] = numbers = self._added_numbers(change, others=added)
                except ApiError as error:
                    outcomes.append(error)
                else:
                    outcomes.append(None)
                    added += len(numbers)
            if validate_only or not wanted:
                return outcomes
            directories = self._choose_directories(wanted)
            values: list[bytes] = []
            for name, numbers in wanted.items():
                values += self._partition_records(name, self._topic(name).id, numbers, directories)
            self._commit_partitions(values, directories)
            lacking = {name for name in wanted if not self._is_complete(name)}
            return [
                _log_missing() if change.name in lacking else outcome
                for change, outcome in zip(changes, outcomes, strict=True)
            ]

    def _added_numbers(self, asked: MorePartitions, others: int) -> range:
        self._topic(asked.name)
        before = len(self._catalog.metadata.replicas[asked.name])
        check_more_partitions(asked, before, self._catalog.node_id, others=others)
        return range(before, asked.count)

    def _topic(self, name: str) -> LiveTopic:
        topic = self._catalog.topic(name)
        if topic is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return topic

    def _choose_directories(self, wanted: Mapping[str, Iterable[int]]) -> dict[TopicPartition, Path]:
        level = self._catalog.metadata.features[METADATA_VERSION]
        if level < DIRECTORIES_SINCE and len(self._manager.directories()) > 1:
            raise ApiError(
                ErrorCode.POLICY_VIOLATION,
                f"a node with several log directories can create partitions only at metadata.version "
                f"{DIRECTORIES_SINCE} or later, but its metadata.version is {level}",
            )
        if not self._directories:
            raise ApiError(ErrorCode.POLICY_VIOLATION, "no directory of log.dirs is served, only the metadata.log.dir")
        online = [each.path for each in self._manager.directories() if not each.is_offline]
        online = [path for path in online if path in self._directories]
        if not online:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "every log directory has failed")
        counts = Counter({directory.path: len(directory.logs) for directory in self._catalog.directories})
        chosen = {}
        for name, numbers in wanted.items():
            for number in numbers:
                partition = TopicPartition(name, number)
                preferred = self._preferred.get(partition)
                path = preferred if preferred in online else min(online, key=counts.__getitem__)
                counts[path] += 1
                chosen[partition] = path
        return chosen

    def _directory_ids(self) -> dict[Path, str]:
        ids = {each.path: each.meta.directory_id for each in self._manager.directories() if each.meta is not None}
        return {path: directory_id or "" for path, directory_id in ids.items()}

    def _partition_records(
        self, name: str, topic_id: uuid.UUID, numbers: Iterable[int], directories: Mapping[TopicPartition, Path]
    ) -> list[bytes]:
        ids = self._directory_ids()
        return [
            partition_record(
                topic_id,
                number,
                self._catalog.node_id,
                ids[directories[TopicPartition(name, number)]],
                metadata_version=self._catalog.metadata.features[METADATA_VERSION],
            )
            for number in numbers
        ]

    def _commit_partitions(self, values: Sequence[bytes], directories: Mapping[TopicPartition, Path]) -> None:
        self._check_ready(directories)
        after = self._commit(values)
        topic_ids = {partition: after.topic_ids[partition.topic] for partition in directories}
        try:
            self._manager.create_logs(topic_ids, directories)
        except SedimentError as error:
            _LOGGER.error("logs could not be created; the next start creates them: %s", error)
        finally:
            logs = {partition: self._manager.get_log(partition) for partition in directories}
            partitions = {
                partition: self._lead(log)
                for partition, log in logs.items()
                if log is not None and log.topic_id == topic_ids[partition]
            }
            self._catalog.change(after, {partition.topic for partition in directories}, partitions)
            for partition in partitions:
                self._preferred.pop(partition, None)

    def _is_complete(self, name: str) -> bool:
        topic = self._catalog.topic(name)
        return topic is not None and not topic.missing

    # ---------------------------------------------------------------------------------------------------------- delete
    def delete(self, topic_ids: Mapping[str, uuid.UUID]) -> Mapping[str, ApiError]:
        """Delete topics by name and id; return an error for each topic that does not exist or is internal.

        A topic with the same name but another id is not deleted.

        Raises:
            ApiError: the change is not durable, or its state is unknown.  The topics are not deleted, but the next
                start may delete them.
        """
        with self._guard:
            found = {name: self._why_not_deletable(name, topic_id) for name, topic_id in topic_ids.items()}
            errors = {name: error for name, error in found.items() if error is not None}
            topics = [self._topic(name) for name in topic_ids if name not in errors]
            if topics:
                self._delete(topics)
            return errors

    def _why_not_deletable(self, name: str, topic_id: uuid.UUID) -> ApiError | None:
        if name in INTERNAL_TOPICS:
            # The coordinator would continue without the topic.
            return ApiError(ErrorCode.INVALID_REQUEST, f"this server does not delete the internal topic {name}")
        topic = self._catalog.topic(name)
        is_there = topic is not None and topic.id == topic_id
        return None if is_there else ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    def _delete(self, topics: Sequence[LiveTopic]) -> None:
        names = [topic.name for topic in topics]
        numbers = self._catalog.metadata.replicas
        partitions = [TopicPartition(name, number) for name in names for number in numbers[name]]
        served = [partition for topic in topics for partition in topic.partitions.values()]
        self._check_ready()
        try:
            after = self._commit([remove_topic_record(topic.id) for topic in topics])
        except ApiError as error:
            if isinstance(error.__cause__, CommitStateUnknownError):
                for each in served:
                    each.mark_perhaps_deleted()
                    self._on_deleted(each.topic_partition)
            raise
        self._catalog.change(after, names, {})
        for each in served:
            each.mark_deleted()
        try:
            self._manager.delete_logs(partitions)
        except SedimentError as error:
            _LOGGER.error("logs of deleted topics could not be renamed yet: %s", error)
        for partition in partitions:
            self._on_deleted(partition)
        self._on_topics_deleted(names)

    # -------------------------------------------------------------------------------------------------- log directories
    def prefer_directory(self, partition: TopicPartition, path: Path) -> None:
        """Remember the directory for a log that does not exist yet; keep only the MOST_PREFERRED newest entries."""
        with self._guard:
            self._preferred.pop(partition, None)
            self._preferred[partition] = path
            if len(self._preferred) > MOST_PREFERRED:
                del self._preferred[next(iter(self._preferred))]

    def check_movable(self) -> None:
        """Check that partition records at this metadata.version can name a log directory."""
        if self._catalog.metadata.features[METADATA_VERSION] < DIRECTORIES_SINCE:
            raise ApiError(
                ErrorCode.POLICY_VIOLATION, f"partitions can move only at metadata.version {DIRECTORIES_SINCE} or later"
            )

    def replace_with_future_log(self, partition: TopicPartition) -> bool:
        with self._guard:
            served = self._catalog.partition(partition.topic, partition.partition)
            if served is None:
                return False
            assign = partial(self._assign, partition)
            return self._manager.replace_current_with_future_log(partition, assign, served.use)

    def _assign(self, partition: TopicPartition, directory: LogDirectory) -> None:
        directory_id = self._directory_ids()[directory.path]
        values = [directory_change_record(partition, directory_id, self._catalog.metadata)]
        self._catalog.change(self._commit(values), (), {})

    # --------------------------------------------------------------------------------------------------------- configs
    def alter_configs(self, name: str, changes: Sequence[ConfigChange], *, validate_only: bool = False) -> None:
        with self._guard:
            current = self._catalog.metadata.topic_configs.get(name, {})
            self._set_configs(name, current, changed_configs(current, changes), validate_only=validate_only)

    def replace_configs(self, name: str, configs: Mapping[str, str], *, validate_only: bool = False) -> None:
        with self._guard:
            current = self._catalog.metadata.topic_configs.get(name, {})
            self._set_configs(name, current, configs, validate_only=validate_only)

    def _set_configs(
        self, name: str, current: Mapping[str, str], after: Mapping[str, str], *, validate_only: bool
    ) -> None:
        if not name:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
        check_topic_name(name)
        self._configs.check(name, after)
        if self._catalog.topic(name) is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
        changed = {key: after.get(key) for key in sorted({*current, *after}) if current.get(key) != after.get(key)}
        if validate_only or not changed:
            return
        metadata = self._commit([config_record(ResourceType.TOPIC, name, key, value) for key, value in changed.items()])
        self._catalog.change(metadata, [name], {})
        self._manager.update_topic_config(name, self._configs(name))

    def change_configs(
        self,
        kind: ResourceType,
        name: str,
        change: Callable[[Mapping[str, str]], Mapping[str, str]],
        *,
        validate_only: bool = False,
    ) -> None:
        """Changed broker configs take effect, for the open logs and the cleaner, before this method returns."""
        with self._guard:
            current = configs_of(self._catalog.metadata, kind, name)
            after = change(current)
            check_dynamic_configs(kind, name, after, self._server_config)
            if kind is ResourceType.BROKER and self._catalog.metadata.features.get(ELIGIBLE_REPLICAS, 0):
                check_eligible_replicas(name, current, after)
            changed = {key: after.get(key) for key in sorted({*current, *after}) if current.get(key) != after.get(key)}
            values = [config_record(kind, name, key, value) for key, value in changed.items()]
            use = self._checked_broker_configs(values) if kind is ResourceType.BROKER else _change_nothing
            if validate_only or not changed:
                return
            self._catalog.change(self._commit(values), (), {})
            use()

    # ----------------------------------------------------------------------------------------------------------- users
    def change_users(
        self, deletions: Sequence[UserDeletion], upsertions: Sequence[UserUpsertion]
    ) -> Mapping[str, ApiError | None]:
        with self._guard:
            metadata = self._catalog.metadata
            changes = user_changes(
                metadata.scram_credentials, deletions, upsertions, metadata.features[METADATA_VERSION]
            )
            if changes.records:
                self._catalog.change(self._commit(changes.records), (), {})
            return changes.errors

    # ------------------------------------------------------------------------------------------- configs of the broker
    def _checked_broker_configs(self, values: Sequence[bytes]) -> Callable[[], None]:
        before = self._catalog.metadata
        after = before.with_records(values)
        try:
            check_thread_counts(self._broker_values(before), self._broker_values(after))
            broker = self._broker_config(after)
            topics = self._configs.of_topics(after, after.topic_ids)
        except SettingsError as error:
            raise invalid_configuration(error.what) from error

        def use() -> None:
            self._manager.update_topic_configs(topics)
            self._manager.reconfigure(broker)

        return use

    # ------------------------------------------------------------------------------------------------------- durability
    def _check_ready(self, new: Iterable[TopicPartition] = ()) -> None:
        """Check that logs can be deleted, and that logs for the partitions `new` can be created."""
        try:
            self._manager.check_ready(new)
        except SedimentError as error:
            raise ApiError(error_code_of(error), error.what) from error

    def _commit(self, values: Sequence[bytes]) -> ClusterMetadata:
        """Raise an ApiError; its cause is a CommitStateUnknownError if the records may or may not be durable."""
        check_record_count(len(values))
        try:
            after = self._catalog.metadata.with_records(values)
            use = self._configs.prepare(after)
            self._writer.append(values)
        except SedimentError as error:
            _LOGGER.error("the metadata could not be written: %s", error)
            if isinstance(error, CommitStateUnknownError):
                self._manager.stop_deleting_by_limits()  # the limits in use may be older than the metadata
            raise ApiError(error_code_of(error), error.what) from error
        use()
        return after


def _change_nothing() -> None:
    return None


def _log_missing() -> ApiError:
    return ApiError(
        ErrorCode.KAFKA_STORAGE_ERROR, "the topic was created, but logs are missing; the next start creates them"
    )

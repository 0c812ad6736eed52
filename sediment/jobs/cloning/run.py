"""Run of `clone` on the driver.

1. The driver lists the sources, plans the clone, and claims the directory of the clone.
2. Tasks copy, load, cut, settle, compact and digest the partitions (`engine.clone.partition_clone` lists the steps).
   Topics with clients' records come first, then the coordinators' topics.  Several tasks copy a large partition
   (`split_copies`).
3. The driver renames the folder of each partition when its task is done.
4. The driver writes the checkpoints, the metadata and the other files of the node, then the manifest.

Invariants: the run neither writes nor locks the sources; if a partition cannot be cloned, the clone stays incomplete.
"""

from __future__ import annotations

import tempfile
import threading
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from sediment.engine.clone.clone_directory import CloneDirectory, StartFiles
from sediment.engine.clone.cluster_records import CloneNode, cluster_records, next_producer_id, security_records
from sediment.engine.clone.coordinator_rewrite import ClonedNames, committing_producers, transactional_producers
from sediment.engine.clone.features import clone_features
from sediment.engine.clone.node_configs import restore_commands
from sediment.engine.clone.options import CloneOptions, LinkMode, Part
from sediment.engine.clone.partition_clone import CloneTask, PartitionClone, clone_partition
from sediment.engine.clone.plan import ClonedPartition, ClonePlan, plan_clone
from sediment.engine.clone.server_properties import server_properties
from sediment.engine.clone.source import SourceCluster, open_source, open_store
from sediment.engine.config_definitions import BROKER_KEYS
from sediment.engine.copying.earlier_copy import EarlierCopy, open_earlier_copy
from sediment.engine.directory.lock import DirectoryLock
from sediment.engine.replicas import ClusterDirectory
from sediment.jobs.cloning.compaction import compaction_note, topics_left_alone, with_compaction
from sediment.jobs.cloning.options import CloneRequest
from sediment.jobs.cloning.report import (
    CLONED,
    UNCHANGED,
    ChangedConfig,
    CloneRunReport,
    PartitionCloneReport,
    TopicReport,
)
from sediment.jobs.cloning.split_copies import with_copied_pieces
from sediment.jobs.command_line.options import CommonOptions
from sediment.jobs.command_line.progress import Progress
from sediment.jobs.process.cancellation import interruptible
from sediment.jobs.reporting.error_text import describe
from sediment.jobs.reporting.figures import counted, human_bytes
from sediment.jobs.reporting.run_report import FAILED, QUARANTINED, SKIPPED
from sediment.jobs.rewriting.result import TASK_ERRORS
from sediment.jobs.rewriting.run import Run
from sediment.jobs.settings.cluster_settings import is_of_zookeeper, with_described_configs
from sediment.jobs.settings.resolve import Settings
from sediment.jobs.spark.job_names import titled
from sediment.jobs.spark.task_figures import Figures
from sediment.segment_io.errors import NoSpaceError, UsageError
from sediment.segment_io.format.checkpoints import format_uuid, parse_uuid
from sediment.segment_io.format.names import (
    INTERNAL_TOPICS,
    SERVER_PROPERTIES_FILE,
    SegmentFileKind,
    TopicPartition,
    by_number,
)
from sediment.segment_io.fs import Fs
from sediment.segment_io.internal_topics.coordinator_records import CONSUMER_OFFSETS, TRANSACTION_STATE
from sediment.segment_io.internal_topics.metadata_log import ALL_BROKERS, read_cluster_metadata
from sediment.segment_io.partition.listing import list_log
from sediment.segment_io.stores import Store

_CORRUPT = "corrupt-batch"
_NAMED = 5
_MIN_ISR = "min.insync.replicas"


@dataclass(frozen=True, slots=True)
class _Finished:
    partition: ClonedPartition
    topic_id: str
    clone: PartitionClone | None
    error: tuple[str, str] | None = None


def clone(
    options: CommonOptions, own: CloneOptions, request: CloneRequest, *, stop: threading.Event | None = None
) -> CloneRunReport:
    run = Run[PartitionCloneReport]("clone", options, stop, has_secrets=own.suppressed is not None)
    with run.stack:
        cloning = _Cloning(run, own, request)
        plan, finished, is_complete = cloning.perform()
    return cloning.report(plan, finished, is_complete)


class _Cloning:
    def __init__(self, run: Run[PartitionCloneReport], own: CloneOptions, request: CloneRequest) -> None:
        self._run = run
        self._own = own
        self._request = request
        self._options = run.options
        self._fs = run.fs
        self._target = CloneDirectory(request.to, run.run_id)
        self._earlier: EarlierCopy | None = None
        self._settings: Mapping[Path, Settings] = {}  # of each directory of the source
        self._log_bytes: Mapping[TopicPartition, int] = {}  # of the source logs, by partition of the clone
        self._left_alone: Mapping[str, tuple[str, str]] = {}  # the reasons why --compact leaves topics uncompacted
        self._node = CloneNode(own.node_id, own.cluster_id or new_kafka_id(), new_kafka_id())

    def perform(self) -> tuple[ClonePlan, list[_Finished], bool]:
        with interruptible():  # nothing is written yet
            scratch = Path(self._run.stack.enter_context(tempfile.TemporaryDirectory(prefix="sediment-")))
            stores = [Store(where) for where in self._options.given_log_dirs]
            directories = [
                open_store(store, self._fs, scratch / str(number))
                for number, store in enumerate({store.where: store for store in stores}.values())
            ]
            source = self._open_source(directories)
            self._check_has_partitions(source)
            plan = plan_clone(source, self._own, new_kafka_id)
            self._log_bytes = _list_logs(plan, self._fs)
            if self._own.since is not None:
                self._earlier = open_earlier_copy(self._own.since, Store(str(self._request.to)))
            self._settings = self._settings_of(source)
            if self._own.compact:
                self._left_alone = topics_left_alone(plan.topics.values(), source, self._settings_of_partition)
            features = clone_features(
                None if source.metadata is None else source.metadata.features, self._request.target_version
            )
            places = [directory.store for directory in source.directories]
            self._target.check(places)
            self._check_properties_file()
            self._check_space(plan)
        self._target.make(places)
        self._run.stack.enter_context(DirectoryLock(self._request.to))
        self._target.check(places)
        before = self._target.begin()
        if before is not None:
            self._print(f"{self._request.to} was left incomplete by run {before}; starting over")
        finished = self._clone_partitions(source, plan)
        is_complete = all(each.clone is not None for each in finished)
        if is_complete:
            self._finish(source, plan, features, finished)
        return plan, finished, is_complete

    # ----------------------------------------------------------------------------------------------------- partitions
    def _clone_partitions(self, source: SourceCluster, plan: ClonePlan) -> list[_Finished]:
        tasks = self._tasks(source, plan)
        records = [task for task in tasks if task.partition.source.topic not in INTERNAL_TOPICS]
        coordinators = [task for task in tasks if task.partition.source.topic in INTERNAL_TOPICS]
        finished: list[_Finished] = []
        with Progress(
            self._options.messages(), len(tasks), sum(task.log_bytes for task in tasks), phase="cloning"
        ) as progress:
            for some in (records, coordinators):
                if some is coordinators and not plan.is_whole:
                    names = _names(plan, finished)
                    some = [replace(task, names=names) for task in coordinators]
                for each in self._cloned(some):
                    if each.clone is not None:
                        self._target.add(each.partition.target, each.topic_id, each.clone)
                        progress.advance(each.clone.log_bytes)
                    finished.append(each)
        return finished

    def _cloned(self, tasks: Sequence[CloneTask]) -> Iterable[_Finished]:
        if not tasks:
            return
        ready, failed = with_copied_pieces(
            self._run.spark(),
            tasks,
            self._own.strategy,
            all_bytes=sum(self._log_bytes.values()),
            group=self._run.run_id,
            is_stopped=self._run.stop.is_set,
        )
        for lost in failed:
            yield self._settled(lost.item, lost.result, lost.error)
        for results in self._run.in_tasks(
            ready, _perform, CloneTask.weight, title=titled("clone", _partition), figures=_figures
        ):
            for each in results:
                yield self._settled(each.item, each.result, each.error)

    def _settled(
        self, task: CloneTask, result: PartitionClone | tuple[str, str] | None, error: Exception | None
    ) -> _Finished:
        if isinstance(result, PartitionClone):
            return _Finished(task.partition, task.topic_id, result)
        if result is not None:
            return _Finished(task.partition, task.topic_id, None, result)
        return _Finished(task.partition, task.topic_id, None, self._run.why_lost(error, "cloned"))

    def _tasks(self, source: SourceCluster, plan: ClonePlan) -> list[CloneTask]:
        committing: frozenset[int] = frozenset()
        if self._own.abort_open_transactions and TRANSACTION_STATE in source.topics:
            committing = committing_producers(source.topics[TRANSACTION_STATE], self._own.until_ms, self._fs)
        tasks = []
        for topic in plan.topics.values():
            suppressed = None if self._own.suppressed is None else self._own.suppressed.of_topic(topic.source_name)
            compacts = self._own.compact and topic.source_name not in self._left_alone
            tasks += [
                CloneTask(
                    partition=partition,
                    topic_id=topic.topic_id,
                    to=self._request.to,
                    run_id=self._run.run_id,
                    config=self._settings_of_partition(partition).for_topic(topic.source_name),
                    now_ms=self._options.now_ms,
                    link=self._own.link,
                    earlier=None
                    if self._earlier is None
                    else self._earlier.files_of(str(partition.target), topic.topic_id),
                    ends_transactions=self._own.abort_open_transactions,
                    committing=committing,
                    suppressed=suppressed,
                    compacts=compacts,
                    encoding=self._own.encoding,
                    log_bytes=self._log_bytes[partition.target],
                )
                for partition in topic.partitions
            ]
        return tasks

    # ------------------------------------------------------------------------------------------------------ completion
    def _finish(
        self, source: SourceCluster, plan: ClonePlan, features: Mapping[str, int], finished: Sequence[_Finished]
    ) -> None:
        clones = {each.partition.target: each.clone for each in finished if each.clone is not None}
        known_ids = {producer_id for clone in clones.values() for producer_id in clone.producer_ids}
        if TRANSACTION_STATE in plan.topics:
            known_ids |= transactional_producers(source.topics.get(TRANSACTION_STATE), self._fs)
        broker_configs = self._broker_configs(source) if Part.CONFIGS in self._own.parts else {}
        records = [
            *cluster_records(
                plan.topics.values(),
                {partition: clone.leader_epoch for partition, clone in clones.items()},
                self._node,
                features,
                broker_configs,
                next_producer_id(source.metadata, known_ids),
            ),
            *security_records(source.metadata, self._own.parts),
        ]
        properties = server_properties(
            self._request.to,
            self._node.node_id,
            host=self._request.host,
            port=self._request.port,
            partition_counts={
                name: topic.partition_count for name, topic in plan.topics.items() if name in INTERNAL_TOPICS
            },
            is_held=self._own.hold,
        )
        if self._request.properties_file is not None:
            self._fs.write_new(self._request.properties_file, [properties.encode()])
            self._fs.share(self._request.properties_file)
            self._fs.sync_file(self._request.properties_file)
        self._target.finish(
            StartFiles(self._node, records, properties),
            sources=[directory.shown for directory in source.directories],
            now_ms=self._options.now_ms,
        )

    def _check_has_partitions(self, source: SourceCluster) -> None:
        if not source.topics and not self._options.allow_empty_selection:
            raise UsageError(
                "the source contains no partition",
                path=", ".join(directory.shown for directory in source.directories),
                advice="give entries of a broker's log.dirs that contain partitions",
            )

    def _check_properties_file(self) -> None:
        path = self._request.properties_file
        if path is not None and (self._fs.exists(path) or not self._fs.is_directory(path.absolute().parent)):
            raise UsageError(
                "--server-properties names a file that already exists, or a directory that does not exist",
                path=str(path),
                advice="name a new file",
            )

    def _check_space(self, plan: ClonePlan) -> None:
        is_cut = self._own.until_ms is not None or any(each.until_offset is not None for each in plan.partitions())
        if self._own.link is not LinkMode.COPY or self._earlier is not None or self._own.compact or is_cut:
            return
        needed = sum(_bytes_on_disk(partition, self._fs) for partition in plan.partitions())
        free = Store(str(self._request.to)).free_bytes()
        if needed > free:
            raise NoSpaceError(
                f"the logs need {human_bytes(needed)}, and {human_bytes(free)} are free",
                path=str(self._request.to),
                advice="name a directory on a larger disk, select fewer topics, or give --link",
            )

    # -------------------------------------------------------------------------------------------------------- settings
    def _open_source(self, directories: Sequence[ClusterDirectory]) -> SourceCluster:
        settings = self._options.settings
        given = settings.topic_configs
        return open_source(
            directories,
            self._fs,
            metadata_dir=settings.metadata_dir,
            has_metadata=not all(map(self._is_of_zookeeper, directories)),
            topic_configs=None if given is None else given.own,
        )

    def _is_of_zookeeper(self, directory: ClusterDirectory) -> bool:
        found = partial(read_cluster_metadata, directory.path, self._fs)
        return is_of_zookeeper(self._of_node(directory), directory.meta, found)

    def _of_node(self, directory: ClusterDirectory) -> Settings:
        return self._options.run_settings.of_directory(directory.path, directory.meta)

    def _settings_of(self, source: SourceCluster) -> dict[Path, Settings]:
        found = {}
        for directory in source.directories:
            settings, meta = self._of_node(directory), directory.meta
            if source.metadata is not None:
                of_node = settings.with_metadata(source.metadata.topic_configs, self._broker_configs(source))
            else:
                of_node = with_described_configs(settings, meta)
            found[directory.path] = of_node
        return found

    def _settings_of_partition(self, partition: ClonedPartition) -> Settings:
        return self._settings[partition.replicas[0].directory.path]

    def _broker_configs(self, source: SourceCluster) -> dict[str, str]:
        """Return the cluster-wide dynamic configs for logs; other broker configs may be secrets or host names."""
        given = self._options.settings.broker_configs
        found = (given.of_all if given is not None else None) or {}
        if source.metadata is not None:
            found = source.metadata.broker_configs.get(ALL_BROKERS, {})
        return {key: value for key, value in found.items() if key in BROKER_KEYS and key != _MIN_ISR}

    # ---------------------------------------------------------------------------------------------------------- report
    def report(self, plan: ClonePlan, finished: Sequence[_Finished], is_complete: bool) -> CloneRunReport:
        rows = [self._row(each) for each in finished]
        rows += [
            PartitionCloneReport(str(each.partition), each.log_dir, SKIPPED, each.reason_code, each.reason)
            for each in plan.left_out
        ]
        for row in rows:
            self._run.log(row)
        bootstrap = f"{self._request.host}:{self._request.port}"
        return CloneRunReport(
            **self._run.header(rows),
            to=str(self._request.to),
            cluster_id=self._node.cluster_id,
            node_id=self._node.node_id,
            held=self._own.hold,
            is_complete=is_complete,
            server_properties=str(self._request.to / SERVER_PROPERTIES_FILE),
            topics=tuple(
                TopicReport(
                    topic.name, topic.topic_id, topic.partition_count, topic.source_name, topic.empty_partitions
                )
                for topic in plan.topics.values()
            ),
            changed_configs=tuple(
                ChangedConfig(
                    topic.name,
                    change.key,
                    change.original,
                    change.value,
                    change.is_held,
                )
                for topic in plan.topics.values()
                for change in topic.changes
            ),
            restore=tuple(
                command
                for topic in sorted(plan.topics.values(), key=lambda topic: by_number(topic.name))
                for command in restore_commands(topic.name, topic.changes, bootstrap)
            ),
            notes=(*_notes(finished), *_suppression_note(rows), *compaction_note(rows), *self._orphans(plan, finished)),
        )

    def _row(self, finished: _Finished) -> PartitionCloneReport:
        row = _row(finished)
        if finished.clone is None:
            return row
        if self._own.suppressed is not None:
            row = replace(row, records_suppressed=finished.clone.suppressed_records or 0)
        return with_compaction(row, finished.clone.compaction, self._left_alone.get(finished.partition.source.topic))

    def _orphans(self, plan: ClonePlan, finished: Iterable[_Finished]) -> list[str]:
        """Describe open transactions that no coordinator will end: the clone has no coordinator, or the log was cut."""
        orphans = [
            each
            for each in finished
            if each.clone is not None
            and each.clone.open_transactions
            and each.partition.source.topic not in INTERNAL_TOPICS
            and (TRANSACTION_STATE not in plan.topics or each.partition.until_offset is not None)
        ]
        if not orphans:
            return []
        names = ", ".join(str(each.partition.target) for each in orphans[:_NAMED])
        return [
            f"open transactions without a coordinator in {counted(len(orphans), 'partition')} ({names}): readers of "
            "committed data stop there; clone with --abort-open-transactions to end them"
        ]

    def _print(self, text: str) -> None:
        self._options.messages().print(f"sediment: {text}", soft_wrap=True, markup=False)


def _perform(task: CloneTask, attempt: str) -> PartitionClone | tuple[str, str]:
    try:
        return clone_partition(task, attempt)
    except TASK_ERRORS as error:
        return describe(error)


def _figures(task: CloneTask, result: PartitionClone | tuple[str, str]) -> Figures:
    if not isinstance(result, PartitionClone):
        return Figures()
    read = kept = 0
    if result.compaction is not None:
        read, kept = result.compaction.messages_read, result.compaction.messages_written
    written_bytes = sum(file.size_bytes for file in result.files) - result.linked_bytes
    return Figures(task.log_bytes, written_bytes, read, kept, read - kept)


def _list_logs(plan: ClonePlan, fs: Fs) -> dict[TopicPartition, int]:
    found = {}
    for partition in plan.partitions():
        replica = partition.replicas[0]
        listing = list_log(partition.source, replica.path, replica.fs(fs))
        found[partition.target] = listing.log_bytes()
        first = listing.segments[0].base_offset if listing.segments else 0
        start = max(first, replica.checkpoints.log_start or 0)
        if partition.until_offset is not None and partition.until_offset < start:
            raise UsageError(
                f"--until-offset {partition.until_offset} is below the log start offset {start}",
                partition=str(partition.source),
                advice="name an offset that the log still has",
            )
    return found


def _bytes_on_disk(partition: ClonedPartition, fs: Fs) -> int:
    """Return the bytes of a source log without its holes, which stay holes in the clone."""
    replica = partition.replicas[0]
    listing = list_log(partition.source, replica.path, replica.fs(fs))
    if replica.directory.at_uri is not None:
        return listing.log_bytes()
    return sum(fs.allocated_bytes(listing.file(segment, SegmentFileKind.LOG)) for segment in listing.segments)


def _names(plan: ClonePlan, finished: Iterable[_Finished]) -> ClonedNames:
    topics = plan.topics.values()
    return ClonedNames(
        partitions=frozenset(each.source for each in plan.partitions()),
        names={topic.source_name: topic.name for topic in topics if topic.source_name != topic.name},
        ids={topic.source_name: uuid.UUID(bytes=parse_uuid(topic.topic_id)) for topic in topics},
        producer_ids=frozenset(
            producer_id for each in finished if each.clone is not None for producer_id in each.clone.producer_ids
        ),
    )


def _notes(finished: Iterable[_Finished]) -> tuple[str, ...]:
    notes = []
    for topic, what in ((CONSUMER_OFFSETS, "groups"), (TRANSACTION_STATE, "transactional ids")):
        counts = [
            each.clone.rewrite
            for each in finished
            if each.clone is not None and each.clone.rewrite is not None and each.partition.source.topic == topic
        ]
        if counts:
            kept, dropped = sum(each.kept for each in counts), sum(each.dropped for each in counts)
            members = "; members and assignments were dropped" if topic == CONSUMER_OFFSETS else ""
            notes.append(
                f"{topic} was rewritten for the topics of the clone: {kept} {what} were kept, {dropped} were left out"
                f"{members}"
            )
    return tuple(notes)


def _suppression_note(rows: Iterable[PartitionCloneReport]) -> tuple[str, ...]:
    counts = [row.records_suppressed for row in rows if row.records_suppressed is not None]
    if not counts:
        return ()
    where = counted(sum(map(bool, counts)), "partition")
    return (f"--suppress: {counted(sum(counts), 'record')} of {where} were left out",)


def _row(finished: _Finished) -> PartitionCloneReport:
    name, clone = str(finished.partition.target), finished.clone
    replica = finished.partition.replicas[0]
    if clone is None:
        code, reason = finished.error or (None, None)
        return PartitionCloneReport(name, replica.directory.shown, FAILED, code, reason, replica.shown)
    return PartitionCloneReport(
        partition=name,
        log_dir=clone.log_dir,
        status=QUARANTINED if clone.damage is not None else UNCHANGED if clone.is_unchanged else CLONED,
        reason_code=None if clone.damage is None else _CORRUPT,
        reason=clone.damage and f"{clone.damage}. Brokers do not notice this damage; the log was cloned byte for byte",
        source=f"{clone.log_dir}/{finished.partition.source}",
        log_start_offset=clone.log_start_offset,
        log_end_offset=clone.log_end_offset,
        bytes=clone.log_bytes,
        linked_bytes=clone.linked_bytes,
        leader_epoch=clone.leader_epoch,
        open_transactions=len(clone.open_transactions),
        ended_transactions=clone.ended_transactions,
        repairs=clone.repairs,
        warnings=clone.warnings,
    )


def new_kafka_id() -> str:
    """Return a random id in Kafka's form: 22 characters, of which the first is not a hyphen.

    Source: Kafka's Uuid.randomUuid; Kafka's tools would read an id that begins with a hyphen as an option.
    """
    while True:
        text = format_uuid(uuid.uuid4().bytes)
        if not text.startswith("-"):
            return text


def _partition(task: CloneTask) -> TopicPartition:
    return task.partition.target

"""`sediment adopt LOG_DIR`: turn partition folders that belong to no cluster into topics of a node, in place.

The command runs in this process, without Spark, and holds Kafka's lock.  The run writes the metadata last.  A stopped
run therefore adds no partition to the node, and the next run continues.
"""

from __future__ import annotations

if __name__ == "__main__":
    from sediment.jobs.process.early_signals import end_on_early_signals

    end_on_early_signals()  # before the slow imports

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sediment.engine.clone.adoption import (
    adopt_partition,
    check_no_open_transaction,
    has_metadata_folder,
    survey_adoption,
)
from sediment.engine.clone.partition_clone import PartitionClone
from sediment.engine.clone.plan import NO_REPLICA, ClonedPartition, ClonedTopic
from sediment.engine.clone.source import open_log_dir, open_source
from sediment.engine.config_definitions import MIN_SEGMENT_BYTES
from sediment.engine.directory.lock import DirectoryLock
from sediment.jobs.adopting.nodes import NewNode, OwningNode, StoppedNode
from sediment.jobs.adopting.options import AdoptOptions
from sediment.jobs.adopting.report import ADOPTED, COLUMNS, AdoptionReport, AdoptionRunReport, print_report
from sediment.jobs.command_line.confirmation import ask_on_terminal, must_ask
from sediment.jobs.command_line.options import CommonOptions, log_command
from sediment.jobs.command_line.progress import Progress
from sediment.jobs.process.cancellation import stop_on_signals
from sediment.jobs.process.standard_output import error_console
from sediment.jobs.reporting.error_text import describe
from sediment.jobs.reporting.figures import counted
from sediment.jobs.reporting.run_report import FAILED, SKIPPED
from sediment.jobs.reporting.screen import Screen
from sediment.jobs.reporting.statuses import STOPPED_BEFORE_DONE, UNCHANGED
from sediment.jobs.rewriting.run import Run
from sediment.segment_io.errors import DeclinedError, SedimentError, UsageError
from sediment.segment_io.format.names import PARTITION_METADATA_FILE, TopicPartition
from sediment.segment_io.internal_topics.metadata_records import metadata_record_json


@dataclass(frozen=True, slots=True)
class PlannedAdoption:
    partitions: int
    changes: tuple[str, ...]


def adopt(
    options: CommonOptions,
    own: AdoptOptions,
    *,
    confirm: Callable[[PlannedAdoption], bool] | None = None,
    stop: threading.Event | None = None,
) -> AdoptionRunReport:
    """Adopt the one log directory of `options`; call `confirm` with the plan of the run before any change.

    Raises:
        DeclinedError: `confirm` returned False; nothing was changed.
        CommitStateUnknownError: the last step was interrupted; the next run continues.
    """
    if len(options.log_dirs) != 1:
        raise UsageError("adopt takes one LOG_DIR", advice="adopt one directory of a node, and clone the others")
    if options.other_nodes:
        raise UsageError("adopt takes one --config", advice="give the file of the node of LOG_DIR")
    if options.selection.is_narrowed:
        raise UsageError(
            "--partition and --topic are not possible: a directory is adopted as a whole", advice="leave them out"
        )
    if options.settings.sets:
        key = min(options.settings.sets)
        raise UsageError(f"--set {key}=… names no topic", advice=f"give --set TOPIC:{key}=…")
    if own.properties_file is not None and own.properties_file.exists():
        raise UsageError("--server-properties names a file that already exists", path=str(own.properties_file))
    run = Run[AdoptionReport]("adopt", options, stop, dry_run=own.dry_run)
    with run.stack:
        return _Adoption(run, own, confirm).perform()


class _Adoption:
    def __init__(
        self, run: Run[AdoptionReport], own: AdoptOptions, confirm: Callable[[PlannedAdoption], bool] | None
    ) -> None:
        (self._log_dir,) = run.options.log_dirs
        self._run = run
        self._own = own
        self._confirm = confirm

    def perform(self) -> AdoptionRunReport:
        owner = self._owner()
        if not self._own.dry_run:
            self._run.stack.enter_context(DirectoryLock(self._log_dir))
            owner = self._owner(is_locked_here=True)  # find it again, because a broker may have run in the meantime
        rows = self._left_alone(owner)
        kept: tuple[str, ...] = ()
        records: list[bytes] = []
        is_complete = False
        count = len(owner.plan.partitions())
        confirm = self._confirm if count and not self._own.dry_run else None
        if confirm is not None and not confirm(self._planned(owner)):
            raise DeclinedError("nothing was adopted", advice="answer y, or give --yes, to adopt")
        found, clones = self._partitions(owner)
        rows += found
        if len(clones) == count:
            records = owner.records(clones)
            is_complete = not self._own.dry_run
        if is_complete:
            kept = owner.write(records, clones, self._run.run_id, self._run.options.now_ms)
        for row in rows:
            self._run.add(row)
        return AdoptionRunReport(
            **self._run.header(rows),
            dry_run=self._own.dry_run,
            cluster_id=owner.node.cluster_id,
            node_id=owner.node.node_id,
            is_complete=is_complete,
            server_properties=None if owner.server_properties is None else str(owner.server_properties),
            kept=kept,
            records=tuple(map(metadata_record_json, records)),
        )

    def _owner(self, *, is_locked_here: bool = False) -> OwningNode:
        directory = open_log_dir(self._log_dir, self._run.fs, is_locked_here=is_locked_here)
        if directory.path != self._log_dir:
            raise UsageError(
                "this is the directory of one partition",
                path=str(self._log_dir),
                advice=f"adopt the log directory {directory.path}",
            )
        configs = self._run.options.settings.topic_configs
        source = open_source([directory], self._run.fs, topic_configs=None if configs is None else configs.own)
        kind = StoppedNode if has_metadata_folder(self._log_dir, self._run.fs) else NewNode
        owner = kind(self._log_dir, source, self._own, self._run.options.settings, self._run.fs)
        strays = sorted(self._run.options.settings.topic_sets.keys() - owner.plan.topics.keys())
        if strays:
            raise UsageError(
                f"--set {strays[0]}:… names a topic that is not adopted",
                advice="check the name; change configs of other topics with kafka-configs.sh",
            )
        _check_startable(self._run.options.settings.topic_sets)
        return owner

    def _left_alone(self, owner: OwningNode) -> list[AdoptionReport]:
        log_dir = str(self._log_dir)
        known = (
            AdoptionReport(str(each), log_dir, UNCHANGED, "known", "the cluster has this partition")
            for each in owner.known
        )
        left_out = (
            AdoptionReport(
                str(each.partition),
                log_dir,
                SKIPPED,
                each.reason_code,
                "the directory has no folder of this partition; the partition starts empty"
                if each.reason_code == NO_REPLICA
                else each.reason,
            )
            for each in owner.plan.left_out
        )
        return [*known, *left_out]

    def _planned(self, owner: OwningNode) -> PlannedAdoption:
        count = len(owner.plan.partitions())
        markers = ", ABORT markers of open transactions" if self._own.abort_open_transactions else ""
        folders = (
            f"in the folders of {counted(count, 'partition')}: repairs as at a broker's start, a producer snapshot at "
            f"the log end, {PARTITION_METADATA_FILE} if it is missing{markers}"
        )
        return PlannedAdoption(count, (folders, *owner.changes(self._run.run_id)))

    def _partitions(self, owner: OwningNode) -> tuple[list[AdoptionReport], dict[TopicPartition, PartitionClone]]:
        """Prepare every partition (a dry run only inspects it); return all reports and the finished clones."""
        rows: list[AdoptionReport] = []
        clones: dict[TopicPartition, PartitionClone] = {}
        with Progress(self._run.options.messages(), len(owner.plan.partitions()), 0, phase="adopting") as progress:
            for topic in owner.plan.topics.values():
                for each in topic.partitions:
                    name, log_dir = str(each.target), str(self._log_dir)
                    if self._run.stop.is_set():
                        rows.append(AdoptionReport(name, log_dir, FAILED, *STOPPED_BEFORE_DONE))
                        continue
                    try:
                        clone = self._partition(owner, topic, each)
                    except (SedimentError, OSError) as error:
                        rows.append(AdoptionReport(name, log_dir, FAILED, *describe(error)))
                        continue
                    progress.advance(0)
                    clones[each.target] = clone
                    rows.append(_adopted(name, log_dir, topic.topic_id, clone))
        return rows, clones

    def _partition(self, owner: OwningNode, topic: ClonedTopic, partition: ClonedPartition) -> PartitionClone:
        settings = self._run.options.settings.of_described_node(owner.node.node_id)
        config, now_ms = settings.for_topic(topic.name), self._run.options.now_ms
        if self._own.dry_run:
            clone = survey_adoption(partition, config, self._run.fs, now_ms=now_ms)
            if not (owner.has_coordinator or self._own.abort_open_transactions):
                check_no_open_transaction(clone)
            return clone
        return adopt_partition(
            partition,
            topic.topic_id,
            config,
            self._run.fs,
            now_ms=now_ms,
            ends_transactions=self._own.abort_open_transactions,
            has_coordinator=owner.has_coordinator,
        )


def _check_startable(topic_sets: Mapping[str, Mapping[str, str]]) -> None:
    """Refuse a config with which a broker of Kafka 4 would not start; `plan_clone` mends those of the source."""
    for topic, configs in topic_sets.items():
        if int(configs.get("segment.bytes", MIN_SEGMENT_BYTES)) < MIN_SEGMENT_BYTES:
            raise UsageError(
                f"--set {topic}:segment.bytes={configs['segment.bytes']} is below {MIN_SEGMENT_BYTES}, and a broker of "
                "Kafka 4 does not start with it",
                advice=f"set {MIN_SEGMENT_BYTES} or more",
            )


def _adopted(name: str, log_dir: str, topic_id: str, clone: PartitionClone) -> AdoptionReport:
    return AdoptionReport(
        partition=name,
        log_dir=log_dir,
        status=ADOPTED,
        reason_code=None if clone.damage is None else "corrupt-batch",
        reason=clone.damage,
        topic_id=topic_id,
        log_start_offset=clone.log_start_offset,
        log_end_offset=clone.log_end_offset,
        open_transactions=len(clone.open_transactions),
        repairs=clone.repairs,
    )


@log_command("adopt", AdoptOptions, COLUMNS)
def command(options: CommonOptions, own: AdoptOptions) -> None:
    """Turn partition folders that belong to no cluster into topics of a node, in place.

    If LOG_DIR has no metadata log, it becomes the directory of a new node.  If LOG_DIR has a metadata log, `adopt` adds
    the missing partitions to this log.  The node of LOG_DIR must then be stopped, and it must be the sole voter of its
    quorum.

    If a file is replaced, a copy of the old file is kept next to the new one.  SIGINT or SIGTERM ends the run after the
    partition in progress.  A stopped run adds no partition to the node; run the command again to continue.
    """
    with stop_on_signals() as stop:
        asks = must_ask(yes=own.yes, dry_run=own.dry_run, command="adopt")

        def confirm(planned: PlannedAdoption) -> bool:
            if not asks:
                return True
            screen = Screen(error_console())
            screen.say(f"adopt writes into {options.log_dirs[0]}:")
            for change in planned.changes:
                screen.say(f"  {change}")
            return ask_on_terminal(f"Adopt {counted(planned.partitions, 'partition')} in place?", stop)

        report = adopt(options, own, confirm=confirm, stop=stop)
    options.conclude(report, print_report)


if __name__ == "__main__":
    command()

"""`sediment adopt LOG_DIR`: folders that lost their cluster become the log directory of a node, in place.

It runs in this process, without Spark, and holds Kafka's lock.  The first signal ends the run after the partition in
progress; the directory then still belongs to no node, and the next run goes on.
"""

from __future__ import annotations

if __name__ == "__main__":
    from sediment.jobs.command_line.early_signals import end_on_early_signals

    end_on_early_signals()  # before the imports that take time

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import click
from rich.console import Console

from sediment.engine.clone.adoption import adopt_partition, check_adoptable, write_start_files
from sediment.engine.clone.clone_directory import SERVER_PROPERTIES_FILE, StartFiles
from sediment.engine.clone.cluster_records import Node, cluster_records, next_producer_id
from sediment.engine.clone.features import NEWEST_RELEASE, clone_features
from sediment.engine.clone.options import DEFAULT_NODE_ID, CloneOptions
from sediment.engine.clone.partition_clone import PartitionClone
from sediment.engine.clone.plan import ClonePlan, plan_clone
from sediment.engine.clone.server_properties import server_properties
from sediment.engine.clone.source import Source, open_source
from sediment.engine.directory.lock import DirectoryLock
from sediment.jobs.cloning.options import check_cluster_id
from sediment.jobs.cloning.run import new_kafka_id
from sediment.jobs.command_line.configured_command import ConfiguredCommand
from sediment.jobs.command_line.confirmation import ask_on_terminal, may_ask
from sediment.jobs.command_line.options import CommonOptions, common_options
from sediment.jobs.command_line.progress import Progress
from sediment.jobs.command_line.stderr_log import log_partition
from sediment.jobs.reporting.error_text import describe
from sediment.jobs.reporting.figures import counted
from sediment.jobs.reporting.run_report import (
    AFTER_PARTITIONS,
    FAILED,
    RunReport,
    in_order,
    print_failures,
    report_table,
)
from sediment.jobs.spark.cancellation import stop_on_signals
from sediment.segment_io.errors import SedimentError, UsageError
from sediment.segment_io.format.layout import INT32_MAX
from sediment.segment_io.format.names import INTERNAL_TOPICS, TopicPartition, new_run_id
from sediment.segment_io.fs import Fs
from sediment.server.network.endpoints import Endpoint, parse_endpoint

ADOPTED = "adopted"
UNCHANGED = "unchanged"

_LISTEN = "127.0.0.1:9092"
_MOST_PORT = 65534  # the controller has the next one


# --------------------------------------------------------------------------------------------------------------- report
@dataclass(frozen=True, slots=True)
class AdoptionReport:
    """Report of one partition; offsets are None in a dry run and if it could not be loaded."""

    partition: str
    log_dir: str
    status: str
    reason_code: str | None = None
    reason: str | None = None
    topic_id: str | None = None
    log_start_offset: int | None = None
    log_end_offset: int | None = None
    open_transactions: int = 0
    repairs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class AdoptionRunReport(RunReport[AdoptionReport]):
    """Report of a run of `adopt`; `kept` are copies of the files that it replaced."""

    row_type: ClassVar[type] = AdoptionReport

    dry_run: bool
    cluster_id: str
    node_id: int
    is_complete: bool
    server_properties: str
    kept: tuple[str, ...] = field(default=(), metadata=AFTER_PARTITIONS)


# -------------------------------------------------------------------------------------------------------------- the run
@dataclass(frozen=True, slots=True)
class AdoptOptions:
    """Options of the command; an id of None is that of meta.properties, else node 1 or a new cluster."""

    listen: Endpoint
    node_id: int | None = None
    cluster_id: str | None = None
    properties_file: Path | None = None
    abort_open_transactions: bool = False
    dry_run: bool = False


def adopt(
    options: CommonOptions,
    own: AdoptOptions,
    *,
    confirm: Callable[[int], bool] | None = None,
    stop: threading.Event | None = None,
) -> AdoptionRunReport:
    """Adopt the one log directory of `options`; `confirm` is asked with the number of partitions.

    Raises:
        UsageError: the directory has a cluster, or an option is wrong; nothing was changed.
        DirectoryInUseError: a process uses the directory; nothing was changed.
    """
    if len(options.log_dirs) != 1:
        raise UsageError("adopt takes one LOG_DIR", advice="adopt one directory of a node, and clone the others")
    if options.partitions:
        raise UsageError("--partition is not possible: a directory is adopted as a whole", advice="leave it out")
    if own.properties_file is not None and own.properties_file.exists():
        raise UsageError("--server-properties names a file that exists", path=str(own.properties_file))
    started = time.monotonic()
    with ExitStack() as stack:
        report = _Adoption(options, own, confirm, stop or threading.Event(), stack).perform()
    return replace(report, seconds=time.monotonic() - started)


class _Adoption:
    """One run; the stack holds the lock of the directory."""

    def __init__(
        self,
        options: CommonOptions,
        own: AdoptOptions,
        confirm: Callable[[int], bool] | None,
        stop: threading.Event,
        stack: ExitStack,
    ) -> None:
        (self._log_dir,) = options.log_dirs
        self._options = options
        self._own = own
        self._confirm = confirm
        self._stop = stop
        self._stack = stack
        self._run_id = new_run_id()
        self._fs = Fs()

    def perform(self) -> AdoptionRunReport:
        """Plan, ask, settle every partition, and give the directory to its node."""
        check_adoptable(self._log_dir, self._fs)
        source = open_source([self._log_dir], self._fs)
        if not self._own.dry_run:
            self._stack.enter_context(DirectoryLock(self._log_dir))
            check_adoptable(self._log_dir, self._fs)
        plan = plan_clone(source, CloneOptions(), new_kafka_id)
        node = self._node(source)
        kept: tuple[str, ...] = ()
        is_complete = False
        if self._own.dry_run:
            rows = self._rows(plan, ADOPTED)
        elif self._confirm is not None and not self._confirm(len(plan.partitions())):
            rows = self._rows(plan, UNCHANGED)
        else:
            rows, clones = self._adopt_partitions(plan)
            is_complete = len(clones) == len(rows)
            if is_complete:
                kept = self._write(plan, clones, node)
        for row in rows:
            log_partition(self._run_id, "adopt", row)
        return AdoptionRunReport(
            run_id=self._run_id,
            command="adopt",
            now_ms=self._options.now_ms,
            seconds=0.0,
            partitions=in_order(rows),
            dry_run=self._own.dry_run,
            cluster_id=node.cluster_id,
            node_id=node.node_id,
            is_complete=is_complete,
            server_properties=str(self._own.properties_file or self._log_dir / SERVER_PROPERTIES_FILE),
            kept=kept,
        )

    def _node(self, source: Source) -> Node:
        """Return the node that is to own the directory: by the options, else the one that owns it already."""
        meta = source.meta
        node_id = self._own.node_id
        if node_id is None:
            node_id = DEFAULT_NODE_ID if meta is None or meta.node_id is None else meta.node_id
        cluster_id = self._own.cluster_id or (meta and meta.cluster_id) or new_kafka_id()
        return Node(node_id, cluster_id, (meta and meta.directory_id) or new_kafka_id())

    def _rows(self, plan: ClonePlan, status: str) -> list[AdoptionReport]:
        return [
            AdoptionReport(str(each.target), str(self._log_dir), status, topic_id=topic.topic_id)
            for topic in plan.topics.values()
            for each in topic.partitions
        ]

    def _adopt_partitions(self, plan: ClonePlan) -> tuple[list[AdoptionReport], dict[TopicPartition, PartitionClone]]:
        rows: list[AdoptionReport] = []
        clones: dict[TopicPartition, PartitionClone] = {}
        with Progress(self._options.messages(), len(plan.partitions()), 0) as progress:
            for topic in plan.topics.values():
                config = self._options.settings.for_topic(topic.name)
                for each in topic.partitions:
                    name, log_dir = str(each.target), str(self._log_dir)
                    if self._stop.is_set():
                        why = "the run was stopped before this partition"
                        rows.append(AdoptionReport(name, log_dir, FAILED, "stopped", why))
                        continue
                    try:
                        clone = adopt_partition(
                            each,
                            topic.topic_id,
                            config,
                            self._fs,
                            now_ms=self._options.now_ms,
                            ends_transactions=self._own.abort_open_transactions,
                        )
                    except (SedimentError, OSError) as error:
                        rows.append(AdoptionReport(name, log_dir, FAILED, *describe(error)))
                        continue
                    progress.advance(0)
                    clones[each.target] = clone
                    rows.append(_adopted(name, log_dir, topic.topic_id, clone))
        return rows, clones

    def _write(self, plan: ClonePlan, clones: Mapping[TopicPartition, PartitionClone], node: Node) -> tuple[str, ...]:
        features = clone_features(None, NEWEST_RELEASE)
        sets = self._options.settings.topic_sets
        topics = [
            replace(topic, configs={**topic.configs, **sets.get(topic.name, {})}) for topic in plan.topics.values()
        ]
        known_ids = {producer_id for clone in clones.values() for producer_id in clone.producer_ids}
        epochs = {partition: clone.leader_epoch for partition, clone in clones.items()}
        records = cluster_records(topics, epochs, node, features, {}, next_producer_id(None, known_ids))
        counts = {topic.name: topic.partition_count for topic in topics if topic.name in INTERNAL_TOPICS}
        listen = self._own.listen
        properties = server_properties(
            self._log_dir, node, host=listen.host, port=listen.port, partition_counts=counts, is_held=True
        )
        if self._own.properties_file is not None:
            self._fs.write_new(self._own.properties_file, [properties.encode()])
            self._fs.sync_file(self._own.properties_file)
        start = StartFiles(node, list(records), properties)
        return write_start_files(
            self._log_dir, clones, start, self._fs, run_id=self._run_id, now_ms=self._options.now_ms
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


# ------------------------------------------------------------------------------------------------------------- the text
def print_report(report: AdoptionRunReport, console: Console) -> None:
    """Print the table for people, then what to do next."""
    table = report_table(("partition", "status"), ("offsets",))
    for each in report.partitions:
        has_offsets = each.log_start_offset is not None
        offsets = f"{each.log_start_offset:,} … {each.log_end_offset:,}" if has_offsets else ""
        table.add_row(each.partition, each.status, offsets)
    console.print(table)
    print_failures(((each.partition, each.reason) for each in report.partitions if each.reason), console)
    found = counted(len(report.partitions), "partition")
    if report.dry_run:
        text = f"{found} would be adopted by node {report.node_id}"
    elif report.is_complete:
        text = (
            f"{found} adopted by node {report.node_id} of cluster {report.cluster_id}; topics are held, and "
            f"{report.server_properties} starts a broker on them (run {report.run_id})"
        )
    else:
        text = f"the directory was not adopted; run again to go on (run {report.run_id})"
    console.print(text, soft_wrap=True, markup=False, highlight=False)


def perform(
    options: CommonOptions,
    *,
    node_id: int | None = None,
    cluster_id: str | None = None,
    listen: str = _LISTEN,
    properties_file: Path | None = None,
    abort_open_transactions: bool = False,
    dry_run: bool = False,
    confirm: Callable[[int], bool] | None = None,
    stop: threading.Event | None = None,
) -> AdoptionRunReport:
    """Check the options and adopt (`adopt`)."""
    endpoint = parse_endpoint(listen, "--listen", least_port=1)
    if endpoint.port > _MOST_PORT:
        raise UsageError(f"--listen {listen!r} leaves no port for the controller", advice="choose a lower port")
    own = AdoptOptions(
        listen=endpoint,
        node_id=node_id,
        cluster_id=None if cluster_id is None else check_cluster_id(cluster_id),
        properties_file=None if properties_file is None else properties_file.absolute(),
        abort_open_transactions=abort_open_transactions,
        dry_run=dry_run,
    )
    return adopt(options, own, confirm=confirm, stop=stop)


@click.command("adopt", cls=ConfiguredCommand)
@common_options
@click.option("--node-id", type=click.IntRange(0, INT32_MAX), help="Give the directory to this node.")
@click.option("--cluster-id", metavar="ID", help="Give the node this cluster id.")
@click.option(
    "--listen",
    metavar="HOST:PORT",
    default=_LISTEN,
    show_default=True,
    help="Let the broker listen here, and its controller on the next port.",
)
@click.option(
    "--server-properties",
    "properties_file",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the broker's file here too; FILE must not exist.",
)
@click.option("--abort-open-transactions", is_flag=True, help="Write ABORT markers for open transactions.")
@click.option("--dry-run", is_flag=True, help="Change nothing; show the topics that would be adopted.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def command(
    options: CommonOptions,
    node_id: int | None,
    cluster_id: str | None,
    listen: str,
    properties_file: Path | None,
    abort_open_transactions: bool,
    dry_run: bool,
    yes: bool,
) -> None:
    """Make LOG_DIR, whose cluster is lost, the directory of a node, in place.

    It must not hold a metadata log.  Files that are replaced are kept beside the new ones.  SIGINT or SIGTERM ends the
    run after the partition in progress; the next run goes on.
    """
    with stop_on_signals() as stop:
        if not (dry_run or yes or may_ask()):
            raise UsageError("adopt changes the directory in place", advice="give --yes, or --dry-run to look first")

        def confirm(count: int) -> bool:
            return yes or ask_on_terminal(f"adopt {counted(count, 'partition')} in place?", stop)

        report = perform(
            options,
            node_id=node_id,
            cluster_id=cluster_id,
            listen=listen,
            properties_file=properties_file,
            abort_open_transactions=abort_open_transactions,
            dry_run=dry_run,
            confirm=confirm,
            stop=stop,
        )
    options.conclude(report, print_report)


if __name__ == "__main__":
    command()

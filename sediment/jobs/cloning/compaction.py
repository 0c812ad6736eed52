"""`clone --compact`: the topics that are not compacted because a setting is not stated, and the notes in the report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from sediment.engine.clone.log_compaction import LogCompaction
from sediment.engine.clone.plan import ClonedPartition, ClonedTopic
from sediment.engine.clone.source import SourceCluster
from sediment.jobs.cleaning.report import kept_tombstones
from sediment.jobs.cloning.report import PartitionCloneReport
from sediment.jobs.reporting.figures import counted, human_bytes
from sediment.jobs.reporting.run_report import TOMBSTONES_KEPT
from sediment.jobs.settings.resolve import Settings
from sediment.jobs.settings.unstated_settings import warn_of_topics_without_lag, why_not_compacted
from sediment.segment_io.format.names import TopicPartition


def topics_left_alone(
    topics: Iterable[ClonedTopic], source: SourceCluster, settings_of: Callable[[ClonedPartition], Settings]
) -> Mapping[str, tuple[str, str]]:
    """Return the reason code and text of each topic that `compact` would not compact, keyed by its name in the source.

    `settings_of` returns the settings of the node from which a partition is cloned.  If the nodes disagree about a
    topic, `compact` would leave it alone on one of them, so it is not compacted.

    Raises:
        SettingsError: without metadata, a `--set cleanup.policy` that names no topic would apply to several topics; or
            the metadata has a value that Kafka would refuse.
    """
    of_partitions = {topic.source_name: [settings_of(each) for each in topic.partitions] for topic in topics}
    first = next((settings for several in of_partitions.values() for settings in several), None)
    if first is not None:
        first.check_selection(of_partitions, have_metadata=source.metadata is not None)
    found = {}
    applied = {}
    for name, several in of_partitions.items():
        for settings in several:
            own = settings
            if not source.knows(source.topics[name]):
                own = settings.with_metadata({name: {"cleanup.policy": ""}}, settings.broker_overrides)
            applied[name] = own
            why = why_not_compacted(TopicPartition(name, 0), own, own.for_topic(name))
            if why is not None:
                found[name] = why
                break
    warn_of_topics_without_lag(applied.items())
    return found


def with_compaction(
    row: PartitionCloneReport, compaction: LogCompaction | None, why_not: tuple[str, str] | None
) -> PartitionCloneReport:
    """Add the outcome of `--compact` to the report of a cloned partition; the reason of a damaged log stays unchanged.

    `why_not` is the reason why the topic was not compacted.  If both `why_not` and the outcome are None, the option was
    not given.
    """
    if compaction is None:
        return row if why_not is None else replace(_because(row, *why_not), compacted=False)
    if compaction.reason_code is not None:
        return replace(
            _because(row, compaction.reason_code, compaction.reason),
            compacted=False,
            bytes_before=compaction.bytes_before,
            records_without_key=compaction.records_without_key,
        )
    if compaction.batches_without_horizon:
        topic = row.partition.rpartition("-")[0]
        row = _because(row, TOMBSTONES_KEPT, kept_tombstones(topic, compaction.batches_without_horizon))
    return replace(
        row,
        compacted=True,
        bytes_before=compaction.bytes_before,
        messages_read=compaction.messages_read,
        messages_written=compaction.messages_written,
        records_without_key=compaction.records_without_key,
    )


def _because(row: PartitionCloneReport, code: str, reason: str | None) -> PartitionCloneReport:
    return row if row.reason_code is not None else replace(row, reason_code=code, reason=reason)


def compaction_note(rows: Iterable[PartitionCloneReport]) -> tuple[str, ...]:
    asked = [row for row in rows if row.compacted is not None]
    if not asked:
        return ()
    done = [row for row in asked if row.compacted]
    before = human_bytes(sum(row.bytes_before or 0 for row in done))
    size = f" ({before} became {human_bytes(sum(row.bytes for row in done))})" if done else ""
    return (f"--compact: {counted(len(done), 'partition')} compacted{size}, {len(asked) - len(done)} not compacted",)

"""What `plan` prints for people: the table, a line for each kind of explanation, and the sums."""

from __future__ import annotations

from collections.abc import Sequence

from sediment.jobs.planning.report import BLOCKED, CLEANABLE, PartitionPlan, PlanReport
from sediment.jobs.reporting.columns import TableColumn, bytes_column, status_column, text_column
from sediment.jobs.reporting.figures import counted, human_bytes
from sediment.jobs.reporting.screen import Screen
from sediment.segment_io.dates import at_date, date_text

# The rules of a log that `compact --force` may clean, or clean again because of its expired tombstones.
_FORCED = frozenset(
    {"nothing-dirty", "active-segment", "dirty-ratio", "min-compaction-lag", "open-transaction", "high-watermark"}
)


def print_report(report: PlanReport, screen: Screen) -> None:
    screen.partitions(report.partitions, COLUMNS, is_idle=_is_idle)
    screen.reasons(report.partitions, key=_situation, explain=_explained, is_idle=_is_idle)
    screen.warnings(report.partitions)
    back = sum(partition.bytes_back or 0 for partition in report.partitions)
    gone = sum(partition.retention.bytes for partition in report.partitions if partition.retention is not None)
    screen.say(f"compaction would free {human_bytes(back)}, retention {human_bytes(gone)} ({report.seconds:.1f} s)")
    estimated = [partition for partition in report.partitions if partition.reencoded_bytes is not None]
    if estimated:
        before = sum(partition.bytes_before for partition in estimated)
        after = sum(partition.reencoded_bytes or 0 for partition in estimated)
        sampled = sum(partition.reencode_sampled_bytes or 0 for partition in estimated)
        screen.say(
            f"re-encoding would leave about {human_bytes(after)} of {human_bytes(before)}, estimated from a sample of "
            f"{human_bytes(sampled)}"
        )
    if report.originals_bytes is not None:
        held = human_bytes(report.originals_bytes)
        screen.say(f"a vacuum of all originals in {report.originals} would free {held}")


def _compacts(partition: PartitionPlan) -> str:
    if partition.status == BLOCKED:
        return f"no: {partition.reason_code}" if partition.reason_code else "no"
    if partition.status == CLEANABLE:
        return "yes"
    return f"{partition.status}: {partition.reason_code}" if partition.reason_code else partition.status


def _about(rows: Sequence[PartitionPlan]) -> str:
    return "" if all(row.is_exact or row.status != CLEANABLE for row in rows) else "≈ "


def _dirty(rows: Sequence[PartitionPlan]) -> str:
    return f"{rows[0].dirty_ratio:.0%}" if len(rows) == 1 and rows[0].dirty_ratio is not None else ""


def _back(rows: Sequence[PartitionPlan]) -> str:
    total = sum(row.bytes_back or 0 for row in rows)
    return _about(rows) + human_bytes(total) if total else ""


def _tombstones(rows: Sequence[PartitionPlan]) -> str:
    total = sum(row.tombstones_waiting or 0 for row in rows)
    return f"{_about(rows)}{total:,}" if total else ""


def _retained(partition: PartitionPlan) -> int | None:
    retention = partition.retention
    return retention.bytes if retention is not None and retention.segments else None


def _cleanable_at(partition: PartitionPlan) -> str:
    return "" if partition.unblocks_at_ms is None else date_text(partition.unblocks_at_ms)


def _is_idle(partition: PartitionPlan) -> bool:
    return partition.status == BLOCKED and _retained(partition) is None


COLUMNS: tuple[TableColumn[PartitionPlan], ...] = (
    text_column("partition", lambda row: row.partition),
    status_column("compact now?", _compacts),
    TableColumn("dirty", _dirty, lambda row: row.dirty_ratio, rank=1, adds_up=False),
    bytes_column("bytes", lambda row: row.bytes_before, rank=3),
    TableColumn("saves", _back, lambda row: row.bytes_back, rank=1),
    TableColumn("tombstones", _tombstones, lambda row: row.tombstones_waiting, rank=4),
    bytes_column("expires", _retained, rank=2),
    text_column("cleanable at", _cleanable_at, rank=5),
)


def _situation(partition: PartitionPlan) -> object:
    """Return a key; partitions with the same key share a line, because their explanations differ only in numbers."""
    retention = partition.retention
    return (
        partition.status,
        partition.reason_code,
        partition.strategy,
        bool(partition.tombstones_waiting),
        bool(partition.tombstones_expired),
        bool(partition.tombstones_not_cleaned),
        retention and (retention.reason_code, bool(retention.segments), retention.next_at_ms is None),
    )


def _explained(partition: PartitionPlan) -> str:
    return "; ".join(each for each in _explanations(partition) if each)


def _explanations(partition: PartitionPlan) -> list[str]:
    texts = [partition.reason or ""]
    if partition.unblocks_at_ms is not None:
        texts.append(f"becomes cleanable {at_date(partition.unblocks_at_ms)}")
    if partition.strategy is not None:
        texts.append(f"strategy {partition.strategy}: {partition.strategy_reason}")
    first_ms, last_ms = partition.first_delete_horizon_ms, partition.last_delete_horizon_ms
    if partition.tombstones_waiting and first_ms is not None and last_ms is not None:
        first, last = date_text(first_ms), date_text(last_ms)
        when = at_date(first_ms) if last == first else f"between {first} and {last}"
        texts.append(
            f"tombstones expire {when}; after that time, the next compaction of new records drops them, and `compact "
            "--force` does so without new records"
        )
    elif partition.tombstones_waiting and partition.status == BLOCKED:
        texts.append(
            "tombstones in the clean part have no delete horizon; the next compaction, or `compact --from-start`, "
            "gives them one if delete.retention.ms is stated"
        )
    elif partition.tombstones_waiting:
        texts.append("tombstones have no delete horizon, so compaction keeps them")
    texts += _tombstones_left(partition)
    if partition.reencoded_bytes is not None:
        texts.append(f"re-encoding would leave about {human_bytes(partition.reencoded_bytes)}")
    retention = partition.retention
    if retention is not None and retention.reason is not None:
        texts.append(f"retention skips it: {retention.reason}")
    elif retention is not None and retention.segments:
        segments = counted(len(retention.segments), "segment")
        texts.append(f"retention deletes {segments}, {human_bytes(retention.bytes)}")
    elif retention is not None and retention.next_at_ms is not None:
        texts.append(f"retention deletes the next segment {at_date(retention.next_at_ms)}")
    return texts


def _tombstones_left(partition: PartitionPlan) -> list[str]:
    about = "about " if partition.sampled_bytes < partition.bytes_before else ""
    texts = []
    if partition.tombstones_expired and partition.reason_code in _FORCED:
        verb = "has" if partition.tombstones_expired == 1 else "have"
        texts.append(
            f"{about}{_many(partition.tombstones_expired, 'tombstone')} {verb} expired; the next "
            "compaction of new records drops them, and `compact --force` drops them now"
        )
    if partition.tombstones_not_cleaned and partition.reason_code == "active-segment":
        verb = "is" if partition.tombstones_not_cleaned == 1 else "are"
        texts.append(
            f"{about}{_many(partition.tombstones_not_cleaned, 'tombstone')} {verb} in the active segment, which is "
            "cleaned only after it is rolled; if no broker uses the directory, `compact --roll-active` rolls it"
        )
    return texts


def _many(number: int, noun: str) -> str:
    return f"1 {noun}" if number == 1 else f"{number:,} {noun}s"

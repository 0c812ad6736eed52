"""What `verify` found, from which the table for people and the JSON for programs both derive."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.table import Table

from sediment.jobs.reporting.run_report import FAILED, SCHEMA, SKIPPED

CORRECT = "correct"
WRONG = "wrong"
NOT_CHANGED = "not-changed"

SHOWN_DIFFERENCES = 10

CHECKS: Mapping[str, str] = {
    "partition": "each partition is in both directories",
    "log_start": "the log start offset and the first segment stay",
    "log_end": "the log end offset stays",
    "segments": "segments are named and ordered as compaction leaves them, and no replacement is half done",
    "modified": "modification times stay where retention or tombstones of old formats go by them",
    "order": "offsets ascend, each once, within the range of their segment",
    "crc": "what can be read has right checksums; what could not be read is kept as it was",
    "untouched": "above the cleaned range every byte of every segment stays",
    "latest_committed": "the latest value of each key stays under read_committed; an expired tombstone is absence",
    "latest_uncommitted": "the same under read_uncommitted, aborted records taken out of BEFORE",
    "records": "each kept record has its offset, key, value, headers, timestamp, producer fields; none is new",
    "lost": "no record is gone without a reason",
    "tombstones": "no tombstone is gone before its delete horizon",
    "superseded": "below the cleaner checkpoint no superseded record and none without a key is left",
    "aborted": "below the cleaner checkpoint no aborted record is left",
    "markers": "markers stay as long as a batch of their transaction and until their delete horizon",
    "transaction_index": "the transaction index hides what was aborted and nothing else, by entries as in BEFORE",
    "batches": "each kept batch has its header, agrees with its records, and has its bytes where it lost nothing",
    "horizons": "delete horizons are kept, and batches with tombstones or markers get now plus delete.retention.ms",
    "producers": "the last batch of each active producer stays, if only its header",
    "indexes": "offset, time and transaction indexes and snapshots agree with the log",
    "epochs": "leader epochs stay",
    "snapshots": "producer snapshots stay as long as a segment of their offset",
    "metadata": "partition.metadata stays",
    "checkpoint": "the cleaner checkpoint is not above what could be cleaned; no checkpoint goes back",
}


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that is not right: `check` of CHECKS, a log offset where there is one, and a sentence."""

    check: str
    offset: int | None
    what: str


@dataclass(frozen=True, slots=True)
class PairReport:
    """One partition.  `checks` counts the differences of each check; None: it could not be judged.

    `first_uncleanable_offset` is the highest offset to which BEFORE could be cleaned, `next_dirty_offset` AFTER's
    cleaner checkpoint, None where it has none.  `reason` is the error of a status FAILED, and why a pair is SKIPPED:
    --keep-before did not link it, and it did not change (NOT_CHANGED).
    """

    partition: str
    before: str | None
    after: str | None
    status: str
    reason_code: str | None = None
    reason: str | None = None
    first_dirty_offset: int | None = None
    first_uncleanable_offset: int | None = None
    next_dirty_offset: int | None = None
    log_end_offset: int | None = None
    records_before: int = 0
    records_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    checks: Mapping[str, int | None] | None = None
    differences: tuple[Difference, ...] = ()


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """One run; `now_ms` is the clock of every rule, `seconds` the wall time."""

    run_id: str
    command: str
    now_ms: int
    seconds: float
    partitions: tuple[PairReport, ...]

    def failed(self) -> bool:
        """Whether the exit status is to be 1."""
        return any(partition.status not in (CORRECT, SKIPPED) for partition in self.partitions)


def report_json(report: VerifyReport) -> str:
    """The one JSON object of `--json`."""
    return json.dumps({"schema": SCHEMA, **asdict(report), "seconds": round(report.seconds, 3)})


def print_report(report: VerifyReport, console: Console) -> None:
    """The table for people, and under it the first differences of each partition."""
    table = Table(box=None, pad_edge=False)
    for name, justify in (("partition", "left"), ("status", "left"), ("records", "right"), ("cleaned to", "right")):
        table.add_column(name, justify="right" if justify == "right" else "left", overflow="fold")
    for partition in report.partitions:
        wrong = [name for name, count in (partition.checks or {}).items() if count]
        reached = partition.next_dirty_offset
        table.add_row(
            partition.partition,
            _status(partition, wrong),
            "" if partition.status == SKIPPED else f"{partition.records_before:,} → {partition.records_after:,}",
            "" if reached is None else f"{reached:,}",
        )
    console.print(table)
    for partition in report.partitions:
        if partition.status == FAILED:
            console.print(f"{partition.partition}: {partition.reason}", style="red", soft_wrap=True, markup=False)
        for difference in partition.differences:
            where = "" if difference.offset is None else f" at offset {difference.offset}"
            console.print(
                f"{partition.partition}: {difference.check}{where}: {difference.what}",
                style="red",
                soft_wrap=True,
                markup=False,
                highlight=False,
            )
    unchanged = sum(partition.status == SKIPPED for partition in report.partitions)
    right = sum(partition.status == CORRECT for partition in report.partitions)
    others = f", {unchanged} did not change" if unchanged else ""
    console.print(
        f"{right} of {len(report.partitions) - unchanged} partitions are a correct compaction{others}; "
        f"{report.seconds:.1f} s (run {report.run_id})",
        highlight=False,
    )


def _status(partition: PairReport, wrong: Sequence[str]) -> str:
    if partition.status == SKIPPED:
        return f"{partition.status}: {partition.reason_code}"
    return f"{partition.status}: {', '.join(wrong)}" if wrong else partition.status

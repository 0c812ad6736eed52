"""Report of one pair of partitions, and the checks that it counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

CORRECT = "correct"
WRONG = "wrong"

SHOWN_DIFFERENCES = 10

CHECKS: Mapping[str, str] = {
    "partition": "each partition is in both directories",
    "log_start": "the log start offset and the first segment are unchanged",
    "log_end": "the log end offset is unchanged",
    "segments": "segments are named and ordered as after a compaction, and no replacement is unfinished",
    "modified": "modification times that affect retention, or the expiry of tombstones of magic 0 and 1, are unchanged",
    "order": "offsets ascend without repeats, within the range of their segment",
    "crc": "readable batches have right checksums; unreadable batches are unchanged",
    "untouched": "above the cleaned range, every segment is unchanged, byte for byte",
    "latest_committed": "under read_committed, each key keeps its latest value; an expired tombstone may be missing",
    "latest_uncommitted": "under read_uncommitted, each key keeps its latest value, except aborted records of BEFORE",
    "records": "each record of AFTER is in BEFORE, with the same offset, key, value, headers, timestamp and producer "
    "fields",
    "lost": "every missing record has a reason",
    "tombstones": "no tombstone is removed before its delete horizon",
    "superseded": "below the cleaner checkpoint, no superseded record and no record without a key remains",
    "aborted": "below the cleaner checkpoint, no aborted record remains",
    "markers": "a marker remains as long as a batch of its transaction remains, and then until its delete horizon",
    "transaction_index": "the transaction index hides exactly the aborted records, with the entries of BEFORE",
    "batches": "each remaining batch has its old header, which agrees with its records; a batch that lost no record "
    "has its old bytes",
    "horizons": "delete horizons are unchanged; a new horizon, for tombstones or markers, is the time of the "
    "compaction plus delete.retention.ms",
    "producers": "the last batch of each active producer remains, at least as a header",
    "indexes": "offset, time and transaction indexes and snapshots agree with the log",
    "epochs": "leader epochs are unchanged",
    "snapshots": "a producer snapshot remains as long as a segment begins at the offset of the snapshot",
    "metadata": "partition.metadata is unchanged",
    "checkpoint": "the cleaner checkpoint is within the cleanable range; no checkpoint is lower than before",
}
"""Checks by name, in the order in which they are reported, each with the rule that it checks."""


@dataclass(frozen=True, slots=True)
class Difference:
    check: str
    offset: int | None
    what: str


@dataclass(frozen=True, slots=True)
class ReencodedBatch:
    base_offset: int
    last_offset: int
    originals: int


@dataclass(frozen=True, slots=True)
class PairReport:
    """Report of one partition; `checks` has the number of differences by check, or None for a check that was not made.

    `first_uncleanable_offset` is the offset up to which BEFORE could be cleaned.  `next_dirty_offset` is AFTER's
    cleaner checkpoint, or None.  `reason` explains the status FAILED or SKIPPED; an unchanged partition, which
    --keep-before did not link, is SKIPPED with NOT_CHANGED.
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
    batches_reencoded: int = 0
    reencoded: tuple[ReencodedBatch, ...] = ()
    checks: Mapping[str, int | None] | None = None
    differences: tuple[Difference, ...] = ()

"""Checks of `verify` by name, in the order in which they are reported, each with the rule that it checks."""

from __future__ import annotations

from collections.abc import Mapping

CHECKS: Mapping[str, str] = {
    "partition": "each partition is in both directories",
    "log_start": "the log start offset and the first segment stay",
    "log_end": "the log end offset stays",
    "segments": "segments are named and ordered as after a compaction, and no replacement is unfinished",
    "modified": "modification times stay if retention, or the expiry of tombstones of magic 0 and 1, uses them",
    "order": "offsets ascend without repeats, within the range of their segment",
    "crc": "readable batches have right checksums; unreadable batches are unchanged",
    "untouched": "above the cleaned range, every byte of every segment stays",
    "latest_committed": "the latest value of each key stays under read_committed; an expired tombstone may be missing",
    "latest_uncommitted": "the latest value of each key stays under read_uncommitted, except aborted records of BEFORE",
    "records": "each kept record has its old offset, key, value, headers, timestamp and producer fields; none is new",
    "lost": "every missing record has a reason",
    "tombstones": "no tombstone is gone before its delete horizon",
    "superseded": "below the cleaner checkpoint, no superseded record and no record without a key is left",
    "aborted": "below the cleaner checkpoint, no aborted record is left",
    "markers": "a marker stays while a batch of its transaction stays, and then until its delete horizon",
    "transaction_index": "the transaction index hides exactly the aborted records, with the entries of BEFORE",
    "batches": "each kept batch has its old header, which agrees with its records; its bytes stay if no record was "
    "lost",
    "horizons": "delete horizons stay; a new horizon, for tombstones or markers, is the time of the compaction plus "
    "delete.retention.ms",
    "producers": "the last batch of each active producer stays, at least as a header",
    "indexes": "offset, time and transaction indexes and snapshots agree with the log",
    "epochs": "leader epochs stay",
    "snapshots": "a producer snapshot stays while a segment begins at the offset of the snapshot",
    "metadata": "partition.metadata stays",
    "checkpoint": "the cleaner checkpoint is within the cleanable range; no checkpoint is lower than before",
}

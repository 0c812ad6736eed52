"""Suppression lists: HMACs of keys that were erased from topics, and the search for these keys in copies of the topics.

    {"kind": "suppression-list", "schema": 1, "algorithm": "HMAC-SHA256",
     "secret_check": HMAC of _SECRET_CHECK,
     "topics": {topic: [HMAC of a key, …], …}}                          topics and HMACs are sorted; HMACs are hex

An entry means that no record with this key may have a value in this topic.  A tombstone of the key is permitted.

Invariants: a list contains neither keys nor the secret.  A list is used only with the secret that made its HMACs.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sediment.compaction.rewrite.verdicts import Int64s
from sediment.segment_io.errors import UsageError
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.slices import SLICE_BYTES
from sediment.segment_io.partition.sources import Source
from sediment.segment_io.tables.planning import TableTask, plan_scan_tasks
from sediment.segment_io.tables.schema import TableRequest

if TYPE_CHECKING:
    import pyarrow as pa

KIND = "suppression-list"
SCHEMA = 1
ALGORITHM = "HMAC-SHA256"

_SECRET_CHECK = b"sediment suppression list"
_REQUEST = TableRequest(columns=("offset", "control", "key", "value"))


def subject_hmac(secret: bytes, subject: bytes) -> str:
    return hmac.digest(secret, subject, "sha256").hex()


# --------------------------------------------------------------------------------------------------------------- values
@dataclass(frozen=True, slots=True, repr=False)
class SuppressedKeys:
    secret: bytes
    hmacs: frozenset[str]

    def __contains__(self, key: object) -> bool:
        return isinstance(key, bytes) and subject_hmac(self.secret, key) in self.hmacs


@dataclass(frozen=True, slots=True, repr=False)
class SuppressionList:
    secret: bytes
    topics: Mapping[str, frozenset[str]]

    def of_topic(self, topic: str) -> SuppressedKeys | None:
        hmacs = self.topics.get(topic)
        return SuppressedKeys(self.secret, hmacs) if hmacs else None

    def with_keys(self, topics: Iterable[str], keys: Iterable[bytes]) -> SuppressionList:
        added = frozenset(subject_hmac(self.secret, key) for key in keys)
        more = {topic: self.topics.get(topic, frozenset()) | added for topic in topics}
        return SuppressionList(self.secret, {**self.topics, **more})


# ------------------------------------------------------------------------------------------------------------- the file
def format_suppression_list(suppressed: SuppressionList) -> bytes:
    document = {
        "kind": KIND,
        "schema": SCHEMA,
        "algorithm": ALGORITHM,
        "secret_check": subject_hmac(suppressed.secret, _SECRET_CHECK),
        "topics": {topic: sorted(hmacs) for topic, hmacs in sorted(suppressed.topics.items())},
    }
    return json.dumps(document, indent=1).encode() + b"\n"


def parse_suppression_list(content: bytes, secret: bytes, *, path: str) -> SuppressionList:
    try:
        document = json.loads(content)
        is_ours = (document["kind"], document["schema"], document["algorithm"]) == (KIND, SCHEMA, ALGORITHM)
        topics = {topic: frozenset(map(_checked_hmac, hmacs)) for topic, hmacs in document["topics"].items()}
        secret_check = _checked_hmac(document["secret_check"])
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        is_ours = False
    if not is_ours:
        raise UsageError(
            "the file is not a suppression list", path=path, advice="give a file of `erase --suppress-out`"
        )
    if not hmac.compare_digest(secret_check, subject_hmac(secret, _SECRET_CHECK)):
        raise UsageError(
            "the suppression list was made with another secret",
            path=path,
            advice="give the --secret-file of the erasures",
        )
    return SuppressionList(secret, topics)


def _checked_hmac(value: Any) -> str:
    if len(bytes.fromhex(value)) != 32 or value != value.lower():
        raise ValueError("not an HMAC")
    return str(value)


# ----------------------------------------------------------------------------------------------------------- the search
def find_suppressed(source: Source, keys: SuppressedKeys, fs: Fs) -> Int64s:
    """Find the data records of `source` with a suppressed key and a value; return their ascending offsets, int64[n].

    Data of aborted and of open transactions is included.
    """
    # Imported here, because the import compiles kernels that a driver needs only for a search.
    from sediment.segment_io.tables.readers import read_table

    offsets = [np.zeros(0, dtype=np.int64)]
    for scan_task in plan_scan_tasks(_REQUEST, source, fs, slice_bytes=SLICE_BYTES):
        for rows in read_table(_REQUEST, TableTask(scan_tasks=(scan_task,)), fs, follow=False):
            offsets.append(_suppressed_offsets(rows, keys))
    return np.concatenate(offsets)


def _suppressed_offsets(rows: pa.RecordBatch, keys: SuppressedKeys) -> Int64s:
    import pyarrow as pa
    import pyarrow.compute as pc

    data = rows.filter(pc.and_(pc.invert(rows.column("control")), pc.is_valid(rows.column("value"))))
    found = [key for key in pc.unique(data.column("key")).to_pylist() if key in keys]
    is_found = pc.is_in(data.column("key"), value_set=pa.array(found, pa.binary()))
    return np.asarray(data.column("offset").filter(is_found), dtype=np.int64)

"""Snapshot tables for tests: the expected rows, in plain Python with the twin, and a Spark session with Delta.

The session is on the context of the tests.  Where Delta's JARs are not on the machine they are fetched, once for all
workers, and where that fails the test is skipped with what the command said.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from sediment.jobs.delta_lake.session import delta_session, fetched_jars
from sediment.segment_io.format.names import parse_partition_directory
from tests.logs import LogShape, write_segment
from tests.twin.batches import CREATE_TIME, Batch, ControlType, Record, encode_batch, encode_marker, parse_batch
from tests.twin.segments import list_segments
from tests.twin.snapshots import ProducerStates, encode_snapshot

SCHEMA = (
    "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, timestampType int, "
    "headers array<struct<key: string, value: binary>>"
)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


# ------------------------------------------------------------------------------------------------------------ a session
@contextmanager
def session_with_delta() -> Iterator[Any]:
    bring_jars()
    with delta_session(None, "sediment tests") as spark:
        yield spark


def bring_jars() -> None:
    with (Path(tempfile.gettempdir()) / "sediment-delta-jars.lock").open("w") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        if fetched_jars(Path("~/.ivy2.5.2").expanduser()):
            return
        fetching = [sys.executable, "-m", "sediment.jobs.cli", "setup", "delta-jars"]
        fetched = subprocess.run(fetching, capture_output=True, text=True, timeout=240, check=False)
        if fetched.returncode:
            pytest.skip(f"Delta's JARs cannot be had: {fetched.stderr.strip()}")


# --------------------------------------------------------------------------------------------------- what it must hold
@dataclass(frozen=True, slots=True)
class Committed:
    """A record that a consumer of committed data is given."""

    record: Record
    timestamp_type: int


def committed_records(directory: Path) -> list[Committed]:
    """Return all committed records of a log that still has every marker of its transactions."""
    found: list[Committed] = []
    aborted: set[int] = set()
    transactions: dict[int, list[int]] = {}
    opened: dict[int, int] = {}
    for segment in list_segments(directory):
        for _, batch in segment.batches():
            assert isinstance(batch, Batch)
            if batch.is_control:
                rows = transactions.pop(batch.producer_id, [])
                opened.pop(batch.producer_id, None)
                if batch.control_type() is ControlType.ABORT:
                    aborted.update(rows)
                continue
            if batch.is_transactional:
                opened.setdefault(batch.producer_id, batch.base_offset)
            for record in batch.records():
                if batch.is_transactional:
                    transactions.setdefault(batch.producer_id, []).append(len(found))
                found.append(Committed(record, int(batch.timestamp_type != CREATE_TIME)))
    stable = min(opened.values(), default=2**63)
    return [entry for row, entry in enumerate(found) if row not in aborted and entry.record.offset < stable]


def latest_rows(partition: Path, records: Sequence[Committed] | None = None) -> list[tuple[Any, ...]]:
    """Rows of SCHEMA: of `records`, by default all that are committed, the latest of each key without tombstones."""
    name, _ = parse_partition_directory(partition.name)
    latest: dict[bytes, Committed] = {}
    for entry in committed_records(partition) if records is None else records:
        if entry.record.key is not None:
            latest[entry.record.key] = entry
    return [
        (
            entry.record.key,
            entry.record.value,
            name.topic,
            name.partition,
            entry.record.offset,
            EPOCH + timedelta(milliseconds=entry.record.timestamp),
            entry.timestamp_type,
            [(header.key.decode(), header.value) for header in entry.record.headers] or None,
        )
        for entry in latest.values()
        if entry.record.value is not None
    ]


# ------------------------------------------------------------------------------------------------------------- the logs
class Log:
    """A partition directory that a test writes batch by batch; each `roll` begins a segment."""

    def __init__(self, directory: Path, *, start: int = 0) -> None:
        self.directory = directory
        self.next_offset = start
        self.clock_ms = 1_700_000_000_000
        self._segments: list[tuple[int, list[Batch]]] = [(start, [])]
        directory.mkdir(parents=True, exist_ok=True)

    def append(self, **values: str | bytes | None) -> Log:
        """Append a batch of one record per keyword; the clock advances by a second."""
        return self.append_records([(key.encode(), value) for key, value in values.items()])

    def append_records(self, pairs: Sequence[tuple[bytes | None, Any]], **fields: Any) -> Log:
        records = [
            Record(self.next_offset + index, self.clock_ms, key, value.encode() if isinstance(value, str) else value)
            for index, (key, value) in enumerate(pairs)
        ]
        return self._add(encode_batch(records, base_offset=self.next_offset, leader_epoch=0, **fields))

    def transact(self, producer_id: int, sequence: int, **values: str | None) -> Log:
        return self.append_records(
            [(key.encode(), value) for key, value in values.items()],
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=sequence,
            transactional=True,
        )

    def end(self, producer_id: int, kind: ControlType) -> Log:
        marker = encode_marker(
            kind,
            offset=self.next_offset,
            timestamp=self.clock_ms,
            leader_epoch=0,
            producer_id=producer_id,
            producer_epoch=0,
            coordinator_epoch=0,
        )
        return self._add(marker)

    def roll(self) -> Log:
        self._segments.append((self.next_offset, []))
        return self

    def write(self) -> Path:
        """Write all anew."""
        shutil.rmtree(self.directory)
        self.directory.mkdir()
        states = ProducerStates()
        for base, batches in self._segments:
            (self.directory / f"{base:020d}.snapshot").write_bytes(encode_snapshot(states.entries))
            write_segment(self.directory, base, batches, states, LogShape())
        return self.directory

    def _add(self, data: bytes) -> Log:
        batch = parse_batch(data)
        self._segments[-1][1].append(batch)
        self.next_offset = batch.last_offset + 1
        self.clock_ms += 1000
        return self


def first_segments(source: Path, target: Path, count: int) -> Path:
    """Copy a partition directory as it was when its segment number `count` began."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    bases = [segment.base_offset for segment in list_segments(source)]
    for file in target.iterdir():
        offset = int(file.stem) if file.stem.isdigit() else -1
        if count < len(bases) and (offset > bases[count] or (offset == bases[count] and file.suffix != ".snapshot")):
            file.unlink()
    return target

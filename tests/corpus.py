"""The corpus: partition directories that Apache Kafka 4.2.0 wrote, cleaned and loaded (data/corpus/README.md).

Cases are unpacked into a directory that the caller may change.  `assert_same_log` compares a directory with Kafka's;
its failures name the segment, the batch's offset and the field.
"""

from __future__ import annotations

import gzip
import json
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.archives import unpack
from tests.twin import framing
from tests.twin.batches import Batch, Record, RecordHeader
from tests.twin.indexes import (
    OFFSET_ENTRY_BYTES,
    TIME_ENTRY_BYTES,
    lookup_position,
    lookup_timestamp,
    parse_offset_index,
    parse_time_index,
    parse_transaction_index,
)
from tests.twin.segments import (
    LOG,
    OFFSET_INDEX,
    SNAPSHOT,
    TIME_INDEX,
    TRANSACTION_INDEX,
    AnyBatch,
    Segment,
    file_batches,
    list_segments,
    list_snapshots,
)
from tests.twin.snapshots import parse_snapshot

_CORPUS = Path(__file__).parent / "data" / "corpus"
_LEGACY = "legacy-"


# ---------------------------------------------------------------------------------------------------------------- cases
@dataclass(frozen=True, slots=True)
class KafkaStats:
    """Kafka's cleaner report of a round; `uncleanable_offset` is not rounded down to a segment's base."""

    first_dirty_offset: int
    uncleanable_offset: int
    end_offset: int
    ratio: float
    map_messages_read: int
    messages_read: int
    messages_written: int
    bytes_read: int
    bytes_written: int
    invalid_messages: int
    map_utilization: float
    bytes_before: int
    bytes_after: int
    segments: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CleaningRound:
    """One round of Kafka's cleaner: `before` is its input (Kafka's own output of the round before), `after` its result.

    `dirty` is the cleaner checkpoint (None: log start), `map_bytes` the offset map's size (None: Kafka's default).
    """

    before: Path
    after: Path
    now_ms: int
    dirty: int | None
    map_bytes: int | None
    kafka: KafkaStats


@dataclass(frozen=True, slots=True)
class CleaningCase:
    """A cleaning case; `configs` are topic configs by Kafka's own keys, `compressed` says that a codec is in use."""

    name: str
    directory: Path
    partition: str
    configs: Mapping[str, str]
    compressed: bool
    rounds: tuple[CleaningRound, ...]

    @property
    def before(self) -> Path:
        return self.directory / "before"

    def dump(self, stage: str) -> tuple[DumpedSegment, ...]:
        """Return the dump of Kafka in `stage`, which is `before` or `after-N`."""
        return read_dump(self.directory / f"{stage}.dump.jsonl.gz")


@dataclass(frozen=True, slots=True)
class LoadedSegment:
    """A segment as Kafka's loader reported it."""

    base_offset: int
    log_bytes: int
    offset_index_entries: int
    time_index_entries: int
    next_offset: int
    largest_timestamp: int


@dataclass(frozen=True, slots=True)
class LoadedState:
    """Kafka's report after loading; producers are (id, last sequence), aborted (id, first, last, last stable)."""

    log_start_offset: int
    log_end_offset: int
    last_stable_offset: int
    first_unstable_offset: int | None
    recovery_point: int
    segments: tuple[LoadedSegment, ...]
    producers: tuple[tuple[int, int], ...]
    aborted: tuple[tuple[int, int, int, int], ...]


@dataclass(frozen=True, slots=True)
class LoadingCase:
    """A loading case; `clean` is the clean-shutdown marker, None a checkpoint that was not given."""

    name: str
    before: Path
    after: Path
    partition: str
    now_ms: int
    segment_bytes: int
    clean: bool
    recovery_point: int | None
    log_start_offset: int | None
    kafka: LoadedState


def cleaning_cases(magic2_only: bool = True) -> list[str]:
    """Names of the cleaning cases, those of message formats 0 and 1 only when asked for."""
    return [name for name in _names("cleaning") if not (magic2_only and name.startswith(_LEGACY))]


def loading_cases() -> list[str]:
    """Names of the loading cases."""
    return _names("loading")


def load_case(name: str, tmp_path: Path) -> CleaningCase:
    """Unpack a cleaning case below `tmp_path`."""
    directory = _unpack("cleaning", name, tmp_path)
    case = _read_json(directory / "case.json")
    stages = ["before", *(f"after-{number}" for number in range(1, len(case["rounds"]) + 1))]
    rounds = tuple(
        CleaningRound(
            before=directory / before,
            after=directory / after,
            now_ms=given["now_ms"],
            dirty=given.get("dirty"),
            map_bytes=given.get("map_bytes"),
            kafka=_stats(given["kafka"]),
        )
        for given, before, after in zip(case["rounds"], stages, stages[1:], strict=False)
    )
    compressed = case["written_with"].get("codec", "none") != "none"
    return CleaningCase(name, directory, case["partition"], case["configs"], compressed, rounds)


def unpack_logs(home: Path) -> dict[str, Path]:
    """Return the folders of the corpus before and after a cleaning by Kafka, each under the name of a topic for it."""
    return {
        f"{name}.{stage}": load_case(name, home / name).directory / stage
        for name in cleaning_cases(magic2_only=False)
        for stage in ("before", "after-1")
    }


def load_loading_case(name: str, tmp_path: Path) -> LoadingCase:
    """Unpack a loading case below `tmp_path`."""
    directory = _unpack("loading", name, tmp_path)
    case = _read_json(directory / "case.json")
    kafka = case["kafka"]
    state = LoadedState(
        log_start_offset=kafka["log_start"],
        log_end_offset=kafka["log_end"],
        last_stable_offset=kafka["lso"],
        first_unstable_offset=kafka["first_unstable"],
        recovery_point=kafka["recovery_point"],
        segments=tuple(LoadedSegment(*segment) for segment in kafka["segments"]),
        producers=tuple((producer_id, sequence) for producer_id, sequence in kafka["producers"]),
        aborted=tuple((pid, first, last, stable) for pid, first, last, stable in kafka["aborted"]),
    )
    return LoadingCase(
        name=name,
        before=directory / "before",
        after=directory / "after",
        partition=case["partition"],
        now_ms=case["now_ms"],
        segment_bytes=case["segment.bytes"],
        clean=bool(case["load"]["clean"]),
        recovery_point=case["load"].get("recovery_point"),
        log_start_offset=case["load"].get("log_start"),
        kafka=state,
    )


def _names(kind: str) -> list[str]:
    return sorted(path.name.removesuffix(".tar.xz") for path in (_CORPUS / kind).glob("*.tar.xz"))


def _unpack(kind: str, name: str, tmp_path: Path) -> Path:
    with tarfile.open(_CORPUS / kind / f"{name}.tar.xz") as archive:
        unpack(archive, tmp_path)
    return tmp_path / name


def _read_json(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def _stats(kafka: Mapping[str, Any]) -> KafkaStats:
    return KafkaStats(
        first_dirty_offset=kafka["first_dirty"],
        uncleanable_offset=kafka["upper"],
        end_offset=kafka["end"],
        ratio=kafka["ratio"],
        map_messages_read=kafka["map_messages"],
        messages_read=kafka["messages_read"],
        messages_written=kafka["messages_written"],
        bytes_read=kafka["bytes_read"],
        bytes_written=kafka["bytes_written"],
        invalid_messages=kafka["invalid"],
        map_utilization=kafka["utilization"],
        bytes_before=kafka["size_before"],
        bytes_after=kafka["size_after"],
        segments=tuple(kafka["segments"]),
    )


# ---------------------------------------------------------------------------------------------------------------- dumps
@dataclass(frozen=True, slots=True)
class DumpedBatch:
    """A batch as Kafka read it; `sequences` go with `records`."""

    base_offset: int
    last_offset: int
    position: int
    size_bytes: int
    magic: int
    codec: str
    timestamp_type: str
    producer_id: int
    producer_epoch: int
    base_sequence: int
    leader_epoch: int
    is_transactional: bool
    is_control: bool
    delete_horizon_ms: int | None
    max_timestamp: int
    is_valid: bool
    records: tuple[Record, ...]
    sequences: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DumpedSegment:
    """A segment as Kafka read it."""

    base_offset: int
    log_bytes: int
    batches: tuple[DumpedBatch, ...]


def read_dump(path: Path) -> tuple[DumpedSegment, ...]:
    """Return the segments of a `*.dump.jsonl.gz`."""
    segments: list[tuple[dict[str, Any], list[tuple[dict[str, Any], list[dict[str, Any]]]]]] = []
    with gzip.open(path, "rt") as lines:
        for line in lines:
            row = json.loads(line)
            if "segment" in row:
                segments.append((row, []))
            elif "base" in row:
                segments[-1][1].append((row, []))
            else:
                segments[-1][1][-1][1].append(row)
    return tuple(
        DumpedSegment(
            int(segment["segment"].split(".", 1)[0]),
            segment["bytes"],
            tuple(_dumped_batch(batch, records) for batch, records in batches),
        )
        for segment, batches in segments
    )


def _dumped_batch(batch: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> DumpedBatch:
    return DumpedBatch(
        base_offset=batch["base"],
        last_offset=batch["last"],
        position=batch["pos"],
        size_bytes=batch["size"],
        magic=batch["magic"],
        codec=batch["codec"],
        timestamp_type=batch["tt"],
        producer_id=batch["pid"],
        producer_epoch=batch["pe"],
        base_sequence=batch["bs"],
        leader_epoch=batch["le"],
        is_transactional=batch["txn"],
        is_control=batch["control"],
        delete_horizon_ms=batch["horizon"],
        max_timestamp=batch["maxts"],
        is_valid=batch["valid"],
        records=tuple(_dumped_record(record) for record in records),
        sequences=tuple(record["seq"] for record in records),
    )


def _dumped_record(record: Mapping[str, Any]) -> Record:
    headers = tuple(RecordHeader(key.encode(), _from_hex(value)) for key, value in record["h"])
    return Record(record["o"], record["ts"], _from_hex(record["k"]), _from_hex(record["v"]), headers)


def _from_hex(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)


# ----------------------------------------------------------------------------------------------------------- comparison
_HEADER_FIELDS = (
    "magic",
    "base_offset",
    "last_offset",
    "leader_epoch",
    "attributes",
    "base_timestamp",
    "max_timestamp",
    "producer_id",
    "producer_epoch",
    "base_sequence",
    "count",
)
_LEGACY_FIELDS = ("magic", "offset", "attributes", "timestamp", "key")
_RECORD_FIELDS = ("offset", "timestamp", "key", "value", "headers")


def assert_same_log(actual_dir: Path, expected_dir: Path, compressed: bool) -> None:
    """Assert that the segments in `actual_dir` are those in `expected_dir`, which Kafka wrote.

    Segment base offsets, bytes of uncompressed batches and transaction indexes must be equal; compressed batches field
    by field and record by record, without length and checksum.  Offset and time indexes must be equal too, unless
    `compressed`: then positions may differ, and they must be valid and answer every look-up as Kafka's do.
    """
    actual, expected = list_segments(actual_dir), list_segments(expected_dir)
    bases = [segment.base_offset for segment in actual]
    expected_bases = [segment.base_offset for segment in expected]
    assert bases == expected_bases, f"segment base offsets {bases}, expected {expected_bases}"
    for ours, theirs in zip(actual, expected, strict=True):
        _assert_same_batches(ours, theirs)
        _assert_same_transaction_index(ours, theirs)
        if compressed:
            assert_valid_indexes(ours)
            _assert_same_answers(ours, theirs)
        else:
            _assert_same_index(ours, theirs, OFFSET_INDEX, OFFSET_ENTRY_BYTES)
            _assert_same_index(ours, theirs, TIME_INDEX, TIME_ENTRY_BYTES)


def assert_same_snapshots(actual_dir: Path, expected_dir: Path) -> None:
    """Assert that the producer snapshots of both directories have the same offsets and the same producers."""
    offsets, expected = list_snapshots(actual_dir), list_snapshots(expected_dir)
    assert offsets == expected, f"snapshots at {offsets}, expected {expected}"
    for offset in offsets:
        name = f"{offset:020d}{SNAPSHOT}"
        ours = parse_snapshot((actual_dir / name).read_bytes())
        theirs = parse_snapshot((expected_dir / name).read_bytes())
        assert ours == theirs, f"snapshot {offset}: {ours}, expected {theirs}"


def assert_copied_verbatim(actual_dir: Path, expected_dir: Path, source_dir: Path) -> None:
    """Assert that `actual_dir` has every batch that Kafka copied verbatim from `source_dir` to `expected_dir`.

    Only compressed batches need this: of others `assert_same_log` compares the bytes.
    """
    source = {batch.data for segment in list_segments(source_dir) for _, batch in segment.batches()}
    for ours, theirs in zip(list_segments(actual_dir), list_segments(expected_dir), strict=True):
        for (_, got), (_, want) in zip(ours.batches(), theirs.batches(), strict=True):
            assert want.data not in source or got.data == want.data, (
                f"segment {ours.base_offset} batch {want.last_offset}: was rebuilt, though it loses nothing"
            )


def _assert_same_batches(ours: Segment, theirs: Segment) -> None:
    where = f"segment {ours.base_offset}"
    actual, expected = ours.batches(), theirs.batches()
    for (_, got), (_, want) in zip(actual, expected, strict=False):
        assert_same_batch(got, want, where)
    surplus = [batch.last_offset for _, batch in actual[len(expected) :]]
    missing = [batch.last_offset for _, batch in expected[len(actual) :]]
    assert not surplus, f"{where}: {len(surplus)} batches too many, with last offsets {surplus[:5]}"
    assert not missing, f"{where}: {len(missing)} batches missing, with last offsets {missing[:5]}"
    tail, expected_tail = _tail(ours, actual), _tail(theirs, expected)
    assert tail == expected_tail, f"{where}: {len(tail)} bytes after the last batch, expected {len(expected_tail)}"


def _tail(segment: Segment, batches: list[tuple[int, AnyBatch]]) -> bytes:
    """Return the bytes after the last complete batch."""
    return segment.read(LOG)[sum(len(batch.data) for _, batch in batches) :]


def assert_same_batch(actual: AnyBatch, expected: AnyBatch, where: str = "") -> None:
    """Assert that two batches are equal; if compressed, except for length, checksum and compression."""
    where = f"{where} batch {expected.base_offset if isinstance(expected, Batch) else expected.offset}".strip()
    assert actual.magic == expected.magic, f"{where}: magic {actual.magic}, expected {expected.magic}"
    for name in _HEADER_FIELDS if isinstance(expected, Batch) else _LEGACY_FIELDS:
        got, want = getattr(actual, name), getattr(expected, name)
        assert got == want, f"{where}: {name} is {got}, expected {want}"
    if actual.data == expected.data:
        return
    records, expected_records = actual.records(), expected.records()
    assert len(records) == len(expected_records), f"{where}: {len(records)} records, expected {len(expected_records)}"
    for record, expected_record in zip(records, expected_records, strict=True):
        for name in _RECORD_FIELDS:
            got, want = getattr(record, name), getattr(expected_record, name)
            assert got == want, f"{where} record {expected_record.offset}: {name} is {got!r}, expected {want!r}"
    assert actual.is_valid(), f"{where}: crc is wrong"
    if expected.codec == framing.NONE:
        at = next((i for i, (a, b) in enumerate(zip(actual.data, expected.data, strict=False)) if a != b), -1)
        raise AssertionError(
            f"{where}: bytes differ from byte {at} on, though fields and records do not:\n"
            f"  {actual.data.hex()}\n  {expected.data.hex()}"
        )


def _assert_same_index(ours: Segment, theirs: Segment, suffix: str, entry_bytes: int) -> None:
    got, want = ours.read(suffix), theirs.read(suffix)
    if got == want:
        return
    where = f"segment {ours.base_offset} {suffix}"
    parse = parse_offset_index if suffix == OFFSET_INDEX else parse_time_index
    entries, expected = parse(got, ours.base_offset), parse(want, theirs.base_offset)
    for number, (entry, expected_entry) in enumerate(zip(entries, expected, strict=False)):
        assert entry == expected_entry, f"{where} entry {number}: {entry}, expected {expected_entry}"
    raise AssertionError(f"{where}: {len(got)} bytes, expected {len(want)} ({entry_bytes} an entry)")


def _assert_same_transaction_index(ours: Segment, theirs: Segment) -> None:
    where = f"segment {ours.base_offset} {TRANSACTION_INDEX}"
    exists, expected_exists = ours.path(TRANSACTION_INDEX).exists(), theirs.path(TRANSACTION_INDEX).exists()
    assert exists == expected_exists, f"{where}: file {'exists' if exists else 'is missing'}"
    got, want = ours.read(TRANSACTION_INDEX), theirs.read(TRANSACTION_INDEX)
    entries, expected = parse_transaction_index(got), parse_transaction_index(want)
    assert entries == expected, f"{where}: {entries}, expected {expected}"
    assert got == want, f"{where}: {got.hex()}, expected {want.hex()}"


def assert_valid_indexes(segment: Segment) -> None:
    """Assert that every entry of a segment's offset and time index agrees with its `.log` (01 §7.1, §7.2, §7.6)."""
    batches = segment.batches()
    at = dict(batches)
    entries = parse_offset_index(segment.read(OFFSET_INDEX), segment.base_offset)
    where = f"segment {segment.base_offset} {OFFSET_INDEX}"
    for number, entry in enumerate(entries):
        assert entry.position in at, f"{where} entry {number}: no batch begins at position {entry.position}"
        last_offset = at[entry.position].last_offset
        assert entry.offset == last_offset, (
            f"{where} entry {number}: offset {entry.offset}, batch at position {entry.position} ends at {last_offset}"
        )
    offsets = [entry.offset for entry in entries]
    assert offsets == sorted(set(offsets)), f"{where}: offsets do not increase: {offsets}"

    where = f"segment {segment.base_offset} {TIME_INDEX}"
    first_with: dict[int, int] = {}
    largest = -1
    for _, batch in batches:
        if batch.max_timestamp > largest:
            largest = batch.max_timestamp
            first_with[largest] = batch.last_offset
    times = parse_time_index(segment.read(TIME_INDEX), segment.base_offset)
    for number, time in enumerate(times):
        wanted = first_with.get(time.timestamp)
        assert time.offset == wanted, f"{where} entry {number}: {time}, the log says offset {wanted}"
    timestamps = [time.timestamp for time in times]
    assert timestamps == sorted(set(timestamps)), f"{where}: timestamps do not increase: {timestamps}"


def _assert_same_answers(ours: Segment, theirs: Segment) -> None:
    """Look-ups by every offset and every timestamp of the segment find the same batch or record in both."""
    got, want = _Reader(ours), _Reader(theirs)
    where = f"segment {ours.base_offset}"
    last_times = [reader.times[-1:] for reader in (got, want)]
    assert last_times[0] == last_times[1], f"{where} {TIME_INDEX}: last entry {last_times[0]}, expected {last_times[1]}"
    ends = [batch.last_offset for _, batch in want.batches]
    for target in {offset for end in ends for offset in (end, end + 1)} | {ours.base_offset}:
        found, expected = got.find_offset(target), want.find_offset(target)
        assert found == expected, f"{where}: offset {target} leads to batch {found}, expected {expected}"
    timestamps = {record.timestamp for _, batch in want.batches for record in batch.records()}
    for target in timestamps | {stamp + 1 for stamp in timestamps}:
        answer, expected_answer = got.find_timestamp(target), want.find_timestamp(target)
        assert answer == expected_answer, f"{where}: timestamp {target} leads to {answer}, expected {expected_answer}"


class _Reader:
    """A segment as Kafka reads it: a look-up in an index, then a scan forward."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.log = segment.read(LOG)
        self.batches = segment.batches()
        self.offsets = parse_offset_index(segment.read(OFFSET_INDEX), segment.base_offset)
        self.times = parse_time_index(segment.read(TIME_INDEX), segment.base_offset)
        self._records = {position: batch.records() for position, batch in self.batches}

    def find_offset(self, target: int) -> int | None:
        """Last offset of the batch that a read of `target` begins with."""
        batches = file_batches(self.log, lookup_position(self.offsets, target))
        return next((batch.last_offset for _, batch in batches if batch.last_offset >= target), None)

    def find_timestamp(self, target: int) -> tuple[int, int] | None:
        """(timestamp, offset) of the first record at or after `target` in time."""
        bound = lookup_timestamp(self.times, target, self.segment.base_offset)
        start = lookup_position(self.offsets, bound.offset)
        for position, batch in self.batches:
            if position < start or batch.max_timestamp < target:
                continue
            for record in self._records[position]:
                if record.timestamp >= target:
                    return record.timestamp, record.offset
        return None

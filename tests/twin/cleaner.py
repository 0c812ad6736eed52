"""Kafka's log cleaner as two forward passes over a directory, written only from kafka-log 02.

    cleanable range -> offset map over the dirty part -> groups of segments -> each group filtered into one segment

The directory is changed in place and without any care for crashes: cleaned files take their final names, replaced
segments and their producer snapshots disappear.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.twin.batches import INT32_MAX, INT64_MIN, Record
from tests.twin.errors import CorruptRecordError
from tests.twin.filtering import FilteredBatch, Retention, apply_filter
from tests.twin.indexes import (
    OFFSET_ENTRY_BYTES,
    TIME_ENTRY_BYTES,
    IndexBuilder,
    collect_aborted,
    encode_transaction_index,
    lookup_position,
    parse_offset_index,
)
from tests.twin.segments import (
    LOG,
    OFFSET_INDEX,
    SNAPSHOT,
    TIME_INDEX,
    TRANSACTION_INDEX,
    AnyBatch,
    Segment,
    buffer_batches,
    list_segments,
    parse_any,
    segments_between,
)
from tests.twin.snapshots import DEFAULT_EXPIRATION_MS, ProducerEntry, ProducerStates, load_producers
from tests.twin.transactions import TransactionState

SLOT_BYTES = 24
DEFAULT_MAP_BYTES = 134217728
DEFAULT_LOAD_FACTOR = 0.9


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """The topic settings that cleaning looks at, with Kafka's defaults (06 §1)."""

    segment_bytes: int = 1073741824
    segment_index_bytes: int = 10485760
    index_interval_bytes: int = 4096
    delete_retention_ms: int | None = 86400000
    min_compaction_lag_ms: int = 0

    @classmethod
    def of(cls, settings: Mapping[str, str | None]) -> TopicConfig:
        """Return the config that Kafka's own keys give; keys that cleaning does not read are ignored.

        Only `delete.retention.ms` may be None: it is not stated.
        """
        known: dict[str, Any] = {
            name: None if (value := settings[key]) is None else int(value)
            for name in cls.__slots__
            if (key := name.replace("_", ".")) in settings
        }
        if "internal.segment.bytes" in settings:
            known["segment_bytes"] = int(str(settings["internal.segment.bytes"]))
        return cls(**known)


@dataclass(slots=True)
class Stats:
    """Counts as Kafka's CleanerStats has them."""

    map_messages_read: int = 0
    messages_read: int = 0
    messages_written: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    invalid_messages: int = 0
    map_utilization: float = 0.0

    def count(self, batch: AnyBatch, filtered: FilteredBatch) -> None:
        """Add what became of one batch."""
        self.messages_read += filtered.messages_read
        self.messages_written += filtered.messages_written
        self.bytes_read += len(batch.data)
        self.bytes_written += len(filtered.data)


@dataclass(frozen=True, slots=True)
class CleanableRange:
    """[first_dirty_offset, first_uncleanable_offset); `uncleanable_offset` is the latter before rounding down."""

    first_dirty_offset: int
    uncleanable_offset: int
    first_uncleanable_offset: int
    ratio: float


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one round; `end_offset` is the new cleaner checkpoint."""

    stats: Stats
    end_offset: int
    cleanable: CleanableRange
    groups: tuple[tuple[int, ...], ...]


def clean_directory(
    directory: Path,
    *,
    config: Mapping[str, str | None],
    now_ms: int,
    first_dirty_offset: int | None = None,
    map_bytes: int | None = None,
    load_factor: float = DEFAULT_LOAD_FACTOR,
    log_start_offset: int | None = None,
    producer_expiration_ms: int | None = DEFAULT_EXPIRATION_MS,
) -> Result:
    """Clean the log in `directory` once, as Kafka 4.2 does; the high watermark is taken to be the log's end.

    `config` holds Kafka's topic keys, with None for `delete.retention.ms` where it is not stated.
    `first_dirty_offset` is the cleaner checkpoint (None: the log's start), `map_bytes` the offset map's memory (None:
    Kafka's default).  Where `producer_expiration_ms` is None, no producer expires.

    Raises:
        TwinError: Kafka's cleaner would give up on the partition; `directory` may be cleaned in part.
    """
    topic = TopicConfig.of(config)
    segments = list_segments(directory)
    start = segments[0].base_offset if log_start_offset is None else max(log_start_offset, segments[0].base_offset)
    producers = load_producers(directory, now_ms=now_ms, expiration_ms=producer_expiration_ms, log_start_offset=start)
    cleanable = cleanable_range(
        segments, topic, producers, now_ms=now_ms, checkpoint=first_dirty_offset, log_start_offset=start
    )
    cleaner = _Round(segments, topic, producers.entries, cleanable, now_ms, start)
    offset_map = cleaner.fill_map(
        OffsetMap(DEFAULT_MAP_BYTES if map_bytes is None else map_bytes, load_factor=load_factor)
    )
    end_offset = offset_map.latest_offset + 1
    groups = group_segments(segments_between(segments, 0, end_offset), topic, cleanable.first_uncleanable_offset)
    for group in groups:
        cleaner.clean_group(group, offset_map)
    cleaner.stats.map_utilization = offset_map.utilization()
    bases = tuple(tuple(segment.base_offset for segment in group) for group in groups)
    return Result(cleaner.stats, end_offset, cleanable, bases)


# ------------------------------------------------------------------------------------------------- what to clean (§2)
def cleanable_range(
    segments: Sequence[Segment],
    config: TopicConfig,
    producers: ProducerStates,
    *,
    now_ms: int,
    checkpoint: int | None,
    log_start_offset: int,
) -> CleanableRange:
    """cleanableOffsets (§2.1), and the bytes and ratio of LogToClean (§2.2)."""
    segments = list(segments)
    active = segments[-1]
    log_end_offset = active.next_offset()
    first = log_start_offset
    if checkpoint is not None and log_start_offset <= checkpoint <= log_end_offset:
        first = checkpoint
    limits = [active.base_offset, *producers.open_transactions(), log_end_offset]
    if config.min_compaction_lag_ms > 0:
        inactive = _inactive_from(segments, first)
        too_new = (s for s in inactive if largest_timestamp(s) > now_ms - config.min_compaction_lag_ms)
        limits += [segment.base_offset for segment in too_new][:1]
    uncleanable = max(first, min(limits))

    first_uncleanable = ([*_inactive_from(segments, uncleanable), active])[0].base_offset
    dirty = segments_between(segments, min(first, first_uncleanable), first_uncleanable)
    cleanable_bytes = sum(segment.log_bytes() for segment in dirty)
    clean_bytes = sum(segment.log_bytes() for segment in segments if segment.base_offset < first)
    total_bytes = clean_bytes + cleanable_bytes
    ratio = cleanable_bytes / total_bytes if total_bytes else 0.0
    return CleanableRange(first, uncleanable, first_uncleanable, ratio)


def _inactive_from(segments: list[Segment], offset: int) -> list[Segment]:
    """nonActiveSegmentsFrom: none if `offset` lies above the active segment's base."""
    active = segments[-1].base_offset
    return [] if offset > active else segments_between(segments, offset, active)


def largest_timestamp(segment: Segment) -> int:
    """Largest timestamp of the segment's batches, its file's modification time where there is none."""
    largest = max((batch.max_timestamp for _position, batch in segment.batches()), default=-1)
    return largest if largest >= 0 else segment.mtime_ms()


# ---------------------------------------------------------------------------------------------------- offset map (§4)
class OffsetMap:
    """SkimpyOffsetMap as a dict: keys are distinguished by their MD5, and the last put wins."""

    def __init__(self, size_bytes: int, *, load_factor: float = DEFAULT_LOAD_FACTOR) -> None:
        self.slots = size_bytes // SLOT_BYTES
        self.desired = int(self.slots * load_factor)
        self.latest_offset = -1
        self._offsets: dict[bytes, int] = {}

    def put(self, key: bytes, offset: int) -> bool:
        """Map `key` to `offset`, unless the map is full, which is asked before looking whether the key is there."""
        if len(self._offsets) >= self.desired:
            return False
        self._offsets[hashlib.md5(key).digest()] = offset
        self.latest_offset = offset
        return True

    def get(self, key: bytes) -> int:
        """Offset of `key`, -1 if it is not mapped."""
        return self._offsets.get(hashlib.md5(key).digest(), -1)

    def utilization(self) -> float:
        """Share of the slots in use."""
        return len(self._offsets) / self.slots


# ------------------------------------------------------------------------------------------------------ grouping (§5)
def group_segments(segments: Sequence[Segment], config: TopicConfig, first_uncleanable: int) -> list[list[Segment]]:
    """groupSegmentsBySize: neighbours that together stay within the sizes of one segment and 2^31 offsets."""
    groups: list[list[Segment]] = []
    log_bytes = offset_index_bytes = time_index_bytes = 0
    for position, segment in enumerate(segments):
        log, offset_index, time_index = segment.log_bytes(), _used(segment, OFFSET_INDEX), _used(segment, TIME_INDEX)
        following = segments[position + 1].base_offset if position + 1 < len(segments) else first_uncleanable
        if (
            groups
            and log_bytes + log <= config.segment_bytes
            and offset_index_bytes + offset_index <= config.segment_index_bytes
            and time_index_bytes + time_index <= config.segment_index_bytes
            and (log == 0 or following - 1 - groups[-1][0].base_offset <= INT32_MAX)
        ):
            groups[-1].append(segment)
            log_bytes, offset_index_bytes, time_index_bytes = (
                log_bytes + log,
                offset_index_bytes + offset_index,
                time_index_bytes + time_index,
            )
        else:
            groups.append([segment])
            log_bytes, offset_index_bytes, time_index_bytes = log, offset_index, time_index
    return groups


def _used(segment: Segment, suffix: str) -> int:
    """Bytes of whole entries in an index of an inactive segment."""
    entry_bytes = OFFSET_ENTRY_BYTES if suffix == OFFSET_INDEX else TIME_ENTRY_BYTES
    return len(segment.read(suffix)) // entry_bytes * entry_bytes


# ------------------------------------------------------------------------------------------------------ cleaning (§6)
@dataclass(slots=True)
class _Round:
    """One run of Cleaner.doClean: what all of its steps share."""

    segments: list[Segment]
    config: TopicConfig
    producers: Mapping[int, ProducerEntry]
    cleanable: CleanableRange
    now_ms: int
    log_start_offset: int
    stats: Stats = field(default_factory=Stats)
    transactions: TransactionState = field(default_factory=TransactionState)
    legacy_horizon_ms: int = 0

    def __post_init__(self) -> None:
        below = segments_between(self.segments, 0, self.cleanable.first_dirty_offset)
        if below:
            retention_ms = self.config.delete_retention_ms
            self.legacy_horizon_ms = INT64_MIN if retention_ms is None else below[-1].mtime_ms() - retention_ms

    def fill_map(self, offset_map: OffsetMap) -> OffsetMap:
        """buildOffsetMap over the dirty range (§4.2), with a transaction state of its own."""
        first, end = self.cleanable.first_dirty_offset, self.cleanable.first_uncleanable_offset
        transactions = TransactionState()
        transactions.add_aborted(collect_aborted(self.segments, first, end, log_start_offset=self.log_start_offset))
        dirty = segments_between(self.segments, first, end)
        for segment, following in zip(dirty, [*(s.base_offset for s in dirty[1:]), end], strict=False):
            index = parse_offset_index(segment.read(OFFSET_INDEX), segment.base_offset)
            for batch in _cleanable_batches(segment, lookup_position(index, first)):
                if not self._map_batch(batch, transactions, offset_map):
                    return offset_map
            offset_map.latest_offset = following - 1
        return offset_map

    def _map_batch(self, batch: AnyBatch, transactions: TransactionState, offset_map: OffsetMap) -> bool:
        """Put a batch's keys; False once the map is full."""
        first = self.cleanable.first_dirty_offset
        discarded = transactions.on_batch(batch)
        if batch.is_control:
            self.stats.map_messages_read += 1
        elif discarded:
            self.stats.map_messages_read += batch.count
        else:
            for record in batch.records():
                if record.key is not None and record.offset >= first and not offset_map.put(record.key, record.offset):
                    return False
                self.stats.map_messages_read += 1
        if batch.last_offset >= first:
            offset_map.latest_offset = batch.last_offset
        return True

    def clean_group(self, group: Sequence[Segment], offset_map: OffsetMap) -> None:
        """cleanSegments: filter a group into one segment and put that in its place."""
        base_offset = group[0].base_offset
        indexes = IndexBuilder(
            base_offset,
            interval_bytes=self.config.index_interval_bytes,
            max_index_bytes=self.config.segment_index_bytes,
        )
        self.transactions.kept_aborted = []
        log = bytearray()
        for segment, following in zip(group, [*group[1:], None], strict=True):
            upper_bound = segment.next_offset() if following is None else following.base_offset
            self.transactions.add_aborted(
                collect_aborted(self.segments, segment.base_offset, upper_bound, log_start_offset=self.log_start_offset)
            )
            retains_legacy_deletes = segment.mtime_ms() > self.legacy_horizon_ms
            for batch in _cleanable_batches(segment, 0):
                filtered = self._filter(batch, offset_map, retains_legacy_deletes)
                self.stats.count(batch, filtered)
                if filtered.data:
                    indexes.append(parse_any(filtered.data))
                    log += filtered.data
        offset_index, time_index = indexes.finish()
        files = {LOG: bytes(log), OFFSET_INDEX: offset_index, TIME_INDEX: time_index}
        if self.transactions.kept_aborted:
            files[TRANSACTION_INDEX] = encode_transaction_index(self.transactions.kept_aborted)
        _replace(group, files)

    def _filter(self, batch: AnyBatch, offset_map: OffsetMap, retains_legacy_deletes: bool) -> FilteredBatch:
        can_discard = self.transactions.on_batch(batch)
        horizon_ms = batch.delete_horizon_ms
        discards_records = can_discard
        if batch.is_control:
            discards_records = can_discard and horizon_ms is not None and horizon_ms <= self.now_ms

        retains_deletes = retains_legacy_deletes
        if batch.magic == 2:
            retains_deletes = horizon_ms is None or self.now_ms < horizon_ms

        def keep(record: Record) -> bool:
            if discards_records:
                return False
            if batch.is_control or record.offset > offset_map.latest_offset:
                return True
            if record.key is None:
                self.stats.invalid_messages += 1
                return False
            return record.offset >= offset_map.get(record.key) and (record.value is not None or retains_deletes)

        return apply_filter(
            batch,
            keep,
            now_ms=self.now_ms,
            delete_retention_ms=self.config.delete_retention_ms,
            retention=self._retention(batch, discards_records),
            marker_for_empty_transaction=can_discard and batch.is_control,
        )

    def _retention(self, batch: AnyBatch, discards_records: bool) -> Retention:
        """checkBatchRetention (§6.2): an active producer's last batch, and the round's last, leave their header."""
        if self._is_last_of_producer(batch) or batch.next_offset == self.cleanable.first_uncleanable_offset:
            return Retention.RETAIN_EMPTY
        return Retention.DELETE if discards_records else Retention.DELETE_EMPTY

    def _is_last_of_producer(self, batch: AnyBatch) -> bool:
        entry = self.producers.get(batch.producer_id) if batch.producer_id >= 0 else None
        if entry is None:
            return False
        if entry.last_offset >= 0:
            return batch.last_offset == entry.last_offset
        return batch.is_control and batch.producer_epoch == entry.epoch


def _cleanable_batches(segment: Segment, position: int) -> list[AnyBatch]:
    """Return the batches of a segment that is to be cleaned, from `position` on.

    Raises:
        CorruptRecordError: the segment does not end with a complete batch, on which Kafka's cleaner gives up.
    """
    data = segment.read(LOG)
    batches = []
    for _position, batch in buffer_batches(data, position):
        batches.append(batch)
        position += len(batch.data)
    if position != len(data):
        raise CorruptRecordError(f"segment {segment.base_offset} holds no complete batch at position {position}")
    return batches


def _replace(group: Sequence[Segment], files: Mapping[str, bytes]) -> None:
    """replaceSegments (§8.1) without its intermediate names; modification times are the last source's (§6 step 5)."""
    cleaned = group[0]
    mtime_ns = group[-1].path(LOG).stat().st_mtime_ns
    for segment in group:
        for suffix in (LOG, OFFSET_INDEX, TIME_INDEX, TRANSACTION_INDEX):
            segment.path(suffix).unlink(missing_ok=True)
        if segment is not cleaned:
            segment.path(SNAPSHOT).unlink(missing_ok=True)
    for suffix, content in files.items():
        cleaned.path(suffix).write_bytes(content)
        if suffix != TRANSACTION_INDEX:
            os.utime(cleaned.path(suffix), ns=(mtime_ns, mtime_ns))

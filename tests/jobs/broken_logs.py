"""Results of a compaction, each broken in one way that a given check of `verify` must find.

A breakage edits AFTER only.  Everything else stays valid: checksums and indexes are rebuilt.
"""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from tests.jobs.log_dirs import read_checkpoint, write_checkpoint
from tests.twin.batches import Batch, ControlType, Record, RecordHeader, encode_batch, encode_empty_batch, sign_batch
from tests.twin.filtering import rebuild_batch
from tests.twin.indexes import (
    AbortedTransaction,
    build_indexes,
    encode_offset_index,
    encode_time_index,
    encode_transaction_index,
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
    Segment,
    file_batches,
    list_segments,
    list_snapshots,
)
from tests.twin.snapshots import encode_snapshot, parse_snapshot

CLEANER = "cleaner-offset-checkpoint"
NOW_MS = 1700001000000  # the clock of the cleaning whose results are broken
EPOCHS = "leader-epoch-checkpoint"

_ATTRIBUTES = (21, ">h")
_LAST_OFFSET_DELTA = (23, ">i")
_MAX_TIMESTAMP = (35, ">q")
_BASE_SEQUENCE = (53, ">i")


@dataclass(frozen=True, slots=True)
class Edited:
    """The partition `name` of two log directories, of which AFTER is edited."""

    before_dir: Path
    after_dir: Path
    name: str
    retention_ms: int

    @property
    def before(self) -> Path:
        return self.before_dir / self.name

    @property
    def after(self) -> Path:
        return self.after_dir / self.name

    def segments(self) -> list[Segment]:
        return list_segments(self.after)

    def batches(self, directory: Path | None = None) -> list[Batch]:
        return [batch for segment in list_segments(directory or self.after) for _, batch in segment.batches()]

    def segment_of(self, offset: int) -> Segment:
        return [segment for segment in self.segments() if segment.base_offset <= offset][-1]

    def write(self, segment: Segment, content: bytes) -> None:
        """Replace a segment's batches, with indexes that are right for them."""
        offset_index, time_index = build_indexes(
            [batch for _, batch in file_batches(content)], segment.base_offset, interval_bytes=500
        )
        segment.path(LOG).write_bytes(content)
        segment.path(OFFSET_INDEX).write_bytes(offset_index)
        segment.path(TIME_INDEX).write_bytes(time_index)

    def replace(self, old: Batch, *new: bytes) -> None:
        segment = self.segment_of(old.base_offset)
        data = segment.read(LOG)
        at = data.index(old.data)
        self.write(segment, data[:at] + b"".join(new) + data[at + len(old.data) :])

    def insert(self, data: bytes, base_offset: int) -> None:
        """Put a batch where its offsets belong."""
        segment = self.segment_of(base_offset)
        found = [batch for _, batch in segment.batches()]
        below = [batch.data for batch in found if batch.last_offset < base_offset]
        self.write(segment, b"".join([*below, data, *(batch.data for batch in found[len(below) :])]))

    def edit_records(self, batch: Batch, change: Callable[[list[Record]], list[Record]]) -> None:
        self.replace(batch, rebuild_batch(batch, change(list(batch.records())), batch.delete_horizon_ms))

    def data_batch(self, least_records: int = 2) -> Batch:
        """Return a data batch of records with values."""
        return next(
            batch
            for batch in self.batches()
            if not batch.is_control
            and batch.count >= least_records
            and all(record.value and record.key for record in batch.records())
        )

    def cleaned_batches(self, least_records: int = 2) -> list[Batch]:
        """Data batches that lost some of their records and kept values only."""
        then = {batch.base_offset: batch for batch in self.batches(self.before)}
        return [
            batch
            for batch in self.batches()
            if not batch.is_control
            and least_records <= batch.count < then[batch.base_offset].count
            and all(record.value and record.key for record in batch.records())
        ]

    def edit_header(self, batch: Batch, field: tuple[int, str], change: Callable[[int], int]) -> None:
        """Change one field of a batch's header; the checksum is right again."""
        at, kind = field
        data = bytearray(batch.data)
        (value,) = struct.unpack_from(kind, data, at)
        struct.pack_into(kind, data, at, change(value))
        self.replace(batch, sign_batch(bytes(data)))

    def claim(self, offset: int) -> None:
        path = self.after_dir / CLEANER
        write_checkpoint(path, {**read_checkpoint(path), self.name: offset})


@dataclass(frozen=True, slots=True)
class Breakage:
    """A breakage, the case that it is applied to, and the check that must find it."""

    case: str
    check: str
    do: Callable[[Edited], object]


def _change_first(**fields: object) -> Callable[[Edited], None]:
    def change(log: Edited) -> None:
        log.edit_records(log.data_batch(), lambda records: [replace(records[0], **fields), *records[1:]])

    return change


def _drop_surviving_record(log: Edited) -> None:
    log.edit_records(log.data_batch(), lambda records: records[1:])


def _shift_offset(log: Edited) -> None:
    gone = {record.offset for batch in log.batches() for record in batch.records()}
    batch = next(b for b in log.batches() if b.count and not b.is_control and b.records()[-1].offset < b.last_offset)
    last = batch.records()[-1]
    assert last.offset + 1 not in gone
    log.edit_records(batch, lambda records: [*records[:-1], replace(last, offset=last.offset + 1)])


def _bring_back_superseded(log: Edited) -> None:
    for now in log.batches():
        then = next((b for b in log.batches(log.before) if b.base_offset == now.base_offset), None)
        if now.count and then and not then.is_transactional and then.count > now.count:
            log.replace(now, rebuild_batch(then, then.records(), now.delete_horizon_ms))
            return
    raise AssertionError("nothing was superseded")


def _bring_back_before_tombstone(log: Edited) -> None:
    """Restore the value of a key that was removed together with its tombstone."""
    batch, tombstone = next(
        (b, r) for b in log.batches() if b.count > 1 for r in b.records() if r.key and r.value is None
    )
    log.edit_records(batch, lambda records: [r for r in records if r != tombstone])
    then, old = next((b, r) for b in log.batches(log.before) for r in b.records() if r.key == tombstone.key and r.value)
    now = next((b for b in log.batches() if b.base_offset == then.base_offset), None)
    if now is None:
        log.insert(rebuild_batch(then, [old], None), then.base_offset)
    else:
        kept = sorted([*now.records(), old], key=lambda record: record.offset)
        log.replace(now, rebuild_batch(then, kept, now.delete_horizon_ms))


def _drop_young_tombstone(log: Edited) -> None:
    batch = next(b for b in log.batches() if b.count > 1 and any(r.value is None and r.key for r in b.records()))
    young = next(record for record in batch.records() if record.value is None)
    log.edit_records(batch, lambda records: [record for record in records if record != young])


def _drop_marker(log: Edited) -> None:
    marker = next(b for b in log.batches() if b.is_control and b.count)
    log.replace(marker)


def _empty_marker(log: Edited) -> None:
    marker = next(b for b in log.batches() if b.is_control and b.count)
    log.replace(marker, encode_empty_batch(marker))


def _turn_abort_into_commit(log: Edited) -> None:
    marker = next(b for b in log.batches() if b.is_control and b.control_type() is ControlType.ABORT)
    (record,) = marker.records()
    commit = replace(record, key=b"\0\0\0\1")
    log.replace(marker, rebuild_batch(marker, [commit], marker.delete_horizon_ms))


def _aborted_batches(log: Edited) -> list[tuple[Batch, Batch]]:
    """Aborted data batches of BEFORE with records, and their markers."""
    found = []
    batches = log.batches(log.before)
    for index, batch in enumerate(batches):
        if batch.is_transactional and not batch.is_control and batch.count:
            marker = next((b for b in batches[index:] if b.is_control and b.producer_id == batch.producer_id), None)
            if marker and marker.control_type() is ControlType.ABORT:
                found.append((batch, marker))
    return found


def _bring_back_aborted(log: Edited) -> None:
    here = {batch.base_offset: batch for batch in log.batches()}
    batch = _aborted_batches(log)[0][0]
    if batch.base_offset in here:
        log.replace(here[batch.base_offset], batch.data)
    else:
        log.insert(batch.data, batch.base_offset)


def _first_with(log: Edited, suffix: str) -> Segment:
    return next(segment for segment in log.segments() if segment.read(suffix))


def _forget_aborted(log: Edited) -> None:
    _bring_back_aborted(log)
    for segment in log.segments():
        if segment.path(TRANSACTION_INDEX).exists():
            segment.path(TRANSACTION_INDEX).write_bytes(b"")


def _hide_committed(log: Edited) -> None:
    batches = log.batches()
    batch, marker = next(
        (b, m)
        for b in batches
        if b.is_transactional and not b.is_control and b.count
        for m in batches
        if m.is_control and m.producer_id == b.producer_id and m.base_offset > b.base_offset
    )
    segment = log.segment_of(marker.base_offset)
    entries = [
        *parse_transaction_index(segment.read(TRANSACTION_INDEX)),
        AbortedTransaction(batch.producer_id, batch.base_offset, marker.base_offset, marker.base_offset + 1),
    ]
    segment.path(TRANSACTION_INDEX).write_bytes(
        encode_transaction_index(sorted(entries, key=lambda entry: entry.last_offset))
    )


def _wrong_crc(log: Edited) -> None:
    batch = log.data_batch()
    log.replace(batch, batch.data[:17] + bytes([batch.data[17] ^ 1]) + batch.data[18:])


def _truncate_segment(log: Edited) -> None:
    segment = next(segment for segment in log.segments()[:-1] if segment.log_bytes() > 200)
    segment.path(LOG).write_bytes(segment.read(LOG)[:-20])


def _edit_offset_index(change: Callable[[list], list]) -> Callable[[Edited], None]:
    def edit(log: Edited) -> None:
        segment = next(s for s in log.segments() if len(s.read(OFFSET_INDEX)) >= 16 and s.log_bytes())
        entries = parse_offset_index(segment.read(OFFSET_INDEX), segment.base_offset)
        segment.path(OFFSET_INDEX).write_bytes(encode_offset_index(change(entries), segment.base_offset))

    return edit


def _wrong_time_index(log: Edited) -> None:
    segment = next(s for s in log.segments() if s.read(TIME_INDEX) and s.log_bytes())
    *rest, last = parse_time_index(segment.read(TIME_INDEX), segment.base_offset)
    changed = replace(last, timestamp=last.timestamp + 1)
    segment.path(TIME_INDEX).write_bytes(encode_time_index([*rest, changed], segment.base_offset))


def _touch_last_batch(log: Edited) -> None:
    batch = [b for b in log.batches() if not b.is_control and b.count][-1]
    log.edit_records(batch, lambda records: [*records[:-1], replace(records[-1], value=b"touched")])


def _lose_last_batch(log: Edited) -> None:
    log.replace(log.batches()[-1])


def _lose_end(log: Edited) -> None:
    _lose_active_segment(log)
    log.replace(log.batches()[-1])


def _lose_active_segment(log: Edited) -> None:
    for suffix in (LOG, OFFSET_INDEX, TIME_INDEX):
        log.segments()[-1].path(suffix).unlink(missing_ok=True)


def _lose_segment(log: Edited) -> None:
    segment = next(segment for segment in log.segments()[1:-1] if segment.log_bytes())
    for suffix in (LOG, OFFSET_INDEX, TIME_INDEX, TRANSACTION_INDEX, SNAPSHOT):
        segment.path(suffix).unlink(missing_ok=True)


def _rename_first_segment(log: Edited) -> None:
    first = log.segments()[0]
    moved = Segment(log.after, first.base_offset + 1)
    for suffix in (LOG, OFFSET_INDEX, TIME_INDEX):
        first.path(suffix).rename(moved.path(suffix))


def _swap_batches(log: Edited) -> None:
    segment = next(s for s in log.segments() if len(s.batches()) > 2)
    one, other, *rest = [batch.data for _, batch in segment.batches()]
    log.write(segment, b"".join([other, one, *rest]))


def _repeat_batch(log: Edited) -> None:
    batch = log.data_batch()
    log.replace(batch, batch.data, batch.data)


def _repeat_record(log: Edited) -> None:
    log.edit_records(log.data_batch(), lambda records: [records[0], *records])


def _change_leader_epoch(log: Edited) -> None:
    batch = log.data_batch()
    log.replace(batch, batch.data[:12] + b"\0\0\0\x09" + batch.data[16:])


def _change_producer(log: Edited) -> None:
    batch = next(b for b in log.batches() if b.producer_id >= 0 and b.count and not b.is_control)
    data = bytearray(batch.data)
    data[50] ^= 1
    log.replace(batch, sign_batch(bytes(data)))


def _recompress(log: Edited) -> None:
    there = {batch.data for batch in log.batches(log.before)}
    batch = next(b for b in log.batches() if b.data in there and b.count > 1 and b.codec == 0 and not b.is_control)
    attributes = {"producer_id": batch.producer_id, "producer_epoch": batch.producer_epoch}
    log.replace(
        batch,
        encode_batch(
            batch.records(),
            base_offset=batch.base_offset,
            last_offset=batch.last_offset,
            leader_epoch=batch.leader_epoch,
            codec=1,
            base_sequence=batch.base_sequence,
            transactional=batch.is_transactional,
            **attributes,
        ),
    )


def _forget_producer(log: Edited) -> None:
    last = {}
    for batch in log.batches():
        if batch.producer_id >= 0 and not batch.is_control:
            last[batch.producer_id] = batch
    log.replace(next(iter(last.values())))


def _change_horizon(log: Edited) -> None:
    batch = next(b for b in log.batches() if b.delete_horizon_ms is not None and b.count)
    log.replace(batch, rebuild_batch(batch, batch.records(), batch.delete_horizon_ms - log.retention_ms))


def _lose_epoch(log: Edited) -> None:
    path = log.after / "leader-epoch-checkpoint"
    version, count, *entries = path.read_text().splitlines()
    path.write_text("\n".join([version, str(int(count) - 1), *entries[:-1]]) + "\n")


def _lose_snapshot(log: Edited) -> None:
    segment = log.segments()[-1]
    segment.path(SNAPSHOT).unlink()


def _pad_segment(log: Edited) -> None:
    """Zeros, as they lie after the batches of a preallocated segment, but where no broker writes any more."""
    path = next(segment for segment in log.segments()[:-1] if segment.log_bytes()).path(LOG)
    path.write_bytes(path.read_bytes() + bytes(100))


def _hide_bytes_in_emptied_batch(log: Edited) -> None:
    then = {batch.base_offset: batch for batch in log.batches(log.before)}
    batch = next(b for b in log.batches() if not b.count and then[b.base_offset].count)
    data = batch.data + b"a value that is gone"
    log.replace(batch, sign_batch(data[:8] + struct.pack(">i", len(data) - 12) + data[12:]))


def _edit_transaction_index(change: Callable[[list], list]) -> Callable[[Edited], None]:
    def edit(log: Edited) -> None:
        segment = next(s for s in log.segments() if len(parse_transaction_index(s.read(TRANSACTION_INDEX))) > 1)
        entries = list(parse_transaction_index(segment.read(TRANSACTION_INDEX)))
        segment.path(TRANSACTION_INDEX).write_bytes(encode_transaction_index(change(entries)))

    return edit


def _raise_first_stable_offset(entries: list) -> list:
    """Make the first entry hide the later ones, with an offset that its own marker could have."""
    first, *rest = entries
    return [replace(first, last_stable_offset=rest[0].last_offset + 1), *rest]


def _change_entry_version(log: Edited) -> None:
    path = _first_with(log, TRANSACTION_INDEX).path(TRANSACTION_INDEX)
    path.write_bytes(b"\0\7" + path.read_bytes()[2:])


def _pad_transaction_index(log: Edited) -> None:
    path = _first_with(log, TRANSACTION_INDEX).path(TRANSACTION_INDEX)
    path.write_bytes(path.read_bytes() + bytes(5))


def _reverse_records(log: Edited) -> None:
    log.edit_records(log.cleaned_batches()[0], lambda records: records[::-1])


def _move_record_into_next_batch(log: Edited) -> None:
    """Move a record but keep its offset, which is then outside the range of its batch."""
    here, there = next(
        (one, other)
        for segment in log.segments()
        for (_, one), (_, other) in zip(segment.batches(), segment.batches()[1:], strict=False)
        if one in log.cleaned_batches() and other in log.cleaned_batches(1)
    )
    *kept, moved = here.records()
    log.replace(here, rebuild_batch(here, kept, here.delete_horizon_ms))
    log.replace(there, rebuild_batch(there, [moved, *there.records()], there.delete_horizon_ms))


def _move_batch_into_next_segment(log: Edited) -> None:
    one, other = next(
        pair for pair in zip(log.segments(), log.segments()[1:], strict=False) if all(s.log_bytes() for s in pair)
    )
    *kept, moved = [batch.data for _, batch in one.batches()]
    log.write(one, b"".join(kept))
    other.path(LOG).write_bytes(moved + other.read(LOG))  # no index can hold an offset below its segment


def _give_horizon_without_tombstone(log: Edited) -> None:
    batch = log.cleaned_batches()[0]
    log.replace(batch, rebuild_batch(batch, batch.records(), NOW_MS + log.retention_ms))


def _edit_cleaned_header(field: tuple[int, str], change: Callable[[int], int]) -> Callable[[Edited], None]:
    return lambda log: log.edit_header(log.cleaned_batches()[0], field, change)


def _change_base_sequence(log: Edited) -> None:
    batch = next(b for b in log.batches() if b.base_sequence >= 0 and b.count)
    log.edit_header(batch, _BASE_SEQUENCE, lambda sequence: sequence + 1)


def _end_transaction_of_batch(log: Edited) -> None:
    batch = next(b for b in log.batches() if b.is_transactional and not b.is_control and b.count)
    log.edit_header(batch, _ATTRIBUTES, lambda attributes: attributes & ~0x10)


def _change_coordinator_epoch(log: Edited) -> None:
    marker = next(b for b in log.batches() if b.is_control and b.count)
    (record,) = marker.records()
    changed = replace(record, value=record.value[:-1] + b"\x63")
    log.replace(marker, rebuild_batch(marker, [changed], marker.delete_horizon_ms))


def _split_batch(log: Edited) -> None:
    batch = log.cleaned_batches()[0]
    one, *rest = batch.records()
    left = replace(batch, last_offset_delta=one.offset - batch.base_offset)
    right = replace(batch, base_offset=one.offset + 1, last_offset_delta=batch.last_offset - one.offset - 1)
    log.replace(batch, rebuild_batch(left, [one], None), rebuild_batch(right, rest, None))


def _merge_batches(log: Edited) -> None:
    one, other = next(
        (one, other)
        for segment in log.segments()
        for (_, one), (_, other) in zip(segment.batches(), segment.batches()[1:], strict=False)
        if one.codec == other.codec and one.count and other.count and not one.is_control and not other.is_control
    )
    merged = replace(one, last_offset_delta=other.last_offset - one.base_offset)
    log.replace(other)
    log.replace(one, rebuild_batch(merged, [*one.records(), *other.records()], None))


def _swap_keys(log: Edited) -> None:
    def swap(records: list[Record]) -> list[Record]:
        one, other, *rest = records
        return [replace(one, key=other.key), replace(other, key=one.key), *rest]

    log.edit_records(log.data_batch(), swap)


def _swap_headers(log: Edited) -> None:
    batch = next(b for b in log.batches() if any(len(set(r.headers)) > 1 for r in b.records()))
    log.edit_records(batch, lambda records: [replace(r, headers=r.headers[::-1]) for r in records])


def _touch_segment(log: Edited) -> None:
    path = next(segment for segment in log.segments() if segment.log_bytes()).path(LOG)
    os.utime(path, ns=(0, path.stat().st_mtime_ns - 10**9))


def _wrong_time_index_offset(log: Edited) -> None:
    segment = next(s for s in log.segments()[:-1] if s.log_bytes() and len(s.batches()) > 1)
    *_, last = parse_time_index(segment.read(TIME_INDEX), segment.base_offset)
    changed = replace(last, offset=segment.batches()[0][1].last_offset)
    segment.path(TIME_INDEX).write_bytes(encode_time_index([changed], segment.base_offset))


def _skip_batch_by_index(log: Edited) -> None:
    """Point the first entry after the batch that it is about."""
    segment = next(s for s in log.segments() if len(s.read(OFFSET_INDEX)) >= 16 and s.log_bytes())
    entries = parse_offset_index(segment.read(OFFSET_INDEX), segment.base_offset)
    positions = [position for position, _ in segment.batches()]
    following = positions[positions.index(entries[0].position) + 1]
    changed = [replace(entries[0], position=following), *[entry for entry in entries[1:] if entry.position > following]]
    segment.path(OFFSET_INDEX).write_bytes(encode_offset_index(changed, segment.base_offset))


def _add_epoch(log: Edited) -> None:
    path = log.after / EPOCHS
    version, count, *entries = path.read_text().splitlines()
    last_epoch, last_offset = map(int, entries[-1].split())
    path.write_text("\n".join([version, str(int(count) + 1), *entries, f"{last_epoch + 1} {last_offset + 1}"]) + "\n")


def _invent_epochs(log: Edited) -> None:
    (log.before / EPOCHS).unlink(missing_ok=True)
    (log.after / EPOCHS).write_text("0\n1\n7 0\n")


def _invent_topic_id(log: Edited) -> None:
    (log.after / "partition.metadata").write_text(f"version: 0\ntopic_id: {'C' * 21}A")


def _edit_producers(**changes: Callable[[int], int]) -> Callable[[Edited], None]:
    def edit(log: Edited) -> None:
        for offset in reversed(list_snapshots(log.after)):
            path = Segment(log.after, offset).path(SNAPSHOT)
            entries = parse_snapshot(path.read_bytes())
            if entries:
                key, entry = next(iter(entries.items()))
                fields = {name: change(getattr(entry, name)) for name, change in changes.items()}
                path.write_bytes(encode_snapshot({**entries, key: replace(entry, **fields)}))
                return
        raise AssertionError("no snapshot has producers")

    return edit


def _invent_snapshot(log: Edited) -> None:
    path = next(Segment(log.after, offset).path(SNAPSHOT) for offset in list_snapshots(log.after))
    shutil.copy(path, Segment(log.after, log.segments()[0].base_offset + 1).path(SNAPSHOT))


def _add_partition(log: Edited) -> None:
    shutil.rmtree(log.before)


def _leave_replacement(log: Edited) -> None:
    (log.after / f"{0:020d}.log.cleaned").write_bytes(b"")


def _change_topic_id(log: Edited) -> None:
    for directory, letter in ((log.before, "B"), (log.after, "C")):
        (directory / "partition.metadata").write_text(f"version: 0\ntopic_id: {letter * 21}A")


def _lose_checkpoint(log: Edited) -> None:
    write_checkpoint(log.before_dir / CLEANER, {**read_checkpoint(log.before_dir / CLEANER), log.name: 700})
    path = log.after_dir / CLEANER
    write_checkpoint(path, {name: at for name, at in read_checkpoint(path).items() if name != log.name})


def _remove_partition(log: Edited) -> None:
    for file in log.after.iterdir():
        file.unlink()
    log.after.rmdir()


def _move_log_start(log: Edited) -> None:
    write_checkpoint(log.after_dir / "log-start-offset-checkpoint", {log.name: 100})


BREAKAGES = {
    "a living record is gone": Breakage("plain", "lost", _drop_surviving_record),
    "the latest value of a key is gone": Breakage("plain", "latest_committed", _drop_surviving_record),
    "a superseded record is back": Breakage("plain", "superseded", _bring_back_superseded),
    "a deleted key is back": Breakage("tombstones", "latest_committed", _bring_back_before_tombstone),
    "a deleted key is back for readers of everything": Breakage(
        "tombstones", "latest_uncommitted", _bring_back_before_tombstone
    ),
    "a young tombstone is gone": Breakage("tombstones", "tombstones", _drop_young_tombstone),
    "a marker is gone": Breakage("transactions", "markers", _drop_marker),
    "a marker lost its record": Breakage("transactions", "markers", _empty_marker),
    "an abort became a commit": Breakage("transactions", "markers", _turn_abort_into_commit),
    "an aborted record is back": Breakage("transactions", "aborted", _bring_back_aborted),
    "an aborted record is back and visible": Breakage("transactions", "transaction_index", _forget_aborted),
    "a committed record is hidden": Breakage("transactions", "transaction_index", _hide_committed),
    "a value": Breakage("plain", "records", _change_first(value=b"other")),
    "a value became a tombstone": Breakage("plain", "latest_committed", _change_first(value=None)),
    "a timestamp": Breakage("plain", "records", _change_first(timestamp=1)),
    "a header": Breakage("headers", "records", _change_first(headers=(RecordHeader(b"h", None),))),
    "a header's null became empty": Breakage("headers", "records", _change_first(headers=(RecordHeader(b"", b""),))),
    "a key": Breakage("plain", "records", _change_first(key=b"another")),
    "a key became null": Breakage("plain", "records", _change_first(key=None)),
    "an offset": Breakage("plain", "records", _shift_offset),
    "a producer id": Breakage("idempotent", "batches", _change_producer),
    "a leader epoch of a batch": Breakage("plain", "batches", _change_leader_epoch),
    "a codec": Breakage("plain", "batches", _recompress),
    "a checksum": Breakage("plain", "crc", _wrong_crc),
    "a segment is cut off": Breakage("plain", "crc", _truncate_segment),
    "an entry of the offset index": Breakage(
        "dense-index",
        "indexes",
        _edit_offset_index(lambda entries: [replace(entries[0], position=entries[0].position + 1), *entries[1:]]),
    ),
    "the order of the offset index": Breakage(
        "dense-index", "indexes", _edit_offset_index(lambda entries: [entries[1], entries[0], *entries[2:]])
    ),
    "an entry of the time index": Breakage("plain", "indexes", _wrong_time_index),
    "a batch above the range": Breakage("open-transaction", "untouched", _touch_last_batch),
    "a batch above the range is gone": Breakage("open-transaction", "untouched", _lose_last_batch),
    "the log ends earlier": Breakage("plain", "log_end", _lose_end),
    "the active segment is gone": Breakage("plain", "untouched", _lose_active_segment),
    "a segment is gone": Breakage("plain", "lost", _lose_segment),
    "the first segment has another name": Breakage("plain", "segments", _rename_first_segment),
    "two batches changed places": Breakage("plain", "order", _swap_batches),
    "a batch is there twice": Breakage("plain", "order", _repeat_batch),
    "an offset is there twice": Breakage("plain", "order", _repeat_record),
    "the last batch of a producer is gone": Breakage("idempotent", "producers", _forget_producer),
    "a delete horizon is too early": Breakage("tombstones", "horizons", _change_horizon),
    "a leader epoch is gone": Breakage("epochs", "epochs", _lose_epoch),
    "a producer snapshot is gone": Breakage("idempotent", "snapshots", _lose_snapshot),
    "a producer snapshot says something else": Breakage(
        "idempotent", "snapshots", _edit_producers(last_offset=lambda offset: offset + 1)
    ),
    "a replacement was not finished": Breakage("plain", "segments", _leave_replacement),
    "the topic id": Breakage("plain", "metadata", _change_topic_id),
    "the cleaner checkpoint is above what could be cleaned": Breakage(
        "open-transaction", "checkpoint", lambda log: log.claim(1004)
    ),
    "the cleaner checkpoint is above what was cleaned": Breakage(
        "small-map", "superseded", lambda log: log.claim(2000)
    ),
    "the cleaner checkpoint is gone": Breakage("plain", "checkpoint", _lose_checkpoint),
    "the log start offset": Breakage("plain", "log_start", _move_log_start),
    "a partition is gone": Breakage("plain", "partition", _remove_partition),
    "a partition is new": Breakage("plain", "partition", _add_partition),
    "an aborted transaction hides those after it": Breakage(
        "transactions",
        "transaction_index",
        _edit_transaction_index(lambda entries: [replace(entries[0], last_stable_offset=2**40), *entries[1:]]),
    ),
    "an aborted transaction hides the next one": Breakage(
        "transactions", "transaction_index", _edit_transaction_index(_raise_first_stable_offset)
    ),
    "the only aborted transaction will hide those to come": Breakage(
        "open-transaction",
        "transaction_index",
        _edit_transaction_index(lambda entries: [*entries[:-1], replace(entries[-1], last_stable_offset=2**40)]),
    ),
    "the first offset of an aborted transaction": Breakage(
        "transactions",
        "transaction_index",
        _edit_transaction_index(lambda entries: [replace(entries[0], first_offset=0), *entries[1:]]),
    ),
    "the order of aborted transactions": Breakage(
        "transactions", "transaction_index", _edit_transaction_index(lambda entries: entries[::-1])
    ),
    "the version of an aborted transaction": Breakage("transactions", "transaction_index", _change_entry_version),
    "a transaction index with half an entry": Breakage("transactions", "transaction_index", _pad_transaction_index),
    "the records of a batch are in descending order": Breakage("plain", "order", _reverse_records),
    "a record is in the next batch": Breakage("plain", "batches", _move_record_into_next_batch),
    "a batch is in the next segment": Breakage("plain", "order", _move_batch_into_next_segment),
    "a batch became two": Breakage("plain", "batches", _split_batch),
    "two batches became one": Breakage("plain", "batches", _merge_batches),
    "a delete horizon without a tombstone": Breakage("plain", "horizons", _give_horizon_without_tombstone),
    "an unused attribute bit": Breakage(
        "plain", "batches", _edit_cleaned_header(_ATTRIBUTES, lambda attributes: attributes | 0x100)
    ),
    "the largest timestamp of a batch": Breakage(
        "plain", "batches", _edit_cleaned_header(_MAX_TIMESTAMP, lambda timestamp: timestamp - 1)
    ),
    "the timestamp type of a batch": Breakage(
        "plain", "batches", _edit_cleaned_header(_ATTRIBUTES, lambda attributes: attributes | 0x08)
    ),
    "the last offset of a batch": Breakage(
        "plain", "batches", _edit_cleaned_header(_LAST_OFFSET_DELTA, lambda delta: delta - 1)
    ),
    "zeros after the batches of a segment": Breakage("plain", "indexes", _pad_segment),
    "bytes after the header of an emptied batch": Breakage("transactions", "batches", _hide_bytes_in_emptied_batch),
    "a base sequence": Breakage("idempotent", "batches", _change_base_sequence),
    "the transactional bit": Breakage("transactions", "batches", _end_transaction_of_batch),
    "the coordinator epoch of a marker": Breakage("transactions", "records", _change_coordinator_epoch),
    "two records changed keys": Breakage("plain", "records", _swap_keys),
    "the headers of a record changed places": Breakage("headers", "records", _swap_headers),
    "the modification time of a segment without timestamps": Breakage("legacy-v0", "modified", _touch_segment),
    "the offset of a time index entry": Breakage("plain", "indexes", _wrong_time_index_offset),
    "an offset index entry that skips a batch": Breakage("dense-index", "indexes", _skip_batch_by_index),
    "a leader epoch is new": Breakage("epochs", "epochs", _add_epoch),
    "leader epochs that BEFORE does not have": Breakage("plain", "epochs", _invent_epochs),
    "a topic id that BEFORE does not have": Breakage("plain", "metadata", _invent_topic_id),
    "the epoch of a producer in a snapshot": Breakage(
        "idempotent", "snapshots", _edit_producers(epoch=lambda epoch: epoch + 1)
    ),
    "the sequence of a producer in a snapshot": Breakage(
        "idempotent", "snapshots", _edit_producers(last_sequence=lambda sequence: sequence - 1)
    ),
    "the coordinator epoch of a producer in a snapshot": Breakage(
        "transactions", "snapshots", _edit_producers(coordinator_epoch=lambda epoch: epoch + 1)
    ),
    "a producer snapshot is new": Breakage("idempotent", "snapshots", _invent_snapshot),
    "the cleaner checkpoint is below what was cleaned": Breakage("plain", "lost", lambda log: log.claim(1)),
}

"""Checks of the indexes, snapshots and checkpoints of two logs, and of the segments that no cleaning changed.

Invariant: memory use is limited to two chunks and the headers of one segment.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from sediment.segment_io.errors import SedimentError
from sediment.segment_io.format.layout import INT64_MAX
from sediment.segment_io.format.names import (
    CLEANED_SUFFIX,
    LEADER_EPOCH_FILE,
    PARTITION_METADATA_FILE,
    SWAP_SUFFIX,
    SegmentFileKind,
    segment_file_name,
)
from sediment.segment_io.format.transaction_index import (
    AbortedTxn,
    encode_transaction_index,
    parse_transaction_index,
)
from sediment.segment_io.fs import Fs, open_to_read
from sediment.segment_io.partition.checkpoint_files import (
    PartitionCheckpoints,
    read_leader_epochs,
    read_partition_metadata,
)
from sediment.segment_io.partition.index_mismatches import check_indexes
from sediment.segment_io.partition.listing import LogListing, list_log
from sediment.segment_io.partition.live_segments import live_segments
from sediment.segment_io.partition.log_view import open_view
from sediment.segment_io.partition.producer_snapshots import parse_snapshot
from sediment.segment_io.partition.sources import Source
from sediment.verification.report import Difference

_CHUNK_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class FilesToCheck:
    """Files to check for one pair: the small files, and the logs of the `untouched` segments, by base offset.

    `corrupt` are base offsets of segments of AFTER with unreadable batches; their indexes are not checked.  Producers
    that were idle since `idle_since_ms` can be expired.  If a broker has appended to the active segment, `appended_to`
    is the segment's base offset; the broker also writes and removes producer snapshots above it.
    """

    before: Source
    after: Source
    untouched: tuple[int, ...] = ()
    corrupt: frozenset[int] = frozenset()
    first_open: int | None = None
    idle_since_ms: int = -INT64_MAX
    appended_to: int | None = None


def check_files(files: FilesToCheck, fs: Fs) -> Iterator[Difference]:
    for base_offset in files.untouched:
        yield from _same_bytes(files.before, files.after, base_offset)
    yield from _leftovers(files.after, fs)
    yield from _indexes(files, fs)
    yield from _transaction_indexes(files, fs)
    yield from _epochs(files, fs)
    yield from _metadata(files, fs)
    yield from _snapshots(files, fs)


def _same_bytes(before: Source, after: Source, base_offset: int) -> Iterator[Difference]:
    name = segment_file_name(base_offset, SegmentFileKind.LOG)
    position = first_difference(before.directory / name, after.directory / name)
    if position is not None:
        yield Difference(
            "untouched",
            base_offset,
            f"segment {base_offset}, which is above the cleaned range, differs from BEFORE at byte {position}",
        )


def first_difference(left: Path, right: Path) -> int | None:
    with open(open_to_read(left), "rb") as one, open(open_to_read(right), "rb") as other:
        if os.path.sameopenfile(one.fileno(), other.fileno()):
            return None  # both paths are hard links to the same file, which `--keep-before` made
        position = 0
        while True:
            ours, theirs = one.read(_CHUNK_BYTES), other.read(_CHUNK_BYTES)
            if ours != theirs:
                common = min(len(ours), len(theirs))
                same = next((at for at in range(common) if ours[at] != theirs[at]), common)
                return position + same
            if not ours:
                return None
            position += len(ours)


def _leftovers(after: Source, fs: Fs) -> Iterator[Difference]:
    for leftover in list_log(after.partition, after.directory, fs).leftovers:
        if leftover.parsed.state in (CLEANED_SUFFIX, SWAP_SUFFIX):
            yield Difference(
                "segments", leftover.parsed.base_offset, f"{leftover.name}: a replacement was not finished"
            )


def _indexes(files: FilesToCheck, fs: Fs) -> Iterator[Difference]:
    wrong = [found for found in check_indexes(files.after, fs) if found.problems and found.segment not in files.corrupt]
    # BEFORE is read only if AFTER has a file to compare.
    known = (
        {(found.file, found.problem) for found in check_indexes(files.before, fs) if found.problems} if wrong else ()
    )
    for found in wrong:
        if (found.file, found.problem) not in known:
            more = f" ({found.problems} problems)" if found.problems > 1 else ""
            yield Difference("indexes", found.segment, f"{found.file}: {found.problem}{more}")


def transaction_entries(source: Source, fs: Fs) -> list[AbortedTxn]:
    """Return the entries of all transaction indexes; none if one is unreadable, which another check reports."""
    entries: list[AbortedTxn] = []
    for segment in live_segments(source, fs):
        try:
            content = fs.read_bytes(segment.path(source.directory, SegmentFileKind.TRANSACTION_INDEX))
            entries += parse_transaction_index(content).transactions()
        except FileNotFoundError:
            continue
        except SedimentError:
            return []
    return entries


def _transaction_indexes(files: FilesToCheck, fs: Fs) -> Iterator[Difference]:
    before, after = (_aborted(source, fs) for source in (files.before, files.after))
    known = {
        (entry.producer_id, entry.last_offset): entry
        for content in before.values()
        for entry in parse_transaction_index(content).transactions()
    }
    hides_nothing_below = [] if files.first_open is None else [files.first_open]
    for base, content in reversed(after.items()):
        entries = parse_transaction_index(content).transactions()
        if content != before.get(base):
            yield from _entry_bytes(base, content, entries)
        for entry in reversed(entries):
            yield from _entry(entry, known.get((entry.producer_id, entry.last_offset)), hides_nothing_below)
            hides_nothing_below.append(entry.first_offset)


def _aborted(source: Source, fs: Fs) -> dict[int, bytes]:
    found = {}
    for segment in list_log(source.partition, source.directory, fs).segments:
        path = source.directory / segment_file_name(segment.base_offset, SegmentFileKind.TRANSACTION_INDEX)
        try:
            content = fs.read_bytes(path)
            parse_transaction_index(content)
        except (FileNotFoundError, SedimentError):
            continue  # an unreadable file is reported by the check of indexes
        found[segment.base_offset] = content
    return found


def _entry_bytes(base: int, content: bytes, entries: Sequence[AbortedTxn]) -> Iterator[Difference]:
    name = segment_file_name(base, SegmentFileKind.TRANSACTION_INDEX)
    if content != encode_transaction_index(entries):
        yield Difference(
            "transaction_index", base, f"the bytes of {name} are not the encoding of its {len(entries)} entries"
        )
    if any(one.last_offset >= other.last_offset for one, other in pairwise(entries)):
        yield Difference("transaction_index", base, f"{name}: the last offsets of its entries do not ascend")


def _entry(entry: AbortedTxn, known: AbortedTxn | None, later_offsets: Sequence[int]) -> Iterator[Difference]:
    what = f"the aborted transaction of producer {entry.producer_id} that ends at offset {entry.last_offset}"
    if known is not None:
        if entry != known:
            yield Difference(
                "transaction_index",
                entry.last_offset,
                f"{what} has first offset {entry.first_offset} and last stable offset {entry.last_stable_offset}, but "
                f"in BEFORE {known.first_offset} and {known.last_stable_offset}",
            )
        return
    limit = min([entry.last_offset + 1, *later_offsets])
    if entry.last_stable_offset > limit:
        yield Difference(
            "transaction_index",
            entry.last_offset,
            f"{what} has last stable offset {entry.last_stable_offset}, above {limit}, so readers do not reach later "
            "entries",
        )


def _epochs(files: FilesToCheck, fs: Fs) -> Iterator[Difference]:
    before = read_leader_epochs(fs, files.before.directory / LEADER_EPOCH_FILE) or ()
    try:
        after = read_leader_epochs(fs, files.after.directory / LEADER_EPOCH_FILE)
    except SedimentError as error:
        yield Difference("epochs", None, str(error))
        return
    if after is None:
        if before:
            yield Difference("epochs", None, f"{LEADER_EPOCH_FILE} is gone")
        return
    for entry in sorted(set(before) ^ set(after), key=lambda entry: entry.start_offset):
        where = "missing" if entry in before else "not in BEFORE"
        yield Difference(
            "epochs",
            entry.start_offset,
            f"leader epoch {entry.epoch}, which starts at offset {entry.start_offset}, is {where}",
        )


def _metadata(files: FilesToCheck, fs: Fs) -> Iterator[Difference]:
    before = read_partition_metadata(fs, files.before.directory / PARTITION_METADATA_FILE)
    try:
        after = read_partition_metadata(fs, files.after.directory / PARTITION_METADATA_FILE)
    except SedimentError as error:
        yield Difference("metadata", None, str(error))
        return
    if after != before:
        yield Difference("metadata", None, f"the topic id is {after or 'gone'}, but in BEFORE {before or 'unknown'}")


def _snapshots(files: FilesToCheck, fs: Fs) -> Iterator[Difference]:
    ours = list_log(files.after.partition, files.after.directory, fs)
    theirs = list_log(files.before.partition, files.before.directory, fs)
    bases = {segment.base_offset for segment in ours.segments}
    removed = {segment.base_offset for segment in theirs.segments} - bases
    rolled = bases - {segment.base_offset for segment in theirs.segments}
    last = INT64_MAX if files.appended_to is None else files.appended_to
    for offset in theirs.snapshots:
        if offset <= last and offset not in ours.snapshots and offset not in removed:
            yield Difference("snapshots", offset, f"the producer snapshot at offset {offset} is missing")
    for offset in ours.snapshots:
        if offset in theirs.snapshots:
            yield from _same_snapshot(files, offset, fs)
        elif offset in rolled:
            yield from _new_snapshot(files, theirs, offset, fs)
        elif offset <= last:
            yield Difference("snapshots", offset, f"the producer snapshot at offset {offset} is not in BEFORE")


def _new_snapshot(files: FilesToCheck, before: LogListing, offset: int, fs: Fs) -> Iterator[Difference]:
    name = segment_file_name(offset, SegmentFileKind.SNAPSHOT)
    try:
        found = {entry.producer_id: entry for entry in parse_snapshot(fs.read_bytes(files.after.directory / name))}
        view = open_view(
            before, PartitionCheckpoints(clean_shutdown=True), fs, now_ms=0, producer_id_expiration_ms=INT64_MAX
        )
    except SedimentError:
        return  # other checks report the snapshot or the batch
    if view.log_end_offset != offset:
        return
    known = {entry.producer_id: entry for entry in view.producers}
    idle = {key for key, entry in known.items() if entry.timestamp_ms <= files.idle_since_ms and key not in found}
    changed = sorted(key for key in known.keys() - idle | found.keys() if known.get(key) != found.get(key))
    if changed:
        yield Difference(
            "snapshots", offset, f"{name}: {len(changed)} producers differ from the log; the first is {changed[0]}"
        )


def _same_snapshot(files: FilesToCheck, offset: int, fs: Fs) -> Iterator[Difference]:
    name = segment_file_name(offset, SegmentFileKind.SNAPSHOT)
    before, after = (fs.read_bytes(source.directory / name) for source in (files.before, files.after))
    if before == after:
        return
    try:
        entries = {
            entry.producer_id: entry for entry in parse_snapshot(before, path=str(files.before.directory / name))
        }
        found = {entry.producer_id: entry for entry in parse_snapshot(after, path=str(files.after.directory / name))}
    except SedimentError as error:
        yield Difference("snapshots", offset, str(error))
        return
    changed = sorted(key for key in entries.keys() | found.keys() if entries.get(key) != found.get(key))
    if changed:
        yield Difference(
            "snapshots", offset, f"{name}: {len(changed)} producers differ from BEFORE; the first is {changed[0]}"
        )

"""Records of a log that are gone, as its files and its broker's checkpoints show, with what the operator can do.

    log-end    the log ends below the high watermark or below the recovery point, or a load cuts off readable batches
    hole       a segment begins above the end of the segment before it, although the log was never compacted

Retention and DeleteRecords remove records only at the log start, and a truncation only at the log end, so in a log that
was never compacted each segment begins at the end of the segment before it. Compaction and `sediment erase` leave
holes, though. Whether a hole is a loss is decided as follows; what cannot be decided is a warning:

    the topic is compacted                                            no loss, unless an index is there without its log
    an index is there without its log                                 a loss
    cleanup.policy is stated, and nothing shows an earlier cleaning   a loss
    anything else                                                     a warning; none if something shows a cleaning

An earlier cleaning shows in the cleaner checkpoint, and in batches with fewer records than offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from sediment.segment_io.errors import CorruptBatchError, UnsupportedDataError
from sediment.segment_io.format.layout import MAGIC_V2
from sediment.segment_io.format.names import (
    INDEX_KINDS,
    SegmentFileKind,
    SegmentFileName,
    parse_segment_file,
    segment_file_name,
)
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.listing import LogListing
from sediment.segment_io.partition.segment_end import find_segment_end

LOG_END = "log-end"
HOLE = "hole"

_COLUMNS = ("position", "base_offset", "last_offset", "record_count", "magic")


@dataclass(frozen=True, slots=True)
class MissingRecords:
    kind: str
    first_offset: int
    last_offset: int
    what: str
    advice: str

    def __str__(self) -> str:
        return f"{self.what}; {self.advice}"


@dataclass(frozen=True, slots=True)
class LogLosses:
    missing: tuple[MissingRecords, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SegmentEnd:
    base_offset: int
    next_offset: int


@dataclass(frozen=True, slots=True)
class LogCut:
    """The end of a log that a load cuts off, as a broker's start would.

    The log then ends at `log_end_offset`, in the segment file `name`, because of `stop`, a clause. `good_batches` are
    the readable batches after that point in this file, the last of them up to `last_offset`, or -1. `removed` are the
    later segment files, with `removed_bytes` in all. Everything that is cut off ends at `next_offset`, as far as batch
    headers and file names show. If later segments stay, so that only the file is cut, the next of them begins at
    `following_offset`.
    """

    name: str
    log_end_offset: int
    stop: str
    good_batches: int
    last_offset: int
    removed: tuple[str, ...]
    removed_bytes: int
    next_offset: int
    following_offset: int | None = None

    @property
    def loses_batches(self) -> bool:
        return self.good_batches > 0 or self.removed_bytes > 0


@dataclass(frozen=True, slots=True)
class KnownOfLog:
    """`compacts` is None if cleanup.policy is not stated.

    `other_nodes` have the topic's other replicas; None if that is not known. `high_watermark`, `recovery_point` and
    `first_dirty` are entries of checkpoint files, or None.
    """

    compacts: bool | None
    other_nodes: tuple[int, ...] | None
    high_watermark: int | None
    recovery_point: int | None
    first_dirty: int | None


def orphans_of(names: Iterable[str]) -> dict[int, str]:
    """Return the indexes without a log among the names of a partition's files, by base offset.

    An index is left out if its log still exists under another suffix, because a deletion or a replacement was then
    interrupted.
    """
    parsed = [(name, found) for name, found in ((name, parse_segment_file(name)) for name in names) if found]
    with_log = {found.base_offset for _, found in parsed if found.kind is SegmentFileKind.LOG}
    return {
        found.base_offset: name
        for name, found in sorted(parsed, reverse=True)
        if found.kind in INDEX_KINDS and not found.state and found.base_offset not in with_log
    }


def missing_at_end(
    ends: Sequence[SegmentEnd], known: KnownOfLog, orphans: Mapping[int, str], cuts: Sequence[LogCut] = ()
) -> MissingRecords | None:
    if not ends:
        return None
    log_end = ends[-1].next_offset
    reached, causes = log_end, []
    for cut in cuts:
        if cut.log_end_offset == log_end and cut.loses_batches:
            reached = max(reached, cut.next_offset)
            causes.append(f"a start cuts the log off at offset {log_end} ({cut.stop}), with {_cut_off(cut)}")
    if known.high_watermark is not None and known.high_watermark > log_end:
        reached = max(reached, known.high_watermark)
        causes.append(f"the broker had written the high watermark {known.high_watermark}")
    if known.recovery_point is not None and known.recovery_point > log_end:
        reached = max(reached, known.recovery_point)
        causes.append(f"the broker had flushed the log up to offset {known.recovery_point}")
    later = [base for base in orphans if base > log_end]
    if later:
        reached = max(reached, *later)
        causes.append(f"{orphans[min(later)]} is there without its log")
    if reached <= log_end:
        return None
    what = (
        f"offsets {log_end} to {reached - 1} ({_offsets(reached - log_end)}) are missing at the end of the log: "
        f"{', and '.join(causes)}"
    )
    return MissingRecords(LOG_END, log_end, reached - 1, what, _let_another_lead(known.other_nodes))


def missing_after_cut(cut: LogCut, known: KnownOfLog) -> MissingRecords | None:
    end = SegmentEnd(cut.log_end_offset, cut.log_end_offset)
    if cut.following_offset is None:
        return missing_at_end([end], known, {}, [cut])
    file = parse_segment_file(cut.name)
    assert file is not None
    segments = [replace(end, base_offset=file.base_offset), SegmentEnd(cut.following_offset, cut.following_offset)]
    holes, _ = missing_between(segments, known, {}, lambda _: False, [cut])
    # Without a hole, the batches that are cut off have offsets that are in the log twice.
    return next(iter(holes), None) or missing_at_end(
        [end], replace(known, high_watermark=None, recovery_point=None), {}, [cut]
    )


def doubtful_cut(cut: LogCut, known: KnownOfLog) -> str | None:
    if cut.loses_batches or known.high_watermark is not None or known.recovery_point is not None:
        return None
    return (
        f"a start cuts {cut.name} off at offset {cut.log_end_offset} ({cut.stop}), and no checkpoint says whether the "
        "batch there was acknowledged; compare the log with the one that it was copied from"
    )


def missing_between(
    ends: Sequence[SegmentEnd],
    known: KnownOfLog,
    orphans: Mapping[int, str],
    was_cleaned: Callable[[int], bool],
    cuts: Sequence[LogCut] = (),
) -> tuple[tuple[MissingRecords, ...], tuple[str, ...]]:
    """`was_cleaned` is True if records were removed from the segment with this base offset; it may read the segment."""
    lost, warnings = [], []
    for before, after in pairwise(ends):
        first, following = before.next_offset, after.base_offset
        if following <= first:
            continue
        what = (
            f"offsets {first} to {following - 1} ({_offsets(following - first)}) are missing between the segments "
            f"{before.base_offset} and {following}"
        )
        cut = next((cut for cut in cuts if parse_segment_file(cut.name) == _log_of(before)), None)
        if cut is not None:
            what += f", because a start cuts segment {before.base_offset} off at offset {first} ({cut.stop})"
            lost.append(MissingRecords(HOLE, first, following - 1, what, _let_another_lead(known.other_nodes)))
            continue
        orphan = next((name for base, name in sorted(orphans.items()) if first <= base < following), None)
        if known.compacts and orphan is None:
            continue
        why = _why_undecided(before, after, known, was_cleaned) if orphan is None or known.compacts else None
        if why == "":
            continue
        if orphan is not None:
            what += f", and {orphan} is there without its log"
        if why is not None:
            warnings.append(f"{what}; {why}, these records are lost")
        else:
            what += ", so at least one segment of the log is lost"
            lost.append(MissingRecords(HOLE, first, following - 1, what, _find_segment(known.other_nodes)))
    return tuple(lost), tuple(warnings)


def _log_of(segment: SegmentEnd) -> SegmentFileName:
    return SegmentFileName(segment.base_offset, SegmentFileKind.LOG, "")


def _why_undecided(
    before: SegmentEnd, after: SegmentEnd, known: KnownOfLog, was_cleaned: Callable[[int], bool]
) -> str | None:
    """Return the condition under which a hole is a loss; "" if it is certainly none, None if it is certainly one."""
    if known.compacts:
        return "unless compaction removed them"
    is_listed = known.first_dirty is not None and known.first_dirty > before.next_offset
    is_cleaned = is_listed or was_cleaned(before.base_offset) or was_cleaned(after.base_offset)
    if known.compacts is None:
        return "" if is_cleaned else "if the topic was never compacted"
    return "unless the log was compacted earlier, or records were erased" if is_cleaned else None


def repeated_between(ends: Sequence[SegmentEnd]) -> tuple[str, ...]:
    return tuple(
        f"offsets {after.base_offset} to {before.next_offset - 1} are in segment {before.base_offset} and again in "
        f"segment {after.base_offset}; {TWICE}"
        for before, after in pairwise(ends)
        if after.base_offset < before.next_offset
    )


TWICE = (
    "a leader may have written them twice (KAFKA-19407), and no follower can copy such a log; look at both batches "
    "with `sediment dump --what batches`, and copy the partition again from a replica that has each offset once"
)


def losses_in_files(listing: LogListing, known: KnownOfLog, fs: Fs, *, most_bytes_read: int) -> LogLosses:
    """Offsets that occur twice inside a segment are found only in a log of at most `most_bytes_read`."""
    path = listing.path
    ends = [SegmentEnd(segment.base_offset, find_segment_end(path, segment, fs)[0]) for segment in listing.segments]
    orphans = orphans_of(fs.file_names(path))
    holes, warnings = missing_between(ends, known, orphans, partial(records_were_removed, path, fs=fs))
    end = missing_at_end(ends, known, orphans)
    repeated = [*repeated_between(ends)]
    if listing.log_bytes() <= most_bytes_read:
        found = (_repeated_in(path, segment.base_offset, fs) for segment in listing.segments)
        repeated = [*filter(None, found), *repeated]
    return LogLosses((*holes, *(() if end is None else (end,))), (*warnings, *repeated))


def repeated_in_segment(name: str, position: int, first_offset: int, next_offset: int, batches: int) -> str:
    more = f", and {batches - 1} more batch{'es' if batches > 2 else ''} like it" if batches > 1 else ""
    return (
        f"{name} has offsets twice: its batch at position {position} begins at offset {first_offset}, although the "
        f"batches before it end at {next_offset}{more}; {TWICE}"
    )


def records_were_removed(directory: Path, base_offset: int, fs: Fs) -> bool:
    """Return True if the batches of a segment show that a cleaning or an erasure removed records.

    Such a batch begins above the end of the batch before it, or has fewer records than offsets.
    """
    return any(
        # The base offset and the number of records of a legacy wrapper are not in its header.
        batch.magic >= MAGIC_V2
        and (batch.first_offset > batch.expected or batch.records < batch.last_offset - batch.first_offset + 1)
        for batch in _batches(directory, base_offset, fs)
    )


def _repeated_in(directory: Path, base_offset: int, fs: Fs) -> str | None:
    repeated = [batch for batch in _batches(directory, base_offset, fs) if batch.first_offset < batch.expected]
    if not repeated:
        return None
    first = repeated[0]
    name = segment_file_name(base_offset, SegmentFileKind.LOG)
    return repeated_in_segment(name, first.position, first.first_offset, first.expected, len(repeated))


class _Batch(NamedTuple):
    position: int
    first_offset: int
    last_offset: int
    records: int
    magic: int
    expected: int
    """The offset after the batch before it; the base offset for the first batch of a segment."""


def _batches(directory: Path, base_offset: int, fs: Fs) -> Iterator[_Batch]:
    # Imported late, because this loads compiled kernels, which a log without holes does not need.
    from sediment.segment_io.segment.reader import HeaderScan

    log = directory / segment_file_name(base_offset, SegmentFileKind.LOG)
    entry = fs.entry(log)
    expected = base_offset
    with suppress(CorruptBatchError, UnsupportedDataError):
        for rows in HeaderScan(log, 0, size_bytes=entry.size_bytes, fs=fs) if entry and entry.size_bytes else ():
            columns = (rows[name].tolist() for name in _COLUMNS)
            for position, first, last, records, magic in zip(*columns, strict=True):
                yield _Batch(position, first, last, records, magic, expected)
                expected = last + 1


def _cut_off(cut: LogCut) -> str:
    parts = []
    if cut.good_batches:
        parts.append(f"{cut.good_batches} readable batch{'es' if cut.good_batches > 1 else ''} after it")
    if cut.removed:
        parts.append(f"{len(cut.removed)} later segment{'s' if len(cut.removed) > 1 else ''}")
    return " and ".join(parts)


def _offsets(count: int) -> str:
    return f"{count} offset{'s' if count > 1 else ''}"


def _let_another_lead(other_nodes: tuple[int, ...] | None) -> str:
    if other_nodes == ():
        return "the partition has no other replica, so restore the partition from a backup, or accept the loss"
    where = f"the replica on {_nodes(other_nodes)}" if other_nodes else "another replica, if there is one,"
    return (
        f"{where} may have them: let that replica lead the partition before this broker starts, because a leader that "
        "lacks them makes the others drop them too"
    )


def _find_segment(other_nodes: tuple[int, ...] | None) -> str:
    find = "look for it in lost+found and in a backup, and put it back before a broker starts"
    if other_nodes == ():
        return find
    where = f"from {_nodes(other_nodes)}" if other_nodes else "from another replica, if there is one"
    return f"{find}; or move the folder away while the broker is stopped, so that it copies the partition {where}"


def _nodes(nodes: tuple[int, ...] | None) -> str:
    return f"node {' or '.join(map(str, nodes or ()))}"

"""Completion or undoing of interrupted replacements and deletions in a partition directory, as at a broker's start.

Kafka's loader decides by file names alone (kafka-log 05 §2); the docstring of `swap` describes its rules.

    pass 1    `.deleted`, `.part` and `.cleaned` files are deleted; so is each `.swap` at or above the lowest `.cleaned`
    pass 2    each file whose offset a complete replacement covers is deleted, even a snapshot
    pass 3    `.swap` files get their final names
    pass 4    orphan indexes are deleted (`_is_orphan`)

Invariants of `finish_interrupted`: if every new segment is whole, the result is the same as that of Kafka's loader. A
new segment that is not whole may replace a whole old segment only if the caller knows that a restore wrote the new
segment.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from sediment.engine.directory.loading.replacements import NewSegment, OldSegments, index_mismatch, read_new_segment
from sediment.engine.directory.repair import Repair
from sediment.engine.directory.swap import is_part_file
from sediment.segment_io.errors import (
    CorruptBatchError,
    CorruptDataError,
)
from sediment.segment_io.format.layout import INT64_MAX
from sediment.segment_io.format.names import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_KINDS,
    SWAP_SUFFIX,
    SegmentFileKind,
    leading_offset,
    parse_segment_file,
    segment_file_name,
)
from sediment.segment_io.fs import Fs
from sediment.segment_io.segment.batch_boundaries import next_offset_of

_KRAFT_SNAPSHOT_SUFFIX = ".checkpoint.deleted"
_KINDS = tuple(SegmentFileKind)
_LOG = SegmentFileKind.LOG


def is_interrupted(names: Collection[str]) -> bool:
    return any(_is_leftover(name) or _is_orphan(name, names) for name in names)


def finish_interrupted(directory: Path, fs: Fs, *, restored: Collection[str] = ()) -> tuple[Repair, ...]:
    """Complete or undo interrupted replacements and deletions in a partition directory, by the rules of Kafka's loader.

    `restored` contains the names of `.log.swap` files that a restore wrote and that the caller has compared with their
    originals. These files are accepted even if they end in a torn batch: a recovery may have cut off a torn end that a
    restore puts back.

    The directory's lock must be held, and no task of this run may have started to write. The `.part` files of all runs
    are deleted: a run that could still commit them would hold the lock.

    Beyond Kafka's rules:

    * If a new segment is not whole (`replacements`), the replacement is undone, provided that the old segments still
      contain all records.  The replacement is completed if no old log remains and the new logs are framed
      (`replacements`).  In all other cases, the directory is refused.
    * If a `.cleaned` file exists, the replacement must be undone.  In this case, the directory is refused if a new
      segment has no old segment.  If a new segment has a second link, it needs no old segment, because a restore linked
      it and the original keeps its bytes.
    * An index with offsets or positions past the end of its log is deleted; a log without an offset index is recovered.
    * An old log between two new segments is kept if it ends before the second new segment begins.
    * An index of an old segment is deleted if the new segment with the same base offset has no index of that kind; the
      new segment may be empty.  Kafka would keep a transaction index whose markers no longer exist.  Consumers would
      then treat later transactions of the producers in this index as aborted.
    * A name with several suffixes, such as `N.log.cleaned.swap`, is processed until no suffix is left. Kafka removes
      one suffix at each start.

    A second call, even after an interrupted one, leads to the same result.

    Returns:
        The repairs, in order; empty if nothing was interrupted.

    Source: kafka-log 05 §2 passes 1 to 3, orphan indexes of pass 4, §7.1.
    """
    names = fs.file_names(directory)
    deleted = [name for name in names if _is_deleted(name)]
    parts = [name for name in names if is_part_file(name)]
    cleaned = [name for name in names if name.endswith(CLEANED_SUFFIX)]
    swaps = [name for name in names if name.endswith(SWAP_SUFFIX)]
    rest = sorted(set(names) - set(deleted) - set(parts) - set(cleaned) - set(swaps))
    repairs: list[Repair] = []

    lowest_cleaned = min((_offset_of(directory, name) for name in cleaned), default=INT64_MAX)
    undone = [name for name in swaps if _offset_of(directory, name) >= lowest_cleaned]
    old = _old_segments(directory, rest, fs)
    _check_undone(directory, undone, old, fs)
    new = [
        replace(segment, problem=None) if segment.name in restored else segment
        for segment in _new_segments(directory, sorted(set(swaps) - set(undone)), old, fs)
    ]
    broken = _first_to_undo(directory, new, old)
    if broken is not None:
        # Kafka's loader also undoes a replacement if it finds this name.  Without the name, a crash between two
        # deletions could leave a set of files that looks complete.
        first, marker = new[0].name, new[0].name.removesuffix(SWAP_SUFFIX) + CLEANED_SUFFIX
        fs.rename(directory / first, directory / marker)
        fs.sync_directory(directory)
        why = f"{broken.name} is not whole ({broken.problem}); the old segments contain its records"
        repairs.append(Repair(f"renamed to {marker}", first, why))
        cleaned.append(marker)
        undone = [name for name in swaps if _offset_of(directory, name) >= new[0].base_offset and name != first]
        swaps, new = [name for name in swaps if name != first], []

    unfit = _unfit_indexes(directory, sorted(set(swaps) - set(undone)), rest, fs)
    completed = sorted(set(swaps) - set(undone) - unfit.keys(), key=_finishing_order)
    replaced = _replaced_names(directory, rest, completed, new, fs)
    final = {name.removesuffix(SWAP_SUFFIX) for name in completed}
    live = (set(rest) - set(replaced)) | final
    orphans = [name for name in sorted(live) if _is_orphan(name, live)]

    def delete(removed: Sequence[str], why: str, *, is_routine: bool = False) -> None:
        for name in removed:
            fs.unlink(directory / name, missing_ok=True)
            repairs.append(Repair("deleted", name, why, is_routine))
        if removed:
            fs.sync_directory(directory)

    delete(deleted, "its deletion was interrupted", is_routine=True)
    delete(parts, "the run that could commit it has ended")
    delete(undone, "the replacement that it belongs to was not complete")
    delete(cleaned, "the replacement that it belongs to was not complete")
    for name, why in unfit.items():
        delete([name], why)
    delete(replaced, "a complete replacement covers its offsets")
    for name in completed:
        fs.rename(directory / name, directory / name.removesuffix(SWAP_SUFFIX))
        repairs.append(Repair("renamed", name, "its replacement was complete"))
    if completed:
        fs.sync_directory(directory)
    delete(orphans, "it is the index of a log that does not exist")
    if any(_is_leftover(name) for name in final):
        repairs += finish_interrupted(directory, fs)
    return tuple(repairs)


def _check_undone(directory: Path, undone: Sequence[str], old: OldSegments, fs: Fs) -> None:
    """Refuse to delete a new log that has no old log; as long as a `.cleaned` exists, all old logs should exist."""
    for name in undone:
        entry = fs.entry(directory / name) if name.endswith(_LOG + SWAP_SUFFIX) else None
        if entry is None or not entry.size_bytes or (directory / name).stat().st_nlink > 1:
            continue
        if not old.reach(_offset_of(directory, name)):
            raise CorruptDataError(
                "a new segment of an interrupted, incomplete replacement has no old segment beside it",
                partition=directory.name,
                path=str(directory / name),
                advice="restore the old segments from a backup or .deleted files, or move the .cleaned files away",
            )


def _new_segments(directory: Path, swaps: Sequence[str], old: OldSegments, fs: Fs) -> list[NewSegment]:
    found = []
    for name in swaps:
        if not name.endswith(_LOG + SWAP_SUFFIX):
            continue
        base_offset = _offset_of(directory, name)
        if name != segment_file_name(base_offset, _LOG) + SWAP_SUFFIX:
            raise _nameless(directory, name)
        replaces_records = old.have_records(base_offset)
        found.append(read_new_segment(directory, base_offset, fs, replaces_records=replaces_records))
    return sorted(found, key=lambda segment: segment.base_offset)


def _unfit_indexes(directory: Path, swaps: Sequence[str], rest: Sequence[str], fs: Fs) -> dict[str, str]:
    unfit = {}
    for name in swaps:
        file = parse_segment_file(name)
        if file is None or file.kind not in (SegmentFileKind.OFFSET_INDEX, SegmentFileKind.TIME_INDEX):
            continue
        log = segment_file_name(file.base_offset, _LOG)
        if log in rest and log + SWAP_SUFFIX not in swaps:
            problem = index_mismatch(directory, file.base_offset, file.kind, fs)
            if problem is not None:
                unfit[name] = problem
    return unfit


def _old_segments(directory: Path, rest: Sequence[str], fs: Fs) -> OldSegments:
    parsed = [(parse_segment_file(name), name) for name in rest]
    return OldSegments(
        directory, {file.base_offset: name for file, name in parsed if file is not None and file.kind is _LOG}, fs
    )


def _first_to_undo(directory: Path, new: Sequence[NewSegment], old: OldSegments) -> NewSegment | None:
    problems = [segment for segment in new if segment.problem is not None]
    if not problems:
        return None
    if all(old.hold(segment) for segment in new):
        return problems[0]
    refused = next((segment for segment in problems if not segment.is_framed or old.have_records_of(segment)), None)
    if refused is None:
        return None
    raise CorruptDataError(
        f"a new segment of an interrupted replacement is not whole ({refused.problem}), and old segments are missing",
        partition=directory.name,
        path=str(directory / refused.name),
        offset=refused.next_offset,
        advice="if a restore was interrupted here, run it again; otherwise restore the old segments from a backup or "
        "their .deleted files and move the .swap files away",
    )


def _replaced_names(
    directory: Path, names: Sequence[str], swaps: Sequence[str], new: Sequence[NewSegment], fs: Fs
) -> list[str]:
    lowest = min((segment.base_offset for segment in new), default=0)
    end = max((segment.next_offset for segment in new), default=0)
    covered = {segment_file_name(segment.base_offset, kind) for segment in new for kind in INDEX_KINDS}
    covered -= {name.removesuffix(SWAP_SUFFIX) for name in swaps}
    in_range = [name for name in names if lowest <= leading_offset(name) < end]
    kept = {leading_offset(name) for name in in_range if _lies_between(directory, name, new, fs)}
    return [name for name in names if name in covered or (name in in_range and leading_offset(name) not in kept)]


def _lies_between(directory: Path, name: str, new: Sequence[NewSegment], fs: Fs) -> bool:
    file = parse_segment_file(name)
    if file is None or file.kind is not _LOG:
        return False
    base_offset = file.base_offset
    if any(segment.base_offset <= base_offset < max(segment.next_offset, segment.base_offset + 1) for segment in new):
        return False
    following = min(segment.base_offset for segment in new if segment.base_offset > base_offset)
    try:
        return next_offset_of(directory / name, base_offset, fs) <= following
    except CorruptBatchError:
        return True


def _offset_of(directory: Path, name: str) -> int:
    offset = leading_offset(name)
    if offset < 0:
        raise _nameless(directory, name)
    return offset


def _nameless(directory: Path, name: str) -> CorruptDataError:
    return CorruptDataError(
        "an interrupted replacement left a file that has no offset of 20 digits in its name",
        partition=directory.name,
        path=str(directory / name),
        advice="a broker refuses to load this partition; move the file out of the directory",
    )


def _is_deleted(name: str) -> bool:
    return name.endswith(DELETED_SUFFIX) and not name.endswith(_KRAFT_SNAPSHOT_SUFFIX)


def _is_leftover(name: str) -> bool:
    return name.endswith((CLEANED_SUFFIX, SWAP_SUFFIX)) or _is_deleted(name) or is_part_file(name)


def _finishing_order(name: str) -> tuple[int, int, str]:
    """Return a key that sorts files ascending, with a segment's log before its indexes.

    If an index got its final name before its log, a crash between the two would leave an index in the range of the
    replacement.  The next start would delete this index.
    """
    parsed = parse_segment_file(name)
    return leading_offset(name), len(_KINDS) if parsed is None else _KINDS.index(parsed.kind), name


def _is_orphan(name: str, live: Collection[str]) -> bool:
    offset = leading_offset(name)
    is_index = offset >= 0 and name.removeprefix(name.partition(".")[0]) in INDEX_KINDS
    return is_index and segment_file_name(offset, SegmentFileKind.LOG) not in live

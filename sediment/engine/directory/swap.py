"""Replacing segments by cleaned ones, so that a crash at any moment leaves a log that a broker and we open.

Kafka's loader decides by names alone (kafka-log 05 §2): it drops `.deleted`; while a `.cleaned` is there, every `.swap`
at or above the lowest of them goes too and with it the replacement; else the `.swap` files win over everything that is
numbered between the lowest and the end of the highest.  Names of one group thus speak for or against the whole group,
and names of two groups must never be there at once.

Invariants of `commit`: one group at a time, ascending; a group's old files keep their names until all of its new ones
are durably `.swap`; they are removed after its new ones durably have their final names; the next group's first
`.cleaned` appears after that.  So after a crash and a start each group is old or new, and the new ones come first.

Invariants of `finish_interrupted`: it does what Kafka's loader does where every new segment is whole, in an order that
can itself be cut off anywhere and started over.  No new segment that is not whole replaces an old one that is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from sediment.compaction.prepared_swap import CleanedGroup, PartFile, PreparedSwap
from sediment.engine.directory.replacements import NewSegment, OldSegments, index_mismatch, read_new_segment
from sediment.segment_io.errors import (
    CommitStateUnknownError,
    CorruptBatchError,
    CorruptDataError,
    SourceChangedError,
    UsageError,
)
from sediment.segment_io.format.layout import INT64_MAX
from sediment.segment_io.format.names import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    PART_SUFFIX,
    SWAP_SUFFIX,
    SegmentFileKind,
    TopicPartition,
    parse_segment_file,
    segment_file_name,
)
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.listing import SegmentRef, list_log, stat_segment
from sediment.segment_io.segment.next_offset import batch_ends

_KRAFT_SNAPSHOT_SUFFIX = ".checkpoint.deleted"
_LEADING_OFFSET = re.compile(r"([0-9]+)\.")
_KINDS = tuple(SegmentFileKind)
_LOG = SegmentFileKind.LOG
_INDEX_KINDS = (SegmentFileKind.OFFSET_INDEX, SegmentFileKind.TIME_INDEX, SegmentFileKind.TRANSACTION_INDEX)


# --------------------------------------------------------------------------------------------------------------- commit
def commit(
    swap: PreparedSwap,
    fs: Fs,
    *,
    before_group: Callable[[], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
    is_durable: bool = False,
) -> bool:
    """Replace the source segments of each group by its parts; the directory's lock must be held.

    First all parts are made durable, unless `make_durable` has just done that.  Then, group by group, after
    `before_group` (which raises to end the commit, as `DirectoryLock.check` does) and a comparison of the sources with
    the files there:

    1. `.part` -> `.cleaned`, ascending.
       Start: `.cleaned` is deleted, the sources are untouched; what is still `.part` Kafka ignores and we delete.
    2. `.cleaned` -> `.swap`, segments descending, of each log, index, timeindex, txnindex.
       Start in mid-step: no `.swap` is below the `.cleaned` that are left, so all are deleted, the sources untouched.
       Start behind it: sources numbered in the range of the new segments are deleted and `.swap` becomes final.  A
       source that begins at or behind the last new offset survives beside them, with records that the next cleaning
       drops again.
    3. Sync the directory.
       Start: as behind 2, now also when power was lost.
    4. Sources -> `.deleted`, ascending, of each log, index, timeindex, txnindex.
       Start: `.deleted` is removed, the rest of the sources goes by its number or as an index without a log, and
       `.swap` becomes final.
    5. Sync the directory.
       Start: as behind 4; no old file has its own name any more.
    6. `.swap` -> final names, ascending, of each log, index, timeindex, txnindex.
       Start: the rest of `.swap` becomes final; no `.log.swap` is left below a finished segment to claim its number.
    7. Sync the directory.
       Start: `.deleted` is removed.
    8. Snapshots of old bases that are no new ones -> `.snapshot.deleted`; `.deleted` is unlinked.
       Start: as behind 7; snapshots without a segment are the loader's to remove.

    Nothing waits for step 8 to be durable, because the next start removes what it leaves.  A group without parts is
    left as it is.  Who wants to keep the old files links them elsewhere first (`engine.originals`).  The cleaner
    checkpoint is the caller's to write, after the last group.

    Returns:
        True when every group is done, False when `should_stop` said so before one of them.

    Raises:
        UsageError: the swap is malformed; nothing was touched.
        SourceChangedError: sources or parts are not those of `swap`, or files of another replacement lie there;
            the groups before it are done, this one and the rest are as they were.
        CommitStateUnknownError: a group broke off behind its first rename; the next start completes or undoes it.
        OSError: behind no rename of its group; the groups before it are done, this one and the rest are as they were.

    Source: kafka-log 02 §8.1, 05 §7.1.
    """
    directory = Path(swap.directory)
    groups = [group for group in swap.groups if group.parts]
    _check_shape(swap.partition, groups)
    _check_place(swap.partition, directory, groups, fs)
    if not is_durable:
        make_durable(swap, fs)
    for group in groups:
        if should_stop is not None and should_stop():
            return False
        if before_group is not None:
            before_group()
        _check_files(swap.partition, directory, group, fs)
        try:
            _replace(directory, group, fs)
        except Exception as error:
            if _is_untouched(directory, group, fs):
                raise
            raise CommitStateUnknownError(
                f"the replacement of the segments from {group.sources[0].base_offset} on broke off: {error}",
                partition=str(swap.partition),
                path=str(directory),
                advice="run again: the next run, or a broker's start, completes or undoes it, and no record is lost",
            ) from error
    return True


def make_durable(swap: PreparedSwap, fs: Fs) -> None:
    """Sync every part of a swap and their names, before the first rename; many swaps may be synced side by side.

    Raises:
        OSError: a part is missing or could not be written; that swap must not be committed, even if a second attempt
            succeeds, because a failed sync may have dropped what it could not write.
    """
    directory = Path(swap.directory)
    for part in swap.parts():
        fs.sync_file(directory / part.part_name)
    fs.sync_directory(directory)


def _replace(directory: Path, group: CleanedGroup, fs: Fs) -> None:
    """Steps 1 to 8 of `commit` for one group."""
    ascending = [part.final_name for segment in group.parts for part in segment.files]
    descending = [part.final_name for segment in reversed(group.parts) for part in segment.files]
    old = [name for source in group.sources for name in _file_names(source)]

    for part in _parts([group]):
        fs.rename(directory / part.part_name, directory / (part.final_name + CLEANED_SUFFIX))
    for name in descending:
        fs.rename(directory / (name + CLEANED_SUFFIX), directory / (name + SWAP_SUFFIX))
    fs.sync_directory(directory)

    for name in old:
        fs.rename(directory / name, directory / (name + DELETED_SUFFIX))
    fs.sync_directory(directory)

    for name in ascending:
        fs.rename(directory / (name + SWAP_SUFFIX), directory / name)
    fs.sync_directory(directory)

    for snapshot in _snapshots_without_segment(directory, group, fs):
        fs.rename(directory / snapshot, directory / (snapshot + DELETED_SUFFIX))
        old.append(snapshot)
    for name in old:
        fs.unlink(directory / (name + DELETED_SUFFIX))


def replaced_files(directory: Path, group: CleanedGroup, fs: Fs) -> tuple[str, ...]:
    """Names of the files of `directory` that replacing `group` takes away; none where it has no parts."""
    if not group.parts:
        return ()
    old = [name for source in group.sources for name in _file_names(source)]
    return (*old, *_snapshots_without_segment(directory, group, fs))


def _snapshots_without_segment(directory: Path, group: CleanedGroup, fs: Fs) -> list[str]:
    """Snapshots at old bases that are no new ones."""
    new_bases = {segment.base_offset for segment in group.parts}
    gone = [source.base_offset for source in group.sources if source.base_offset not in new_bases]
    names = [segment_file_name(base, SegmentFileKind.SNAPSHOT) for base in gone]
    return [name for name in names if fs.exists(directory / name)]


def _is_untouched(directory: Path, group: CleanedGroup, fs: Fs) -> bool:
    """Whether the first rename of `group` has not happened; a filesystem that cannot tell leaves it unknown."""
    try:
        return fs.exists(directory / group.parts[0].files[0].part_name)
    except OSError:
        return False


def _check_shape(partition: TopicPartition, groups: Sequence[CleanedGroup]) -> None:
    """What the steps rely on: groups and segments ascend, a group keeps its first base, a log precedes its indexes."""
    for group in groups:
        sources = [source.base_offset for source in group.sources]
        bases = [segment.base_offset for segment in group.parts]
        if not sources or bases[0] != sources[0] or not _ascend(sources) or not _ascend(bases):
            raise _malformed(partition, f"segments {sources} cannot be replaced by {bases}")
        for segment in group.parts:
            parsed = [parse_segment_file(part.final_name) for part in segment.files]
            places = [
                _KINDS.index(name.kind)
                for name in parsed
                if name is not None and not name.state and name.base_offset == segment.base_offset
            ]
            if len(places) != len(parsed) or places[:1] != [0] or not _ascend(places):
                names = ", ".join(part.final_name for part in segment.files)
                raise _malformed(partition, f"the files of segment {segment.base_offset} are out of order: {names}")
    ends = [(group.sources[0].base_offset, max(_bases(group))) for group in groups]
    if any(highest >= following for (_, highest), (following, _) in pairwise(ends)):
        raise _malformed(partition, "groups do not ascend")


def _bases(group: CleanedGroup) -> Iterator[int]:
    yield from (source.base_offset for source in group.sources)
    yield from (segment.base_offset for segment in group.parts)


def _ascend(numbers: Sequence[int]) -> bool:
    return all(low < high for low, high in pairwise(numbers))


def _malformed(partition: TopicPartition, what: str) -> UsageError:
    return UsageError(f"the prepared swap is malformed: {what}", partition=str(partition))


def _check_place(partition: TopicPartition, directory: Path, groups: Sequence[CleanedGroup], fs: Fs) -> None:
    """No files of another replacement, whose names would decide over ours, and no segment between a group's sources."""
    listing = list_log(partition, directory, fs)
    for leftover in listing.leftovers:
        if leftover.parsed.state in (CLEANED_SUFFIX, SWAP_SUFFIX):
            raise _changed(partition, directory / leftover.name, "an interrupted replacement left files")
    places = {segment.base_offset: place for place, segment in enumerate(listing.segments)}
    for group in groups:
        first = places.get(group.sources[0].base_offset, 0)
        present = listing.segments[first : first + len(group.sources)]
        for source, segment in zip(group.sources, present, strict=False):
            if source != segment:
                raise _source_changed(partition, directory, source)
        if len(present) < len(group.sources):
            raise _source_changed(partition, directory, group.sources[len(present)])
        _check_parts(partition, directory, group, fs)


def _check_files(partition: TopicPartition, directory: Path, group: CleanedGroup, fs: Fs) -> None:
    """The group's sources and parts are still those of the swap: other groups took their time."""
    for source in group.sources:
        if stat_segment(directory, source.base_offset, fs) != source:
            raise _source_changed(partition, directory, source)
    _check_parts(partition, directory, group, fs)


def _check_parts(partition: TopicPartition, directory: Path, group: CleanedGroup, fs: Fs) -> None:
    for part in _parts([group]):
        found = fs.entry(directory / part.part_name)
        if found is None or found.size_bytes != part.size_bytes:
            raise _changed(partition, directory / part.part_name, "a prepared file is gone or has another size")


def _source_changed(partition: TopicPartition, directory: Path, source: SegmentRef) -> SourceChangedError:
    path = directory / segment_file_name(source.base_offset, SegmentFileKind.LOG)
    return _changed(partition, path, "a segment is not the one that was cleaned")


def _changed(partition: TopicPartition, path: Path, what: str) -> SourceChangedError:
    return SourceChangedError(
        what,
        partition=str(partition),
        path=str(path),
        advice="make sure that nothing else works on the directory and run again",
    )


def _parts(groups: Iterable[CleanedGroup]) -> Iterator[PartFile]:
    for group in groups:
        for segment in group.parts:
            yield from segment.files


def _file_names(source: SegmentRef) -> Iterator[str]:
    """The files of a segment that are there, in Kafka's renaming order."""
    yield segment_file_name(source.base_offset, SegmentFileKind.LOG)
    sizes = (source.offset_index_bytes, source.time_index_bytes, source.transaction_index_bytes)
    for kind, size_bytes in zip(_INDEX_KINDS, sizes, strict=True):
        if size_bytes is not None:
            yield segment_file_name(source.base_offset, kind)


# --------------------------------------------------------------------------------------------------------------- repair
@dataclass(frozen=True, slots=True)
class Repair:
    """One thing that a start did to one file: `action` is a past participle (deleted, renamed), `why` a clause.

    `is_routine` says that a broker does it without a word at the start of a healthy log.
    """

    action: str
    name: str
    why: str
    is_routine: bool = False

    def __str__(self) -> str:
        return f"{self.name} {self.action}: {self.why}"


def finish_interrupted(directory: Path, fs: Fs) -> tuple[Repair, ...]:
    """Complete or undo what a crash cut off in a partition directory, by the rules of Kafka's loader.

    Nothing else may work on the directory: its lock is held, and no task of this run has begun to write.  That is why
    `.part` files of any run go: a run that could still commit them would hold the lock.

    Beyond Kafka's rules:

    * A replacement whose new segments are not all whole (`replacements`) is undone where the old segments still hold
      its records.  Else it is refused, but for framed logs that no old log is left to stand in for.
    * A replacement that a `.cleaned` undoes is refused where no old segment is beside a new one.
    * An index that names offsets or positions beyond its log goes; a log without an offset index is recovered.
    * A replacement of several segments deletes no old log that lies between them and ends before the next one.
    * An index of the old segment goes when the new segment of the same base has none of that kind, also where the new
      log is empty.  Kafka would keep a transaction index whose markers are gone, and consumers would take later
      transactions of those producers for aborted.
    * A name with several suffixes, such as `N.log.cleaned.swap`, is finished until none is left. Kafka takes one suffix
      away at each start.

    Calling it again, also after it was cut off anywhere, ends in the same directory.

    Returns:
        What was done, in order; empty where nothing had been interrupted.

    Raises:
        CorruptDataError: a `.cleaned` or `.swap` file without an offset, or a new segment that is not whole while an
            old segment that it replaces is gone; nothing was touched, but for outer suffixes of several.
        UnsupportedDataError: a new segment holds a batch of a later version; nothing was touched, with the same
            exception.

    Source: kafka-log 05 §2 passes 1 to 3, orphan indexes of pass 4, §7.1.
    """
    names = [entry.name for entry in fs.scan(directory) if entry.is_file]
    deleted = [name for name in names if _is_deleted(name)]
    parts = [name for name in names if _is_part(name)]
    cleaned = [name for name in names if name.endswith(CLEANED_SUFFIX)]
    swaps = [name for name in names if name.endswith(SWAP_SUFFIX)]
    rest = sorted(set(names) - set(deleted) - set(parts) - set(cleaned) - set(swaps))
    repairs: list[Repair] = []

    lowest_cleaned = min((_offset_of(directory, name) for name in cleaned), default=INT64_MAX)
    undone = [name for name in swaps if _offset_of(directory, name) >= lowest_cleaned]
    old = _old_segments(directory, rest, fs)
    _check_undone(directory, undone, old, fs)
    new = _new_segments(directory, sorted(set(swaps) - set(undone)), old, fs)
    broken = _first_to_undo(directory, new, old)
    if broken is not None:
        # This one name makes Kafka's loader undo it too.  Deleting file by file could leave a set that looks whole.
        first, marker = new[0].name, new[0].name.removesuffix(SWAP_SUFFIX) + CLEANED_SUFFIX
        fs.rename(directory / first, directory / marker)
        fs.sync_directory(directory)
        why = f"{broken.name} is not whole ({broken.problem}); the old segments have its records"
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

    def delete(doomed: Sequence[str], why: str, *, is_routine: bool = False) -> None:
        for name in doomed:
            fs.unlink(directory / name, missing_ok=True)
            repairs.append(Repair("deleted", name, why, is_routine))
        if doomed:
            fs.sync_directory(directory)

    delete(deleted, "its deletion had begun", is_routine=True)
    delete(parts, "no run is left that could commit it")
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
    """Refuse to delete a new log that no old one is left for: while a `.cleaned` is there, all old ones should be."""
    for name in undone:
        entry = fs.entry(directory / name) if name.endswith(_LOG + SWAP_SUFFIX) else None
        if entry is not None and entry.size_bytes and not old.reach(_offset_of(directory, name)):
            raise CorruptDataError(
                "a new segment of an interrupted replacement that was not complete has no old segment beside it",
                partition=directory.name,
                path=str(directory / name),
                advice="restore the old segments from a backup or .deleted files, or move the .cleaned files away",
            )


def _new_segments(directory: Path, swaps: Sequence[str], old: OldSegments, fs: Fs) -> list[NewSegment]:
    """The new segments among `swaps`, ascending by base offset."""
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
    """Why indexes among `swaps` do not belong to their logs, which have their final names already, by name."""
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
    """The first new segment that is not whole, if the replacement is to be undone; None if it is to be completed.

    Raises:
        CorruptDataError: neither is possible without losing records.
    """
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
        advice="restore the old segments from a backup or their .deleted files and move the .swap files away",
    )


def _replaced_names(
    directory: Path, names: Sequence[str], swaps: Sequence[str], new: Sequence[NewSegment], fs: Fs
) -> list[str]:
    """Those of `names` that the complete replacement `swaps` covers."""
    lowest = min((segment.base_offset for segment in new), default=0)
    end = max((segment.next_offset for segment in new), default=0)
    covered = {segment_file_name(segment.base_offset, kind) for segment in new for kind in _INDEX_KINDS}
    covered -= {name.removesuffix(SWAP_SUFFIX) for name in swaps}
    in_range = [name for name in names if lowest <= _leading_offset(name) < end]
    kept = {_leading_offset(name) for name in in_range if _lies_between(directory, name, new, fs)}
    return [name for name in names if name in covered or (name in in_range and _leading_offset(name) not in kept)]


def _lies_between(directory: Path, name: str, new: Sequence[NewSegment], fs: Fs) -> bool:
    """True of a log that begins after the end of one new segment and ends before the next one begins."""
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


def _leading_offset(name: str) -> int:
    """The number that Kafka reads from a name: what precedes its first dot; -1 where that is none."""
    match = _LEADING_OFFSET.match(name)
    offset = int(match[1]) if match else -1
    return offset if offset <= INT64_MAX else -1


def _offset_of(directory: Path, name: str) -> int:
    offset = _leading_offset(name)
    if offset < 0:
        raise _nameless(directory, name)
    return offset


def _nameless(directory: Path, name: str) -> CorruptDataError:
    return CorruptDataError(
        "the name of a file of an interrupted replacement has no offset of 20 digits",
        partition=directory.name,
        path=str(directory / name),
        advice="a broker refuses to load this partition; move the file out of the directory",
    )


def _is_deleted(name: str) -> bool:
    return name.endswith(DELETED_SUFFIX) and not name.endswith(_KRAFT_SNAPSHOT_SUFFIX)


def _is_leftover(name: str) -> bool:
    return name.endswith((CLEANED_SUFFIX, SWAP_SUFFIX)) or _is_deleted(name) or _is_part(name)


def _is_part(name: str) -> bool:
    parsed = parse_segment_file(name)
    return parsed is not None and parsed.state == PART_SUFFIX


def _finishing_order(name: str) -> tuple[int, int, str]:
    """Ascending, a segment's log first: behind a log with its final name no range can claim its indexes."""
    parsed = parse_segment_file(name)
    return _leading_offset(name), len(_KINDS) if parsed is None else _KINDS.index(parsed.kind), name


def _is_orphan(name: str, live: set[str]) -> bool:
    """True of an index, whatever the number of its digits, whose log is not there."""
    offset = _leading_offset(name)
    is_index = offset >= 0 and name.removeprefix(name.partition(".")[0]) in _INDEX_KINDS
    return is_index and segment_file_name(offset, _LOG) not in live


def next_offset_of(path: Path, base_offset: int, fs: Fs) -> int:
    """The offset behind the last whole batch of a segment file; `base_offset` where there is none.

    Only the headers that every magic shares and `lastOffsetDelta` are read; no checksum is computed.

    Raises:
        CorruptBatchError: a batch says that it is shorter than any batch.

    Source: kafka-log 01 §2.2, 05 §3 (readNextOffset).
    """
    next_offset = base_offset
    for last_offset, _ in batch_ends(path, fs):
        next_offset = last_offset + 1
    return next_offset


# ------------------------------------------------------------------------------------------------------------- deletion
def mark_deleted(
    directory: Path, base_offsets: Iterable[int], fs: Fs, *, kinds: Sequence[SegmentFileKind] = (_LOG, *_INDEX_KINDS)
) -> tuple[str, ...]:
    """Rename the files of segments to `.deleted`, segment by segment in the given order, and sync the directory.

    The start of a log goes ascending and its end descending: whatever survives a crash has no gap.  A segment's log
    goes first, because an index without a log is removed by the next start and a log without its index is rebuilt.
    Whatever is `.deleted` the next start removes.

    Returns:
        The new names, of the files that were there.

    Source: kafka-log 03 §3, 05 §3 step 2.
    """
    renamed = []
    for base_offset in base_offsets:
        for kind in kinds:
            path = directory / segment_file_name(base_offset, kind)
            if fs.exists(path):
                fs.rename(path, path.with_name(path.name + DELETED_SUFFIX))
                renamed.append(path.name + DELETED_SUFFIX)
    if renamed:
        fs.sync_directory(directory)
    return tuple(renamed)


def remove_deleted(directory: Path, names: Iterable[str], fs: Fs) -> None:
    """Unlink files that `mark_deleted` renamed; durable or not, the next start removes what is left."""
    for name in names:
        fs.unlink(directory / name, missing_ok=True)


# ---------------------------------------------------------------------------------------------------------------- parts
def discard_parts(
    directory: Path, run_id: str, fs: Fs, *, attempt: str | None = None, keep: Container[str] = ()
) -> tuple[str, ...]:
    """Remove the `.part` files of run `run_id`, or of one attempt of it, that were not committed; returns their names.

    Those named in `keep` stay: somebody else is to commit them.

    Parts of other runs stay: only `finish_interrupted`, under the lock and before this run's tasks began, may judge
    that no other run is left to commit them.
    """
    tag = f"{run_id}-" if attempt is None else f"{run_id}-{attempt}{PART_SUFFIX}"
    names = [entry.name for entry in fs.scan(directory) if _is_part(entry.name)]
    ours = [name for name in names if name.split(".", 2)[2].startswith(tag) and name not in keep]
    for name in ours:
        fs.unlink(directory / name, missing_ok=True)
    return tuple(ours)

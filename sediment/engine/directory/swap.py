"""Replacing segments by cleaned ones, so that a crash at any step leaves a log that loads, here and in a broker.

Kafka's loader decides by names alone (kafka-log 05 §2):

* `.deleted` files are deleted.
* If there is a `.cleaned`, every `.swap` at or above the lowest one is deleted too, which undoes the replacement.
* Otherwise the `.swap` files replace every file numbered between the lowest and the end of the highest.

Names of one group thus decide about the whole group, and names of two groups must never exist at once.

Invariants of `commit`: one group at a time, ascending.  A group's old files keep their names until all of its new files
are durably `.swap`.  They are removed after the new files durably have their final names.  The next group's first
`.cleaned` appears after that.  So after a crash and start-up, each group is either the old or the new version, new ones
first.

Invariants of `finish_interrupted`: if every new segment is whole, it does the same as Kafka's loader, in an order that
may itself be interrupted at any step and started over.  A new segment that is not whole never replaces a whole old one.
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

    All parts are made durable first, unless `make_durable` has just done that.  Then, group by group, after
    `before_group` (which raises to end the commit, as `DirectoryLock.check` does) and a comparison of the sources with
    the files there:

    1. `.part` -> `.cleaned`, ascending.
       Start: `.cleaned` is deleted, the sources are untouched; Kafka ignores the remaining `.part`, and our start
       deletes them.
    2. `.cleaned` -> `.swap`, segments descending, of each log, index, timeindex, txnindex.
       Start during it: no `.swap` is below the remaining `.cleaned`, so all are deleted, the sources untouched.
       Start after it: sources numbered in the range of the new segments are deleted and `.swap` becomes final.  A
       source that begins at or after the last new offset survives beside them, with records that the next cleaning
       drops again.
    3. Sync the directory.
       Start: as right after 2, now also if power was lost.
    4. Sources -> `.deleted`, ascending, of each log, index, timeindex, txnindex.
       Start: `.deleted` is removed, the remaining sources are deleted by their number or as an index without a log,
       and `.swap` becomes final.
    5. Sync the directory.
       Start: as right after 4; no old file has its own name any more.
    6. `.swap` -> final names, ascending, of each log, index, timeindex, txnindex.
       Start: the remaining `.swap` becomes final; no `.log.swap` is left below a finished segment to claim its number.
    7. Sync the directory.
       Start: `.deleted` is removed.
    8. Snapshots of old bases that are not new bases -> `.snapshot.deleted`; `.deleted` is unlinked.
       Start: as right after 7; the loader removes snapshots without a segment.

    Nothing waits until step 8 is durable, because the next start removes the rest.  A group without parts stays as it
    is.  To keep the old files, hard-link them first (`backup_links`).  The caller writes the cleaner checkpoint after
    the last group.

    Returns:
        True if every group is done, False if `should_stop` returned True before one of them.

    Raises:
        UsageError: the swap is malformed; nothing changed.
        SourceChangedError: sources or parts are not those of `swap`, or files of another replacement are present;
            the groups before it are done, this one and the rest are unchanged.
        CommitStateUnknownError: a group broke off after its first rename; the next start completes or undoes it.
        OSError: a group failed before its first rename; the groups before it are done, this one and the rest are
            unchanged.

    Source: kafka-log 02 §8.1, 05 §7.1.
    """
    directory = Path(swap.directory)
    groups = [group for group in swap.groups if group.parts]
    _check_shape(swap.partition, groups)
    _check_listing(swap.partition, directory, groups, fs)
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
    """Sync every part of a swap and their names, before the first rename; many swaps may be synced in parallel.

    Raises:
        OSError: a part is missing or could not be written; that swap must not be committed, even if a second attempt
            succeeds, because a failed sync may have dropped dirty pages.
    """
    directory = Path(swap.directory)
    for part in swap.parts():
        fs.sync_file(directory / part.part_name)
    fs.sync_directory(directory)


def _replace(directory: Path, group: CleanedGroup, fs: Fs) -> None:
    """Do steps 1 to 8 of `commit` for one group."""
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
    """Return the names of the files of `directory` that the replacement of `group` removes; none without parts."""
    if not group.parts:
        return ()
    old = [name for source in group.sources for name in _file_names(source)]
    return (*old, *_snapshots_without_segment(directory, group, fs))


def _snapshots_without_segment(directory: Path, group: CleanedGroup, fs: Fs) -> list[str]:
    """Return the names of the snapshots at old bases that are not new bases."""
    new_bases = {segment.base_offset for segment in group.parts}
    old_bases = [source.base_offset for source in group.sources if source.base_offset not in new_bases]
    names = [segment_file_name(base, SegmentFileKind.SNAPSHOT) for base in old_bases]
    return [name for name in names if fs.exists(directory / name)]


def _is_untouched(directory: Path, group: CleanedGroup, fs: Fs) -> bool:
    """Return True if the first rename of `group` has not happened; False if that is unknown."""
    try:
        return fs.exists(directory / group.parts[0].files[0].part_name)
    except OSError:
        return False


def _check_shape(partition: TopicPartition, groups: Sequence[CleanedGroup]) -> None:
    """Check that groups and segments ascend, a group keeps its first base, and a log precedes its indexes."""
    for group in groups:
        sources = [source.base_offset for source in group.sources]
        bases = [segment.base_offset for segment in group.parts]
        if not sources or bases[0] != sources[0] or not _ascend(sources) or not _ascend(bases):
            raise _malformed(partition, f"segments {sources} cannot be replaced by {bases}")
        for segment in group.parts:
            parsed = [parse_segment_file(part.final_name) for part in segment.files]
            ranks = [
                _KINDS.index(name.kind)
                for name in parsed
                if name is not None and not name.state and name.base_offset == segment.base_offset
            ]
            if len(ranks) != len(parsed) or ranks[:1] != [0] or not _ascend(ranks):
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


def _check_listing(partition: TopicPartition, directory: Path, groups: Sequence[CleanedGroup], fs: Fs) -> None:
    """Check that no other replacement left files, and that a group's sources are adjacent and unchanged.

    The names of another replacement would decide about this one.
    """
    listing = list_log(partition, directory, fs)
    for leftover in listing.leftovers:
        if leftover.parsed.state in (CLEANED_SUFFIX, SWAP_SUFFIX):
            raise _changed(partition, directory / leftover.name, "an interrupted replacement left files")
    indexes = {segment.base_offset: index for index, segment in enumerate(listing.segments)}
    for group in groups:
        first = indexes.get(group.sources[0].base_offset, 0)
        present = listing.segments[first : first + len(group.sources)]
        for source, segment in zip(group.sources, present, strict=False):
            if source != segment:
                raise _source_changed(partition, directory, source)
        if len(present) < len(group.sources):
            raise _source_changed(partition, directory, group.sources[len(present)])
        _check_parts(partition, directory, group, fs)


def _check_files(partition: TopicPartition, directory: Path, group: CleanedGroup, fs: Fs) -> None:
    """Check that the group's sources and parts are still those of the swap; earlier groups took time."""
    for source in group.sources:
        if stat_segment(directory, source.base_offset, fs) != source:
            raise _source_changed(partition, directory, source)
    _check_parts(partition, directory, group, fs)


def _check_parts(partition: TopicPartition, directory: Path, group: CleanedGroup, fs: Fs) -> None:
    for part in _parts([group]):
        found = fs.entry(directory / part.part_name)
        if found is None or found.size_bytes != part.size_bytes:
            raise _changed(partition, directory / part.part_name, "a prepared file is missing or has another size")


def _source_changed(partition: TopicPartition, directory: Path, source: SegmentRef) -> SourceChangedError:
    path = directory / segment_file_name(source.base_offset, SegmentFileKind.LOG)
    return _changed(partition, path, "a segment is not the one that was cleaned")


def _changed(partition: TopicPartition, path: Path, what: str) -> SourceChangedError:
    return SourceChangedError(
        what,
        partition=str(partition),
        path=str(path),
        advice="make sure that no other process works on the directory and run again",
    )


def _parts(groups: Iterable[CleanedGroup]) -> Iterator[PartFile]:
    for group in groups:
        for segment in group.parts:
            yield from segment.files


def _file_names(source: SegmentRef) -> Iterator[str]:
    """Yield the names of the existing files of a segment, in Kafka's renaming order."""
    yield segment_file_name(source.base_offset, SegmentFileKind.LOG)
    sizes = (source.offset_index_bytes, source.time_index_bytes, source.transaction_index_bytes)
    for kind, size_bytes in zip(_INDEX_KINDS, sizes, strict=True):
        if size_bytes is not None:
            yield segment_file_name(source.base_offset, kind)


# --------------------------------------------------------------------------------------------------------------- repair
@dataclass(frozen=True, slots=True)
class Repair:
    """One change of a start to one file: `action` is a past participle (deleted, renamed), `why` a clause.

    `is_routine` marks a change that a broker makes silently when it loads a healthy log.
    """

    action: str
    name: str
    why: str
    is_routine: bool = False

    def __str__(self) -> str:
        return f"{self.name} {self.action}: {self.why}"


def finish_interrupted(directory: Path, fs: Fs) -> tuple[Repair, ...]:
    """Complete or undo interrupted replacements and deletions in a partition directory, by the rules of Kafka's loader.

    Nothing else may work on the directory: its lock is held, and no task of this run has begun to write.  The `.part`
    files of every run are therefore deleted: a run that could still commit them would hold the lock.

    Beyond Kafka's rules:

    * A replacement with a new segment that is not whole (`replacements`) is undone if the old segments still hold its
      records.  Otherwise it is refused, except for framed logs of which no old log is left.
    * A replacement that a `.cleaned` undoes is refused if a new segment has no old segment beside it.
    * An index with offsets or positions past its log is deleted; a log without an offset index is recovered.
    * A replacement of several segments keeps an old log that lies between them and ends before the next one.
    * An index of the old segment is deleted if the new segment of the same base has none of that kind, even if the new
      log is empty.  Kafka would keep a transaction index without its markers, and consumers would take later
      transactions of those producers for aborted.
    * A name with several suffixes, such as `N.log.cleaned.swap`, is finished until none is left. Kafka takes one suffix
      away at each start.

    A second call, even after an interrupted one, ends in the same directory.

    Returns:
        The repairs, in order; empty if nothing was interrupted.

    Raises:
        CorruptDataError: a `.cleaned` or `.swap` file has no offset, or a new segment is not whole and an old segment
            that it replaces is missing; nothing changed, except that
             outer suffixes of stacked names may be gone.
        UnsupportedDataError: a new segment holds a batch of a later version; nothing changed, with the same
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
        # With this name Kafka's loader undoes it too.  Deletion file by file could leave a set that looks whole.
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

    def delete(removed: Sequence[str], why: str, *, is_routine: bool = False) -> None:
        for name in removed:
            fs.unlink(directory / name, missing_ok=True)
            repairs.append(Repair("deleted", name, why, is_routine))
        if removed:
            fs.sync_directory(directory)

    delete(deleted, "its deletion had begun", is_routine=True)
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
    """Refuse to delete a new log without an old log beside it; as long as a `.cleaned` exists, all old logs should."""
    for name in undone:
        entry = fs.entry(directory / name) if name.endswith(_LOG + SWAP_SUFFIX) else None
        if entry is not None and entry.size_bytes and not old.reach(_offset_of(directory, name)):
            raise CorruptDataError(
                "a new segment of an interrupted, incomplete replacement has no old segment beside it",
                partition=directory.name,
                path=str(directory / name),
                advice="restore the old segments from a backup or .deleted files, or move the .cleaned files away",
            )


def _new_segments(directory: Path, swaps: Sequence[str], old: OldSegments, fs: Fs) -> list[NewSegment]:
    """Return the new segments among `swaps`, ascending by base offset."""
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
    """Return the mismatches of indexes among `swaps` with logs that already have final names, by index name."""
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
    """Return the first new segment that is not whole, if the replacement has to be undone; None to complete it.

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
    """Return the `names` that the complete replacement `swaps` covers."""
    lowest = min((segment.base_offset for segment in new), default=0)
    end = max((segment.next_offset for segment in new), default=0)
    covered = {segment_file_name(segment.base_offset, kind) for segment in new for kind in _INDEX_KINDS}
    covered -= {name.removesuffix(SWAP_SUFFIX) for name in swaps}
    in_range = [name for name in names if lowest <= _leading_offset(name) < end]
    kept = {_leading_offset(name) for name in in_range if _lies_between(directory, name, new, fs)}
    return [name for name in names if name in covered or (name in in_range and _leading_offset(name) not in kept)]


def _lies_between(directory: Path, name: str, new: Sequence[NewSegment], fs: Fs) -> bool:
    """Return True for a log that begins after the end of one new segment and ends before the next one begins."""
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
    """Return the number before the first dot of a name, as Kafka reads it; -1 if there is none."""
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
    """Return a key that sorts ascending, a segment's log first.

    After a log has its final name, no range of a replacement can claim its indexes.
    """
    parsed = parse_segment_file(name)
    return _leading_offset(name), len(_KINDS) if parsed is None else _KINDS.index(parsed.kind), name


def _is_orphan(name: str, live: set[str]) -> bool:
    """Return True for an index without a log, whatever the number of its digits."""
    offset = _leading_offset(name)
    is_index = offset >= 0 and name.removeprefix(name.partition(".")[0]) in _INDEX_KINDS
    return is_index and segment_file_name(offset, _LOG) not in live


def next_offset_of(path: Path, base_offset: int, fs: Fs) -> int:
    """Return the next offset after the last whole batch of a segment file; `base_offset` if there is none.

    Only the headers that every magic shares and `lastOffsetDelta` are read; no checksum is computed.

    Raises:
        CorruptBatchError: the length field of a batch is below the smallest batch.

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

    Pass segments at the start of a log ascending and those at its end descending, so that a crash leaves no gap.  A
    segment's log is renamed first: the next start removes an index without a log, but would rebuild the index of a log
    without one.  The next start also removes every `.deleted` file.

    Returns:
        The new names of the files that existed.

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
    """Unlink files that `mark_deleted` renamed; the next start removes those that are left."""
    for name in names:
        fs.unlink(directory / name, missing_ok=True)


# ---------------------------------------------------------------------------------------------------------------- parts
def discard_parts(
    directory: Path, run_id: str, fs: Fs, *, attempt: str | None = None, keep: Container[str] = ()
) -> tuple[str, ...]:
    """Remove the uncommitted `.part` files of run `run_id`, or of one attempt of it; return their names.

    Files named in `keep` stay, for another process to commit.  Parts of other runs stay too: only `finish_interrupted`,
    under the lock and before the tasks of this run began, can know that no other run will commit them.
    """
    tag = f"{run_id}-" if attempt is None else f"{run_id}-{attempt}{PART_SUFFIX}"
    names = [entry.name for entry in fs.scan(directory) if _is_part(entry.name)]
    ours = [name for name in names if name.split(".", 2)[2].startswith(tag) and name not in keep]
    for name in ours:
        fs.unlink(directory / name, missing_ok=True)
    return tuple(ours)

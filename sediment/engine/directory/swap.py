"""Replacement of segments by cleaned segments; after a crash at any step, Sediment and a broker can load the log.

Kafka's loader decides by file names alone (kafka-log 05 §2):

* `.deleted` files are deleted.
* If a `.cleaned` exists, every `.swap` at or above the lowest `.cleaned` is also deleted, which undoes the replacement.
* Otherwise, the `.swap` files replace all files whose offsets are between the lowest `.swap` and the end of the highest
  `.swap`.

Two groups must never have `.cleaned` or `.swap` files at the same time.

Invariants of a commit: groups are committed one at a time, in offset order. A group's old files keep their names until
all its new files durably have `.swap` names. The new files durably have their final names before an old file is
removed, and before the next group's first `.cleaned` appears. So after a crash and a start, each group is either
unreplaced or replaced, and the replaced groups come first. Commits of different partitions do not depend on each other,
so several may be in progress at the same time (`lockstep`).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

from sediment.compaction.prepared_swap import CleanedGroup, PartFile, PartSegment, PreparedSwap
from sediment.engine.directory.lockstep import Steps, perform
from sediment.engine.directory.removals import Removals
from sediment.segment_io.errors import (
    CommitStateUnknownError,
    ReplacedFilesLeftError,
    SourceChangedError,
    UsageError,
)
from sediment.segment_io.format.names import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_KINDS,
    PART_SUFFIX,
    SWAP_SUFFIX,
    SegmentFileKind,
    TopicPartition,
    parse_segment_file,
    segment_file_name,
)
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.listing import SegmentRef, list_log, stat_segment

_KINDS = tuple(SegmentFileKind)


# --------------------------------------------------------------------------------------------------------------- commit
def commit(swap: PreparedSwap, fs: Fs, *, before_group: Callable[[], None] | None = None) -> None:
    """Do the work of `commit_steps` and its waits."""
    perform(commit_steps(swap, fs, before_group=before_group))


def commit_steps(
    swap: PreparedSwap,
    fs: Fs,
    *,
    before_group: Callable[[], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
    after_group: Callable[[CleanedGroup], None] | None = None,
    removals: Removals | None = None,
) -> Steps[bool]:
    """Replace the source segments of each group by its parts; the directory's lock must be held.

    All parts are made durable first.  For each group, `before_group` is called; like `DirectoryLock.check`, it may
    raise an error to end the commit.  After this call, the sources are compared with the existing files, and the steps
    below follow.  `Start` says what the next start does after a crash in that step:

    1. Rename `.part` to `.cleaned`, in ascending order.
       Start: each `.cleaned` is deleted, and the sources are unchanged.  A broker ignores the remaining `.part` files;
       a start of Sediment deletes them.
    2. Rename `.cleaned` to `.swap`, the highest segment first, each in the order log, index, timeindex, txnindex.
       Start during this step: every `.swap` is above a remaining `.cleaned` and is deleted; the sources are unchanged.
       Start after this step: sources within the offset range of the new segments are deleted, and each `.swap` gets
       its final name.  A source that begins at or after the last new offset is kept.  The next cleaning drops from this
       source the records that this cleaning dropped.
    3. Sync the directory.
       Start: as after step 2, even after a power loss.
    4. Rename the sources to `.deleted`, the lowest segment first, each in the order log, index, timeindex, txnindex.
       Start: each `.deleted` is removed, and each `.swap` gets its final name.  The remaining sources are deleted,
       because of their offsets or because they are indexes without a log.
    5. Sync the directory.
       Start: as after step 4; no old file has its original name any more.
    6. Rename `.swap` to the final names, the lowest segment first, each in the order log, index, timeindex, txnindex.
       Start: each remaining `.swap` gets its final name.  No `.log.swap` remains below a finished segment, so none
       covers that segment.
    7. Sync the directory.
       Start: each `.deleted` is removed.
    8. For each old base that is not a new base, rename its snapshot to `.snapshot.deleted`.  Then unlink the `.deleted`
       files.  If `removals` is given, it unlinks these files while the next group is committed.
       Start: as after step 7; the loader removes snapshots without a segment.

    After step 7, the group is replaced; `after_group` is called with it after the renames of step 8.

    Step 8 need not be durable, because the next start removes the remaining files.  A group without parts is not
    changed.  To keep the old files, hard-link them first (`originals`).  The caller writes the cleaner checkpoint after
    the last group.

    Returns:
        True if every group is done, False if `should_stop` returned True before one of them.

    Raises:
        UsageError: the swap is malformed; nothing changed.
        SourceChangedError: sources or parts differ from `swap`, or files of another replacement are present; the groups
            before this one are done, and all others are unchanged.
        CommitStateUnknownError: a group was interrupted after its first rename; the next start completes or undoes it.
        ReplacedFilesLeftError: without `removals`, old files of a group could not be removed; this group and the groups
            before it are done, and all others are unchanged.
        OSError: a group failed before its first rename; the groups before it are done, and all others are unchanged.

    Source: kafka-log 02 §8.1, 05 §7.1.
    """
    directory = Path(swap.directory)
    groups = [group for group in swap.groups if group.parts]
    _check_shape(swap.partition, groups)
    _check_listing(swap.partition, directory, groups, fs)
    yield partial(_make_durable, swap, fs)
    for group in groups:
        if should_stop is not None and should_stop():
            return False
        if before_group is not None:
            before_group()
        _check_files(swap.partition, directory, group, fs)
        try:
            replaced = yield from _replace(directory, group, fs)
        except Exception as error:
            if _is_untouched(directory, group, fs):
                raise
            raise _interrupted(swap.partition, directory, group, error) from error
        if after_group is not None:
            after_group(group)
        remove = partial(_remove, directory, replaced, fs)
        not_removed = partial(_not_removed, swap.partition, directory, group)
        if removals is not None:
            yield partial(removals.submit, directory, remove, not_removed)
            continue
        try:
            remove()
        except Exception as error:
            raise not_removed(error) from error
    return True


def _interrupted(
    partition: TopicPartition, directory: Path, group: CleanedGroup, error: Exception
) -> CommitStateUnknownError:
    return CommitStateUnknownError(
        f"the replacement of the group of segments at offset {group.sources[0].base_offset} was interrupted: {error}",
        partition=str(partition),
        path=str(directory),
        advice="run again: the next run, or a broker's start, completes or undoes it, and no record is lost",
    )


def _not_removed(
    partition: TopicPartition, directory: Path, group: CleanedGroup, error: Exception
) -> ReplacedFilesLeftError:
    return ReplacedFilesLeftError(
        f"the group of segments at offset {group.sources[0].base_offset} is replaced, but some of its old files, which "
        f"end in {DELETED_SUFFIX}, could not be removed: {error}",
        partition=str(partition),
        path=str(directory),
        advice="no record is lost; remove the cause, and the next run, or a broker's start, removes these files",
    )


def _make_durable(swap: PreparedSwap, fs: Fs) -> None:
    # If a sync fails, it may have dropped dirty pages, but a second sync could still succeed. So the commit must end at
    # the first failure.
    directory = Path(swap.directory)
    for part in swap.parts():
        fs.sync_file(directory / part.part_name)
    fs.sync_directory(directory)


def _replace(directory: Path, group: CleanedGroup, fs: Fs) -> Steps[list[str]]:
    sync = partial(fs.sync_directory, directory)
    ascending = [part.final_name for segment in group.parts for part in segment.files]
    descending = [part.final_name for segment in reversed(group.parts) for part in segment.files]
    old = [name for source in group.sources for name in _file_names(source)]

    for part in _parts([group]):
        fs.rename(directory / part.part_name, directory / (part.final_name + CLEANED_SUFFIX))
    for name in descending:
        fs.rename(directory / (name + CLEANED_SUFFIX), directory / (name + SWAP_SUFFIX))
    yield sync

    for name in old:
        fs.rename(directory / name, directory / (name + DELETED_SUFFIX))
    yield sync

    for name in ascending:
        fs.rename(directory / (name + SWAP_SUFFIX), directory / name)
    yield sync

    for snapshot in _snapshots_without_segment(directory, group, fs):
        fs.rename(directory / snapshot, directory / (snapshot + DELETED_SUFFIX))
        old.append(snapshot)
    return [name + DELETED_SUFFIX for name in old]


def _remove(directory: Path, names: Iterable[str], fs: Fs) -> None:
    for name in names:
        fs.unlink(directory / name)


def replaced_files(directory: Path, group: CleanedGroup, fs: Fs) -> tuple[str, ...]:
    if not group.parts:
        return ()
    old = [name for source in group.sources for name in _file_names(source)]
    return (*old, *_snapshots_without_segment(directory, group, fs))


def _snapshots_without_segment(directory: Path, group: CleanedGroup, fs: Fs) -> list[str]:
    new_bases = {segment.base_offset for segment in group.parts}
    old_bases = [source.base_offset for source in group.sources if source.base_offset not in new_bases]
    names = [segment_file_name(base, SegmentFileKind.SNAPSHOT) for base in old_bases]
    return [name for name in names if fs.exists(directory / name)]


def _is_untouched(directory: Path, group: CleanedGroup, fs: Fs) -> bool:
    try:
        return fs.exists(directory / group.parts[0].files[0].part_name)
    except OSError:
        return False


def _check_shape(partition: TopicPartition, groups: Sequence[CleanedGroup]) -> None:
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
        raise _malformed(partition, "groups are not in ascending order")


def _bases(group: CleanedGroup) -> Iterator[int]:
    yield from (source.base_offset for source in group.sources)
    yield from (segment.base_offset for segment in group.parts)


def _ascend(numbers: Sequence[int]) -> bool:
    return all(low < high for low, high in pairwise(numbers))


def _malformed(partition: TopicPartition, what: str) -> UsageError:
    return UsageError(f"the prepared swap is malformed: {what}", partition=str(partition))


def _check_listing(partition: TopicPartition, directory: Path, groups: Sequence[CleanedGroup], fs: Fs) -> None:
    # Files of another replacement would change the outcome of this one.
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
    yield segment_file_name(source.base_offset, SegmentFileKind.LOG)
    sizes = (source.offset_index_bytes, source.time_index_bytes, source.transaction_index_bytes)
    for kind, size_bytes in zip(INDEX_KINDS, sizes, strict=True):
        if size_bytes is not None:
            yield segment_file_name(source.base_offset, kind)


# ------------------------------------------------------------------------------------------------------------ insertion
def insert(
    partition: TopicPartition,
    directory: Path,
    segments: Iterable[PartSegment],
    fs: Fs,
    *,
    before_segment: Callable[[], None] | None = None,
) -> None:
    """Insert prepared segments before the first segment of a log, or after its last one.

    Pass segments before the first one in descending order, and segments after the last one in ascending order, so that
    a crash leaves no gap. The directory's lock must be held. All parts are made durable first. For each segment,
    `before_segment` is called; it may raise an error to end the insertion. These steps follow:

    1. The indexes get their final names.
       Start: the indexes are removed, because they have no log.
    2. Sync the directory.
       Start: as after step 1.
    3. The log gets its final name.
       Start: the segment is part of the log.
    4. Sync the directory.

    Source: kafka-log 05 §2 pass 4 (orphans).
    """
    wanted = list(segments)
    for part in (part for segment in wanted for part in segment.files):
        fs.sync_file(directory / part.part_name)
    if wanted:
        fs.sync_directory(directory)
    for segment in wanted:
        if before_segment is not None:
            before_segment()
        for part in segment.files:
            found = fs.entry(directory / part.part_name)
            if found is None or found.size_bytes != part.size_bytes:
                raise _changed(partition, directory / part.part_name, "a prepared file is missing or has another size")
            if fs.exists(directory / part.final_name):
                raise _changed(partition, directory / part.final_name, "a segment with this base offset exists")
        log, *indexes = segment.files
        for part in indexes:
            fs.rename(directory / part.part_name, directory / part.final_name)
        fs.sync_directory(directory)
        fs.rename(directory / log.part_name, directory / log.final_name)
        fs.sync_directory(directory)


# ---------------------------------------------------------------------------------------------------------------- parts
def is_part_file(name: str) -> bool:
    parsed = parse_segment_file(name)
    return parsed is not None and parsed.state == PART_SUFFIX


def discard_parts(
    directory: Path, run_id: str, fs: Fs, *, attempt: str | None = None, keep: Container[str] = ()
) -> tuple[str, ...]:
    """Files named in `keep` are kept, so that another process can commit them.

    Parts of other runs are also kept, because those runs may still commit them. Only `finish_interrupted` can delete
    the parts of other runs safely: its caller holds the lock and has started no task.
    """
    tag = f"{run_id}-" if attempt is None else f"{run_id}-{attempt}{PART_SUFFIX}"
    names = [name for name in fs.file_names(directory) if is_part_file(name)]
    ours = [name for name in names if name.split(".", 2)[2].startswith(tag) and name not in keep]
    for name in ours:
        fs.unlink(directory / name, missing_ok=True)
    return tuple(ours)

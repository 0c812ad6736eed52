"""The plan that restores a partition to its state before a run, or the reason why the plan would lose records.

The catalogue lists the logs before and after the run. Base offsets that are in both lists are anchors:

    segments before the first anchor    `expire` deleted segments here, and may have rolled an empty one: insert those
                                        listed only before the run, and remove those listed only after it
    from one anchor to the next         a cleaning merged, split or rewrote segments here, or a recovery cut or removed
                                        them: replace the group if the run changed a file of it
    segments past all listed ones       they were appended after the run: keep them

Invariants: nothing is read or written. A log is replaced only if its state is the one before the run or the one after
the run. Only the last log may have grown after the run, and only if the plan keeps this log. The plan is empty if the
partition is already in its state before the run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from sediment.engine.directory.originals.catalogue import OriginalFile, OriginalPartition
from sediment.segment_io.format.checkpoints import EpochEntry
from sediment.segment_io.format.names import LOG_START_FILE, SegmentFileKind, parse_segment_file, segment_file_name

_LOG = SegmentFileKind.LOG
_SNAPSHOT = SegmentFileKind.SNAPSHOT

CHANGED_SINCE = "changed-since"
APPENDED_SINCE = "appended-since"
LOG_START_RAISED = "log-start-raised"
ORIGINALS_MISSING = "originals-missing"
UNFINISHED_RUN = "unfinished-run"

Files = Mapping[str, OriginalFile]
"""The files of a directory by name."""


@dataclass(frozen=True, slots=True)
class Refusal:
    reason_code: str
    reason: str


@dataclass(frozen=True, slots=True)
class RestoredFile:
    file: OriginalFile
    is_kept: bool


@dataclass(frozen=True, slots=True)
class RestoredSegment:
    base_offset: int
    files: tuple[RestoredFile, ...]
    is_active: bool = False


@dataclass(frozen=True, slots=True)
class RestoredGroup:
    sources: tuple[int, ...]
    segments: tuple[RestoredSegment, ...]


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """`log_start_first` must be durable before the segments change.

    `log_start_last` is written after the change. Both values are used only if `moves_log_start` is True.
    """

    inserted: tuple[RestoredSegment, ...] = ()
    groups: tuple[RestoredGroup, ...] = ()
    removed: tuple[int, ...] = ()
    emptied: tuple[int, ...] = ()
    snapshots: tuple[RestoredFile, ...] = ()
    stray_snapshots: tuple[str, ...] = ()
    moves_log_start: bool = False
    log_start_first: int | None = None
    log_start_last: int | None = None
    restores_epochs: bool = False
    is_appended: bool = False

    @property
    def is_empty(self) -> bool:
        changes = (self.inserted, self.groups, self.removed, self.emptied, self.snapshots, self.stray_snapshots)
        return not any(changes)

    def segments(self) -> tuple[RestoredSegment, ...]:
        return (*self.inserted, *(segment for group in self.groups for segment in group.segments))

    def applied(self, live: Files) -> dict[str, OriginalFile]:
        gone = {*self.removed, *self.emptied, *(base for group in self.groups for base in group.sources)}
        wanted = {segment.base_offset for segment in self.segments()}
        left = {
            name: file
            for name, file in live.items()
            if name not in self.stray_snapshots
            and (_base_of(name) not in gone or (name.endswith(_SNAPSHOT) and _base_of(name) in wanted))
        }
        files = (*(each for segment in self.segments() for each in segment.files), *self.snapshots)
        return left | {each.file.name: each.file for each in files}


def plan_restore(
    entry: OriginalPartition,
    live: Files,
    kept: Files,
    *,
    copies: Collection[str] = (),
    is_done: bool,
    log_start_checkpoint: int | None,
) -> RestorePlan | Refusal:
    """`copies` contains the names of the `live` files that have the same bytes as their originals.

    `is_done` is False for a killed run; its catalogue may list files that it did not remove.
    """
    if not is_done:
        entry = _with_linked_files(entry, kept)
    if entry.new_files is not None:
        return _Planner(entry, entry.new_files, live, kept, copies, log_start_checkpoint).plan()
    if all(_is_same(live.get(file.name), file) for file in entry.files):
        return RestorePlan()
    return Refusal(UNFINISHED_RUN, "the run was killed before it listed its new files; put its originals back by hand")


def _with_linked_files(planned: OriginalPartition, kept: Files) -> OriginalPartition:
    linked = tuple(file for file in planned.files if _is_same(kept.get(file.name), file))
    others = tuple(file for file in planned.files if file not in linked and file.name.endswith(_LOG))
    return replace(planned, files=linked, unchanged=(*planned.unchanged, *others))


def _is_same(file: OriginalFile | None, other: OriginalFile) -> bool:
    # If the inode of `other` is 0, `other` was listed before it was written, and equals every existing file.
    return file is not None and (other.inode == 0 or file == other)


def _is_copy(file: OriginalFile | None, other: OriginalFile) -> bool:
    return file is not None and (file.size_bytes, file.mtime_ns) == (other.size_bytes, other.mtime_ns)


class _RefusedError(Exception):
    def __init__(self, reason_code: str, reason: str) -> None:
        super().__init__(reason)
        self.refusal = Refusal(reason_code, reason)


class _Planner:
    def __init__(
        self,
        entry: OriginalPartition,
        new_files: Sequence[OriginalFile],
        live: Files,
        kept: Files,
        copies: Collection[str],
        log_start_checkpoint: int | None,
    ) -> None:
        self._entry = entry
        self._live = live
        self._kept = kept
        self._copies = copies
        self._log_start_checkpoint = log_start_checkpoint
        self._removed_by_run = {file.name: file for file in entry.files}
        self._new = {file.name: file for file in new_files}
        self._unchanged = _logs(entry.unchanged)
        self._before = _logs(entry.files) | self._unchanged
        self._after = _logs(new_files) | self._unchanged
        self._found = _logs(live.values())
        self._last_known = max((*self._before, *self._after), default=-1)

    def plan(self) -> RestorePlan | Refusal:
        try:
            self._check_unchanged()
            self._keep_what_was_appended()
            return self._plan()
        except _RefusedError as refused:
            return refused.refusal

    def _plan(self) -> RestorePlan:
        bases = sorted({*self._before, *self._after})
        anchors = [base for base in bases if base in self._before and base in self._after]
        first = anchors[0] if anchors else self._last_known + 1
        prefix = [base for base in bases if base < first]
        inserted, removed, emptied = self._plan_prefix(prefix)
        groups = []
        for index, anchor in enumerate(anchors):
            end = anchors[index + 1] if index + 1 < len(anchors) else self._last_known + 1
            group = self._plan_group([base for base in bases if anchor <= base < end])
            if group is not None:
                groups.append(group)
        gone = {base for group in groups for base in group.sources} - {*self._before}
        snapshots, stray = self._plan_snapshots(gone)
        moves, log_start_first = self._plan_log_start(bool(prefix))
        tail = max(self._after, default=-1)
        return RestorePlan(
            inserted=inserted,
            groups=tuple(groups),
            removed=removed,
            emptied=emptied,
            snapshots=snapshots,
            stray_snapshots=stray,
            moves_log_start=moves,
            log_start_first=log_start_first,
            log_start_last=self._entry.checkpoints.get(LOG_START_FILE),
            restores_epochs=bool(prefix) or (tail not in self._unchanged),
            is_appended=self._is_appended(),
        )

    def _is_appended(self) -> bool:
        last = max(self._after, default=-1)
        found, left = self._found.get(last), self._after.get(last)
        return max(self._found, default=-1) > self._last_known or (
            last in self._unchanged and found is not None and left is not None and found.size_bytes > left.size_bytes
        )

    # ------------------------------------------------------------------------------------------------------- divergence
    def _check_unchanged(self) -> None:
        last = max(self._after, default=-1)
        for base, file in sorted(self._unchanged.items()):
            found = self._found.get(base)
            if base != last and not _is_same(found, file):
                raise _changed(base, found)
            if base == last and not _has_grown(found, file) and not _is_copy(found, file):
                raise _changed(base, found)
        known = {*self._before, *self._after}
        for base in sorted(self._found):
            if base not in known and base < self._last_known:
                raise _RefusedError(CHANGED_SINCE, f"segment {base} was created after the run, between its segments")

    def _keep_what_was_appended(self) -> None:
        last = max(self._after, default=-1)
        found, made = self._found.get(last), self._after.get(last)
        if last in self._unchanged or found is None or made is None or found.size_bytes <= made.size_bytes:
            return
        if last in self._before and self._is_as_before(found):
            return
        if last in self._before or made.size_bytes:
            raise _RefusedError(
                APPENDED_SINCE, f"records were appended to segment {last} after the run; they would be lost"
            )
        self._before[last] = self._unchanged[last] = found
        for name in [name for name in self._new if _base_of(name) == last]:
            del self._new[name]

    def _check_span(self, bases: Sequence[int]) -> None:
        before = [(base, self._before[base]) for base in bases if base in self._before]
        after = [(base, self._after[base]) for base in bases if base in self._after]
        if not any(all(self._is_found(base, file) for base, file in logs) for logs in (before, after)):
            odd = next(base for base, file in after if not self._is_found(base, file))
            raise _changed(odd, self._found.get(odd))
        for base in bases:
            found = self._found.get(base)
            known = [logs[base] for logs in (self._before, self._after) if base in logs]
            if found is not None and not any(self._is_found(base, file) for file in known):
                raise _changed(base, found)

    def _is_as_before(self, found: OriginalFile | None) -> bool:
        before = None if found is None else self._removed_by_run.get(found.name)
        if found is None or before is None or found == before:
            return found is not None and before is not None
        # A run may also have written a new file with the same bytes as the file that it replaced.
        return found != self._new.get(found.name) and found.name in self._copies

    def _is_made(self, name: str, file: OriginalFile) -> bool:
        found = self._live.get(name)
        return _is_same(found, file) and not self._is_as_before(found)

    def _is_found(self, base: int, file: OriginalFile) -> bool:
        found = self._found.get(base)
        if base in self._unchanged or _is_same(found, file):
            return True
        if file is self._before.get(base):
            return self._is_as_before(found)
        return base == max(self._after) and _is_copy(found, file)

    # ------------------------------------------------------------------------------------------------------------ parts
    def _plan_prefix(
        self, bases: Sequence[int]
    ) -> tuple[tuple[RestoredSegment, ...], tuple[int, ...], tuple[int, ...]]:
        if not bases:
            return (), (), ()
        self._check_span(bases)
        before = [base for base in bases if base in self._before]
        after = [base for base in bases if base in self._after]
        inserted = tuple(self._segment(base) for base in before if not self._is_as_before(self._found.get(base)))
        left = tuple(base for base in after if base in self._found)
        if not before or not after or max(after) < min(before):
            return inserted, left, ()
        if max(before) > min(after) or any(self._found[base].size_bytes for base in left):
            raise _RefusedError(CHANGED_SINCE, "the segments from before the run overlap those that the run wrote")
        return inserted, (), left

    def _plan_group(self, bases: Sequence[int]) -> RestoredGroup | None:
        names = [name for name in (*self._removed_by_run, *self._new) if not name.endswith(_SNAPSHOT)]
        if not any(_base_of(name) in bases for name in names):
            return None
        self._check_span(bases)
        wanted = [base for base in bases if base in self._before]
        present = tuple(base for base in bases if base in self._found)
        files = {
            file.name: file
            for file in self._entry.files
            if _base_of(file.name) in wanted and not file.name.endswith(_SNAPSHOT)
        }
        made = [
            name
            for name, file in self._new.items()
            if _base_of(name) in bases and not name.endswith(_SNAPSHOT) and self._is_made(name, file)
        ]
        is_whole = all(self._is_as_before(self._live.get(name)) for name in files)
        if is_whole and not made and list(present) == wanted:
            return None
        segments = (self._segment(base) for base in wanted)
        # New segments above the last old segment become links, even the active one.  The old segments do not contain
        # the records of these new segments.  So a start can undo an interrupted replacement only if the new files are
        # links.
        return RestoredGroup(
            present,
            tuple(replace(each, is_active=False) if each.base_offset > max(present) else each for each in segments),
        )

    def _segment(self, base: int) -> RestoredSegment:
        files = []
        for kind in SegmentFileKind:
            name = f"{base:020d}{kind}"
            if kind is _SNAPSHOT:
                continue
            if name in self._removed_by_run:
                files.append(self._original(self._removed_by_run[name]))
            elif name in self._live and name not in self._new:
                files.append(RestoredFile(self._live[name], is_kept=False))
        later = any(other > self._last_known for other in self._found)
        return RestoredSegment(base, tuple(files), is_active=not later and base == max(self._before))

    def _original(self, file: OriginalFile) -> RestoredFile:
        if self._is_as_before(self._live.get(file.name)):
            return RestoredFile(self._live[file.name], is_kept=False)
        if _is_same(self._kept.get(file.name), file):
            return RestoredFile(file, is_kept=True)
        what = "is not among the originals any more" if file.name not in self._kept else "was changed"
        raise _RefusedError(ORIGINALS_MISSING, f"{file.name} {what}")

    def _plan_snapshots(self, gone: Collection[int]) -> tuple[tuple[RestoredFile, ...], tuple[str, ...]]:
        # The removal of the segments at the bases `gone` also removes their snapshots. A snapshot that the run found
        # there, at the log end, must be put back.
        wanted = [
            self._original(file)
            for file in self._entry.files
            if file.name.endswith(_SNAPSHOT) and not self._is_as_before(self._live.get(file.name))
        ]
        known = {*self._removed_by_run, *self._new}
        names = (segment_file_name(base, _SNAPSHOT) for base in sorted(gone))
        wanted += [RestoredFile(self._live[name], is_kept=False) for name in names if name in self._live.keys() - known]
        stray = [
            name
            for name, file in self._new.items()
            if name.endswith(_SNAPSHOT) and name not in self._removed_by_run and _is_same(self._live.get(name), file)
        ]
        return tuple(wanted), tuple(stray)

    def _plan_log_start(self, has_prefix: bool) -> tuple[bool, int | None]:
        wanted = self._entry.checkpoints.get(LOG_START_FILE)
        now = self._log_start_checkpoint
        first = min(self._found, default=0)
        if not has_prefix:
            return wanted != now and max(wanted or 0, first) == max(now or 0, first), wanted
        left_at, front = max(wanted or 0, min(self._after, default=0)), min(self._before, default=0)
        log_start_first = wanted if min(self._after, default=0) >= front else max(wanted or 0, front)
        if max(now or 0, first) > max(left_at, log_start_first or 0):
            raise _RefusedError(
                LOG_START_RAISED,
                f"the log starts at {max(now or 0, first)}, but the run left it at {left_at}; "
                "the records between these offsets were deleted after the run",
            )
        return True, log_start_first


def _has_grown(found: OriginalFile | None, file: OriginalFile) -> bool:
    return found is not None and found.inode == file.inode and found.size_bytes >= file.size_bytes


def _changed(base: int, found: OriginalFile | None) -> _RefusedError:
    what = "no longer exists" if found is None else "is not as the run left it"
    return _RefusedError(
        CHANGED_SINCE, f"segment {base} {what}; a broker or another run changed the log after this run"
    )


def _logs(files: Iterable[OriginalFile]) -> dict[int, OriginalFile]:
    return {_base_of(file.name): file for file in files if file.name.endswith(_LOG)}


def _base_of(name: str) -> int:
    parsed = parse_segment_file(name)
    assert parsed is not None, name
    return parsed.base_offset


def merged_epochs(before: Sequence[EpochEntry], now: Sequence[EpochEntry]) -> tuple[EpochEntry, ...]:
    newest = max((entry.epoch for entry in before), default=-1)
    return (*before, *(entry for entry in now if entry.epoch > newest))

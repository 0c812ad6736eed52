"""The rewrite of one partition by its verdicts, and the digests of its files before it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sediment.compaction.config import CompactionConfig
from sediment.compaction.prepared_swap import CleanedGroup
from sediment.compaction.rewrite.plan import RewrittenSegment, SegmentTask, plan_rewrite
from sediment.compaction.rewrite.verdicts import Action, NotReached, Verdicts
from sediment.jobs.cleaning.environment import OnBytes
from sediment.jobs.rewriting.partition_task import PartitionPlan
from sediment.segment_io.format.names import SegmentFileKind, segment_file_name
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.listing import SegmentRef
from sediment.segment_io.partition.log_view import LogView

_READ_BYTES = 1 << 20
_KINDS = tuple(kind for kind in SegmentFileKind if kind is not SegmentFileKind.SNAPSHOT)


@dataclass(frozen=True, slots=True)
class FileDigest:
    """A file of a segment: its name, size, and SHA-256 in hex."""

    name: str
    size_bytes: int
    sha256: str


def segment_digests(directory: Path, base_offset: int, fs: Fs) -> tuple[FileDigest, ...]:
    """Return the digests of the existing files of a segment: log, offset, time and transaction index.

    Raises:
        OSError: a file cannot be read.
    """
    names = [segment_file_name(base_offset, kind) for kind in _KINDS]
    return tuple(file_digest(directory / name) for name in names if fs.exists(directory / name))


def file_digest(path: Path, size_bytes: int | None = None) -> FileDigest:
    """Return the digest of a file, or of its first `size_bytes`.

    Raises:
        OSError: the file cannot be read.
    """
    digest, read = hashlib.sha256(), 0
    for chunk in _chunks(path, size_bytes):
        digest.update(chunk)
        read += len(chunk)
    return FileDigest(path.name, read, digest.hexdigest())


def _chunks(path: Path, size_bytes: int | None) -> Iterator[bytes]:
    left = size_bytes
    with open(path, "rb", buffering=0) as file:
        while chunk := file.read(_READ_BYTES if left is None else min(_READ_BYTES, left)):
            yield chunk
            left = None if left is None else left - len(chunk)


@dataclass(frozen=True, slots=True)
class ErasedSegment:
    """Result of one segment; `before` are its files before the run, if evidence is asked for."""

    rewritten: RewrittenSegment
    before: tuple[FileDigest, ...]

    @property
    def group(self) -> CleanedGroup:
        """The segment and its replacement."""
        return self.rewritten.group


@dataclass(frozen=True, slots=True)
class EraseSegment:
    """Rewrite of one segment."""

    task: SegmentTask
    with_digests: bool

    @property
    def segment(self) -> SegmentRef:
        """The segment."""
        return self.task.segment

    def rewrite(self, fs: Fs, *, run_id: str, attempt: str, progress: OnBytes) -> ErasedSegment:
        """Rewrite the segment; arguments and errors are those of `rewrite_segment`."""
        from sediment.compaction.rewrite.segment_rewrite import rewrite_segment

        before = segment_digests(self.task.directory, self.segment.base_offset, fs) if self.with_digests else ()
        return ErasedSegment(rewrite_segment(self.task, fs, run_id=run_id, attempt=attempt, progress=progress), before)


@dataclass(frozen=True, slots=True)
class Planned:
    """Findings of a plan: the verdicts that no segment may carry out, and those that some segment is to."""

    not_reached: NotReached
    reached: int


@dataclass(frozen=True, slots=True)
class ErasePartition:
    """Rewrite of one partition."""

    verdicts: Verdicts
    with_digests: bool

    def plan(self, view: LogView, config: CompactionConfig, _fs: Fs) -> PartitionPlan:
        """Return the segments with verdicts that may be carried out."""
        plan = plan_rewrite(view, self.verdicts, config)
        has_new_keys = bool((self.verdicts.actions == Action.REPLACE_KEY).any())
        return PartitionPlan(
            tuple(EraseSegment(task, self.with_digests) for task in plan.tasks),
            plan.next_dirty_offset if has_new_keys else None,
            Planned(plan.not_reached, sum(len(task.verdicts) for task in plan.tasks)),
        )

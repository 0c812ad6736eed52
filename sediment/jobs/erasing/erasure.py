"""The rewrite of one partition by its verdicts, and the digests of its files before the rewrite."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from sediment.compaction.config import CompactionConfig
from sediment.compaction.prepared_swap import CleanedGroup
from sediment.compaction.rewrite.key_set import KeySet
from sediment.compaction.rewrite.plan import (
    KeyVerdicts,
    RewrittenSegment,
    SegmentRewriteTask,
    plan_key_rewrite,
    plan_rewrite,
)
from sediment.compaction.rewrite.verdicts import Action, NotReached, Verdicts
from sediment.jobs.rewriting.partition_task import (
    PartitionRewritePlan,
    SegmentTask,
    WrittenSegment,
    rewrite_segment_task,
)
from sediment.jobs.rewriting.result import CleaningResult
from sediment.segment_io.format.layout import CONTROL_BIT, MAGIC_V2
from sediment.segment_io.format.names import Attempt, SegmentFileKind, segment_file_name
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.listing import LogListing, SegmentRef
from sediment.segment_io.partition.log_view import LogView
from sediment.segment_io.segment.reader import HeaderScan

_READ_BYTES = 1 << 20
_KINDS = tuple(kind for kind in SegmentFileKind if kind is not SegmentFileKind.SNAPSHOT)


@dataclass(frozen=True, slots=True)
class FileDigest:
    name: str
    size_bytes: int
    sha256: str


def segment_digests(directory: Path, base_offset: int, fs: Fs) -> tuple[FileDigest, ...]:
    names = [segment_file_name(base_offset, kind) for kind in _KINDS]
    return tuple(file_digest(directory / name, fs) for name in names if fs.exists(directory / name))


def file_digest(path: Path, fs: Fs, size_bytes: int | None = None) -> FileDigest:
    digest, read = hashlib.sha256(), 0
    for chunk in _chunks(path, fs, size_bytes):
        digest.update(chunk)
        read += len(chunk)
    return FileDigest(path.name, read, digest.hexdigest())


def _chunks(path: Path, fs: Fs, size_bytes: int | None) -> Iterator[bytes]:
    position = 0
    with closing(fs.open_readable(path)) as file:
        end = file.size_bytes() if size_bytes is None else size_bytes
        while chunk := file.read(position, min(_READ_BYTES, end - position)):
            yield chunk
            position += len(chunk)


@dataclass(frozen=True, slots=True)
class ErasedSegment:
    rewritten: RewrittenSegment
    before: tuple[FileDigest, ...]

    @property
    def group(self) -> CleanedGroup:
        return self.rewritten.group


@dataclass(frozen=True, slots=True)
class EraseSegment:
    """`action` is the action on records that are selected by key.

    `by_key` is set in the executor (`EraseSegments`).
    """

    task: SegmentRewriteTask
    with_digests: bool
    action: Action | None = None
    by_key: KeyVerdicts | None = None

    @property
    def segment(self) -> SegmentRef:
        return self.task.segment

    def rewrite(self, fs: Fs, attempt: Attempt) -> ErasedSegment:
        from sediment.compaction.rewrite import segment_rewrite

        rewritten = segment_rewrite.rewrite_segment(self.task, fs, attempt, by_key=self.by_key)
        parts = rewritten.group.parts
        try:
            is_listed = self.with_digests and bool(parts)
            before = segment_digests(self.task.directory, self.segment.base_offset, fs) if is_listed else ()
        except BaseException:
            for part in parts:
                for file in part.files:
                    fs.unlink(self.task.directory / file.part_name, missing_ok=True)
            raise
        return ErasedSegment(rewritten, before)


@dataclass(frozen=True, slots=True, repr=False)
class EraseSegments:
    """The function contains the keys, and the plans do not contain them.

    The driver handles a plan for every partition, but it sends the function to the executors only once per task.
    """

    keys: KeySet
    replacement: bytes

    def __call__(self, task: SegmentTask, attempt: str) -> WrittenSegment | CleaningResult:
        work = task.rewrite
        assert isinstance(work, EraseSegment)
        if work.action is not None:
            replacement = self.replacement if work.action is Action.REPLACE_VALUE else b""
            work = replace(work, by_key=KeyVerdicts(self.keys, work.action, replacement))
        return rewrite_segment_task(replace(task, rewrite=work), attempt)


@dataclass(frozen=True, slots=True)
class Planned:
    """Findings of a plan: the verdicts on records that the run cannot reach.

    `records` counts all records of the partition; None if they were not counted.
    """

    not_reached: NotReached
    records: int | None


@dataclass(frozen=True, slots=True)
class EraseByKey:
    """Rewrite of one partition in which the same action applies to all records with given keys (`EraseSegments`)."""

    action: Action
    with_digests: bool

    def plan(self, view: LogView, config: CompactionConfig, _fs: Fs) -> PartitionRewritePlan:
        return PartitionRewritePlan(
            tuple(EraseSegment(task, self.with_digests, self.action) for task in plan_key_rewrite(view, config)),
            found=Planned(NotReached.joined([]), None),
        )


@dataclass(frozen=True, slots=True)
class ErasePartition:
    verdicts: Verdicts
    with_digests: bool
    counts_records: bool

    def plan(self, view: LogView, config: CompactionConfig, fs: Fs) -> PartitionRewritePlan:
        plan = plan_rewrite(view, self.verdicts, config)
        has_new_keys = bool((self.verdicts.actions == Action.REPLACE_KEY).any())
        return PartitionRewritePlan(
            tuple(EraseSegment(task, self.with_digests) for task in plan.tasks),
            plan.next_dirty_offset if has_new_keys else None,
            Planned(
                plan.not_reached,
                _data_records(view.listing, fs) if self.counts_records else None,
            ),
        )


def _data_records(listing: LogListing, fs: Fs) -> int:
    """Return the number of data records; a compressed message of magic 0 or 1 counts as one."""
    records = 0
    for segment in listing.segments:
        for rows in HeaderScan(listing.file(segment, SegmentFileKind.LOG), size_bytes=segment.log_bytes, fs=fs):
            is_legacy = rows["magic"] < MAGIC_V2
            is_control = ~is_legacy & (rows["attributes"] & CONTROL_BIT != 0)
            records += int(np.where(is_legacy, 1, rows["record_count"])[~is_control].sum())
    return records

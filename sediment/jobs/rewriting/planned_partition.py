"""Partitions of a rewriting run on the driver: the selected partitions, and the partitions with a plan."""

from __future__ import annotations

from dataclasses import dataclass, field

from sediment.compaction.prepared_swap import CleanedGroup
from sediment.engine.log_config import LogConfig
from sediment.jobs.rewriting.partition_task import PartitionRewritePlan, SegmentResult
from sediment.jobs.rewriting.result import CleaningResult
from sediment.jobs.settings.directories import SelectedDirectory
from sediment.jobs.settings.resolve import Settings
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.manifest import ManifestFile
from sediment.segment_io.partition.listing import LogListing


@dataclass(frozen=True, slots=True)
class SelectedPartition:
    listing: LogListing
    directory: SelectedDirectory
    settings: Settings
    config: LogConfig

    @property
    def partition(self) -> TopicPartition:
        return self.listing.partition


@dataclass(slots=True)
class PlannedPartition:
    """A partition with its plan, the results of its segments so far, and their files in an output.

    `replaced` are the groups that a commit in place has replaced, even if the commit of a later group failed.
    """

    selected: SelectedPartition
    plan: PartitionRewritePlan
    results: list[SegmentResult] = field(default_factory=list)
    files: list[ManifestFile] = field(default_factory=list)
    failure: CleaningResult | None = None
    finished: int = 0
    replaced: list[CleanedGroup] = field(default_factory=list)

    @property
    def listing(self) -> LogListing:
        return self.selected.listing

    @property
    def may_change(self) -> bool:
        return bool(self.plan.segments)

    def lowered_checkpoint(self) -> int | None:
        now = self.selected.directory.checkpoints.of(self.selected.partition).first_dirty
        lowered = self.plan.next_dirty_offset
        return lowered if now is not None and lowered is not None and lowered < now else None

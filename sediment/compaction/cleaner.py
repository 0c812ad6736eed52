"""One pass over one partition: kernels filter the partition's chunks into one output for each group.

    chunks, newest first  ->  kernel driver  ->  output of the group  ->  indexes, synced .part files
    (a reader thread          (this thread)                               (a writer thread, one group later)
     reads one chunk ahead)

Kafka's Cleaner.doClean, step by step:

    legacyDeleteHorizonMs     `delete_horizon.legacy_horizon_ms`
    buildOffsetMap            `fill_map`; the round ends where the map is full
    groupSegmentsBySize       `grouping.group_segments`; `plan_cleaning` forms no group for an empty dirty range
    last batches of producers `last_data_batches`, `batch_retention.active_producers`
    cleanInto, filterTo       `chunk_reader`, `sweep`
    cleaned segment           `group_output`: indexes, modification time
    offset overflow           `segment.writer` begins another segment; a load splits it (`loading.split_segment`)
    upper bound of a round    the first uncleanable offset, even if the map ends earlier (set in `kernel_driver`,
                              applied in `batch_retention.keeps_header`)

Memory: the map, two chunks with some of their records decompressed, the largest batch, and two outputs of survivors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import starmap

from sediment.compaction.chunk_reader import ChunkBoundaries, ChunkReader, FallbackRequiredError, Progress
from sediment.compaction.corrupt_regions import NOTHING_CORRUPT, CorruptRegions
from sediment.compaction.group_output import GroupOutput, PartWriter
from sediment.compaction.grouping import CleaningPlan, SegmentGroup, group_segments, isolate
from sediment.compaction.kernel_driver import KernelDriver, release_shared_memory
from sediment.compaction.kernels import registers
from sediment.compaction.kernels.delete_horizon import legacy_horizon_ms
from sediment.compaction.kernels.fill_map import end_segment
from sediment.compaction.last_data_batches import with_data_offsets
from sediment.compaction.partition_splits import KeyRun, RunNumber, Split, SurvivorBitmap
from sediment.compaction.prepared_swap import CleanedGroup
from sediment.compaction.write_behind import WriteBehind
from sediment.segment_io.compiled.status import OFFSETS_NOT_INCREASING
from sediment.segment_io.errors import MapFullError
from sediment.segment_io.format.hashing import draw_seed
from sediment.segment_io.format.layout import INT64_MAX
from sediment.segment_io.format.names import Attempt
from sediment.segment_io.fs import Fs


@dataclass(frozen=True, slots=True)
class PassKind:
    """How a pass reads the log and tells keys apart.

    `filter_by` selects how records are filtered: BY_OCCURRENCE, BY_OFFSET or, for a split, BY_BITMAP.  `boundaries`
    come from a forward scan and are keyed by the base offset of the segment; without such a scan, they are empty.
    """

    filter_by: int
    boundaries: dict[int, ChunkBoundaries]
    corrupt: CorruptRegions = NOTHING_CORRUPT
    exact_keys: bool = False


class CleaningPass:
    """`seed` is the seed of the key hashes; None means a random seed."""

    def __init__(
        self,
        plan: CleaningPlan,
        kind: PassKind,
        fs: Fs,
        stack: ExitStack,
        progress: Progress,
        *,
        writer: PartWriter | None = None,
        seed: int | None = None,
    ) -> None:
        self._plan = plan
        self._boundaries = kind.boundaries
        self._corrupt = kind.corrupt
        self._parts = writer or PartWriter(plan.view.listing.path, plan.config, fs, WriteBehind(), Attempt("", ""))
        self._is_bounded = plan.config.task_memory_bytes < INT64_MAX
        if self._is_bounded:
            self._parts.write_behind.settle()
            release_shared_memory()
        self._reader = ChunkReader(
            plan.view.listing.path,
            plan.view.listing.segments,
            fs,
            plan.config.max_decompressed_batch_bytes,
            legacy_horizon_ms(
                plan.view.listing.segments, plan.range.first_dirty_offset, plan.config.delete_retention_ms
            ),
            progress,
            stack,
        )
        self._is_filled = kind.filter_by == registers.BY_OFFSET
        self._kernels = KernelDriver(
            plan,
            self._reader,
            draw_seed() if seed is None else seed,
            with_data_offsets(plan.view, fs),
            filter_by=kind.filter_by,
            exact_keys=kind.exact_keys,
        )

    # ------------------------------------------------------------------------------------------------ a whole partition
    def run(self) -> tuple[list[Future[CleanedGroup]], int]:
        plan, end_offset, groups = self._plan, self._plan.end_offset, self._plan.groups
        if self._is_filled:
            end_offset = self._fill_map()
            groups = group_segments(
                plan.view.listing.segments, end_offset, plan.range.first_uncleanable_offset, plan.config
            )
        groups = isolate(groups, self._corrupt.by_segment)
        cleaned = self._clean_groups(groups)
        if self._is_bounded:
            self._parts.write_behind.settle()
        return cleaned, end_offset

    def _fill_map(self) -> int:
        state, cleanable, dirty = self._kernels.state, self._plan.range, self._plan.dirty_segments
        for segment, following in zip(dirty, [*dirty[1:], None], strict=True):
            chunks = self._reader.chunks([segment], self._boundaries, newest_first=False)
            if not all(self._kernels.fill_map(chunk) for chunk in chunks):
                break
            end_offset = following.base_offset if following else cleanable.first_uncleanable_offset
            end_segment(state, end_offset)
        end_offset = int(state[registers.LATEST_OFFSET]) + 1
        if end_offset <= cleanable.first_dirty_offset:
            raise MapFullError(
                "the offset map is too small for the first batch of the dirty range",
                path=str(self._plan.view.listing.path),
                offset=cleanable.first_dirty_offset,
                advice="raise log.cleaner.dedupe.buffer.size or leave it out",
            )
        return end_offset

    def _clean_groups(self, groups: Sequence[SegmentGroup]) -> list[Future[CleanedGroup]]:
        pending: list[Future[CleanedGroup]] = []
        try:
            for group in reversed(groups):
                output = self._sweep_group(group)
                if pending:
                    pending[-1].result()
                self._kernels.being_written_bytes = output.used_bytes()
                pending.append(self._parts.write_behind.submit(output.finish, output.used_bytes()))
        except BaseException:
            # The caller removes the parts next, so wait until no thread writes to them.
            wait(pending)
            raise
        return pending[::-1]

    def _sweep_group(self, group: SegmentGroup) -> GroupOutput:
        scans = (self._boundaries[s.base_offset] for s in group.segments if s.base_offset in self._boundaries)
        output = GroupOutput(
            group,
            [entry for scan in scans for entry in scan.kept_aborts],
            self._parts,
            self._kernels.state,
            self._corrupt.of(group.segments),
            is_untouchable=group.base_offset in self._corrupt.untouchable,
        )
        for chunk in self._reader.chunks(group.segments, self._boundaries, newest_first=True):
            self._kernels.sweep_chunk(chunk, output)
        output.take()
        return output

    # ------------------------------------------------------------------------------------------------------ a split
    def collect_keys(self, split: Split, splits: int, run_limit: int) -> Iterator[KeyRun]:
        kernels, above, number = self._kernels, splits - 1 - split.number, 0
        kernels.begin_split(split.end_offset, run_limit)
        without_key: list[int] = []
        for group in reversed(split.groups):
            kernels.state[registers.WITHOUT_KEY] = 0
            for chunk in self._reader.chunks(group.segments, self._boundaries, newest_first=True):
                for keys in kernels.collect_keys(chunk):
                    yield KeyRun(RunNumber(above, number), *keys, kernels.met())
                    number += 1
            without_key.append(int(kernels.state[registers.WITHOUT_KEY]))
        self._check_split_start(split)
        yield KeyRun(RunNumber(above, number), *kernels.end_run(), kernels.met(tuple(reversed(without_key))))

    def clean_split(self, split: Split, survivors: SurvivorBitmap) -> tuple[CleanedGroup, ...]:
        self._kernels.begin_split(split.end_offset, INT64_MAX)
        self._kernels.use_survivors(survivors.bits)
        cleaned = tuple(future.result() for future in self._clean_groups(split.groups))
        self._check_split_start(split)
        if self._kernels.met() != survivors.of:
            raise self._kernels.changed()
        return tuple(starmap(_with_records_without_key, zip(cleaned, survivors.of.without_key, strict=True)))

    def _check_split_start(self, split: Split) -> None:
        """Check that no offset of the split is below its first segment; the next older split ends at that segment."""
        if self._kernels.state[registers.LAST_BASE_OFFSET] < split.groups[0].base_offset:
            raise FallbackRequiredError(OFFSETS_NOT_INCREASING)


def _with_records_without_key(group: CleanedGroup, dropped: int) -> CleanedGroup:
    """Add the records that the first sweep counted; the second one has subtracted those that it kept after all."""
    stats = replace(group.stats, records_without_key=group.stats.records_without_key + dropped)
    return replace(group, stats=stats)

"""One pass over one partition: its chunks go through the kernels into one output for each group.

    chunks, newest first  ->  kernel driver  ->  output of the group  ->  indexes, synced .part files
    (a reader thread          (this thread)                               (a writer thread, one group later)
     reads one chunk ahead)

`CleaningPass.run` cleans a whole partition:
1. Scan headers and control keys forward, if the partition may hold transactions or has corrupt regions.
2. Fill a map with offsets forward, if the map is bounded or offsets do not increase.
3. Sweep the groups, newest first; each output is written while the next group is swept.

A split takes two passes: `collect_keys`, then `clean_split` with the survivors that the keys of all splits leave.

Memory: the map, two outputs (one of them being written) of survivors only, two chunks with some of their records
decompressed, and the largest batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack

from sediment.compaction.chunk_reader import Chunk, ChunkBoundaries, ChunkReader, FallbackRequiredError, Progress
from sediment.compaction.corrupt_regions import CorruptRegions, isolate, scan_corrupt_log
from sediment.compaction.group_output import GroupOutput, PartWriter
from sediment.compaction.grouping import CleaningPlan, SegmentGroup, group_segments
from sediment.compaction.kernel_driver import KernelDriver, release_shared_memory
from sediment.compaction.kernels import registers
from sediment.compaction.prepared_swap import CleanedGroup
from sediment.compaction.split import KeyRun, RunNumber, Split, SurvivorBitmap
from sediment.compaction.transaction_scan import dirty_base, scan_segments
from sediment.compaction.write_behind import WriteBehind
from sediment.segment_io.compiled.status import OFFSETS_NOT_INCREASING
from sediment.segment_io.errors import MapFullError
from sediment.segment_io.format.hashing import draw_seed
from sediment.segment_io.format.layout import INT64_MAX
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.listing import SegmentRef
from sediment.segment_io.units import NS_PER_MS

Boundaries = dict[int, ChunkBoundaries]
"""Chunk boundaries that a forward scan found, by base offset of the segment; empty without a scan."""


class CleaningPass:
    """One attempt at one partition or one split of it.

    `seed` is that of the keys' hashes; None: a random one.  `writer` may be left out of a pass that writes nothing.
    """

    def __init__(
        self,
        plan: CleaningPlan,
        fs: Fs,
        stack: ExitStack,
        progress: Progress,
        *,
        writer: PartWriter | None = None,
        seed: int | None = None,
        corrupt: CorruptRegions | None = None,
        exact_keys: bool = False,
    ) -> None:
        self._plan = plan
        self._fs = fs
        self._progress = progress
        self._corrupt = corrupt or CorruptRegions({}, frozenset())
        self._parts = writer or PartWriter(plan.view.listing.path, plan.config, fs, WriteBehind(), "", "")
        if self._is_bounded():
            self._parts.write_behind.settle()
            release_shared_memory()
        self._reader = ChunkReader(
            plan.view.listing.path,
            plan.view.listing.segments,
            fs,
            plan.config.max_decompressed_batch_bytes,
            _legacy_horizon_ms(plan),
            stack,
        )
        self._kernels = KernelDriver(plan, self._reader, draw_seed() if seed is None else seed, exact_keys=exact_keys)

    # ------------------------------------------------------------------------------------------------ a whole partition
    def run(self, *, scanned: bool, filled: bool) -> tuple[list[Future[CleanedGroup]], int]:
        """Clean the plan's groups; return a future for each, and the next dirty offset.

        `scanned`: scan headers forward first.  `filled`: fill a map with offsets first.

        Raises:
            FallbackRequiredError: the pass needs a forward scan or a filled map.
            MapFullError: the bounded map does not hold the first batch of the dirty range.
        """
        plan = self._plan
        end_offset, groups, certain_end = plan.end_offset, plan.groups, INT64_MAX
        segments = [segment for group in groups for segment in group.segments]
        boundaries: Boundaries = {}
        if self._corrupt.by_segment:
            scan = scan_corrupt_log(plan, segments, self._corrupt, self._progress)
            boundaries, certain_end = scan.boundaries, scan.certain_end_offset
        elif scanned:
            boundaries = scan_segments(plan, segments, self._fs, self._progress)
        if filled:
            end_offset = self._fill_map(segments, boundaries)
            groups = group_segments(
                plan.view.listing.segments, end_offset, plan.range.first_uncleanable_offset, plan.config
            )
        else:
            self._kernels.begin_map(with_offsets=False)
        self._kernels.begin_sweep(end_offset, registers.BY_OFFSET if filled else registers.BY_OCCURRENCE)
        cleaned = self._clean_groups(isolate(groups, self._corrupt), boundaries)
        if self._is_bounded():
            self._parts.write_behind.settle()
        return cleaned, min(end_offset, certain_end)

    def _fill_map(self, segments: Sequence[SegmentRef], boundaries: Boundaries) -> int:
        """Fill the map over the dirty range; return the end offset of the round (kafka-log 02 §4.2)."""
        state, cleanable = self._kernels.state, self._plan.range
        self._kernels.begin_fill()
        base = dirty_base(segments, cleanable.first_dirty_offset)
        dirty = [segment for segment in segments if segment.base_offset >= base]
        for segment, following in zip(dirty, [*dirty[1:], None], strict=True):
            for chunk in self._read([segment], boundaries, newest_first=False):
                if not self._kernels.fill_map(chunk):
                    return self._end_of_round()
            end_offset = following.base_offset if following else cleanable.first_uncleanable_offset
            state[registers.LATEST_OFFSET] = end_offset - 1
        return self._end_of_round()

    def _end_of_round(self) -> int:
        end_offset = int(self._kernels.state[registers.LATEST_OFFSET]) + 1
        if end_offset <= self._plan.range.first_dirty_offset:
            raise MapFullError(
                "the offset map is too small for the first batch of the dirty range",
                path=str(self._plan.view.listing.path),
                offset=self._plan.range.first_dirty_offset,
                advice="raise log.cleaner.dedupe.buffer.size or leave it out",
            )
        return end_offset

    def _clean_groups(self, groups: Sequence[SegmentGroup], boundaries: Boundaries) -> list[Future[CleanedGroup]]:
        """Sweep the groups, newest first, each written while the next is swept; return futures in log order."""
        pending: list[Future[CleanedGroup]] = []
        try:
            for group in reversed(groups):
                output = self._sweep_group(group, boundaries)
                if pending:
                    pending[-1].result()
                self._kernels.being_written_bytes = output.used_bytes()
                pending.append(self._parts.write_behind.submit(output.finish))
        except BaseException:
            # The caller removes the parts, and has to find all of them.
            wait(pending)
            raise
        return pending[::-1]

    def _sweep_group(self, group: SegmentGroup, boundaries: Boundaries) -> GroupOutput:
        scans = (boundaries[s.base_offset] for s in group.segments if s.base_offset in boundaries)
        output = GroupOutput(
            group,
            [entry for scan in scans for entry in scan.kept_aborts],
            self._parts,
            self._corrupt.of(group.segments),
            is_untouchable=group.base_offset in self._corrupt.untouchable,
        )
        self._kernels.begin_group(output)
        for chunk in self._read(group.segments, boundaries, newest_first=True):
            self._kernels.sweep_chunk(chunk, output)
        output.take(self._kernels.state)
        return output

    def _read(self, segments: Sequence[SegmentRef], boundaries: Boundaries, *, newest_first: bool) -> Iterator[Chunk]:
        for chunk in self._reader.chunks(segments, boundaries, newest_first=newest_first):
            self._progress(chunk.size_bytes)
            yield chunk

    def _is_bounded(self) -> bool:
        return self._plan.config.task_memory_bytes < INT64_MAX

    # ------------------------------------------------------------------------------------------------------ a split
    def collect_keys(self, split: Split, splits: int, boundaries: Boundaries, run_limit: int) -> Iterator[KeyRun]:
        """Yield the runs of a split, one of `splits`; a run follows the chunk in which it became complete."""
        kernels, above, number = self._kernels, splits - 1 - split.number, 0
        self._begin_split(split, run_limit)
        for group in reversed(split.groups):
            for chunk in self._read(group.segments, boundaries, newest_first=True):
                for keys in kernels.collect_keys(chunk):
                    yield KeyRun(RunNumber(above, number), *keys, kernels.met())
                    number += 1
        self._check_split_start(split)
        yield KeyRun(RunNumber(above, number), *kernels.end_run(), kernels.met())

    def clean_split(self, split: Split, survivors: SurvivorBitmap, boundaries: Boundaries) -> tuple[CleanedGroup, ...]:
        """Clean the groups of a split.

        Raises:
            SourceChangedError: the split does not hold the batches that `survivors` is about.
        """
        self._begin_split(split, INT64_MAX)
        self._kernels.use_survivors(survivors.bits)
        cleaned = tuple(future.result() for future in self._clean_groups(split.groups, boundaries))
        self._check_split_start(split)
        if self._kernels.met() != survivors.of:
            raise self._kernels.changed()
        return cleaned

    def _begin_split(self, split: Split, run_limit: int) -> None:
        self._kernels.begin_sweep(self._plan.end_offset, registers.BY_BITMAP)
        self._kernels.begin_split(split.end_offset, run_limit)

    def _check_split_start(self, split: Split) -> None:
        """Check that no offset of the split lies below its first segment; the split below may then end there.

        Raises:
            FallbackRequiredError: one does, so offsets do not increase from one split to the next.
        """
        if self._kernels.state[registers.LAST_BASE_OFFSET] < split.groups[0].base_offset:
            raise FallbackRequiredError(OFFSETS_NOT_INCREASING)


def _legacy_horizon_ms(plan: CleaningPlan) -> int:
    """Return the time up to which last modified segments lose tombstones of magic 0 and 1 (kafka-log 02 §3 step 1)."""
    retention_ms = plan.config.delete_retention_ms
    if retention_ms is None:
        return -INT64_MAX
    clean = [s for s in plan.view.listing.segments if s.base_offset < plan.range.first_dirty_offset]
    return clean[-1].mtime_ns // NS_PER_MS - retention_ms if clean else 0

"""One partition: a cleaning plan -> prepared files.  The only file of this package that does I/O.

    chunks, newest first  ->  sweep (judge, emit)  ->  one output buffer a group  ->  indexes  ->  synced .part files
    (a reader thread             (this thread)                                       (a writer thread, one group behind)
     reads one chunk ahead)

Three ways through a partition, each taken when the one before it finds that it does not hold:
* plain: chunks are cut where the offset index says that batches begin, and nothing is known of transactions;
* walked: a forward walk of headers and control keys gives verified cuts and the verdicts of the transaction rules;
* filled: a map with offsets is filled forward first, because it is bounded (map-full is a forward rule) or because
  offsets in the log do not increase; then the log is filtered against it.

Where a partition is damaged and what cannot be read is to be kept, it is walked too, by rules that drop less (damage).

A large partition is cleaned in splits instead: each is swept twice, first for its keys (`collect_split_keys`), then,
with what all of them told of these keys, as above but without a map (`clean_split`); plain or walked, never filled.

Where 128 bits of a key's hash are not proof enough, whole keys are compared before each chunk is swept (exact_keys).

Whoever cleans one partition after the other may sweep the next while the last output of this one is written.

Memory: the map, two output buffers (one being written) that hold only what survives, two chunks with some of their
records decompressed, and the largest batch;
with `task_memory_bytes` all of it together stays below that, or the partition is given up and left as it is.
Nothing is renamed here, and whatever is read is checked to be what was planned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sediment.compaction.chunks import (
    ByteArray,
    Chunk,
    ChunkBoundaries,
    ChunkReader,
    FallbackRequiredError,
    Progress,
)
from sediment.compaction.config import CompactionConfig
from sediment.compaction.corrupt_regions import (
    CorruptRegions,
    find_corrupt_regions,
    first_error,
    isolate,
    scan_corrupt_log,
)
from sediment.compaction.forward_scan import dirty_base, may_hold_transactions, scan_segments
from sediment.compaction.group_output import OUTPUT_PAGES, GroupOutput, PartWriter
from sediment.compaction.grouping import CleaningPlan, SegmentGroup, group_segments
from sediment.compaction.kernels import sweep
from sediment.compaction.kernels.offset_map import TABLE_PAGES, OffsetMap
from sediment.compaction.kernels.transactions import UNREADABLE, ActiveProducers
from sediment.compaction.prepared_swap import CleanedGroup, PreparedSwap
from sediment.compaction.split import (
    KeyRun,
    RunNumber,
    Split,
    SplitContents,
    SplitNotApplicableError,
    SurvivorBitmap,
)
from sediment.compaction.write_behind import WriteBehind
from sediment.segment_io.buffers import Buffer
from sediment.segment_io.compiled.status import (
    BEYOND_SIGHTED,
    DONE,
    MAP_FULL,
    NEEDS_COMPRESSION,
    NEEDS_MAP_ROOM,
    NEEDS_ORIGINAL,
    NEEDS_OUTPUT_ROOM,
    NEEDS_PAYLOAD,
    NEEDS_RAW_ROOM,
    NEEDS_RECORD_ROOM,
    NEEDS_SIGHT_ROOM,
    OFFSETS_NOT_INCREASING,
    RUN_FULL,
)
from sediment.segment_io.errors import (
    CorruptBatchError,
    CorruptIndexError,
    HashCollisionError,
    MapFullError,
    MemoryBudgetError,
    SedimentError,
    SourceChangedError,
)
from sediment.segment_io.format import decode
from sediment.segment_io.format.codecs import compress
from sediment.segment_io.format.compress import COMPRESSOR_REGISTERS, find_compressors
from sediment.segment_io.format.hashing import draw_seed, hash_secrets
from sediment.segment_io.format.layout import INT64_MAX
from sediment.segment_io.format.rebuild import NO_HORIZON
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.listing import SegmentRef
from sediment.segment_io.segment.reader import padded_buffer
from sediment.segment_io.units import NS_PER_MS

if TYPE_CHECKING:
    from sediment.compaction.exact_keys import ExactKeys

_MAP_SLOT_BYTES = 24  # what Kafka counts a key as: log.cleaner.dedupe.buffer.size is given in these
_FIRST_RECORDS = 4096
_MOST_SEEDS = 8  # under which two keys may collide before it is no chance any more
_NO_COMPRESSORS = np.zeros(COMPRESSOR_REGISTERS, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class SplitWork:
    """What the tasks of a partition cleaned in splits share: its plan, and what makes their sweeps tell alike.

    `cuts` are those of a forward walk, by base offset of the segment, or empty.  `seed` is the hash's, `run_limit` the
    number of first sights after which a run ends, `ranges` into how many ranges hashes are told apart.
    """

    plan: CleaningPlan
    cuts: dict[int, ChunkBoundaries]
    seed: int
    run_limit: int
    ranges: int


@dataclass(frozen=True, slots=True)
class SweptLog:
    """A partition whose groups are swept; the last of them may still be being written."""

    _plan: CleaningPlan
    _groups: Sequence[Future[CleanedGroup]]
    _next_dirty_offset: int

    def written(self) -> PreparedSwap:
        """The synced `.part` files, once they are there.

        Raises:
            OSError: as the filesystem says; nothing of the partition is being written any more then.
        """
        wait(self._groups)
        with _of_partition(self._plan):
            groups = tuple(future.result() for future in self._groups)
        listing = self._plan.view.listing
        return PreparedSwap(listing.partition, str(listing.path), groups, self._next_dirty_offset)


def clean_log(
    plan: CleaningPlan,
    fs: Fs,
    *,
    run_id: str,
    attempt: str,
    progress: Progress | None = None,
    keep_unreadable: bool = False,
    exact_keys: bool = False,
) -> PreparedSwap:
    """Clean the groups of `plan` into synced `.part` files beside their sources.

    As `sweep_log`, with all of it written.
    """
    with WriteBehind() as behind:
        return sweep_log(
            plan,
            fs,
            behind,
            run_id=run_id,
            attempt=attempt,
            progress=progress,
            keep_unreadable=keep_unreadable,
            exact_keys=exact_keys,
        ).written()


def sweep_log(
    plan: CleaningPlan,
    fs: Fs,
    behind: WriteBehind,
    *,
    run_id: str,
    attempt: str,
    progress: Progress | None = None,
    keep_unreadable: bool = False,
    exact_keys: bool = False,
) -> SweptLog:
    """Clean the groups of `plan` into `.part` files beside their sources, which `behind` writes behind the sweep.

    With `task_memory_bytes`, which bound what is held, nothing else is being written meanwhile or afterwards.
    `progress` is called with the bytes of each chunk that was read, before it is used; what it raises ends all.
    `keep_unreadable` keeps batches that cannot be read as they are, and with them whatever their unknown records could
    make wrong to drop; `unreadable` of the groups names them, and the checkpoint stays below them.
    `exact_keys` takes two keys for one only if their bytes are equal, and not because their hashes are; the keys are
    held in memory then.

    Raises:
        CorruptBatchError: a batch fails its CRC or is malformed, and was not to be kept.
        SourceChangedError: the segments are not those that were planned.
        MapFullError: the bounded offset map does not hold two keys.
        MemoryBudgetError: `task_memory_bytes` do not hold the keys and the survivors.
        HashCollisionError: two keys have one hash under every seed that was tried.

    Source: kafka-log 02 §3-§6.
    """
    seeds_left = _MOST_SEEDS
    walked = may_hold_transactions(plan)
    filled = plan.config.dedupe_buffer_bytes is not None
    damage: CorruptRegions | None = None
    with _of_partition(plan):
        while True:
            writer = _part_writer(plan, fs, behind, run_id, attempt)
            try:
                with ExitStack() as stack:
                    cleaning = _Cleaning(
                        plan, fs, stack, writer=writer, progress=progress, damage=damage, exact_keys=exact_keys
                    )
                    return cleaning.run(walked=walked, filled=filled)
            except FallbackRequiredError as broken:
                # The groups that were finished before it broke.
                writer.remove_all()
                if broken.status == OFFSETS_NOT_INCREASING:
                    filled = True
                walked = True
            except HashCollisionError as collision:
                writer.remove_all()
                seeds_left -= 1
                if not seeds_left:
                    raise HashCollisionError(
                        f"two different keys have one hash under each of {_MOST_SEEDS} seeds",
                        path=str(plan.view.listing.path),
                        offset=collision.offset,
                        advice="nothing was changed; --key-equality hash would take the two for one key",
                    ) from collision
            except CorruptBatchError:
                writer.remove_all()
                if damage is not None or not keep_unreadable:
                    raise
                damage = find_corrupt_regions(plan, fs, progress or _no_progress)
                if not damage.by_segment:
                    raise
            except CorruptIndexError:
                writer.remove_all()
                if damage is not None:
                    raise
                # Headers are walked before their checksums are known: a damaged batch can look like a contradiction.
                damage = find_corrupt_regions(plan, fs, progress or _no_progress)
                if not damage.by_segment:
                    raise
                if not keep_unreadable:
                    raise first_error(plan, damage) from None


def scan_log(
    plan: CleaningPlan, fs: Fs, *, only_if_needed: bool, progress: Progress | None = None
) -> dict[int, ChunkBoundaries]:
    """The forward walk alone, for splits; `only_if_needed` leaves it out where nothing tells of transactions.

    Raises:
        CorruptBatchError, SourceChangedError: as `clean_log`.
    """
    if only_if_needed and not may_hold_transactions(plan):
        return {}
    with _of_partition(plan):
        segments = [segment for group in plan.groups for segment in group.segments]
        return scan_segments(plan, segments, fs, progress or _no_progress)


def collect_split_keys(
    work: SplitWork, split: Split, splits: int, fs: Fs, *, progress: Progress | None = None
) -> Iterator[KeyRun]:
    """Sweep a split, one of `splits`, for its keys alone; yields its runs, newest first, as they become complete.

    Raises:
        SplitDoesNotHoldError: the log needs a forward walk first, or cannot be split.
        CorruptBatchError, SourceChangedError: as `clean_log`.
    """
    with ExitStack() as stack, _of_partition(work.plan):
        cleaning = _Cleaning(work.plan, fs, stack, progress=progress, seed=work.seed)
        yield from cleaning.sight(work, split, splits)


def clean_split(
    work: SplitWork,
    split: Split,
    living: SurvivorBitmap,
    fs: Fs,
    *,
    run_id: str,
    attempt: str,
    progress: Progress | None = None,
) -> tuple[CleanedGroup, ...]:
    """Clean the groups of a split into synced `.part` files, given what the folds told of its living records.

    Raises:
        as `collect_split_keys`; nothing of the split is left then.
    """
    with WriteBehind() as behind, _of_partition(work.plan):
        writer = _part_writer(work.plan, fs, behind, run_id, attempt)
        try:
            with ExitStack() as stack:
                cleaning = _Cleaning(work.plan, fs, stack, writer=writer, progress=progress, seed=work.seed)
                return cleaning.clean(work, split, living)
        except BaseException:
            writer.remove_all()
            raise


def _part_writer(plan: CleaningPlan, fs: Fs, behind: WriteBehind, run_id: str, attempt: str) -> PartWriter:
    return PartWriter(plan.view.listing.path, plan.config, fs, behind, run_id, attempt)


@contextmanager
def _of_partition(plan: CleaningPlan) -> Iterator[None]:
    """Name the partition in errors; tell of a way that does not hold, and of segments that went away."""
    try:
        yield
    except FallbackRequiredError as broken:
        raise SplitNotApplicableError(needs_walk=broken.status != OFFSETS_NOT_INCREASING) from broken
    except FileNotFoundError as error:
        raise SourceChangedError(
            "a segment went away while it was cleaned",
            partition=str(plan.view.listing.partition),
            path=str(error.filename),
            advice="another process deletes from this directory; stop it and run again",
        ) from error
    except SedimentError as error:
        if error.partition is None:
            error.partition = str(plan.view.listing.partition)
        raise


def _no_progress(_size_bytes: int) -> None:
    return None


class _Cleaning:
    """One attempt at one partition, in one of the three ways."""

    def __init__(
        self,
        plan: CleaningPlan,
        fs: Fs,
        stack: ExitStack,
        *,
        writer: PartWriter | None = None,
        progress: Progress | None = None,
        seed: int | None = None,
        damage: CorruptRegions | None = None,
        exact_keys: bool = False,
    ) -> None:
        self._plan = plan
        self._damage = damage or CorruptRegions({}, frozenset())
        self._config: CompactionConfig = plan.config
        self._parts = writer or _part_writer(plan, fs, WriteBehind(), "", "")
        if self._is_bounded():
            self._parts.behind.settle()
            _give_back_memory()
        self._fs = fs
        self._progress = progress or _no_progress
        self._directory = plan.view.listing.path
        self._reader = ChunkReader(
            self._directory,
            plan.view.listing.segments,
            fs,
            self._config.max_decompressed_batch_bytes,
            _legacy_horizon_ms(plan),
            stack,
        )
        self._seed = draw_seed() if seed is None else seed
        self._secrets = hash_secrets(self._seed)
        self._producers = _active_producers(plan)
        self._scratch = _Scratch()
        self._being_written_bytes = 0
        self._state = np.zeros(sweep.STATE_REGISTERS, dtype=np.int64)
        self._rules = np.zeros(sweep.RULE_REGISTERS, dtype=np.int64)
        self._living_bits = np.zeros(0, dtype=np.uint8)
        self._digest: np.uint64 | None = None
        self._compressors = _NO_COMPRESSORS
        self._exact_keys = self._compare_keys() if exact_keys else None

    def run(self, *, walked: bool, filled: bool) -> SweptLog:
        plan = self._plan
        end_offset = plan.end_offset
        groups = plan.groups
        segments = [segment for group in groups for segment in group.segments]
        certain_end = INT64_MAX
        if self._damage.by_segment:
            walk = scan_corrupt_log(plan, segments, self._damage, self._progress)
            cuts, certain_end = walk.cuts, walk.certain_end_offset
        else:
            cuts = scan_segments(plan, segments, self._fs, self._progress) if walked else {}
        self._map = OffsetMap(with_offsets=filled)
        if filled:
            end_offset = self._fill_map(segments, cuts)
            groups = group_segments(
                plan.view.listing.segments, end_offset, plan.range.first_uncleanable_offset, plan.config
            )
        self._set_rules(end_offset, sweep.BY_OFFSET if filled else sweep.BY_SIGHT)
        self._state[sweep.LAST_BASE_OFFSET] = INT64_MAX
        cleaned = self._clean_groups(isolate(groups, self._damage), cuts)
        if self._is_bounded():
            self._parts.behind.settle()
        return SweptLog(plan, cleaned, min(end_offset, certain_end))

    def _is_bounded(self) -> bool:
        return self._config.task_memory_bytes < INT64_MAX

    def _clean_groups(
        self, groups: Sequence[SegmentGroup], cuts: dict[int, ChunkBoundaries]
    ) -> list[Future[CleanedGroup]]:
        """Sweep the groups, newest first, each being written while the next is swept; futures as the groups."""
        pending: list[Future[CleanedGroup]] = []
        try:
            for group in reversed(groups):
                output = self._sweep_group(group, cuts)
                if pending:
                    pending[-1].result()
                self._being_written_bytes = output.used_bytes()
                pending.append(self._parts.behind.submit(output.finish))
        except BaseException:
            # Whoever takes back what was written has to find all of it.
            wait(pending)
            raise
        return pending[::-1]

    def _set_rules(self, end_offset: int, judge: int) -> None:
        now_ms = self._plan.now_ms
        self._rules[sweep.FIRST_MAPPED_OFFSET] = self._plan.range.first_dirty_offset
        self._rules[sweep.MAP_LATEST_OFFSET] = end_offset - 1
        self._rules[sweep.UPPER_BOUND_OFFSET] = self._plan.range.first_uncleanable_offset
        self._rules[sweep.NOW_MS] = now_ms
        next_horizon_ms = self._config.next_horizon_ms(now_ms)
        self._rules[sweep.NEXT_HORIZON_MS] = NO_HORIZON if next_horizon_ms is None else next_horizon_ms
        self._rules[sweep.JUDGE] = judge

    # -------------------------------------------------------------------------------------------------- one split of it
    def sight(self, work: SplitWork, split: Split, splits: int) -> Iterator[KeyRun]:
        """The runs of a split, one of `splits`; a run is yielded when the chunk in which it ended is done."""
        self._begin_split(work, split)
        above = splits - 1 - split.number
        for group in reversed(split.groups):
            for chunk in self._read(group.segments, work.cuts, newest_first=True):
                self._begin_chunk(chunk)
                self._drive(chunk, self._sight_call)
                yield from self._taken(above)
        self._check_split_start(split)
        self._end_run()
        yield from self._taken(above)

    def clean(self, work: SplitWork, split: Split, living: SurvivorBitmap) -> tuple[CleanedGroup, ...]:
        """The groups of a split."""
        self._begin_split(work, split)
        self._living_bits = living.bits
        self._reader.leave_dead_compressed(living.bits)
        cleaned = tuple(future.result() for future in self._clean_groups(split.groups, work.cuts))
        self._check_split_start(split)
        if self._met() != living.of:
            raise self._changed()
        return cleaned

    def _begin_split(self, work: SplitWork, split: Split) -> None:
        self._set_rules(work.plan.end_offset, sweep.IN_SPLIT)
        self._rules[sweep.RUN_LIMIT] = work.run_limit
        self._state[sweep.LAST_BASE_OFFSET] = INT64_MAX if split.end_offset is None else split.end_offset
        self._state[sweep.RECORDS] = 0
        self._digest = np.uint64(work.seed)
        self._runs: list[tuple[npt.NDArray[np.uint64], ByteArray, npt.NDArray[np.int64]]] = []
        self._runs_taken = 0
        self._begin_run()

    def _begin_run(self) -> None:
        self._map = OffsetMap(with_offsets=False)
        self._state[sweep.HEADROOM] = 0
        self._state[sweep.SIGHTS] = 0

    def _end_run(self) -> None:
        """Keep what was sighted."""
        scratch, sights = self._scratch, int(self._state[sweep.SIGHTS])
        found = scratch.sighted[:sights].copy(), scratch.mapped[:sights].copy(), scratch.places[:sights].copy()
        self._runs.append(found)
        self._begin_run()

    def _met(self) -> SplitContents:
        assert self._digest is not None
        return SplitContents(int(self._state[sweep.RECORDS]), int(self._digest))

    def _changed(self) -> SourceChangedError:
        return SourceChangedError(
            "the segments do not hold the batches that an earlier sweep saw in them",
            path=str(self._directory),
            advice="another process writes to this directory; stop it and run again",
        )

    def _taken(self, splits_above: int) -> Iterator[KeyRun]:
        for sighted, mapped, places in self._runs:
            yield KeyRun(RunNumber(splits_above, self._runs_taken), sighted, mapped, places, self._met())
            self._runs_taken += 1
        self._runs.clear()

    def _check_split_start(self, split: Split) -> None:
        """Offsets increase from the split below to this one only if none of this one lies below its first segment's."""
        if self._state[sweep.LAST_BASE_OFFSET] < split.groups[0].base_offset:
            raise FallbackRequiredError(OFFSETS_NOT_INCREASING)

    def _sight_call(self, chunk: Chunk) -> int:
        scratch = self._scratch
        return int(
            sweep.collect_keys(
                chunk.buffer,
                chunk.positions,
                chunk.verdicts,
                chunk.payloads,
                self._rules,
                np.uint64(self._seed),
                self._secrets,
                self._map.directory,
                scratch.records,
                scratch.hashes,
                scratch.sighted,
                scratch.mapped,
                scratch.places,
                self._state,
            )
        )

    # --------------------------------------------------------------------------------------------- comparing whole keys
    def _compare_keys(self) -> ExactKeys:
        # A cleaning without it does not load what it compiles.
        from sediment.compaction.exact_keys import ExactKeys

        return ExactKeys(self._seed, self._secrets, self._reader)

    def _check_keys(self, chunk: Chunk, output: GroupOutput | None = None) -> None:
        """Before a chunk is swept or put into a map: no hash in it stands for two keys."""
        if self._exact_keys is not None:
            first_mapped_offset = int(self._rules[sweep.FIRST_MAPPED_OFFSET])
            self._exact_keys.check(
                chunk,
                first_mapped_offset,
                lambda keys_bytes: self._check_memory(output, keys_bytes=keys_bytes),
            )

    # ------------------------------------------------------------------------------------------- filling a map forward
    def _fill_map(self, segments: Sequence[SegmentRef], cuts: dict[int, ChunkBoundaries]) -> int:
        """Fill the map over the dirty range; returns the end offset of the round (kafka-log 02 §4.2)."""
        plan = self._plan
        first_dirty, upper = plan.range.first_dirty_offset, plan.range.first_uncleanable_offset
        self._rules[sweep.FIRST_MAPPED_OFFSET] = first_dirty
        self._rules[sweep.MAP_LIMIT] = _map_limit(self._config)
        state = self._state
        state[sweep.LATEST_OFFSET] = -1
        state[sweep.MAPPED] = 0
        base = dirty_base(segments, first_dirty)
        dirty = [segment for segment in segments if segment.base_offset >= base]
        for segment, following in zip(dirty, [*dirty[1:], None], strict=True):
            for chunk in self._read([segment], cuts, newest_first=False):
                self._check_keys(chunk)
                state[sweep.CURSOR] = 0
                if not self._drive(chunk, self._fill_call, forward=True):
                    return self._end_offset()
            state[sweep.LATEST_OFFSET] = (following.base_offset if following else upper) - 1
        return self._end_offset()

    def _end_offset(self) -> int:
        end_offset = int(self._state[sweep.LATEST_OFFSET]) + 1
        if end_offset <= self._plan.range.first_dirty_offset:
            raise MapFullError(
                "the offset map is too small for the first batch of the dirty range",
                path=str(self._directory),
                offset=self._plan.range.first_dirty_offset,
                advice="raise log.cleaner.dedupe.buffer.size or leave it out",
            )
        return end_offset

    def _fill_call(self, chunk: Chunk) -> int:
        scratch = self._scratch
        return int(
            sweep.fill_map(
                chunk.buffer,
                chunk.positions,
                chunk.verdicts,
                chunk.payloads,
                self._rules,
                np.uint64(self._seed),
                self._secrets,
                self._map.directory,
                scratch.records,
                scratch.hashes,
                self._state,
            )
        )

    # ------------------------------------------------------------------------------------------------ sweeping a group
    def _sweep_group(self, group: SegmentGroup, cuts: dict[int, ChunkBoundaries]) -> GroupOutput:
        aborted = [entry for s in group.segments if s.base_offset in cuts for entry in cuts[s.base_offset].kept_aborts]
        output = GroupOutput(
            group,
            aborted,
            self._parts,
            self._damage.of(group.segments),
            is_untouchable=group.base_offset in self._damage.untouchable,
        )
        state = self._state
        state[sweep.OUT_START] = output.buffer.size
        state[[sweep.MESSAGES_READ, sweep.MESSAGES_WRITTEN, sweep.CHANGED]] = 0
        state[[sweep.TOMBSTONES_WAITING, sweep.WITHOUT_HORIZON]] = 0
        state[sweep.FIRST_HORIZON_MS], state[sweep.LAST_HORIZON_MS] = INT64_MAX, 0
        for chunk in self._read(group.segments, cuts, newest_first=True):
            self._check_keys(chunk, output)
            self._begin_chunk(chunk)
            self._drive(chunk, lambda chunk: self._sweep_call(chunk, output.buffer), output=output)
            self._check_memory(output)
        output.take(state)
        return output

    def _read(
        self, segments: Sequence[SegmentRef], cuts: dict[int, ChunkBoundaries], *, newest_first: bool
    ) -> Iterator[Chunk]:
        for chunk in self._reader.chunks(segments, cuts, newest_first=newest_first):
            self._progress(chunk.size_bytes)
            yield chunk

    def _begin_chunk(self, chunk: Chunk) -> None:
        self._state[sweep.CURSOR] = chunk.positions.size
        if self._digest is not None:
            self._digest = np.uint64(sweep.digest_of(chunk.source, chunk.origins, self._digest))

    def _sweep_call(self, chunk: Chunk, output: ByteArray) -> int:
        scratch = self._scratch
        return int(
            sweep.sweep_chunk(
                chunk.buffer,
                chunk.positions,
                chunk.verdicts,
                chunk.payloads,
                self._producers.producer_ids,
                self._producers.last_offsets,
                self._producers.epochs,
                self._rules,
                np.uint64(self._seed),
                self._secrets,
                self._map.directory,
                scratch.records,
                scratch.hashes,
                scratch.kept,
                scratch.raw,
                self._living_bits,
                output,
                self._compressors,
                self._state,
            )
        )

    def _drive(
        self, chunk: Chunk, call: Callable[[Chunk], int], *, forward: bool = False, output: GroupOutput | None = None
    ) -> bool:
        """Call a resumable kernel until the chunk is done, giving it what it asks for; False if the map is full."""
        state = self._state
        while True:
            status = call(chunk)
            if status == DONE:
                return True
            if status == MAP_FULL:
                return False
            needed = int(state[sweep.NEEDED])
            if status == NEEDS_PAYLOAD:
                self._decompress(chunk, forward=forward)
            elif status == NEEDS_COMPRESSION and output is not None:
                self._compress(chunk, output)
            elif status == NEEDS_MAP_ROOM:
                self._check_memory(output, more_keys=needed)
                self._map.reserve(needed)
            elif status == NEEDS_RECORD_ROOM:
                self._scratch.make_records_room(needed)
            elif status == NEEDS_RAW_ROOM:
                self._scratch.make_raw_room(needed)
            elif status == NEEDS_OUTPUT_ROOM and output is not None:
                output.grow(state, needed)
            elif status == NEEDS_ORIGINAL and output is not None:
                ordinal = int(state[sweep.CURSOR]) - 1
                is_unreadable = bool(chunk.verdicts[ordinal] & UNREADABLE)
                output.place_original(state, chunk.source_of(ordinal), is_unreadable=is_unreadable)
            elif status == NEEDS_SIGHT_ROOM:
                self._scratch.make_sights_room(needed)
            elif status == RUN_FULL:
                self._end_run()
            elif status == OFFSETS_NOT_INCREASING:
                raise FallbackRequiredError(status)
            elif status == BEYOND_SIGHTED:
                raise self._changed()
            else:
                raise self._reader.error(status, chunk, self._current(chunk, forward=forward))

    def _check_memory(self, output: GroupOutput | None, *, more_keys: int = 0, keys_bytes: int | None = None) -> None:
        """That what is held, with room for `more_keys`, stays within the task's limit, if it has one."""
        limit_bytes = self._config.task_memory_bytes
        if not self._is_bounded():
            return
        map_bytes = self._map.size_bytes_with(more_keys) if more_keys else self._map.size_bytes()
        if self._exact_keys is not None:
            map_bytes += self._exact_keys.size_bytes() if keys_bytes is None else keys_bytes
        swept_bytes = 0 if output is None else output.buffer.size - int(self._state[sweep.OUT_START])
        held_bytes = swept_bytes + self._being_written_bytes
        buffer_bytes = self._scratch.size_bytes() + self._reader.size_bytes() + self._living_bits.nbytes
        if map_bytes + held_bytes + buffer_bytes > limit_bytes:
            raise MemoryBudgetError(
                f"cleaning needs more than the {limit_bytes} bytes of memory of a task: {map_bytes} for "
                f"{len(self._map)} keys and more, {held_bytes} for what survives, {buffer_bytes} for buffers",
                path=str(self._directory),
                advice="raise sediment.task.memory.bytes, or bound the keys of one round with "
                "log.cleaner.dedupe.buffer.size",
            )

    def _current(self, chunk: Chunk, *, forward: bool) -> int:
        cursor = int(self._state[sweep.CURSOR])
        return int(chunk.positions[cursor if forward else cursor - 1])

    def _decompress(self, chunk: Chunk, *, forward: bool) -> None:
        cursor = int(self._state[sweep.CURSOR])
        ordinal = cursor if forward else cursor - 1
        content = chunk.decompressed.pop(ordinal, None)
        if content is None:
            content = self._reader.decompress(chunk, ordinal)
        chunk.payloads[ordinal] = self._scratch.hold_payload(content)

    def _compress(self, chunk: Chunk, output: GroupOutput) -> None:
        if self._compressors is _NO_COMPRESSORS:
            # The next ones are compressed by the sweep itself, where it can.
            self._compressors = find_compressors()
        codec, _ = chunk.payload_at(self._current(chunk, forward=False))
        raw = self._scratch.raw.data[: int(self._state[sweep.RAW_BYTES])]
        compressed = np.frombuffer(compress(codec, raw), dtype=np.uint8)
        while True:
            status = sweep.emit_compressed(chunk.buffer, chunk.positions, compressed, output.buffer, self._state)
            if status == DONE:
                return
            output.grow(self._state, int(self._state[sweep.NEEDED]))


def _give_back_memory() -> None:
    """Hold nothing for other partitions: this one has a limit."""
    TABLE_PAGES.clear()
    OUTPUT_PAGES.clear()


class _Scratch:
    """Buffers that kernels work in; each grows to what the largest batch needs."""

    def __init__(self) -> None:
        self.payload = padded_buffer(0)
        self.raw = padded_buffer(0)
        self.sighted = np.zeros((0, 2), dtype=np.uint64)
        self.mapped = np.zeros(0, dtype=np.uint8)
        self.places = np.zeros(0, dtype=np.int64)
        self.make_records_room(_FIRST_RECORDS)

    def make_records_room(self, rows: int) -> None:
        rows = 1 << (rows - 1).bit_length()
        self.records = np.zeros((rows, decode.RECORD_FIELDS), dtype=np.int64)
        self.hashes = np.zeros((rows, 2), dtype=np.uint64)
        self.kept = np.zeros(rows, dtype=np.uint8)

    def make_sights_room(self, rows: int) -> None:
        rows = 1 << (rows - 1).bit_length()
        sighted, mapped, places = self.sighted, self.mapped, self.places
        self.sighted = np.zeros((rows, 2), dtype=np.uint64)
        self.mapped = np.zeros(rows, dtype=np.uint8)
        self.places = np.zeros(rows, dtype=np.int64)
        self.sighted[: len(sighted)] = sighted
        self.mapped[: len(mapped)] = mapped
        self.places[: len(places)] = places

    def make_raw_room(self, size_bytes: int) -> None:
        self.raw = padded_buffer(2 * size_bytes)

    def hold_payload(self, content: Buffer) -> tuple[int, int]:
        """Copy decompressed records to where kernels may read past their end; returns their address and size."""
        size_bytes = memoryview(content).nbytes
        if self.payload.size < size_bytes + decode.PADDING_BYTES:
            self.payload = padded_buffer(2 * size_bytes)
        self.payload[:size_bytes] = np.frombuffer(content, dtype=np.uint8)
        return self.payload.ctypes.data, size_bytes

    def size_bytes(self) -> int:
        """Memory of all of them."""
        buffers = (self.payload, self.raw, self.kept)
        return sum(buffer.nbytes for buffer in buffers) + self.records.nbytes + self.hashes.nbytes


def _active_producers(plan: CleaningPlan) -> ActiveProducers:
    entries = sorted(plan.view.producers, key=lambda entry: entry.producer_id)
    return ActiveProducers(
        np.array([entry.producer_id for entry in entries], dtype=np.int64),
        np.array([entry.last_offset for entry in entries], dtype=np.int64),
        np.array([entry.producer_epoch for entry in entries], dtype=np.int64),
    )


def _legacy_horizon_ms(plan: CleaningPlan) -> int:
    """Segments last modified until then lose their tombstones of magic 0 and 1 (kafka-log 02 §3 step 1)."""
    retention_ms = plan.config.delete_retention_ms
    if retention_ms is None:
        return -INT64_MAX
    clean = [s for s in plan.view.listing.segments if s.base_offset < plan.range.first_dirty_offset]
    return clean[-1].mtime_ns // NS_PER_MS - retention_ms if clean else 0


def _map_limit(config: CompactionConfig) -> int:
    """Keys that a bounded map may hold: Kafka's slots times the load factor, truncated."""
    if config.dedupe_buffer_bytes is None:
        return INT64_MAX
    return int(config.dedupe_buffer_bytes // _MAP_SLOT_BYTES * config.dedupe_load_factor)

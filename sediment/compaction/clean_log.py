"""The cleaner's entry points: they run a cleaning plan and, if one kind of pass fails, try another kind.

There are three kinds of pass:

    plain      chunks begin at batches that the offset index lists; this pass cannot clean transactions
    scanned    a forward scan of headers and control keys finds verified chunk boundaries and flags for each batch
    filled     a forward pass fills a map with offsets; then the log is filtered by this map

The plain pass is the default.  The scanned pass is used if the partition may contain transactions, or if the plain pass
finds a transaction or an invalid chunk boundary.  The filled pass is used if offsets in the log do not increase.  It is
also used if the config limits the size of the map, because Kafka's rule for a full map needs a forward pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sediment.compaction.chunk_reader import ChunkBoundaries, FallbackRequiredError, Progress
from sediment.compaction.cleaner import CleaningPass, PassKind
from sediment.compaction.corrupt_regions import NOTHING_CORRUPT, find_corrupt_regions, first_error, scan_corrupt_log
from sediment.compaction.group_output import PartWriter
from sediment.compaction.grouping import CleaningPlan
from sediment.compaction.kernels.registers import BY_BITMAP, BY_OCCURRENCE, BY_OFFSET
from sediment.compaction.partition_splits import KeyRun, Split, SplitNotApplicableError, SurvivorBitmap
from sediment.compaction.prepared_swap import CleanedGroup, PreparedSwap
from sediment.compaction.source_errors import errors_of_partition
from sediment.compaction.transaction_scan import scan_segments
from sediment.compaction.write_behind import WriteBehind
from sediment.segment_io.compiled.status import OFFSETS_NOT_INCREASING
from sediment.segment_io.errors import (
    CorruptBatchError,
    CorruptIndexError,
    HashCollisionError,
)
from sediment.segment_io.format.layout import INT64_MAX
from sediment.segment_io.format.names import Attempt, TopicPartition, no_progress
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.listing import LogListing

if TYPE_CHECKING:
    from sediment.compaction.reencode.plan import Encoding

_CAUSES_OF_FALLBACK = (FallbackRequiredError, HashCollisionError, CorruptBatchError, CorruptIndexError)
_MOST_SEEDS = 8  # collisions under so many seeds in a row are not accidental


@dataclass(frozen=True, slots=True)
class SplitWork:
    """The plan of a partition that is cleaned in splits, and the parameters that all of its tasks share.

    `run_limit` is the largest number of keys in a run, and `ranges` is the number of hash ranges; `partition_splits`
    explains both.
    """

    plan: CleaningPlan
    boundaries: dict[int, ChunkBoundaries]
    seed: int
    run_limit: int
    ranges: int
    encoding: Encoding | None = None


@dataclass(frozen=True, slots=True)
class SweptLog:
    """A partition whose groups are all swept; a thread may still be writing the last group."""

    _listing: LogListing
    _writer: PartWriter
    _groups: Sequence[Future[CleanedGroup]]
    _next_dirty_offset: int

    def written(self) -> PreparedSwap:
        """Wait for the synced `.part` files, and return them.

        Raises:
            OSError: the filesystem failed; all `.part` files of the partition were removed.
        """
        wait(self._groups)
        with errors_of_partition(self._listing.partition):
            try:
                groups = tuple(future.result() for future in self._groups)
            except BaseException:
                self._writer.remove_all()
                raise
        return PreparedSwap(self._listing.partition, str(self._listing.path), groups, self._next_dirty_offset)

    def discard(self) -> None:
        self._writer.remove_all()


@dataclass(frozen=True, slots=True)
class CleaningMode:
    """What a cleaning does beyond Kafka's.

    With `keep_unreadable`, unreadable batches are kept unchanged.  A record is also kept if dropping it would be wrong
    for some possible content of these batches.  Each group lists its unreadable batches in `unreadable`, and the
    checkpoint is not raised above them.  With `exact_keys`, two keys are equal only if their bytes are equal, and all
    keys are kept in memory.  With `encoding`, the batches of cleaned segments are re-encoded with this codec or batch
    size.
    """

    keep_unreadable: bool = False
    exact_keys: bool = False
    encoding: Encoding | None = None


_AS_KAFKA = CleaningMode()


def clean_log(plan: CleaningPlan, fs: Fs, attempt: Attempt, mode: CleaningMode = _AS_KAFKA) -> PreparedSwap:
    with WriteBehind() as write_behind:
        return sweep_log(plan, fs, write_behind, attempt, mode).written()


def sweep_log(
    plan: CleaningPlan, fs: Fs, write_behind: WriteBehind, attempt: Attempt, mode: CleaningMode = _AS_KAFKA
) -> SweptLog:
    """Clean the groups of `plan` into `.part` files next to their sources; `write_behind` writes these files.

    `task_memory_bytes` limits the memory; if it is set, every output is written before this function returns.

    On any error, all `.part` files of the partition are removed.

    Source: kafka-log 02 §3-§6.
    """
    listing = plan.view.listing
    attempts = _Attempts(plan, fs, attempt.progress, mode)
    with errors_of_partition(listing.partition):
        while True:
            writer = PartWriter(listing.path, plan.config, fs, write_behind, attempt, mode.encoding)
            try:
                kind, certain_end_offset = attempts.next_pass()
                with ExitStack() as stack:
                    cleaning = CleaningPass(plan, kind, fs, stack, attempt.progress, writer=writer)
                    groups, next_dirty_offset = cleaning.run()
                    return SweptLog(listing, writer, groups, min(next_dirty_offset, certain_end_offset))
            except BaseException as error:
                # Some groups may already be written.
                writer.remove_all()
                if not isinstance(error, _CAUSES_OF_FALLBACK):
                    raise
                attempts.fall_back(error)


class _Attempts:
    def __init__(self, plan: CleaningPlan, fs: Fs, progress: Progress, mode: CleaningMode) -> None:
        self._filter_by = BY_OCCURRENCE if plan.config.dedupe_buffer_bytes is None else BY_OFFSET
        self._corrupt = NOTHING_CORRUPT
        self._is_scanned = plan.may_hold_transactions
        self._plan = plan
        self._fs = fs
        self._progress = progress
        self._mode = mode
        self._seeds_left = _MOST_SEEDS

    def next_pass(self) -> tuple[PassKind, int]:
        """Return the next pass, and the offset below which corruption does not change its result."""
        boundaries: dict[int, ChunkBoundaries] = {}
        certain_end_offset = INT64_MAX
        if self._corrupt.by_segment:
            scan = scan_corrupt_log(self._plan, self._corrupt, self._fs, self._progress)
            boundaries, certain_end_offset = scan.boundaries, scan.certain_end_offset
        elif self._is_scanned:
            boundaries = scan_segments(self._plan, self._fs, self._progress)
        return PassKind(self._filter_by, boundaries, self._corrupt, self._mode.exact_keys), certain_end_offset

    def fall_back(self, error: Exception) -> None:
        match error:
            case FallbackRequiredError():
                self._is_scanned = True
                if error.status == OFFSETS_NOT_INCREASING:
                    self._filter_by = BY_OFFSET
            case HashCollisionError():
                self._seeds_left -= 1
                if not self._seeds_left:
                    raise HashCollisionError(
                        f"two different keys have the same hash under each of {_MOST_SEEDS} seeds",
                        path=str(self._plan.view.listing.path),
                        offset=error.offset,
                        advice="nothing was changed; --key-equality hash would treat the two keys as one",
                    ) from error
            case _:
                # The scan reads headers before checksums are checked, so a corrupt batch can seem to contradict the
                # transaction index.
                is_looked_for = self._mode.keep_unreadable or isinstance(error, CorruptIndexError)
                if self._corrupt.by_segment or not is_looked_for:
                    raise error
                self._corrupt = find_corrupt_regions(self._plan, self._fs, self._progress)
                if not self._corrupt.by_segment:
                    raise error
                if not self._mode.keep_unreadable:
                    raise first_error(self._plan, self._corrupt) from None


def scan_log(
    plan: CleaningPlan, fs: Fs, *, only_if_needed: bool, progress: Progress = no_progress
) -> dict[int, ChunkBoundaries]:
    """Run only the forward scan, for splits; return each segment's chunk boundaries, keyed by its base offset.

    With `only_if_needed`, skip the scan and return an empty dict if no file of the partition mentions transactions.
    """
    if only_if_needed and not plan.may_hold_transactions:
        return {}
    with errors_of_partition(plan.view.listing.partition):
        return scan_segments(plan, fs, progress)


def collect_split_keys(
    work: SplitWork, split: Split, splits: int, fs: Fs, *, progress: Progress = no_progress
) -> Iterator[KeyRun]:
    """Sweep `split`, one of `splits`, to collect its keys; yield each run when it is complete, newest first.

    Raises:
        SplitNotApplicableError: the log needs a forward scan first, or cannot be split.
    """
    with ExitStack() as stack, _errors_of_split(work.plan.view.listing.partition):
        cleaning = CleaningPass(work.plan, PassKind(BY_BITMAP, work.boundaries), fs, stack, progress, seed=work.seed)
        yield from cleaning.collect_keys(split, splits, work.run_limit)


def clean_split(
    work: SplitWork, split: Split, survivors: SurvivorBitmap, fs: Fs, attempt: Attempt
) -> tuple[CleanedGroup, ...]:
    """Clean the groups of a split into synced `.part` files; `survivors` is the joined result of all hash ranges.

    Raises:
        SplitNotApplicableError, CorruptBatchError, SourceChangedError: as in `collect_split_keys`; all files of the
            split were removed.
    """
    with WriteBehind() as write_behind, _errors_of_split(work.plan.view.listing.partition):
        directory = work.plan.view.listing.path
        writer = PartWriter(directory, work.plan.config, fs, write_behind, attempt, work.encoding)
        try:
            with ExitStack() as stack:
                kind = PassKind(BY_BITMAP, work.boundaries)
                cleaning = CleaningPass(work.plan, kind, fs, stack, attempt.progress, writer=writer, seed=work.seed)
                return cleaning.clean_split(split, survivors)
        except BaseException:
            writer.remove_all()
            raise


@contextmanager
def _errors_of_split(partition: TopicPartition) -> Iterator[None]:
    try:
        with errors_of_partition(partition):
            yield
    except FallbackRequiredError as error:
        raise SplitNotApplicableError(needs_scan=error.status != OFFSETS_NOT_INCREASING) from error

"""The cleaner's entry points: they run a cleaning plan and, if one kind of pass fails, try another kind.

`cleaner` runs one pass.  Its docstring lists the module for each step of Kafka's Cleaner.doClean.

There are three kinds of pass:

    plain      chunks begin at batches that the offset index lists; this pass cannot clean transactions
    scanned    a forward scan of headers and control keys finds verified chunk boundaries and flags for each batch
    filled     a forward pass fills a map with offsets; then the log is filtered by this map

The plain pass is the default.  The scanned pass is used if the partition may contain transactions, or if the plain pass
finds a transaction or an invalid chunk boundary.  The filled pass is used if offsets in the log do not increase.  It is
also used if the config limits the size of the map, because Kafka's rule for a full map needs a forward pass.  If the
caller keeps unreadable batches, the scanned pass follows rules that drop fewer records (`corrupt_regions`).

Several tasks can clean one large partition: each task cleans a part of the log, a split.  Each split is swept twice.
In the first sweep, `collect_split_keys` collects the keys of the split.  When the survivors among the keys of all
splits are known, `clean_split` does the second sweep.  Each sweep is a plain or a scanned pass.

If the caller does not want to rely on 128-bit hashes, whole keys are compared before each chunk is swept
(`exact_keys`).  After a collision, the pass is repeated with another seed.

A caller that cleans several partitions in turn may sweep the next partition while the last output of the previous
partition is being written.

The upper bound of a cleaning, set in `kernel_driver`, is the first uncleanable offset, even if the map ends at a lower
offset.  The last batch below the upper bound keeps its header (`kernels.batch_retention`).  An empty dirty range has no
groups (`grouping.plan_cleaning`).

Invariants
* Nothing is renamed here.  Every file that is read is checked against the plan.
* If `task_memory_bytes` is set, memory use stays within this limit; a partition that needs more memory is skipped and
  stays unchanged.
* Files are read by `chunk_reader`, `transaction_scan`, `corrupt_regions` and `group_output`.  `group_output` also
  writes files, and `partition_splits` writes a temporary spill file.  Other modules of this package do no I/O.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sediment.compaction.chunk_reader import ChunkBoundaries, FallbackRequiredError, Progress
from sediment.compaction.cleaner import CleaningPass
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
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.listing import LogListing

if TYPE_CHECKING:
    from sediment.compaction.reencode.plan import Encoding

_CAUSES_OF_FALLBACK = (FallbackRequiredError, HashCollisionError, CorruptBatchError, CorruptIndexError)
_MOST_SEEDS = 8  # collisions under so many seeds in a row are not accidental


@dataclass(frozen=True, slots=True)
class SplitWork:
    """The plan of a partition that is cleaned in splits, and the parameters that all of its tasks share.

    `boundaries` come from a forward scan and are keyed by the base offset of the segment.  Without such a scan,
    `boundaries` is empty.  `seed` is the seed of the keys' hashes.  `run_limit` is the largest number of keys in a run,
    and `ranges` is the number of hash ranges; `partition_splits` explains both.  `encoding` is the new encoding of the
    survivors; if it is None, each batch keeps its codec.
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
        """Remove the written `.part` files, because the caller will not commit them."""
        self._writer.remove_all()


def clean_log(
    plan: CleaningPlan,
    fs: Fs,
    *,
    run_id: str,
    attempt: str,
    progress: Progress | None = None,
    keep_unreadable: bool = False,
    exact_keys: bool = False,
    encoding: Encoding | None = None,
) -> PreparedSwap:
    """Clean the groups of `plan` into synced `.part` files next to their sources; wait until all files are written.

    Arguments and errors are the same as for `sweep_log`.
    """
    with WriteBehind() as write_behind:
        return sweep_log(
            plan,
            fs,
            write_behind,
            run_id=run_id,
            attempt=attempt,
            progress=progress,
            keep_unreadable=keep_unreadable,
            exact_keys=exact_keys,
            encoding=encoding,
        ).written()


def sweep_log(
    plan: CleaningPlan,
    fs: Fs,
    write_behind: WriteBehind,
    *,
    run_id: str,
    attempt: str,
    progress: Progress | None = None,
    keep_unreadable: bool = False,
    exact_keys: bool = False,
    encoding: Encoding | None = None,
) -> SweptLog:
    """Clean the groups of `plan` into `.part` files next to their sources; `write_behind` writes these files.

    `task_memory_bytes` limits the memory; if it is set, every output is written before this function returns.  Before
    each chunk is swept, `progress` is called with the size of the chunk.  An exception from `progress` ends the call.
    With `keep_unreadable`, unreadable batches are kept unchanged.  A record is also kept if dropping it would be wrong
    for some possible content of these batches.  Each group lists its unreadable batches in `unreadable`, and the
    checkpoint is not raised above them.  With `exact_keys`, two keys are equal only if their bytes are equal, and all
    keys are kept in memory.  Otherwise two keys are equal if their hashes are equal.  With `encoding`, the batches of
    cleaned segments are re-encoded with this codec or batch size.

    On any error, all `.part` files of the partition are removed.

    Raises:
        CorruptBatchError: a batch fails its CRC or is malformed, and `keep_unreadable` is False.
        CorruptIndexError: the transaction index contradicts a marker.
        SourceChangedError: the segments differ from the planned ones.
        MapFullError: the bounded offset map has no room for the first batch of the dirty range.
        MemoryBudgetError: the keys and the survivors do not fit into `task_memory_bytes`.
        HashCollisionError: two keys have the same hash under every seed that was tried.

    Source: kafka-log 02 §3-§6.
    """
    listing = plan.view.listing
    attempts = _Attempts(plan, fs, progress or _no_progress, keep_unreadable)
    with errors_of_partition(listing.partition):
        while True:
            writer = PartWriter(listing.path, plan.config, fs, write_behind, run_id, attempt, encoding)
            try:
                boundaries, certain_end_offset = attempts.scan()
                with ExitStack() as stack:
                    cleaning = CleaningPass(
                        plan,
                        boundaries,
                        fs,
                        stack,
                        progress or _no_progress,
                        filter_by=attempts.filter_by,
                        writer=writer,
                        corrupt=attempts.corrupt,
                        exact_keys=exact_keys,
                    )
                    groups, next_dirty_offset = cleaning.run()
                    return SweptLog(listing, writer, groups, min(next_dirty_offset, certain_end_offset))
            except BaseException as error:
                # Some groups may already be written.
                writer.remove_all()
                if not isinstance(error, _CAUSES_OF_FALLBACK):
                    raise
                attempts.fall_back(error)


class _Attempts:
    """The retry policy of one partition: the errors of earlier passes decide which pass is next."""

    def __init__(self, plan: CleaningPlan, fs: Fs, progress: Progress, keep_unreadable: bool) -> None:
        self.filter_by = BY_OCCURRENCE if plan.config.dedupe_buffer_bytes is None else BY_OFFSET
        self.corrupt = NOTHING_CORRUPT
        self._is_scanned = plan.may_hold_transactions
        self._plan = plan
        self._fs = fs
        self._progress = progress
        self._keep_unreadable = keep_unreadable
        self._seeds_left = _MOST_SEEDS

    def scan(self) -> tuple[dict[int, ChunkBoundaries], int]:
        """If the next pass needs a forward scan, do the scan.

        Return chunk boundaries, and the offset below which corruption does not change the result.
        """
        if self.corrupt.by_segment:
            scan = scan_corrupt_log(self._plan, self.corrupt, self._fs, self._progress)
            return scan.boundaries, scan.certain_end_offset
        if self._is_scanned:
            return scan_segments(self._plan, self._fs, self._progress), INT64_MAX
        return {}, INT64_MAX

    def fall_back(self, error: Exception) -> None:
        """Choose the next pass after `error`; raise an error if no kind of pass is left."""
        match error:
            case FallbackRequiredError():
                self._is_scanned = True
                if error.status == OFFSETS_NOT_INCREASING:
                    self.filter_by = BY_OFFSET
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
                is_looked_for = self._keep_unreadable or isinstance(error, CorruptIndexError)
                if self.corrupt.by_segment or not is_looked_for:
                    raise error
                self.corrupt = find_corrupt_regions(self._plan, self._fs, self._progress)
                if not self.corrupt.by_segment:
                    raise error
                if not self._keep_unreadable:
                    raise first_error(self._plan, self.corrupt) from None


def scan_log(
    plan: CleaningPlan, fs: Fs, *, only_if_needed: bool, progress: Progress | None = None
) -> dict[int, ChunkBoundaries]:
    """Run only the forward scan, for splits; return each segment's chunk boundaries, keyed by its base offset.

    With `only_if_needed`, skip the scan and return an empty dict if no file of the partition mentions transactions.

    Raises:
        CorruptBatchError, CorruptIndexError, SourceChangedError: as in `sweep_log`.
    """
    if only_if_needed and not plan.may_hold_transactions:
        return {}
    with errors_of_partition(plan.view.listing.partition):
        return scan_segments(plan, fs, progress or _no_progress)


def collect_split_keys(
    work: SplitWork, split: Split, splits: int, fs: Fs, *, progress: Progress | None = None
) -> Iterator[KeyRun]:
    """Sweep `split`, one of `splits`, to collect its keys; yield each run when it is complete, newest first.

    Raises:
        SplitNotApplicableError: the log needs a forward scan first, or cannot be split.
        CorruptBatchError, SourceChangedError: as in `sweep_log`.
    """
    with ExitStack() as stack, _errors_of_split(work.plan.view.listing.partition):
        cleaning = CleaningPass(
            work.plan, work.boundaries, fs, stack, progress or _no_progress, filter_by=BY_BITMAP, seed=work.seed
        )
        yield from cleaning.collect_keys(split, splits, work.run_limit)


def clean_split(
    work: SplitWork,
    split: Split,
    survivors: SurvivorBitmap,
    fs: Fs,
    *,
    run_id: str,
    attempt: str,
    progress: Progress | None = None,
) -> tuple[CleanedGroup, ...]:
    """Clean the groups of a split into synced `.part` files; `survivors` is the joined result of all hash ranges.

    Raises:
        SplitNotApplicableError, CorruptBatchError, SourceChangedError: as in `collect_split_keys`; all files of the
            split were removed.
    """
    with WriteBehind() as write_behind, _errors_of_split(work.plan.view.listing.partition):
        directory = work.plan.view.listing.path
        writer = PartWriter(directory, work.plan.config, fs, write_behind, run_id, attempt, work.encoding)
        try:
            with ExitStack() as stack:
                cleaning = CleaningPass(
                    work.plan,
                    work.boundaries,
                    fs,
                    stack,
                    progress or _no_progress,
                    filter_by=BY_BITMAP,
                    writer=writer,
                    seed=work.seed,
                )
                return cleaning.clean_split(split, survivors)
        except BaseException:
            writer.remove_all()
            raise


@contextmanager
def _errors_of_split(partition: TopicPartition) -> Iterator[None]:
    """Do the same as `errors_of_partition`; also translate the error of a split that cannot be cleaned."""
    try:
        with errors_of_partition(partition):
            yield
    except FallbackRequiredError as error:
        raise SplitNotApplicableError(needs_scan=error.status != OFFSETS_NOT_INCREASING) from error


def _no_progress(_size_bytes: int) -> None:
    return None

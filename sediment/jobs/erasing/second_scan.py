"""Scan after an erasure: read every record of a partition again, with different code from the first scan.

The rewrite and the search for keys share the code that opens batches (`compaction.rewrite.open_batches`).  This scan
reads every batch as a consumer reads a fetch response (`segment_io.segment.fetched_batches`).  Python compares keys and
values; it compares the keys of many records at once, as sets.

Records that the run reported as not reached are not counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sediment.compaction.rewrite.verdicts import Action, Verdicts
from sediment.jobs.erasing.erasure import FileDigest, segment_digests
from sediment.jobs.rewriting.result import TASK_ERRORS, CleaningResult, failed_task
from sediment.jobs.spark.task_figures import Figures
from sediment.segment_io.errors import CorruptBatchError
from sediment.segment_io.format.names import SegmentFileKind
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.listing import LogListing

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, repr=False)
class SecondScan:
    """One segment to scan; `listing` has only this segment.

    `verdicts` and `stays` cover only this segment; `stays` are the offsets of the records that were not reached,
    int64[n].
    """

    listing: LogListing
    verdicts: Verdicts
    stays: Int64s
    now_ms: int

    def weight(self) -> int:
        return self.listing.log_bytes()


@dataclass(frozen=True, slots=True)
class RescannedSegment:
    base_offset: int
    records: int
    matches: Int64s
    files: tuple[FileDigest, ...]


@dataclass(frozen=True, slots=True, repr=False)
class ScanAgain:
    """Function of the Spark task; `keys` are the keys to erase; they are empty if the run does not select by key."""

    keys: frozenset[bytes]

    def __call__(self, task: SecondScan, _attempt: str) -> RescannedSegment | CleaningResult:
        try:
            return _scanned(task, self.keys)
        except TASK_ERRORS as error:
            return failed_task(task, error)


def of_second_scan(task: SecondScan, result: RescannedSegment | CleaningResult) -> Figures:
    if isinstance(result, CleaningResult):
        return Figures()
    return Figures(bytes_read=task.weight(), records_read=result.records)


def _scanned(task: SecondScan, keys: frozenset[bytes]) -> RescannedSegment:
    from sediment.segment_io.segment.fetched_batches import read_columns

    (segment,) = task.listing.segments
    path = task.listing.file(segment, SegmentFileKind.LOG)
    judged = {int(offset): index for index, offset in enumerate(task.verdicts.offsets)}
    known = set(task.stays.tolist())
    records, matches = 0, []
    for content in _batches(path, segment.log_bytes):
        for run in read_columns(content):
            records += len(run.keys)
            suspects = set(_with_verdict(run.offsets, task.verdicts.offsets))
            if not keys.isdisjoint(run.keys):
                suspects |= {at for at, key in enumerate(run.keys) if key in keys}
            for at in sorted(suspects):
                offset = int(run.offsets[at])
                verdict = judged.get(offset)
                is_done = verdict is not None and _is_final(task.verdicts, verdict, run.keys[at], run.value(at))
                if not is_done and offset not in known:
                    matches.append(offset)
    files = segment_digests(task.listing.path, segment.base_offset, Fs())
    return RescannedSegment(segment.base_offset, records, np.array(matches, dtype=np.int64), files)


def _with_verdict(offsets: Int64s, judged: Int64s) -> list[int]:
    if not offsets.size:
        return []
    low, high = np.searchsorted(judged, [offsets.min(), offsets.max() + 1])
    found: list[int] = np.flatnonzero(np.isin(offsets, judged[low:high])).tolist()
    return found


def _is_final(verdicts: Verdicts, index: int, key: bytes | None, value: bytes | None) -> bool:
    # A record with a verdict: a dropped record must not exist, a tombstone must have no value, and a replaced record
    # must have the new bytes.
    match verdicts.actions[index]:
        case Action.TOMBSTONE:
            return value is None and key is not None
        case Action.REPLACE_VALUE:
            return value == verdicts.replacement(index)
        case Action.REPLACE_KEY:
            return key == verdicts.replacement(index)
        case _:
            return False


def _batches(path: Path, size_bytes: int) -> Iterator[bytes]:
    from sediment.segment_io.segment.reader import HeaderScan

    scan = HeaderScan(path, size_bytes=size_bytes)
    for span in scan.spans():
        yield span.buffer[span.start : span.end].tobytes()
    if scan.end_position != size_bytes:
        raise CorruptBatchError("the segment ends inside a batch", path=str(path), position=scan.end_position)

"""The two ends of a log that may grow: its first offset, and the offset at which a read would end now.

    read_uncommitted    the log end offset: the offset after the last complete batch
    read_committed      the last stable offset

Invariants: an end is read again only after the files of its partition have changed.  A call of `LogEnds.of` reads each
checkpoint file once, for any number of partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from sediment.segment_io.errors import SedimentError, UsageError
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import PartitionCheckpoints, read_checkpoints
from sediment.segment_io.partition.identity import Identities, PartitionIdentity
from sediment.segment_io.partition.live_segments import live_segments
from sediment.segment_io.partition.sources import Source, find_sources
from sediment.segment_io.tables.schema import READ_COMMITTED


def first_offset(source: Source | None, fs: Fs) -> int:
    segments = live_segments(source, fs) if source else ()
    return segments[0].base_offset if segments else 0


def end_offset(isolation: str, source: Source, fs: Fs, checkpoints: PartitionCheckpoints | None = None) -> int:
    """Return the log end offset or, for READ_COMMITTED, the last stable offset.

    `checkpoints` are the entries of the partition; if None, they are read from the log directory.
    """
    # Imported late, because a process that only plans does not need the compiled code that the import loads.
    from sediment.segment_io.partition.read_committed import committed_range, log_end_offset

    if isolation != READ_COMMITTED:
        return log_end_offset(source, fs)
    if checkpoints is None:
        checkpoints = read_checkpoints(source.directory.parent, fs).of(source.partition)
    return committed_range(source, checkpoints, fs).end_offset


class LogEnds:
    """A lookup of the partitions under `paths`, and of the offset at which a read of each one would end now.

    The results are not fixed when the object is created: `sources` lists the partitions again, and `now` and `of` check
    the ends again.
    """

    def __init__(
        self, paths: Sequence[str | Path], isolation: str, selects: Callable[[Source], bool] = lambda _source: True
    ) -> None:
        self._paths = paths
        self._isolation = isolation
        self._selects = selects
        self._fs = Fs()
        self.identities = Identities(self._fs)
        """The identities of the partitions whose ends were looked up."""

        self._known: dict[str, tuple[Any, int]] = {}

    def sources(self) -> dict[str, Source]:
        found: dict[str, Source] = {}
        for source in filter(self._selects, find_sources(self._paths, self._fs)):
            other = found.setdefault(str(source.partition), source)
            if other.directory != source.directory:
                raise UsageError(
                    f"partition {source.partition} is in two directories, {other.directory.parent} and "
                    f"{source.directory.parent}",
                    advice="stream each log directory separately",
                )
            if source.base_offset is not None:
                raise UsageError(
                    "a single segment cannot be streamed", path=str(source.directory), advice="name its directory"
                )
        return found

    def now(self) -> dict[str, int]:
        return {str(source.partition): end for source, end in self.of(self.sources().values()).items()}

    def of(self, sources: Iterable[Source]) -> dict[Source, int]:
        """Return the next offset of each of `sources`, except sources that disappear or are replaced during the call.

        Raises:
            SedimentError: a partition that was not replaced cannot be read.
        """
        return {source: end for source, (end, _) in self.identified(sources).items()}

    def identified(self, sources: Iterable[Source]) -> dict[Source, tuple[int, PartitionIdentity]]:
        fs = self._fs
        of_log_dir = cache(lambda log_dir: read_checkpoints(log_dir, fs))  # reads each file once per call
        is_committed = self._isolation == READ_COMMITTED
        ends: dict[Source, tuple[int, PartitionIdentity]] = {}
        for source in sources:
            checkpoints = of_log_dir(source.directory.parent).of(source.partition) if is_committed else None
            before = self._identity(source)
            try:
                end = self._end(source, checkpoints, fs)
            except (SedimentError, FileNotFoundError):
                # If a partition was deleted, or deleted and created again, all other partitions are still read.
                if self._is_still(source, before):
                    raise
            else:
                if before is not None and self._is_still(source, before):
                    ends[source] = end, before
        return ends

    def _end(self, source: Source, checkpoints: PartitionCheckpoints | None, fs: Fs) -> int:
        name = str(source.partition)
        seen = (live_segments(source, fs)[-1:], checkpoints)
        known, end = self._known.get(name, (None, 0))
        if known != seen:
            end = end_offset(self._isolation, source, fs, checkpoints)
            self._known[name] = (seen, end)
        return end

    def _is_still(self, source: Source, before: PartitionIdentity | None) -> bool:
        now = self._identity(source)
        return before is not None and now is not None and before.is_same(now)

    def _identity(self, source: Source) -> PartitionIdentity | None:
        try:
            return self.identities.of(source)
        except FileNotFoundError:
            return None

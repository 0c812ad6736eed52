"""The cleaner checkpoints of a run in place: the entries of committed partitions, written now and then and at the end.

A write takes as long as the file is, and many tasks end in the time of one write if a directory has many partitions.
Therefore, a write waits until the run has worked for many times the duration of the last write.

Invariant: an entry is written only after its partition is committed.  If the run is killed before the write, a later
run cleans the partition from the old offset.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from sediment.jobs.reporting.error_text import describe
from sediment.jobs.rewriting.in_place import update_cleaner_checkpoint
from sediment.segment_io.errors import SedimentError, UsageError
from sediment.segment_io.format.checkpoints import format_offset_checkpoint
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.fs import Fs

_WORK_PER_WRITE = 20  # so that writing takes at most a twentieth of the run


class CleanerCheckpoints:
    """Not thread-safe.  `check` raises an error if this run no longer holds a directory; `clock` returns seconds."""

    def __init__(self, fs: Fs, check: Callable[[Path], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._fs = fs
        self._check = check
        self._clock = clock
        self._due = clock()
        self._waiting: dict[Path, dict[TopicPartition, int]] = {}
        self._refused: dict[tuple[Path, TopicPartition], str] = {}
        self._failed: dict[Path, str] = {}

    def add(self, log_dir: Path, partition: TopicPartition, first_dirty_offset: int) -> None:
        try:
            format_offset_checkpoint({partition: first_dirty_offset})
        except UsageError as error:
            self._refused[log_dir, partition] = describe(error)[1]
        else:
            self._waiting.setdefault(log_dir, {})[partition] = first_dirty_offset

    def write_if_due(self) -> None:
        if self._clock() >= self._due:
            self.write()

    def write(self) -> None:
        """Write all waiting entries; those of a file that cannot be written wait for the next call."""
        began = self._clock()
        self._failed = {}
        for log_dir, entries in list(self._waiting.items()):
            try:
                self._check(log_dir)
                update_cleaner_checkpoint(self._fs, log_dir, entries)
            except (SedimentError, OSError) as error:
                self._failed[log_dir] = describe(error)[1]
            else:
                del self._waiting[log_dir]
        now = self._clock()
        self._due = now + _WORK_PER_WRITE * (now - began)

    def unwritten(self) -> dict[tuple[Path, TopicPartition], str]:
        """Return why an entry is in no file, by directory and partition, after `write`."""
        waiting = {
            (log_dir, partition): self._failed[log_dir]
            for log_dir, entries in self._waiting.items()
            for partition in entries
        }
        return waiting | self._refused

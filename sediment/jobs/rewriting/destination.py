"""The destination of a rewriting run: the log directories themselves, or an output.

    step           in place                                     to an output
    open           check, lock, read, place the run's token     check the output, list the sources; no lock
    settle         complete an interrupted replacement          impossible
    begin          write the catalogue of originals             claim the output
    commit         link originals, swap the segments            note the new files, and the unchanged ones
    end            remove tokens and parts                      -
    complete       complete the catalogue                       copy unchanged files, checkpoints, manifest

`begin` is the first step that removes or replaces a whole file.  Before `begin`, a run in place only places its token
and finishes a replacement that another run began.  A dry run stops before `begin`, and finishes no replacement.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sediment.compaction.prepared_swap import PreparedSwap
from sediment.engine.directory.uncleanable import Uncleanable
from sediment.jobs.cleaning.result import CleaningResult
from sediment.jobs.rewriting.partition_task import TaskPlace
from sediment.jobs.rewriting.planned_partition import PlannedPartition
from sediment.jobs.rewriting.report import RewriteReport
from sediment.jobs.settings.directories import SelectedDirectory
from sediment.segment_io.errors import UncleanDirectoryError
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.partition.listing import LogListing


class Destination(ABC):
    """The destination of a run; `catalogue` is the file that lists the originals kept by the run."""

    catalogue: Path | None = None

    @abstractmethod
    def open(self) -> list[SelectedDirectory]:
        """Check and open the directories of the run.

        Raises:
            UsageError: a directory or an option is wrong; nothing was changed.
            UncleanDirectoryError: the broker did not stop cleanly; nothing was changed.
            DirectoryInUseError: a broker or another run uses a directory.
        """

    @abstractmethod
    def listing(self, directory: SelectedDirectory, partition: TopicPartition) -> LogListing:
        """Return the segments of a selected partition."""

    @abstractmethod
    def listing_now(self, listing: LogListing) -> LogListing:
        """Return the segments of a partition after a failure.

        Raises:
            SedimentError, OSError: the directory cannot be read.
        """

    @abstractmethod
    def shown(self, log_dir: str) -> str:
        """Return the path or URI of a log directory for reports."""

    @abstractmethod
    def settle(self, listing: LogListing) -> LogListing | None:
        """Complete an interrupted replacement, and return the new listing; return None if this is impossible."""

    @abstractmethod
    def free_bytes(self, listing: LogListing) -> int:
        """Return how many bytes can still be written for the new segments of a partition."""

    @abstractmethod
    def place_of(self, listing: LogListing) -> TaskPlace:
        """Return the `TaskPlace` for the tasks of a partition."""

    @abstractmethod
    def begin(self, planned: Sequence[PlannedPartition]) -> list[tuple[LogListing, CleaningResult]]:
        """Prepare the first change; return the partitions that must stay unchanged, with their failures."""

    @abstractmethod
    def commit(self, planned: PlannedPartition, swap: PreparedSwap) -> bool:
        """Commit a partition after all its segments are written; return False if a stop interrupted the commit."""

    @abstractmethod
    def mark(self, listing: LogListing, mark: Uncleanable) -> None:
        """Mark a partition as quarantined.

        Raises:
            OSError: the mark could not be written.
        """

    @abstractmethod
    def end(self, planned: Sequence[PlannedPartition]) -> None:
        """Clean up after the last partition."""

    @abstractmethod
    def withdraw(self) -> None:
        """Mark a complete result as incomplete, because a check of the result failed."""

    @abstractmethod
    def complete(self, reports: Sequence[RewriteReport], spark: Callable[[], Any]) -> dict[int, tuple[str, str]]:
        """Complete the result; return the reason code and text of each report that fails in this step, by index.

        `spark` returns the run's SparkContext, or raises `RunStopped`.
        """


def check_stopped_cleanly(directories: Sequence[SelectedDirectory]) -> None:
    """Check that no broker runs on the directories, and that the last broker stopped cleanly.

    Raises:
        UncleanDirectoryError: a directory is unclean.
    """
    for directory in directories:
        if directory.is_unclean:
            raise UncleanDirectoryError(
                "the last stop of the broker was not clean",
                path=str(directory.path),
                advice=f"run `sediment recover {directory.path}` first",
            )

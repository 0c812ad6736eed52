"""The destination of a run that rewrites segments: the log directories themselves, or an output.

    step           in place                                     to an output
    open           check, lock, read, place the run's token     check the output, list the sources; no lock
    settle         complete an interrupted replacement          impossible, or left to the task
    begin          write the catalogue of originals             claim the output
    commit         link originals, swap the segments            note the new files, and the unchanged ones
    end            remove tokens and parts                      -
    complete       complete the catalogue                       copy unchanged files, checkpoints, manifest

`begin` is the first step that removes or replaces a whole file.  Before `begin`, a run in place only places its token
and finishes a replacement that another run began.  A dry run stops before `begin`, and finishes no replacement.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Generic

from sediment.compaction.prepared_swap import PreparedSwap
from sediment.engine.directory.originals.kept_in import KeptIn
from sediment.engine.directory.uncleanable import Uncleanable
from sediment.jobs.rewriting.partition_task import TaskPlace
from sediment.jobs.rewriting.planned_partition import PlannedPartition
from sediment.jobs.rewriting.result import CleaningResult
from sediment.jobs.rewriting.run import Report, Run, Work
from sediment.jobs.settings.directories import SelectedDirectory
from sediment.segment_io.errors import UncleanDirectoryError
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.partition.listing import LogListing


class Destination(ABC, Generic[Report]):
    copies = False
    """True if the run also writes the partitions that its command leaves alone, together with the others."""

    def __init__(self, run: Run[Report]) -> None:
        self.run = run
        self.directories: list[SelectedDirectory] = []
        self.originals: KeptIn | None = None
        self.catalogue: Path | None = None

    def kept(self) -> dict[str, Any]:
        return {
            "originals": self.originals and str(self.originals),
            "catalogue": self.catalogue and str(self.catalogue),
        }

    def opening(self) -> AbstractContextManager[object]:
        return nullcontext()

    @abstractmethod
    def open(self) -> list[SelectedDirectory]:
        """Check and open the directories of the run, and return them; they are then in `directories`."""

    def naming(self, _directory: SelectedDirectory) -> AbstractContextManager[object]:
        """Make errors inside the block name the directory as reports name it."""
        return nullcontext()

    @abstractmethod
    def listing(self, directory: SelectedDirectory, partition: TopicPartition) -> LogListing: ...

    @abstractmethod
    def settle(self, listing: LogListing) -> LogListing | None:
        """Complete an interrupted replacement, and return the new listing; return None if this is impossible."""

    @abstractmethod
    def begin(self, planned: Sequence[Work]) -> Mapping[Path, tuple[LogListing, CleaningResult]]:
        """Prepare the first change; return the partitions that must stay unchanged, with their failures, by path."""

    def end(self, planned: Sequence[Work]) -> None:
        """Clean up after the last partition."""

    @abstractmethod
    def complete(self, rows: Sequence[Report]) -> list[Report]:
        """Complete the result, and return the reports, some of which may fail in this step."""

    def concluded(self, rows: Sequence[Report]) -> list[Report]:
        """Return the final reports, after the run has released its locks."""
        return list(rows)


class SegmentDestination(Destination[Report]):
    """A destination of single segments, for the commands whose tasks rewrite one segment each."""

    @abstractmethod
    def place_of(self, listing: LogListing) -> TaskPlace: ...

    @abstractmethod
    def free_bytes(self, listing: LogListing) -> int: ...

    @abstractmethod
    def listing_now(self, listing: LogListing) -> LogListing: ...

    @abstractmethod
    def commit(self, planned: PlannedPartition, swap: PreparedSwap) -> bool:
        """Commit a partition after all its segments are written; return False if a stop interrupted the commit."""

    @abstractmethod
    def mark(self, listing: LogListing, mark: Uncleanable) -> None: ...

    def shown(self, log_dir: str) -> str:
        return log_dir

    def withdraw(self) -> None:
        """Mark a complete result as incomplete, because a check of the result failed; in place, this is impossible."""


def check_stopped_cleanly(directories: Sequence[SelectedDirectory]) -> None:
    for directory in directories:
        if directory.is_unclean:
            raise UncleanDirectoryError(
                "the last stop of the broker was not clean",
                path=str(directory.path),
                advice=f"run `sediment recover {directory.path}` first",
            )

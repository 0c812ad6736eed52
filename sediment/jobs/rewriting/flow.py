"""The run of every command that rewrites segments: `compact`, `erase` and `reencode`, in place or to an output.

A `Command` decides which partitions are rewritten and how, and a `Destination` where the new segments go:

    command             destination in place            destination with --output
    compact             cleaning.in_place               cleaning.to_output
      with --hand-off   cleaning.hand_off               -
    erase, reencode     rewriting.in_place              rewriting.to_output

Invariants: a run in place changes no file of a partition before `Destination.begin`, except that it completes
replacements that another run began.  A partition is committed after its tasks, and only by the driver.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Generic, TypeVar

from sediment.jobs.process.overlapped import overlapped
from sediment.jobs.reporting.error_text import describe
from sediment.jobs.reporting.stage_timer import LIST
from sediment.jobs.rewriting.destination import Destination
from sediment.jobs.rewriting.result import CleaningResult
from sediment.jobs.rewriting.run import Report, Run, Work
from sediment.jobs.settings.directories import SelectedDirectory
from sediment.segment_io.errors import SedimentError
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.partition.listing import LogListing

Selected = TypeVar("Selected")
Planned = TypeVar("Planned", bound=Work)


class Command(ABC, Generic[Selected, Planned, Report]):
    """What a command decides; it adds to the run's rows the report of each partition that it leaves out."""

    @abstractmethod
    def select(self, directory: SelectedDirectory, listing: LogListing) -> Selected | None:
        """Return a partition to rewrite, or None after adding its report.

        Raises:
            SedimentError, OSError: the partition fails.
        """

    @abstractmethod
    def plan(self, selected: Sequence[Selected]) -> Sequence[Planned] | None:
        """Return the plans to carry out, or None after a stop; an error ends the run before anything changes."""

    @abstractmethod
    def rewrite(self, planned: Sequence[Planned]) -> Iterator[Report]: ...

    @abstractmethod
    def unlisted(self, directory: SelectedDirectory, partition: TopicPartition, code: str, reason: str) -> Report: ...

    @abstractmethod
    def unchanged(self, listing: LogListing, why: CleaningResult) -> Report:
        """Return the report of a partition that the destination refuses to change."""

    def finish(self, rows: list[Report]) -> list[Report]:
        """Perform the last steps of the command while the locks are held, and return the final reports."""
        return rows


def perform(
    run: Run[Report], command: Command[Selected, Planned, Report], destination: Destination[Report]
) -> list[Report]:
    """Return a report for every selected partition; the caller closes `run.stack`."""
    with destination.opening():
        directories = destination.open()
        selected = list(_selected(run, command, destination, directories))
    run.timer.lap(LIST)
    planned = command.plan(selected) if selected or (destination.copies and run.rows) else None
    if planned is not None:
        if not run.dry_run:
            barred = destination.begin(planned)
            planned = [each for each in planned if each.listing.path not in barred]
            for listing, why in barred.values():
                run.add(command.unchanged(listing, why))
        for row in command.rewrite(planned):
            run.add(row)
        if not run.dry_run:
            destination.end(planned)
    rows = list(run.rows) if run.dry_run else destination.complete(run.rows)
    for before, after in zip(run.rows, rows, strict=True):
        if run.logs_at_end or after is not before:
            run.log(after)
    return command.finish(rows)


def _selected(
    run: Run[Report],
    command: Command[Selected, Planned, Report],
    destination: Destination[Report],
    directories: Iterable[SelectedDirectory],
) -> Iterator[Selected]:
    def listed(directory: SelectedDirectory, partition: TopicPartition) -> LogListing | Exception:
        try:
            with destination.naming(directory):
                return destination.listing(directory, partition)
        except (SedimentError, OSError) as error:
            return error

    for directory in directories:
        listings = overlapped(partial(listed, directory), directory.partitions)
        for partition, listing in zip(directory.partitions, listings, strict=True):
            try:
                if isinstance(listing, Exception):
                    raise listing
                with destination.naming(directory):
                    found = command.select(directory, listing)
            except (SedimentError, OSError) as error:
                run.add(command.unlisted(directory, partition, *describe(error)))
                continue
            if found is not None:
                yield found

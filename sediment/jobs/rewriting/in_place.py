"""Rewriting in place: new segments replace old ones in their own directory, under the directory's lock.

Invariants: only the driver renames files.  The cleaner checkpoint is lowered before the commit, so a crash between
these two steps has one effect: a later cleaning reads more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from sediment.compaction.prepared_swap import PreparedSwap
from sediment.engine.directory.loading.interrupted_swaps import finish_interrupted
from sediment.engine.directory.lock import DirectoryLock, place_run_token, remove_run_token
from sediment.engine.directory.originals.backup_links import originals_directory
from sediment.engine.directory.swap import commit, discard_parts
from sediment.engine.directory.uncleanable import Uncleanable, update_uncleanable
from sediment.jobs.cleaning.backup_links import KeptOriginals, begin_originals
from sediment.jobs.cleaning.cleaning_run import update_cleaner_checkpoint
from sediment.jobs.cleaning.result import CleaningResult, failure
from sediment.jobs.command_line.options import CommonOptions
from sediment.jobs.delta_lake.paths import outside_log_dirs
from sediment.jobs.rewriting.destination import Destination, check_stopped_cleanly
from sediment.jobs.rewriting.options import RewriteOptions
from sediment.jobs.rewriting.partition_task import InPlace, TaskPlace
from sediment.jobs.rewriting.planned_partition import PlannedPartition
from sediment.jobs.rewriting.report import RewriteReport
from sediment.jobs.settings.cluster_settings import warn_of_refusals
from sediment.jobs.settings.directories import SelectedDirectory, check_filesystem
from sediment.jobs.settings.running_brokers import warn_of_running
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.listing import LogListing, list_log


class DirectoriesInPlace(Destination):
    """The log directories of the run; the exit stack releases locks and removes tokens."""

    def __init__(
        self,
        command: str,
        run_id: str,
        options: CommonOptions,
        own: RewriteOptions,
        stop: threading.Event,
        stack: ExitStack,
    ) -> None:
        self._command = command
        self._run_id = run_id
        self._options = options
        self._own = own
        self._stop = stop
        self._stack = stack
        self._fs = Fs()
        self._locks: dict[Path, DirectoryLock] = {}
        self._originals: KeptOriginals | None = None

    def open(self) -> list[SelectedDirectory]:
        """Check every directory before any change; read each directory again under its lock."""
        options, own = self._options, self._own
        options.open_directories(self._fs, in_place=not own.dry_run)
        kept = own.kept_in(options)
        if kept is not None:
            for path in options.log_dirs:
                outside_log_dirs(str(kept.of(path)), options.log_dirs)
        if own.dry_run:
            directories = options.open_directories(self._fs)
            warn_of_refusals(directories)
            warn_of_running(directories)
            return directories
        for path in options.log_dirs:
            check_filesystem(path, allow_network=own.allow_network_fs)
            if kept is not None:
                self._stack.enter_context(originals_directory(kept.of(path), path, self._fs))
            self._locks[path] = self._stack.enter_context(DirectoryLock(path))
        directories = options.open_directories(self._fs, in_place=True)
        check_stopped_cleanly(directories)
        for path in options.log_dirs:
            place_run_token(path, self._run_id)
            self._stack.callback(remove_run_token, path)
        return directories

    def listing(self, directory: SelectedDirectory, partition: TopicPartition) -> LogListing:
        """List the partition's directory."""
        return list_log(partition, directory.path / str(partition), self._fs)

    def listing_now(self, listing: LogListing) -> LogListing:
        """List the partition's directory again, because a commit may have been interrupted."""
        return list_log(listing.partition, listing.path, self._fs)

    def shown(self, log_dir: str) -> str:
        """Return the path."""
        return log_dir

    def settle(self, listing: LogListing) -> LogListing | None:
        """Complete an interrupted replacement; return None in a dry run, which cannot complete it."""
        if self._own.dry_run:
            return None if listing.is_replacement_open() else listing
        if not finish_interrupted(listing.path, self._fs):
            return listing
        return list_log(listing.partition, listing.path, self._fs)

    def free_bytes(self, listing: LogListing) -> int:
        """Return the free bytes of the partition's filesystem."""
        return self._fs.free_bytes(listing.path)

    def place_of(self, _listing: LogListing) -> TaskPlace:
        """Return the partition's own directory."""
        return InPlace()

    def begin(self, planned: Sequence[PlannedPartition]) -> list[tuple[LogListing, CleaningResult]]:
        """Write the catalogue of originals; leave out partitions whose files cannot be read."""
        listings = [each.listing for each in planned if each.plan.segments]
        kept = self._own.kept_in(self._options)
        if kept is None or not listings:
            return []
        self._originals, unlisted = begin_originals(
            self._options, self._command, self._run_id, kept, listings, self._fs
        )
        return [(listing, failure(code, text)) for listing, code, text in unlisted]

    def commit(self, planned: PlannedPartition, swap: PreparedSwap) -> bool:
        """Link the originals, lower the cleaner checkpoint, and swap the segments."""
        log_dir, partition = planned.listing.path.parent, planned.selected.partition
        lock = self._locks[log_dir]
        if self._originals is not None:
            self._originals.keep_swap(swap)
        lowered = planned.lowered_checkpoint()
        if lowered is not None:
            lock.check()
            update_cleaner_checkpoint(self._fs, log_dir, {partition: lowered})
        return commit(
            swap,
            self._fs,
            before_group=lock.check,
            should_stop=self._stop.is_set,
            after_group=planned.replaced.append,
        )

    def mark(self, listing: LogListing, mark: Uncleanable) -> None:
        """Write the mark to the log directory."""
        update_uncleanable(listing.path.parent, self._fs, add=[mark])

    def end(self, planned: Sequence[PlannedPartition]) -> None:
        """Remove the tokens first, because a lost attempt may still write; then remove uncommitted parts."""
        for path in self._options.log_dirs:
            remove_run_token(path)
        for each in planned:
            discard_parts(each.listing.path, self._run_id, self._fs)

    def withdraw(self) -> None:
        """Do nothing, because a change in place cannot be marked as incomplete."""

    def complete(self, reports: Sequence[RewriteReport], _spark: Callable[[], Any]) -> dict[int, tuple[str, str]]:
        """Complete the catalogue of originals."""
        if self._originals is not None:
            self.catalogue = self._originals.end(reports)
        return {}

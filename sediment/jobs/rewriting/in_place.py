"""Rewriting in place: new segments replace old ones in their own directory, under the directory's lock.

The cleaner checkpoint is lowered before the commit, so a crash between these two steps has one effect: a later cleaning
reads more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from sediment.compaction.prepared_swap import CleanedGroup, PreparedSwap
from sediment.engine.directory.loading.interrupted_swaps import finish_interrupted
from sediment.engine.directory.lock import DirectoryLock, place_run_token, remove_run_token
from sediment.engine.directory.lockstep import Steps, perform
from sediment.engine.directory.originals.kept_in import KeptIn
from sediment.engine.directory.removals import Removals
from sediment.engine.directory.swap import commit_steps, discard_parts
from sediment.engine.directory.uncleanable import Uncleanable, update_uncleanable
from sediment.jobs.rewriting.destination import SegmentDestination, check_stopped_cleanly
from sediment.jobs.rewriting.kept_originals import KeptOriginals, begin_originals
from sediment.jobs.rewriting.partition_task import InPlace, TaskPlace
from sediment.jobs.rewriting.planned_partition import PlannedPartition
from sediment.jobs.rewriting.result import CleaningResult, failure
from sediment.jobs.rewriting.run import PlaceOf, Report, Run, Work, check_outside, read_locked
from sediment.jobs.settings.cluster_settings import warn_of_refusals
from sediment.jobs.settings.directories import SelectedDirectory
from sediment.jobs.settings.running_brokers import warn_of_running
from sediment.segment_io.errors import CorruptCheckpointError
from sediment.segment_io.format.names import CLEANER_FILE, LOCK_FILE, TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import update_offset_checkpoint, write_offset_checkpoint
from sediment.segment_io.partition.listing import LogListing, list_log


class DirectoriesInPlace(SegmentDestination[Report]):
    def __init__(self, run: Run[Report], originals: KeptIn | None, *, allow_network_fs: bool) -> None:
        super().__init__(run)
        self.originals = originals
        self.running: Mapping[str, str] = {}
        """In a dry run, what a running broker means for the directory, by path."""
        self.left_parts: dict[Path, set[str]] = {}
        """The names of parts that stay after the run, by partition directory."""
        self.removals: Removals | None = None
        """The threads that remove replaced files; None: a commit removes them itself."""
        self._allow_network_fs = allow_network_fs
        self._locks: Mapping[Path, DirectoryLock] = {}
        self._kept: KeptOriginals | None = None

    # ---------------------------------------------------------------------------------------------------------- opening
    def open(self) -> list[SelectedDirectory]:
        """Check every directory before any change; read each directory again under its lock."""
        self.read_directories()
        if self.run.dry_run:
            self.warn_in_dry_run()
        else:
            check_stopped_cleanly(self.directories)
            self.place_tokens()
        return self.directories

    def read_directories(self, *, locked: Sequence[Path] | None = None, before_of: PlaceOf | None = None) -> None:
        run = self.run
        self.directories, self._locks = read_locked(
            run,
            partial(run.options.open_directories, run.fs, in_place=not run.dry_run),
            self.check_places,
            locked=locked,
            originals_of=None if self.originals is None else self.originals.of,
            before_of=before_of,
            allow_network=self._allow_network_fs,
        )

    def check_places(self) -> None:
        """Check the places of kept files, once the log directories are known to exist."""
        check_outside(self.originals, self.run.options.log_dirs)

    def warn_in_dry_run(self) -> None:
        warn_of_refusals(self.directories)
        self.running = warn_of_running(self.directories)

    def place_tokens(self) -> None:
        """Place the run's token in every directory, without which a task writes nothing."""
        for path in self.run.options.log_dirs:
            place_run_token(path, self.run.run_id)
            self.run.stack.callback(remove_run_token, path)

    def listing(self, directory: SelectedDirectory, partition: TopicPartition) -> LogListing:
        return list_log(partition, directory.path / str(partition), self.run.fs)

    def settle(self, listing: LogListing) -> LogListing | None:
        if self.run.dry_run:
            return None if listing.is_replacement_open() else listing
        if not finish_interrupted(listing.path, self.run.fs):
            return listing
        return list_log(listing.partition, listing.path, self.run.fs)

    # --------------------------------------------------------------------------------------------------- the partitions
    def begin(self, planned: Sequence[Work]) -> Mapping[Path, tuple[LogListing, CleaningResult]]:
        listings = [each.listing for each in planned if each.may_change]
        if self.originals is None or not listings:
            return {}
        self._kept, unlisted = begin_originals(self.run, self.originals, listings)
        return {listing.path: (listing, failure(code, text)) for listing, code, text in unlisted}

    def place_of(self, _listing: LogListing) -> TaskPlace:
        return InPlace()

    def free_bytes(self, listing: LogListing) -> int:
        return self.run.fs.free_bytes(listing.path)

    def listing_now(self, listing: LogListing) -> LogListing:
        """List the partition's directory again, because a commit may have been interrupted."""
        return list_log(listing.partition, listing.path, self.run.fs)

    def commit(self, planned: PlannedPartition, swap: PreparedSwap) -> bool:
        return perform(self.replace_segments(swap, planned.replaced, lowered=planned.lowered_checkpoint()))

    def replace_segments(
        self, swap: PreparedSwap, done: list[CleanedGroup], *, lowered: int | None = None
    ) -> Steps[bool]:
        """Link the originals, lower the cleaner checkpoint if asked, and swap the groups; return False after a stop.

        Each replaced group is added to `done`, even if the commit of a later group fails.
        """
        yield partial(self.keep, swap)
        log_dir, fs = Path(swap.directory).parent, self.run.fs
        lock = self._locks[log_dir]
        if lowered is not None:
            lock.check()
            update_cleaner_checkpoint(fs, log_dir, {swap.partition: lowered})
        return (
            yield from commit_steps(
                swap,
                fs,
                before_group=lock.check,
                should_stop=self.run.stop.is_set,
                after_group=done.append,
                removals=self.removals,
            )
        )

    def keep(self, swap: PreparedSwap) -> None:
        if self._kept is not None:
            self._kept.keep_swap(swap)

    def mark(self, listing: LogListing, mark: Uncleanable) -> None:
        update_uncleanable(listing.path.parent, self.run.fs, add=[mark])

    # ---------------------------------------------------------------------------------------------------------- closing
    def end(self, planned: Sequence[Work]) -> None:
        """Remove the tokens first, because a lost attempt may still write; then remove uncommitted parts."""
        if not self.run.has_spark:
            return
        for path in self.run.options.log_dirs:
            remove_run_token(path)
        for each in planned:
            path = each.listing.path
            discard_parts(path, self.run.run_id, self.run.fs, keep=self.left_parts.get(path, ()))

    def complete(self, rows: Sequence[Report]) -> list[Report]:
        if self._kept is not None:
            self.catalogue = self._kept.end(rows)
        return list(rows)


def update_cleaner_checkpoint(fs: Fs, log_dir: Path, offsets: Mapping[TopicPartition, int]) -> None:
    """Set `offsets` in the cleaner checkpoint; a malformed file counts as empty and is replaced, as in a broker."""
    path, like = log_dir / CLEANER_FILE, log_dir / LOCK_FILE
    try:
        update_offset_checkpoint(fs, path, offsets, like=like)
    except CorruptCheckpointError:
        write_offset_checkpoint(fs, path, offsets, like=like)

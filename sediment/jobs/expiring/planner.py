"""What to delete from each partition: its view and its plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sediment.engine.directory.delete_segments import settle_epochs
from sediment.engine.directory.loading.interrupted_swaps import finish_interrupted
from sediment.engine.directory.lock import DirectoryLock
from sediment.engine.log_config import LogConfig
from sediment.jobs.expiring.expiry_task import ExpiryTask, carried_out
from sediment.jobs.expiring.report import EXPIRED, ExpiryReport
from sediment.jobs.process.overlapped import overlapped
from sediment.jobs.reporting.error_text import describe_in_expire
from sediment.jobs.reporting.run_report import FAILED, SKIPPED
from sediment.jobs.reporting.statuses import STOPPED_BEFORE_DONE
from sediment.jobs.rewriting.report import unchanged_fields
from sediment.jobs.rewriting.run import Run
from sediment.jobs.settings.directories import SelectedDirectory
from sediment.jobs.settings.policy_warnings import policy_warning
from sediment.jobs.settings.unstated_settings import why_not_expired
from sediment.retention.date_warnings import date_warnings
from sediment.retention.policy import explain_retention, plan_view
from sediment.segment_io.errors import CorruptCheckpointError, SedimentError, SourceChangedError
from sediment.segment_io.format.names import LEADER_EPOCH_FILE, LOG_START_FILE, TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import PartitionCheckpoints, read_checkpoints, read_leader_epochs
from sediment.segment_io.partition.listing import LogListing, check_segments_are_files, list_log

if TYPE_CHECKING:
    from sediment.segment_io.partition.log_view import LogView

NOTHING_TO_DELETE = "nothing-to-delete"


def _listed(listing: LogListing, status: str, code: str | None, reason: str | None) -> ExpiryReport:
    return ExpiryReport(**unchanged_fields(listing), status=status, reason_code=code, reason=reason)


@dataclass(frozen=True, slots=True)
class ExpiryPlanner:
    """Views and plans partitions; if it `only_looks`, it finishes no interrupted replacement and settles no epochs."""

    run: Run[ExpiryReport]
    only_looks: bool

    def prepare_all(self, directories: Sequence[SelectedDirectory]) -> Iterator[ExpiryTask | ExpiryReport]:
        pairs = [(directory, partition) for directory in directories for partition in directory.partitions]
        return overlapped(lambda pair: self._prepare(*pair), pairs)

    def _prepare(self, directory: SelectedDirectory, partition: TopicPartition) -> ExpiryTask | ExpiryReport:
        failed = partial(ExpiryReport, str(partition), str(directory.path), FAILED)
        if self.run.stop.is_set():
            return failed(*STOPPED_BEFORE_DONE)
        try:
            return self._decide(directory, partition)
        except (SedimentError, OSError) as error:
            return failed(*describe_in_expire(error))

    def _decide(self, directory: SelectedDirectory, partition: TopicPartition) -> ExpiryTask | ExpiryReport:
        # Imported late, because this module compiles kernels, and a wrong command line should be reported sooner.
        from sediment.segment_io.partition.log_view import open_view

        path = directory.path / str(partition)
        settings = directory.settings_of(partition, self.run.fs)
        listing = list_log(partition, path, self.run.fs)
        if self.only_looks and listing.is_replacement_open():
            other = "without --dry-run" if self.run.dry_run else "with --yes"
            return _listed(
                listing,
                SKIPPED,
                "interrupted",
                f"an earlier run or broker was interrupted here; run {other} to finish its work first",
            )
        check_segments_are_files(partition, path, self.run.fs)
        if not self.only_looks and finish_interrupted(path, self.run.fs):
            listing = list_log(partition, path, self.run.fs)
        config = settings.for_topic(partition.topic)
        if skipped := why_not_expired(partition, directory.checkpoints.of(partition), settings, config):
            return _listed(listing, SKIPPED, *skipped)
        view = open_view(
            listing,
            directory.checkpoints.of(partition),
            self.run.fs,
            now_ms=self.run.options.now_ms,
            producer_id_expiration_ms=config.compaction.producer_id_expiration_ms,
        )
        asked = settings.origin(partition.topic, "file.delete.delay.ms") != "default"
        checkpoints = directory.checkpoints.of(partition)
        _check_log_start(view, checkpoints)
        read_leader_epochs(
            self.run.fs, path / LEADER_EPOCH_FILE
        )  # if the file is malformed, the partition must fail before its log start is changed
        found = self._planned(view, config, checkpoints, keep_deleted=asked and config.file_delete_delay_ms > 0)
        if isinstance(found, ExpiryReport) and not self.only_looks:
            # This error is ignored, because the next run tries again.
            with suppress(SedimentError, OSError):
                settle_epochs(view, self.run.fs)
        return found

    def _planned(
        self, view: LogView, config: LogConfig, checkpoints: PartitionCheckpoints, *, keep_deleted: bool
    ) -> ExpiryTask | ExpiryReport:
        plan = plan_view(view, config.retention, now_ms=self.run.options.now_ms)
        dates = date_warnings(plan, config.retention, now_ms=self.run.options.now_ms)
        policy = policy_warning(view.listing.partition.topic, config, expires=bool(plan.deleted))
        report = replace(
            _listed(view.listing, EXPIRED, None, None),
            warnings=dates if policy is None else (*dates, policy),
            log_start_offset=plan.log_start_offset,
            high_watermark=view.high_watermark,
            log_end_offset=view.log_end_offset,
        )
        if not plan.deleted:
            first = plan.fates[0] if plan.fates else None
            why = (
                f"segment {first.segment.base_offset} stays: {explain_retention(first, config.retention)}"
                if first
                else None
            )
            return replace(
                report, status=SKIPPED, reason_code=NOTHING_TO_DELETE, reason=why or "the log has no segment"
            )
        return ExpiryTask(view, plan, carried_out(report, view, plan), keep_deleted, checkpoints)


def check_unchanged(expiring: Sequence[ExpiryTask], locks: Mapping[Path, DirectoryLock], fs: Fs) -> None:
    """Refuse partitions that changed after they were shown, and finish the interrupted replacements of the others."""
    checkpoints = {}
    for log_dir in dict.fromkeys(each.log_dir for each in expiring):
        locks[log_dir].check()
        checkpoints[log_dir] = read_checkpoints(log_dir, fs)
    for each in expiring:
        path, partition = each.view.listing.path, each.partition
        now = list_log(partition, path, fs)
        if (
            (now.segments, now.snapshots) != (each.view.listing.segments, each.view.listing.snapshots)
            or now.is_replacement_open()
            or checkpoints[each.log_dir].of(partition) != each.checkpoints
        ):
            raise SourceChangedError(
                "the partition changed before the answer, and nothing was deleted",
                partition=str(partition),
                path=str(path),
                advice="run again",
            )
        finish_interrupted(path, fs)


def _check_log_start(view: LogView, checkpoints: PartitionCheckpoints) -> None:
    start, end = checkpoints.log_start, view.log_end_offset
    if start is not None and start > end and view.listing.log_bytes():
        raise CorruptCheckpointError(
            f"the log start offset {start} is above the log end {end}, so every segment would be deleted",
            partition=str(view.listing.partition),
            path=str(view.listing.path.parent / LOG_START_FILE),
            advice="restore the checkpoint that belongs to these segments, or remove the partition from it",
        )

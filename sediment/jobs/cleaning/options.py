"""Options of `compact`, and the value that describes the cleaning of one partition to a task.

Invariant: only `CompactOptions.validate` decides which options exclude each other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from sediment.compaction.config import CompactionConfig
from sediment.compaction.reencode.plan import Encoding
from sediment.compaction.strategy import KeyEquality, Resources, Strategy
from sediment.jobs.command_line.declaration import (
    ONE_COMMAND,
    ByteSize,
    Directory,
    ExistingDirectory,
    Seconds,
    option,
    together,
)
from sediment.jobs.command_line.encoding_options import EncodingOptions
from sediment.jobs.command_line.shared_options import (
    AUTO,
    allow_network_fs_option,
    keep_originals_option,
    key_equality_option,
)
from sediment.jobs.delta_lake.paths import is_uri
from sediment.jobs.spark.executor_memory import ExecutorMemory
from sediment.jobs.spark.task_environment import NO_LIMIT, RateLimit
from sediment.segment_io.errors import UsageError
from sediment.segment_io.format.layout import INT64_MAX
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.fs import without_links
from sediment.segment_io.partition.checkpoint_files import PartitionCheckpoints
from sediment.segment_io.partition.listing import LogListing, SegmentRef

if TYPE_CHECKING:
    from sediment.jobs.command_line.options import CommonOptions

FAIL, KEEP = "fail", "keep"

WHOLE_RUN = Resources(asked=Strategy.WHOLE, slots=1, all_bytes=0, task_memory_bytes=INT64_MAX)


@dataclass(frozen=True, slots=True)
class CompactOptions:
    force: bool = option(
        False,
        "Clean logs even if their dirty ratio is below min.cleanable.dirty.ratio.  Clean a log without dirty records "
        "again if its tombstones have expired.",
    )
    dry_run: bool = option(False, "Clean in memory, write nothing, and report the result.", from_settings=ONE_COMMAND)
    from_start: bool = option(
        False, "Ignore cleaner-offset-checkpoint, and clean from the log start.", from_settings=ONE_COMMAND
    )
    strategy: Strategy | None = option(
        None,
        "whole: one task cleans a partition.  split: many tasks clean a partition.  auto: choose for each partition, "
        "by its size, its keys and the number of task slots.",
        none=AUTO,
        shows_default=True,
        from_settings=ONE_COMMAND,
    )
    key_equality: KeyEquality = key_equality_option()
    encoding: Encoding | None = together(EncodingOptions)
    on_corruption: Literal["fail", "keep"] = option(
        "fail",
        "fail: skip a partition with a corrupt batch, and quarantine it, so that later runs skip it too.  keep: clean "
        "the readable batches of the partition, and leave the corrupt ones unchanged.",
        shows_default=True,
    )
    drop_keyless: bool = option(
        False,
        "Also clean a partition if more than half of the records that it would lose have no key.  Otherwise, such a "
        "partition stays unchanged, because compaction drops every record without a key.",
    )
    retry_quarantined: bool = option(False, "Also try to clean quarantined partitions, which a run otherwise skips.")
    roll_active: bool = option(
        False, "Also roll and clean the active segment; use this only while no broker uses the directory."
    )
    keep_originals: Directory | None = keep_originals_option()
    keep_before: Directory | None = option(
        None,
        "Before a partition changes, hard-link all its files into DIR, so that `verify DIR LOG_DIR` can check the run "
        "before a broker writes to LOG_DIR again; use a new DIR for each run.  With several log directories, the name "
        "`before` keeps /d1/logs in /d1/logs-before, and so on.",
        from_settings=ONE_COMMAND,
    )
    max_bytes: ByteSize | None = option(
        None,
        "Clean at most N bytes of log, such as 10GB, filthiest partitions first; leave the other partitions for the "
        "next run.",
        from_settings=ONE_COMMAND,
    )
    max_seconds: Seconds | None = option(
        None,
        "Stop after N seconds, or a duration such as 90m.  Finished partitions stay compacted; the others stay "
        "unchanged.",
        from_settings=ONE_COMMAND,
    )
    hand_off: Directory | None = option(
        None,
        "Commit nothing; leave the cleaned segments in DIR.  The Sediment engine that runs on LOG_DIR (a Python "
        "process that uses sediment.engine) then commits them.",
        from_settings=ONE_COMMAND,
    )
    output: str | None = option(
        None,
        "Write a complete log directory to DIR_OR_URI and leave LOG_DIR unchanged; required if LOG_DIR is a URI.",
        metavar="DIR_OR_URI",
        from_settings=ONE_COMMAND,
    )
    scratch: ExistingDirectory | None = option(
        None,
        "Directory for temporary copies of partitions whose files must change before cleaning; used if --output is "
        "given and LOG_DIR is a URI (default: $TMPDIR).",
        from_settings=ONE_COMMAND,
    )
    allow_network_fs: bool = allow_network_fs_option()

    @property
    def is_limited(self) -> bool:
        return self.max_bytes is not None or self.max_seconds is not None

    def validate(self, common: CommonOptions) -> None:
        if self.strategy is Strategy.SPLIT and self.key_equality is KeyEquality.EXACT:
            raise UsageError(
                "--strategy split excludes --key-equality exact, because split tasks exchange hashes, not keys",
                advice="leave out one of them",
            )
        if self.output is not None:
            self._validate_output()
            return
        for log_dir in filter(is_uri, common.given_log_dirs):
            raise UsageError("a URI source is read-only", path=log_dir, advice="give --output a destination")
        if self.keep_before is not None and self.keep_originals is not None:
            check_apart(without_links(self.keep_originals), without_links(self.keep_before))
        if self.hand_off is not None:
            self._validate_hand_off()

    def _validate_output(self) -> None:
        for name, given, why in (
            ("--hand-off", self.hand_off is not None, "an engine would have nothing to commit"),
            ("--keep-originals", self.keep_originals is not None, "the source keeps them"),
            ("--keep-before", self.keep_before is not None, "the source keeps it"),
            ("--max-bytes", self.max_bytes is not None, "an incomplete output is of no use"),
            ("--max-seconds", self.max_seconds is not None, "an incomplete output is of no use"),
        ):
            if given:
                raise UsageError(f"--output excludes {name}: {why}", advice="leave out one of them")

    def _validate_hand_off(self) -> None:
        for name, given in (
            ("--dry-run", self.dry_run),
            ("--roll-active", self.roll_active),
            ("--keep-originals", self.keep_originals is not None),
            ("--keep-before", self.keep_before is not None),
        ):
            if given:
                raise UsageError(
                    f"--hand-off excludes {name}: the directories belong to their engine",
                    advice="leave out one of them",
                )


@dataclass(frozen=True, slots=True)
class CleaningTask:
    """One partition to clean, as sent to an executor.

    `on_disk` are the segments on disk if they differ from `listing`, for example in a dry run that simulates a roll.
    On a cluster, `executor` limits the memory of the task, instead of `resources`.
    """

    listing: LogListing
    checkpoints: PartitionCheckpoints
    config: CompactionConfig
    options: CompactOptions
    now_ms: int
    run_id: str
    on_disk: tuple[SegmentRef, ...] | None = None
    rate_limit: RateLimit = NO_LIMIT
    resources: Resources = WHOLE_RUN
    executor: ExecutorMemory | None = None

    @property
    def log_dir(self) -> Path:
        return self.listing.path.parent

    @property
    def dry_run(self) -> bool:
        return self.options.dry_run

    @property
    def may_change(self) -> bool:
        """True: only the task finds out whether there is something to clean."""
        return True

    def weight(self) -> int:
        return self.listing.log_bytes()

    def partition(self) -> TopicPartition:
        return self.listing.partition

    def as_whole(self) -> CleaningTask:
        return replace(self, resources=replace(self.resources, asked=Strategy.WHOLE))

    def expected_bytes(self) -> int:
        """Return the `.log` bytes that cleaning will probably read; tasks are packed by this number.

        The number is 0 if the bytes above the cleaner checkpoint are too few for the configured dirty ratio.
        """
        # This is an estimate: the exact rule in `compaction.cleanable_range` needs compiled kernels, which the driver
        # does not load.
        first_dirty, config, options = self.checkpoints.first_dirty, self.config, self.options
        *rolled, active = self.listing.segments or (None,)
        rolled_bytes = sum(segment.log_bytes for segment in rolled)
        if options.force or options.from_start or config.max_compaction_lag_ms < INT64_MAX:
            return rolled_bytes
        if first_dirty is None or active is None or first_dirty > active.base_offset:
            return rolled_bytes
        clean_bytes = sum(segment.log_bytes for segment in rolled if segment.base_offset < first_dirty)
        ends = [segment.base_offset for segment in (*rolled[1:], active)]
        dirty_bytes = sum(s.log_bytes for s, end in zip(rolled, ends, strict=False) if end > first_dirty)
        ratio_bytes = config.min_cleanable_dirty_ratio * (clean_bytes + dirty_bytes)
        return rolled_bytes if dirty_bytes > ratio_bytes else 0


def check_apart(originals: Path, before: Path) -> None:
    if originals == before:
        raise UsageError(
            "--keep-before and --keep-originals name the same directory", advice="name a directory for each of them"
        )

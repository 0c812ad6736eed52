"""Options of `compact`, and the value that describes the cleaning of one partition to a task.

Invariant: only `CompactOptions.validate` decides which options exclude each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sediment.compaction.config import CompactionConfig
from sediment.compaction.strategy import KeyEquality, Resources, Strategy
from sediment.jobs.delta_lake.paths import is_uri
from sediment.jobs.spark.task_environment import NO_LIMIT, RateLimit
from sediment.segment_io.errors import UsageError
from sediment.segment_io.format.layout import INT64_MAX
from sediment.segment_io.partition.checkpoint_files import PartitionCheckpoints
from sediment.segment_io.partition.listing import LogListing, SegmentRef

if TYPE_CHECKING:
    from sediment.compaction.reencode.plan import Encoding
    from sediment.jobs.command_line.options import CommonOptions

FAIL, KEEP = "fail", "keep"
AUTO = "auto"
STRATEGIES = (AUTO, *(strategy.value for strategy in Strategy))
"""The values of `--strategy`."""

WHOLE_RUN = Resources(asked=Strategy.WHOLE, slots=1, all_bytes=0, task_memory_bytes=INT64_MAX)


@dataclass(frozen=True, slots=True)
class CompactOptions:
    """Options of `compact` in addition to the common options."""

    force: bool = False
    dry_run: bool = False
    from_start: bool = False
    on_corruption: str = FAIL
    """Action for a partition with a corrupt batch: `fail` quarantines it, `keep` cleans its readable batches."""

    roll_active: bool = False
    keep_originals: Path | None = None
    keep_before: Path | None = None
    """Directory for hard links to all files of each partition, made before the run changes the partition."""

    drop_keyless: bool = False
    """True: also clean a partition that would mostly lose records without a key."""

    max_bytes: int | None = None
    max_seconds: float | None = None
    retry_quarantined: bool = False
    allow_network_fs: bool = False
    strategy: Strategy | None = None
    """Cleaning strategy; None: choose by the size and keys of each partition and by the number of task slots."""

    key_equality: KeyEquality = KeyEquality.HASH
    """Method of comparing two keys."""

    encoding: Encoding | None = None
    """Codec and size of the batches in cleaned segments; None: batches keep their codec and size."""

    hand_off: Path | None = None
    """Hand-off folder of the engine that owns the directories; the run puts its swaps here for the engine to commit."""

    output: str | None = None
    """Path or URI of a complete compacted log directory; the source stays unchanged."""

    scratch: Path | None = None
    """Directory for small files of a URI source, and for partitions whose files must change before they are cleaned."""

    @property
    def is_limited(self) -> bool:
        """True if the run has a limit and may leave partitions out, so the order of the partitions matters."""
        return self.max_bytes is not None or self.max_seconds is not None

    def validate(self, common: CommonOptions) -> None:
        """Check that the options are compatible with each other and with the log directories of `common`.

        Raises:
            UsageError: two options exclude each other, or a log directory needs another option.
        """
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
            check_apart(self.keep_originals.resolve(), self.keep_before.resolve())
        if self.hand_off is not None:
            self._validate_hand_off()

    def _validate_output(self) -> None:
        for option, given, why in (
            ("--hand-off", self.hand_off is not None, "an engine would have nothing to commit"),
            ("--keep-originals", self.keep_originals is not None, "the source keeps them"),
            ("--keep-before", self.keep_before is not None, "the source keeps it"),
            ("--max-bytes", self.max_bytes is not None, "an incomplete output is of no use"),
            ("--max-seconds", self.max_seconds is not None, "an incomplete output is of no use"),
        ):
            if given:
                raise UsageError(f"--output excludes {option}: {why}", advice="leave out one of them")

    def _validate_hand_off(self) -> None:
        for option, given in (
            ("--dry-run", self.dry_run),
            ("--roll-active", self.roll_active),
            ("--keep-originals", self.keep_originals is not None),
            ("--keep-before", self.keep_before is not None),
        ):
            if given:
                raise UsageError(
                    f"--hand-off excludes {option}: the directories belong to their engine",
                    advice="leave out one of them",
                )


@dataclass(frozen=True, slots=True)
class CleaningTask:
    """One partition to clean, as sent to an executor.

    `on_disk` are the segments on disk if they differ from `listing`, for example in a dry run that simulates a roll.
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

    @property
    def log_dir(self) -> Path:
        """Log directory."""
        return self.listing.path.parent

    @property
    def dry_run(self) -> bool:
        """True if the task writes nothing."""
        return self.options.dry_run

    def weight(self) -> int:
        """Return the `.log` bytes of the partition."""
        return self.listing.log_bytes()

    def expected_bytes(self) -> int:
        """Return the `.log` bytes that cleaning will probably read; tasks are packed by this number.

        The number is 0 if the bytes above the cleaner checkpoint are too few for the configured dirty ratio.  This is
        an estimate: the exact rule in `compaction.cleanable_range` needs compiled kernels, which the driver does not
        load.
        """
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
    """Check that the places of --keep-originals and --keep-before differ.

    Raises:
        UsageError: they are the same.
    """
    if originals == before:
        raise UsageError(
            "--keep-before and --keep-originals name the same directory", advice="name a directory for each of them"
        )


def parse_strategy(text: str) -> Strategy | None:
    """Return the strategy that `--strategy` requests, or None for auto."""
    return None if text == AUTO else Strategy(text)

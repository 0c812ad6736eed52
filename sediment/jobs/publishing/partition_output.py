"""Steps of the tasks that write one partition to an output: list the source, write new files, copy unchanged files.

Invariant: a task may write any file of its partition, but a file is part of the result only if the manifest names it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from sediment.compaction.prepared_swap import CleanedGroup
from sediment.engine.copying.partition_copy import PartitionCopy, copy_partition, in_pieces
from sediment.engine.directory.output import Publisher, SourcePublishingFs
from sediment.engine.directory.swap import replaced_files
from sediment.jobs.reporting.error_text import describe
from sediment.jobs.spark.live_slots import LiveSlots
from sediment.jobs.spark.task_environment import OnBytes, RateLimit, throttled
from sediment.jobs.spark.task_figures import Figures
from sediment.segment_io.errors import SedimentError, SourceChangedError
from sediment.segment_io.format.names import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    LEADER_EPOCH_FILE,
    PART_SUFFIX,
    PARTITION_METADATA_FILE,
    SWAP_SUFFIX,
    TopicPartition,
    parse_segment_file,
)
from sediment.segment_io.manifest import ManifestFile
from sediment.segment_io.stores import Modes, Store, StoredFile, by_folder, modes_of

_OTHER_FILES = frozenset({LEADER_EPOCH_FILE, PARTITION_METADATA_FILE})
_REPLACEMENT_SUFFIXES = (SWAP_SUFFIX, CLEANED_SUFFIX)


@dataclass(frozen=True, slots=True)
class PartitionOutput:
    """One partition to write; `files` maps names to the files in its folder in `source`, as the driver listed them."""

    partition: TopicPartition
    source: Store
    files: Mapping[str, StoredFile]
    output: Store
    run_id: str
    dry_run: bool = False
    rate_limit: RateLimit = field(default_factory=RateLimit)

    @property
    def folder(self) -> str:
        return str(self.partition)

    @property
    def shown(self) -> str:
        return f"{self.source}/{self.folder}"

    def weight(self) -> int:
        return sum(file.size_bytes for file in self.files.values())

    def publisher(self) -> Publisher | None:
        return None if self.dry_run else Publisher(self.output, self.run_id, self._modes())

    def make_folder(self) -> None:
        self.output.make_folder(self.folder, self._modes().folder)

    def _modes(self) -> Modes:
        return modes_of([self.source], self.folder)

    def check_listed(self) -> None:
        if files_by_folder(self.source.files(self.folder)).get(self.folder, {}) != self.files:
            raise SourceChangedError(
                "the files differ from those that the driver listed",
                partition=self.folder,
                path=self.shown,
                advice="stop the broker or work on a copy, and check whether another disk is mounted at this path",
            )

    def source_fs(self, on_bytes: OnBytes) -> SourcePublishingFs:
        return SourcePublishingFs(self.publisher(), self.source, self.folder, self.files, on_bytes)

    def reading_fs(self) -> SourcePublishingFs:
        return SourcePublishingFs(None, self.source, self.folder, self.files, lambda _count: None)

    def copied(self, names: Iterable[str], attempt: str, on_bytes: OnBytes) -> tuple[ManifestFile, ...]:
        """Copy files directly from the source, and return the copied files; in a dry run, copy and return none."""
        publisher = self.publisher()
        if publisher is None:
            return ()
        files = {name: self.files[name] for name in names}
        work = PartitionCopy(self.source, self.folder, files, self.folder, folder_mode=publisher.modes.folder)
        return tuple(made.file for made in copy_partition(work, publisher, attempt=attempt, on_bytes=on_bytes))

    def staying(self, directory: Path, groups: Iterable[CleanedGroup]) -> tuple[str, ...]:
        fs = self.reading_fs()
        gone = {name for group in groups for name in replaced_files(directory, group, fs)}
        return tuple(name for name in self.files if name not in gone)


def files_by_folder(files: Mapping[str, StoredFile]) -> dict[str, dict[str, StoredFile]]:
    return {
        folder: {name: file for name, file in found.items() if not is_left_out(name)}
        for folder, found in by_folder(files).items()
    }


def is_left_out(name: str) -> bool:
    """Return True if an output leaves out this file of a partition.

    These are files unknown to a broker, such as an operator's copy, and files that the broker's next start removes
    without reading them.
    """
    # Files of an unfinished segment replacement are not left out, because they determine which segments are valid.
    if name in _OTHER_FILES or name.endswith(_REPLACEMENT_SUFFIXES):
        return False
    parsed = parse_segment_file(name)
    return parsed is None or parsed.state in (PART_SUFFIX, DELETED_SUFFIX)


def has_replacement(names: Iterable[str]) -> bool:
    return any(name.endswith(_REPLACEMENT_SUFFIXES) for name in names)


# -------------------------------------------------------------------------------------------------------------- copies
@dataclass(frozen=True, slots=True)
class CopyTask:
    place: PartitionOutput
    names: tuple[str, ...]

    def weight(self) -> int:
        return sum(self.place.files[name].size_bytes for name in self.names)

    def folder(self) -> str:
        return self.place.folder


@dataclass(frozen=True, slots=True)
class CopyResult:
    files: tuple[ManifestFile, ...] | None
    error: tuple[str, str] | None = None


def copy_tasks(place: PartitionOutput, names: Sequence[str]) -> list[CopyTask]:
    return [CopyTask(place, tuple(piece)) for piece in in_pieces(names, place.files)]


def with_rate_share(task: CopyTask, slots: LiveSlots) -> CopyTask:
    """Return `task` with its executor's share of the I/O rate."""
    return replace(task, place=replace(task.place, rate_limit=task.place.rate_limit.over(slots)))


def of_copy(_task: CopyTask, result: CopyResult) -> Figures:
    size_bytes = sum(file.size_bytes for file in result.files or ())
    return Figures(bytes_read=size_bytes, bytes_written=size_bytes)


def copy_files(task: CopyTask, attempt: str) -> CopyResult:
    try:
        with throttled(task.place.rate_limit) as on_bytes:
            return CopyResult(task.place.copied(task.names, attempt, on_bytes))
    except (SedimentError, OSError) as error:
        return CopyResult(None, describe(error))

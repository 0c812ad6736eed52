"""The output of a run, on the driver: a new, complete log directory with the selected partitions of its sources.

1. Open: check the output, list the sources, and read their settings and checkpoints.  Nothing is written.
2. Claim: lock and empty the output.  From now on, tasks may write to it.
3. Complete: list the sources again.  Then write the checkpoints, and last the manifest.

Invariants: the run neither changes nor locks a source.  The output is complete only if the source files of the selected
partitions are unchanged at the end.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sediment.engine.copying.stand_in import errors_naming, make_stand_in
from sediment.engine.directory.lock import DirectoryLock
from sediment.engine.directory.output import Publisher, check_output_path
from sediment.engine.directory.uncleanable import Uncleanable, read_uncleanable, update_uncleanable
from sediment.jobs.command_line.options import CommonOptions
from sediment.jobs.publishing.partition_output import PartitionOutput, files_by_folder, is_left_out
from sediment.jobs.reporting.figures import counted, human_bytes
from sediment.jobs.settings.directories import SelectedDirectory
from sediment.segment_io.errors import NotALogDirectoryError, UsageError
from sediment.segment_io.format.checkpoints import format_offset_checkpoint
from sediment.segment_io.format.names import (
    CLEAN_SHUTDOWN_FILE,
    CLEANER_FILE,
    HIGH_WATERMARK_FILE,
    LOG_START_FILE,
    RECOVERY_POINT_FILE,
    UNCLEANABLE_FILE,
    TopicPartition,
)
from sediment.segment_io.fs import Fs
from sediment.segment_io.manifest import ManifestFile
from sediment.segment_io.partition.clean_shutdown_file import parse_clean_shutdown
from sediment.segment_io.stores import Store, StoredFile, modes_of

if TYPE_CHECKING:
    from sediment.segment_io.partition.checkpoint_files import LogDirCheckpoints

_LOCAL = Fs()

OUTPUT_INCOMPLETE = "output-incomplete"
SOURCE_CHANGED = ("source-changed", "the source changed while it was read; stop the broker or work on a copy")


@dataclass(slots=True)
class OutputSource:
    """A source: its store, its listed files, and a local directory (for a URI, a temporary copy of the small files)."""

    store: Store
    files: dict[str, StoredFile]
    by_folder: dict[str, dict[str, StoredFile]]
    path: Path
    marks: Mapping[TopicPartition, Uncleanable] = field(default_factory=dict)
    directory: SelectedDirectory | None = None

    @property
    def opened(self) -> SelectedDirectory:
        assert self.directory is not None
        return self.directory


class OutputDirectory:
    """The output of a run; the stack removes the temporary directories and releases the lock.

    The temporary directories of sources at URIs are made in `scratch`.
    """

    def __init__(
        self, output: str, options: CommonOptions, run_id: str, stack: ExitStack, *, scratch: Path | None = None
    ) -> None:
        self.store = Store(output)
        self.sources: list[OutputSource] = []
        self.source_of: dict[TopicPartition, OutputSource] = {}
        self._options = options
        self._run_id = run_id
        self._stack = stack
        self._scratch = scratch
        self._publisher = Publisher(self.store, run_id)

    # ------------------------------------------------------------------------------------------------------- sources
    def open(self) -> list[SelectedDirectory]:
        stores = [Store(where) for where in self._options.given_log_dirs]
        _check_different(stores)
        check_output_path(self.store, stores)
        for store in stores:
            files = store.files()
            if not files:
                raise NotALogDirectoryError(
                    "no such directory", path=str(store), advice="name an entry of the broker's log.dirs"
                )
            path = Path(store.where) if store.is_path else self._stand_in(store, files)
            self.sources.append(OutputSource(store, files, files_by_folder(files), path))
        shown = {source.path: str(source.store) for source in self.sources}
        with ExitStack() as naming:
            for path, name in shown.items():
                naming.enter_context(errors_naming(name, path))
            opened = self._options.open_directories(_LOCAL, paths=list(shown))
        for source, directory in zip(self.sources, opened, strict=True):
            source.directory = directory
            source.marks = read_uncleanable(source.path, _LOCAL)
            for partition in directory.partitions:
                if partition in self.source_of:
                    raise UsageError(
                        f"{self.source_of[partition].store} and {source.store} both contain {partition}",
                        advice="write them to different outputs",
                    )
                self.source_of[partition] = source
        if not self.source_of and not (self._options.selection.is_narrowed and self._options.allow_empty_selection):
            raise UsageError("no partition is selected", path=str(self.sources[0].store), advice="check --partition")
        _check_alike(self.sources)
        return opened

    def _stand_in(self, store: Store, files: Mapping[str, StoredFile]) -> Path:
        path = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="sediment-", dir=self._scratch)))
        make_stand_in(store, files, path)
        return path

    def partition(self, partition: TopicPartition, *, dry_run: bool) -> PartitionOutput:
        source = self.source_of[partition]
        files = source.by_folder.get(str(partition), {})
        return PartitionOutput(partition, source.store, files, self.store, self._run_id, dry_run=dry_run)

    # -------------------------------------------------------------------------------------------------------- output
    def claim(self) -> None:
        path = self.store.local_path
        self._publisher.modes = modes_of(source.store for source in self.sources)
        if path is not None:
            self._publisher.make_directory()
            self._stack.enter_context(DirectoryLock(path))
            check_output_path(self.store, [source.store for source in self.sources])
        before = self._publisher.begin()
        if before is not None:
            self._print(f"{self.store} was left incomplete by run {before}; starting over")

    def abandon(self) -> None:
        self._print(f"{self.store} is not complete; run again to start over", style="red")

    def withdraw(self) -> None:
        self._publisher.withdraw()
        self.abandon()

    def complete(
        self,
        files: Sequence[ManifestFile],
        *,
        first_dirty: Mapping[TopicPartition, int],
        marks: Sequence[Uncleanable] = (),
    ) -> set[str] | None:
        """Write the files that belong to the directory as a whole, then a manifest that lists them and `files`.

        `first_dirty` contains the cleaner checkpoint entries that differ from the sources.  Return None if no source
        changed.  Otherwise return the names of the changed partitions; the set is empty if only other files changed.
        """
        changed = self._changed_partitions()
        if changed is not None:
            self._print(f"{self.store} is not complete: the source changed while it was read", style="red")
            return changed
        written = [*files, *self._directory_files(first_dirty, marks)]
        self._publisher.finish(
            written, sources=[str(source.store) for source in self.sources], now_ms=self._options.now_ms
        )
        size = human_bytes(sum(file.size_bytes for file in written))
        self._print(f"{self.store} is complete: {counted(len(written), 'file')}, {size}")
        return None

    def _changed_partitions(self) -> set[str] | None:
        changed: set[str] = set()
        beside = False
        for source in self.sources:
            now = source.store.files()
            selected = {str(partition) for partition in source.opened.partitions}
            for name in {name for name, _ in now.items() ^ source.files.items()}:
                folder, _, rest = name.rpartition("/")
                if not folder:
                    beside = beside or rest in _DIRECTORY_FILES
                elif folder in selected and not is_left_out(rest):
                    changed.add(folder)
        return changed if changed or beside else None

    def _directory_files(
        self, first_dirty: Mapping[TopicPartition, int], marks: Sequence[Uncleanable]
    ) -> Iterator[ManifestFile]:
        for name, content in self._checkpoints(first_dirty):
            yield self._publisher.publish(name, [content], attempt="driver")
        marked = self._marks(marks)
        if marked is not None:
            yield self._publisher.publish(UNCLEANABLE_FILE, [marked], attempt="driver")
        if self.sources[0].opened.checkpoints.clean_shutdown:
            content = _LOCAL.read_bytes(self.sources[0].path / CLEAN_SHUTDOWN_FILE)
            if parse_clean_shutdown(content).is_new:
                content = b""  # no broker has started on the source yet, and the output may become another node
            yield self._publisher.publish(CLEAN_SHUTDOWN_FILE, [content], attempt="driver")

    def _checkpoints(self, first_dirty: Mapping[TopicPartition, int]) -> Iterator[tuple[str, bytes]]:
        cleaner = {**self._merged(lambda checkpoints: checkpoints.first_dirty), **first_dirty}
        if cleaner:
            yield CLEANER_FILE, format_offset_checkpoint(dict(sorted(cleaner.items())))
        for name, read in _MERGED_FILES:
            if read(self.sources[0].opened.checkpoints) is not None:
                yield name, format_offset_checkpoint(self._merged(read))

    def _merged(
        self, read: Callable[[LogDirCheckpoints], Mapping[TopicPartition, int] | None]
    ) -> dict[TopicPartition, int]:
        entries = (
            (partition, offset)
            for source in self.sources
            for partition, offset in (read(source.opened.checkpoints) or {}).items()
            if self.source_of.get(partition) is source
        )
        return dict(sorted(entries))

    def _marks(self, marked: Sequence[Uncleanable]) -> bytes | None:
        """Return the content of `.sediment-uncleanable`; an output at a URI has no marks."""
        if not marked or self.store.local_path is None:
            return None
        with tempfile.TemporaryDirectory(prefix="sediment-", dir=self._scratch) as scratch:
            # A mark is compared with modification times, which a store does not preserve.  The marks in an output have
            # no fingerprint, because a copied file has a new ctime.
            marks = [replace(mark, fingerprint=None) for mark in marked]
            update_uncleanable(Path(scratch), _LOCAL, add=marks)
            return _LOCAL.read_bytes(Path(scratch) / UNCLEANABLE_FILE)

    def _print(self, text: str, *, style: str | None = None) -> None:
        self._options.messages().print(f"sediment: {text}", style=style, soft_wrap=True, markup=False)


_MERGED_FILES: tuple[tuple[str, Callable[[Any], Mapping[TopicPartition, int] | None]], ...] = (
    (RECOVERY_POINT_FILE, lambda checkpoints: checkpoints.recovery_point),
    (LOG_START_FILE, lambda checkpoints: checkpoints.log_start),
    (HIGH_WATERMARK_FILE, lambda checkpoints: checkpoints.high_watermark),
)
_DIRECTORY_FILES = frozenset({CLEANER_FILE, CLEAN_SHUTDOWN_FILE, *(name for name, _ in _MERGED_FILES)})


def _check_different(stores: Sequence[Store]) -> None:
    given = Counter(store.identity for store in stores)
    for store in stores:
        if given[store.identity] > 1:
            raise UsageError("the log directory is given twice", path=str(store), advice="give it once")


def _check_alike(sources: Sequence[OutputSource]) -> None:
    """Check that all sources have the same checkpoint files, because the absence of a checkpoint also has a meaning."""
    first = sources[0]
    for other in sources[1:]:
        pairs = [
            (name, read(first.opened.checkpoints) is None, read(other.opened.checkpoints) is None)
            for name, read in _MERGED_FILES
        ]
        one_is_clean, another_is_clean = (source.opened.checkpoints.clean_shutdown for source in (first, other))
        pairs.append((CLEAN_SHUTDOWN_FILE, one_is_clean, another_is_clean))
        for name, one, another in pairs:
            if one != another:
                raise UsageError(
                    f"only one of {first.store} and {other.store} has {name}, so they cannot be combined into one "
                    "directory",
                    advice="write each of them to a separate output",
                )

"""The steps that build the directory of a clone, from the claim to the manifest.

    1. claim         write .sediment-output under the directory's lock; remove the files of an unfinished clone
    2. partitions    build each in a separate folder, and then rename this folder; their order does not matter
    3. checkpoints   write recovery points and high watermarks (both are log ends), log starts and cleaner checkpoints
    4. start files   write server.properties, bootstrap.checkpoint and the marker of a clean stop
    5. owner         write meta.properties, without which no broker starts on the directory
    6. manifest      write the manifest; the clone is then complete

Invariant: no broker starts on a directory that is not complete, and the next run builds such a directory again.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sediment.engine.clone.cluster_records import CloneNode
from sediment.engine.clone.partition_clone import PartitionClone
from sediment.engine.directory.output import Publisher, check_output_path
from sediment.segment_io.errors import UsageError
from sediment.segment_io.format.checkpoints import format_offset_checkpoint
from sediment.segment_io.format.meta_properties import MetaProperties, format_meta_properties
from sediment.segment_io.format.names import (
    BOOTSTRAP_FILE,
    CLEAN_SHUTDOWN_FILE,
    CLEANER_FILE,
    HIGH_WATERMARK_FILE,
    LOG_START_FILE,
    META_PROPERTIES_FILE,
    RECOVERY_POINT_FILE,
    SERVER_PROPERTIES_FILE,
    TopicPartition,
)
from sediment.segment_io.fs import Fs
from sediment.segment_io.internal_topics.bootstrap_checkpoint import format_bootstrap_checkpoint
from sediment.segment_io.manifest import ManifestFile, ManifestPartition
from sediment.segment_io.partition.checkpoint_files import log_start_entries
from sediment.segment_io.partition.clean_shutdown_file import NEW_DIRECTORY, format_clean_shutdown
from sediment.segment_io.stores import Store, modes_of

_KRAFT_VERSION = 1  # of meta.properties
_DRIVER = "driver"


@dataclass(frozen=True, slots=True)
class StartFiles:
    node: CloneNode
    records: Sequence[bytes]
    properties: str


class CloneDirectory:
    """The writer of one clone; the caller must lock the directory before it calls `begin`."""

    def __init__(self, path: Path, run_id: str) -> None:
        self.path = path
        self._publisher = Publisher(Store(str(path)), run_id)
        self._fs = Fs()
        self._files: list[ManifestFile] = []
        self._partitions: dict[TopicPartition, PartitionClone] = {}
        self._topic_ids: dict[TopicPartition, str] = {}

    def check(self, sources: Sequence[Store]) -> None:
        if "," in str(self.path) or "\\" in str(self.path):
            raise UsageError(
                "a broker's log.dirs cannot contain this path",
                path=str(self.path),
                advice="give a path without commas and backslashes",
            )
        check_output_path(self._publisher.store, sources)

    def make(self, sources: Iterable[Store]) -> None:
        """Create the directory if it is absent; it and its own files are as private as the `sources`."""
        self._publisher.modes = modes_of(sources)
        self._publisher.make_directory()

    def begin(self) -> str | None:
        return self._publisher.begin()

    def add(self, target: TopicPartition, topic_id: str, clone: PartitionClone) -> None:
        self._publisher.check()
        self._fs.rename(self.path / clone.folder, self.path / str(target))
        self._partitions[target] = clone
        self._topic_ids[target] = topic_id
        self._files += [replace(file, name=f"{target}/{file.name}") for file in clone.files]

    def finish(self, start: StartFiles, *, sources: Sequence[str], now_ms: int) -> int:
        for name, content in (*checkpoint_files(self._partitions), *start_files(start, now_ms)):
            self._files.append(self._publisher.publish(name, [content], attempt=_DRIVER))
        wanted = {str(partition) for partition in self._partitions}
        for folder in self._publisher.store.folders():
            if folder not in wanted:
                shutil.rmtree(self.path / folder)  # an abandoned attempt left it
        self._fs.sync_directory(self.path)
        partitions = [
            ManifestPartition(
                str(partition),
                self._topic_ids[partition],
                clone.log_start_offset,
                clone.log_end_offset,
                clone.leader_epoch,
                clone.damage,
            )
            for partition, clone in self._partitions.items()
        ]
        self._publisher.finish(self._files, sources=sources, now_ms=now_ms, partitions=partitions)
        return len(self._files)


def checkpoint_files(clones: Mapping[TopicPartition, PartitionClone]) -> Iterator[tuple[str, bytes]]:
    clones = dict(sorted(clones.items()))
    ends = {partition: clone.log_end_offset for partition, clone in clones.items()}
    yield RECOVERY_POINT_FILE, format_offset_checkpoint(ends)
    yield HIGH_WATERMARK_FILE, format_offset_checkpoint(ends)
    starts = log_start_entries(
        (partition, clone.log_start_offset, clone.first_base_offset) for partition, clone in clones.items()
    )
    yield LOG_START_FILE, format_offset_checkpoint(starts)
    cleaner = {partition: clone.first_dirty for partition, clone in clones.items() if clone.first_dirty is not None}
    if cleaner:
        yield CLEANER_FILE, format_offset_checkpoint(cleaner)


def start_files(start: StartFiles, now_ms: int) -> Iterator[tuple[str, bytes]]:
    meta = MetaProperties(_KRAFT_VERSION, start.node.cluster_id, start.node.node_id, start.node.directory_id)
    yield SERVER_PROPERTIES_FILE, start.properties.encode()
    yield BOOTSTRAP_FILE, format_bootstrap_checkpoint(start.records, now_ms=now_ms)
    yield CLEAN_SHUTDOWN_FILE, format_clean_shutdown(NEW_DIRECTORY)
    yield META_PROPERTIES_FILE, format_meta_properties(meta)

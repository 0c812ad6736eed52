"""One log directory that an engine owns: its lock, meta.properties, marker of a clean stop, and checkpoints.

If a path is a file, `log_manager` continues without this directory.

A malformed cleaner checkpoint counts as empty. If another checkpoint is malformed, `log_loading` takes the directory
offline.

Invariants: the directory's `.lock` is held between `open` and `release`. The clean-shutdown marker is removed when it
is read, so a crash during loading is an unclean stop. Only one thread at a time rewrites a checkpoint file. Nothing is
written to a directory after it failed.

Source: kafka-log 04 §12, 05 §1.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from sediment.engine.directory.lock import DirectoryLock
from sediment.segment_io.errors import CorruptCheckpointError, NotALogDirectoryError, UsageError
from sediment.segment_io.format.checkpoints import format_offset_checkpoint, format_uuid
from sediment.segment_io.format.meta_properties import MetaProperties
from sediment.segment_io.format.names import (
    CLEANER_FILE,
    HIGH_WATERMARK_FILE,
    LOCK_FILE,
    LOG_START_FILE,
    META_PROPERTIES_FILE,
    RECOVERY_POINT_FILE,
    TopicPartition,
)
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import (
    LogDirCheckpoints,
    read_checkpoints,
    read_meta_properties,
    read_offset_checkpoint,
    write_meta_properties,
)
from sediment.segment_io.partition.clean_shutdown_file import (
    CleanShutdown,
    take_clean_shutdown,
    write_clean_shutdown,
)

_CHECKPOINT_FILES = (RECOVERY_POINT_FILE, LOG_START_FILE, HIGH_WATERMARK_FILE, CLEANER_FILE)


class LogDirectory:
    def __init__(self, path: Path, fs: Fs) -> None:
        self.path = path
        self.lock = DirectoryLock(path)
        self.meta: MetaProperties | None = None
        self.clean_shutdown: CleanShutdown | None = None
        """The clean-shutdown marker found at the start; a stop without a broker epoch writes the same marker again."""
        self.is_loaded = False
        """True after every log was loaded."""
        self.left_out: set[TopicPartition] = set()
        """Partitions whose folders were not loaded; the checkpoint files keep their entries."""
        self.failure: str | None = None
        """The reason why the directory is offline; None while it is online."""
        self.checkpoint_guard = threading.Lock()
        """The engine holds this lock while it collects the offsets of a checkpoint and writes them."""
        self._fs = fs
        self._guard = threading.Lock()

    def __str__(self) -> str:
        return str(self.path)

    @property
    def is_offline(self) -> bool:
        return self.failure is not None

    # ------------------------------------------------------------------------------------------- opening and releasing
    def read_owner(self) -> None:
        self.meta = read_meta_properties(self._fs, self.path / META_PROPERTIES_FILE)

    def open(self) -> None:
        fs = self._fs
        if not fs.exists(self.path):
            fs.make_directory(self.path)
        if not fs.is_directory(self.path):
            raise NotALogDirectoryError(
                "this is not a directory", path=str(self.path), advice="give directories in log.dirs"
            )
        self.lock.acquire()
        try:
            self.read_owner()
            for name in _CHECKPOINT_FILES:
                if not fs.exists(self.path / name):
                    self._replace(name, format_offset_checkpoint({}))
        except BaseException:
            self.lock.release()
            raise

    def release(self) -> None:
        self.lock.release()

    def name_owner(self, cluster_id: str, node_id: int) -> None:
        self.meta = MetaProperties(1, cluster_id, node_id, format_uuid(uuid.uuid4().bytes))
        write_meta_properties(self._fs, self.path / META_PROPERTIES_FILE, self.meta)

    def read_state(self) -> LogDirCheckpoints:
        self.clean_shutdown = take_clean_shutdown(self._fs, self.path)
        return replace(read_checkpoints(self.path, self._fs), clean_shutdown=self.clean_shutdown is not None)

    def write_clean_shutdown(self, broker_epoch: int | None) -> None:
        """Write the marker of a clean stop; it must be the last file that is written.

        If `broker_epoch` is None, keep the broker epoch of the last stop.
        """
        at_start = self.clean_shutdown or CleanShutdown(None)
        marker = at_start if broker_epoch is None else CleanShutdown(broker_epoch)
        write_clean_shutdown(self._fs, self.path, marker, like=self.path / LOCK_FILE)

    # ----------------------------------------------------------------------------------------------------- checkpoints
    def write_recovery_points(self, offsets: Mapping[TopicPartition, int]) -> None:
        self._write(RECOVERY_POINT_FILE, offsets)

    def write_log_starts(self, offsets: Mapping[TopicPartition, int]) -> None:
        self._write(LOG_START_FILE, offsets)

    def write_high_watermarks(self, offsets: Mapping[TopicPartition, int]) -> None:
        self._write(HIGH_WATERMARK_FILE, offsets)

    def first_dirty_offsets(self) -> dict[TopicPartition, int]:
        """Return the cleaner checkpoint; treat a malformed one as empty, which costs only time."""
        try:
            return read_offset_checkpoint(self._fs, self.path / CLEANER_FILE) or {}
        except CorruptCheckpointError:
            return {}

    def change_first_dirty(
        self, change: Callable[[Mapping[TopicPartition, int]], Mapping[TopicPartition, int]]
    ) -> None:
        with self._guard:
            before = self.first_dirty_offsets()
            after = change(before)
            if after != before and not self.is_offline:
                self._replace(CLEANER_FILE, format_offset_checkpoint(after))

    def _write(self, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Replace a checkpoint file; keep the entries of partitions that were left out or have not been loaded yet."""
        with self._guard:
            if self.is_offline:
                return
            kept: Mapping[TopicPartition, int] = {}
            if self.left_out or not self.is_loaded:
                found = read_offset_checkpoint(self._fs, self.path / name) or {}
                kept = {each: found[each] for each in found if each in self.left_out} if self.is_loaded else found
            self._replace(name, format_offset_checkpoint({**kept, **offsets}))

    def _replace(self, name: str, content: bytes) -> None:
        self._fs.replace_file(self.path / name, content, like=self.path / LOCK_FILE)


def check_owners(
    directories: Sequence[LogDirectory], *, cluster_id: str | None = None, node_id: int | None = None
) -> None:
    """If `cluster_id` or `node_id` is given, it must match the directories.

    Source: Kafka's MetaPropertiesEnsemble.verify.
    """
    for directory in directories:
        if directory.meta is not None:
            _check_owner(directory, directory.meta, cluster_id, node_id)
    named = [(directory, directory.meta) for directory in directories if directory.meta is not None]
    ids: dict[str, LogDirectory] = {}
    for directory, meta in named:
        first, first_meta = named[0]
        if (meta.cluster_id, meta.node_id) != (first_meta.cluster_id, first_meta.node_id):
            raise UsageError(
                f"the directory belongs to node {meta.node_id} of cluster {meta.cluster_id}, but {first} to node "
                f"{first_meta.node_id} of cluster {first_meta.cluster_id}",
                path=str(directory.path / META_PROPERTIES_FILE),
                advice="give an engine the directories of one broker only",
            )
        if meta.directory_id is not None and ids.setdefault(meta.directory_id, directory) is not directory:
            raise UsageError(
                f"the directory has the directory.id of {ids[meta.directory_id]}",
                path=str(directory.path / META_PROPERTIES_FILE),
                advice="one is a copy of the other; leave the copy out, or give the copy another id",
            )


def _check_owner(directory: LogDirectory, meta: MetaProperties, cluster_id: str | None, node_id: int | None) -> None:
    for what, wanted, found in (("cluster", cluster_id, meta.cluster_id), ("node", node_id, meta.node_id)):
        if wanted is not None and found is not None and wanted != found:
            raise UsageError(
                f"the directory belongs to {what} {found}, but the engine is configured with {what}.id {wanted}",
                path=str(directory.path / META_PROPERTIES_FILE),
                advice=f"configure {what}.id {found}, or give other directories",
            )

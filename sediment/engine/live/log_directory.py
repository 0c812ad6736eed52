"""One log directory that an engine owns: its lock, what its own files say, and the checkpoints that are written there.

Invariants: between `open` and `release` the directory's `.lock` is held; the clean-shutdown marker is read and removed
in one step, so that a crash while loading counts as unclean; one thread at a time rewrites a checkpoint file; once a
directory failed nothing is written to it any more.

Source: kafka-log 04 §12, 05 §1.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from sediment.engine.directory.lock import DirectoryLock
from sediment.segment_io.errors import CorruptCheckpointError, NotALogDirectoryError, UsageError
from sediment.segment_io.format.checkpoints import (
    CleanShutdown,
    MetaProperties,
    format_clean_shutdown,
    format_offset_checkpoint,
    format_uuid,
)
from sediment.segment_io.format.names import (
    CLEAN_SHUTDOWN_FILE,
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
    read_clean_shutdown,
    read_meta_properties,
    read_offset_checkpoint,
    write_meta_properties,
)
from sediment.segment_io.partition.log_dir import LogDirCheckpoints, read_checkpoints

_CHECKPOINT_FILES = (RECOVERY_POINT_FILE, LOG_START_FILE, HIGH_WATERMARK_FILE, CLEANER_FILE)


class LogDirectory:
    """An entry of `log.dirs` that is ours."""

    def __init__(self, path: Path, fs: Fs) -> None:
        self.path = path
        self.lock = DirectoryLock(path)
        self.meta: MetaProperties | None = None
        self.clean_shutdown: CleanShutdown | None = None
        """The marker that was there at the start."""
        self.is_loaded = False
        """Whether every log of it was loaded."""
        self.failure: str | None = None
        """Why it is offline; None: it is not."""
        self._fs = fs
        self._marker = b""
        self._guard = threading.Lock()

    def __str__(self) -> str:
        return str(self.path)

    @property
    def is_offline(self) -> bool:
        """Whether it failed."""
        return self.failure is not None

    # ----------------------------------------------------------------------------------------------- taking and leaving
    def read_owner(self) -> None:
        """Read meta.properties and change nothing; a missing directory has none.

        Raises:
            CorruptCheckpointError: meta.properties is malformed.
            OSError: the disk failed.
        """
        self.meta = read_meta_properties(self._fs, self.path / META_PROPERTIES_FILE)

    def open(self) -> None:
        """Take the directory; a missing one is created, and so are missing checkpoint files.

        Raises:
            DirectoryInUseError: a broker, an engine or a run has it.
            NotALogDirectoryError: the path is a file.
            CorruptCheckpointError: meta.properties is malformed.
            OSError: as the filesystem says.
        """
        fs = self._fs
        if not fs.exists(self.path):
            fs.make_directory(self.path)
        if not fs.is_directory(self.path):
            raise NotALogDirectoryError(
                "this is no directory", path=str(self.path), advice="name directories in log.dirs"
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
        """Give the directory back; without effect where it is not held."""
        self.lock.release()

    def name_owner(self, cluster_id: str, node_id: int) -> None:
        """Write meta.properties into a directory that has none, with a `directory.id` of its own."""
        self.meta = MetaProperties(1, cluster_id, node_id, format_uuid(uuid.uuid4().bytes))
        write_meta_properties(self._fs, self.path / META_PROPERTIES_FILE, self.meta)

    def read_state(self) -> LogDirCheckpoints:
        """What the directory says about its logs; the marker of a clean stop is taken away.

        Raises:
            CorruptCheckpointError: a checkpoint that decides what is believed is malformed; the marker is gone.
            OSError: as the filesystem says.
        """
        self.clean_shutdown = read_clean_shutdown(self._fs, self.path)
        if self.clean_shutdown is not None:
            self._marker = self._fs.read_bytes(self.path / CLEAN_SHUTDOWN_FILE)
            self._fs.unlink(self.path / CLEAN_SHUTDOWN_FILE)
            self._fs.sync_directory(self.path)
        state = read_checkpoints(self.path, self._fs)
        return LogDirCheckpoints(
            state.first_dirty,
            state.log_start,
            state.high_watermark,
            state.recovery_point,
            clean_shutdown=self.clean_shutdown is not None,
        )

    def write_clean_shutdown(self, broker_epoch: int | None) -> None:
        """The last thing that a clean stop writes; without an epoch it is the marker that was there at the start."""
        self._replace(
            CLEAN_SHUTDOWN_FILE, self._marker if broker_epoch is None else format_clean_shutdown(broker_epoch)
        )

    # ----------------------------------------------------------------------------------------------------- checkpoints
    def write_recovery_points(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Replace the file; see `_write`."""
        self._write(RECOVERY_POINT_FILE, offsets)

    def write_log_starts(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Replace the file; see `_write`."""
        self._write(LOG_START_FILE, offsets)

    def write_high_watermarks(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Replace the file; see `_write`."""
        self._write(HIGH_WATERMARK_FILE, offsets)

    def first_dirty_offsets(self) -> dict[TopicPartition, int]:
        """The cleaner checkpoint; a malformed one counts as empty, which only costs time."""
        try:
            return read_offset_checkpoint(self._fs, self.path / CLEANER_FILE) or {}
        except CorruptCheckpointError:
            return {}

    def update_first_dirty(
        self,
        known: Iterable[TopicPartition],
        *,
        add: Mapping[TopicPartition, int] | None = None,
        remove: Sequence[TopicPartition] = (),
    ) -> None:
        """Change the cleaner checkpoint; of the rest only the `known` partitions stay (kafka-log 02 §2.5)."""
        with self._guard:
            before = self.first_dirty_offsets()
            kept = set(known) - set(remove)
            after = {partition: offset for partition, offset in before.items() if partition in kept} | dict(add or {})
            if after != before and not self.is_offline:
                self._replace(CLEANER_FILE, format_offset_checkpoint(after))

    def _write(self, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Replace a checkpoint file.  Until all logs are loaded, what it says of the others stays."""
        with self._guard:
            if self.is_offline:
                return
            others = {} if self.is_loaded else read_offset_checkpoint(self._fs, self.path / name) or {}
            self._replace(name, format_offset_checkpoint({**others, **offsets}))

    def _replace(self, name: str, content: bytes) -> None:
        self._fs.replace_file(self.path / name, content, like=self.path / LOCK_FILE)


def check_owners(
    directories: Sequence[LogDirectory], *, cluster_id: str | None = None, node_id: int | None = None
) -> None:
    """Check that all directories belong to one node of one cluster, and that each has an id of its own.

    A `cluster_id` or `node_id` that is given has to be that of the directories.

    Raises:
        UsageError: they do not.

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
                f"it belongs to node {meta.node_id} of cluster {meta.cluster_id}, and {first} to node "
                f"{first_meta.node_id} of cluster {first_meta.cluster_id}",
                path=str(directory.path / META_PROPERTIES_FILE),
                advice="give an engine the directories of one broker only",
            )
        if meta.directory_id is not None and ids.setdefault(meta.directory_id, directory) is not directory:
            raise UsageError(
                f"it has the directory.id of {ids[meta.directory_id]}",
                path=str(directory.path / META_PROPERTIES_FILE),
                advice="one is a copy of the other; leave it out, or give it an id of its own",
            )


def _check_owner(directory: LogDirectory, meta: MetaProperties, cluster_id: str | None, node_id: int | None) -> None:
    for what, wanted, found in (("cluster", cluster_id, meta.cluster_id), ("node", node_id, meta.node_id)):
        if wanted is not None and found is not None and wanted != found:
            raise UsageError(
                f"it belongs to {what} {found}, and the engine is configured with {what}.id {wanted}",
                path=str(directory.path / META_PROPERTIES_FILE),
                advice=f"configure {what}.id {found}, or name other directories",
            )

"""Folders of new partitions; each is complete and durable before it gets its final name.

    1. stage    make <topic>-<n>.<hex digits>-delete with an empty segment and partition.metadata, and sync it
    2. name     rename it to <topic>-<n>; sync the log directory once for all folders

After a crash in step 1, a broker deletes the remaining folder, and a server recognises it with `is_unfinished`. A
folder with its final name always contains its topic id; otherwise a broker would rename the folder to -stray. If step 1
fails although the disk is healthy, the new folders are removed.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from sediment.segment_io.format.checkpoints import format_partition_metadata
from sediment.segment_io.format.names import (
    PARTITION_METADATA_FILE,
    DirectoryState,
    SegmentFileKind,
    TopicPartition,
    aside_directory_name,
    future_directory_name,
    segment_file_name,
)
from sediment.segment_io.fs import Fs, is_out_of_descriptors

_FIRST_OFFSET = 0
_SYNC_THREADS = 8
_EMPTY_FILES = tuple(
    segment_file_name(_FIRST_OFFSET, kind)
    for kind in (SegmentFileKind.TIME_INDEX, SegmentFileKind.OFFSET_INDEX, SegmentFileKind.LOG)
)
_STAGED = (*_EMPTY_FILES, PARTITION_METADATA_FILE)


def _do_nothing() -> None:
    return None


def make_partition_folders(
    log_dir: Path,
    topic_ids: Mapping[TopicPartition, str | None],
    fs: Fs,
    *,
    before_each: Callable[[], None] = _do_nothing,
) -> frozenset[TopicPartition]:
    """A partition without a topic id gets no partition.metadata.

    `before_each` is called before each folder is staged. It may raise an error, which ends the call before any folder
    has its final name.
    """
    staged = {
        partition: log_dir / folder_aside(partition, DirectoryState.DELETE)
        for partition in topic_ids
        if not fs.exists(log_dir / str(partition))
    }
    if not staged:
        return frozenset()

    def stage(partition: TopicPartition) -> None:
        before_each()
        _stage(staged[partition], topic_ids[partition], fs, like_folder=log_dir)

    try:
        # The disk combines syncs that arrive at the same time.
        with ThreadPoolExecutor(min(len(staged), _SYNC_THREADS), thread_name_prefix="sediment-new-folder") as pool:
            for _ in pool.map(stage, staged):
                pass
    except OSError as error:
        if is_out_of_descriptors(error):
            for folder in staged.values():
                with suppress(OSError):
                    remove_folder(folder, fs)
        raise
    for partition, folder in staged.items():
        fs.rename(folder, log_dir / str(partition))
    fs.sync_directory(log_dir)
    return frozenset(staged)


def make_future_folder(log_dir: Path, partition: TopicPartition, topic_id: str | None, fs: Fs, *, like: Path) -> Path:
    """Folder and files get the owner, group and mode of those of `like`, a file of the current log."""
    staged = log_dir / folder_aside(partition, DirectoryState.DELETE)
    folder = log_dir / future_directory_name(partition, uuid.uuid4().hex)
    try:
        _stage(staged, topic_id, fs, like_folder=like.parent, like_file=like)
    except OSError as error:
        if is_out_of_descriptors(error):
            with suppress(OSError):
                remove_folder(staged, fs)
        raise
    fs.rename(staged, folder)
    fs.sync_directory(log_dir)
    return folder


def remove_folder(folder: Path, fs: Fs) -> None:
    # Logs first, as a broker removes them: a log whose index is gone looks damaged to the next start.
    names = sorted((entry.name for entry in fs.scan(folder)), key=lambda name: not name.endswith(SegmentFileKind.LOG))
    for name in names:
        fs.unlink(folder / name, missing_ok=True)
    fs.remove_directory(folder)


def is_unfinished(folder: Path, fs: Fs) -> bool:
    """Return True if the folder has exactly the files that an interrupted step 1 leaves; they contain no record."""
    entries = {entry.name: entry for entry in fs.scan(folder)}
    entries.pop(f"{PARTITION_METADATA_FILE}.tmp", None)
    are_empty = all(entry.is_file and not entry.size_bytes for name, entry in entries.items() if name in _EMPTY_FILES)
    return are_empty and entries.keys() == set(_STAGED[: len(entries)])


def folder_aside(partition: TopicPartition, state: DirectoryState) -> str:
    return aside_directory_name(partition, state, uuid.uuid4().hex)


def _stage(folder: Path, topic_id: str | None, fs: Fs, *, like_folder: Path, like_file: Path | None = None) -> None:
    """Make a folder with an empty segment and partition.metadata; only its name is not durable yet."""
    fs.make_unsynced_directory(folder, like=like_folder)
    like = like_file or folder
    for name in _EMPTY_FILES:
        file = folder / name
        fs.write_new(file, ())
        fs.adopt_owner(file, like)
    if topic_id is None:
        fs.sync_directory(folder)
    else:
        fs.replace_file(folder / PARTITION_METADATA_FILE, format_partition_metadata(topic_id), like=like)

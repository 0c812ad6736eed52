"""The catalogue of a run that keeps originals: one JSON file, with which the state before the run can be restored.

    catalogue         1, the version of this format
    state             planned, or done once the run has ended
    run_id, command, arguments, now_ms
    started, started_ms, finished_ms      UTC and milliseconds since the epoch; finished_ms is null while planned
    log_dirs          path, checkpoint_files (those that exist), clean_shutdown
    partitions        partition, log_dir, status (null while planned), checkpoints, leader_epochs, files, new_files

`checkpoints` has the partition's offset in each checkpoint file before the run; null: the file has no entry for it.
`leader_epochs` is the content of leader-epoch-checkpoint before the run; null: there was none.  A file has name,
size_bytes, mtime_ns and inode.  `new_files` are segment files that the run made; null while planned: not known.

Invariants: the file is durable as `planned` before the first original is removed.  While `planned`, it lists every file
that may be removed; a removed file has a link with the same inode in the catalogue's directory.  Once `done`, it lists
exactly the removed files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from sediment.segment_io.format.names import (
    CLEANER_FILE,
    HIGH_WATERMARK_FILE,
    LEADER_EPOCH_FILE,
    LOG_START_FILE,
    RECOVERY_POINT_FILE,
    TopicPartition,
    parse_segment_file,
)
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.log_dir_checkpoints import LogDirCheckpoints

CATALOGUE_VERSION = 1
PLANNED = "planned"
DONE = "done"


@dataclass(frozen=True, slots=True)
class OriginalFile:
    """A file as it is before the run; `mtime_ns` counts from the epoch."""

    name: str
    size_bytes: int
    mtime_ns: int
    inode: int


@dataclass(frozen=True, slots=True)
class OriginalLogDir:
    """A log directory before the run; `clean_shutdown` is True after a clean stop."""

    path: str
    checkpoint_files: tuple[str, ...]
    clean_shutdown: bool


@dataclass(frozen=True, slots=True)
class OriginalPartition:
    """A partition before the run, and the outcome: `status` and `new_files` are None while planned and not known."""

    partition: str
    log_dir: str
    checkpoints: Mapping[str, int | None]
    leader_epochs: str | None
    files: tuple[OriginalFile, ...]
    new_files: tuple[str, ...] | None
    status: str | None = None


@dataclass(frozen=True, slots=True)
class Catalogue:
    """One run.  The caller has removed secrets from `arguments`.  Times are milliseconds since the epoch."""

    run_id: str
    command: str
    arguments: tuple[str, ...]
    now_ms: int
    started_ms: int
    log_dirs: tuple[OriginalLogDir, ...]
    partitions: tuple[OriginalPartition, ...]
    state: str = PLANNED
    finished_ms: int | None = None


def catalogue_file(target: Path, run_id: str) -> Path:
    """Return the path of the catalogue of run `run_id` in a directory of originals."""
    return target / f"catalogue-{run_id}.json"


def write_catalogue(catalogue: Catalogue, target: Path, fs: Fs) -> Path:
    """Write or replace the catalogue of a run, durably; return its path.

    Raises:
        OSError: the file could not be written; an earlier catalogue of the run is still intact.
    """
    path = catalogue_file(target, catalogue.run_id)
    started = datetime.fromtimestamp(catalogue.started_ms / 1000, tz=UTC).isoformat(timespec="milliseconds")
    fields = {"catalogue": CATALOGUE_VERSION, "state": catalogue.state, "started": started, **asdict(catalogue)}
    fs.replace_file(path, json.dumps(fields, indent=1).encode() + b"\n")
    return path


def log_dir_before(log_dir: Path, checkpoints: LogDirCheckpoints) -> OriginalLogDir:
    """Return the entry of a log directory with these `checkpoints`."""
    names = (name for name, offsets in _by_file(checkpoints).items() if offsets is not None)
    return OriginalLogDir(str(log_dir), tuple(names), checkpoints.clean_shutdown)


def partition_before(
    partition: TopicPartition,
    directory: Path,
    checkpoints: LogDirCheckpoints,
    names: Sequence[str],
    new_files: Sequence[str] | None,
    fs: Fs,
) -> OriginalPartition:
    """Return the entry of a partition in `directory`; `names` are the files that may be removed.

    Raises:
        OSError: a file is missing or cannot be read.
    """
    epochs = directory / LEADER_EPOCH_FILE
    return OriginalPartition(
        partition=str(partition),
        log_dir=str(directory.parent),
        checkpoints={name: (offsets or {}).get(partition) for name, offsets in _by_file(checkpoints).items()},
        leader_epochs=fs.read_bytes(epochs).decode(errors="surrogateescape") if fs.exists(epochs) else None,
        files=tuple(_file(directory / name) for name in names),
        new_files=None if new_files is None else tuple(new_files),
    )


def segment_file_names(directory: Path, fs: Fs) -> list[str]:
    """Return the names of the live segment files of a partition directory, including producer snapshots."""
    parsed = [(entry.name, parse_segment_file(entry.name)) for entry in fs.scan(directory) if entry.is_file]
    return [name for name, found in parsed if found is not None and not found.state]


def _file(path: Path) -> OriginalFile:
    status = path.stat()
    return OriginalFile(path.name, status.st_size, status.st_mtime_ns, status.st_ino)


def _by_file(checkpoints: LogDirCheckpoints) -> dict[str, Mapping[TopicPartition, int] | None]:
    return {
        CLEANER_FILE: checkpoints.first_dirty,
        LOG_START_FILE: checkpoints.log_start,
        RECOVERY_POINT_FILE: checkpoints.recovery_point,
        HIGH_WATERMARK_FILE: checkpoints.high_watermark,
    }

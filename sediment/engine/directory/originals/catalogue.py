"""The catalogue of a run that keeps originals: a JSON file that `restore` reads to bring back the state before the run.

    DIR/catalogue-RUN.json     the catalogue
    DIR/RUN/TOPIC-N/FILE       the originals of that run
    DIR/RUN/TOPIC-N/new-files.json     the files that replace the originals; it exists only in the state planned

    catalogue         2, the version of this format
    state             planned until the run has ended, then done
    run_id, command, arguments, now_ms
    restores          the run that this run undoes; null unless the command is restore
    started, started_ms, finished_ms      UTC and milliseconds since the epoch; finished_ms is null while planned
    log_dirs          path, checkpoint_files (those that exist), clean_shutdown
    partitions        partition, log_dir, status (null while planned), checkpoints, leader_epochs, files, new_files,
                      unchanged

`checkpoints` contains the partition's offset in each checkpoint file before the run, or null if the file did not list
the partition. `leader_epochs` is the content of leader-epoch-checkpoint before the run, or null if the file did not
exist. `files` are the files that the run replaced or deleted. `new_files` are the segment files that the run wrote, or
null while the state is planned. `unchanged` are the logs that the run did not change.

Invariants: the catalogue is durable as `planned` before the first original is removed. A `planned` catalogue lists
every file that may be removed, and each removed file has a link with the same inode in the run's folder. The files that
replace the removed ones are durably listed in `new-files.json` before their first rename. A `done` catalogue lists
exactly the removed files.
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sediment.segment_io.errors import CorruptDataError
from sediment.segment_io.format.layout import INT64_MAX
from sediment.segment_io.format.names import (
    CLEANER_FILE,
    HIGH_WATERMARK_FILE,
    LEADER_EPOCH_FILE,
    LOG_START_FILE,
    RECOVERY_POINT_FILE,
    SegmentFileKind,
    TopicPartition,
    parse_segment_file,
)
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import LogDirCheckpoints

CATALOGUE_VERSION = 2
PLANNED = "planned"
DONE = "done"
ERASE = "erase"
NEW_FILES_FILE = "new-files.json"
"""The file in a partition's folder that lists the replacements of the originals; it exists until the run ends."""

_CATALOGUE_FILE = re.compile(r"catalogue-([0-9A-Za-z_-]{1,100})\.json")
_FOLDER = re.compile(r"[0-9A-Za-z._-]{1,255}")


@dataclass(frozen=True, slots=True)
class OriginalFile:
    name: str
    size_bytes: int
    mtime_ns: int
    inode: int


@dataclass(frozen=True, slots=True)
class OriginalLogDir:
    path: str
    checkpoint_files: tuple[str, ...]
    clean_shutdown: bool


@dataclass(frozen=True, slots=True)
class OriginalPartition:
    partition: str
    log_dir: str
    checkpoints: Mapping[str, int | None]
    leader_epochs: str | None
    files: tuple[OriginalFile, ...]
    new_files: tuple[OriginalFile, ...] | None
    unchanged: tuple[OriginalFile, ...] = ()
    status: str | None = None


@dataclass(frozen=True, slots=True)
class Catalogue:
    """The caller has removed secrets from `arguments`."""

    run_id: str
    command: str
    arguments: tuple[str, ...]
    now_ms: int
    started_ms: int
    log_dirs: tuple[OriginalLogDir, ...]
    partitions: tuple[OriginalPartition, ...]
    state: str = PLANNED
    finished_ms: int | None = None
    restores: str | None = None

    @property
    def is_done(self) -> bool:
        return self.state == DONE


def catalogue_file(target: Path, run_id: str) -> Path:
    return target / f"catalogue-{run_id}.json"


def run_folder(target: Path, run_id: str) -> Path:
    return target / run_id


# ---------------------------------------------------------------------------------------------------------------- write
def write_catalogue(catalogue: Catalogue, target: Path, fs: Fs) -> Path:
    """The file is as private as the most private log directory of the run."""
    path = catalogue_file(target, catalogue.run_id)
    started = datetime.fromtimestamp(catalogue.started_ms / 1000, tz=UTC).isoformat(timespec="milliseconds")
    fields = {"catalogue": CATALOGUE_VERSION, "state": catalogue.state, "started": started, **asdict(catalogue)}
    log_dirs = [Path(each.path) for each in catalogue.log_dirs]
    like = min(log_dirs, key=lambda log_dir: fs.mode(log_dir) or 0, default=target)
    fs.replace_file(path, json.dumps(fields, indent=1).encode() + b"\n", like=like)
    return path


def write_new_files(folder: Path, files: Iterable[OriginalFile], fs: Fs) -> None:
    content = json.dumps([asdict(file) for file in files]).encode() + b"\n"
    fs.replace_file(folder / NEW_FILES_FILE, content, like=folder)


def log_dir_before(log_dir: Path, checkpoints: LogDirCheckpoints) -> OriginalLogDir:
    names = (name for name, offsets in offsets_by_file(checkpoints).items() if offsets is not None)
    return OriginalLogDir(str(log_dir), tuple(names), checkpoints.clean_shutdown)


def partition_before(
    partition: TopicPartition,
    directory: Path,
    checkpoints: LogDirCheckpoints,
    names: Sequence[str],
    new_files: Sequence[str] | None,
    fs: Fs,
) -> OriginalPartition:
    epochs = directory / LEADER_EPOCH_FILE
    listed = frozenset(names)
    logs = [name for name in segment_file_names(directory, fs) if name.endswith(SegmentFileKind.LOG)]
    return OriginalPartition(
        partition=directory.name,
        log_dir=str(directory.parent),
        checkpoints={name: (offsets or {}).get(partition) for name, offsets in offsets_by_file(checkpoints).items()},
        leader_epochs=fs.read_bytes(epochs).decode(errors="surrogateescape") if fs.exists(epochs) else None,
        files=tuple(original_file(directory / name) for name in names),
        new_files=None if new_files is None else tuple(OriginalFile(name, 0, 0, 0) for name in new_files),
        unchanged=tuple(original_file(directory / name) for name in logs if name not in listed),
    )


def segment_file_names(directory: Path, fs: Fs) -> list[str]:
    parsed = [(entry.name, parse_segment_file(entry.name)) for entry in fs.scan(directory) if entry.is_file]
    return [name for name, found in parsed if found is not None and not found.state]


def original_file(path: Path, *, name: str | None = None) -> OriginalFile:
    return described(name or path.name, path.stat())


def described(name: str, status: os.stat_result) -> OriginalFile:
    return OriginalFile(name, status.st_size, status.st_mtime_ns, status.st_ino)


def offsets_by_file(checkpoints: LogDirCheckpoints) -> dict[str, Mapping[TopicPartition, int] | None]:
    return {
        CLEANER_FILE: checkpoints.first_dirty,
        LOG_START_FILE: checkpoints.log_start,
        RECOVERY_POINT_FILE: checkpoints.recovery_point,
        HIGH_WATERMARK_FILE: checkpoints.high_watermark,
    }


# ----------------------------------------------------------------------------------------------------------------- read
def run_ids(target: Path, fs: Fs) -> list[str]:
    # A directory, a pipe or a dangling link of that name counts: without it, a later erasure might be overlooked.
    names = {entry.name for entry in fs.scan(target)}.union(fs.special_files(target))
    found = map(_CATALOGUE_FILE.fullmatch, sorted(names))
    return [match[1] for match in found if match is not None]


def read_catalogue(target: Path, run_id: str, fs: Fs) -> Catalogue:
    path = catalogue_file(target, run_id)
    catalogue: Catalogue = _parsed(path, _catalogue, fs)
    if catalogue.run_id != run_id:
        raise malformed(path, f"it belongs to run {catalogue.run_id!r}")
    if catalogue.is_done:
        return catalogue
    folder = run_folder(target, run_id)
    return replace(catalogue, partitions=tuple(_with_new_files(each, folder, fs) for each in catalogue.partitions))


def _with_new_files(planned: OriginalPartition, folder: Path, fs: Fs) -> OriginalPartition:
    try:
        return replace(planned, new_files=_parsed(folder / planned.partition / NEW_FILES_FILE, _files, fs))
    except (FileNotFoundError, NotADirectoryError):
        return planned


def _parsed(path: Path, parse: Any, fs: Fs) -> Any:
    try:
        content = fs.read_bytes(path, follow_links=False)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise malformed(path, "it is a symbolic link") from error
    try:
        return parse(json.loads(content))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise malformed(path, str(error)) from error


def malformed(path: Path, what: str) -> CorruptDataError:
    """Return the error of a catalogue that cannot be used; `what` is the reason."""
    return CorruptDataError(
        f"this is not a catalogue of originals of version {CATALOGUE_VERSION}: {what}",
        path=str(path),
        advice="put its files back by hand, or remove them",
    )


def _catalogue(fields: Mapping[str, Any]) -> Catalogue:
    if fields["catalogue"] != CATALOGUE_VERSION or fields["state"] not in (PLANNED, DONE):
        raise ValueError(f"version {fields['catalogue']!r}, state {fields['state']!r}")
    return Catalogue(
        run_id=_text(fields["run_id"]),
        command=_text(fields["command"]),
        arguments=tuple(map(_text, fields["arguments"])),
        now_ms=_count(fields["now_ms"]),
        started_ms=_count(fields["started_ms"]),
        log_dirs=tuple(
            OriginalLogDir(
                _path(each["path"]), tuple(map(_text, each["checkpoint_files"])), bool(each["clean_shutdown"])
            )
            for each in fields["log_dirs"]
        ),
        partitions=tuple(map(_partition, fields["partitions"])),
        state=fields["state"],
        finished_ms=None if fields["finished_ms"] is None else _count(fields["finished_ms"]),
        restores=None if fields["restores"] is None else _text(fields["restores"]),
    )


def _partition(fields: Mapping[str, Any]) -> OriginalPartition:
    name = _text(fields["partition"])
    if not _FOLDER.fullmatch(name) or name.startswith("."):
        raise ValueError(f"{name!r} is not a partition")
    return OriginalPartition(
        partition=name,
        log_dir=_path(fields["log_dir"]),
        checkpoints={
            _text(file): None if offset is None else _offset(offset) for file, offset in fields["checkpoints"].items()
        },
        leader_epochs=None if fields["leader_epochs"] is None else _text(fields["leader_epochs"]),
        files=_files(fields["files"]),
        new_files=None if fields["new_files"] is None else _files(fields["new_files"]),
        unchanged=_files(fields["unchanged"]),
        status=None if fields["status"] is None else _text(fields["status"]),
    )


def _files(entries: Iterable[Mapping[str, Any]]) -> tuple[OriginalFile, ...]:
    """Parse files; reject a name unless it is the name of a segment file and stays inside the folder."""
    found = []
    for entry in entries:
        parsed = parse_segment_file(_text(entry["name"]))
        if parsed is None or parsed.state:
            raise ValueError(f"{entry['name']!r} is not a segment file")
        numbers = (_count(entry[name]) for name in ("size_bytes", "mtime_ns", "inode"))
        found.append(OriginalFile(entry["name"], *numbers))
    return tuple(found)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    value.encode(errors="surrogateescape")  # text of a file, so it can be written again
    return value


def _path(value: Any) -> str:
    text = _text(value)
    if "\0" in text:
        raise ValueError(f"{text!r} is not a path")
    return text


def _offset(value: Any) -> int:
    if _count(value) > INT64_MAX:
        raise ValueError(f"{value} is not an offset")
    return int(value)


def _count(value: Any) -> int:
    if type(value) is not int or not -INT64_MAX <= value < 1 << 64:
        raise TypeError(f"{value!r} is not a number")
    return value

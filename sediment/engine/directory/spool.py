"""The spool: a folder in which jobs put prepared swaps for the engine that owns the log directories.

In options and messages, the spool is called the hand-off folder; the option `--hand-off` names it.

    file                         written by   content
    engine.json                  the engine   the log directories for which the engine commits swaps
    .lock                        a job        the lock, which admits one job at a time
    <topic-N>.<run>.json         a job        a PreparedSwap; its `.part` files are in the partition's directory
    <topic-N>.<run>.committed    the engine   the reply to a committed swap
    <topic-N>.<run>.refused      the engine   the reason why a swap was refused; the parts of the swap are deleted

A partition whose name is too long for such a file is shortened, and marked with a hash; the files contain its name.

Invariants: the folder is outside every log directory. A job renames nothing and commits nothing. Each file is written
completely or not at all.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sediment.compaction.prepared_swap import PreparedSwap, swap_to_json
from sediment.engine.directory.lock import is_locked
from sediment.segment_io.errors import UsageError
from sediment.segment_io.format.names import with_suffix
from sediment.segment_io.fs import Fs, without_links
from sediment.segment_io.safe_paths import UnsafePathError, check_path

ENGINE_FILE = "engine.json"
PREPARED = re.compile(r"(?P<partition>.+)\.(?P<run_id>[0-9A-Za-z]+)\.json")
_LONGEST_ENDING = ".000000000000.committed.tmp"  # run id, kind of the file, and suffix of a file that is being replaced

_SCHEMA = 1
_PREPARED_SUFFIX = ".json"
_COMMITTED_SUFFIX = ".committed"
_REFUSED_SUFFIX = ".refused"
_REPLY = re.compile(r"(?P<partition>.+)\.(?P<run_id>[0-9A-Za-z]+)\.(committed|refused)")


@dataclass(frozen=True, slots=True)
class CommitReply:
    partition: str
    run_id: str
    refusal: str | None


def announce(folder: Path, log_dirs: Iterable[Path], fs: Fs) -> None:
    resolved = [without_links(log_dir) for log_dir in log_dirs]
    if any(without_links(folder).is_relative_to(log_dir) for log_dir in resolved):
        raise UsageError(
            "the hand-off folder is inside a log directory",
            path=str(folder),
            advice="give a folder outside it; a broker refuses to start on such a log directory",
        )
    if not fs.exists(folder):
        fs.make_directory(folder, like=next(iter(resolved), None))
    try:
        check_path(folder)
    except UnsafePathError as error:
        raise UsageError(
            f"the hand-off folder is not used, because others can put files into it: {error}",
            path=str(folder),
            advice="give a folder that only this user can change",
        ) from error
    document = {"schema": _SCHEMA, "log_dirs": [str(log_dir) for log_dir in resolved]}
    fs.replace_file(folder / ENGINE_FILE, json.dumps(document).encode())


def withdraw(folder: Path, fs: Fs) -> None:
    fs.unlink(folder / ENGINE_FILE, missing_ok=True)


def check_announced(folder: Path, log_dirs: Iterable[Path], fs: Fs) -> None:
    try:
        document = json.loads(fs.read_bytes(folder / ENGINE_FILE))
        announced = {str(path) for path in document["log_dirs"]} if document["schema"] == _SCHEMA else set()
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError, RecursionError):
        announced = set()
    for log_dir in log_dirs:
        if str(without_links(log_dir)) not in announced or not is_locked(log_dir):
            raise UsageError(
                f"no running engine accepts cleaned segments of this log directory from {folder}",
                path=str(log_dir),
                advice="give the folder of the engine that owns it, or stop the engine and omit --hand-off",
            )


def spool_swap(swap: PreparedSwap, folder: Path, run_id: str, fs: Fs) -> Path:
    path = folder / f"{file_stem(str(swap.partition))}.{run_id}{_PREPARED_SUFFIX}"
    fs.replace_file(path, swap_to_json(swap).encode())
    return path


def file_stem(partition: str) -> str:
    return with_suffix(partition, _LONGEST_ENDING).removesuffix(_LONGEST_ENDING)


def reply(prepared: Path, answer: CommitReply, fs: Fs) -> None:
    """Replace the file of a swap by the reply; only the last reply for each partition is kept."""
    stem = file_stem(answer.partition)
    suffix = _COMMITTED_SUFFIX if answer.refusal is None else _REFUSED_SUFFIX
    target = prepared.with_name(prepared.name.removesuffix(_PREPARED_SUFFIX) + suffix)
    for entry in fs.scan(prepared.parent):
        match = _REPLY.fullmatch(entry.name)
        if match is not None and match["partition"] == stem and entry.name != target.name:
            fs.unlink(prepared.parent / entry.name, missing_ok=True)
    document = {"schema": _SCHEMA, "partition": answer.partition, "refusal": answer.refusal}
    fs.replace_file(target, json.dumps(document).encode())
    fs.unlink(prepared)

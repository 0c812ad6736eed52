"""Restores that were interrupted while they replaced segments, and the proof that their new logs are complete.

A restore also puts back a log that a recovery had cut, so the new log may have a torn end or a wrong checksum.  A load
cannot distinguish such a log from a file that has lost data, so it refuses the partition.  This module compares the new
log with its original: a log with the same bytes is complete.

Invariants: nothing is written; every byte of a new log is compared, unless it is a link to its original.
"""

from __future__ import annotations

import filecmp
from dataclasses import dataclass
from pathlib import Path

from sediment.engine.directory.originals.catalogue import Catalogue, OriginalPartition, run_folder
from sediment.engine.directory.originals.history import History
from sediment.engine.directory.originals.kept_files import foreign_entry, regular_file
from sediment.segment_io.format.names import SWAP_SUFFIX, SegmentFileKind
from sediment.segment_io.fs import Fs


@dataclass(frozen=True, slots=True)
class InterruptedRestore:
    """A restore that was interrupted in a partition: the run that it undoes, and the new logs that are complete.

    `entry` is the partition's entry in `run`.  `new_logs` names `.log.swap` files that equal their originals.
    """

    run: Catalogue
    entry: OriginalPartition
    new_logs: frozenset[str]


def interrupted_restores(history: History, directory: Path, target: Path, fs: Fs) -> tuple[InterruptedRestore, ...]:
    """Return the interrupted restores that left complete new logs in a partition directory.

    `history` is the history of the originals in `target`.

    Raises:
        OSError: a new log or an original cannot be read.
    """
    runs = history.runs_of(str(directory.parent.resolve()), directory.name)
    by_id = {run.run_id: (run, entry) for run, entry in runs}
    found = []
    for restore, made in runs:
        if restore.restores not in by_id:
            continue
        run, entry = by_id[restore.restores]
        originals = run_folder(target, run.run_id) / entry.partition
        if foreign_entry(target, run.run_id, entry.partition, ()) is not None:
            continue
        names = [file.name for file in made.new_files or () if file.name.endswith(SegmentFileKind.LOG)]
        complete = (name + SWAP_SUFFIX for name in names if _is_equal(directory, originals, name, fs))
        if new_logs := frozenset(complete):
            found.append(InterruptedRestore(run, entry, new_logs))
    return tuple(found)


def _is_equal(directory: Path, originals: Path, name: str, fs: Fs) -> bool:
    """Return True if the `.swap` file of this name exists, and is a link to its original or has the same bytes."""
    new, original = directory / (name + SWAP_SUFFIX), originals / name
    entry = fs.entry(new)
    if entry is None or not entry.is_file or regular_file(original) is None:
        return False
    return new.samefile(original) or filecmp.cmp(new, original, shallow=False)

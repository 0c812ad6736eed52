"""The runs in a directory of originals, in chronological order, and the runs that undo each other.

A run of `restore` undoes one other run.  To undo both the restore and that other run, no change is needed.  An erasure
is a run of `erase`, or a restore that brings back an erasure which another restore had undone.  The originals of an
erasure contain the erased records.  So do older originals of the same partitions.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from sediment.engine.directory.originals.backup_links import BEFORE_OF_FILE
from sediment.engine.directory.originals.catalogue import (
    ERASE,
    Catalogue,
    OriginalPartition,
    catalogue_file,
    malformed,
    read_catalogue,
    run_ids,
)
from sediment.segment_io.errors import UsageError
from sediment.segment_io.format.names import CLEAN_SHUTDOWN_FILE
from sediment.segment_io.fs import Fs, without_links
from sediment.segment_io.partition.checkpoint_files import LOG_DIRECTORY_FILES

RESTORED = "restored"
"""The status of a partition whose files a run of `restore` has put back."""

# `.lock` is missing here, because `restore` and `vacuum` leave this file in a directory of originals.
_LOG_DIRECTORY_FILES = (*sorted(LOG_DIRECTORY_FILES), CLEAN_SHUTDOWN_FILE)


class History:
    def __init__(self, runs: Iterable[Catalogue]) -> None:
        self.runs: tuple[Catalogue, ...] = tuple(sorted(runs, key=lambda run: (run.started_ms, run.run_id)))
        self._by_id = {run.run_id: run for run in self.runs}
        self._entries: dict[tuple[str, str], list[tuple[Catalogue, OriginalPartition]]] = {}
        for run in self.runs:
            for entry in run.partitions:
                self._entries.setdefault((entry.log_dir, entry.partition), []).append((run, entry))

    def run(self, run_id: str) -> Catalogue | None:
        return self._by_id.get(run_id)

    def partitions(self) -> Iterable[tuple[str, str]]:
        return self._entries.keys()

    def runs_of(self, log_dir: str, partition: str) -> Sequence[tuple[Catalogue, OriginalPartition]]:
        return self._entries.get((log_dir, partition), ())

    def is_erasure(self, run: Catalogue) -> bool:
        restores = 0
        found: Catalogue | None = run
        while found is not None and found.restores is not None and restores <= len(self.runs):
            found, restores = self.run(found.restores), restores + 1
        return found is not None and found.command == ERASE and restores % 2 == 0

    def holds_erased(self, run: Catalogue, entry: OriginalPartition) -> bool:
        found = [each for each, _ in self.runs_of(entry.log_dir, entry.partition)]
        return any(self.is_erasure(each) for each in found[found.index(run) :])

    def to_undo(
        self, wanted: Iterable[Catalogue], log_dir: str, partition: str
    ) -> list[tuple[Catalogue, OriginalPartition]]:
        ids = {run.run_id for run in wanted}
        undone: set[str] = set()
        chain = []
        for run, entry in reversed(self.runs_of(log_dir, partition)):
            if run.run_id not in ids or run.run_id in undone:
                continue
            if run.restores not in ids:
                chain.append((run, entry))
            elif run.is_done and entry.status == RESTORED:
                undone.add(run.restores)
        return chain


def read_history(target: Path, fs: Fs) -> History:
    if not fs.is_directory(target):
        raise UsageError("no such directory of originals", path=str(target), advice="give the DIR of --keep-originals")
    resolve = functools.cache(lambda path: str(without_links(Path(path))))
    runs = []
    found = run_ids(target, fs)
    if not found and fs.exists(target / BEFORE_OF_FILE):
        raise UsageError(
            "this is a directory of --keep-before, which contains earlier files, but no catalogue of a run to undo",
            path=str(target),
            advice="give the DIR of --keep-originals, or copy the files back while the broker is stopped",
        )
    if not found and any(fs.exists(target / name) for name in _LOG_DIRECTORY_FILES):
        raise UsageError(
            "this is a log directory", path=str(target), advice="give the directory that --keep-originals named"
        )
    for run_id in found:
        run = read_catalogue(target, run_id, fs)
        entries = tuple(replace(entry, log_dir=resolve(entry.log_dir)) for entry in run.partitions)
        if len({(entry.log_dir, entry.partition) for entry in entries}) < len(entries):
            raise malformed(catalogue_file(target, run_id), "it lists a partition twice")
        runs.append(replace(run, partitions=entries))
    return History(runs)

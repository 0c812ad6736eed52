"""Partition folders that are symbolic links: a broker follows them, so a run may, unless it would share the files.

The files of a partition may be on another disk, behind a link.  If they belong to another partition of the run, two
tasks would clean one log.  If they are in another log directory, its node may use them, and its lock is not held.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from sediment.jobs.settings.directories import SelectedDirectory
from sediment.segment_io.errors import UsageError
from sediment.segment_io.fs import Fs, without_links
from sediment.segment_io.partition.checkpoint_files import LOG_DIRECTORY_FILES


def check_linked_partitions(directories: Iterable[SelectedDirectory], fs: Fs) -> None:
    opened = list(directories)
    links = {each.path: fs.linked_directories(each.path) for each in opened}
    if not any(links.values()):
        return
    homes = {without_links(each.path) for each in opened}
    folders: dict[Path, list[Path]] = {}
    for each in opened:
        for entry in fs.scan(each.path):
            if entry.is_directory:
                path = each.path / entry.name
                folders.setdefault(without_links(path), []).append(path)
    selected = {each.path / str(partition) for each in opened for partition in each.partitions}
    for path in (each / name for each, names in links.items() for name in names):
        target = without_links(path)
        others = [other for other in folders[target] if other != path]
        if others and not selected.isdisjoint(folders[target]):
            raise UsageError(
                f"the folder is a link to the same files as {others[0]}",
                path=str(path),
                advice="remove the link, or replace it with files of its own",
            )
        home = target.parent
        if path in selected and (home in homes or any(fs.exists(home / name) for name in LOG_DIRECTORY_FILES)):
            raise UsageError(
                f"the folder is a link into {home}, a log directory whose node may use the same files",
                path=str(path),
                advice="move the files out of that directory, or give that directory in place of this one",
            )

"""The opening of every run that changes log directories in place: check, lock, read again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sediment.engine.directory.lock import DirectoryLock
from sediment.engine.directory.originals.backup_links import backup_directory, originals_directory
from sediment.engine.directory.originals.kept_in import KeptIn
from sediment.jobs.delta_lake.paths import outside_log_dirs
from sediment.jobs.settings.directories import check_filesystem

if TYPE_CHECKING:
    from sediment.jobs.rewriting.run import Run

Read = TypeVar("Read")
PlaceOf = Callable[[Path], Path]
"""The directory that keeps files of a log directory, such as `KeptIn.of`."""


def read_locked(
    run: Run[Any],
    read: Callable[[], Read],
    check: Callable[[], None] | None = None,
    *,
    locked: Iterable[Path] | None = None,
    originals_of: PlaceOf | None = None,
    before_of: PlaceOf | None = None,
    allow_network: bool = True,
) -> tuple[Read, dict[Path, DirectoryLock]]:
    """Read what the run is about, lock the directories, and read again; return the second reading and the locks.

    The first reading, and `check` after it, find what is wrong before anything changes.  A broker may have written
    files until it released the lock, so only the second reading counts.  A dry run reads once, and locks nothing.

    `locked` are the directories to lock, by default the log directories; the locks are held until the end of the run's
    stack.  Directories for kept files are created; at the end of the stack, those that are still empty are removed.

    Raises:
        UsageError: a log directory or the place of its kept files cannot be used; nothing was changed.
        DirectoryInUseError: a broker or another run uses a directory.
    """
    found = read()
    if check is not None:
        check()
    if run.dry_run:
        return found, {}
    log_dirs, enter = run.options.log_dirs, run.stack.enter_context
    for path in log_dirs:
        check_filesystem(path, allow_network=allow_network)
    for path in log_dirs:
        if originals_of is not None:
            enter(originals_directory(originals_of(path), path, run.fs))
        if before_of is not None:
            enter(backup_directory(before_of(path), path, run.fs))
    locks = {path: enter(DirectoryLock(path)) for path in (log_dirs if locked is None else locked)}
    return read(), locks


def check_outside(kept: KeptIn | None, log_dirs: Iterable[Path]) -> None:
    """Check that no place of kept files is inside a log directory.

    Raises:
        UsageError: one is.
    """
    if kept is not None:
        log_dirs = tuple(log_dirs)
        for path in log_dirs:
            outside_log_dirs(str(kept.of(path)), log_dirs)

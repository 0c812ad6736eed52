"""Keeping what a commit replaces: hard links to the old files, durable before the first rename.

Invariants: a link shares its inode with the file that goes, and no command changes an existing inode, so what is kept
stays as it was; nothing kept earlier is replaced; no byte is copied.
"""

from __future__ import annotations

import errno
from pathlib import Path

from sediment.compaction.handoff import PreparedSwap
from sediment.engine.swap import replaced_files
from sediment.segment_io.errors import UsageError
from sediment.segment_io.fs import Fs

_OTHER_DIRECTORY = "name a directory on the filesystem of the log directory"


def check_place(target: Path, log_dir: Path, fs: Fs) -> None:
    """Make sure, before anything is touched, that files of `log_dir` can be linked into `target`, and create it.

    Raises:
        UsageError: it is on another filesystem, or no directory.
    """
    try:
        _make_directories(target, fs)
    except OSError as error:
        raise UsageError(
            f"the directory for the originals cannot be made: {error.strerror}",
            path=str(target),
            advice=_OTHER_DIRECTORY,
        ) from error
    if target.stat().st_dev != log_dir.stat().st_dev:
        raise _other_filesystem(target, log_dir)


def keep_originals(swap: PreparedSwap, target: Path, fs: Fs) -> tuple[Path, ...]:
    """Link the files that `commit(swap)` replaces or removes into target/<topic-partition>; returns the links.

    Calling it again for the same files changes nothing.

    Raises:
        UsageError: other files are kept there under the same names, or the filesystem cannot link to there.
    """
    source = Path(swap.directory)
    names = [name for group in swap.groups if group.parts for name in replaced_files(source, group, fs)]
    if not names:
        return ()
    place = target / str(swap.partition)
    _make_directories(place, fs)
    kept = []
    for name in names:
        try:
            fs.link(source / name, place / name)
        except FileExistsError as error:
            if not (source / name).samefile(place / name):
                raise UsageError(
                    "originals of an earlier run are kept under this name",
                    partition=str(swap.partition),
                    path=str(place / name),
                    advice="name another directory with --keep-originals",
                ) from error
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP):
                raise
            raise _other_filesystem(place, source) from error
        kept.append(place / name)
    fs.sync_directory(place)
    fs.sync_directory(target)
    return tuple(kept)


def _make_directories(path: Path, fs: Fs) -> None:
    missing = [place for place in (path, *path.parents) if not fs.is_directory(place)]
    for place in reversed(missing):
        fs.make_directory(place)


def _other_filesystem(target: Path, source: Path) -> UsageError:
    return UsageError(
        f"originals are kept as hard links, which cannot lead from here to {source}: it is another filesystem, or one "
        "without links",
        path=str(target),
        advice=_OTHER_DIRECTORY,
    )

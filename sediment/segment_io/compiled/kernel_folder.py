"""The folder of compiled kernels, which only this user and root can change.

numba keeps a pickle for each kernel, and loading a pickle can run any code.  Therefore, a cache is used only if nobody
else could have put a file into it.  Without such a folder, each process compiles the kernels that it calls.

    a kernel beside its sources, made by SEDIMENT_KERNEL_CACHE=in-tree      SOURCES/__pycache__/
    otherwise, in the folder that SEDIMENT_KERNEL_CACHE names               NAMED/kernels-<digest>/
    otherwise, in the user's cache folder                                   ~/.cache/sediment/kernels-<digest>/
    otherwise, in the user's own folder in the temporary directory          TMPDIR/sediment-<uid>/kernels-<digest>/

A folder may be read-only.  This module does not load numba, so a driver can check the folder.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import stat
import sys
from functools import cache
from importlib.metadata import version
from pathlib import Path

import platformdirs

from sediment.segment_io.safe_paths import (
    UnsafePathError,
    check_tree,
    own_temporary_folder,
    refuse_cache,
    safe_folder,
)

_LOGGER = logging.getLogger(__name__)

_ALSO = ("layout.py", "registers.py", "status.py", "jit.py")  # constants and compiler options
_COMPILED = re.compile(r"^@(kernel|inlined_kernel|brief_kernel|_intrinsic)\b", re.MULTILINE)
CACHE_VARIABLE = "SEDIMENT_KERNEL_CACHE"
IN_TREE = "in-tree"
"""The value of SEDIMENT_KERNEL_CACHE for a cache that is next to the sources and is shipped with them.

If the sources have such a cache, it is used, unless the variable names another folder.
"""

READABLE_FOLDER, READABLE_FILE = 0o755, 0o644  # a cache that root makes may be for other users
_PRIVATE_FOLDER = 0o700
_CHANGED_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


@cache
def cache_folder() -> Path | None:
    """Return the folder of the cache, or the path of its mark if it is next to the sources; None if none is safe.

    A folder that is refused because it is not safe is logged.
    """
    named = os.environ.get(CACHE_VARIABLE)
    if named == IN_TREE:
        if _mark_in_tree():
            return in_tree_mark()
        named = None
    elif not named and in_tree_mark().exists():
        try:
            _check_in_tree()
            return in_tree_mark()
        except OSError as error:
            refuse_cache(error, variable=CACHE_VARIABLE)
    if named:
        return _folder_in(Path(named).absolute(), READABLE_FOLDER, CACHE_VARIABLE)
    user_folder = Path(platformdirs.user_cache_dir("sediment"))
    return _folder_in(user_folder, _PRIVATE_FOLDER, "XDG_CACHE_HOME") or _folder_in(
        own_temporary_folder(), _PRIVATE_FOLDER, CACHE_VARIABLE
    )


def _folder_in(root: Path, mode: int, variable: str) -> Path | None:
    try:
        folder = safe_folder(root / f"kernels-{_digest()}", mode=mode)
        check_tree(folder)
        return folder
    except OSError as error:
        refuse_cache(error, variable=variable)
        return None


def cached_kernels() -> tuple[Path | None, list[str]]:
    """Return the cache folder, or None, and the sorted names of the functions that it has compiled for this Python.

    A name is the name of numba's index file without the suffix: `module.function-line`.
    """
    folder = cache_folder()
    if folder is None:
        return None, []
    ending = f".py{sys.version_info[0]}{sys.version_info[1]}.nbi"
    if folder == in_tree_mark():
        found = [file for source in kernel_files() for file in (source.parent / "__pycache__").glob(f"*{ending}")]
        return folder.parent, sorted({file.name.removesuffix(ending) for file in found})
    return folder, sorted({file.name.removesuffix(ending) for file in folder.glob(f"*/*{ending}")})


def warn_if_uncompiled(module: str = "") -> None:
    """Log, once in a process, that kernels are compiled now because this machine has none of `module`, or none at all.

    A process without a log says nothing.
    """
    folder, compiled = cached_kernels()
    if folder is not None and not any(name.startswith(module) for name in compiled) and _LOGGER.hasHandlers():
        _say_that_kernels_compile()


@cache
def _say_that_kernels_compile() -> None:
    _LOGGER.warning(
        "compiling the inner loops, which can take half a minute, once on this machine; "
        "`sediment setup warm-up` does it in advance"
    )


def in_tree_mark() -> Path:
    return Path(__file__).resolve().parent / "__pycache__" / f"kernels-{_digest()}"


def _mark_in_tree() -> bool:
    folders = {source.parent / "__pycache__" for source in kernel_files()}
    try:
        for folder in folders:
            folder.mkdir(READABLE_FOLDER, exist_ok=True)
        _check_in_tree()
        in_tree_mark().touch(READABLE_FILE)
    except OSError:
        return False
    return all(os.access(folder, os.W_OK) for folder in folders)


def _check_in_tree() -> None:
    for sources in sorted({source.parent for source in kernel_files()}):
        like = sources.stat()
        folder = sources / "__pycache__"
        for place in (folder, *folder.glob("*.nb[ic]")):
            status = place.lstat()
            has_owner = status.st_uid in (0, os.geteuid(), like.st_uid)
            more = status.st_mode & ~like.st_mode & _CHANGED_BY_OTHERS
            if not has_owner or more or stat.S_ISLNK(status.st_mode):
                raise UnsafePathError(f"{place} can be changed by users who cannot change the sources next to it")


@cache
def _digest() -> str:
    # The name of the folder contains one digest of all files that define kernels or their constants. numba checks only
    # the file that defines the loaded function, so numba would miss a change in a helper.
    digest = hashlib.sha256(version("numba").encode())
    for source in kernel_files():
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def kernel_files() -> list[Path]:
    root = Path(__file__).resolve().parents[2]
    packages = ("segment_io", "compaction", "verification")
    sources = sorted(source for package in packages for source in (root / package).rglob("*.py"))
    return [source for source in sources if source.name in _ALSO or _COMPILED.search(source.read_text("utf-8"))]

"""Compilation and caching of kernels.

Invariants
* A kernel takes arrays, addresses and integers, allocates nothing and never raises.  It returns a status.  It runs
  without the interpreter lock, unless it is a `brief_kernel`.
* The name of the cache folder contains one digest of all files that define kernels or their constants.  numba checks
  only the file that defines the loaded function, so numba would miss a change in a helper.
* The constants of kernels are defined in files with kernels, in `layout`, in `registers` or in `status`.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
import platformdirs

_Function = TypeVar("_Function", bound=Callable[..., Any])

_ALSO = ("layout.py", "registers.py", "status.py", "jit.py")  # constants and compiler options
_COMPILED = re.compile(r"^@(kernel|inlined_kernel|brief_kernel|_intrinsic)\b", re.MULTILINE)
CACHE_VARIABLE = "SEDIMENT_KERNEL_CACHE"
IN_TREE = "in-tree"
"""The value of SEDIMENT_KERNEL_CACHE for a cache that is next to the sources and is shipped with them.

If the sources have such a cache, it is used, unless the variable names another folder.
"""


def kernel(function: _Function) -> _Function:
    """Compile `function` at its first call; calls release the interpreter lock, and the code is cached if possible."""
    folder = _cache_folder()
    config: Any = numba.config
    njit: Any = numba.njit  # numba's type stub does not have some options
    before = config.CACHE_DIR
    try:
        if folder is not None:
            # If a folder is set, numba creates a subfolder in it, named after the path of the sources.  Otherwise numba
            # uses a folder next to the sources.
            config.CACHE_DIR = "" if folder == _in_tree_mark() else str(folder)
        # Without numba's runtime, references to arrays are not counted. To count them would take an atomic instruction
        # for each array at every call from kernel to kernel. Counts are not needed, because the caller of the outermost
        # kernel holds references to all arrays.
        compiled: Any = njit(nogil=True, cache=folder is not None, error_model="numpy", _nrt=False)(function)
    finally:
        config.CACHE_DIR = before
    return cast(_Function, compiled)


def brief_kernel(function: _Function) -> _Function:
    """Compile `function` as `kernel` does, but keep the interpreter lock when Python calls it.

    Use it for calls of a few microseconds.  If other threads are busy, it takes longer to get the lock back than to
    make such a call.
    """
    compiled: Any = kernel(function)
    compiled.targetoptions["nogil"] = False
    return cast(_Function, compiled)


def inlined_kernel(function: _Function) -> _Function:
    """Compile `function` as `kernel` does, and inline it into every kernel that calls it.

    Use it for the steps of a long kernel, because it can cost more to pass many arrays to a step than to run the step.
    """
    compiled: Any = kernel(function)
    compiled.targetoptions["forceinline"] = True
    return cast(_Function, compiled)


@cache
def _cache_folder() -> Path | None:
    named = os.environ.get(CACHE_VARIABLE)
    if named == IN_TREE or (not named and _in_tree_mark().exists()):
        if _mark_in_tree():
            return _in_tree_mark()
        named = None
    roots = [Path(named)] if named else [Path(platformdirs.user_cache_dir("sediment")), Path(tempfile.gettempdir())]
    for root in roots:
        folder = root / f"kernels-{_digest()}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK):
            return folder
    return None


def cached_kernels() -> tuple[Path | None, list[str]]:
    """Return the cache folder, or None, and the sorted names of the functions that it has compiled for this Python.

    A name is the name of numba's index file without the suffix: `module.function-line`.
    """
    folder = _cache_folder()
    if folder is None:
        return None, []
    ending = f".py{sys.version_info[0]}{sys.version_info[1]}.nbi"
    if folder == _in_tree_mark():
        found = [file for source in kernel_files() for file in (source.parent / "__pycache__").glob(f"*{ending}")]
        return folder.parent, sorted({file.name.removesuffix(ending) for file in found})
    return folder, sorted({file.name.removesuffix(ending) for file in folder.glob(f"*/*{ending}")})


def _in_tree_mark() -> Path:
    """Return the path of the file that proves that the cache next to the sources was made from these sources."""
    return Path(__file__).resolve().parent / "__pycache__" / f"kernels-{_digest()}"


def _mark_in_tree() -> bool:
    folders = {source.parent / "__pycache__" for source in kernel_files()}
    try:
        for folder in folders:
            folder.mkdir(exist_ok=True)
        _in_tree_mark().touch()
    except OSError:
        return False
    return all(os.access(folder, os.W_OK) for folder in folders)


@cache
def _digest() -> str:
    digest = hashlib.sha256(numba.__version__.encode())
    for source in kernel_files():
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def kernel_files() -> list[Path]:
    """Return the files that compiled code depends on."""
    root = Path(__file__).resolve().parents[2]
    packages = ("segment_io", "compaction", "jobs/verification")
    sources = sorted(source for package in packages for source in (root / package).rglob("*.py"))
    return [source for source in sources if source.name in _ALSO or _COMPILED.search(source.read_text("utf-8"))]

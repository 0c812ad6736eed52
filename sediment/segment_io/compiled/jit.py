"""How compiled loops are compiled and cached.

Invariants: a kernel takes arrays, addresses and integers, allocates nothing, never raises and never holds the
interpreter lock; it answers with a status code.  The cache folder carries a digest of every file that holds a kernel or
a constant of one, because numba looks only at the file of the function it loads and would miss a change in a helper.
Constants that a kernel uses stand in a file of kernels or in `layout`.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
import platformdirs

_Function = TypeVar("_Function", bound=Callable[..., Any])

_ALSO = ("layout.py", "jit.py")  # constants, and how it is compiled
_COMPILED = re.compile(r"^@(kernel|_intrinsic)\b", re.MULTILINE)
CACHE_VARIABLE = "SEDIMENT_KERNEL_CACHE"
IN_TREE = "in-tree"
"""Value of the variable: cache beside the sources, which moves with them and so serves an environment that is shipped.

Where sources came with such a cache, it is used unless the variable names a folder.
"""


def kernel(function: _Function) -> _Function:
    """Compile `function` at first use, without the interpreter lock, from the cache where one can be written."""
    folder = _cache_folder()
    config: Any = numba.config
    njit: Any = numba.njit  # whose stub does not know all of its options
    before = config.CACHE_DIR
    try:
        if folder is not None:
            # numba's own folder is named after where the sources lie; without one it looks beside them.
            config.CACHE_DIR = "" if folder == _in_tree_mark() else str(folder)
        # Without numba's runtime: references to arrays are not counted, which at every call of one kernel by another
        # would take an atomic instruction for each array, and whoever calls the outermost one holds them all anyway.
        compiled: Any = njit(nogil=True, cache=folder is not None, error_model="numpy", _nrt=False)(function)
    finally:
        config.CACHE_DIR = before
    return cast(_Function, compiled)


def inlined_kernel(function: _Function) -> _Function:
    """Compile `function` as `kernel` does, and inline it into every kernel that calls it.

    It is for the steps of a long kernel.  Passing many arrays to a step costs more than some steps do.
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


def _in_tree_mark() -> Path:
    """Where this file is, the cache beside the sources is one of these sources."""
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
    """The files that compiled code depends on."""
    root = Path(__file__).resolve().parents[2]
    sources = sorted(source for package in ("segment_io", "compaction") for source in (root / package).rglob("*.py"))
    return [source for source in sources if source.name in _ALSO or _COMPILED.search(source.read_text("utf-8"))]

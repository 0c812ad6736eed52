"""The C functions of the codecs' packages, by address, for compiled loops to call.

    tools, int64[registers]   | function | context of it | function | …

Invariants: a register is 0 where its library, or a function that belongs to it, is not there; a context lives as long
as the array that names it, and serves one thread at a time.
"""

from __future__ import annotations

import ctypes
import importlib.util
import weakref
from collections.abc import Callable
from functools import cache

import numpy as np
import numpy.typing as npt

LZ4 = "lz4.block._block"
ZSTD = "zstandard._cffi"
LIBDEFLATE = "deflate._deflate"

Tools = npt.NDArray[np.int64]


@cache
def _library(module: str) -> ctypes.CDLL | None:
    """The shared object of an extension module, without importing it."""
    try:
        found = importlib.util.find_spec(module)
        return ctypes.CDLL(found.origin) if found is not None and found.origin else None
    except (ImportError, OSError):
        return None


def address_of(module: str, name: str) -> int:
    """Where a function of an extension module's library is; 0 if there is none."""
    function = getattr(_library(module), name, None)
    return ctypes.cast(function, ctypes.c_void_p).value or 0 if function is not None else 0


def take_tool(
    tools: Tools,
    register: int,
    module: str,
    function: str,
    make: str,
    free: str,
    *,
    arguments: tuple[int, ...] = (),
    prepare: Callable[[ctypes.CDLL, ctypes.c_void_p], bool] = lambda _library, _context: True,
) -> None:
    """Set a function's register, and the one behind it to a context that `make` gives for `arguments`.

    Both stay 0 where `prepare` says that the context will not do.
    """
    library = _library(module)
    if library is None or not all(address_of(module, name) for name in (function, make, free)):
        return
    maker = library[make]
    maker.restype = ctypes.c_void_p
    made = maker(*arguments)
    if not made:
        return
    context = ctypes.c_void_p(made)
    weakref.finalize(tools, library[free], context)
    if prepare(library, context):
        tools[register], tools[register + 1] = address_of(module, function), made

"""Addresses of C functions in the codecs' packages, for compiled loops to call.

    tools, int64[registers]   | function | its context | function | …

Invariants: a register is 0 if its library lacks the function, or lacks another function that is needed with it.  A
context exists as long as the array that contains its address.  Only one thread at a time may use a context.
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
    """Load the shared object of an extension module without importing the module."""
    try:
        found = importlib.util.find_spec(module)
        return ctypes.CDLL(found.origin) if found is not None and found.origin else None
    except (ImportError, OSError):
        return None


def address_of(module: str, name: str) -> int:
    """Return the address of a function in an extension module's library; 0 if either is missing."""
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
    """Set one register to the address of a function, and the next to a context that `make` creates from `arguments`.

    If `prepare` returns False for the context, both registers remain 0.
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

"""Compilation of kernels.

Invariants
* A kernel takes arrays, addresses and integers, allocates nothing and never raises.  It returns a status.  It runs
  without the interpreter lock, unless it is a `brief_kernel`.
* The constants of kernels are defined in files with kernels, in `layout`, in `registers` or in `status`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

from sediment.segment_io.compiled.kernel_cache import KernelCache
from sediment.segment_io.compiled.kernel_folder import cache_folder

_Function = TypeVar("_Function", bound=Callable[..., Any])


def kernel(function: _Function) -> _Function:
    """Compile `function` at its first call; calls release the interpreter lock, and the code is cached if possible."""
    njit: Any = numba.njit  # numba's type stub does not have some options
    # Without numba's runtime, references to arrays are not counted. To count them would take an atomic instruction for
    # each array at every call from kernel to kernel. Counts are not needed, because the caller of the outermost kernel
    # holds references to all arrays.
    compiled: Any = njit(nogil=True, error_model="numpy", _nrt=False)(function)
    if cache_folder() is not None:
        compiled._cache = KernelCache(function)
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

"""The cache of compiled kernels: numba's, in the folder that `kernel_folder` chooses.

Invariant: a file that cannot be read or written costs time, and is no error.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from numba.core import caching

from sediment.segment_io.compiled.kernel_folder import (
    READABLE_FILE,
    READABLE_FOLDER,
    cache_folder,
    in_tree_mark,
    warn_if_uncompiled,
)


class KernelCache(caching.FunctionCache):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._cache_file = _Files(self._cache_path, self._impl.filename_base, self._impl.locator.get_source_stamp())

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            # numba's own method first installs every function that numba can compile; only a compilation needs them,
            # and does so itself.
            loaded = self._load_overload(sig, target_context)
        except Exception:  # a file that cannot be read, or was torn when the machine stopped
            with contextlib.suppress(OSError):
                self.flush()
            return None
        if loaded is None:
            warn_if_uncompiled()
        return loaded

    def save_overload(self, sig: Any, data: Any) -> None:
        # The annotated source, which nothing reads, has addresses of this process and the path of the sources: without
        # it, equal sources give equal files.
        plain = data._replace(type_annotation="")
        with contextlib.suppress(OSError):  # the disk is full, or the folder is read-only
            super().save_overload(sig, plain)


class _Locator(caching.InTreeCacheLocator):
    def __init__(self, function: Callable[..., Any], file: str) -> None:
        super().__init__(function, file)
        folder = cache_folder()
        if folder != in_tree_mark():
            self._cache_path = str(folder / self.get_suitable_cache_subpath(file))

    @classmethod
    def from_function(cls, py_func: Callable[..., Any], py_file: str) -> _Locator:
        return cls(py_func, py_file)  # numba's own method would look for other folders if this one is read-only

    def ensure_cache_path(self) -> None:
        Path(self._cache_path).mkdir(READABLE_FOLDER, exist_ok=True)


class _Kernel(caching.CompileResultCacheImpl):
    def __init__(self, function: Callable[..., Any]) -> None:
        self._locator_classes = [_Locator]  # of all of numba's locators, only this one
        super().__init__(function)


KernelCache._impl_class = _Kernel


class _Files(caching.IndexDataCacheFile):
    """The files of one kernel; others cannot change them, whatever the umask is."""

    @contextlib.contextmanager
    def _open_for_write(self, filepath: str) -> Iterator[IO[bytes]]:
        temporary = Path(f"{filepath}.tmp.{uuid.uuid4().hex[:16]}")
        try:
            with open(temporary, "xb", opener=lambda path, flags: os.open(path, flags, READABLE_FILE)) as file:
                yield file
            temporary.replace(filepath)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise

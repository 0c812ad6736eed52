"""Checks of the machine that need no Spark: Python, compiled code, codecs, space and open files."""

from __future__ import annotations

import importlib.util
import platform
import resource
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from sediment.jobs.diagnostics.check import Check, failed, passed, warned
from sediment.jobs.reporting.figures import human_bytes
from sediment.jobs.spark.release import untested_python
from sediment.jobs.spark.session import ENOUGH_FILES, LEAST_FILES
from sediment.segment_io.fs import Fs
from sediment.version import __version__

_CODEC_PACKAGES = ("cramjam", "deflate", "isal", "lz4", "zstandard")
_ENTRY_KERNEL = "sweep."
_LITTLE_BYTES, _LEAST_BYTES = 1_000_000_000, 50_000_000


def machine_checks() -> Iterator[Check]:
    yield _python()
    yield _kernel_cache()
    yield from _codecs()
    yield space_check("temporary-space", Path(tempfile.gettempdir()), "set TMPDIR to a folder on a larger disk")
    yield _open_files()


def _python() -> Check:
    release = platform.python_version()
    untested = untested_python(release)
    if untested is not None:
        advice = "make the environment with one of these, and install Sediment into it"
        return warned("sediment", f"{__version__}; {untested} ({sys.executable})", advice)
    return passed("sediment", f"{__version__}, on Python {release} ({sys.executable})")


def space_check(name: str, folder: Path, advice: str) -> Check:
    try:
        free = Fs().free_bytes(folder)
    except OSError as error:
        return failed(name, f"{folder} cannot be used: {error.strerror}", advice)
    found = f"{human_bytes(free)} free in {folder}"
    if free < _LEAST_BYTES:
        return failed(name, found, advice)
    return warned(name, found, advice) if free < _LITTLE_BYTES else passed(name, found)


def _kernel_cache() -> Check:
    from sediment.segment_io.compiled.kernel_folder import cached_kernels

    folder, names = cached_kernels()
    if folder is None:
        advice = "name a folder in SEDIMENT_KERNEL_CACHE that only you can change"
        return warned(
            "kernel-cache",
            "no cache folder is writable and safe from changes by others, so every process compiles the kernels again",
            advice,
        )
    if any(name.startswith(_ENTRY_KERNEL) for name in names):
        return passed("kernel-cache", f"warm: {len(names)} compiled kernels in {folder}")
    advice = "compile them once with: sediment setup warm-up"
    return warned("kernel-cache", f"cold: the first run compiles its kernels ({folder})", advice)


def _codecs() -> Iterator[Check]:
    missing = [name for name in _CODEC_PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        advice = "install Sediment's wheel again, with pip's option --force-reinstall"
        yield failed("codecs", f"Python packages are missing: {', '.join(missing)}", advice)
        return
    yield passed("codecs", "gzip, snappy, lz4 and zstd can be read and written")
    from sediment.segment_io.format.compression.compress_fast_path import compressors_found
    from sediment.segment_io.format.compression.decompress_fast_path import decompressors_found

    found = {
        **{f"reading {codec}": is_on for codec, is_on in decompressors_found().items()},
        **{f"writing {codec}": is_on for codec, is_on in compressors_found().items()},
    }
    off = [name for name, is_on in found.items() if not is_on]
    if off:
        advice = "install the releases of lz4, zstandard and deflate that constraints.txt names"
        text = f"off for {', '.join(off)}: these releases do not export the C functions, so slower calls are used"
        yield warned("native-codecs", text, advice)
    else:
        yield passed("native-codecs", "on: compiled code calls the C functions of lz4, zstandard and deflate")


def _open_files() -> Check:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = ENOUGH_FILES if hard == resource.RLIM_INFINITY else hard
    found = f"{'unlimited' if soft == resource.RLIM_INFINITY else soft} open files"
    found += f"; runs raise this to {limit}" if soft != resource.RLIM_INFINITY and soft < limit else ""
    advice = f"raise the hard limit, for example: ulimit -n {ENOUGH_FILES}"
    if limit < LEAST_FILES:
        return failed("open-files", found, advice)
    return warned("open-files", found, advice) if limit < ENOUGH_FILES // 16 else passed("open-files", found)

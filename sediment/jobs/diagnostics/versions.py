"""Versions of the programs and packages that a run uses, for a bug report."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from sediment.jobs.spark.java import java_version

_PACKAGES = ("pyspark", "delta-spark", "deltalake", "pyarrow", "pandas", "numpy", "numba")


def versions() -> Iterator[tuple[str, str]]:
    yield "Python", f"{platform.python_version()} on {platform.platform()}"
    found = java_version()
    yield "Java", "not found" if found is None else str(found)
    for package in _PACKAGES:
        try:
            yield package, version(package)
        except PackageNotFoundError:
            yield package, "not installed"

"""The Python of Spark's workers and of other processes that this one starts.

It must have this package, because the run's tasks would otherwise fail.  It must not import modules from the working
directory, which may be a log directory of somebody else: `python -m` and `python -c` look there first.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from sediment.segment_io.errors import UsageError

if TYPE_CHECKING:
    from pyspark import SparkContext

_PACKAGE = "sediment"
_HAS_PACKAGE = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({_PACKAGE!r}) is None)"
_LIMIT_SECONDS = 60
_SAFE_PATH = {"PYTHONSAFEPATH": "1"}


def safe_path_variables() -> dict[str, str]:
    """Return the environment variables that keep a new Python from importing modules of the working directory."""
    try:
        here = os.path.realpath(Path.cwd())
    except OSError:
        return dict(_SAFE_PATH)  # the working directory was removed
    # There are none if this process imports modules from there itself, as `python -m` in a source tree does.
    return {} if any(os.path.realpath(entry) == here for entry in sys.path) else dict(_SAFE_PATH)


def safe_environment() -> dict[str, str]:
    return {**os.environ, **safe_path_variables()}


def check_worker_python(sc: SparkContext) -> None:
    # Applications that distribute Python files themselves are not checked.
    if sc._python_includes:
        return
    python = shutil.which(sc.pythonExec)
    if python is not None and not is_beside(python, sys.executable) and not _has_package(python):
        raise UsageError(
            f"Spark runs Python code with {python}, which lacks the package {_PACKAGE}",
            advice=f"activate the virtual environment, or set PYSPARK_PYTHON to {sys.executable}, before the session "
            "starts",
        )


def is_beside(file: str, other: str) -> bool:
    return Path(file).parent.resolve() == Path(other).parent.resolve()


@cache
def _has_package(python: str) -> bool:
    try:
        found = subprocess.run(
            [python, "-c", _HAS_PACKAGE], env=safe_environment(), timeout=_LIMIT_SECONDS, check=False
        )
        return found.returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return True  # Spark itself reports an error if its Python does not start

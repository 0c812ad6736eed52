"""Processes that Spark's own daemon forks for a look-up: a socket that Spark closes early leaves no traceback."""

from __future__ import annotations

import subprocess
import sys

import pytest

_IN_THE_DAEMON = """
import sys, traceback
from types import SimpleNamespace
sys.modules["__main__"].__spec__ = SimpleNamespace(name="pyspark.daemon")
import pyspark_kafkalog
try:
    raise {error}
except Exception:
    traceback.print_exc()
"""


@pytest.mark.parametrize(("error", "is_told"), [("BrokenPipeError", False), ("ValueError('a fault')", True)])
def test_the_look_up_of_data_sources_prints_only_other_errors(error: str, is_told: bool) -> None:
    program = _IN_THE_DAEMON.format(error=error)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ("Traceback" in done.stderr) == is_told, done.stderr

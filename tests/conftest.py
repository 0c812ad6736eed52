"""Fixtures and settings of all tests: counted reads, Hypothesis examples that are the same in every run, and Ctrl-C.

Kernels compile at their first call, and a machine may be busy: no example has a deadline, and none is too slow.
"""

import os
import signal
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.project.scenarios import counted

settings.register_profile(
    "sediment", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("sediment")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell starts background jobs so, and commands inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)

for _width in ("COLUMNS", "LINES"):  # pytest-xdist sets them
    os.environ.pop(_width, None)
os.environ["SEDIMENT_SETTINGS"] = os.devnull  # not the settings of the user that runs the tests
os.environ.setdefault("SEDIMENT_CLASS_ARCHIVE", "off")  # no background process outlives a test
os.environ.setdefault("SEDIMENT_TRACEBACK", "1")  # a fault of a command is a fault of the test, with its trace


def pytest_terminal_summary(terminalreporter):
    """Print the number of numbered scenarios that passed in the run."""
    stats = terminalreporter.stats
    passed = [report.nodeid for report in stats.get("passed", []) if report.when == "call"]
    failed = [report.nodeid for kind in ("failed", "error") for report in stats.get(kind, [])]
    line = counted(passed, failed)
    if line:
        terminalreporter.write_line(line)


@pytest.fixture
def log_bytes_read(monkeypatch):
    """Bytes read of each `.log`, by its name."""
    counts = Counter()
    pread, preadv = os.pread, os.preadv

    def count(descriptor, size):
        name = Path(f"/proc/self/fd/{descriptor}").readlink().name
        if ".log" in name:
            counts[name] += size

    def counting_pread(descriptor, size, position):
        data = pread(descriptor, size, position)
        count(descriptor, len(data))
        return data

    def counting_preadv(descriptor, buffers, position):
        size = preadv(descriptor, buffers, position)
        count(descriptor, size)
        return size

    monkeypatch.setattr(os, "pread", counting_pread)
    monkeypatch.setattr(os, "preadv", counting_preadv)
    return counts

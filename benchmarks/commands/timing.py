"""Wall time and CPU time of runs in this process and its descendants."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from benchmarks.measure import processor_seconds

Result = TypeVar("Result")
CpuClock = Callable[[], float]


def timed(
    run: Callable[[], Result], seconds: list[float], cpu_seconds: list[float], cpu: CpuClock = processor_seconds
) -> Result:
    """Call `run`; add its wall time to `seconds` and its CPU time to `cpu_seconds`; return its result."""
    before, started = cpu(), time.perf_counter()
    result = run()
    seconds.append(time.perf_counter() - started)
    cpu_seconds.append(cpu() - before)
    return result

"""Measurements of a `compact` run: wall time, CPU time, memory of its workers and shuffled bytes.

Invariants: a run works on hard links to the data, which no command changes; the peak of a worker is the kernel's own
figure (VmHWM, reset before the run); shuffled bytes come from Spark's task metrics.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import resource
import shutil
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from benchmarks.options import command_options
from sediment.compaction.strategy import Strategy
from sediment.jobs.cleaning.options import CompactOptions
from sediment.jobs.compact import compact
from tests.conformance.oracle import KafkaOracle, OracleUnavailableError

MEGABYTE, GIGABYTE = 10**6, 10**9
SLOTS = "local[2]"
RESULTS = Path(__file__).resolve().parent / "results"
_SET_PEAK_BACK = "5"  # written to clear_refs, see proc(5)
_LOOK_SECONDS = 0.1


def open_oracle() -> KafkaOracle | None:
    """Return Kafka's classes; if they cannot be had, say so on stderr and return None."""
    try:
        return KafkaOracle()
    except OracleUnavailableError as error:
        print(f"without Kafka: {error}", file=sys.stderr)
        return None


@dataclass(frozen=True)
class Run:
    """Figures of one `compact`.

    `worker_bytes` is the peak memory of the largest Python worker; `grown_bytes` is the part above its own memory
    before the run.  `shuffled_bytes` were written by all tasks, batch flags included.  `driver_seconds` is the time of
    listing and commits, which may run while tasks clean; `driver_cpu_seconds` is the CPU time of the Python driver.
    `tasks` counts Spark's tasks of all stages.
    """

    strategy: str
    seconds: float
    cpu_seconds: float
    driver_seconds: float
    driver_cpu_seconds: float
    worker_bytes: int
    grown_bytes: int
    shuffled_bytes: int
    tasks: int
    messages_written: int
    bytes_before: int
    bytes_after: int


def run_compact(sc: Any, log_dir: Path, strategy: Strategy | None, sets: Sequence[str]) -> Run:
    """Compact links of `log_dir` in the running session `sc`, with every sync, and then remove them."""
    copy = linked(log_dir, log_dir.with_name(f"{log_dir.name}-run"))
    options = command_options([copy], ["cleanup.policy=compact", *sets])
    own = CompactOptions(force=True, dry_run=False, from_start=False, strategy=strategy)
    os.sync()
    at_rest = set_peaks_back()
    cpu_seconds, driver_cpu_seconds, started = processor_seconds(), time.process_time(), time.perf_counter()
    report = compact(options, own)
    seconds = time.perf_counter() - started
    driver_cpu_seconds = time.process_time() - driver_cpu_seconds
    cpu_seconds = processor_seconds() - cpu_seconds
    peaks = {worker.pid: _status_bytes(worker.pid, "VmHWM") for worker in workers()}
    assert not report.failed, next(found for found in report.partitions if found.status != "compacted")
    ways = {str(partition.strategy) for partition in report.partitions}
    shutil.rmtree(copy)
    shuffled_bytes, tasks = _spark_figures(sc, report.run_id)
    return Run(
        strategy=" and ".join(sorted(ways)),
        seconds=seconds,
        cpu_seconds=cpu_seconds,
        driver_seconds=sum(report.seconds_by_stage.get(stage, 0.0) for stage in ("list", "commit")),
        driver_cpu_seconds=driver_cpu_seconds,
        worker_bytes=max(peaks.values(), default=0),
        grown_bytes=max((peak - at_rest.get(pid, 0) for pid, peak in peaks.items()), default=0),
        shuffled_bytes=shuffled_bytes,
        tasks=tasks,
        messages_written=sum(partition.messages_written for partition in report.partitions),
        bytes_before=sum(partition.bytes_before for partition in report.partitions),
        bytes_after=sum(partition.bytes_after for partition in report.partitions),
    )


def linked(log_dir: Path, target: Path) -> Path:
    """Create a log directory of hard links to another's files."""
    for directory in log_dir.iterdir():
        if directory.is_dir():
            (target / directory.name).mkdir(parents=True)
            for file in directory.iterdir():
                os.link(file, target / directory.name / file.name)
    (target / ".kafka_cleanshutdown").touch()
    return target


def _spark_figures(sc: Any, group: str) -> tuple[int, int]:
    """Return the shuffled bytes and the number of tasks of a job group."""
    scala = sc._jsc.sc()
    scala.listenerBus().waitUntilEmpty()
    tracker = sc.statusTracker()
    numbers = {stage for job in tracker.getJobIdsForGroup(group) for stage in tracker.getJobInfo(job).stageIds}
    stages = [scala.statusStore().lastStageAttempt(number) for number in numbers]
    return sum(int(stage.shuffleWriteBytes()) for stage in stages), sum(int(stage.numTasks()) for stage in stages)


# --------------------------------------------------------------------------------------------------------- processes
def workers() -> list[psutil.Process]:
    """Return the Python processes that descend from this one."""
    return [process for process in psutil.Process().children(recursive=True) if "java" not in process.name()]


def set_peaks_back() -> dict[int, int]:
    """Reset the peaks of all workers; return the memory that each holds now, by process."""
    held = {}
    for worker in workers():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            Path(f"/proc/{worker.pid}/clear_refs").write_text(_SET_PEAK_BACK)
            held[worker.pid] = _status_bytes(worker.pid, "VmRSS")
    return held


def _status_bytes(pid: int, field: str) -> int:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) * 1024
    return 0


def processor_seconds() -> float:
    """Return the CPU time of this process and its descendants so far."""
    total = 0.0
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def environment_of_installed() -> dict[str, str]:
    """Return the environment of a command; it keeps the bytecode of its modules, which an installed package has."""
    return {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}


def children_seconds() -> float:
    """Return the CPU time of the ended processes that this process started."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class TreePeak:
    """Sampler of the memory of a process and its descendants, ten times per second; shared pages count once (PSS)."""

    def __init__(self, process: psutil.Process) -> None:
        self._process = process
        self.total_bytes = 0
        self.largest_bytes = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, name="tree-peak", daemon=True)

    def __enter__(self) -> TreePeak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(_LOOK_SECONDS):
            held = [_share_bytes(pid) for pid in _tree(self._process)]
            self.total_bytes = max(self.total_bytes, sum(held))
            self.largest_bytes = max([self.largest_bytes, *held])


def _tree(process: psutil.Process) -> Iterator[int]:
    yield process.pid
    with contextlib.suppress(psutil.NoSuchProcess):
        yield from (child.pid for child in process.children(recursive=True))


def _share_bytes(pid: int) -> int:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


# ----------------------------------------------------------------------------------------------------------- reporting
def machine() -> str:
    """Return one line about the machine and the versions that the figures depend on."""
    model = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
    cores, memory = os.cpu_count(), psutil.virtual_memory().total / 2**30
    versions = f"Linux {platform.release()}, Python {platform.python_version()}, Spark {version('pyspark')}"
    return f"{cores} cores ({model[1] if model else platform.machine()}), {memory:.0f} GiB of memory, {versions}"


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Return the median and the range."""
    told = f"{statistics.median(values):.{digits}f}"
    return told if len(values) < 2 else f"{told} ({min(values):.{digits}f} to {max(values):.{digits}f})"

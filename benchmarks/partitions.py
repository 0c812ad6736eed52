"""Many partitions: time and memory that the driver needs to list, plan, copy and compact 1,000, 10,000 and 100,000.

    list      the names and sizes of all files, which every command reads first
    plan      `sediment plan`
    clone     `sediment clone --link=hard`, into a directory next to the source
    compact   `sediment compact`, in place

Every partition has two segments of a few batches.  All files are hard links to the files of a few templates; one
template is not enough, because the number of links to a file is limited.  Each command runs in a separate process, its
driver; the figures leave out the memory of workers and of Java.

The benchmark checks that the driver's time and memory grow at most linearly: for each number of partitions, the cost
per partition is at most `MOST_GROWTH` times the cost for the previous number.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.generate import Shape, write_partition
from benchmarks.measure import MEGABYTE, RESULTS, SLOTS, machine
from benchmarks.options import NOW_MS
from benchmarks.reporting.pages import fill_page, markdown_table

PAGE = RESULTS / "scale.md"
SIZES = (1_000, 10_000, 100_000)
PROJECTED = 1_000_000
STEPS = ("list", "plan", "clone", "compact")  # the last changes the directory
MOST_GROWTH = 1.5
FREE_BYTES_A_PARTITION, FREE_INODES_A_PARTITION = 40_000, 12
_NAMES_A_TEMPLATE = 20_000
_TOPIC_PARTITIONS = 100
_LOOK_SECONDS = 0.05


@dataclass(frozen=True)
class Outcome:
    """Cost of one step for `partitions`; CPU seconds and peak memory are those of the driver's process."""

    step: str
    partitions: int
    seconds: float
    driver_cpu_seconds: float
    driver_bytes: int


def make(log_dir: Path, partitions: int) -> None:
    """Write a log directory; each topic has `_TOPIC_PARTITIONS` partitions."""
    templates = []
    for number in range(-(-partitions // _NAMES_A_TEMPLATE)):
        template = log_dir.with_name("templates") / str(number)
        if not template.exists():
            write_partition(template, Shape(6_000, keys=10, value_bytes=90, segment_bytes=100_000, seed=number))
        templates.append([(file.name, str(file)) for file in template.iterdir()])
    identity = log_dir.with_name("partition.metadata")
    for number in range(partitions):
        topic, partition = divmod(number, _TOPIC_PARTITIONS)
        directory = f"{log_dir}/topic{topic:04d}-{partition}"
        Path(directory).mkdir()
        if partition == 0:
            identity.unlink(missing_ok=True)
            identity.write_text(f"version: 0\ntopic_id: {_topic_id(topic)}")
        os.link(identity, f"{directory}/{identity.name}")
        for name, file in templates[number // _NAMES_A_TEMPLATE]:
            os.link(file, f"{directory}/{name}")
    (log_dir / ".kafka_cleanshutdown").touch()


def _topic_id(topic: int) -> str:
    """Return the identifier of a topic, as Kafka writes it."""
    return base64.urlsafe_b64encode(uuid.UUID(int=topic + 2**64).bytes).decode().rstrip("=")


class DriverPeak:
    """Sampler of the CPU time and the peak memory of one process, until it ends."""

    def __init__(self, pid: int) -> None:
        self.cpu_seconds = 0.0
        self.bytes = 0
        self._pid = pid
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, name="driver-peak", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """End the thread."""
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        tick = os.sysconf("SC_CLK_TCK")
        while not self._ended.wait(_LOOK_SECONDS):
            try:
                fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
                status = Path(f"/proc/{self._pid}/status").read_text()
            except (FileNotFoundError, ProcessLookupError):
                return
            self.cpu_seconds = (int(fields[11]) + int(fields[12])) / tick
            peak = [line for line in status.splitlines() if line.startswith("VmHWM:")]
            self.bytes = max(self.bytes, int(peak[0].split()[1]) * 1024 if peak else 0)


_LIST = """
import sys
from sediment.segment_io.partition.partition_directories import find_live_partitions
from sediment.segment_io.stores import Store
store = Store(sys.argv[1])
files = store.files()
assert len(find_live_partitions(store, store.folders())) == int(sys.argv[2]), len(files)
"""


def run(step: str, partitions: int, command: Sequence[str]) -> Outcome:
    """Run one command; if it prints a JSON object, this has a row for every partition."""
    started = time.perf_counter()
    with tempfile.TemporaryFile() as document, subprocess.Popen(command, stdout=document) as process:
        peak = DriverPeak(process.pid)
        status = process.wait()
        peak.end()
        seconds = time.perf_counter() - started
        document.seek(0)
        content = document.read()
    assert status == 0, (step, status)
    assert not content or len(json.loads(content)["partitions"]) == partitions, step
    return Outcome(step, partitions, seconds, peak.cpu_seconds, peak.bytes)


def measure(top: Path, partitions: int, steps: Sequence[str]) -> list[Outcome]:
    """Run the steps on a new directory of `partitions`."""
    log_dir, target, config = top / "logs", top / "clone", top / "server.properties"
    config.write_text("log.cleanup.policy=compact\n")
    log_dir.mkdir()
    make(log_dir, partitions)
    common = [f"--master={SLOTS}", f"--now-ms={NOW_MS}", "--json", "--quiet"]
    sediment = [sys.executable, "-m", "sediment.jobs.cli"]
    commands = {
        "list": [sys.executable, "-c", _LIST, str(log_dir), str(partitions)],
        "plan": [*sediment, "plan", str(log_dir), "--broker-defaults", f"--config={config}", *common],
        "clone": [*sediment, "clone", str(log_dir), "--to", str(target), "--link=hard", *common],
        "compact": [*sediment, "compact", str(log_dir), "--broker-defaults", f"--config={config}", *common],
    }
    outcomes = []
    for step in steps:
        outcomes.append(run(step, partitions, commands[step]))
        print(outcomes[-1], file=sys.stderr, flush=True)
    for directory in (log_dir, target):
        shutil.rmtree(directory, ignore_errors=True)
    return outcomes


HEAD = ("step", "partitions", "seconds", "driver, processor s", "ms a partition", "driver, MB", "bytes a partition")


def rows(outcomes: Sequence[Outcome]) -> list[tuple[str, ...]]:
    """Return one row per step and size; the memory of a partition is what the smallest size does not need."""
    found = []
    for each in sorted(outcomes, key=lambda outcome: outcome.step):
        least = min(outcomes, key=lambda outcome: (outcome.step != each.step, outcome.partitions))
        more = each.partitions - least.partitions
        bytes_each = f"{(each.driver_bytes - least.driver_bytes) / more:,.0f}" if more else ""
        found.append(
            (
                each.step,
                f"{each.partitions:,}",
                f"{each.seconds:.1f}",
                f"{each.driver_cpu_seconds:.1f}",
                f"{1000 * each.driver_cpu_seconds / each.partitions:.2f}",
                f"{each.driver_bytes / MEGABYTE:,.0f}",
                bytes_each,
            )
        )
    return found


PROJECTED_HEAD = ("step", "seconds", "driver, processor s", "driver, MB")


def projected(outcomes: Sequence[Outcome], partitions: int) -> list[tuple[str, ...]]:
    """Return the cost of `partitions` by step: that of the largest size, and the slope from the size before it."""
    found = []
    for step in STEPS:
        sizes = sorted((outcome for outcome in outcomes if outcome.step == step), key=lambda one: one.partitions)
        if len(sizes) < 2:
            continue
        less, more = sizes[-2:]

        def at(cost: Callable[[Outcome], float], less: Outcome = less, more: Outcome = more) -> float:
            slope = (cost(more) - cost(less)) / (more.partitions - less.partitions)
            return cost(more) + slope * (partitions - more.partitions)

        seconds, cpu_seconds = at(lambda one: one.seconds), at(lambda one: one.driver_cpu_seconds)
        found.append(
            (step, f"{seconds:,.0f}", f"{cpu_seconds:,.0f}", f"{at(lambda one: one.driver_bytes) / MEGABYTE:,.0f}")
        )
    return found


def superlinear(outcomes: Sequence[Outcome]) -> list[str]:
    """Return a text for each step whose cost per partition grows with the number of partitions."""
    found = []
    for step in {outcome.step for outcome in outcomes}:
        sizes = sorted((outcome for outcome in outcomes if outcome.step == step), key=lambda one: one.partitions)
        for less, more in pairwise(sizes):
            times = more.partitions / less.partitions * MOST_GROWTH
            if more.driver_cpu_seconds > times * less.driver_cpu_seconds:
                found.append(
                    f"{step}: {less.driver_cpu_seconds:.1f} s to {more.driver_cpu_seconds:.1f} s of the driver"
                )
            if more.driver_bytes > times * less.driver_bytes:
                found.append(f"{step}: {less.driver_bytes:,} to {more.driver_bytes:,} bytes of the driver")
    return found


def main() -> None:
    """Check the disk, measure all sizes and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, action="append", help="number of partitions (default: all three)")
    parser.add_argument("--step", action="append", choices=STEPS, help="run only this step")
    parser.add_argument("--scratch", type=Path, default=Path(tempfile.gettempdir()), help="directory for all data")
    parser.add_argument("--results", type=Path, help="append the results here, one JSON object per line")
    parser.add_argument("--docs", action="store_true", help="write the table into benchmarks/results/scale.md")
    given = parser.parse_args()
    sizes = given.size or SIZES
    disk = os.statvfs(given.scratch)
    free_bytes, needed_bytes = disk.f_bavail * disk.f_frsize, max(sizes) * FREE_BYTES_A_PARTITION
    needed_inodes = max(sizes) * FREE_INODES_A_PARTITION
    if free_bytes < needed_bytes or disk.f_favail < needed_inodes:
        raise SystemExit(
            f"{given.scratch} has {free_bytes} bytes and {disk.f_favail} inodes free, and {needed_bytes} and "
            f"{needed_inodes} are needed; name another disk with --scratch, or a smaller --size"
        )
    outcomes = []
    with tempfile.TemporaryDirectory(dir=given.scratch, prefix="sediment-partitions-") as top:
        for partitions in sizes:
            outcomes += measure(Path(top), partitions, given.step or STEPS)
    if given.results:
        with given.results.open("a") as sink:
            sink.writelines(json.dumps(asdict(outcome)) + "\n" for outcome in outcomes)
    table = markdown_table(HEAD, rows(outcomes))
    print(table, machine(), sep="\n")
    found = superlinear(outcomes)
    assert not found, found
    if given.docs:
        command = " ".join(["python -m benchmarks.partitions", *sys.argv[1:]])
        more = markdown_table(PROJECTED_HEAD, projected(outcomes, PROJECTED))
        fill_page(
            PAGE,
            "partitions",
            f"Measured with `{command}` on {machine()}; one run each.\n\n{table}\n\nFor {PROJECTED:,} partitions, "
            f"calculated from the two largest sizes:\n\n{more}",
        )


if __name__ == "__main__":
    main()

"""Nightly copies: `sediment clone` of 20 GB, then `sediment clone --since` after one partition changed.

1. Generate 40 partitions of 500 MB, each with segments of 100 MB and an empty active segment.
2. Clone the directory: the first night.
3. Append one batch to one partition, and clone again with `--since`: the second night.
4. Check both clones against their manifests.

The figures are the kernel's counts of the bytes that all processes of a command read and write.  Before each command,
the files are dropped from the page cache, so bytes that a command reads through a memory mapping are counted as read
from the disk.  The counts include the programs of Python and Java: a few hundred megabytes are read by system calls,
and nothing from the disk.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import psutil

from benchmarks.generate import append_batch
from benchmarks.load import Load, loads, make
from benchmarks.measure import GIGABYTE, MEGABYTE, RESULTS, SLOTS, machine
from benchmarks.options import NOW_MS
from benchmarks.reporting.pages import fill_page, markdown_table

TOPIC_ID = "b8tRS7h4TJ2Vt43Dp85v2A"
_LOOK_SECONDS = 0.1
PAGE = RESULTS / "scale.md"
FREE_DISK = 2.2
"""Free disk space that a run needs, as a multiple of the directory's size."""
MOST_BYTES = GIGABYTE
"""Most bytes that the second night may read from the disk, and most bytes that it may write."""


@dataclass(frozen=True)
class Outcome:
    """Cost of one command; the bytes are the kernel's counts for all its processes."""

    night: str
    seconds: float
    unchanged: int
    cloned: int
    read_bytes: int
    disk_read_bytes: int
    written_bytes: int


def describe(load: Load, log_dir: Path) -> None:
    """Write the topic identifier and the checkpoints, as a broker does when it stops."""
    ends = []
    for number in range(load.partitions):
        partition = log_dir / f"load-{number}"
        (partition / "partition.metadata").write_text(f"version: 0\ntopic_id: {TOPIC_ID}")
        ends.append(f"load {number} {max(int(path.stem) for path in partition.glob('*.log'))}")
    for name in ("recovery-point", "replication"):
        content = "\n".join(["0", str(len(ends)), *ends, ""])
        (log_dir / f"{name}-offset-checkpoint").write_text(content)


def forget_cached(directory: Path) -> None:
    """Drop the files below a directory from the page cache."""
    os.sync()
    for path in directory.rglob("*"):
        if path.is_file():
            file = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(file)


class TreeCounts:
    """Sampler of the kernel's counts for a process and its descendants, ten times per second."""

    def __init__(self, process: psutil.Process) -> None:
        self._process = process
        self._counts: dict[int, Counter[str]] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, name="tree-counts", daemon=True)

    def __enter__(self) -> TreeCounts:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def total(self) -> Counter[str]:
        """Return the sums of all processes: rchar, read_bytes and wchar, see proc(5)."""
        return sum(self._counts.values(), Counter())

    def _look(self) -> None:
        while not self._ended.wait(_LOOK_SECONDS):
            with contextlib.suppress(psutil.NoSuchProcess):
                for process in (self._process, *self._process.children(recursive=True)):
                    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                        lines = Path(f"/proc/{process.pid}/io").read_text().splitlines()
                        self._counts[process.pid] = Counter(
                            {n: int(v) for n, v in (line.split(": ") for line in lines)}
                        )


def clone(night: str, source: Path, target: Path, *more: str) -> Outcome:
    """Run the command and check the clone against its manifest."""
    sediment = [sys.executable, "-m", "sediment.jobs.cli", "clone"]
    command = [*sediment, str(source), "--to", str(target), "--json", "--quiet", f"--master={SLOTS}", *more]
    forget_cached(source.parent)
    started = time.perf_counter()
    with tempfile.TemporaryFile() as document, subprocess.Popen(command, stdout=document) as process:
        with TreeCounts(psutil.Process(process.pid)) as counted:
            status = process.wait()
        seconds = time.perf_counter() - started
        document.seek(0)
        statuses = Counter(partition["status"] for partition in json.load(document)["partitions"])
    assert status == 0, night
    counts = counted.total()
    subprocess.run([*sediment, "--check", str(target), "--quiet", "--json"], stdout=subprocess.DEVNULL, check=True)
    return Outcome(
        night=night,
        seconds=seconds,
        unchanged=statuses["unchanged"],
        cloned=statuses["cloned"],
        read_bytes=counts["rchar"],
        disk_read_bytes=counts["read_bytes"],
        written_bytes=counts["wchar"],
    )


HEAD = (
    "clone",
    "seconds",
    "partitions unchanged",
    "changed",
    "MB read, with page cache",
    "MB read from disk",
    "MB written",
)


def rows(outcomes: list[Outcome]) -> list[tuple[str, ...]]:
    """Return one row per night."""
    return [
        (
            each.night,
            f"{each.seconds:.1f}",
            f"{each.unchanged}",
            f"{each.cloned}",
            f"{each.read_bytes / MEGABYTE:,.0f}",
            f"{each.disk_read_bytes / MEGABYTE:,.0f}",
            f"{each.written_bytes / MEGABYTE:,.0f}",
        )
        for each in outcomes
    ]


def directory(scale: float) -> Load:
    """Return the load of many partitions of 500 MB."""
    return next(load for load in loads(scale) if load.name == "directory")


def main() -> None:
    """Check the disk, run the steps and print the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="number of partitions, as a fraction of the default")
    parser.add_argument("--scratch", type=Path, default=Path(tempfile.gettempdir()), help="directory for all data")
    parser.add_argument("--results", type=Path, help="append the results here, one JSON object per line")
    parser.add_argument("--docs", action="store_true", help="write the table into benchmarks/results/scale.md")
    given = parser.parse_args()
    load = directory(given.scale)
    needed_bytes = int(FREE_DISK * load.partitions * load.shape.total_bytes)
    free_bytes = shutil.disk_usage(given.scratch).free
    if free_bytes < needed_bytes:
        raise SystemExit(
            f"{given.scratch} has {free_bytes / GIGABYTE:.1f} GB free, and {needed_bytes / GIGABYTE:.1f} GB are "
            "needed; name a larger disk with --scratch, or a smaller --scale"
        )
    with tempfile.TemporaryDirectory(dir=given.scratch, prefix="sediment-incremental-") as top:
        logs, *nights = (Path(top) / name for name in ("logs", "night-1", "night-2"))
        logs.mkdir()
        make(load, logs)
        describe(load, logs)
        time.sleep(3)  # a copy trusts the times of a file only if the file was left alone for two seconds
        outcomes = [clone("the first night", logs, nights[0])]
        append_batch(logs / "load-0", (b"%016d" % key for key in range(1000)), 1000, NOW_MS)
        outcomes.append(clone("the second night", logs, nights[1], "--since", str(nights[0])))
    if given.results:
        with given.results.open("a") as sink:
            sink.writelines(json.dumps(asdict(outcome)) + "\n" for outcome in outcomes)
    table = markdown_table(HEAD, rows(outcomes))
    print(table, machine(), sep="\n")
    second = outcomes[1]
    assert (second.cloned, second.unchanged) == (1, load.partitions - 1), second
    assert max(second.disk_read_bytes, second.written_bytes) < MOST_BYTES, second
    if given.docs:
        command = " ".join(["python -m benchmarks.incremental", *sys.argv[1:]])
        fill_page(PAGE, "incremental", f"Measured with `{command}` on {machine()}; one run.\n\n{table}")


if __name__ == "__main__":
    main()

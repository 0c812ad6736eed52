"""`compact` on standalone clusters of 1, 2, 4 and 8 workers with one core each, and with as many slots in the driver.

    large    8 partitions of 500 MB, each cleaned by one task
    small    2,000 partitions of 1 MB
    splits   one partition of 4 GB, cleaned in splits, which shuffle their keys

The master and the workers are processes of Spark's own; the driver runs in this process.  A first run on each cluster
is not counted.  Every run includes all syncs.  Workers beyond the number of cores share them, so their rows show the
cost of more tasks and executors, not more speed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import pyspark
from rich.console import Console
from rich.table import Table

from benchmarks.generate import GROWING, Shape, write_partition
from benchmarks.measure import GIGABYTE, MEGABYTE, RESULTS, Run, machine, run_compact, spread
from benchmarks.reporting.pages import fill_page, markdown_table
from sediment.compaction.strategy import Strategy
from sediment.jobs.spark.live_slots import read_slots
from sediment.jobs.spark.session import spark_context

PAGE = RESULTS / "scale.md"
MARK = "cluster"
SLOTS = (1, 2, 4, 8)
RECORD_BYTES, VALUE_BYTES, SEGMENT_BYTES = 116, 90, 100 * MEGABYTE
EXECUTOR_MEMORY = "1g"
_START_SECONDS = 60
_LOOK_SECONDS = 0.1
_DEPLOY = "org.apache.spark.deploy"
HEAD = ("data", "slots", "where", "tasks", "seconds", "CPU s", "driver, s", "CPU s of the driver", "shuffled, MB")


@dataclass(frozen=True)
class Data:
    """`partitions` logs of `log_bytes` each, and the strategy that cleans them."""

    title: str
    partitions: int
    log_bytes: int
    strategy: Strategy

    def make(self, log_dir: Path) -> None:
        """Generate the logs; one record in ten has a new key."""
        for number in range(self.partitions):
            keys = self.log_bytes // RECORD_BYTES // 10
            shape = Shape(self.log_bytes, keys=keys, value_bytes=VALUE_BYTES, population=GROWING, seed=number + 1)
            write_partition(log_dir / f"cluster-{number}", replace(shape, segment_bytes=SEGMENT_BYTES))


def all_data(scale: float) -> tuple[Data, ...]:
    """Return the data; `scale` reduces its bytes."""
    each, small, whole = int(GIGABYTE / 2 * scale), int(2000 * scale), int(4 * GIGABYTE * scale)
    return (
        Data(f"8 × {each // MEGABYTE} MB", 8, each, Strategy.WHOLE),
        Data(f"{small:,} × 1 MB", small, MEGABYTE, Strategy.WHOLE),
        Data(f"{whole / GIGABYTE:g} GB in splits", 1, whole, Strategy.SPLIT),
    )


@contextmanager
def cluster(workers: int, scratch: Path) -> Iterator[str]:
    """Yield the URL of a standalone cluster of `workers` workers with one core each; stop it at the end.

    Raises:
        RuntimeError: the cluster does not start within a minute.
    """
    port = _free_port()
    url = f"spark://127.0.0.1:{port}"
    master = [f"{_DEPLOY}.master.Master", "--host", "127.0.0.1", "--port", str(port)]
    worker = [f"{_DEPLOY}.worker.Worker", "--host", "127.0.0.1", "--cores", "1", "--memory", EXECUTOR_MEMORY]
    logs = [scratch / f"process-{number}.log" for number in range(workers + 1)]
    with contextlib.ExitStack() as stack:
        stack.enter_context(_process(master, logs[0]))
        _wait_for("I have been elected leader", logs[:1])
        for log in logs[1:]:
            stack.enter_context(_process([*worker, "--work-dir", str(scratch / log.stem), url], log))
        _wait_for("Successfully registered with master", logs[1:])
        yield url


@contextmanager
def _process(command: Sequence[str], log: Path) -> Iterator[None]:
    home = Path(pyspark.__file__).parent
    ports = ["--webui-port", str(_free_port())]
    main, *options = command
    with (
        log.open("w") as sink,
        subprocess.Popen(
            [home / "bin" / "spark-class", main, *ports, *options], cwd=log.parent, stdout=sink, stderr=sink
        ) as started,
    ):
        try:
            yield
        finally:
            started.terminate()


def _wait_for(text: str, logs: Sequence[Path]) -> None:
    ends = time.monotonic() + _START_SECONDS
    while not all(text in log.read_text() for log in logs):
        if time.monotonic() > ends:
            raise RuntimeError(f"the cluster does not start: {logs[0].read_text()}")
        time.sleep(_LOOK_SECONDS)


def _free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


def _settings(_given: Mapping[str, str]) -> Mapping[str, str]:
    return {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.python.daemon.module": "sediment.jobs.spark.worker_daemon",
    }


@contextmanager
def on_cluster(workers: int, scratch: Path) -> Iterator[Any]:
    """Yield a SparkContext on a cluster of `workers`, all of which have registered.

    Raises:
        RuntimeError: the cluster does not start.
    """
    with (
        tempfile.TemporaryDirectory(dir=scratch) as folder,
        cluster(workers, Path(folder)) as url,
        spark_context(url, "sediment cluster benchmark", _settings) as sc,
    ):
        while read_slots(sc).executors < workers:
            time.sleep(_LOOK_SECONDS)
        yield sc


def measure(data: Data, sc: Any, rounds: int, scratch: Path) -> list[Run]:
    """Return the runs of `compact` in `sc`; the first run is not counted."""
    sets = [f"segment.bytes={SEGMENT_BYTES}", "min.compaction.lag.ms=0"]
    return [run_compact(sc, scratch / "logs", data.strategy, sets) for _ in range(rounds + 1)][1:]


def row(data: Data, slots: int, where: str, runs: Sequence[Run]) -> tuple[str, ...]:
    """Return the row of one place."""
    return (
        data.title,
        str(slots),
        where,
        f"{statistics.median(run.tasks for run in runs):.0f}",
        spread([run.seconds for run in runs]),
        f"{statistics.median(run.cpu_seconds for run in runs):.1f}",
        f"{statistics.median(run.driver_seconds for run in runs):.2f}",
        f"{statistics.median(run.driver_cpu_seconds for run in runs):.2f}",
        f"{statistics.median(run.shuffled_bytes for run in runs) / MEGABYTE:,.0f}",
    )


def main() -> None:
    """Measure all clusters, print the table, and write it into the page if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="fraction of the data")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--docs", action="store_true", help=f"write the table into {PAGE.name}")
    parser.add_argument("--scratch", type=Path, help="directory for the data (default: $TMPDIR)")
    given = parser.parse_args()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    rows = []
    for data in all_data(given.scale):
        with tempfile.TemporaryDirectory(prefix="sediment-cluster-", dir=given.scratch) as name:
            scratch = Path(name)
            data.make(scratch / "logs")
            for slots in SLOTS:
                places = {
                    "the driver": spark_context(f"local[{slots}]", "sediment cluster benchmark", _settings),
                    "a cluster": on_cluster(slots, scratch),
                }
                for where, place in places.items():
                    with place as sc:
                        rows.append(row(data, slots, where, measure(data, sc, given.rounds, scratch)))
                    print(" | ".join(rows[-1]), file=sys.stderr, flush=True)
    table = Table(*HEAD)
    for each in rows:
        table.add_row(*each)
    Console().print(table)
    if given.docs:
        about = f"Measured with `python -m benchmarks.cluster --docs` on {machine()}; medians of {given.rounds} runs."
        fill_page(PAGE, MARK, f"{about}\n\n{markdown_table(HEAD, rows)}")


if __name__ == "__main__":
    main()

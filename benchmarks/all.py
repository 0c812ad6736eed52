"""All benchmarks of `benchmarks/results/performance.md`, one after the other, from one tree, for the page.

    race        compact compared with Kafka's cleaner      marks race, stages
    serve       serve compared with a broker               mark serve
    commands    other commands, peers and limits           mark commands

The page is written only after all benchmarks have run, so all its rows come from one tree.  The run first checks that
the disk has enough free space.  `--quick` measures little data, and leaves the page as it is.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.measure import GIGABYTE, machine
from benchmarks.race import PAGE
from benchmarks.reporting.comparisons import Comparisons, fill_page_of_commands
from benchmarks.reporting.pages import fill_page
from benchmarks.reporting.race_results import Results, fill_page_of_race
from benchmarks.reporting.serve_results import BAR_MISSED, ServeResults, fill_page_of_serve
from benchmarks.reporting.speed_chart import draw

FREE_BYTES = 16 * GIGABYTE
_QUICK_FREE_BYTES = GIGABYTE
_ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Step:
    """Benchmark that runs in a separate process, and writes its results to `results`."""

    module: str
    results: Path
    arguments: tuple[str, ...] = ()

    def command(self, scratch: Path) -> list[str]:
        """Return the command line."""
        options = ("--results", str(self.results), "--scratch", str(scratch), *self.arguments)
        return [sys.executable, "-m", self.module, *options]


def steps(folder: Path, *, is_quick: bool) -> tuple[Step, ...]:
    """Return the benchmarks of the page; their results go to files in `folder`."""
    race = ("--quick", "--scale", "0.02", "--rounds", "1", "--course", "one") if is_quick else ()
    serve = ("--mb", "20", "--rounds", "1", "--fetch-gb", "0.02", "--fetches", "5") if is_quick else ()
    return (
        Step("benchmarks.race", folder / "race.json", race),
        Step("benchmarks.serve", folder / "serve.json", serve),
        Step("benchmarks.commands", folder / "commands.json", ("--quick",) if is_quick else ()),
    )


def check_free(scratch: Path, needed_bytes: int) -> None:
    """Check that the filesystem of `scratch` has `needed_bytes` free.

    Raises:
        SystemExit: it has less.
    """
    free_bytes = shutil.disk_usage(scratch).free
    if free_bytes < needed_bytes:
        raise SystemExit(
            f"{scratch} has {free_bytes / GIGABYTE:.1f} GB free and the benchmarks need "
            f"{needed_bytes / GIGABYTE:.0f} GB; name another directory with --scratch"
        )


def run(found: Sequence[Step], scratch: Path) -> None:
    """Run the steps.  A benchmark may miss a bar, but it must have measured everything.

    Raises:
        SystemExit: a step failed, or has no results.
    """
    for step in found:
        started = time.perf_counter()
        status = subprocess.run(step.command(scratch), cwd=_ROOT, check=False).returncode
        if status not in (0, BAR_MISSED) or not step.results.exists():
            raise SystemExit(f"{step.module} ended with status {status} without all results; the page is unchanged")
        print(f"{step.module}: {(time.perf_counter() - started) / 60:.1f} minutes", file=sys.stderr, flush=True)


def write_page(page: Path, folder: Path, tree: str) -> None:
    """Write the tables from the results in `folder`, and the tree from which they come."""
    fill_page_of_race(page, Results.read(folder / "race.json"))
    fill_page_of_serve(page, ServeResults.read(folder / "serve.json"))
    fill_page_of_commands(page, Comparisons.read(folder / "commands.json"))
    told = (
        "`make bench-all` measured the tables of `compact`, its stages, `serve` and the other commands one after the "
        f"other, at {tree}, on {machine()}."
    )
    fill_page(page, "tree", told)


def _tree() -> str:
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    described = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False).stdout.strip()
    return f"commit {described}" if described else "one tree"


def main() -> None:
    """Run all benchmarks and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="measure little data, and leave the page as it is")
    parser.add_argument("--scratch", type=Path, help="directory for the data (default: $TMPDIR)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sediment-bench-", dir=given.scratch) as name:
        scratch = Path(name)
        check_free(scratch, _QUICK_FREE_BYTES if given.quick else FREE_BYTES)
        results = scratch / "results"
        results.mkdir()
        tree = _tree()
        run(steps(results, is_quick=given.quick), scratch)
        if not given.quick:
            write_page(PAGE, results, tree)
            draw()


if __name__ == "__main__":
    main()

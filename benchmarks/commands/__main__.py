"""The benchmarks of single commands: run them one after the other, and print one table.

`--quick` measures little data once: a smoke test of the benchmarks, not of the speed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from rich.console import Console

from benchmarks.measure import machine
from benchmarks.reporting.comparisons import Comparison, Comparisons, fill_page_of_commands, terminal_table

PAGE = Path(__file__).resolve().parents[1] / "results" / "performance.md"
RESULTS = Path(__file__).resolve().parents[1] / "results" / "commands.json"
SUBJECTS = ("driver", "verify", "snapshot", "archive", "scan", "recovery")
_TABLE_WIDTH = 200


def compare(subject: str, scratch: Path, *, is_quick: bool) -> Iterator[Comparison]:
    """Yield the comparisons of one benchmark, the module `subject` of this package."""
    yield from import_module(f"benchmarks.commands.{subject}").compare(scratch, is_quick=is_quick)


def main() -> None:
    """Run the benchmarks and print the table, or write earlier results into the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=SUBJECTS, help="run only this benchmark")
    parser.add_argument("--quick", action="store_true", help="measure little data, once")
    parser.add_argument("--scratch", type=Path, help="directory for the data (default: $TMPDIR)")
    parser.add_argument("--results", type=Path, help="file for the results, which keeps those of earlier runs")
    parser.add_argument("--report", action="store_true", help=f"write the results into {PAGE.name} without a new run")
    given = parser.parse_args()
    if given.report:
        fill_page_of_commands(PAGE, Comparisons.read(given.results or RESULTS))
        return
    kept = Comparisons() if given.results is None else Comparisons.read(given.results)
    kept.machine = {"machine": machine()}
    found = []
    for subject in given.only or SUBJECTS:
        with tempfile.TemporaryDirectory(dir=given.scratch, prefix=f"sediment-{subject}-") as scratch:
            for comparison in compare(subject, Path(scratch), is_quick=given.quick):
                found.append(comparison)
                kept.add(comparison)
                if given.results is not None:
                    kept.write(given.results)
                print(f"{comparison.name}: {comparison.ratio():.2f}", file=sys.stderr, flush=True)
    Console(width=_TABLE_WIDTH).print(terminal_table(found))


if __name__ == "__main__":
    main()

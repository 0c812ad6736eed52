"""Tables of what the long suites saw, on pages of docs/ and in the README.

A suite has one test for each row, and records what the test saw in a file of tests/data/support.  The tables on the
pages are generated from these files; a test in tests/project holds them equal.

    .venv/bin/python -m tests.support_tables     # write the pages anew

To add a table, add it to TABLES, add its marks to the page, and call `record` at the end of each test.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.reporting.pages import filled

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "tests" / "data" / "support"

PASSED, FAILED = "passed", "failed"


@dataclass(frozen=True, slots=True)
class Row:
    """What a test tried, as the text of each column, and what it saw: PASSED, FAILED, or a sentence."""

    name: str
    tried: Mapping[str, str]
    seen: str = PASSED
    on: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """The table that stands between the marks `name` on `page`; its rows are in the file of this name."""

    name: str
    page: Path

    @property
    def file(self) -> Path:
        return FOLDER / f"{self.name}.json"

    def rows(self) -> list[Row]:
        return [Row(**fields) for fields in json.loads(self.file.read_text())] if self.file.exists() else []

    def text(self) -> str:
        rows = self.rows()
        head = [*dict.fromkeys(column for row in rows for column in row.tried), "seen", "on"]
        cells = [[*(row.tried.get(column, "") for column in head[:-2]), row.seen, row.on] for row in rows]
        return _markdown(head, cells)

    def tested(self, column: str) -> list[str]:
        """Return the different texts that `column` has in rows that passed."""
        return list(
            dict.fromkeys(row.tried[column] for row in self.rows() if row.seen == PASSED and column in row.tried)
        )


_COMPATIBILITY = ROOT / "docs" / "reference" / "compatibility.md"
PLATFORMS = Table("platforms", _COMPATIBILITY)
VERSIONS = Table("versions", _COMPATIBILITY)
TABLES: Sequence[Table] = (PLATFORMS, VERSIONS)


# ------------------------------------------------------------------------------------------------------------ recording
def record(table: Table, row: Row, names: Sequence[str]) -> None:
    """Write `row` into the table's file, and the page anew.

    `names` are those of all tests of the suite in their order, which is that of the table; a row of any other name is
    removed.  What this machine could not run does not replace what another machine has seen (`could_not_run`).
    """
    rows = {old.name: old for old in table.rows()}
    rows[row.name] = Row(row.name, dict(row.tried), row.seen, row.on or datetime.date.today().isoformat())
    _write(table, [rows[name] for name in names if name in rows])


def could_not_run(table: Table, row: Row, names: Sequence[str]) -> None:
    """Record that this machine lacks what `row` needs, as `row.seen` says, unless a machine that has it ran the row."""
    if row.name not in {old.name for old in table.rows() if old.seen in (PASSED, FAILED)}:
        record(table, row, names)


def _write(table: Table, rows: Sequence[Row]) -> None:
    table.file.parent.mkdir(exist_ok=True)
    table.file.write_text(json.dumps([asdict(row) for row in rows], indent=1, ensure_ascii=False) + "\n")
    write_pages()


# ---------------------------------------------------------------------------------------------------------------- pages
def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *rows))


def releases(versions: Sequence[str], parts: int) -> str:
    """Return the first `parts` numbers of each version once, in ascending order: "3.11, 3.12"."""
    found = {tuple(map(int, version.split(".")[:parts])) for version in versions}
    return ", ".join(".".join(map(str, numbers)) for numbers in sorted(found))


def summary() -> str:
    """Return the table of the README."""
    python, java = releases(PLATFORMS.tested("Python"), 2), releases(PLATFORMS.tested("Java"), 1)
    spark = releases(PLATFORMS.tested("Spark"), 2)
    lines = (
        (
            "Python, Java",
            f"Python {python}; Java {java} ([which together](docs/reference/compatibility.md#tested-platforms))",
        ),
        ("Spark", f"{spark}; {_SPARK}"),
        ("Kafka", f"directories of Kafka {releases([*VERSIONS.tested('Kafka'), _REFERENCE], 2)}{_KAFKA}"),
        ("operating system", _SYSTEM),
    )
    return _markdown(["", "tested"], lines)


_SPARK = "no `kafka-log` on 3.5. Locally, on a standalone cluster and on YARN; Kubernetes is documented but not tested"
_REFERENCE = "4.2.0"
_KAFKA = (
    " ([what was done with each](docs/reference/compatibility.md#tested-versions-of-kafka)); message formats 0, 1 and "
    "2; codecs none, gzip, snappy, lz4, zstd"
)
_SYSTEM = "Linux on x86-64; network filesystems require `--allow-network-fs`"

BLOCKS = (*((table.page, table.name, table.text) for table in TABLES), (ROOT / "README.md", "supported", summary))
"""Each page, the mark of a table on it, and what makes the table."""


def write_pages() -> None:
    for page, mark, text in BLOCKS:
        page.write_text(filled(page, mark, text()))


if __name__ == "__main__":
    write_pages()

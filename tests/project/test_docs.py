"""README and docs: commands parse, options exist and are documented, links resolve, lines and tables fit.

Invariant: nothing is run; what the commands print is shown as it was printed once.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import click
import pytest

from sediment.compaction.cleanable_range import BlockingRule
from sediment.jobs import setup
from sediment.jobs.cli import COMMANDS, main
from sediment.jobs.cloning.check import CheckedCopyPartition
from sediment.jobs.cloning.report import PartitionCloneReport
from sediment.jobs.command_line.shared_options import FOR_ALL_COMMANDS
from sediment.jobs.erasing.check_evidence import CheckedPartition
from sediment.jobs.erasing.report import EraseReport
from sediment.jobs.expiring.report import ExpiryReport
from sediment.jobs.originals import OriginalsReport
from sediment.jobs.planning.report import PartitionPlan
from sediment.jobs.recovering.report import RecoveryReport
from sediment.jobs.reporting.run_report import PartitionReport
from sediment.jobs.restoring.report import RestoreReport
from sediment.jobs.snapshotting.report import PartitionSnapshot
from sediment.jobs.vacuum import VacuumReport
from sediment.verification.report import PairReport

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))
PAGE_NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
# Kafka's own rules are notes with a test of their own, and the architecture's layout is a tree of files.
PROSE = tuple(page for page in PAGES if "kafka-log" not in page.parts and page.name != "architecture.md")
PROSE_NAMES = [str(page.relative_to(ROOT)) for page in PROSE]

OF_EVERY_COMMAND = {"--help", "--settings", "--verbose", "--version"}
MAX_COLUMNS = 120
MAX_README_LINES = 120

_FOLDERS = (
    *("sediment/", "segment_io/", "compaction/", "retention/", "engine/", "jobs/"),
    *("tests/", "conf/", "benchmarks/", "docs/"),
)
_FENCE = re.compile(r"^[ ]*```(\w*)\n(.*?)^[ ]*```", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_TARGET = re.compile(r"^([a-z][a-z0-9-]*):", re.MULTILINE)
_CELL_END = re.compile(r"(?<!\\)\|")
_SHELL = re.compile(r"\s(?:&&|\|\|?|>>?|<|;|#)\s")
_SUBMITTED = re.compile(r"jobs/(\w+)\.py$")
_PLACEHOLDER = re.compile(r"<[^<>]+>")
_NOT_IN_THE_JSON = {"keeps_tombstones"}
_PLACEHOLDER_NUMBER = re.compile(r"N|M|MS")
_GENERATED = re.compile(r"^<!-- (\w+) -->\n.*?^<!-- /\1 -->$", re.MULTILINE | re.DOTALL)
# Links and paths of files, which another file's move may lengthen.
_UNWRAPPED = re.compile(r"\]\([^)\s]+\)|`(?:\w+/)+\w+\.\w+")


def _without_fences(text: str) -> str:
    return _FENCE.sub("", text)


def _shown_lines(text: str) -> Iterator[str]:
    """Lines of fenced blocks as a shell would see them, without a prompt."""
    for language, block in _FENCE.findall(text):
        if language in ("", "sh", "bash", "console"):
            for line in block.replace("\\\n", " ").splitlines():
                yield from (part.strip() for part in line.strip().removeprefix("$ ").split("&&"))


def _arguments(line: str) -> tuple[str, list[str]] | None:
    """Name of the command and its arguments, None where the line calls none of ours."""
    plain = _PLACEHOLDER.sub("PLACEHOLDER", line.replace("\\|", "|"))
    words = shlex.split(_SHELL.split(plain + " ")[0], comments=True)
    if words[:1] == ["sediment"] and len(words) > 1 and words[1] not in ("NAME", "…"):
        return words[1], words[2:]
    if words and words[0].rpartition("/")[2] == "spark-submit":
        for place, word in enumerate(words):
            found = _SUBMITTED.search(word)
            if found and found[1] == "cli":
                return words[place + 1], words[place + 2 :]
            if found:
                return found[1], words[place + 1 :]
    return None


def _command(name: str) -> click.Command:
    command: click.Command | None = main
    for word in name.split():
        assert isinstance(command, click.Group)
        command = command.get_command(click.Context(command), word)
        assert command is not None, f"there is no command {name}"
    return command


def _calls(page: Path) -> tuple[list[tuple[str, list[str]]], list[tuple[str, list[str]]]]:
    """What the page calls in blocks, and what it mentions in its text."""
    text = page.read_text()
    shown = [_arguments(line) for line in _shown_lines(text) if line.startswith("sediment ") or "spark-submit" in line]
    inline = [span for span in _INLINE.findall(_without_fences(text)) if span.startswith("sediment ")]
    mentioned = [_arguments(span) for span in inline]
    return [call for call in shown if call], [call for call in mentioned if call]


def _slug(heading: str) -> str:
    """Return the anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=PAGE_NAMES)
def test_every_command_that_is_shown_parses(page: Path) -> None:
    for name, arguments in _calls(page)[0]:
        given = [
            re.sub(_PLACEHOLDER_NUMBER, "1", word) if _PLACEHOLDER_NUMBER.fullmatch(word) else word
            for word in arguments
        ]
        try:
            _command(name).make_context(name, given)
        except click.ClickException as error:
            pytest.fail(f"{page.name}: sediment {name} {shlex.join(arguments)}: {error.format_message()}")


@pytest.mark.parametrize("page", PAGES, ids=PAGE_NAMES)
def test_every_command_that_is_mentioned_exists_with_its_options(page: Path) -> None:
    for name, arguments in _calls(page)[1]:
        known = {
            option for parameter in _command(name).params for option in (*parameter.opts, *parameter.secondary_opts)
        }
        assert {word.partition("=")[0] for word in arguments if word.startswith("--")} <= {*known, *OF_EVERY_COMMAND}


def test_the_page_of_commands_tells_every_command_and_option() -> None:
    text = (ROOT / "docs" / "reference" / "commands.md").read_text()
    told = " ".join(_INLINE.findall(text))
    for name in (*COMMANDS, *(f"setup {name}" for name in setup.COMMANDS)):
        assert re.search(rf"(?<![\w-]){name}(?![\w-])", told), name
        for parameter in _command(name).params:
            if isinstance(parameter, click.Option):
                for option in (*parameter.opts, *parameter.secondary_opts):
                    assert re.search(rf"(?<![\w-]){option}(?![\w-])", told), f"{name} {option}"


def test_every_option_that_the_page_of_commands_tells_exists() -> None:
    text = (ROOT / "docs" / "reference" / "commands.md").read_text()
    known = {
        option
        for name in COMMANDS
        for parameter in _command(name).params
        for option in (*parameter.opts, *parameter.secondary_opts)
    }
    ours = [span for span in _INLINE.findall(text) if not span.startswith("kafka-")]  # Kafka's tools have their own
    told = {option for span in ours for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*", span)}
    assert told <= {*known, *OF_EVERY_COMMAND}


def test_the_page_of_commands_tells_the_options_that_can_be_set_for_all_commands() -> None:
    text = (ROOT / "docs" / "reference" / "commands.md").read_text()
    listed = text.partition("Only these keys are allowed at the top:")[2].partition(".\n")[0]
    assert set(_INLINE.findall(listed)) == FOR_ALL_COMMANDS


@pytest.mark.parametrize(
    ("page", "report"),
    [
        ("reference/commands.md", PartitionReport),
        ("reference/commands.md", EraseReport),
        ("reference/commands.md", CheckedPartition),
        ("reference/commands.md", CheckedCopyPartition),
        ("reference/commands.md", ExpiryReport),
        ("reference/commands.md", PairReport),
        ("reference/commands.md", RecoveryReport),
        ("reference/commands.md", PartitionSnapshot),
        ("reference/commands.md", PartitionCloneReport),
        ("reference/commands.md", OriginalsReport),
        ("reference/commands.md", RestoreReport),
        ("reference/commands.md", VacuumReport),
        ("reference/plan.md", PartitionPlan),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_every_field_of_the_json_is_told(page: str, report: type) -> None:
    told = set(re.findall(r"\w+", " ".join(_INLINE.findall((ROOT / "docs" / page).read_text()))))
    assert {field.name for field in fields(report)} - _NOT_IN_THE_JSON <= told


def test_every_rule_that_blocks_is_told_with_what_to_do() -> None:
    told = set(_INLINE.findall((ROOT / "docs" / "operate" / "troubleshooting.md").read_text()))
    assert {rule.value for rule in BlockingRule} <= told


def _texts_of_the_code() -> str:
    """Every string in the package, one per line; a value inside of an f-string is a null character."""
    found = []
    for folder, _, names in os.walk(ROOT / "sediment", followlinks=True):
        for name in names:
            if name.endswith(".py"):
                for node in ast.walk(ast.parse((Path(folder) / name).read_text())):
                    if isinstance(node, ast.Constant) and isinstance(node.value, str):
                        found.append(node.value)
                    elif isinstance(node, ast.JoinedStr):
                        parts = (part.value if isinstance(part, ast.Constant) else "\0" for part in node.values)
                        found.append("".join(map(str, parts)))
    return "\n".join(found)


def _is_in(texts: str, quoted: str) -> bool:
    """Return True if the longest piece of `quoted` without values has four words in a row in `texts`, or all."""
    pieces = re.split(r"…|; |\(.*?\)|'[^']*'|\S*[a-z][._]\S*|--\S+|\b(?:\d+|N|M|DIR)\b", quoted)
    words = max(pieces, key=len).split()
    count = min(4, len(words))
    return any(" ".join(words[first : first + count]) in texts for first in range(len(words) - count + 1))


def test_every_message_that_troubleshooting_quotes_is_in_the_code() -> None:
    rows = (ROOT / "docs" / "operate" / "troubleshooting.md").read_text().splitlines()
    quoted = [span for row in rows if row.startswith("| `") for span in _INLINE.findall(row.split(" | ")[0])]
    messages = [span for span in quoted if " " in span]
    texts = _texts_of_the_code()
    assert len(messages) > 50
    assert [message for message in messages if not _is_in(texts, message)] == []
    assert not _is_in(texts, "a message that no command prints")


@pytest.mark.parametrize("page", PAGES, ids=PAGE_NAMES)
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    for link in _LINK.findall(_without_fences(page.read_text())):
        if "://" not in link:
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            assert target.exists(), f"{page.name}: {link}"
            if anchor and target.suffix == ".md":
                anchors = {_slug(heading) for heading in _HEADING.findall(_without_fences(target.read_text()))}
                assert anchor in anchors, f"{page.name}: {link}"


@pytest.mark.parametrize("page", PAGES, ids=PAGE_NAMES)
def test_every_test_and_source_file_that_is_named_exists(page: Path) -> None:
    for span in _INLINE.findall(_without_fences(page.read_text())):
        path, _, test = span.partition("::")
        if re.fullmatch(r"(?:[a-z_]+/)+\w+\.(?:py|md|sh|properties)", path) and path.startswith(_FOLDERS):
            assert (ROOT / path).is_file(), f"{page.name}: {span}"
            assert not test or f"def {test}(" in (ROOT / path).read_text(), f"{page.name}: {span}"


def test_every_wanted_difference_from_kafka_has_a_test() -> None:
    page = (ROOT / "docs" / "reference" / "differences.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| ") and line.split()[1] not in ("Situation", "---")]
    assert len(rows) > 40
    for row in rows:
        path, _, test = _INLINE.findall(row.strip().strip("|").split(" | ")[-1])[0].partition("::")
        assert test and re.search(rf"^def {test}\(", (ROOT / path).read_text(), re.MULTILINE), row


@pytest.mark.parametrize("page", PAGES, ids=PAGE_NAMES)
def test_every_make_target_that_is_named_exists(page: Path) -> None:
    text = page.read_text()
    targets = set(_TARGET.findall((ROOT / "Makefile").read_text()))
    lines = [line for line in _shown_lines(text) if line.startswith("make ")]
    spans = [span for span in _INLINE.findall(_without_fences(text)) if span.startswith("make ")]
    named = {word for line in [*lines, *spans] for word in line.split("#")[0].split()[1:2]}
    assert named <= targets


def test_every_page_is_on_the_map() -> None:
    docs = ROOT / "docs"
    listed = set(_LINK.findall((docs / "README.md").read_text()))
    pages = {str(page.relative_to(docs)) for page in docs.rglob("*.md") if "kafka-log" not in page.parts}
    assert pages - {"README.md"} <= listed


def _too_wide(text: str) -> list[str]:
    lines = _GENERATED.sub("", _without_fences(text)).splitlines()
    return [
        line for line in lines if len(line) > MAX_COLUMNS and not line.startswith("|") and not _UNWRAPPED.search(line)
    ]


@pytest.mark.parametrize("page", PROSE, ids=PROSE_NAMES)
def test_lines_fit_the_page(page: Path) -> None:
    assert _too_wide(page.read_text()) == []


def cells_of(row: str) -> int:
    return len(_CELL_END.findall(row)) - 1


@pytest.mark.parametrize("page", PAGES, ids=PAGE_NAMES)
def test_every_row_of_a_table_has_the_cells_of_its_head(page: Path) -> None:
    tables = re.findall(r"(?:^\|.*\n)+", _FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    rows = [table.splitlines() for table in tables]
    assert [row for head, *below in rows for row in below if cells_of(row) != cells_of(head)] == []


def test_the_readme_fits_a_short_read() -> None:
    assert len(PAGES[0].read_text().splitlines()) <= MAX_README_LINES

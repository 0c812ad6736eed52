"""Citations of the format pages, of the architecture's rules and of headings in docs; each must resolve.

    kafka-log 05 §2, §7.1          headings of docs/internals/kafka-log/05-*.md
    kafka-log 04 §11 to §14        every heading from one to the other
    05 §3 step 2                   an item of the numbered list under the heading
    07 D, 07 AP-25, RC-08          a section or a scenario of page 07
    architecture rule 4            a numbered rule of docs/internals/architecture.md
    docs/reference/commands.md, Settings      a heading of that page

A section without a page belongs to the page before it in the list, else to the first page that the file cites.

Invariant: the files are those that git knows, or without git those of the tree; no link is followed.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
INTERNALS = ROOT / "docs" / "internals"
LOG_PAGES = INTERNALS / "kafka-log"

_SKIPPED = {"build", "dist"}
_NUMBER = r"\d+(?:\.\d+)*"
_AREAS = "BF|IX|CP|CM|RT|AP|RD|TR|RC|PS|LM"

_TOKEN = re.compile(
    rf"""
    (?P<named>kafka-log\s+(?P<named_page>0\d)\b)
    | (?P<bare>(?<![\w.:-])(?P<bare_page>0[1-9])(?=\s+(?:§|(?:{_AREAS})-\d\d\b)|(?<=07)\s+[A-Z]\b(?!-)))
    | §(?P<first>{_NUMBER})(?:\s*(?:-|–|to)\s*§(?P<last>{_NUMBER})|–(?P<dashed>{_NUMBER}))?
      (?:\s+steps?\s+(?P<step>\d+)(?P<letter>[a-f]?\b)(?:\s+to\s+(?P<last_step>\d+))?)?
    | (?P<scenario>\b(?:{_AREAS})-\d\d\b)
    | architecture\s+rules?\s+(?P<rule>\d+)
    | (?P<doc>(?<![\w./-])[\w./-]*\w\.md),\s+(?P<heading>[^\n]*)
    """,
    re.VERBOSE,
)
_GROUPS = re.compile(r"\s+([A-Z])\b(?!-)((?:,\s[A-Z]\b(?!-))*)")  # after "07": sections of the scenarios
_CONTINUED = re.compile(r"\s*(?:\([^()]*\))?[,;]?\s*(?:and|to)?\s*")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_SECTION = re.compile(rf"^#{{2,4}} ({_NUMBER}|[A-Z])\.? (?=\S)", re.MULTILINE)
_ITEM = re.compile(r"^ *(\d+)\. ", re.MULTILINE)
_LETTER = re.compile(r"^ +\* ([a-f])\. ", re.MULTILINE)


@dataclass
class Page:
    """Headings of a page by number or letter, with the steps of their lists and the scenarios of the page."""

    steps: dict[str, set[str]] = field(default_factory=dict)
    scenarios: set[str] = field(default_factory=set)


def _parse_page(text: str) -> Page:
    found = list(_SECTION.finditer(text))
    page = Page(scenarios=set(re.findall(r"^\* \*\*([A-Z]{2}-\d\d)\*\* ", text, re.MULTILINE)))
    for match, following in zip(found, [*found[1:], None], strict=True):
        body = text[match.end() : following.start() if following else len(text)]
        page.steps[match[1]] = {*_ITEM.findall(body), *_LETTER.findall(body)}
    return page


@cache
def log_pages() -> Mapping[str, Page]:
    return {path.name[:2]: _parse_page(path.read_text()) for path in LOG_PAGES.glob("0*.md")}


@cache
def rules() -> frozenset[str]:
    text = (INTERNALS / "architecture.md").read_text().partition("\n## Rules\n")[2].partition("\n## ")[0]
    return frozenset(re.findall(r"^(\d+)\. \*\*", text, re.MULTILINE))


@cache
def headings(name: str) -> tuple[str, ...] | None:
    """Return the headings of a page of docs, None if it does not exist."""
    path = ROOT / name
    if not path.is_file() and not (ROOT / "docs" / "reference").is_dir():
        path = next((ROOT / "docs").rglob(path.name), path)
    return tuple(_HEADING.findall(path.read_text())) if path.is_file() else None


def _sections_between(first: str, last: str | None) -> Iterator[str]:
    """Yield every section of a range, or its two ends if they are of different levels or parents."""
    yield first
    if last is not None:
        parent, _, low = first.rpartition(".")
        last_parent, _, high = last.rpartition(".")
        if parent == last_parent:
            yield from (f"{parent}.{number}" if parent else str(number) for number in range(int(low) + 1, int(high)))
        yield last


def _joined(text: str) -> str:
    """Return the text with wrapped lines joined, at the same positions."""
    return re.sub(r"\n[ \t]*(?:#[ \t]+|>[ \t]+)?(?=[^\s#|*`])", lambda found: " " * len(found[0]), text)


def problems_in(text: str, own_page: str | None = None) -> list[str]:
    """Return the citations that do not resolve, as `line: problem`.

    `own_page` is the number of a page that cites its own sections.
    """
    joined = _joined(text)
    pages = log_pages()
    first = next((page for found in _TOKEN.finditer(joined) if (page := found["named_page"] or found["bare_page"])), "")
    default = own_page or first
    problems = []
    page, end = "", -1

    def report(found: re.Match[str], what: str) -> None:
        line = text.count("\n", 0, found.start()) + 1
        problems.append(f"{line}: {what} in {' '.join(found[0].split())!r}")

    for found in _TOKEN.finditer(joined):
        if found["named"] or found["bare"]:
            page, end = found["named_page"] or found["bare_page"], found.end()
            if page not in pages:
                report(found, f"no page {page}")
            if page == "07" and (groups := _GROUPS.match(joined, end)):
                end = groups.end()
                for group in re.findall("[A-Z]", groups[0]):
                    if group not in pages["07"].steps:
                        report(found, f"no section {group} on page 07")
        elif found["first"]:
            if end < 0 or not _CONTINUED.fullmatch(joined, end, found.start()):
                page = default
            end = found.end()
            if not page:
                report(found, "no page is named")
                continue
            steps = pages[page].steps if page in pages else {}
            for section in _sections_between(found["first"], found["last"] or found["dashed"]):
                if section not in steps:
                    report(found, f"no §{section} on page {page}")
            for step in (found["step"], found["letter"], found["last_step"]):
                if step and step not in steps.get(found["last"] or found["first"], set()):
                    report(found, f"no step {step} under §{found['first']} of page {page}")
        elif found["scenario"]:
            if found["scenario"] not in pages["07"].scenarios:
                report(found, "no such scenario")
        elif found["rule"]:
            if found["rule"] not in rules():
                report(found, "no such rule")
        elif found["doc"]:
            known = headings(found["doc"])
            if known is None:
                report(found, "no such page")
            elif not any(re.match(rf"{re.escape(one)}(?!\w)", found["heading"], re.IGNORECASE) for one in known):
                report(found, "no such heading")
    return problems


def _is_searched(name: str) -> bool:
    folders = name.split("/")[:-1]
    return name.endswith((".py", ".md")) and not any(one in _SKIPPED or one.startswith(".") for one in folders)


@cache
def searched_files() -> tuple[Path, ...]:
    """Return every Python file and every page of the tree."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        names = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
    except (OSError, subprocess.CalledProcessError):
        names = []
    if not any(_is_searched(name) for name in names):
        names = [
            str(Path(folder, name).relative_to(ROOT))
            for folder, _, files in os.walk(ROOT, followlinks=False)
            for name in files
        ]
    paths = [ROOT / name for name in names if _is_searched(name)]
    return tuple(path for path in paths if path.is_file() and not path.is_symlink())


def _own_page(path: Path) -> str | None:
    return path.name[:2] if path.parent == LOG_PAGES and path.name[:2] in log_pages() else None


def test_every_citation_resolves() -> None:
    problems = [
        f"{path.relative_to(ROOT)}:{problem}"
        for path in searched_files()
        for problem in problems_in(path.read_text(), _own_page(path))
    ]
    assert not problems, "\n".join(problems)


def test_the_pages_and_the_code_are_searched() -> None:
    names = {path.name for path in searched_files()}
    assert {"01-file-formats.md", "README.md", "architecture.md", "log_loader.py", "test_citations.py"} <= names
    assert sum("kafka-log 0" in path.read_text() for path in searched_files()) > 60


def test_the_pages_have_their_sections() -> None:
    pages = log_pages()
    assert sorted(pages) == ["01", "02", "03", "04", "05", "06", "07"]
    assert {"1", "3.5", "7.5", "13"} <= pages["01"].steps.keys()
    assert {"2", "e"} <= pages["05"].steps["1"]
    assert set("ABCDEFGHIJK") <= pages["07"].steps.keys() and len(pages["07"].scenarios) == 274
    assert rules() == {str(number) for number in range(1, 11)}


MARK, PAGE = "§", "kafka-log"
"""Parts of citations: made-up ones must not stand whole in this file, which is searched too."""


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (f"Source: {PAGE} 01 {MARK}7.9.", f"no {MARK}7.9 on page 01"),
        (f"Source: {PAGE} 09 {MARK}1.", "no page 09"),
        (f"Source: {PAGE} 01\n    {MARK}77.", f"no {MARK}77 on page 01"),
        (f"Source: {PAGE} 05 {MARK}3, {MARK}9.", f"no {MARK}9 on page 05"),
        (f"Source: {PAGE} 04 {MARK}12 to {MARK}16.", f"no {MARK}15 on page 04"),
        (f"({PAGE} 01 {MARK}12–14)", f"no {MARK}14 on page 01"),
        (f"({PAGE} 02)\n\nthe map ({MARK}4.3)", f"no {MARK}4.3 on page 02"),
        (f"({PAGE} 02)\n\n# defaults (06 {MARK}6)", f"no {MARK}6 on page 06"),
        (f"({PAGE} 05 {MARK}3 step 9)", "no step 9"),
        (f"({PAGE} 05 {MARK}1 step 2g, {MARK}44)", f"no {MARK}44 on page 05"),
        (f"a line without a page ({MARK}3)", "no page is named"),
        (f"({PAGE} {'07'} D, Z)", "no section Z"),
        (f"({PAGE} 04 {MARK}3; {'07'} X)", "no section X"),
        (f"({PAGE} 03; 07 {'AP'}-99)", "no such scenario"),
        (f"architecture {'rule'} 11", "no such rule"),
        (f"docs/reference/{'commands.md'}, Nothing of the kind", "no such heading"),
        (f"docs/reference/{'absent.md'}, Settings", "no such page"),
    ],
)
def test_a_citation_of_what_is_not_there_is_reported(text: str, problem: str) -> None:
    assert problem in "; ".join(problems_in(text))


@pytest.mark.parametrize(
    "text",
    [
        "Source: kafka-log 05 §2 passes 1 to 3, orphan indexes of pass 4, §7.1.",
        "Source: kafka-log 04 §2.4, §2.5 step 4, §1 step 4.",
        "Source: kafka-log 03 §5, 04 §4, §14; 07 E, H and RC-08.",
        "The small files beside the segments (kafka-log 01 §9–12).",
        "Kept by architecture rule 5.",
        "What every command takes (docs/reference/commands.md, Options of all commands on log directories).",
    ],
)
def test_a_citation_of_what_is_there_is_not_reported(text: str) -> None:
    assert problems_in(text) == []

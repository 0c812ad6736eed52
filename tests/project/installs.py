"""What pages, notebooks, messages and build files tell people to install."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from tests.project.distributions import ROOT

PACKAGE = re.compile(r"(?:kafka[-_.])?sediment(?![\w./-])", re.IGNORECASE)
_INSTALLS = re.compile(
    r"\b(?:pipx?|uv(?: pip| tool)?|uvx|poetry|conda|mamba)\s+(?:install|add|run|download|wheel)\b|\buvx\s"
)
_MARKDOWN_CODE = re.compile(r"`([^`\n]+)`")


def texts() -> Iterator[tuple[Path, str]]:
    """Yield every page, every cell of a notebook, every build file and every module, with its text."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "conf").rglob("*"), ROOT / "Makefile"]
    pages += (ROOT / "sediment").rglob("*.py")
    for page in sorted(path for path in pages if path.is_file() and path.suffix not in (".pyc", ".png")):
        yield page, page.read_text(errors="replace")
    for notebook in sorted((ROOT / "docs").rglob("*.ipynb")):
        for cell in json.loads(notebook.read_text())["cells"]:
            yield notebook, "".join(cell["source"])


def commands(text: str) -> Iterator[str]:
    """Yield the shell commands in `text` that install something."""
    for line in text.replace("\\\n", " ").splitlines():
        code = _MARKDOWN_CODE.findall(line) if "`" in line else [line]
        for part in (part for each in code for part in re.split(r"&&|;|\|\|", each)):
            if _INSTALLS.search(part) and len(part) < 1_000:
                yield re.sub(r"\s#\s.*", "", part).strip().removeprefix("$ ").removeprefix("RUN ").strip()


def from_an_index(command: str) -> list[str]:
    """Return the words of `command` that name this package as one of an index, not as a file."""
    words = shlex.split(command.replace("'", "").replace('"', ""))
    return [word for word in words[1:] if PACKAGE.match(word)]


def shown() -> dict[str, list[Path]]:
    """Return the commands of pages and notebooks that install this package, with the pages that show each."""
    found: dict[str, list[Path]] = {}
    for path, text in texts():
        if path.suffix in (".md", ".ipynb") and path.name != "CHANGELOG.md":
            for command in commands(text):
                if re.search(r"\.whl|'\.|\s\.(\s|$)", command):
                    found.setdefault(command, []).append(path)
    return found

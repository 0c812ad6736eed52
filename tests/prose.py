"""Style rules of docs/internals/architecture.md that a program can check.

`python -m tests.prose PATH ...` prints every breach in the Python files at the paths.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MOST_WORDS = 30
_OPENINGS = frozenset(
    [
        "What",
        "Who",
        "Whose",
        "Which",
        "Of",
        "Where",
        "How",
        "Whether",
        "That",
        "When",
        "Why",
        "As",
        "From",
        "With",
        "Without",
        "Beside",
        "Between",
        "Behind",
        "So",
        "Or",
        "And",
        "Then",
        "There",
        "In",
        "On",
        "At",
    ]
)
_NOUN_OPENINGS = frozenset(
    ["The", "A", "An", "Every", "Each", "All", "Its", "One", "No", "Some", "Those", "These", "Two", "Three"]
)
_BANNED = re.compile(
    r"\b(who(?:so)?ever|nobody|somebody|anybody|everybody|lets? go|told|tells?|telling|doomed|hereby|thereby|whence|"
    r"thereof|what lies|what stands|what of|what there is|is no|are no|was no|right behind|behind)\b",
    re.IGNORECASE,
)
_ALLOWED = re.compile(
    r"write[- _]behind|f(?:a|e)lls? behind|lags? behind|tell\(\)|behind-a-kept-segment", re.IGNORECASE
)
_SECTION = re.compile(r"^\s*(Args|Raises|Returns|Yields|Attributes|Example|Examples|Source|Invariants?):\s*$")
_ITEM = re.compile(r"^\s*(?:[*-]|\d+\.)\s|^\s*[\w.`\[\]| ,*]+: ")
_SENTENCE_END = re.compile(r"(?<=[.!?])\)?\s+(?=[A-Z`(])|(?<=:)\s+|;\s+")


@dataclass(frozen=True, slots=True)
class Breach:
    """A place in a file and the rule that the text there breaks."""

    path: Path
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.what}"


def breaches(path: Path) -> Iterator[Breach]:
    """Yield every breach in the Python file `path`."""
    source = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield from _docstring(path, node, text)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            for found in _banned(node.value):
                yield Breach(path, node.lineno, f"has the word {found!r}")
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            for found in _banned(token.string):
                yield Breach(path, token.start[0], f"has the word {found!r}")


def _docstring(path: Path, node: ast.AST, text: str) -> Iterator[Breach]:
    line = getattr(node, "lineno", 1)
    first = text.split(maxsplit=1)[0].strip("`,.:")
    is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    is_value = is_function and any(
        ast.unparse(each).rpartition(".")[2] in ("property", "cached_property") for each in node.decorator_list
    )
    if first in _OPENINGS:
        yield Breach(path, line, f"docstring begins with {first!r}")
    elif is_function and not is_value and first in _NOUN_OPENINGS:
        yield Breach(path, line, f"docstring of a function begins with {first!r}, which is not an imperative")
    for sentence in sentences(text):
        words = len(sentence.split())
        if words > MOST_WORDS:
            yield Breach(path, line, f"has a sentence of {words} words: {sentence[:60]}…")


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a docstring or a comment; indented blocks and tables are left out."""
    block: list[str] = []
    for row in [*text.split("\n"), ""]:
        plain = row.strip()
        ends = not plain or row.startswith("    ") or _SECTION.match(row) or "  " in plain or plain.startswith("|")
        if (ends or _ITEM.match(row)) and block:
            yield from _SENTENCE_END.split(" ".join(block))
            block = []
        if not ends:
            block.append(plain)


def _banned(text: str) -> Iterator[str]:
    for found in _BANNED.finditer(_ALLOWED.sub("", text)):
        yield found.group(0)


def main(paths: list[str]) -> int:
    """Print every breach below `paths` and return their number."""
    count = 0
    for given in paths:
        root = Path(given)
        for path in sorted(root.rglob("*.py")) if root.is_dir() else [root]:
            for breach in breaches(path):
                print(breach)
                count += 1
    return count


if __name__ == "__main__":
    raise SystemExit(1 if main(sys.argv[1:]) else 0)

"""Tables of figures, written between marks in pages of `docs/`."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from pathlib import Path

LINE_COLUMNS = 120


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table; all columns but the first are numbers."""
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def fill_page(page: Path, mark: str, block: str) -> None:
    """Write `block` into the page, as `filled` does."""
    page.write_text(filled(page, mark, block))


def filled(page: Path, mark: str, block: str) -> str:
    """Return the page's text with `block` between its lines `<!-- mark -->` and `<!-- /mark -->`.

    Lines outside of tables are wrapped.

    Raises:
        ValueError: the page has no such lines.
    """
    wrapped = "\n".join(line if line.startswith("|") else _wrap(line) for line in block.split("\n"))
    text, found = re.subn(
        rf"(<!-- {mark} -->\n).*?(<!-- /{mark} -->)",
        lambda lines: f"{lines[1]}\n{wrapped}\n\n{lines[2]}",
        page.read_text(),
        flags=re.DOTALL,
    )
    if not found:
        raise ValueError(f"{page} has no mark {mark}; add its two lines to the page")
    return text


def _wrap(line: str) -> str:
    return textwrap.fill(line, LINE_COLUMNS, break_long_words=False, break_on_hyphens=False)

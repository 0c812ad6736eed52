r"""Markdown as GitHub reads it, rewritten for Python-Markdown, which the site is built with.

    nested content     GitHub: indented to the text of its item     Python-Markdown: indented by 4 columns per level
    list or table      GitHub: may follow a paragraph directly       Python-Markdown: needs a blank line before it
    code in a table    GitHub: `a\|b` shows a|b                       Python-Markdown: `a|b` shows a|b

Invariant: lines inside a fenced block change only in their indentation.
"""

from __future__ import annotations

import re

_FENCE = re.compile(r"(`{3,}|~{3,})")
_ITEM = re.compile(r"([*+-]|\d+[.)])( +)(?=\S)")
_CODE = re.compile(r"(`+)(.+?)\1")
_LEVEL = 4


def for_site(text: str) -> str:
    """Return the page `text` for Python-Markdown."""
    rewritten: list[str] = []
    levels: list[int] = []  # column of the text of each open list item
    fence = ""
    before = _Line("", "")
    for line in text.split("\n"):
        content = line.lstrip(" ")
        indent = len(line) - len(content)
        if fence:
            rewritten.append(_indented(line[min(indent, levels[-1] if levels else 0) :], len(levels)))
            fence = "" if content.rstrip() == fence else fence
            continue
        if content:
            while levels and indent < levels[-1]:
                levels.pop()
        item = _ITEM.match(content)
        here = _Line(_kind(content, item is not None, bool(levels)), content)
        if _needs_blank_line(before, here):
            rewritten.append("")
        if item:
            rewritten.append(_indented(content, len(levels)))
            levels.append(indent + item.end())
        else:
            rest = line[levels[-1] :] if levels and content else line
            rewritten.append(_indented(_table_row(rest) if here.kind == "table" else rest, len(levels)))
        opened = _FENCE.match(content)
        fence = opened[1] if opened else ""
        before = here
    return "\n".join(rewritten)


class _Line:
    """Kind of a line outside fenced blocks (text, item, inside an item, table, heading, blank), and its text."""

    def __init__(self, kind: str, content: str) -> None:
        self.kind = kind
        self.content = content


def _kind(content: str, is_item: bool, is_inside: bool) -> str:
    if not content.strip():
        return ""
    if is_item:
        return "item"
    if content.startswith("|"):
        return "table"
    if content.startswith(("#", "<!--")):
        return "heading"
    return "inside" if is_inside else "text"


def _needs_blank_line(before: _Line, here: _Line) -> bool:
    return (here.kind == "item" and before.kind == "text") or (
        here.kind == "table" and before.kind in ("text", "inside", "item")
    )


def _indented(line: str, level: int) -> str:
    return " " * (_LEVEL * level) + line if line.strip() else ""


def _table_row(line: str) -> str:
    return _CODE.sub(lambda code: code[0].replace("\\|", "|"), line)

"""Java properties, as java.util.Properties reads them, in a time that grows with the size of the text."""

from __future__ import annotations

import re
from collections.abc import Iterator

_LINE_END = re.compile(r"\r\n|\r|\n")
_SPACE = " \t\f"
_COMMENT = ("#", "!")


def parse_properties(content: bytes) -> dict[str, str]:
    """Return the properties in Latin-1 text; of two entries with one key, the later one counts.

    Raises:
        ValueError: an escape is malformed.
    """
    import javaproperties

    # The library `javaproperties` reads an entry again for each line that continues it, so a few MB of such lines would
    # keep it busy for hours.  Here, the lines of an entry are joined first.
    return dict(javaproperties.loads("\n".join(_entries(content.decode("latin-1")))))


def _entries(text: str) -> Iterator[str]:
    lines = iter(_LINE_END.split(text))
    for line in lines:
        first = line.lstrip(_SPACE)
        if not first or first.startswith(_COMMENT):
            continue
        parts = []
        while _continues(first):
            parts.append(first[:-1])
            first = next(lines, "").lstrip(_SPACE)
        entry = "".join((*parts, first))
        # A line that continues an entry is never a comment.
        yield f"\\{entry}" if entry.startswith(_COMMENT) else entry


def _continues(line: str) -> bool:
    """Return True if the next line belongs to the same entry: the line ends in an odd number of backslashes."""
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1

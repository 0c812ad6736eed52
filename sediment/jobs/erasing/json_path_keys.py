"""Selection of keys by a value inside the key: `--key-format json-path`.

    file of keys      $.customer.id=17          keys that are JSON objects with this value at this path
                      $.emails[0]=ann@x.org     one line for each value

    condition         get_json_object(CAST(key AS STRING), '$.customer.id') IN ('17', ...) OR ...

A path begins with `$` and has steps `.name`, `['name']` and `[index]`.  It ends at the first `=` after its last step.
The rest of the line is the value: a string without quotes, or an integer, true or false, each written as in the key.
A key that is not JSON, or has no such value, does not match.  Null, and a number with a fraction or an exponent, are
refused.  Spark reformats such numbers before it compares them, and it finds nothing for null.

Invariant: errors name the line of a file, never its content.
"""

from __future__ import annotations

import re
from pathlib import Path

from sediment.jobs.erasing.subjects import Condition, read_lines
from sediment.segment_io.errors import UsageError

JSON_PATH = "json-path"

# Spark finds nothing at a path that it cannot parse, so all other forms of paths are refused here.  Paths with
# wildcards would return lists.
_LINE = re.compile(r"(\$(?:\.[^.\[\]*='\s]+|\['[^'?*]+'\]|\[\d+\])+)=(.*)", re.DOTALL)
_NOT_COMPARABLE = re.compile(r"null|-?\d+(\.\d+)?([eE][+-]?\d+)?")
_INTEGER = re.compile(r"-?\d+")
_ADVICE = "write PATH=VALUE, such as $.customer.id=17, in UTF-8"


def read_json_path_keys(file: Path) -> Condition:
    """Return the condition that is true if a record's key has one of the values in `file`.

    Raises:
        UsageError: the file cannot be read or has no line, a line is not PATH=VALUE, or a value cannot be compared.
    """
    lines = read_lines(file)
    values: dict[str, set[str]] = {}
    for number, line in enumerate(lines, 1):
        parsed = _parsed(line)
        if parsed is None:
            raise UsageError(f"line {number} is not in format {JSON_PATH}", path=str(file), advice=_ADVICE)
        path, value = parsed
        if _NOT_COMPARABLE.fullmatch(value) and not _INTEGER.fullmatch(value):
            raise UsageError(
                f"line {number} has null, or a number with a fraction or an exponent, which cannot be compared",
                path=str(file),
                advice="select these records with --where",
            )
        values.setdefault(path, set()).add(value)
    terms = [
        f"get_json_object(CAST(key AS STRING), {_literal(path)}) IN ({', '.join(map(_literal, sorted(wanted)))})"
        for path, wanted in sorted(values.items())
    ]
    return Condition(" OR ".join(terms), tuple(sorted(set(lines))))


def _parsed(line: bytes) -> tuple[str, str] | None:
    """Return the path and the value of a line; None if the line is not PATH=VALUE in UTF-8."""
    try:
        found = None if line.endswith(b"\r") else _LINE.fullmatch(line.decode())
    except UnicodeDecodeError:
        return None
    return None if found is None else (found[1], found[2])


def _literal(text: str) -> str:
    """Return a string of Spark SQL; its bytes are in hexadecimal, so no character needs an escape."""
    return f"CAST(X'{text.encode().hex()}' AS STRING)"

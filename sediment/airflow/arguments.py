"""Conversion of Python keywords and their values to arguments of the command line.

    keyword and value                          arguments
    dry_run=True                               --dry-run
    dry_run=False, ledger=None                 (none)
    max_seconds=3600                           --max-seconds=3600
    partitions=["orders-*", "users-0"]         --partition=orders-* --partition=users-0
    settings={"orders:retention.ms": 1000}     --set=orders:retention.ms=1000

Keywords are the same as for the Python functions (docs/reference/python.md).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

_OPTIONS = {"partitions": "partition", "topics": "topic", "settings": "set"}


def command_arguments(command: str, log_dirs: object, options: Mapping[str, object]) -> list[str]:
    words = [command, *_texts(log_dirs)]
    for keyword, value in options.items():
        option = f"--{_OPTIONS.get(keyword, keyword.replace('_', '-'))}"
        words += [option] if value is True else [f"{option}={text}" for text in _texts(value)]
    return words


def _texts(value: object) -> list[str]:
    """Return each value of an option as text; None and False give no text."""
    if value is None or value is False:
        return []
    if isinstance(value, Mapping):
        return [f"{name}={_setting(each)}" for name, each in value.items()]
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [text for each in value for text in _texts(each)]
    return [os.fspath(value) if isinstance(value, os.PathLike) else str(value)]


def _setting(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)

"""Dockerfiles as lists of instructions."""

from __future__ import annotations

from collections.abc import Iterator


def instructions(text: str) -> Iterator[tuple[str, str]]:
    """Yield the instructions of a Dockerfile and their arguments, with continued lines joined."""
    plain = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    for line in plain.replace("\\\n", " ").splitlines():
        if line.strip():
            name, _, rest = line.strip().partition(" ")
            yield name, rest.strip()

"""The `platforms` marker: these tests bring Pythons, packages and a Debian, and run only with `-m platforms`."""

from __future__ import annotations

from pathlib import Path

import pytest

_MARKER = "platforms"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if collection_path.suffix == ".py" and _MARKER not in config.getoption("markexpr").replace(f"not {_MARKER}", ""):
        return True
    return None

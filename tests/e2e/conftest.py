"""The `e2e` marker: these tests start a broker and run only with `-m e2e`, because they need its clients."""

from __future__ import annotations

from pathlib import Path

import pytest

_MARKER = "e2e"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if collection_path.suffix == ".py" and _MARKER not in config.getoption("markexpr").replace(f"not {_MARKER}", ""):
        return True
    return None

"""The `image` marker: these tests need root, mmdebstrap and package registries, and run only with `-m image`."""

from __future__ import annotations

from pathlib import Path

import pytest

_MARKER = "image"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if collection_path.suffix == ".py" and _MARKER not in config.getoption("markexpr").replace(f"not {_MARKER}", ""):
        return True
    return None

"""The `yarn` marker: these tests need YARN's JARs and the output of `make bundle`, and run only with `-m yarn`."""

from __future__ import annotations

from pathlib import Path

import pytest

_MARKER = "yarn"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if collection_path.suffix == ".py" and _MARKER not in config.getoption("markexpr").replace(f"not {_MARKER}", ""):
        return True
    return None

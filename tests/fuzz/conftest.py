"""The `fuzz` marker: long fuzzing runs only with `-m fuzz`."""

from __future__ import annotations

import pytest

_MARKER = "fuzz"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if _MARKER in config.getoption("markexpr").replace(f"not {_MARKER}", ""):
        return
    left_out = [item for item in items if item.get_closest_marker(_MARKER)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker(_MARKER)]

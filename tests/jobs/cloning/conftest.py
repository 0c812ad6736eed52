"""A fixture of the tests of `sediment clone`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.inline_spark import inline_spark


@pytest.fixture
def without_spark() -> Iterator[None]:
    """Run the tasks of a clone in this process."""
    with inline_spark():
        yield

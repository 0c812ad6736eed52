"""A pytest plugin: the fixture `sediment_broker`, one broker for all tests of a session."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from sediment.local_broker import Broker


@pytest.fixture(scope="session")
def sediment_broker() -> Iterator[Broker]:
    """Run a broker over a temporary directory; `sediment_broker.bootstrap` is its address."""
    from sediment.local_broker import broker  # loads compiled code, which only tests with a broker need

    with broker() as running:
        yield running

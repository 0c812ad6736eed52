"""A pytest plugin with brokers: `sediment_broker` for all tests of a session, `sediment_new_broker` for one test."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from sediment.local_broker import Broker


@pytest.fixture(scope="session")
def sediment_broker_configs() -> Mapping[str, object]:
    """Return the broker keys of both brokers, with underscores; a conftest.py may override this fixture."""
    return {}


@pytest.fixture(scope="session")
def sediment_broker(sediment_broker_configs: Mapping[str, object]) -> Iterator[Broker]:
    """Run a broker over a temporary directory; `sediment_broker.bootstrap` is its address.

    All tests of the session share its topics and groups.  With pytest-xdist, each worker has a session and a broker of
    its own.
    """
    yield from _running(sediment_broker_configs)


@pytest.fixture
def sediment_new_broker(sediment_broker_configs: Mapping[str, object]) -> Iterator[Broker]:
    """Run a broker for one test, over a temporary directory; it has no topics and groups at the start."""
    yield from _running(sediment_broker_configs)


def _running(configs: Mapping[str, object]) -> Iterator[Broker]:
    from sediment.local_broker import broker  # loads compiled code, which only tests with a broker need

    with broker(**dict(configs)) as running:  # type: ignore[arg-type]
        yield running

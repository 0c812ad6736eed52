"""The `conformance` marker and the oracle: these tests run only with `-m conformance` or SEDIMENT_CONFORMANCE=1."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.conformance.oracle import KafkaOracle

_MARKER = "conformance"
_VARIABLE = "SEDIMENT_CONFORMANCE"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"{_MARKER}: needs Java and the JARs of a Kafka release ({_VARIABLE}=1)")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if os.environ.get(_VARIABLE) == "1" or _MARKER in config.getoption("markexpr"):
        return
    left_out = [item for item in items if item.get_closest_marker(_MARKER)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker(_MARKER)]


@pytest.fixture(scope="session")
def oracle() -> Iterator[KafkaOracle]:
    with KafkaOracle() as started:
        yield started

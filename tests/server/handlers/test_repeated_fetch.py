"""Fetches that a connection repeats with other offsets: their responses have the bytes of those to a new connection."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sediment.segment_io.fs import Fs
from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.api_keys import ApiKey, supported_versions
from sediment.server.delayed import DelayedOperations
from sediment.server.handlers.fetch import FetchHandlers
from sediment.server.read_only.catalog import Catalog, CatalogOptions, open_catalog
from sediment.server.requests import Request
from tests.logs import LogShape, write_random_log
from tests.server.network.listeners import Running, listener
from tests.server.read_only.log_dirs import write_partition

VERSIONS = list(supported_versions(ApiKey.FETCH))
NEWEST = VERSIONS[-1]

OTHERS: list[dict[str, Any]] = [
    {"partition_max_bytes": 100},
    {"max_bytes": 100},
    {"isolation_level": 1},
    {"current_leader_epoch": 5},
    {"last_fetched_epoch": 0},
    {"session_id": 7, "session_epoch": 3},
    {"rack_id": "b"},
]
"""Fields that make a fetch another one."""


@contextmanager
def served(logs: Path) -> Iterator[tuple[Running, Catalog, list[Request]]]:
    """Serve fetches; the list has the requests that were decoded."""
    catalog = open_catalog([logs], CatalogOptions(), Fs())
    decoded: list[Request] = []

    def make_handlers(timer: Any) -> Any:
        handlers = FetchHandlers(catalog, DelayedOperations(timer), fetch_max_bytes=1 << 25, logs_grow=False)

        def fetch(request: Request) -> Any:
            decoded.append(request)
            return handlers.fetch(request)

        return {ApiKey.FETCH: fetch}

    with listener(make_handlers=make_handlers) as running:
        yield running, catalog, decoded
    catalog.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[Running, Catalog, list[Request]]]:
    """Serve t-0 with aborted transactions, and t-1 without."""
    write_random_log(tmp_path / "t-0", 1, LogShape(batches=60, transactional=0.5, emptied=0, codecs=(0,)))
    write_partition(tmp_path, "t-1", 60, records=3)
    with served(tmp_path) as found:
        yield found


def request(catalog: Catalog, version: int, partition: int, offset: int, **fields: Any) -> Any:
    topic = catalog.topic("t")
    assert topic is not None
    of_partition = {"partition_max_bytes": 3000}
    for name in ("partition_max_bytes", "current_leader_epoch", "last_fetched_epoch", "log_start_offset"):
        if name in fields:
            of_partition[name] = fields.pop(name)
    by_id = version >= 13
    return m.FetchRequest(
        **{"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20, **fields},
        topics=[
            m.FetchRequest.FetchTopic(
                topic="" if by_id else "t",
                topic_id=topic.id if by_id else uuid.UUID(int=0),
                partitions=[m.FetchRequest.FetchPartition(partition=partition, fetch_offset=offset, **of_partition)],
            )
        ],
    )


def ends(catalog: Catalog, partition: int) -> tuple[int, int]:
    log = catalog.partition("t", partition)
    assert log is not None
    return log.log_start_offset, log.log_end_offset


@pytest.mark.parametrize("version", VERSIONS)
def test_a_repeated_fetch_has_the_bytes_of_a_first_one(
    version: int, server: tuple[Running, Catalog, list[Request]]
) -> None:
    running, catalog, _ = server
    rng = random.Random(version)
    for partition, isolation in ((0, 0), (0, 1), (1, 0), (1, 1)):
        first, end = ends(catalog, partition)
        with running.connect() as repeating:
            for offset in [first, *rng.choices(range(first - 1, end + 2), k=12)]:
                number = rng.randrange(-(1 << 31), 1 << 31)
                asked = request(catalog, version, partition, offset, isolation_level=isolation)
                repeating.send(asked, version, number)
                with running.connect() as fresh:
                    fresh.send(asked, version, number)
                    assert repeating.receive_frame() == fresh.receive_frame()


def test_only_offsets_and_correlation_ids_may_differ(server: tuple[Running, Catalog, list[Request]]) -> None:
    running, catalog, decoded = server
    first, end = ends(catalog, 1)
    with running.connect() as client:
        for offset in range(first, end, 7):
            client.ask(request(catalog, NEWEST, 1, offset), NEWEST)
        assert len(decoded) == 1
        for number, others in enumerate(OTHERS, 2):
            client.send(request(catalog, NEWEST, 1, first + 4, **others), NEWEST, 99)
            with running.connect() as fresh:
                fresh.send(request(catalog, NEWEST, 1, first + 4, **others), NEWEST, 99)
                assert client.receive_frame() == fresh.receive_frame()
            assert len(decoded) == 2 * number - 1
        client.ask(request(catalog, NEWEST, 1, first + 1), NEWEST)
        assert len(decoded) == 15


def test_the_offset_is_found_among_equal_values(server: tuple[Running, Catalog, list[Request]]) -> None:
    running, catalog, decoded = server
    for log_start_offset in (0, -1, 3):
        with running.connect() as client:
            client.ask(request(catalog, 11, 1, 3, log_start_offset=log_start_offset), 11)
            before = len(decoded)
            again = client.ask(request(catalog, 11, 1, 90, log_start_offset=log_start_offset), 11)
            assert len(decoded) == before
            batch = bytes(again.responses[0].partitions[0].records)
            assert int.from_bytes(batch[:8], "big") <= 90 < int.from_bytes(batch[:8], "big") + 3


def test_a_client_that_sends_other_fetches_gets_its_new_fetch_kept(
    server: tuple[Running, Catalog, list[Request]],
) -> None:
    running, catalog, decoded = server
    with running.connect() as client:
        client.ask(request(catalog, NEWEST, 1, 0), NEWEST)
        for _ in range(40):
            client.ask(request(catalog, NEWEST, 1, 0, max_bytes=5000), NEWEST)
        assert len(decoded) < 20

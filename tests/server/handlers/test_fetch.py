"""Fetches over real sockets, compared with a plain scan of the files."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.api_keys import ApiKey, supported_versions
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.handlers import fetch as fetch_handlers
from sediment.server.read_only.catalog import Catalog
from tests.logs import LogShape, write_random_log
from tests.server.handlers.clusters import only, served
from tests.server.network.listeners import Client
from tests.server.read_only.faulty_reads import FaultyReads
from tests.server.read_only.log_dirs import write_checkpoint, write_epochs, write_partition
from tests.server.read_only.logs import Scan
from tests.twin.segments import file_batches

VERSIONS = list(supported_versions(ApiKey.FETCH))
NEWEST = VERSIONS[-1]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[Client, Catalog]]:
    """Serve two random logs, t-0 and t-1, and an empty one, t-2; t-0 has a high watermark below its end."""
    logs = tmp_path / "logs"
    end = write_random_log(logs / "t-0", 1, LogShape(batches=80, transactional=0.6, emptied=0, codecs=(0, 4)))
    end_1 = write_random_log(logs / "t-1", 2, LogShape(batches=80, magics=(0, 1, 2), codecs=(0, 1), emptied=0))
    write_partition(logs, "t-2", 0)
    write_checkpoint(logs / "replication-offset-checkpoint", {"t-0": end - 4, "t-1": end_1, "t-2": 0})
    with served(logs) as found:
        yield found


def fetch(
    client: Client,
    catalog: Catalog,
    *partitions: tuple[int, int],
    version: int = NEWEST,
    isolation: int = 0,
    max_bytes: int = 1 << 20,
    partition_max_bytes: int = 1 << 20,
    topic: str = "t",
    topic_id: uuid.UUID | None = None,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    current_leader_epoch: int = -1,
    last_fetched_epoch: int = -1,
    **fields: Any,
) -> list[Any]:
    """Return the answers of (partition, offset) pairs."""
    request = m.FetchRequest
    known = catalog.topic(topic)
    message = request(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=isolation,
        topics=[
            request.FetchTopic(
                topic=topic if version < 13 else "",
                topic_id=(topic_id or (known.id if known else uuid.uuid4())) if version >= 13 else uuid.UUID(int=0),
                partitions=[
                    request.FetchPartition(
                        partition=number,
                        fetch_offset=offset,
                        partition_max_bytes=partition_max_bytes,
                        current_leader_epoch=current_leader_epoch,
                        last_fetched_epoch=last_fetched_epoch if version >= 12 else -1,
                    )
                    for number, offset in partitions
                ],
            )
        ],
        **fields,
    )
    response = client.ask(message, version)
    assert response.session_id == 0
    assert response.error_code == ErrorCode.NONE
    return list(only(response.responses).partitions)


def data(answer: Any) -> bytes:
    return bytes(answer.records or b"")


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_gives_the_bytes_that_a_scan_finds(
    version: int, cluster: tuple[Client, Catalog], tmp_path: Path
) -> None:
    client, catalog = cluster
    rng = random.Random(version)
    for number in (0, 1):
        scan, log = Scan(tmp_path / "logs" / f"t-{number}"), catalog.partition("t", number)
        for _ in range(25):
            offset = rng.randint(scan.log_start, scan.log_end)
            isolation, size = rng.choice([0, 1]), rng.choice([1, 100, 2000, 100_000])
            limit = log.last_stable_offset if isolation else log.high_watermark
            (answer,) = fetch(
                client, catalog, (number, offset), version=version, isolation=isolation, partition_max_bytes=size
            )
            assert answer.error_code == ErrorCode.NONE
            assert data(answer) == scan.read(offset, limit, size, True)
            assert (answer.high_watermark, answer.last_stable_offset) == (log.high_watermark, log.last_stable_offset)
            assert answer.log_start_offset == (scan.log_start if version >= 5 else -1)
            if not isolation:
                assert answer.aborted_transactions is None
            else:
                last = max((batch.last_offset for _, batch in file_batches(data(answer))), default=-1)
                touching = {
                    (producer, first)
                    for producer, first, end in scan.aborted()
                    if end >= offset and first <= last and number == 0
                }
                named = {(entry.producer_id, entry.first_offset) for entry in answer.aborted_transactions}
                assert touching <= named


def test_one_limit_of_bytes_holds_for_all_partitions_and_the_first_batch_is_whole(
    cluster: tuple[Client, Catalog], tmp_path: Path
) -> None:
    client, catalog = cluster
    scans = [Scan(tmp_path / "logs" / f"t-{number}") for number in (0, 1)]
    starts = [scan.log_start for scan in scans]
    first = [len(scan.batches[0].batch.data) for scan in scans]
    both = ((0, starts[0]), (1, starts[1]))
    one, other = fetch(client, catalog, *both, max_bytes=1)
    assert (len(data(one)), data(other)) == (first[0], b"")
    one, other = fetch(client, catalog, *both, max_bytes=first[0] + first[1] - 1)
    assert data(other) == b""
    one, other = fetch(client, catalog, *both, max_bytes=2000, partition_max_bytes=1500)
    assert first[0] <= len(data(one)) <= 1500
    assert len(data(one)) + len(data(other)) <= 2000
    # An empty partition does not take the right to a whole first batch from the next one.
    empty, one = fetch(client, catalog, (2, 0), (0, starts[0]), max_bytes=1)
    assert (data(empty), len(data(one))) == (b"", first[0])


def test_the_server_limits_what_a_client_asks_for(tmp_path: Path) -> None:
    write_partition(tmp_path / "logs", "t-0", 100)
    with served(tmp_path / "logs", fetch_max_bytes=1024) as (client, catalog):
        (answer,) = fetch(client, catalog, (0, 0), max_bytes=2**31 - 1, partition_max_bytes=2**31 - 1)
        assert len(data(answer)) == 1024
        (answer,) = fetch(client, catalog, (0, 0), max_bytes=-5, partition_max_bytes=-5)
        assert len(data(answer)) > 60


@pytest.mark.parametrize("version", [4, 12, 13, NEWEST])
def test_unknown_topics_partitions_and_offsets_have_their_own_errors(
    version: int, cluster: tuple[Client, Catalog]
) -> None:
    client, catalog = cluster
    end = catalog.partition("t", 0).log_end_offset
    for number, offset, code in (
        (0, end + 1, ErrorCode.OFFSET_OUT_OF_RANGE),
        (0, -1, ErrorCode.OFFSET_OUT_OF_RANGE),
        (9, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (-1, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (0, end, ErrorCode.NONE),
    ):
        (answer,) = fetch(client, catalog, (number, offset), version=version)
        assert (answer.error_code, data(answer)) == (code, b"")
    (answer,) = fetch(client, catalog, (0, 0), version=version, topic="missing")
    assert answer.error_code == (ErrorCode.UNKNOWN_TOPIC_ID if version >= 13 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    (answer,) = fetch(client, catalog, (0, 0), version=version, topic="../../etc/passwd")
    assert answer.error_code != ErrorCode.NONE


@pytest.mark.parametrize("version", VERSIONS)
def test_a_partition_of_another_broker_has_no_leader_here(version: int, tmp_path: Path) -> None:
    write_partition(tmp_path, "t-1", 1)
    with served(tmp_path) as (client, catalog):
        elsewhere, here = fetch(client, catalog, (0, 0), (1, 0), version=version)
        assert (elsewhere.error_code, data(elsewhere)) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, b"")
        assert (here.error_code, len(data(here)) > 0) == (ErrorCode.NONE, True)


def test_other_leader_epochs_are_fenced_or_unknown(tmp_path: Path) -> None:
    write_partition(tmp_path / "logs", "t-0", 10, epoch=4)
    write_epochs(tmp_path / "logs" / "t-0", (2, 0), (4, 5))
    with served(tmp_path / "logs") as (client, catalog):
        for epoch, code in ((-1, 0), (4, 0), (3, ErrorCode.FENCED_LEADER_EPOCH), (5, ErrorCode.UNKNOWN_LEADER_EPOCH)):
            (answer,) = fetch(client, catalog, (0, 0), current_leader_epoch=epoch)
            assert answer.error_code == code
        (answer,) = fetch(client, catalog, (0, 3), last_fetched_epoch=2)
        assert (answer.diverging_epoch.epoch, len(data(answer)) > 0) == (-1, True)
        (answer,) = fetch(client, catalog, (0, 8), last_fetched_epoch=2)
        assert (answer.diverging_epoch.epoch, answer.diverging_epoch.end_offset) == (2, 5)
        assert data(answer) == b""
        (answer,) = fetch(client, catalog, (0, 8), last_fetched_epoch=9)
        assert answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_session_that_the_server_never_gave_is_not_found(cluster: tuple[Client, Catalog]) -> None:
    client, catalog = cluster
    response = client.ask(m.FetchRequest(max_wait_ms=0, min_bytes=1, session_id=5, session_epoch=3, topics=()), NEWEST)
    assert response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    response = client.ask(m.FetchRequest(max_wait_ms=500, min_bytes=1, session_id=5, session_epoch=-1), NEWEST)
    assert (response.error_code, response.responses) == (ErrorCode.NONE, ())
    assert fetch(client, catalog, (0, catalog.partition("t", 0).log_start_offset), session_epoch=0)[0].records


def test_a_fetch_at_the_log_end_waits_and_one_with_data_or_an_error_does_not(cluster: tuple[Client, Catalog]) -> None:
    client, catalog = cluster
    log = catalog.partition("t", 0)
    ends = [(0, log.high_watermark), (2, 0)]
    started = time.monotonic()
    answers = fetch(client, catalog, *ends, max_wait_ms=300)
    assert 0.29 < time.monotonic() - started < 5
    assert [(answer.error_code, data(answer)) for answer in answers] == [(0, b""), (0, b"")]
    started = time.monotonic()
    assert fetch(client, catalog, *ends, max_wait_ms=60_000, min_bytes=0)
    assert fetch(client, catalog, *ends, (0, 2**40), max_wait_ms=60_000)
    assert fetch(client, catalog, *ends, (0, log.log_start_offset), max_wait_ms=60_000, min_bytes=1 << 30)
    assert time.monotonic() - started < 5


def test_a_fetch_does_not_wait_longer_than_the_server_lets_it(
    cluster: tuple[Client, Catalog], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_handlers, "LONGEST_WAIT_MS", 100)
    client, catalog = cluster
    client.socket.settimeout(10)
    (answer,) = fetch(client, catalog, (0, catalog.partition("t", 0).high_watermark), max_wait_ms=2**31 - 1)
    assert (answer.error_code, data(answer)) == (0, b"")


def test_a_segment_that_changes_under_the_server_is_a_storage_error_for_its_offsets_only(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    write_random_log(logs / "t-0", 3, LogShape(batches=80, segment_bytes=1500, transactional=0))
    scan = Scan(logs / "t-0")
    with served(logs) as (client, catalog):
        assert data(fetch(client, catalog, (0, scan.log_start))[0])
        first, last = scan.segments[0], scan.segments[-2]
        path = logs / "t-0" / f"{first.base_offset:020d}.log"
        path.write_bytes(path.read_bytes() + b"x")
        (answer,) = fetch(client, catalog, (0, scan.log_start))
        assert (answer.error_code, data(answer)) == (ErrorCode.KAFKA_STORAGE_ERROR, b"")
        assert data(fetch(client, catalog, (0, last.base_offset))[0])


def test_a_disk_that_fails_is_a_storage_error_of_its_partition_until_it_is_back(tmp_path: Path) -> None:
    logs, fs = tmp_path / "logs", FaultyReads()
    for name in ("t-0", "t-1"):
        write_partition(logs, name, 5)
    with served(logs, fs=fs) as (client, catalog):
        whole = data(fetch(client, catalog, (0, 0))[0])
        fs.is_broken = True
        answers = fetch(client, catalog, (0, 0), (1, 0))
        assert [(each.error_code, data(each)) for each in answers] == [(ErrorCode.KAFKA_STORAGE_ERROR, b"")] * 2
        fs.is_broken = False
        assert [data(each) for each in fetch(client, catalog, (0, 0), (1, 0))] == [whole, whole]

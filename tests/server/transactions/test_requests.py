"""Requests of transactional producers to a live server, over real sockets."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sediment.engine.live.log.partition_log import AppendInfo
from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.api_keys import ApiKey
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.backends.live import LiveBackend
from sediment.server.coordinator_log import coordinator_partition
from sediment.server.live.partition import Partition
from tests.engine.live_logs import batch
from tests.engine.managed import FailingFs
from tests.server.live.nodes import LiveServer, SlowDisk, fetch, live, new_node, produce, produce_request
from tests.server.network.listeners import Client
from tests.server.transactions.producers import (
    NEW_END,
    NEW_PRODUCE,
    OLD_END,
    OLD_PRODUCE,
    Producer,
    committed_offset,
    find_coordinator,
    write_markers,
)
from tests.twin.batches import Batch
from tests.twin.segments import file_batches
from tests.waiting import LIMIT_SECONDS, wait_until

TOPICS = {"t": 4, "__consumer_offsets": 1, "__transaction_state": 1}
NONE = ErrorCode.NONE
COMMITTED = 1


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LiveServer]:
    with live(new_node(tmp_path / "data", TOPICS)) as running:
        yield running


@pytest.fixture
def client(server: LiveServer) -> Iterator[Client]:
    with server.connect() as connected:
        yield connected


@pytest.fixture
def producer(client: Client) -> Producer:
    made = Producer(client)
    assert made.init() is NONE
    return made


def batches(client: Client, number: int = 0, *, isolation: int = COMMITTED) -> list[Batch]:
    """Return the batches of a partition, without those of aborted transactions for a read of committed records."""
    offset = 0
    seen: list[Batch] = []
    aborted: set[tuple[int, int]] = set()
    while True:
        (found,) = fetch(client, (number, offset), isolation=isolation)
        aborted |= {(each.producer_id, each.first_offset) for each in found.aborted_transactions or ()}
        read = [each for _, each in file_batches(bytes(found.records or b""))]
        if not read:
            return seen
        for each in read:
            assert isinstance(each, Batch)
            if each.is_control:
                aborted = {
                    (pid, first) for pid, first in aborted if pid != each.producer_id or first > each.base_offset
                }
            if (each.producer_id, each.base_offset) not in aborted:
                seen.append(each)
            offset = each.next_offset


def values(client: Client, number: int = 0, *, isolation: int = COMMITTED) -> list[bytes]:
    """Return the values of a partition."""
    found = [each for each in batches(client, number, isolation=isolation) if not each.is_control]
    return [record.value for each in found for record in each.records()]


# ----------------------------------------------------------------------------------------------------- commit and abort
@pytest.mark.parametrize(
    ("produce_version", "end_version"), [(OLD_PRODUCE, OLD_END), (NEW_PRODUCE, NEW_END)], ids=["version 1", "version 2"]
)
def test_committed_records_become_visible_and_aborted_ones_do_not(
    client: Client, producer: Producer, produce_version: int, end_version: int
) -> None:
    is_new = end_version == NEW_END
    for value, commit in (("first", True), ("second", False), ("third", True)):
        epoch = producer.epoch
        if not is_new:
            producer.begin(0)
        assert producer.send(0, value, version=produce_version) is NONE
        assert value.encode() not in values(client)
        assert value.encode() in values(client, isolation=0)
        assert producer.end(commit=commit, version=end_version) is NONE
        assert producer.epoch == epoch + is_new
        wait_until(producer.has_ended)
    assert values(client) == [b"first", b"third"]
    (found,) = fetch(client, (0, 0), isolation=COMMITTED)
    assert found.last_stable_offset == found.high_watermark == 6
    markers = [each.producer_epoch for each in batches(client, isolation=0) if each.is_control]
    assert markers == ([1, 2, 3] if is_new else [0, 0, 0])


def test_a_transaction_without_partitions_can_only_be_aborted_in_version_2(producer: Producer) -> None:
    assert producer.end(version=OLD_END) is ErrorCode.INVALID_TXN_STATE
    assert producer.end(version=NEW_END) is ErrorCode.INVALID_TXN_STATE
    assert producer.end(commit=False, version=OLD_END) is ErrorCode.INVALID_TXN_STATE
    assert producer.end(commit=False, version=NEW_END) is NONE
    assert producer.epoch == 1
    wait_until(producer.has_ended)
    assert producer.state().transaction_state == "CompleteAbort"


def test_a_repeated_end_gets_the_same_answer(producer: Producer) -> None:
    assert producer.send(version=NEW_PRODUCE) is NONE
    before = (producer.producer_id, producer.epoch)
    assert producer.end(version=NEW_END) is NONE
    after = (producer.producer_id, producer.epoch)
    wait_until(producer.has_ended)
    producer.producer_id, producer.epoch = before
    assert producer.end(version=NEW_END) is NONE
    assert (producer.producer_id, producer.epoch) == after
    producer.producer_id, producer.epoch = before
    assert producer.end(commit=False, version=NEW_END) is ErrorCode.INVALID_TXN_STATE


def test_an_old_client_may_begin_a_transaction_without_partitions(producer: Producer) -> None:
    assert producer.add_topics({}) == {}
    assert producer.state().transaction_state == "Ongoing"
    assert producer.end() is NONE
    wait_until(producer.has_ended)
    assert producer.state().transaction_state == "CompleteCommit"


# -------------------------------------------------------------------------------------------------------- verification
@pytest.mark.parametrize(
    ("version", "code"), [(10, ErrorCode.INVALID_TXN_STATE), (OLD_PRODUCE, ErrorCode.TRANSACTION_ABORTABLE)]
)
def test_a_batch_outside_the_transaction_is_refused(
    client: Client, producer: Producer, version: int, code: ErrorCode
) -> None:
    producer.begin(0)
    assert producer.send(1, version=version) is code
    assert values(client, 1, isolation=0) == []
    assert producer.send(0, version=version) is NONE
    assert producer.end() is NONE
    wait_until(producer.has_ended)
    assert producer.send(0, version=version) is code
    assert len(values(client, isolation=0)) == 1


def test_only_the_producer_of_the_transactional_id_may_write(client: Client, producer: Producer) -> None:
    producer.begin(0)
    stranger = Producer(client, "x", producer.producer_id + 1, producer.epoch)
    assert stranger.send() is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    unknown = Producer(client, "unknown", producer.producer_id, producer.epoch)
    assert unknown.send() is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    old = Producer(client, "x", producer.producer_id, producer.epoch - 1)
    assert old.send() is ErrorCode.INVALID_PRODUCER_EPOCH
    assert values(client, isolation=0) == []


def test_a_transactional_batch_needs_a_transactional_id(client: Client, producer: Producer) -> None:
    producer.begin(0)
    answer = produce(client, batch(pid=producer.producer_id, tx=True))
    assert answer.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_a_request_may_have_batches_of_one_producer_only(client: Client, producer: Producer) -> None:
    producer.begin(0, 1)
    request = produce_request(batch(pid=producer.producer_id, tx=True), version=OLD_PRODUCE)
    request.transactional_id = "x"
    other = m.ProduceRequest.PartitionProduceData(index=1, records=batch(pid=producer.producer_id + 1, tx=True))
    request.topic_data[0].partition_data.append(other)
    (topic,) = client.ask(request, OLD_PRODUCE).responses
    assert {each.error_code for each in topic.partition_responses} == {ErrorCode.INVALID_PRODUCER_ID_MAPPING}


def test_brokers_may_verify_partitions_in_batches(producer: Producer) -> None:
    producer.begin(0)
    found = producer.add_topics({"t": [0, 1]}, version=5, verify_only=True)
    assert found == {("t", 0): NONE, ("t", 1): ErrorCode.TRANSACTION_ABORTABLE}
    found = producer.add_topics({"t": [0, 9]}, version=5, verify_only=True)
    assert found == {("t", 0): ErrorCode.OPERATION_NOT_ATTEMPTED, ("t", 9): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    producer.epoch += 1
    assert set(producer.add_topics({"t": [0]}, version=4, verify_only=True).values()) == {ErrorCode.PRODUCER_FENCED}


# ------------------------------------------------------------------------------------------------------ internal topics
@pytest.mark.parametrize("version", range(6))
@pytest.mark.parametrize("topic", ["__transaction_state", "__consumer_offsets"])
def test_clients_cannot_add_internal_topics(client: Client, producer: Producer, topic: str, version: int) -> None:
    found = producer.add_topics({"t": [0], topic: [0]}, version=version)
    assert found == {
        ("t", 0): ErrorCode.OPERATION_NOT_ATTEMPTED,
        (topic, 0): ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    }
    assert producer.state().transaction_state == "Empty"


def test_no_marker_gets_into_the_transaction_log(tmp_path: Path) -> None:
    path = new_node(tmp_path / "data", TOPICS)
    with live(path) as server, server.connect() as client:
        producer = Producer(client)
        assert producer.init() is NONE
        found = write_markers(
            client, {"__transaction_state": [0], "t": [0, 9]}, producer_id=producer.producer_id, epoch=producer.epoch
        )
        assert found == {
            ("__transaction_state", 0): ErrorCode.INVALID_TOPIC_EXCEPTION,
            ("t", 0): NONE,
            ("t", 9): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }
        assert write_markers(client, {"t": [1]}, producer_id=-1, epoch=0) == {("t", 1): ErrorCode.INVALID_REQUEST}
    (log,) = (path / "__transaction_state-0").glob("*.log")
    assert [each.is_control for _, each in file_batches(log.read_bytes())] == [False]
    with live(path) as server, server.connect() as client:
        again = Producer(client)
        assert again.init() is NONE
        assert (again.producer_id, again.epoch) == (producer.producer_id, 1)


# -------------------------------------------------------------------------------------------------------------- markers
def test_a_marker_of_an_older_epoch_ends_no_newer_transaction(client: Client, producer: Producer) -> None:
    old = (producer.producer_id, producer.epoch)
    assert producer.send(version=NEW_PRODUCE) is NONE
    assert producer.end(version=NEW_END) is NONE
    wait_until(producer.has_ended)
    assert producer.send(0, "open", version=NEW_PRODUCE) is NONE
    for version in (0, 2):
        found = write_markers(client, {"t": [0]}, producer_id=old[0], epoch=old[1], transaction_version=version)
        assert found == {("t", 0): ErrorCode.INVALID_PRODUCER_EPOCH}
    # A marker of version 2 has a higher epoch than the transaction.
    found = write_markers(client, {"t": [0]}, producer_id=old[0], epoch=producer.epoch, transaction_version=2)
    assert found == {("t", 0): ErrorCode.INVALID_PRODUCER_EPOCH}
    assert b"open" not in values(client)
    assert producer.end(version=NEW_END) is NONE
    wait_until(producer.has_ended)
    assert b"open" in values(client)


def test_a_marker_of_an_older_coordinator_is_refused(client: Client, producer: Producer) -> None:
    producer.begin(0)
    assert producer.send() is NONE
    ids = {"producer_id": producer.producer_id, "epoch": producer.epoch}
    assert write_markers(client, {"t": [0]}, coordinator_epoch=7, **ids) == {("t", 0): NONE}
    producer.begin(1)  # the transaction goes on for the coordinator
    found = write_markers(client, {"t": [0]}, coordinator_epoch=6, **ids)
    assert found == {("t", 0): ErrorCode.TRANSACTION_COORDINATOR_FENCED}


@pytest.mark.parametrize("forged", [{"epoch": 5}, {"coordinator_epoch": 7}], ids=["producer", "coordinator"])
def test_a_refused_marker_does_not_block_its_transactional_id(
    client: Client, producer: Producer, caplog: pytest.LogCaptureFixture, forged: dict[str, int]
) -> None:
    for number in range(2):
        assert producer.send(number, version=NEW_PRODUCE) is NONE
    ids = {"producer_id": producer.producer_id, "epoch": producer.epoch, **forged}
    assert write_markers(client, {"t": [1]}, **ids) == {("t", 1): NONE}
    assert producer.end(version=NEW_END) is NONE
    wait_until(producer.has_ended)
    assert "cannot be written to t-1" in caplog.text
    assert values(client) == [b"v"]
    assert producer.init() is NONE


def test_an_administrator_can_abort_a_hanging_transaction(client: Client, producer: Producer) -> None:
    producer.begin(0)
    assert producer.send() is NONE
    (found,) = fetch(client, (0, 0), isolation=COMMITTED)
    assert found.last_stable_offset == 0
    assert write_markers(client, {"t": [0]}, producer_id=producer.producer_id, epoch=producer.epoch) == {("t", 0): NONE}
    (found,) = fetch(client, (0, 0), isolation=COMMITTED)
    assert found.last_stable_offset == found.high_watermark == 2
    assert values(client) == []


# ------------------------------------------------------------------------------------------------------ ids and epochs
def test_a_new_producer_fences_its_predecessor_and_aborts_its_transaction(client: Client, producer: Producer) -> None:
    producer.begin(0)
    assert producer.send() is NONE
    successor = Producer(client)
    assert successor.init(wait=False) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert successor.init() is NONE
    assert (successor.producer_id, successor.epoch) == (producer.producer_id, 2)
    assert producer.send() is ErrorCode.INVALID_PRODUCER_EPOCH
    assert producer.end() is ErrorCode.PRODUCER_FENCED
    assert set(producer.add(0).values()) == {ErrorCode.PRODUCER_FENCED}
    assert set(producer.add(0, version=1).values()) == {ErrorCode.INVALID_PRODUCER_EPOCH}
    assert values(client) == []
    successor.begin(0)
    assert successor.send(0, "mine") is NONE
    assert successor.end() is NONE
    wait_until(successor.has_ended)
    assert b"mine" in values(client, isolation=0)


def test_unusable_ids_and_timeouts_are_refused_as_by_kafka(client: Client, producer: Producer) -> None:
    assert producer.init(timeout_ms=900_001) is ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert producer.init(timeout_ms=0) is ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert producer.init(producer_id=5) is ErrorCode.INVALID_REQUEST
    assert producer.init(producer_id=producer.producer_id + 1, producer_epoch=0) is ErrorCode.PRODUCER_FENCED
    unknown = Producer(client, "unknown", 5, 0)
    assert set(unknown.add(0).values()) == {ErrorCode.INVALID_PRODUCER_ID_MAPPING}
    assert unknown.end() is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert Producer(client, "", 5, 0).end() is ErrorCode.INVALID_REQUEST


def test_a_producer_gets_a_new_id_when_its_epochs_are_used_up(
    server: LiveServer, client: Client, producer: Producer
) -> None:
    entry = server.server.backend._transactions._entries["x"]  # type: ignore[union-attr]
    entry.current = entry.current.__class__(
        **{name: getattr(entry.current, name) for name in entry.current.__slots__} | {"producer_epoch": 32_766}
    )
    old_id, producer.epoch = producer.producer_id, 32_766
    assert producer.send(0, "last", version=NEW_PRODUCE) is NONE
    assert producer.end(version=NEW_END) is NONE
    assert (producer.producer_id, producer.epoch) == (old_id + 1, 0)
    assert producer.send(0, "next", version=NEW_PRODUCE) is NONE
    assert producer.end(version=NEW_END) is NONE
    wait_until(producer.has_ended)
    assert values(client) == [b"last", b"next"]
    assert (producer.state().producer_id, producer.state().producer_epoch) == (old_id + 1, 1)


# ------------------------------------------------------------------------------------------------------ concurrent ends
@contextmanager
def markers_held(server: LiveServer, number: int = 0) -> Iterator[None]:
    """Let no marker be appended to a partition: its log is locked by this thread."""
    partition = server.server.catalog.partition("t", number)
    assert isinstance(partition, Partition)
    with partition.log.lock:
        yield


def test_other_requests_wait_until_a_decided_transaction_is_complete(
    server: LiveServer, client: Client, producer: Producer
) -> None:
    producer.begin(0)
    assert producer.send() is NONE
    with markers_held(server):
        assert producer.end() is NONE
        assert producer.state().transaction_state == "PrepareCommit"
        busy = ErrorCode.CONCURRENT_TRANSACTIONS
        assert set(producer.add(1).values()) == {busy}
        assert producer.end() is busy
        assert producer.end(commit=False) is busy
        assert producer.end(version=NEW_END) is busy
        assert producer.end(commit=False, version=NEW_END) is busy
        assert Producer(client).init(wait=False) is busy
        assert producer.commit_offset(1) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert producer.commit_offset(1, version=5) is busy
        assert producer.send(1) is ErrorCode.NOT_ENOUGH_REPLICAS
        assert producer.send(1, version=NEW_PRODUCE) is busy
        # Other producers, and partitions without the marker, do not wait.
        other = Producer(client, "other")
        assert other.init() is NONE
        other.begin(1)
        assert other.send(1) is NONE
        assert other.end() is NONE
        wait_until(other.has_ended)
    wait_until(producer.has_ended)
    producer.begin(1)


def test_the_first_batch_of_version_2_waits_for_the_markers_of_the_last_transaction(
    server: LiveServer, producer: Producer
) -> None:
    assert producer.send(version=NEW_PRODUCE) is NONE
    with server.connect() as second:
        with markers_held(server):
            assert producer.end(version=NEW_END) is NONE
            assert producer.end(commit=False, version=NEW_END) is ErrorCode.CONCURRENT_TRANSACTIONS
            records = batch(pid=producer.producer_id, producer_epoch=producer.epoch, tx=True)
            request = produce_request(records, number=1, version=NEW_PRODUCE)
            request.transactional_id = "x"
            second.send(request, NEW_PRODUCE)
            assert producer.state().transaction_state == "PrepareCommit"
        _, answer = second.receive(ApiKey.PRODUCE, NEW_PRODUCE)
    assert answer.responses[0].partition_responses[0].error_code == NONE
    assert producer.state().transaction_state == "Ongoing"


def test_a_batch_that_comes_while_the_coordinator_ends_its_loading_is_tried_again(
    server: LiveServer, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer.begin(0)
    transactions = server.server.backend._transactions  # type: ignore[union-attr]
    find = transactions.find
    loaded = dict(transactions._entries)
    transactions._entries, transactions._is_loaded = {}, False

    def find_and_load(transactional_id: str) -> object:
        found = find(transactional_id)
        transactions._entries, transactions._is_loaded = loaded, True
        return found

    monkeypatch.setattr(transactions, "find", find_and_load)
    assert producer.send() is ErrorCode.NOT_ENOUGH_REPLICAS
    assert producer.send() is NONE


# -------------------------------------------------------------------------------------------------------------- offsets
def test_the_first_offsets_of_a_transaction_create_the_topic_of_offsets(tmp_path: Path) -> None:
    with live(new_node(tmp_path / "data", {"t": 1})) as running, running.connect() as client:
        find_coordinator(client)
        producer = Producer(client)
        assert producer.init() is NONE
        assert producer.add_offsets() is NONE
        assert producer.commit_offset(5) is NONE
        assert producer.end() is NONE
        wait_until(lambda: committed_offset(client) == (5, NONE))


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("commit", [True, False])
def test_offsets_of_a_transaction_count_when_it_is_committed(
    client: Client, producer: Producer, version: int, commit: bool
) -> None:
    if version < 5:
        assert producer.commit_offset(3, version=version) is ErrorCode.TRANSACTION_ABORTABLE
        assert producer.commit_offset(3, version=3) is ErrorCode.INVALID_TXN_STATE
        assert producer.add_offsets() is NONE
    assert producer.commit_offset(3, version=version) is NONE
    assert producer.commit_offset(4, version=version) is NONE
    assert committed_offset(client) == (-1, NONE)
    assert committed_offset(client, stable=True)[1] is ErrorCode.UNSTABLE_OFFSET_COMMIT
    assert producer.end(commit=commit, version=NEW_END if version >= 5 else OLD_END) is NONE
    wait_until(producer.has_ended)
    assert committed_offset(client, stable=True) == (4 if commit else -1, NONE)


def test_pending_offsets_survive_a_restart_and_keep_their_group(tmp_path: Path) -> None:
    path = new_node(tmp_path / "data", TOPICS)
    keys = {"offsets_retention_check_interval_ms": 20}
    with live(path, **keys) as server, server.connect() as client:
        producer = Producer(client)
        assert producer.init() is NONE
        assert producer.commit_offset(9, version=5) is NONE
        checks = threading.Event()
        coordinator = server.server.backend._transactions._markers._groups  # type: ignore[union-attr]
        coordinator._timer.after(100, checks.set)
        assert checks.wait(10)
        assert coordinator._find("g") is not None
    with live(path, **keys) as server, server.connect() as client:
        producer.client = client
        wait_until(lambda: producer.state().error_code == NONE)
        assert committed_offset(client, stable=True)[1] is ErrorCode.UNSTABLE_OFFSET_COMMIT
        assert producer.end(version=NEW_END) is NONE
        wait_until(producer.has_ended)
        assert committed_offset(client, stable=True) == (9, NONE)


def test_pending_offsets_take_memory_until_their_transaction_ends(server: LiveServer, producer: Producer) -> None:
    memory = server.server.backend._transactions._markers._groups.memory  # type: ignore[union-attr]

    def commit(*, commit: bool, metadata: str) -> int:
        """Commit offsets in a transaction, and return the bytes that are free after it."""
        free_bytes = memory.free_bytes
        for offset in range(3):
            assert producer.commit_offset(offset, version=5, metadata=metadata) is NONE
        assert memory.free_bytes <= free_bytes - len(metadata)
        assert producer.end(commit=commit, version=NEW_END) is NONE
        wait_until(producer.has_ended)
        return int(memory.free_bytes)

    committed = commit(commit=True, metadata="m" * 100)
    assert commit(commit=False, metadata="m" * 1000) == committed
    assert commit(commit=True, metadata="m" * 90) == committed + 10


def test_commits_in_one_partition_do_not_wait_for_those_in_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(live(new_node(tmp_path / "data", TOPICS | {"__consumer_offsets": 2})))
        first, second = (stack.enter_context(server.connect()) for _ in range(2))
        blocked, free = Producer(first, "x"), Producer(second, "y")
        groups = {coordinator_partition(name, 2): name for name in "ab"}
        for each, group in ((blocked, groups[0]), (free, groups[1])):
            assert each.init() is NONE
            assert each.add_offsets(group) is NONE
        held = server.server.catalog.partition("__consumer_offsets", 0)
        assert isinstance(held, Partition)
        append, is_appending, may_append = held.append_of_coordinator, threading.Event(), threading.Event()
        stack.callback(may_append.set)

        def append_later(*arguments: Any, **keywords: Any) -> AppendInfo:
            is_appending.set()
            assert may_append.wait(LIMIT_SECONDS)
            return append(*arguments, **keywords)

        monkeypatch.setattr(held, "append_of_coordinator", append_later)
        waiting = stack.enter_context(ThreadPoolExecutor(1)).submit(blocked.commit_offset, 1, group=groups[0])
        stack.callback(may_append.set)
        assert is_appending.wait(LIMIT_SECONDS)
        assert free.commit_offset(2, group=groups[1]) is NONE
        assert free.end() is NONE
        wait_until(free.has_ended)
        assert not waiting.done()
        may_append.set()
        assert waiting.result() is NONE


def test_members_and_sizes_of_transactional_commits_are_checked(client: Client, producer: Producer) -> None:
    assert producer.add_offsets() is NONE
    assert producer.commit_offset(1, generation_id=3) is ErrorCode.ILLEGAL_GENERATION
    assert producer.commit_offset(1, member_id="nobody", generation_id=3) is ErrorCode.ILLEGAL_GENERATION
    assert producer.commit_offset(1) is NONE
    assert producer.commit_offset(1, member_id="nobody", generation_id=3) is ErrorCode.UNKNOWN_MEMBER_ID
    assert producer.commit_offset(1, metadata="m" * 5000) is ErrorCode.OFFSET_METADATA_TOO_LARGE
    producer.epoch -= 1
    assert producer.commit_offset(1) is ErrorCode.INVALID_PRODUCER_EPOCH


# ----------------------------------------------------------------------------------------------------- limits and disks
def test_ids_and_partitions_of_clients_have_a_limit(tmp_path: Path) -> None:
    limit = 20_000
    path = new_node(tmp_path / "data", TOPICS | {"t": 100})
    with live(path, transactions_max_bytes=limit) as server, server.connect() as client:
        memory = server.server.backend._transactions.memory  # type: ignore[union-attr]
        made = [Producer(client, f"x{number}") for number in range(20)]
        codes = [each.init() for each in made]
        assert codes[0] is NONE
        assert codes[-1] is ErrorCode.POLICY_VIOLATION
        assert memory.free_bytes >= 0
        assert set(made[0].add(*range(100)).values()) == {ErrorCode.POLICY_VIOLATION}
        made[0].begin(0)
        free_bytes = memory.free_bytes
        assert made[0].end() is NONE
        wait_until(made[0].has_ended)
        assert memory.free_bytes > free_bytes


def test_a_failed_disk_of_the_coordinator_stops_its_transactions_only(tmp_path: Path) -> None:
    fs = FailingFs()
    path = new_node(tmp_path / "data", TOPICS)
    with live(path, fs=fs, flush_acks=True) as server, server.connect() as client:
        producer = Producer(client)
        assert producer.init() is NONE
        producer.begin(0)
        fs.broken.add(path)
        assert producer.end() is ErrorCode.NOT_COORDINATOR
        assert Producer(client, "other").init() in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        assert producer.state().transaction_state == "Ongoing"


def test_a_producer_stays_fenced_if_its_abort_could_not_be_written(tmp_path: Path) -> None:
    fs = FailingFs()
    path = new_node(tmp_path / "data", TOPICS, features={"transaction.version": 1})
    with live(path, fs=fs, flush_acks=True) as server, server.connect() as client:
        producer = Producer(client)
        assert producer.init() is NONE
        producer.begin(0)
        fs.broken.add(path)
        for _ in range(2):
            assert Producer(client).init() is ErrorCode.NOT_COORDINATOR
            assert (producer.state().transaction_state, producer.state().producer_epoch) == ("Ongoing", 1)
        assert set(producer.add(1).values()) == {ErrorCode.PRODUCER_FENCED}


def test_a_cluster_of_transaction_version_0_gets_records_that_its_brokers_read(tmp_path: Path) -> None:
    path = new_node(tmp_path / "data", TOPICS, features={"transaction.version": 0})
    with live(path) as server, server.connect() as client:
        producer = Producer(client)
        assert producer.init() is NONE
        producer.begin(0)
        assert producer.send() is NONE
        assert Producer(client).init() is NONE
        assert (producer.state().producer_epoch, values(client)) == (2, [])
    (log,) = (path / "__transaction_state-0").glob("*.log")
    records = [record for _, each in file_batches(log.read_bytes()) for record in each.records()]
    assert {int.from_bytes((record.value or b"")[:2], "big") for record in records} == {0}


def test_a_transaction_ends_although_its_topic_was_deleted(client: Client, producer: Producer) -> None:
    producer.begin(0, 1)
    assert producer.send() is NONE
    state = m.DeleteTopicsRequest.DeleteTopicState
    deleted = client.ask(m.DeleteTopicsRequest(topics=[state(name="t")], timeout_ms=1000), 6)
    assert [each.error_code for each in deleted.responses] == [NONE]
    assert producer.end() is NONE
    wait_until(producer.has_ended)


def test_no_handler_waits_for_the_disk_of_a_transaction(tmp_path: Path) -> None:
    disk = SlowDisk()
    with ExitStack() as stack:
        server = stack.enter_context(
            live(new_node(tmp_path / "data", TOPICS), fs=disk, flush_acks=True, num_io_threads=1)
        )
        clients = [stack.enter_context(server.connect()) for _ in range(4)]
        producers = [Producer(client, f"x{number}") for number, client in enumerate(clients)]
        for each in producers:
            assert each.init() is NONE
        producers[0].begin(0, 1, 2, 3)
        for number in range(4):
            assert producers[0].send(number) is NONE
        find_coordinator(clients[3])
        stack.callback(disk.is_fast.set)
        disk.is_fast.clear()
        ended = [
            (
                clients[0],
                m.EndTxnRequest(
                    transactional_id="x0", producer_id=producers[0].producer_id, producer_epoch=0, committed=True
                ),
                OLD_END,
            ),
            (clients[1], m.InitProducerIdRequest(transactional_id="x1", transaction_timeout_ms=1000), 5),
            (
                clients[2],
                produce_request(batch(pid=producers[2].producer_id, tx=True), version=NEW_PRODUCE),
                NEW_PRODUCE,
            ),
        ]
        ended[2][1].transactional_id = "x2"
        for client, request, version in ended:
            client.send(request, version)
        # The only handler is free, although three requests wait for the disk.
        assert producers[3].state().error_code == NONE
        assert Producer(clients[3], "x0").state().transaction_state == "Ongoing"
        disk.is_fast.set()
        for client, request, version in ended:
            _, answer = client.receive(ApiKey(request.API_KEY), version)
            assert getattr(answer, "error_code", NONE) == NONE
        wait_until(Producer(clients[3], "x0").has_ended)


def test_an_open_transaction_is_aborted_after_its_timeout(tmp_path: Path) -> None:
    keys = {"transaction_abort_timed_out_transaction_cleanup_interval_ms": 20}
    with live(new_node(tmp_path / "data", TOPICS), **keys) as server, server.connect() as client:
        producer = Producer(client)
        assert producer.init(timeout_ms=50) is NONE
        producer.begin(0)
        assert producer.send() is NONE
        wait_until(producer.has_ended)
        assert producer.state().transaction_state == "CompleteAbort"
        assert producer.state().producer_epoch == 1
        assert values(client) == []
        assert producer.end() is ErrorCode.PRODUCER_FENCED


def test_an_unused_transactional_id_is_removed(tmp_path: Path) -> None:
    keys = {"transaction_remove_expired_transaction_cleanup_interval_ms": 20}
    path = new_node(tmp_path / "data", TOPICS)
    with live(path, stated={"transactional.id.expiration.ms": 50}, **keys) as server, server.connect() as client:
        producer = Producer(client)
        assert producer.init() is NONE
        first_id = producer.producer_id
        wait_until(lambda: producer.state().error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
    with live(path) as server, server.connect() as client:
        again = Producer(client)
        wait_until(lambda: again.state().error_code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        assert again.state().error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        assert again.init() is NONE
        assert again.producer_id > first_id


def test_an_unused_transactional_id_stays_unless_its_expiration_is_stated(tmp_path: Path) -> None:
    with live(new_node(tmp_path / "data", TOPICS)) as server, server.connect() as client:
        producer = Producer(client)
        assert producer.init() is NONE
        backend = server.server.backend
        assert isinstance(backend, LiveBackend)
        transactions = backend._transactions
        entry = transactions._entries["x"]
        entry.current = replace(entry.current, last_update_ms=0)
        transactions.remove_expired()
        assert producer.state().transaction_state == "Empty"


def test_the_state_topic_is_made_when_a_coordinator_is_first_looked_for(tmp_path: Path) -> None:
    path = new_node(tmp_path / "data", {"t": 1})
    keys = {"transaction_state_log_num_partitions": 3}
    with live(path, topic_config=None, **keys) as server, server.connect() as client:
        find_coordinator(client)
        topic = server.server.catalog.topic("__transaction_state")
        assert topic is not None
        assert len(topic.partitions) == 3
        assert topic.configs["cleanup.policy"] == "compact"
        assert Producer(client).init() is NONE

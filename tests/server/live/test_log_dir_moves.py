"""Clients move partitions between the log directories of a live server."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from sediment.segment_io.format.checkpoints import format_uuid
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.internal_topics.metadata_log import read_bootstrap_records
from sediment.segment_io.partition.checkpoint_files import read_meta_properties
from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.error_codes import ErrorCode
from tests.engine.live_logs import batch
from tests.server.live.nodes import commit, fetch, live, new_node, opened, produce, two_directories
from tests.server.network.listeners import Client
from tests.twin.segments import file_batches
from tests.waiting import wait_until

LIMIT = "replica.alter.log.dirs.io.max.bytes.per.second"
BROKER, SET = 4, 0


@pytest.fixture
def directories(tmp_path: Path) -> tuple[Path, Path]:
    """Return the two directories of a node; t-0 is in the first one."""
    return two_directories(tmp_path / "node")


def alter(client: Client, log_dir: Path | str, topic: str = "t", number: int = 0, version: int = 2) -> ErrorCode:
    request = m.AlterReplicaLogDirsRequest
    topics = [request.AlterReplicaLogDirTopic(name=topic, partitions=[number])]
    response = client.ask(request(dirs=[request.AlterReplicaLogDir(path=str(log_dir), topics=topics)]), version)
    ((partition,),) = (each.partitions for each in response.results)
    assert (response.results[0].topic_name, partition.partition_index) == (topic, number)
    return ErrorCode(partition.error_code)


def described(client: Client, topic: str = "t", number: int = 0) -> dict[str, Any]:
    """Return what DescribeLogDirs says about a partition, by directory."""
    response = client.ask(m.DescribeLogDirsRequest(topics=None), 4)
    return {
        result.log_dir: partition
        for result in response.results
        for each in result.topics
        for partition in each.partitions
        if (each.name, partition.partition_index) == (topic, number)
    }


def is_moved(client: Client, log_dir: Path) -> bool:
    return list(described(client)) == [str(log_dir)]


def move(client: Client, log_dir: Path) -> None:
    """Move t-0, and wait until it is moved."""
    assert alter(client, log_dir) is ErrorCode.NONE
    wait_until(lambda: is_moved(client, log_dir))


def limit_moves(client: Client, bytes_per_second: int) -> None:
    request = m.IncrementalAlterConfigsRequest
    config = request.AlterableConfig(name=LIMIT, config_operation=SET, value=str(bytes_per_second))
    resource = request.AlterConfigsResource(resource_type=BROKER, resource_name="7", configs=[config])
    assert client.ask(request(resources=[resource]), 1).responses[0].error_code == ErrorCode.NONE


def values(client: Client, number: int = 0, **fields: Any) -> list[bytes | None]:
    """Return all values of a partition of t."""
    found: list[bytes | None] = []
    offset = 0
    while True:
        (answer,) = fetch(client, (number, offset), **fields)
        assert answer.error_code == ErrorCode.NONE
        batches = [each for _, each in file_batches(bytes(answer.records))]
        if not batches:
            return found
        found += [record.value for each in batches for record in each.records() if not each.is_control]
        offset = batches[-1].last_offset + 1


def assigned(first: Path, number: int = 0) -> str:
    """Return the id of the log directory that the metadata states for a partition of t."""
    metadata = read_bootstrap_records(first, Fs())
    assert metadata is not None
    (found,) = metadata.directory_ids["t"][number]
    return format_uuid(found.bytes)


def id_of(directory: Path) -> str:
    meta = read_meta_properties(Fs(), directory / "meta.properties")
    assert meta is not None and meta.directory_id is not None
    return meta.directory_id


def folders(directory: Path) -> list[str]:
    """Return the names of the folders of t-0, without the random part."""
    names = (path.name for path in directory.glob("t-0*"))
    return sorted(name if name == "t-0" else f"t-0-{name.rpartition('-')[2]}" for name in names)


# ---------------------------------------------------------------------------------------------------------------- moves
def test_a_client_moves_a_partition_and_a_later_start_finds_it_there(directories: tuple[Path, Path]) -> None:
    a, b = directories
    with live(a, b) as server, server.connect() as client:
        produce(client, batch(("k", "1")))
        move(client, b)
        assert produce(client, batch(("k", "2"))).base_offset == 1
        assert values(client) == [b"1", b"2"]
        assert assigned(a) == id_of(b)
        assert (folders(a), folders(b)) == (["t-0-delete"], ["t-0"])
    with live(a, b) as server, server.connect() as client:
        assert is_moved(client, b)
        assert values(client) == [b"1", b"2"]


def test_a_folder_that_a_move_left_is_removed_after_a_restart(directories: tuple[Path, Path]) -> None:
    a, b = directories
    with live(a, b) as server, server.connect() as client:
        move(client, b)
    assert folders(a) == ["t-0-delete"]
    keys: Mapping[str, Any] = {"log.segment.delete.delay.ms": 0, "log.initial.task.delay.ms": 0}
    with live(a, b, stated=keys) as server, server.connect() as client:
        wait_until(lambda: folders(a) == [])
        assert is_moved(client, b)


def test_a_folder_marked_for_deletion_that_no_move_left_stays(directories: tuple[Path, Path]) -> None:
    a, b = directories
    with live(a, b) as server, server.connect() as client:
        produce(client, batch(("k", "1")))
    # The metadata does not state that t-0 is in the directory in which it is.
    marked = b / f"t-0.{'0' * 32}-delete"
    shutil.copytree(a / "t-0", marked)
    own = a / f"t-0.{'1' * 32}-delete"
    shutil.copytree(a / "t-0", own)
    with live(a, b, stated={"log.segment.delete.delay.ms": 0, "log.initial.task.delay.ms": 0}):
        pass
    assert own.exists()


@pytest.mark.parametrize("flush_acks", [False, True])
def test_producers_and_consumers_go_on_during_moves(directories: tuple[Path, Path], flush_acks: bool) -> None:
    a, b = directories
    acknowledged: list[bytes] = []
    errors: list[ErrorCode] = []
    stop = threading.Event()

    with live(a, b, flush_acks=flush_acks) as server, server.connect() as client:

        def write() -> None:
            with server.connect() as own:
                number = 0
                while not stop.is_set():
                    answer = produce(own, batch(("k", str(number)), pid=5, seq=number))
                    if answer.error_code != ErrorCode.NONE or answer.base_offset != number:
                        errors.append(ErrorCode(answer.error_code))
                        return
                    acknowledged.append(str(number).encode())
                    number += 1

        writer = threading.Thread(target=write)
        writer.start()
        for target in (b, a, b):
            count = len(acknowledged)
            wait_until(lambda count=count: len(acknowledged) > count + 5 or bool(errors))
            move(client, target)
            assert values(client)[:count] == acknowledged[:count]
        stop.set()
        writer.join()
        assert errors == []
        assert values(client) == acknowledged
    with live(a, b) as server, server.connect() as client:
        assert values(client) == acknowledged


@pytest.mark.parametrize("flush_acks", [False, True])
def test_a_duplicate_and_a_wrong_sequence_are_recognised_after_a_move(
    directories: tuple[Path, Path], flush_acks: bool
) -> None:
    a, b = directories
    with live(a, b, flush_acks=flush_acks) as server, server.connect() as client:
        first = batch(("k", "1"), pid=5, seq=0)
        produce(client, first)
        move(client, b)
        assert produce(client, first).base_offset == 0
        wrong = produce(client, batch(("k", "3"), pid=5, seq=7))
        assert wrong.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert produce(client, batch(("k", "2"), pid=5, seq=1)).base_offset == 1
        assert values(client) == [b"1", b"2"]


def test_a_waiting_fetch_is_answered_after_a_move(directories: tuple[Path, Path]) -> None:
    a, b = directories
    with live(a, b) as server, server.connect() as client, server.connect() as waiting:
        answers: list[Any] = []
        thread = threading.Thread(target=lambda: answers.extend(fetch(waiting, (0, 0), max_wait_ms=20_000)))
        thread.start()
        move(client, b)
        produce(client, batch(("k", "1")))
        thread.join()
        assert [len(bytes(answer.records)) > 0 for answer in answers] == [True]


# ------------------------------------------------------------------------------------------------- moves under way
def test_describe_log_dirs_shows_the_future_log_with_its_lag(directories: tuple[Path, Path]) -> None:
    a, b = directories
    with live(a, b) as server, server.connect() as client:
        limit_moves(client, 0)
        for number in range(3):
            produce(client, batch(("k", str(number))))
        assert alter(client, b) is ErrorCode.NONE
        found = described(client)
        assert {path: (each.is_future_key, each.offset_lag) for path, each in found.items()} == {
            str(a): (False, 0),
            str(b): (True, 3),
        }
        assert (folders(a), folders(b)) == (["t-0"], ["t-0-future"])
        limit_moves(client, 1 << 30)
        wait_until(lambda: is_moved(client, b))


def test_a_move_back_to_the_present_directory_cancels_a_move(directories: tuple[Path, Path]) -> None:
    a, b = directories
    with live(a, b) as server, server.connect() as client:
        limit_moves(client, 0)
        produce(client, batch(("k", "1")))
        assert alter(client, a) is ErrorCode.NONE
        assert folders(b) == []
        assert alter(client, b) is ErrorCode.NONE
        assert alter(client, b) is ErrorCode.NONE
        assert folders(b) == ["t-0-future"]
        assert alter(client, a) is ErrorCode.NONE
        assert is_moved(client, a)
        assert folders(b) == ["t-0-delete"]
        assert values(client) == [b"1"]


def test_a_move_that_a_stop_interrupts_begins_again_at_the_next_start(directories: tuple[Path, Path]) -> None:
    a, b = directories
    with live(a, b) as server, server.connect() as client:
        produce(client, batch(("k", "1")))
        limit_moves(client, 0)
        alter(client, b)
    assert (folders(a), folders(b)) == (["t-0"], ["t-0-future"])
    with live(a, b) as server, server.connect() as client:
        produce(client, batch(("k", "2")))
        limit_moves(client, 1 << 30)
        wait_until(lambda: is_moved(client, b))
        assert values(client) == [b"1", b"2"]


def test_records_that_a_stopped_move_has_copied_are_copied_again(directories: tuple[Path, Path]) -> None:
    """A job may erase records while the server is stopped, so what was copied before counts no more."""
    a, b = directories
    with live(a, b) as server, server.connect() as client:
        produce(client, batch(("k", "secret")))
        limit_moves(client, 0)
        alter(client, b)
    (future,) = b.glob("*-future")
    shutil.copyfile(a / "t-0" / f"{0:020d}.log", future / f"{0:020d}.log")
    log = a / "t-0" / f"{0:020d}.log"
    log.write_bytes(batch(("k", "erased")))
    with live(a, b) as server, server.connect() as client:
        limit_moves(client, 1 << 30)
        wait_until(lambda: is_moved(client, b))
        assert values(client) == [b"erased"]


def test_a_copy_that_lacks_records_is_not_used_even_if_the_metadata_names_its_directory(
    directories: tuple[Path, Path],
) -> None:
    """A broker that stops before the end of a move leaves this."""
    a, b = directories
    partition = TopicPartition("t", 0)
    with opened(a, b) as backend:
        served = backend.catalog.partition("t", 0)
        assert served is not None
        served.append(batch(("k", "1")))
        manager = backend._manager
        future = manager.create_future_log(partition, b)
        backend.topics._assign(partition, manager.directory_of(future))
        served.append(batch(("k", "2")))
    assert assigned(a) == id_of(b)
    with opened(a, b) as backend:
        log = backend._manager.get_log(partition)
        assert log is not None
        assert (log.directory.parent, log.log_end_offset) == (a, 2)
        assert assigned(a) == id_of(a)
        backend.start_deleting()
        wait_until(lambda: assigned(a) == id_of(b))
        wait_until(lambda: (b / "t-0").exists())
    with live(a, b) as server, server.connect() as client:
        assert values(client) == [b"1", b"2"]


def test_a_deletion_of_the_topic_ends_its_move(directories: tuple[Path, Path]) -> None:
    a, b = directories
    with live(a, b) as server, server.connect() as client:
        limit_moves(client, 0)
        alter(client, b)
        states = [m.DeleteTopicsRequest.DeleteTopicState(name="t")]
        assert client.ask(m.DeleteTopicsRequest(topics=states), 6).responses[0].error_code == ErrorCode.NONE
        assert (folders(a), folders(b)) == (["t-0-delete"], ["t-0-delete"])
        assert described(client) == {}
    with live(a, b) as server, server.connect() as client:
        assert described(client) == {}


def test_a_partition_of_a_coordinator_moves_once_the_coordinators_have_loaded(
    directories: tuple[Path, Path],
) -> None:
    a, b = directories
    group = TopicPartition("__consumer_offsets", 0)
    with live(a, b, offsets_topic_num_partitions=1) as server, server.connect() as client:
        client.ask(m.FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4)
        assert commit(client, "g", 5) is ErrorCode.NONE
        (place,) = described(client, group.topic)
        target = a if place == str(b) else b
    with opened(a, b) as backend:
        backend.start_deleting()
        assert backend._moves is not None
        assert backend._moves.alter(group, str(target)) is ErrorCode.NONE
        manager = backend._manager

        def lag() -> int:
            log, future = manager.get_log(group), manager.get_future_log(group)
            assert log is not None and future is not None
            return log.log_end_offset - future.log_end_offset

        wait_until(lambda: lag() == 0)
        backend._moves._replace(group)
        assert manager.get_future_log(group) is not None
        backend.load_transactions({}, lambda _: False)
        wait_until(lambda: manager.get_future_log(group) is None)
    with live(a, b) as server, server.connect() as client:
        assert list(described(client, group.topic)) == [str(target)]
        request = m.OffsetFetchRequest
        groups = [request.OffsetFetchRequestGroup(group_id="g", topics=None)]

        def committed() -> list[int]:
            (answer,) = client.ask(request(groups=groups), 8).groups
            return [each.committed_offset for topic in answer.topics for each in topic.partitions]

        wait_until(lambda: committed() == [5])


# --------------------------------------------------------------------------------------------------------------- errors
def test_errors_are_those_of_a_broker(directories: tuple[Path, Path]) -> None:
    a, b = directories
    with live(a, b) as server, server.connect() as client:
        assert alter(client, a / "none") is ErrorCode.LOG_DIR_NOT_FOUND
        assert alter(client, "") is ErrorCode.LOG_DIR_NOT_FOUND
        assert alter(client, b, topic="u") is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert alter(client, b, number=9) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert alter(client, b, topic="x" * 249) is ErrorCode.INVALID_TOPIC_EXCEPTION
        assert alter(client, b, version=1) is ErrorCode.NONE


def test_metadata_that_states_no_directories_allows_no_moves(tmp_path: Path) -> None:
    a = new_node(tmp_path / "a", {"t": 1}, features={"metadata.version": 16})
    b = tmp_path / "b"
    b.mkdir()
    other = (a / "meta.properties").read_text().replace(id_of(a), format_uuid(bytes(15) + b"\2"))
    (b / "meta.properties").write_text(other)
    with live(a, b) as server, server.connect() as client:
        assert alter(client, b) is ErrorCode.POLICY_VIOLATION
        assert (folders(a), folders(b)) == (["t-0"], [])


def test_a_partition_that_does_not_exist_yet_begins_in_the_directory_that_was_asked_for(
    directories: tuple[Path, Path],
) -> None:
    a, b = directories
    with live(a, b) as server, server.connect() as client:
        for number in range(3):
            alter(client, b, topic="new", number=number)
        request = m.CreateTopicsRequest
        topics = [request.CreatableTopic(name="new", num_partitions=3, replication_factor=1)]
        assert client.ask(request(topics=topics, timeout_ms=1000), 7).topics[0].error_code == ErrorCode.NONE
        assert [list(described(client, "new", number)) for number in range(3)] == [[str(b)]] * 3


def test_a_limit_of_moves_must_be_a_number(directories: tuple[Path, Path]) -> None:
    a, b = directories
    with live(a, b) as server, server.connect() as client:
        request = m.IncrementalAlterConfigsRequest
        config = request.AlterableConfig(name=LIMIT, config_operation=SET, value="-1")
        resource = request.AlterConfigsResource(resource_type=BROKER, resource_name="7", configs=[config])
        answer = client.ask(request(resources=[resource]), 1).responses[0]
        assert answer.error_code == ErrorCode.INVALID_REQUEST

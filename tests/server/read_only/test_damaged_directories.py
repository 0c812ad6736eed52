"""Small files and partitions that cannot be read: they are left out and named in one line, and all else is served."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError

from sediment.engine.live.log.fetched_data import Isolation
from sediment.segment_io.errors import NotALogDirectoryError
from sediment.segment_io.fs import FileEntry, Fs
from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.backends.read_only import ReadOnlyOptions
from sediment.server.coordinator_log import coordinator_partition
from sediment.server.kafka_server import KafkaServer, ServerOptions
from sediment.server.network.endpoints import Endpoint
from sediment.server.read_only.catalog import Catalog, CatalogOptions, open_catalog, parse_renaming
from tests.served import GROUPS, unpacked
from tests.server.network.listeners import Client
from tests.server.read_only.log_dirs import (
    write_checkpoint,
    write_epochs,
    write_meta,
    write_partition,
    write_topic_id,
)
from tests.server.read_only.logs import content
from tests.waiting import wait_until

READ = {"isolation": Isolation.HIGH_WATERMARK, "min_one": True}


class UnreadableFs(Fs):
    """A filesystem that refuses one path, as one does to a user without permission."""

    def __init__(self, refused: Path) -> None:
        self._refused = refused

    def _check(self, path: Path) -> None:
        if path == self._refused:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    def read_bytes(self, path: Path) -> bytes:
        self._check(path)
        return super().read_bytes(path)

    def scan(self, directory: Path) -> list[FileEntry]:
        self._check(directory)
        return super().scan(directory)

    def file_names(self, directory: Path) -> list[str]:
        self._check(directory)
        return super().file_names(directory)


def as_directory(path: Path) -> Fs:
    path.unlink(missing_ok=True)
    path.mkdir()
    return Fs()


def as_loop(path: Path) -> Fs:
    path.unlink(missing_ok=True)
    path.symlink_to(path)
    return Fs()


def as_garbage(path: Path) -> Fs:
    path.write_bytes(b"\xff\x00 nonsense \n\n" * 9)
    return Fs()


DAMAGES = [as_directory, as_loop, as_garbage, UnreadableFs]


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    directory = tmp_path / "logs"
    directory.mkdir()
    write_meta(directory)
    for name in ("t-0", "t-1", "u-0"):
        write_partition(directory, name, 5)
        write_epochs(directory / name, (3, 0))
    write_topic_id(directory / "t-0", 7)
    write_checkpoint(directory / "log-start-offset-checkpoint", {"t-0": 2})
    write_checkpoint(directory / "replication-offset-checkpoint", {"t-0": 4, "t-1": 5, "u-0": 5})
    return directory


def served(log_dir: Path, fs: Fs, **options: object) -> Catalog:
    return open_catalog([log_dir], CatalogOptions(**options), fs)  # type: ignore[arg-type]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda each: each.__name__)
@pytest.mark.parametrize(
    ("name", "start", "end", "follows"),
    [
        ("log-start-offset-checkpoint", 0, 4, "served from their first segment, including deleted records"),
        ("replication-offset-checkpoint", 2, 5, "served to their log end, including records that may be uncommitted"),
        ("recovery-point-offset-checkpoint", 2, 4, "it has no effect here"),
        ("meta.properties", 2, 4, "a made-up cluster id"),
        ("t-0/partition.metadata", 2, 4, "is assigned to the topic of the same name"),
    ],
)
def test_a_small_file_that_cannot_be_read_is_left_out_and_the_line_says_what_follows(
    name: str,
    start: int,
    end: int,
    follows: str,
    damage: Callable[[Path], Fs],
    log_dir: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if (name, damage) == ("meta.properties", as_garbage):
        pytest.skip("as for a broker, the file has no key then")
    log = served(log_dir, damage(log_dir / name)).partition("t", 0)
    assert log is not None
    assert (log.log_start_offset, log.high_watermark) == (start, end)
    [line] = [record.getMessage() for record in caplog.records]
    assert line.startswith("left out: ") and str(log_dir / name) in line and follows in line, line


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda each: each.__name__)
def test_leader_epochs_that_cannot_be_read_are_those_of_the_batches(
    damage: Callable[[Path], Fs], log_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = log_dir / "t-0" / "leader-epoch-checkpoint"
    log = served(log_dir, damage(path)).partition("t", 0)
    assert log is not None and log.leader_epoch == 0
    assert str(path) in caplog.text


@pytest.mark.parametrize("damage", [as_directory, as_loop, as_garbage], ids=lambda each: each.__name__)
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_an_index_that_cannot_be_read_costs_no_record(suffix: str, damage: Callable[[Path], Fs], log_dir: Path) -> None:
    def answers() -> list[object]:
        log = served(log_dir, Fs()).partition("t", 1)
        assert log is not None
        return [content(log.read(offset, 1 << 20, **READ)) for offset in range(5)] + [log.offset_for_time(0)]

    whole = answers()
    damage(log_dir / "t-1" / f"{0:020}{suffix}")
    assert answers() == whole


def test_a_partition_that_cannot_be_listed_is_left_out_and_the_others_are_served(
    log_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    catalog = served(log_dir, UnreadableFs(log_dir / "t-1"))
    assert {topic.name: list(topic.partitions) for topic in catalog.topics()} == {"t": [0], "u": [0]}
    assert catalog.partition("t", 1) is None
    assert catalog.topic("t").missing == {1: ErrorCode.KAFKA_STORAGE_ERROR}
    [line] = [record.getMessage() for record in caplog.records]
    path = log_dir / "t-1"
    assert line == f"left out: the partition in {path}, which cannot be read: {path}: Permission denied"
    [(name, left_out)] = catalog.left_out
    assert (str(name), left_out.path) == ("t-1", path)
    assert isinstance(left_out.error, PermissionError)


def test_a_partition_that_is_left_out_has_the_name_that_clients_use_and_counts_only_if_it_is_selected(
    log_dir: Path,
) -> None:
    fs = UnreadableFs(log_dir / "t-1")
    renamed = served(log_dir, fs, renamings=(parse_renaming("other=t"),))
    assert [str(name) for name, _ in renamed.left_out] == ["other-1"]
    assert served(log_dir, fs, partitions=("t-0", "u-*")).left_out == []


def test_a_link_to_nothing_in_a_partition_is_named(log_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    link = log_dir / "t-1" / f"{5:020}.log"
    link.symlink_to(log_dir / "gone")
    log = served(log_dir, Fs()).partition("t", 1)
    assert log is not None and log.log_end_offset == 5
    assert caplog.messages == [f"left out: {link} is a dangling link"]


def test_a_lock_that_no_broker_can_hold_does_not_keep_a_directory_from_being_served(
    log_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    as_directory(log_dir / ".lock")
    assert len(served(log_dir, Fs()).topics()) == 2
    assert "no broker can hold such a lock" in caplog.text


def test_a_directory_that_cannot_be_listed_is_refused_in_a_sentence(log_dir: Path) -> None:
    with pytest.raises(NotALogDirectoryError, match="the directory cannot be read: Permission denied"):
        served(log_dir, UnreadableFs(log_dir))


# --------------------------------------------------------------------------------------------------------------- groups
def unlisted(partition: Path) -> Fs:
    return UnreadableFs(partition)


def without_snapshot(partition: Path) -> Fs:
    return UnreadableFs(max(partition.glob("*.snapshot")))


@pytest.mark.parametrize("damage", [unlisted, without_snapshot])
def test_the_groups_of_a_damaged_partition_get_an_error_that_ends_and_the_others_are_served(
    damage: Callable[[Path], Fs], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log_dir = unpacked(tmp_path / "data")
    damaged = coordinator_partition(GROUPS[0], 2)
    fs = damage(log_dir / f"__consumer_offsets-{damaged}")
    with KafkaServer(ServerOptions(ReadOnlyOptions((log_dir,)), Endpoint("127.0.0.1", 0)), fs) as running:
        client = Client.to(running.bound.port)
        fetch = m.OffsetFetchRequest

        def error(group: str) -> int:
            asked = fetch.OffsetFetchRequestGroup(group_id=group, topics=None)
            return int(client.ask(fetch(groups=[asked]), 9).groups[0].error_code)

        wait_until(lambda: error("of-nobody") != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        by_partition = {coordinator_partition(each, 2): error(each) for each in (*GROUPS, "a", "b", "c", "d")}
        assert by_partition == {damaged: ErrorCode.UNKNOWN_SERVER_ERROR, 1 - damaged: ErrorCode.NONE}
        consumer = KafkaConsumer(
            bootstrap_servers=f"127.0.0.1:{running.bound.port}", group_id=GROUPS[0], enable_auto_commit=False
        )
        with pytest.raises(KafkaError):
            consumer.committed(TopicPartition("orders", 0))
        consumer.close()
        client.socket.close()
    assert any(f"__consumer_offsets-{damaged}" in each and "cannot be read" in each for each in caplog.messages)

"""The checks before a live server takes over directories: a refusal changes nothing."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from sediment.engine.clone.cluster_records import topic_records
from sediment.engine.clone.new_node import format_new_node
from sediment.engine.clone.plan import ClonedTopic
from sediment.engine.directory.lock import DirectoryLock
from sediment.engine.metadata.bootstrap_records import merge_bootstrap_records
from sediment.engine.metadata.topic_records import partition_record, remove_topic_record
from sediment.segment_io.errors import CorruptBatchError, DirectoryInUseError, SourceChangedError, UsageError
from sediment.segment_io.format.checkpoints import format_uuid
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.internal_topics.bootstrap_checkpoint import format_bootstrap_checkpoint
from sediment.segment_io.internal_topics.metadata_records import encode_metadata_record
from sediment.segment_io.partition.clean_shutdown_file import (
    NEW_DIRECTORY,
    format_clean_shutdown,
    is_new_directory,
)
from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.segment_io.segment.fetched_batches import read_records
from sediment.server.live.owned_node import open_node, read_metadata
from tests.engine.live_logs import batch
from tests.served import contents, unpacked
from tests.server.live.nodes import NODE, NOW_MS, fetch, live, new_node, produce, topic_id, two_directories
from tests.server.read_only.log_dirs import kraft_dir, write_checkpoint, write_partition

QUORUM = {"process.roles": "broker,controller", "node.id": "7", "controller.quorum.voters": "7@localhost:9093"}


def remove_meta(path: Path) -> None:
    (path / "meta.properties").unlink()
    write_checkpoint(path / "recovery-point-offset-checkpoint", {})


def remove_bootstrap(path: Path) -> None:
    (path / "bootstrap.checkpoint").unlink()


def add_unknown_folder(path: Path) -> None:
    write_partition(path, "other-0", 1)


def add_folder_without_id(path: Path) -> None:
    write_partition(path, "t-0", 1)


def add_folder_of_another_topic(path: Path) -> None:
    write_partition(path, "t-0", 1)
    other = format_uuid(topic_id("u").bytes)
    (path / "t-0" / "partition.metadata").write_text(f"version: 0\ntopic_id: {other}\n")


def lose_a_folder(path: Path) -> None:
    write_checkpoint(path / "recovery-point-offset-checkpoint", {"t-1": 5})


def add_replicas(path: Path) -> None:
    topic = ClonedTopic("t", "t", format_uuid(topic_id("t").bytes), True, 1, (), {}, ())
    first, _ = topic_records(topic, {}, NODE, 20)
    record = m.PartitionRecord(partition_id=0, topic_id=topic_id("t"), replicas=[7, 8], isr=[7], leader=7)
    values = [first, encode_metadata_record(record, 0)]
    (path / "bootstrap.checkpoint").write_bytes(format_bootstrap_checkpoint(values, now_ms=NOW_MS))


def tier_a_topic(path: Path) -> None:
    values = [record.value or b"" for record in read_records((path / "bootstrap.checkpoint").read_bytes())]
    record = m.ConfigRecord(resource_type=2, resource_name="t", name="remote.storage.enable", value="true")
    values.append(encode_metadata_record(record, 0))
    (path / "bootstrap.checkpoint").write_bytes(format_bootstrap_checkpoint(values, now_ms=NOW_MS))


def stop_a_broker(path: Path) -> None:
    (path / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":17}')


REFUSALS: dict[Callable[[Path], None], str] = {
    remove_meta: "no meta.properties that names a node",
    remove_bootstrap: "the topics are not known",
    stop_a_broker: "the topics are not known",
    add_unknown_folder: "the cluster does not know the folder's topic",
    add_folder_without_id: "has no partition.metadata",
    add_folder_of_another_topic: "the cluster has another topic t",
    lose_a_folder: "its folder is missing",
    add_replicas: "replicas on nodes 7, 8",
    tier_a_topic: "reads no tiered storage",
}


@pytest.mark.parametrize("change", REFUSALS, ids=lambda change: change.__name__)
def test_a_directory_that_is_not_a_single_nodes_own_is_refused_and_stays_as_it_is(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    path = new_node(tmp_path / "data", {"t": 2})
    change(path)
    before = contents(path)
    with pytest.raises(UsageError, match=REFUSALS[change]), live(path):
        pass
    assert contents(path) == before


def test_other_voters_are_refused(tmp_path: Path) -> None:
    path = new_node(tmp_path / "data", {"t": 1})
    assert open_node([path], QUORUM, Fs()).node == NODE
    two = {**QUORUM, "controller.quorum.voters": "7@localhost:9093,8@localhost:9094"}
    with pytest.raises(UsageError, match="not the sole voter"):
        open_node([path], two, Fs())


def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    # The lock of a process of one's own does not count, so only the engine sees it here.
    path = new_node(tmp_path / "data", {"t": 1})
    lock = DirectoryLock(path)
    lock.acquire()
    with pytest.raises(DirectoryInUseError), live(path):
        pass
    lock.release()


def test_metadata_that_changes_during_the_start_is_refused_and_the_stop_is_clean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = unpacked(tmp_path / "data")
    found = open_node([path], None, Fs())
    monkeypatch.setattr(
        "sediment.server.backends.live.read_metadata",
        lambda *_: type(found.metadata)({}, {}, {}, found.metadata.end_offset + 1),
    )
    with pytest.raises(SourceChangedError, match="changed during the start"), live(path):
        pass
    assert (path / ".kafka_cleanshutdown").exists()


def test_a_metadata_log_that_appears_during_the_start_is_noticed(tmp_path: Path) -> None:
    path = new_node(tmp_path / "data", {"t": 1})
    found = open_node([path], None, Fs())
    shutil.copytree(unpacked(tmp_path / "other") / "__cluster_metadata-0", path / "__cluster_metadata-0")
    assert read_metadata(path, found.is_started, Fs()) != found.metadata


def test_a_partition_without_a_folder_begins_empty_if_it_was_never_written_to(tmp_path: Path) -> None:
    path = new_node(tmp_path / "data", {"t": 3})
    assert open_node([path], None, Fs()).absent == {TopicPartition("t", number): path for number in range(3)}
    with live(path) as server, server.connect() as client:
        assert produce(client, batch(), number=2).base_offset == 0
    assert (path / "t-2" / "partition.metadata").read_text().endswith(format_uuid(topic_id("t").bytes))
    assert not open_node([path], None, Fs()).absent
    shutil.rmtree(path / "t-1")
    with pytest.raises(UsageError, match="its folder is missing"):
        open_node([path], None, Fs())


def test_a_partition_does_not_begin_empty_without_a_proof_that_no_broker_used_the_directory(tmp_path: Path) -> None:
    # A broker that was killed may have its metadata log, and this folder, in a directory that is not named.
    path = new_node(tmp_path / "data", {"t": 1})
    (path / ".kafka_cleanshutdown").unlink()
    before = contents(path)
    with pytest.raises(UsageError, match="the folder may be in another one"), live(path):
        pass
    assert contents(path) == before


def test_a_partition_of_a_started_node_without_a_folder_is_refused(tmp_path: Path) -> None:
    # Its folder may be in a log directory that is not named, and no checkpoint of the named ones lists it.
    path, other = unpacked(tmp_path / "data"), tmp_path / "other"
    other.mkdir()
    (path / "orders-1").rename(other / "orders-1")
    for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
        lines = [line.split() for line in (path / name).read_text().splitlines()[2:]]
        offsets = {f"{topic}-{number}": int(offset) for topic, number, offset in lines}
        write_checkpoint(path / name, {partition: at for partition, at in offsets.items() if partition != "orders-1"})
    before = contents(path)
    with pytest.raises(UsageError, match="its folder is missing, and a broker creates it"), live(path):
        pass
    assert contents(path) == before


def test_a_directory_may_be_named_by_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new_node(tmp_path / "data", {"t": 1})
    monkeypatch.chdir(tmp_path)
    with live(Path("data")) as server, server.connect() as client:
        assert produce(client, batch()).error_code == ErrorCode.NONE


def test_partitions_begin_in_the_directory_with_the_metadata_and_a_later_start_needs_only_that_one(
    tmp_path: Path,
) -> None:
    first, second = two_directories(tmp_path)
    (first / "t-0" / "partition.metadata").unlink()
    (first / "t-0").rmdir()
    shutil.rmtree(second / "t-1")
    with live(first, second) as server, server.connect() as client:
        for number in (0, 1):
            assert produce(client, batch(), number=number).error_code == ErrorCode.NONE
    assert [path.name for path in sorted(first.glob("t-*"))] == ["t-0", "t-1"]
    assert list(second.glob("t-*")) == []
    with live(first) as server, server.connect() as client:
        assert [each.high_watermark for each in fetch(client, (0, 0), (1, 0))] == [1, 1]


def test_no_partition_begins_empty_if_a_directory_of_log_dirs_is_not_given(tmp_path: Path) -> None:
    path = new_node(tmp_path / "data", {"t": 1})
    log_dirs = (tmp_path / "a", tmp_path / "b")
    with pytest.raises(UsageError, match=r"log\.dirs has more entries than the given directories"):
        open_node([path], None, Fs(), log_dirs=log_dirs)
    assert open_node([path], None, Fs(), log_dirs=log_dirs[:1]).absent


def test_no_partition_begins_empty_after_its_records_went_to_another_directory(tmp_path: Path) -> None:
    first, second = two_directories(tmp_path)
    with live(first, second) as server, server.connect() as client:
        assert produce(client, batch(), number=1).error_code == ErrorCode.NONE
    with pytest.raises(UsageError, match="the folder may be in another one"):
        open_node([first], None, Fs())
    with live(first, second) as server, server.connect() as client:
        assert produce(client, batch(), number=1).base_offset == 1


def test_a_damaged_metadata_log_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    path = kraft_dir(tmp_path / "data")
    (log,) = (path / "__cluster_metadata-0").glob("*.log")
    content = bytearray(log.read_bytes())
    content[1000] ^= 1  # below the snapshot, so the metadata can be read
    log.write_bytes(content)
    before = contents(path)
    with pytest.raises(CorruptBatchError, match="a start truncates the log"), live(path):
        pass
    assert contents(path) == before


def test_an_unstarted_node_with_a_metadata_log_is_refused_with_advice_for_serving(tmp_path: Path) -> None:
    path = unpacked(tmp_path / "data")
    (path / "__cluster_metadata-0" / "leader-epoch-checkpoint").unlink()
    before = contents(path)
    with pytest.raises(UsageError, match="never been started") as refused, live(path):
        pass
    assert refused.value.advice == "add --read-only to serve it without writes, or clone the directory first"
    assert contents(path) == before


def test_no_partition_begins_in_a_directory_for_metadata_only(tmp_path: Path) -> None:
    path = new_node(tmp_path / "metadata", {"t": 1})
    before = contents(path)
    with pytest.raises(UsageError, match=r"metadata\.log\.dir, which is not an entry of log\.dirs"):
        open_node([path], None, Fs(), metadata_apart=True)
    assert contents(path) == before


def test_two_directories_of_one_node_are_served_together(tmp_path: Path) -> None:
    first, second = two_directories(tmp_path)
    with live(first, second) as server, server.connect() as client:
        for number in (0, 1):
            assert produce(client, batch(), number=number).error_code == ErrorCode.NONE
        assert [each.high_watermark for each in fetch(client, (0, 0), (1, 0))] == [1, 1]
    assert [(each / ".kafka_cleanshutdown").exists() for each in (first, second)] == [True, True]


def test_a_directory_that_is_new_stays_new_unless_its_server_is_killed(tmp_path: Path) -> None:
    path = new_node(tmp_path / "data", {"t": 1})
    (path / ".kafka_cleanshutdown").write_bytes(format_clean_shutdown(NEW_DIRECTORY))
    with live(path):
        assert not is_new_directory(Fs(), path)
        shutil.copytree(path, tmp_path / "killed")
    assert is_new_directory(Fs(), path)
    for _ in range(2):
        with live(tmp_path / "killed") as server, server.connect() as client:
            produce(client, batch())
        assert not is_new_directory(Fs(), tmp_path / "killed")


def records_of(path: Path) -> list[bytes]:
    return [record.value or b"" for record in read_records((path / "bootstrap.checkpoint").read_bytes())]


def test_a_folder_of_a_deleted_topic_is_renamed_to_stray(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = new_node(tmp_path / "data", {"t": 1, "u": 1})
    with live(path):
        pass
    values = merge_bootstrap_records(records_of(path), [remove_topic_record(topic_id("u"))])
    (path / "bootstrap.checkpoint").write_bytes(format_bootstrap_checkpoint(values, now_ms=NOW_MS))
    assert open_node([path], None, Fs()).removed == (path / "u-0",)
    with caplog.at_level("WARNING"), live(path) as server:
        assert [topic.name for topic in server.server.catalog.topics()] == ["t"]
    assert f"{path / 'u-0'} belongs to a deleted topic" in caplog.text
    (renamed,) = path.glob("u-*")
    assert renamed.name.endswith("-stray")
    assert not open_node([path], None, Fs()).removed


def test_a_partition_that_a_killed_server_added_is_created_without_a_marker(tmp_path: Path) -> None:
    path = new_node(tmp_path / "data", {"t": 1})
    with live(path):
        pass
    added = partition_record(topic_id("t"), 1, NODE.node_id, NODE.directory_id, metadata_version=29)
    values = merge_bootstrap_records(records_of(path), [added])
    (path / "bootstrap.checkpoint").write_bytes(format_bootstrap_checkpoint(values, now_ms=NOW_MS))
    (path / ".kafka_cleanshutdown").unlink()
    assert open_node([path], None, Fs()).absent == {TopicPartition("t", 1): path}
    elsewhere = partition_record(topic_id("t"), 1, NODE.node_id, format_uuid(bytes(15) + b"\7"), metadata_version=29)
    values = merge_bootstrap_records(records_of(path), [elsewhere])
    (path / "bootstrap.checkpoint").write_bytes(format_bootstrap_checkpoint(values, now_ms=NOW_MS))
    with pytest.raises(UsageError, match="its log directory is not named"):
        open_node([path], None, Fs())


def test_a_directory_that_was_only_formatted_is_served(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.mkdir()
    node = format_new_node(path, Fs(), now_ms=NOW_MS)
    found = open_node([path], None, Fs())
    assert (found.node, found.metadata.topic_ids, found.is_started) == (node, {}, False)
    with live(path) as server:
        assert server.server.catalog.node_id == node.node_id

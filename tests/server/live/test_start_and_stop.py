"""Start and stop of a live server, on directories that are whole, unclean, damaged or failing."""

from __future__ import annotations

import errno
import shutil
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sediment.engine.directory.lock import lock_holder
from sediment.segment_io.errors import StorageError
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.internal_topics.metadata_log import (
    ClusterMetadata,
    read_bootstrap_checkpoint,
    read_cluster_metadata,
)
from sediment.segment_io.internal_topics.quorum_state import read_quorum_state
from sediment.segment_io.partition.clean_shutdown_file import CleanShutdown, format_clean_shutdown
from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.backends.live_options import LiveOptions
from sediment.server.errors import StartStoppedError
from sediment.server.kafka_server import KafkaServer, ServerOptions
from sediment.server.network.endpoints import Endpoint
from tests.engine.live_logs import batch, config
from tests.engine.managed import FailingFs
from tests.served import contents, unpacked
from tests.server.live.nodes import CONFIG, commit, fetch, live, live_options, new_node, produce, two_directories
from tests.server.network.listeners import Client
from tests.waiting import wait_until

MARKER = ".kafka_cleanshutdown"


class FullForMetadata(Fs):
    """A disk on which bootstrap.checkpoint cannot be replaced."""

    def replace_file(self, path: Path, content: bytes, *, like: Path | None = None) -> None:
        if path.name == "bootstrap.checkpoint":
            raise OSError(errno.ENOSPC, "disk full")
        super().replace_file(path, content, like=like)


def metadata_of(path: Path) -> ClusterMetadata:
    # Without a marker, a bootstrap.checkpoint counts only for a server that starts on the directory.
    found = read_cluster_metadata(path, Fs()) or read_bootstrap_checkpoint(path, Fs())
    assert found is not None
    return found


def written(path: Path) -> dict[str, bytes]:
    """Return the content of every file, except those that a start makes before it loads a log."""
    made = (".lock", "cleaner-offset-checkpoint")
    return {name: content for name, (_, _, content) in contents(path).items() if name not in made}


def quorum(client: Client, version: int, topic: str = "__cluster_metadata", numbers: Sequence[int] = (0,)) -> Any:
    request = m.DescribeQuorumRequest
    partitions = [request.PartitionData(partition_index=number) for number in numbers]
    return client.ask(request(topics=[request.TopicData(topic_name=topic, partitions=partitions)]), version)


def partition_of(response: Any) -> Any:
    ((partition,),) = (topic.partitions for topic in response.topics)
    return partition


def end_of_epoch(client: Client, epoch: int) -> tuple[int, int]:
    """Return (epoch, end offset) for a consumer of t-0 whose last record has this epoch."""
    request = m.OffsetForLeaderEpochRequest
    partition = request.OffsetForLeaderPartition(partition=0, leader_epoch=epoch)
    asked = request(topics=[request.OffsetForLeaderTopic(topic="t", partitions=[partition])])
    (found,) = client.ask(asked, 4).topics[0].partitions
    return found.leader_epoch, found.end_offset


# ------------------------------------------------------------------------------------------------ after an unclean stop
def test_after_an_unclean_stop_partitions_have_a_new_leader_epoch_before_the_first_append(tmp_path: Path) -> None:
    path = new_node(tmp_path / "data", {"t": 2})
    with live(path) as server, server.connect() as client:
        produce(client, batch(("k", "v"), ("k", "w")))
    assert metadata_of(path).leader_epochs == {"t": {0: 0, 1: 0}}
    for turn in (1, 2):
        (path / MARKER).unlink()
        with live(path) as server, server.connect() as client:
            assert metadata_of(path).leader_epochs == {"t": {0: turn, 1: turn}}
            produce(client, batch())
            # A consumer past this offset has read records that the log lost.
            assert end_of_epoch(client, turn - 1) == (turn - 1, turn + 1)
            assert server.server.catalog.partition("t", 0).leader_epoch == turn


def test_a_marker_that_recover_wrote_counts_as_an_unclean_stop(tmp_path: Path) -> None:
    path = new_node(tmp_path / "data", {"t": 1})
    with live(path) as server, server.connect() as client:
        produce(client, batch())
    (path / MARKER).write_bytes(format_clean_shutdown(CleanShutdown(None)))
    for _ in range(2):  # a second start has no reason to raise the epoch again
        with live(path):
            assert metadata_of(path).leader_epochs == {"t": {0: 1}}


def test_after_an_unclean_stop_the_leader_epochs_are_raised_once(tmp_path: Path) -> None:
    path = unpacked(tmp_path / "data")
    before = metadata_of(path)
    (path / MARKER).unlink()
    ends = []
    for _ in range(2):
        with live(path):
            pass
        ends.append(metadata_of(path).end_offset)
    assert ends[0] > before.end_offset
    assert ends[1] == ends[0]


def test_a_metadata_log_gets_the_new_leader_epochs(tmp_path: Path) -> None:
    path = unpacked(tmp_path / "data")
    before = metadata_of(path)
    (path / MARKER).unlink()
    with live(path) as server:
        catalog = server.server.catalog
        led = {topic.name: {n: each.leader_epoch for n, each in topic.partitions.items()} for topic in catalog.topics()}
    after = metadata_of(path)
    assert after.leader_epochs == led
    assert led == {name: {n: each + 1 for n, each in epochs.items()} for name, epochs in before.leader_epochs.items()}
    assert after.end_offset > before.end_offset


def test_many_leader_epochs_are_raised_without_a_metadata_transaction(tmp_path: Path) -> None:
    path = unpacked(tmp_path / "data")
    (path / MARKER).unlink()
    before = metadata_of(path)
    partitions = sum(map(len, before.leader_epochs.values()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sediment.segment_io.internal_topics.metadata_batches._MOST_RECORDS", 2)
        with live(path):
            pass
    after = metadata_of(path)
    assert after.end_offset == before.end_offset + partitions  # no records of a transaction
    raised = {name: {n: each + 1 for n, each in epochs.items()} for name, epochs in before.leader_epochs.items()}
    assert after.leader_epochs == raised


def test_a_clean_start_leaves_the_metadata_alone(tmp_path: Path) -> None:
    path = unpacked(tmp_path / "data")
    before = metadata_of(path)
    with live(path):
        pass
    assert metadata_of(path) == before


def test_a_start_that_fails_before_the_epochs_are_raised_leaves_no_marker(tmp_path: Path) -> None:
    path = new_node(tmp_path / "data", {"t": 1})
    with live(path):
        pass
    (path / MARKER).unlink()
    disk = FullForMetadata()
    with pytest.raises(StorageError, match=r"bootstrap\.checkpoint"), live(path, fs=disk):
        pass
    assert not (path / MARKER).exists()
    with live(path) as server:
        assert server.server.catalog.partition("t", 0).leader_epoch == 1
    assert metadata_of(path).leader_epochs == {"t": {0: 1}}
    assert (path / MARKER).exists()


def test_a_start_that_lacks_a_disk_leaves_the_other_one_without_a_marker_after_an_unclean_stop(tmp_path: Path) -> None:
    first, second = two_directories(tmp_path)
    with live(first, second):
        pass
    for path in (first, second):
        (path / MARKER).unlink()
    fs = FailingFs()
    fs.broken.add(second / "t-1" / f"{0:020d}.log")
    with pytest.raises(StorageError, match="the log directory cannot be used"), live(first, second, fs=fs):
        pass
    assert [(path / MARKER).exists() for path in (first, second)] == [False, False]
    before = metadata_of(first).leader_epochs["t"]
    with live(first, second) as server:
        epochs = {number: server.server.catalog.partition("t", number).leader_epoch for number in (0, 1)}
    assert epochs == metadata_of(first).leader_epochs["t"] == {number: epoch + 1 for number, epoch in before.items()}


def test_a_partition_without_a_folder_begins_under_the_leader_epoch_of_the_metadata(tmp_path: Path) -> None:
    path = new_node(tmp_path / "data", {"t": 1}, leader_epochs={TopicPartition("t", 0): 5})
    with live(path) as server, server.connect() as client:
        assert server.server.catalog.partition("t", 0).leader_epoch == 5
        produce(client, batch())
        assert end_of_epoch(client, 5) == (5, 1)


def test_a_folder_that_a_broker_was_about_to_delete_stays(tmp_path: Path) -> None:
    path = new_node(tmp_path / "data", {"t": 1})
    with live(path) as server, server.connect() as client:
        produce(client, batch())
    renamed = path / f"gone-0.{'ab' * 16}-delete"
    shutil.copytree(path / "t-0", renamed)
    now = {"log.initial.task.delay.ms": 0, "log.segment.delete.delay.ms": 0}
    options = replace(live_options(path), broker_values=lambda *_: now)
    with KafkaServer(ServerOptions(options, Endpoint("127.0.0.1", 0)), Fs()):
        time.sleep(0.2)
    assert renamed.is_dir()


# ------------------------------------------------------------------------------------------------------ a stopped start
def test_a_start_that_is_stopped_leaves_the_directory_as_it_was(tmp_path: Path) -> None:
    path = unpacked(tmp_path / "data")
    before = written(path)
    stop = threading.Event()
    stop.set()
    options = ServerOptions(LiveOptions((path,), lambda *_: lambda _: CONFIG), Endpoint("127.0.0.1", 0))
    with pytest.raises(StartStoppedError), KafkaServer(options, Fs(), stop):
        pass
    assert written(path) == before


# --------------------------------------------------------------------------------------------------------- failed disks
def test_a_server_starts_only_with_every_directory_of_its_node(tmp_path: Path) -> None:
    first, second = two_directories(tmp_path)
    with live(first, second):
        pass
    (second / MARKER).unlink()  # so that the start reads the log
    fs = FailingFs()
    fs.broken.add(second / "t-1" / f"{0:020d}.log")
    with pytest.raises(StorageError, match="the log directory cannot be used"), live(first, second, fs=fs):
        pass
    assert (first / MARKER).exists()
    with live(first, second) as server, server.connect() as client:
        assert produce(client, batch(), number=1).error_code == ErrorCode.NONE


def test_metadata_is_not_written_to_a_failed_directory(tmp_path: Path) -> None:
    first, second = two_directories(tmp_path)
    fs = FailingFs()
    with live(first, second, fs=fs) as server, server.connect() as client:
        fs.broken.add(first / "t-0")
        assert produce(client, batch()).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        wait_until(lambda: lock_holder(first) is None)
        before = (first / "bootstrap.checkpoint").read_bytes()
        answer = client.ask(m.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000), 4)
        assert ErrorCode(answer.error_code) is not ErrorCode.NONE
        assert (first / "bootstrap.checkpoint").read_bytes() == before


def test_a_server_whose_directories_have_all_failed_is_not_usable(tmp_path: Path) -> None:
    path = new_node(tmp_path / "data", {"t": 1})
    fs = FailingFs()
    with live(path, fs=fs) as server, server.connect() as client:
        server.server.check_usable()
        fs.broken.add(path)
        assert produce(client, batch()).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        wait_until(lambda: server.server.backend.failure is not None)
        with pytest.raises(StorageError, match="every log directory has failed"):
            server.server.check_usable()
    assert not (path / MARKER).exists()


# ---------------------------------------------------------------------------------------------------- committed offsets
def test_commits_are_refused_for_good_if_the_cluster_cannot_keep_them(tmp_path: Path) -> None:
    with live(new_node(tmp_path / "data", {"t": 1})) as server, server.connect() as client:
        assert commit(client, "g", 1) == ErrorCode.GROUP_AUTHORIZATION_FAILED


def test_commits_stay_in_the_offsets_topic(tmp_path: Path) -> None:
    path = new_node(tmp_path / "data", {"t": 1, "__consumer_offsets": 3})
    with live(path, flush_acks=True) as server, server.connect() as client:
        assert [commit(client, "g", offset) for offset in (1, 2)] == [ErrorCode.NONE, ErrorCode.NONE]
    with live(path) as server, server.connect() as client:
        assert commit(client, "other", 7) == ErrorCode.NONE
        request = m.OffsetFetchRequest
        group = request.OffsetFetchRequestGroup(group_id="g", topics=None)
        (found,) = client.ask(request(groups=[group]), 8).groups
        assert found.topics[0].partitions[0].committed_offset == 2


def test_records_that_are_too_large_for_the_offsets_topic_are_refused_for_good(tmp_path: Path) -> None:
    path = new_node(tmp_path / "data", {"t": 1, "__consumer_offsets": 1})
    small = config(segment_bytes=1 << 20, max_message_bytes=80)
    with live(path, topic_config=lambda _: small) as server, server.connect() as client:
        assert commit(client, "g" * 60, 1) == ErrorCode.INVALID_COMMIT_OFFSET_SIZE
        assert fetch(client, (0, 0))[0].error_code == ErrorCode.NONE


def test_supported_features_are_those_of_the_newest_release_from_level_0_on(tmp_path: Path) -> None:
    request = m.ApiVersionsRequest(client_software_name="test", client_software_version="1")
    own = {"metadata.version": 25, "group.version": 1, "transaction.version": 1, "of.a.later.release": 3}
    with live(new_node(tmp_path / "data", {}, features=own)) as server, server.connect() as client:
        newer, older = client.ask(request, 4), client.ask(request, 3)
    supported = {each.name: (each.min_version, each.max_version) for each in newer.supported_features}
    assert supported == {
        "metadata.version": (7, 29),
        "kraft.version": (0, 1),
        "transaction.version": (0, 2),
        "group.version": (0, 1),
        "eligible.leader.replicas.version": (0, 1),
        "share.version": (0, 1),
        "streams.version": (0, 1),
        "of.a.later.release": (3, 3),
    }
    # KAFKA-17011: older clients reject a range that begins at 0.
    assert [each.name for each in older.supported_features if not each.min_version] == []
    assert [each.name for each in older.supported_features] == ["metadata.version", "of.a.later.release"]
    finalized = {each.name: each.max_version_level for each in newer.finalized_features}
    assert {name: finalized[name] for name in own} == own
    assert "kraft.version" not in finalized


@pytest.mark.parametrize("version", [0, 1, 2])
def test_the_quorum_has_one_voter_that_leads_without_a_lag(version: int, tmp_path: Path) -> None:
    with live(new_node(tmp_path / "data", {"t": 1})) as server, server.connect() as client:
        before_ms = time.time_ns() // 1_000_000
        response = quorum(client, version)
        new = m.CreateTopicsRequest.CreatableTopic(name="new", num_partitions=1, replication_factor=1)
        client.ask(m.CreateTopicsRequest(topics=[new]), 7)
        after = partition_of(quorum(client, version))
    found = partition_of(response)
    (voter,) = found.current_voters
    assert (response.error_code, found.error_code, found.observers) == (ErrorCode.NONE, ErrorCode.NONE, ())
    assert (found.leader_id, voter.replica_id) == (7, 7)
    assert voter.log_end_offset == found.high_watermark > 0
    assert after.high_watermark > found.high_watermark
    if version >= 1:
        assert voter.last_fetch_timestamp == voter.last_caught_up_timestamp >= before_ms
    if version >= 2:
        assert voter.replica_directory_id.int == 0  # of a static quorum


def test_a_quorum_of_another_topic_is_unknown(tmp_path: Path) -> None:
    with live(new_node(tmp_path / "data", {"t": 1})) as server, server.connect() as client:
        for name, numbers in (("t", [0]), ("__cluster_metadata", [1]), ("__cluster_metadata", [0, 1])):
            (described,) = quorum(client, 2, name, numbers).topics
            assert [each.partition_index for each in described.partitions] == numbers
            assert {each.error_code for each in described.partitions} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


def test_the_quorum_of_a_started_node_has_the_epoch_and_the_end_of_its_metadata_log(tmp_path: Path) -> None:
    path = unpacked(tmp_path / "data")
    state, metadata = read_quorum_state(path / "__cluster_metadata-0", Fs()), read_cluster_metadata(path, Fs())
    assert state is not None and metadata is not None
    with live(path) as server, server.connect() as client:
        found = partition_of(quorum(client, 2))
    assert (found.leader_epoch, found.high_watermark) == (state.leader_epoch, metadata.end_offset)

"""Changes of topics that fail, are interrupted, or meet another change."""

from __future__ import annotations

import errno
import os
import shutil
import time
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from sediment.engine.live.manager.log_deletion import remove_renamed
from sediment.engine.metadata.topic_records import remove_topic_record
from sediment.segment_io.errors import StorageError, UsageError
from sediment.segment_io.format.checkpoints import format_uuid
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.fs import Fs, OpenFile
from sediment.segment_io.internal_topics.bootstrap_checkpoint import format_bootstrap_checkpoint
from sediment.segment_io.internal_topics.metadata_records import encode_metadata_record
from sediment.segment_io.partition.checkpoint_files import read_offset_checkpoint, read_partition_metadata
from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.segment_io.segment.fetched_batches import read_records
from sediment.server.backends.live import LiveBackend
from sediment.server.errors import ApiError
from sediment.server.live.partition import Partition
from sediment.server.live.topic_rules import MorePartitions, NewTopic, check_more_partitions
from sediment.server.live.topic_store import CreatedTopic
from tests.engine.live_logs import batch
from tests.engine.managed import FailingFs, ShortFs, short
from tests.engine.metadata.test_metadata_writers import log_writer
from tests.served import contents, unpacked
from tests.server.live.nodes import NOW_MS, commit, fetch, live, new_node, opened, produce, topic_id, two_directories


def create(backend: LiveBackend, name: str = "new", count: int = 1) -> uuid.UUID:
    (made,) = backend.topics.create([NewTopic(name, count)])
    assert isinstance(made, CreatedTopic), made
    return made.id


def delete(backend: LiveBackend, name: str = "new") -> Mapping[str, ApiError]:
    topic = backend.catalog.topic(name)
    assert topic is not None
    return backend.topics.delete({name: topic.id})


def add_partitions(backend: LiveBackend, count: int, name: str = "new", *, validate_only: bool = False) -> ErrorCode:
    (error,) = backend.topics.add_partitions([MorePartitions(name, count)], validate_only=validate_only)
    return ErrorCode.NONE if error is None else error.code


def append(backend: LiveBackend, name: str = "new", number: int = 0) -> int:
    return partition_of(backend, name, number).append(batch(("k", "v"))).first_offset


def partition_of(backend: LiveBackend, name: str = "new", number: int = 0) -> Partition:
    partition = backend.catalog.partition(name, number)
    assert partition is not None
    return partition


def killed(path: Path) -> Path:
    """Return the directory as a kill would leave it now; its page cache survives."""
    copy = path.with_name(f"{path.name}-killed")
    shutil.copytree(path, copy)
    return copy


@pytest.fixture(params=["bootstrap", "log"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a node that was never started, or one that Kafka has run."""
    if request.param == "bootstrap":
        return new_node(tmp_path / "data", {"t": 1})
    return unpacked(tmp_path / "data")


# -------------------------------------------------------------------------------------------------------- other changes
def test_a_topic_that_was_created_again_under_its_name_is_not_deleted(path: Path) -> None:
    with opened(path) as backend:
        first = create(backend)
        delete(backend)
        second = create(backend)
        errors = backend.topics.delete({"new": first})
        assert {name: error.code for name, error in errors.items()} == {"new": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        topic = backend.catalog.topic("new")
        assert topic is not None and topic.id == second
        assert append(backend) == 0


def test_topics_that_another_change_deletes_during_their_deletion_are_unknown(tmp_path: Path) -> None:
    path = new_node(tmp_path / "data", {"a": 1, "b": 1})
    with live(path) as server, server.connect() as client:
        backend = server.server.backend
        assert isinstance(backend, LiveBackend)
        state = m.DeleteTopicsRequest.DeleteTopicState
        states = [state(name=None, topic_id=topic_id("a")), state(name="b")]
        with backend.topics._guard:
            client.send(m.DeleteTopicsRequest(topics=states), 6)
            time.sleep(0.1)  # the request has found both topics, and waits
            for name in ("a", "b"):
                delete(backend, name)
            create(backend, "a")
        _, response = client.receive(m.DeleteTopicsRequest.API_KEY, 6)
        assert {(each.name, each.error_code) for each in response.responses} == {
            (None, ErrorCode.UNKNOWN_TOPIC_ID),
            ("b", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        }
        assert append(backend, "a") == 0


# ------------------------------------------------------------------------------------------------------------- too many
@pytest.mark.parametrize("validate_only", [False, True])
def test_partitions_are_counted_before_they_are_made(tmp_path: Path, validate_only: bool) -> None:
    huge = 2_000_000_000
    with opened(new_node(tmp_path / "data", {"t": 1})) as backend:
        for topics in ([NewTopic("a", huge)], [NewTopic("a", 5000), NewTopic("b", 5000), NewTopic("c")]):
            with pytest.raises(ApiError, match="Excessively large number of partitions per request") as caught:
                backend.topics.create(topics, validate_only=validate_only)
            assert caught.value.code is ErrorCode.POLICY_VIOLATION
        assert add_partitions(backend, huge, "t", validate_only=validate_only) is ErrorCode.POLICY_VIOLATION
        assert list(backend.catalog.metadata.topic_ids) == ["t"]


def test_the_partitions_that_a_request_adds_to_all_its_topics_are_counted(tmp_path: Path) -> None:
    with opened(new_node(tmp_path / "data", {"a": 1, "b": 1, "c": 1})) as backend:
        asked = [MorePartitions("a", 6001), MorePartitions("b", 4002), MorePartitions("c", 4001)]
        outcomes = backend.topics.add_partitions(asked, validate_only=True)
        assert [None if each is None else each.code for each in outcomes] == [None, ErrorCode.POLICY_VIOLATION, None]
        asked = [MorePartitions("a", 3), MorePartitions("missing", 2), MorePartitions("b", 2)]
        outcomes = backend.topics.add_partitions(asked)
        assert [None if each is None else each.code for each in outcomes] == [
            None,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            None,
        ]
        assert [append(backend, *each) for each in (("a", 2), ("b", 1))] == [0, 0]
        assert [len(topic.partitions) for topic in backend.catalog.topics()] == [3, 2, 1]


def test_a_name_that_is_too_long_for_the_number_of_a_partition_is_refused() -> None:
    # A broker accepts the partition, and cannot make its folder.
    name = "a" * 249
    check_more_partitions(MorePartitions(name, 100_000), 99_999, 7)
    with pytest.raises(ApiError, match="the limit for a directory") as caught:
        check_more_partitions(MorePartitions(name, 100_001), 99_999, 7)
    assert caught.value.code is ErrorCode.INVALID_PARTITIONS


class CountingFs(Fs):
    """A disk that counts the changes of the metadata."""

    changes = 0

    def replace_file(self, path: Path, content: bytes, *, like: Path | None = None) -> None:
        self.changes += path.name == "bootstrap.checkpoint"
        super().replace_file(path, content, like=like)


def test_topics_that_a_metadata_request_causes_are_one_change(tmp_path: Path) -> None:
    path, fs = new_node(tmp_path / "data", {}), CountingFs()
    keys: dict[str, Any] = {"auto_create_topics_enable": True, "num_partitions": 2}
    with live(path, fs=fs, **keys) as server, server.connect() as client:
        asked = m.MetadataRequest.MetadataRequestTopic
        names = ["a", "b", "a b", "__share_group_state"]
        response = client.ask(m.MetadataRequest(topics=[asked(name=name) for name in names]), 12)
        found = {each.name: (len(each.partitions), each.error_code) for each in response.topics}
        assert found == {
            "a": (2, ErrorCode.NONE),
            "b": (2, ErrorCode.NONE),
            "a b": (0, ErrorCode.INVALID_TOPIC_EXCEPTION),
            "__share_group_state": (0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        }
        assert fs.changes == 1
        many = [asked(name=f"m{number}") for number in range(5001)]
        response = client.ask(m.MetadataRequest(topics=many), 12)
        assert {each.error_code for each in response.topics} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        assert fs.changes == 1


# ----------------------------------------------------------------------------------------------------------- open files
def test_without_free_descriptors_nothing_is_created_or_deleted(path: Path) -> None:
    fs = ShortFs()
    with opened(path, fs=fs) as backend:
        create(backend)
        append(backend)
        before = backend.catalog.metadata
        calls = (
            lambda: create(backend, "other"),
            lambda: delete(backend),
            lambda: add_partitions(backend, 2),
        )
        for call in calls:
            with short(fs), pytest.raises(ApiError, match="may open no more files") as caught:
                call()
            assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
            assert backend.catalog.metadata is before
        assert append(backend) == 1
        for call in calls[::-1]:
            call()
        assert sorted(backend.catalog.metadata.topic_ids.keys() & {"new", "other"}) == ["other"]


class RenamingFs(Fs):
    """A disk on which no folder can be opened while `is_short`, so that renames are not synced."""

    is_short = False

    def sync_directory(self, path: Path) -> None:
        if self.is_short and path.name == "data":
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))
        super().sync_directory(path)


def test_a_log_that_could_not_be_renamed_is_not_that_of_a_new_topic(tmp_path: Path) -> None:
    path, fs = unpacked(tmp_path / "data"), RenamingFs()
    with opened(path, fs=fs) as backend:
        create(backend)
        append(backend)
        fs.is_short = True
        assert delete(backend) == {}
        with pytest.raises(ApiError) as caught:
            create(backend)
        assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        fs.is_short = False
        create(backend)
        assert append(backend) == 0
    with opened(path) as backend:
        assert partition_of(backend).high_watermark == 1


def test_folders_that_a_creation_could_not_make_are_made_by_the_next_start_even_after_another_creation(
    path: Path,
) -> None:
    class Short(Fs):
        def make_unsynced_directory(self, path: Path, *, like: Path) -> None:
            if path.name.startswith("first"):
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            super().make_unsynced_directory(path, like=like)

    with opened(path, fs=Short()) as backend:
        outcomes = backend.topics.create([NewTopic("first", 2)])
        assert [each.code for each in outcomes if isinstance(each, ApiError)] == [ErrorCode.KAFKA_STORAGE_ERROR]
        create(backend, "second")
    with opened(path) as backend:
        assert [append(backend, "first", number) for number in (0, 1)] == [0, 0]
        assert append(backend, "second") == 0


class CountedFs(Fs):
    """A disk on which nothing can be opened after `left` checks of the spare descriptors."""

    left = 1 << 30

    def require_descriptors(self, count: int) -> None:
        self.left -= 1
        if self.left < 0:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def live_folders(path: Path, name: str = "new") -> list[str]:
    return sorted(each.name for each in path.glob(f"{name}-*") if each.suffix == "")


def create_short(backend: LiveBackend, count: int) -> list[int]:
    """Create a topic of which some logs are missing; return the numbers of the others."""
    (outcome,) = backend.topics.create([NewTopic("new", count)])
    assert isinstance(outcome, ApiError) and outcome.code is ErrorCode.KAFKA_STORAGE_ERROR
    topic = backend.catalog.topic("new")
    assert topic is not None
    return list(topic.partitions)


@pytest.mark.parametrize("restarts", [False, True])
def test_a_topic_of_which_not_all_logs_were_created_can_be_deleted_and_created_again(
    path: Path, restarts: bool
) -> None:
    fs = CountedFs()
    with opened(path, fs=fs) as backend:
        fs.left = 7
        made = create_short(backend, 8)
        fs.left = 1 << 30
        assert 1 <= len(made) < 8
        assert live_folders(path) == [f"new-{number}" for number in made]
        assert append(backend, number=made[-1]) == 0
        assert delete(backend) == {}
        assert live_folders(path) == []
        if not restarts:
            create(backend, count=8)
    with opened(path) as backend:
        if restarts:
            create(backend, count=8)
        assert [append(backend, number=number) for number in range(8)] == [0] * 8
        assert list(path.glob("*-stray")) == []


def test_a_start_creates_the_logs_that_a_creation_could_not_open(path: Path) -> None:
    fs = CountedFs()
    with opened(path, fs=fs) as backend:
        fs.left = 7
        made = create_short(backend, 8)
        fs.left = 1 << 30
        assert append(backend, number=made[-1]) == 0
    with opened(path) as backend:
        assert [append(backend, number=number) for number in range(8)] == [number == made[-1] for number in range(8)]


def test_clients_see_every_partition_of_a_topic_with_missing_logs(tmp_path: Path) -> None:
    path, fs = new_node(tmp_path / "data", {"t": 1}), CountedFs()
    with live(path, fs=fs) as server, server.connect() as client:
        backend = server.server.backend
        assert isinstance(backend, LiveBackend)
        fs.left = 7
        made = create_short(backend, 8)
        fs.left = 1 << 30
        with_log = [number in made for number in range(8)]
        topics = [m.MetadataRequest.MetadataRequestTopic(name="new")]
        (found,) = client.ask(m.MetadataRequest(topics=topics), 12).topics
        describe = m.DescribeTopicPartitionsRequest
        (described,) = client.ask(describe(topics=[describe.TopicRequest(name="new")]), 0).topics
        for each in (found, described):
            assert each.error_code == ErrorCode.NONE
            assert [
                (p.partition_index, p.error_code, p.leader_id, list(p.isr_nodes), list(p.offline_replicas))
                for p in each.partitions
            ] == [
                (number, ErrorCode.NONE, 7, [7], [])
                if is_there
                else (number, ErrorCode.LEADER_NOT_AVAILABLE, -1, [], [7])
                for number, is_there in enumerate(with_log)
            ]
        codes = [ErrorCode.NONE if is_there else ErrorCode.KAFKA_STORAGE_ERROR for is_there in with_log]
        answers = [produce(client, batch(), number=number, asked_id=found.topic_id) for number in range(9)]
        assert [each.error_code for each in answers] == [*codes, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        (listed,) = client.ask(offsets_request("new", range(8)), 8).topics
        assert [each.error_code for each in listed.partitions] == codes
        (deleted,) = client.ask(deletion_request("new", range(9)), 2).topics
        found_codes = [each.error_code for each in deleted.partitions]
        assert found_codes == [*codes, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        producers = m.DescribeProducersRequest
        asked = producers(topics=[producers.TopicRequest(name="new", partition_indexes=range(9))])
        (described,) = client.ask(asked, 0).topics
        found_codes = [each.error_code for each in described.partitions]
        assert found_codes == [*codes, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


@pytest.mark.parametrize(
    ("election_type", "without_log"),
    [(0, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE), (1, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE)],
)
def test_offsets_and_elections_concern_partitions_without_logs_too(
    tmp_path: Path, election_type: int, without_log: ErrorCode
) -> None:
    path, fs = new_node(tmp_path / "data", {"t": 1, "__consumer_offsets": 1}), CountedFs()
    with live(path, fs=fs) as server, server.connect() as client:
        backend = server.server.backend
        assert isinstance(backend, LiveBackend)
        assert commit(client, "group", 1) is ErrorCode.NONE
        fs.left = 7
        made = create_short(backend, 8)
        fs.left = 1 << 30
        missing = next(number for number in range(8) if number not in made)
        numbers = [made[0], missing, 8]

        elect = m.ElectLeadersRequest
        asked = elect(
            election_type=election_type, topic_partitions=[elect.TopicPartitions(topic="new", partitions=numbers)]
        )
        (elected,) = client.ask(asked, 2).replica_election_results
        assert [each.error_code for each in elected.partition_result] == [
            ErrorCode.ELECTION_NOT_NEEDED,
            without_log,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]

        known = [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        offsets = m.OffsetCommitRequest
        partitions = [
            offsets.OffsetCommitRequestPartition(partition_index=each, committed_offset=5) for each in numbers
        ]
        asked = offsets(group_id="group", topics=[offsets.OffsetCommitRequestTopic(name="new", partitions=partitions)])
        (committed,) = client.ask(asked, 8).topics
        assert [each.error_code for each in committed.partitions] == known
        deletion = m.OffsetDeleteRequest
        partitions = [deletion.OffsetDeleteRequestPartition(partition_index=each) for each in numbers]
        asked = deletion(
            group_id="group", topics=[deletion.OffsetDeleteRequestTopic(name="new", partitions=partitions)]
        )
        (deleted,) = client.ask(asked, 0).topics
        assert [each.error_code for each in deleted.partitions] == known


def deletion_request(topic: str, numbers: Iterable[int]) -> Any:
    request = m.DeleteRecordsRequest
    partitions = [request.DeleteRecordsPartition(partition_index=number, offset=0) for number in numbers]
    return request(topics=[request.DeleteRecordsTopic(name=topic, partitions=partitions)], timeout_ms=1000)


def offsets_request(topic: str, numbers: Iterable[int]) -> Any:
    request = m.ListOffsetsRequest
    partitions = [request.ListOffsetsPartition(partition_index=number, timestamp=-1) for number in numbers]
    return request(replica_id=-1, topics=[request.ListOffsetsTopic(name=topic, partitions=partitions)])


def test_a_topic_whose_folders_could_not_be_synced_can_be_deleted_and_created_again(tmp_path: Path) -> None:
    path, fs = unpacked(tmp_path / "data"), RenamingFs()
    with opened(path, fs=fs) as backend:
        fs.is_short = True
        assert create_short(backend, 2) == []
        assert live_folders(path) == []
        fs.is_short = False
        delete(backend)
        create(backend, count=2)
        assert [append(backend, number=number) for number in range(2)] == [0, 0]


def test_no_topic_is_created_if_a_folder_has_the_name_of_its_partition(path: Path) -> None:
    with opened(path) as backend:
        (path / "new-1").mkdir()
        before = backend.catalog.metadata
        with pytest.raises(ApiError, match="has the name of the new partition") as caught:
            create(backend, count=2)
        assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        assert backend.catalog.metadata is before
        create(backend, count=1)
        with pytest.raises(ApiError, match="has the name of the new partition"):
            add_partitions(backend, 2)
        (path / "new-1").rmdir()


def test_nothing_changes_after_the_stop(path: Path) -> None:
    with opened(path) as backend:
        create(backend)
        store, metadata = backend.topics, backend.catalog.metadata
    before = contents(path)
    for call in (
        lambda: create(backend, "other"),
        lambda: delete(backend),
        lambda: add_partitions(backend, 2),
        lambda: store.replace_configs("new", {"retention.ms": "1"}),
    ):
        with pytest.raises(ApiError):
            call()
        assert backend.catalog.metadata is metadata
    for action in (
        lambda: backend._manager.create_log(TopicPartition("other", 0)),
        lambda: backend._manager.create_logs({}, {}),
        lambda: backend._manager.delete_logs([TopicPartition("new", 0)]),
    ):
        with pytest.raises(StorageError, match="the engine stops, or was stopped"):
            action()
    assert contents(path) == before


def test_records_are_not_deleted_if_their_log_start_cannot_be_stored(tmp_path: Path) -> None:
    class Unwritten(Fs):
        is_short = False

        def replace_file(self, path: Path, content: bytes, *, like: Path | None = None) -> None:
            if self.is_short and path.name == "log-start-offset-checkpoint":
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            super().replace_file(path, content, like=like)

    path, fs = new_node(tmp_path / "data", {"t": 1}), Unwritten()
    with live(path, fs=fs) as server, server.connect() as client:
        for _ in range(3):
            produce(client, batch())
        request = m.DeleteRecordsRequest
        partition = request.DeleteRecordsPartition(partition_index=0, offset=2)
        asked = request(topics=[request.DeleteRecordsTopic(name="t", partitions=[partition])], timeout_ms=1000)
        fs.is_short = True
        (result,) = client.ask(asked, 2).topics[0].partitions
        assert (result.error_code, result.low_watermark) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
        fs.is_short = False
        (result,) = client.ask(asked, 2).topics[0].partitions
        assert (result.error_code, result.low_watermark) == (ErrorCode.NONE, 2)


# ------------------------------------------------------------------------------------------------------------- the disk
def test_a_topic_of_which_it_is_not_known_whether_it_was_deleted_takes_no_more_records(tmp_path: Path) -> None:
    first, second = two_directories(tmp_path)

    class Unsynced(Fs):
        is_broken = False

        def sync_directory(self, path: Path) -> None:
            if self.is_broken and path == first:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            super().sync_directory(path)

    fs = Unsynced()
    with live(first, second, fs=fs) as server, server.connect() as client:
        assert produce(client, batch(), number=1).error_code == ErrorCode.NONE
        fs.is_broken = True
        states = [m.DeleteTopicsRequest.DeleteTopicState(name="t")]
        (result,) = client.ask(m.DeleteTopicsRequest(topics=states), 6).responses
        assert result.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        for number in (0, 1):
            assert produce(client, batch(), number=number).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert fetch(client, (1, 0))[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
        backend = server.server.backend
        assert isinstance(backend, LiveBackend)
        failed, other = backend._manager.directories()
        assert (failed.is_offline, other.is_offline) == (True, False)
        failure = partition_of(backend, "t", 1).failure
        assert isinstance(failure, StorageError) and "not known" in str(failure)
    with opened(first, second) as backend:
        assert backend.catalog.topic("t") is None


def test_a_failed_sync_of_the_metadata_log_takes_its_directory_offline(tmp_path: Path) -> None:
    class Unsynced(Fs):
        is_broken = False

        def open_file(self, path: Path) -> OpenFile:
            disk = self

            class File(OpenFile):
                def sync(self) -> None:
                    if disk.is_broken and self.path.parent.name == "__cluster_metadata-0":
                        raise OSError(errno.EIO, os.strerror(errno.EIO))
                    super().sync()

            return File(path, create=False)

    path, fs = unpacked(tmp_path / "data"), Unsynced()
    with opened(path, fs=fs) as backend:
        create(backend)
        fs.is_broken = True
        with pytest.raises(ApiError) as caught:
            delete(backend)
        assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        assert [directory.is_offline for directory in backend._manager.directories()] == [True]
        with pytest.raises(StorageError, match="not known whether the topic was deleted"):
            append(backend)
    with opened(path) as backend:
        assert backend.catalog.topic("new") is None


def test_a_durable_topic_is_shown_even_if_its_logs_fail_in_an_unknown_way(path: Path) -> None:
    class Strange(Fs):
        def make_unsynced_directory(self, path: Path, *, like: Path) -> None:
            if path.name.startswith("new"):
                raise RuntimeError("unknown")
            super().make_unsynced_directory(path, like=like)

    with opened(path, fs=Strange()) as backend:
        with pytest.raises(RuntimeError, match="unknown"):
            backend.topics.create([NewTopic("new")])
        (outcome,) = backend.topics.create([NewTopic("new")])
        assert isinstance(outcome, ApiError) and outcome.code is ErrorCode.TOPIC_ALREADY_EXISTS
    with opened(path) as backend:
        assert append(backend) == 0


# ---------------------------------------------------------------------------------------------------------------- kills
def test_a_kill_after_a_topic_was_deleted_and_before_a_new_one_of_its_name_has_its_folder(path: Path) -> None:
    class Short(Fs):
        is_short = False

        def make_unsynced_directory(self, path: Path, *, like: Path) -> None:
            if self.is_short:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            super().make_unsynced_directory(path, like=like)

    fs = Short()
    with opened(path, fs=fs) as backend:
        create(backend)
        append(backend)
        backend._manager.checkpoint_all()
        delete(backend)
        fs.is_short = True
        backend.topics.create([NewTopic("new")])
        copy = killed(path)
    with opened(copy) as backend:
        assert append(backend) == 0


def test_after_a_kill_the_checkpoints_do_not_list_partitions_that_are_gone(path: Path) -> None:
    with opened(path) as backend:
        create(backend)
        backend._manager.checkpoint_all()
        copy = killed(path)
        delete(backend)
        renamed = [each.name for each in path.glob("new-0.*")]
        for name in renamed:
            (copy / "new-0").rename(copy / name)
        for name in ("bootstrap.checkpoint", "__cluster_metadata-0"):
            if (path / name).is_dir():
                shutil.rmtree(copy / name)
                shutil.copytree(path / name, copy / name)
            elif (path / name).exists():
                shutil.copy(path / name, copy / name)
    new = TopicPartition("new", 0)
    for kind in ("recovery-point", "replication"):
        assert new in (read_offset_checkpoint(Fs(), copy / f"{kind}-offset-checkpoint") or {})
    with opened(copy):
        for kind in ("recovery-point", "replication"):
            assert new not in (read_offset_checkpoint(Fs(), copy / f"{kind}-offset-checkpoint") or {})


def test_a_topic_that_was_deleted_while_its_directory_was_offline_is_removed_when_it_returns(tmp_path: Path) -> None:
    first, second = two_directories(tmp_path)
    fs = FailingFs()
    with opened(first, second, fs=fs) as backend:
        append(backend, "t", 1)
        backend._manager.checkpoint_all()
        fs.broken.add(second)
        with pytest.raises(StorageError):
            partition_of(backend, "t", 1).log.flush()
        delete(backend, "t")
        again = create(backend, "t", 2)
        assert sorted(each.name for each in first.glob("t-?")) == ["t-0", "t-1"]
        assert [append(backend, "t", number) for number in (0, 1)] == [0, 0]
    with opened(first, second) as backend:
        assert [partition_of(backend, "t", number).high_watermark for number in (0, 1)] == [1, 1]
        assert [append(backend, "t", number) for number in (0, 1)] == [1, 1]
        (renamed,) = second.glob("t-*")
        assert renamed.name.endswith("-stray")
        found = read_partition_metadata(Fs(), first / "t-1" / "partition.metadata")
        assert found == format_uuid(again.bytes)


def test_folders_of_deleted_topics_are_removed_after_a_restart(path: Path) -> None:
    with opened(path) as backend:
        for name in ("new", "other"):
            create(backend, name)
            delete(backend, name)
        assert len([*path.glob("new-0.*"), *path.glob("other-0.*")]) == 2
    # A broker deletes this one.
    unknown = path / f"x-0.{'0' * 32}-delete"
    unknown.mkdir()
    (unknown / "partition.metadata").write_text(f"version: 0\ntopic_id: {format_uuid(uuid.uuid4().bytes)}\n")
    with opened(path) as backend:
        for deleted in list(backend._manager._state.deleted):
            remove_renamed(backend._manager._state, deleted)
        assert [*path.glob("new-0.*"), *path.glob("other-0.*")] == []
    assert unknown.is_dir()


def test_folders_that_a_killed_creation_had_not_named_are_removed(path: Path) -> None:
    with opened(path) as backend:
        create(backend)
        append(backend)
        backend._manager.checkpoint_all()
        copy = killed(path)
    of_live = f"-0.{'0' * 32}-delete"
    marked = {
        "new" + of_live: False,  # a broker moved a replica away, or an operator keeps a copy
        "staged" + of_live: True,
        "empty" + of_live: True,
    }
    shutil.copytree(copy / "new-0", copy / f"new{of_live}")
    (copy / f"staged{of_live}").mkdir()
    for name in ("timeindex", "index", "log"):
        (copy / f"staged{of_live}" / f"{0:020d}.{name}").touch()
    shutil.copy(copy / "new-0" / "partition.metadata", copy / f"staged{of_live}")
    (copy / f"empty{of_live}").mkdir()
    with opened(copy) as backend:
        assert append(backend) == 1
        for deleted in list(backend._manager._state.deleted):
            remove_renamed(backend._manager._state, deleted)
    assert {name: not (copy / name).exists() for name in marked} == marked


# ---------------------------------------------------------------------------------------------------------- directories
def test_a_directory_for_metadata_only_gets_no_partitions(tmp_path: Path) -> None:
    first, second = two_directories(tmp_path)
    (first / "t-0").rename(second / "t-0")
    for options in ({}, {"metadata_apart": True, "log_dirs": (second,)}, {"log_dirs": (second, tmp_path / "other")}):
        with opened(first, second, **options) as backend:
            create(backend, "new", 3)
            assert [each.name for each in first.glob("new-*")] == []
            delete(backend)
    with opened(first, second, log_dirs=(first, second)) as backend:
        create(backend, "new", 3)
        assert len(list(first.glob("new-?"))) == 3
        delete(backend)


def test_the_copy_of_a_directory_for_metadata_only_gets_no_partitions(tmp_path: Path) -> None:
    first, second = two_directories(tmp_path / "original")
    (first / "t-0").rename(second / "t-0")
    shutil.copytree(tmp_path / "original", tmp_path / "copy")
    copies = [tmp_path / "copy" / each.name for each in (first, second)]
    with opened(*copies, metadata_apart=True, log_dirs=(second,)) as backend:
        create(backend, "new", 3)
    assert [len(list(each.glob("new-?"))) for each in copies] == [0, 3]


def test_no_topic_is_created_if_its_records_cannot_state_the_directory(tmp_path: Path) -> None:
    # A later start with one of the directories would not know that the partition is in the other one.
    first, second = two_directories(tmp_path)
    file = first / "bootstrap.checkpoint"
    values = [record.value or b"" for record in read_records(file.read_bytes())]
    for level, fits in ((16, False), (17, True)):
        feature = m.FeatureLevelRecord(name="metadata.version", feature_level=level)
        values.append(encode_metadata_record(feature, 0))
        file.write_bytes(format_bootstrap_checkpoint(values, now_ms=NOW_MS))
        with opened(first, second) as backend:
            if fits:
                create(backend)
            else:
                with pytest.raises(ApiError, match="several log directories") as caught:
                    create(backend)
                assert caught.value.code is ErrorCode.POLICY_VIOLATION
                assert backend.catalog.topic("new") is None


def test_no_topic_is_created_if_only_the_directory_for_metadata_is_served(tmp_path: Path) -> None:
    path = new_node(tmp_path / "data", {})
    with (
        opened(path, metadata_apart=True, log_dirs=(tmp_path / "other",)) as backend,
        pytest.raises(ApiError, match=r"only the metadata\.log\.dir") as caught,
    ):
        create(backend)
    assert caught.value.code is ErrorCode.POLICY_VIOLATION


@pytest.mark.parametrize("with_checkpoints", [False, True])
def test_a_folder_that_was_restored_after_the_deletion_is_kept_as_a_stray(path: Path, with_checkpoints: bool) -> None:
    with opened(path) as backend:
        create(backend)
        append(backend)
        backend._manager.checkpoint_all()
        copy = killed(path)
        delete(backend)
    shutil.copytree(copy / "new-0", path / "new-0")
    if with_checkpoints:
        for file in copy.glob("*-checkpoint"):
            shutil.copy(file, path)
    before = contents(path / "new-0")
    for _ in range(2):
        with opened(path) as backend:
            assert backend.catalog.topic("new") is None
            for deleted in list(backend._manager._state.deleted):
                remove_renamed(backend._manager._state, deleted)
        (stray,) = path.glob("new-0*")
        assert stray.name.endswith("-stray")
        assert contents(stray) == before


def test_a_restored_folder_does_not_take_the_place_of_a_new_topics(path: Path) -> None:
    with opened(path) as backend:
        create(backend)
        append(backend)
        copy = path.with_name("backup")
        shutil.copytree(path / "new-0", copy)
        delete(backend)
        create(backend)
    shutil.rmtree(path / "new-0")
    shutil.copytree(copy, path / "new-0")
    before = contents(path)
    with pytest.raises(UsageError, match="the folder of a deleted topic has the same name"), opened(path):
        pass
    assert contents(path) == before


def test_a_folder_of_a_topic_that_a_broker_deleted_is_refused(tmp_path: Path) -> None:
    # An operator may have restored it, with the checkpoints, because the topic was deleted by mistake.
    path = unpacked(tmp_path / "data")
    with opened(path) as backend:
        create(backend)
        topic = backend.catalog.topic("new")
        assert topic is not None
    writer = log_writer(path)
    writer.append([remove_topic_record(topic.id)])
    writer.close()
    with pytest.raises(UsageError, match="the cluster does not know the folder's topic"), opened(path):
        pass
    assert (path / "new-0").is_dir()

"""Changes of bootstrap.checkpoint: the file stays small, and shows which topics were added or removed last."""

from __future__ import annotations

import uuid

from sediment.engine.clone.cluster_records import CloneNode, producer_ids_record
from sediment.engine.metadata.bootstrap_records import merge_bootstrap_records
from sediment.engine.metadata.topic_records import (
    config_record,
    partition_record,
    remove_topic_record,
    topic_record,
)
from sediment.segment_io.format.checkpoints import format_uuid
from sediment.segment_io.internal_topics.metadata_log import ClusterMetadata
from sediment.segment_io.internal_topics.metadata_records import (
    ResourceType,
    decode_metadata_record,
    encode_metadata_record,
)
from sediment.segment_io.protocol import messages as m

NODE = CloneNode(1, "cluster", format_uuid(bytes(range(16))))
TOPIC, BROKER = ResourceType.TOPIC, ResourceType.BROKER
A, B = uuid.UUID(int=1), uuid.UUID(int=2)


def topic(name: str, topic_id: uuid.UUID, *configs: tuple[str, str]) -> list[bytes]:
    return [
        topic_record(name, topic_id),
        *(config_record(TOPIC, name, *each) for each in configs),
        partition_record(topic_id, 0, 1, NODE.directory_id, metadata_version=29),
    ]


def kinds(values: list[bytes]) -> list[str]:
    return [type(decode_metadata_record(value)).__name__.removesuffix("Record") for value in values]


def state(values: list[bytes]) -> ClusterMetadata:
    return ClusterMetadata({}, {}, {}, 0, is_bootstrap=True).with_records(values)


def test_the_partitions_that_were_added_follow_a_mark() -> None:
    first = merge_bootstrap_records(topic("a", A), topic("b", B))
    assert kinds(first) == ["Topic", "Partition", "NoOp", "Topic", "Partition"]
    assert {str(each) for each in state(first).new_partitions} == {"b-0"}
    second = merge_bootstrap_records(first, topic("c", uuid.UUID(int=3)))
    assert kinds(second) == [*kinds(first), "Topic", "Partition"]
    # If the folder of b-0 could not be made, the next start still makes it.
    assert {str(each) for each in state(second).new_partitions} == {"b-0", "c-0"}
    assert kinds(merge_bootstrap_records(second, [producer_ids_record(NODE, 1000)]))[2] == "NoOp"


def test_a_config_replaces_the_earlier_one_of_its_key_or_removes_it() -> None:
    values = merge_bootstrap_records([], [*topic("a", A, ("x", "1"), ("y", "1")), config_record(BROKER, "", "x", "9")])
    values = merge_bootstrap_records(values, [config_record(TOPIC, "a", "x", "2"), config_record(TOPIC, "a", "z", "3")])
    assert state(values).topic_configs == {"a": {"x": "2", "y": "1", "z": "3"}}
    values = merge_bootstrap_records(values, [config_record(TOPIC, "a", key, None) for key in ("x", "y", "none")])
    found = state(values)
    assert (found.topic_configs, found.broker_configs) == ({"a": {"z": "3"}}, {"": {"x": "9"}})
    assert kinds(values).count("Config") == 2


def test_a_credential_replaces_the_earlier_one_of_its_user_and_mechanism_or_goes() -> None:
    def user(name: str, iterations: int, mechanism: int = 1) -> bytes:
        record = m.UserScramCredentialRecord(
            name=name, mechanism=mechanism, iterations=iterations, salt=b"s", stored_key=b"k", server_key=b"k"
        )
        return encode_metadata_record(record, 0)

    def removal(name: str, mechanism: int = 1) -> bytes:
        return encode_metadata_record(m.RemoveUserScramCredentialRecord(name=name, mechanism=mechanism), 0)

    values = merge_bootstrap_records([], [user("a", 1), user("a", 2, mechanism=2), user("b", 3)])
    values = merge_bootstrap_records(values, [user("a", 4), removal("b")])
    assert kinds(values) == ["UserScramCredential", "UserScramCredential"]
    found = {key: record.iterations for key, record in state(values).scram_credentials.items()}
    assert found == {(1, "a"): 4, (2, "a"): 2}
    assert merge_bootstrap_records(merge_bootstrap_records(values, [removal("a")]), [removal("a", mechanism=2)]) == []


def test_a_removed_topic_is_known_and_so_is_one_that_was_removed_before() -> None:
    values = merge_bootstrap_records([], [*topic("a", A, ("x", "1")), *topic("b", B, ("x", "1"))])
    values = merge_bootstrap_records(values, [remove_topic_record(A)])
    found = state(values)
    assert (set(found.topic_ids), found.topic_configs) == ({"b"}, {"b": {"x": "1"}})
    assert found.removed_topic_ids == {format_uuid(A.bytes)}
    again = uuid.UUID(int=3)
    values = merge_bootstrap_records(values, topic("a", again, ("x", "5")))
    assert state(values).topic_ids["a"] == format_uuid(again.bytes)
    values = merge_bootstrap_records(values, [remove_topic_record(B)])
    found = state(values)
    assert (set(found.topic_ids), found.topic_configs) == ({"a"}, {"a": {"x": "5"}})
    assert found.removed_topic_ids == {format_uuid(A.bytes), format_uuid(B.bytes)}


def test_a_topic_that_is_added_again_under_its_id_is_not_removed() -> None:
    values = merge_bootstrap_records(topic("a", A), [remove_topic_record(A)])
    assert state([*values, *topic("a", A)]).removed_topic_ids == frozenset()


def test_a_file_does_not_grow_with_topics_that_come_and_go() -> None:
    values = topic("a", A)
    sizes = set()
    for number in range(10, 250):
        topic_id = uuid.UUID(int=number)
        values = merge_bootstrap_records(values, topic("t", topic_id, ("x", "1")))
        values = merge_bootstrap_records(values, [remove_topic_record(topic_id)])
        sizes.add(len(values))
    assert max(sizes) == len(values) < 250
    assert len(state(values).removed_topic_ids) == 101

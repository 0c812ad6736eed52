"""Topics and partitions of a clone, with their names, ids and configs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from sediment.engine.clone.features import clone_features
from sediment.engine.clone.node_configs import ConfigDifference, cloned_configs, restore_commands
from sediment.engine.clone.options import CloneOptions, Part
from sediment.engine.clone.plan import ClonePlan, plan_clone
from sediment.engine.clone.source import SourceCluster, SourceTopic
from sediment.engine.metadata.topic_records import partition_record_version
from sediment.engine.replicas import ClusterDirectory, Replica
from sediment.segment_io.errors import UsageError
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.internal_topics.metadata_log import ClusterMetadata
from sediment.segment_io.partition.checkpoint_files import LogDirCheckpoints

NO_CHECKPOINTS = LogDirCheckpoints(None, None, None, None, clean_shutdown=True)
ID, NEW_ID = "A" * 21 + "Q", "B" * 21 + "Q"


def source_topic(
    name: str, present: int, count: int, configs: Mapping[str, str] | None, topic_id: str | None = ID
) -> SourceTopic:
    directory = ClusterDirectory(Path("/data"), None, NO_CHECKPOINTS, ())
    replicas = {number: (Replica(directory, TopicPartition(name, number)),) for number in range(present)}
    return SourceTopic(name, topic_id, count, replicas, configs)


def source(*topics: SourceTopic, known: bool = True) -> SourceCluster:
    metadata = None
    if known:
        metadata = ClusterMetadata({topic.name: topic.topic_id or ID for topic in topics}, {}, {}, 1)
    return SourceCluster((), None, metadata, {topic.name: topic for topic in topics})


def plan(given: SourceCluster, **options: object) -> ClonePlan:
    return plan_clone(given, CloneOptions(**options), lambda: NEW_ID)  # type: ignore[arg-type]


ORDERS = source_topic("orders", 2, 2, {"retention.ms": "5"})
PRICES = source_topic("prices", 1, 1, {}, topic_id="C" * 21 + "Q")
OFFSETS = source_topic("__consumer_offsets", 3, 3, {"cleanup.policy": "compact"}, topic_id="D" * 21 + "Q")


def names(found: ClonePlan) -> list[str]:
    return [str(each.target) for each in found.partitions()]


def test_everything_comes_along_by_default() -> None:
    found = plan(source(ORDERS, PRICES, OFFSETS))
    offsets = [f"__consumer_offsets-{number}" for number in range(3)]
    assert sorted(names(found)) == [*offsets, "orders-0", "orders-1", "prices-0"]
    assert found.is_whole and not found.left_out


def test_a_selection_takes_its_topics_and_those_of_the_coordinators() -> None:
    found = plan(source(ORDERS, PRICES, OFFSETS), topics=("pri*",))
    assert found.topics.keys() == {"prices", "__consumer_offsets"}
    assert not found.is_whole
    assert plan(source(ORDERS, OFFSETS), parts=frozenset({Part.CONFIGS})).topics.keys() == {"orders"}


@pytest.mark.parametrize("known", [True, False])
def test_a_folder_whose_number_implies_billions_of_partitions_is_refused_unless_its_topic_is_left_out(
    known: bool,
) -> None:
    endless = source_topic("endless", 1, 2**31, {}, topic_id="E" * 21 + "Q")
    with pytest.raises(UsageError, match="partition 2147483647 of topic endless implies 2147483647 partitions"):
        plan(source(ORDERS, endless, known=known), topics=("*",))
    assert plan(source(ORDERS, endless, known=known), topics=("orders",)).topics.keys() == {"orders"}


def test_two_topics_of_one_id_are_refused() -> None:
    copied = source_topic("orders_copy", 1, 1, {})
    with pytest.raises(UsageError, match="topics orders and orders_copy have the same topic id"):
        plan(source(ORDERS, copied, known=False))


def test_a_topic_keeps_its_number_of_partitions() -> None:
    found = plan(source(source_topic("orders", 1, 3, {})))
    assert found.topics["orders"].empty_partitions == (1, 2)
    assert [(str(each.partition), each.reason_code) for each in found.left_out] == [
        ("orders-1", "no-replica"),
        ("orders-2", "no-replica"),
    ]
    assert not found.is_whole


def test_a_renamed_topic_keeps_its_id() -> None:
    found = plan(source(ORDERS), renames={"orders": "orders_test"})
    assert names(found) == ["orders_test-0", "orders_test-1"]
    assert found.topics["orders_test"].topic_id == ID
    assert not found.is_whole


def test_a_topic_without_an_id_gets_one() -> None:
    found = plan(source(source_topic("orders", 1, 1, None, topic_id=None), known=False))
    assert found.topics["orders"].topic_id == NEW_ID
    assert not found.is_whole


def test_a_topic_that_the_cluster_lacks_comes_along_only_by_its_name() -> None:
    deleted = source_topic("gone", 1, 1, None, topic_id=NEW_ID)
    given = SourceCluster((), None, ClusterMetadata({"orders": ID}, {}, {}, 1), {"gone": deleted, "orders": ORDERS})
    found = plan(given)
    assert [(str(each.partition), each.reason_code) for each in found.left_out] == [("gone-0", "unknown-topic")]
    assert plan(given, topics=("gone",)).topics.keys() == {"gone"}


def test_a_tiered_topic_is_left_out_unless_its_local_segments_are_wanted() -> None:
    tiered = source_topic("orders", 1, 1, {"remote.storage.enable": "true", "local.retention.ms": "7"})
    assert [each.reason_code for each in plan(source(tiered)).left_out] == ["tiered"]
    configs = plan(source(tiered), local_only=True).topics["orders"].configs
    assert configs == {"retention.ms": "-1", "retention.bytes": "-1"}


@pytest.mark.parametrize(
    "options",
    [
        {"topics": ("no-such",)},
        {"partitions": ("orders-7",)},
        {"renames": {"no-such": "x"}},
        {"renames": {"orders": "a b"}},
        {"renames": {"orders": "__consumer_offsets"}},
        {"renames": {"orders": "prices"}},
        {"until_offsets": {TopicPartition("orders", 7): 1}},
    ],
)
def test_an_option_that_names_nothing_or_too_much_is_refused(options: Mapping[str, object]) -> None:
    with pytest.raises(UsageError):
        plan(source(ORDERS, PRICES, OFFSETS), **options)


# -------------------------------------------------------------------------------------------------------------- configs
def test_a_held_topic_lists_what_it_had() -> None:
    configs, changes = cloned_configs("t", {"retention.ms": "5", "x": "y"}, keep=True, hold=True, local_only=False)
    assert configs == {"retention.ms": "-1", "retention.bytes": "-1", "x": "y"}
    assert changes == (
        ConfigDifference("retention.ms", "5", "-1", is_held=True),
        ConfigDifference("retention.bytes", None, "-1", is_held=True),
    )
    assert [command.partition("--entity-name ")[2] for command in restore_commands("t", changes, "h:1")] == [
        "t --delete-config retention.bytes",
        "t --add-config retention.ms=5",
    ]


def test_without_a_hold_configs_stay_but_for_those_that_one_node_cannot_have() -> None:
    given = {"retention.ms": "5", "min.insync.replicas": "2"}
    configs, changes = cloned_configs("t", given, keep=True, hold=False, local_only=False)
    assert configs == {"retention.ms": "5", "min.insync.replicas": "1"}
    assert changes == (ConfigDifference("min.insync.replicas", "2", "1"),)


def test_configs_with_which_kafka_4_does_not_start_or_alters_no_topic_are_changed() -> None:
    given = {"segment.bytes": "4000", "message.format.version": "0.10.0", "segment.ms": "5"}
    configs, changes = cloned_configs("t", given, keep=True, hold=False, local_only=False)
    assert configs == {"segment.bytes": "1048576", "segment.ms": "5"}
    assert changes == (
        ConfigDifference("segment.bytes", "4000", "1048576"),
        ConfigDifference("message.format.version", "0.10.0", None),
    )
    configs, changes = cloned_configs("t", {"segment.bytes": "1048576"}, keep=True, hold=False, local_only=False)
    assert (configs, changes) == ({"segment.bytes": "1048576"}, ())


def test_a_topic_of_unknown_configs_is_held_in_any_case() -> None:
    configs, _ = cloned_configs("t", None, keep=True, hold=False, local_only=False)
    assert configs == {"retention.ms": "-1", "retention.bytes": "-1"}


def test_topics_of_the_coordinators_stay_compacted() -> None:
    configs, _ = cloned_configs("__consumer_offsets", None, keep=False, hold=True, local_only=False)
    assert configs["cleanup.policy"] == "compact"


# ------------------------------------------------------------------------------------------------------------- features
def test_features_are_those_of_the_source_and_none_above_the_release() -> None:
    assert clone_features({"metadata.version": 21, "group.version": 1, "kraft.version": 1}, "4.2") == {
        "metadata.version": 21,
        "group.version": 1,
    }
    assert clone_features({"metadata.version": 29, "share.version": 1}, "4.0") == {"metadata.version": 25}
    assert clone_features({"metadata.version": 33, "share.version": 2}, "4.2") == {
        "metadata.version": 29,
        "share.version": 1,
    }
    assert clone_features({"metadata.version": 33, "share.version": 2}, "4.4") == {
        "metadata.version": 33,
        "share.version": 2,
    }
    assert clone_features(None, "4.2")["metadata.version"] == 29


def test_a_source_too_old_for_kafka_4_is_refused() -> None:
    with pytest.raises(UsageError):
        clone_features({"metadata.version": 4}, "4.2")


def test_partition_records_have_the_version_of_their_metadata_version() -> None:
    assert [partition_record_version(level) for level in (16, 17, 22, 23, 29)] == [0, 1, 1, 2, 2]

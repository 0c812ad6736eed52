"""Files of --topic-configs and --broker-configs: what Kafka's tools print, JSON, and everything else.

tests/data/zookeeper has what the tools of Kafka 2.8.2 and 3.9.2 printed about a cluster with ZooKeeper.  Its brokers 0
and 3 have log.cleanup.policy=delete and log.retention.hours=1 in their files; broker 3 answered kafka-topics.sh of 2.8.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from sediment.jobs.settings.described_configs import (
    BrokerConfigs,
    DescribedSource,
    DescribedTopicConfigs,
    DescribedValue,
    read_broker_configs,
    read_topic_configs,
)
from sediment.jobs.settings.resolve import Settings
from sediment.segment_io.errors import SettingsError

PRINTED = Path(__file__).parents[2] / "data" / "zookeeper"
VERSIONS = ("2.8.2", "3.9.2")
OWN = {
    "compacted": {"cleanup.policy": "compact,delete", "delete.retention.ms": "5"},
    "d-time": {"retention.ms": "432000000", "segment.bytes": "1048576"},
    "plain.topic_x": {},
    "throttled": {"leader.replication.throttled.replicas": "0:0,0:3"},
}
OF_ALL = {"log.segment.bytes": "2097152", "log.cleaner.min.compaction.lag.ms": "7"}
OF_THREE = {"log.cleaner.threads": "2", "log.retention.ms": "7200000"}
DELETING = ("cleanup.policy", "retention.ms", "retention.bytes", "delete.retention.ms")


def topics(tmp_path: Path, text: str) -> DescribedTopicConfigs:
    return read_topic_configs(written(tmp_path, text))


def brokers(tmp_path: Path, text: str) -> BrokerConfigs:
    return read_broker_configs(written(tmp_path, text))


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "described"
    path.write_text(text)
    return path


def refusal(read: object, path: Path) -> str:
    assert callable(read)
    with pytest.raises(SettingsError) as caught:
        read(path)
    sentence = str(caught.value)
    assert "\n" not in sentence and str(path) in sentence
    return sentence


# --------------------------------------------------------------------------------------------------- what tools printed
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ["topics.txt", "topics-all.txt"])
def test_the_own_configs_of_every_topic_are_read(version: str, name: str) -> None:
    assert read_topic_configs(PRINTED / f"kafka-{version}" / name).own == OWN


@pytest.mark.parametrize("name", ["zk-topics.txt", "zk-kafka-topics.txt"])
def test_the_own_configs_are_read_from_zookeepers_form_too(name: str) -> None:
    assert read_topic_configs(PRINTED / "kafka-2.8.2" / name).own == OWN


@pytest.mark.parametrize("version", VERSIONS)
def test_what_a_topic_gets_from_its_broker_is_told_apart_by_the_first_synonym(version: str) -> None:
    inherited = read_topic_configs(PRINTED / f"kafka-{version}" / "topics-all.txt").inherited["plain.topic_x"]
    assert inherited["cleanup.policy"] == DescribedValue("delete", DescribedSource.FILE)
    assert inherited["retention.ms"] == DescribedValue("3600000", DescribedSource.DEFAULT)  # printed without synonyms
    assert inherited["min.compaction.lag.ms"] == DescribedValue("7", DescribedSource.ALL_BROKERS)
    assert inherited["delete.retention.ms"] == DescribedValue("86400000", DescribedSource.DEFAULT)
    assert "message.format.version" not in inherited


def test_kafka_topics_prints_the_values_of_the_broker_that_answered() -> None:
    found = read_topic_configs(PRINTED / "kafka-2.8.2" / "kafka-topics.txt")
    assert found.unsourced == set(OWN)
    assert found.own["compacted"]["cleanup.policy"] == "compact,delete"
    assert found.own["plain.topic_x"]["retention.ms"] == OF_THREE["log.retention.ms"]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ["brokers.txt", "brokers-all.txt"])
def test_the_dynamic_configs_of_a_broker_are_its_own_and_those_of_all(version: str, name: str) -> None:
    found = read_broker_configs(PRINTED / f"kafka-{version}" / name)
    assert found.of_node(3) == {**OF_ALL, **OF_THREE}
    assert found.of_node(0) == OF_ALL
    with pytest.raises(SettingsError, match="does not list broker 1"):
        found.of_node(1)
    with pytest.raises(SettingsError, match="whose node is unknown"):
        found.of_node(None)


def test_the_dynamic_configs_of_a_broker_are_read_from_zookeepers_form_too() -> None:
    assert read_broker_configs(PRINTED / "kafka-2.8.2" / "zk-brokers.txt").of_node(3) == {**OF_ALL, **OF_THREE}


@pytest.mark.parametrize(
    "text",
    [
        "Configs for topic 't' are cleanup.policy=compact,delete,retention.ms=5\n",  # 0.11 to 2.x
        "Topic:t\tPartitionCount:1\tReplicationFactor:1\tConfigs:cleanup.policy=compact,delete,retention.ms=5\n"
        "\tTopic: t\tPartition: 0\tLeader: 0\tReplicas: 0\tIsr: 0\n",
        "Topic: t\tTopicId: x\tPartitionCount: 1\tReplicationFactor: 1\t"
        "Configs: cleanup.policy=compact,delete,retention.ms=5\tMarkedForDeletion: true\n",
        "Topic: t TopicId: x PartitionCount: 1 ReplicationFactor: 1 Configs: cleanup.policy=compact,delete,"
        "retention.ms=5\n",  # copied from a terminal
        "All configs for topic t are:\r\n"
        "  cleanup.policy=compact,delete sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:cleanup.policy=compact,delete, "
        "DEFAULT_CONFIG:log.cleanup.policy=delete}\r\n"
        "  retention.ms=5 sensitive=false synonyms={A_NEWER_SOURCE:retention.ms=5}\r\n"
        "  segment.ms=null sensitive=true synonyms={}\r\n",
        '{"t": {"cleanup.policy": "compact,delete", "retention.ms": 5, "message.format.version": "2.8"}}',
    ],
    ids=range(6),
)
def test_every_form_gives_the_same_configs(tmp_path: Path, text: str) -> None:
    assert topics(tmp_path, text).own == {"t": {"cleanup.policy": "compact,delete", "retention.ms": "5"}}


def test_outputs_may_follow_one_another_in_one_file(tmp_path: Path) -> None:
    both = PRINTED / "kafka-2.8.2"
    text = "".join((both / name).read_text() for name in ("topics.txt", "topics-all.txt", "brokers.txt"))
    assert topics(tmp_path, text).own == OWN and "retention.ms" in topics(tmp_path, text).inherited["plain.topic_x"]
    assert brokers(tmp_path, text).of_node(0) == OF_ALL
    text = (both / "topics.txt").read_text() + (both / "kafka-topics.txt").read_text()
    assert topics(tmp_path, text).own == OWN and not topics(tmp_path, text).unsourced


def test_the_outputs_for_one_broker_and_for_all_make_a_whole(tmp_path: Path) -> None:
    own = "Configs for broker 3 are:\n  log.retention.ms=9 sensitive=false synonyms={DYNAMIC_BROKER_CONFIG:x=9}\n"
    with pytest.raises(SettingsError, match="default configs of all brokers"):
        brokers(tmp_path, own).of_node(3)
    default = "Default config for brokers in the cluster are:\n"
    assert brokers(tmp_path, own + default).of_node(3) == {"log.retention.ms": "9"}


def test_json_states_the_dynamic_configs_of_every_broker(tmp_path: Path) -> None:
    assert brokers(tmp_path, "{}").of_node(5) == {}
    found = brokers(tmp_path, '{"default": {"log.retention.ms": 9}, "5": {"log.retention.bytes": "7"}}')
    assert found.of_node(5) == {"log.retention.ms": "9", "log.retention.bytes": "7"}
    assert found.of_node(6) == {"log.retention.ms": "9"}


# --------------------------------------------------------------------------------------------------------- broken files
SECTION = "Dynamic configs for topic t are:\n"
ENTRY = "  retention.ms=5 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:retention.ms=5}\n"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "lists no topic"),
        ("{}", "lists no topic"),
        ((PRINTED / "kafka-2.8.2" / "brokers.txt").read_text(), "lists no topic"),
        (ENTRY, "a line 1 that"),
        (SECTION + "  retention.ms=5\n", "a line 2 that"),
        (SECTION + ENTRY.replace(" synonyms={", " synonyms=\n{"), "a line 2 that"),
        (SECTION + ENTRY[:-1], "a part of it may be missing"),
        ("Topic: t\tPartitionCount: 1\tReplicationFactor: 1\tConfigs: retention.ms=25", "a part of it may be missing"),
        ("Configs for topic 't' are retention.ms\n", "without key=value"),
        (SECTION + "secret\n", "a line 2 that"),
        ("Error while executing config command with args '--describe'\n", "a line 1 that"),
        ("Quota configs for user-principal 'u' are consumer_byte_rate=1.0\n", "a line 1 that"),
        ("retention.ms=5\n", "a line 1 that"),
        (SECTION + ENTRY + SECTION, "lists topic t twice"),
        ("Dynamic configs for topic ../t are:\n", "not a valid name"),
        ('{"t": {"retention.ms": "5"}', "is not JSON"),
        ('{"t": {"retention.ms": "5"}, "t": {}}', "twice in one object"),
        ('{"t": {"retention.ms": "5", "retention.ms": "6"}}', "twice in one object"),
        ('{"t": "retention.ms"}', "of the form"),
        ('{"t": {"retention.ms": null}}', "neither a text nor a number"),
        ('{"t": {"retention.m": "5"}}', "retention.m,"),
        ('{"t": {"log.retention.ms": "5"}}', "log.retention.ms, which is not a config of topics"),
        ('{"": {}}', "not a valid name"),
        ("[" * 100_000 + "\n", "a line 1 that"),
        ('{"t":' * 100_000, "is not JSON"),
        ("\x00\n", "a line 1 that"),
    ],
    ids=range(26),
)
def test_a_file_in_another_form_is_refused_in_one_sentence_without_its_content(
    tmp_path: Path, text: str, what: str
) -> None:
    sentence = refusal(read_topic_configs, written(tmp_path, text))
    assert "--topic-configs" in sentence and what in sentence and "secret" not in sentence, sentence


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "lists no broker"),
        ((PRINTED / "kafka-2.8.2" / "topics.txt").read_text(), "lists no broker"),
        ("Dynamic configs for broker x are:\n", "not the id of a broker"),
        ('{"t": {}}', "not the id of a broker"),
        ('{"1": {"retention.ms": "5"}}', "not a dynamic config of brokers"),
        ('{"1": {"log.retention.hours": "5"}}', "not a dynamic config of brokers"),
    ],
)
def test_a_file_that_does_not_describe_brokers_is_refused(tmp_path: Path, text: str, what: str) -> None:
    sentence = refusal(read_broker_configs, written(tmp_path, text))
    assert "--broker-configs" in sentence and what in sentence, sentence


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    assert "No such file" in refusal(read_topic_configs, tmp_path / "none")
    (tmp_path / "binary").write_bytes(b"\xff\xfeT\x00")
    assert "UTF-8" in refusal(read_topic_configs, tmp_path / "binary")
    assert "neither a file nor a pipe" in refusal(read_topic_configs, Path("/dev/zero"))


# ------------------------------------------------------------------------------------------------------ what they state
def settings(
    tmp_path: Path,
    described: str | DescribedTopicConfigs,
    *,
    file: str | None,
    of_brokers: str | None = None,
    node: int = 0,
) -> Settings:
    config = None
    if file is not None:
        config = tmp_path / "server.properties"
        config.write_text(file)
    given = topics(tmp_path, described) if isinstance(described, str) else described
    of_node = None if of_brokers is None else brokers(tmp_path, of_brokers)
    return Settings.load(config, [], topic_configs=given, broker_configs=of_node).of_described_node(node)


def stated(found: Settings, topic: str) -> Mapping[str, object]:
    """Return the values of the keys that delete data, as far as they are stated."""
    in_force = found.in_force(topic)
    return {name: in_force[name][0] for name in DELETING if in_force[name][1] != "not stated"}


ZK = "broker.id=0\nzookeeper.connect=zk:2181\nlog.cleanup.policy=delete\nlog.retention.hours=1\n"
BOTH = json.dumps({"t": {"cleanup.policy": "delete", "retention.ms": "9"}, "bare": {}})


def test_own_configs_are_stated_and_the_file_counts_only_with_the_configs_of_the_brokers(tmp_path: Path) -> None:
    alone = settings(tmp_path, BOTH, file=ZK)
    assert stated(alone, "t") == {"cleanup.policy": ("delete",), "retention.ms": 9}
    assert stated(alone, "bare") == stated(alone, "unlisted") == {}
    known = settings(tmp_path, BOTH, file=ZK, of_brokers="{}")
    assert stated(known, "bare") == {
        "cleanup.policy": ("delete",),
        "retention.ms": 3_600_000,
        "retention.bytes": -1,
        "delete.retention.ms": 86_400_000,
    }
    assert stated(known, "unlisted") == {}
    without_file = settings(tmp_path, BOTH, file=None, of_brokers="{}")
    assert stated(without_file, "t") == {"cleanup.policy": ("delete",), "retention.ms": 9}
    assert stated(without_file, "bare") == {}


def test_a_topic_that_is_not_listed_has_only_what_set_gives(tmp_path: Path) -> None:
    config = tmp_path / "server.properties"
    config.write_text(ZK)
    found = Settings.load(
        config,
        ["x:cleanup.policy=delete"],
        broker_defaults=True,
        topic_configs=topics(tmp_path, BOTH),
        broker_configs=brokers(tmp_path, "{}"),
    ).of_described_node(0)
    assert stated(found, "x") == {"cleanup.policy": ("delete",)}
    assert stated(found, "y") == stated(found, "__consumer_offsets") == {}
    assert "does not list topic y" in found.how_to_state("y", "cleanup.policy")


def test_dynamic_configs_of_the_brokers_are_stronger_than_the_file(tmp_path: Path) -> None:
    of_brokers = '{"default": {"log.retention.ms": 7}, "3": {"log.cleanup.policy": "compact"}}'
    assert stated(settings(tmp_path, BOTH, file=ZK, of_brokers=of_brokers), "bare")["retention.ms"] == 7
    three = settings(tmp_path, BOTH, file=ZK.replace("=0", "=3"), of_brokers=of_brokers, node=3)
    assert stated(three, "bare")["cleanup.policy"] == ("compact",)
    assert three.origin("bare", "retention.ms") == "--broker-configs"
    assert three.origin("t", "retention.ms") == "--topic-configs"


ALL = read_topic_configs(PRINTED / "kafka-3.9.2" / "topics-all.txt")


def test_what_all_prints_is_stated_as_far_as_it_holds_for_the_broker_of_the_file(tmp_path: Path) -> None:
    same = settings(tmp_path, ALL, file=ZK)
    of_plain = {
        "cleanup.policy": ("delete",),
        "retention.ms": 3_600_000,
        "retention.bytes": -1,
        "delete.retention.ms": 86_400_000,
    }
    assert stated(same, "plain.topic_x") == of_plain
    assert stated(same, "compacted")["cleanup.policy"] == ("compact", "delete")
    assert same.for_topic("plain.topic_x").compaction.min_compaction_lag_ms == 7  # a dynamic config of all brokers
    assert stated(settings(tmp_path, ALL, file=None), "plain.topic_x") == of_plain

    longer = settings(tmp_path, ALL, file=ZK.replace("hours=1", "hours=720"))
    assert stated(longer, "plain.topic_x").get("retention.ms") is None
    assert "--broker-configs" in longer.how_to_state("plain.topic_x", "retention.ms")
    known = settings(tmp_path, ALL, file=ZK.replace("hours=1", "hours=720"), of_brokers="{}")
    assert stated(known, "plain.topic_x")["retention.ms"] == 720 * 3_600_000


def test_a_dynamic_config_of_the_broker_that_answered_does_not_hold_for_another(tmp_path: Path) -> None:
    text = (
        "All configs for topic t are:\n  cleanup.policy=delete sensitive=false synonyms={DEFAULT_CONFIG:x=delete}\n"
        "  retention.ms=5 sensitive=false synonyms={DYNAMIC_BROKER_CONFIG:log.retention.ms=5}\n"
    )
    for file in (ZK, None):
        assert stated(settings(tmp_path, text, file=file), "t") == {"cleanup.policy": ("delete",)}
    of_brokers = '{"3": {"log.retention.ms": 5}}'
    assert stated(settings(tmp_path, text, file=ZK, of_brokers=of_brokers), "t")["retention.ms"] == 3_600_000
    assert stated(settings(tmp_path, text, file=None, of_brokers=of_brokers, node=3), "t")["retention.ms"] == 5


def test_a_value_of_kafka_topics_that_may_be_another_brokers_is_refused(tmp_path: Path) -> None:
    printed = PRINTED / "kafka-2.8.2"
    given, of_brokers = read_topic_configs(printed / "kafka-topics.txt"), (printed / "brokers.txt").read_text()
    with pytest.raises(SettingsError, match=r"retention\.ms of topic compacted .* of broker 3"):
        settings(tmp_path, given, file=ZK, of_brokers=of_brokers)
    own = settings(tmp_path, given, file=ZK.replace("=0", "=3"), of_brokers=of_brokers, node=3)
    assert stated(own, "plain.topic_x")["retention.ms"] == 7_200_000


def test_a_bad_value_fails_its_own_topic_only(tmp_path: Path) -> None:
    found = settings(tmp_path, '{"t": {"segment.ms": "soon"}, "u": {}}', file=ZK)
    assert found.for_topic("u").segment_ms
    with pytest.raises(SettingsError, match=r"segment\.ms=soon in --topic-configs"):
        found.for_topic("t")

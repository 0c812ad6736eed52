"""One script of admin requests: topics, partitions, configs and records; the answers are recorded for comparison."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.error_codes import ErrorCode
from tests.engine.live_logs import batch
from tests.server.network.listeners import Client

RECORDED = Path(__file__).parents[2] / "data" / "admin.json.xz"
"""The lines of a broker of Kafka 4.2.0, compressed (`tests.e2e.test_live_serve` compares them)."""

_TOPIC, _BROKER = 2, 4  # types of ConfigResource
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
_DIFFERENT = {"throttle_time_ms"}
_SETTLED_SECONDS = 120.0
_PAUSE_SECONDS = 0.2
_NO_ID = uuid.UUID(int=0)


class AdminScript:
    """A conversation with one server; `lines` has each request and its answer.

    Topic ids are replaced by the order in which they first appear.  A broker needs some time until its answers reflect
    a change, so it is asked for topics and configs until they are those of the lines `expected`.
    """

    def __init__(self, client: Client, expected: Sequence[Any] = ()) -> None:
        self.lines: list[list[Any]] = []
        self._client = client
        self._expected = expected
        self._names: dict[uuid.UUID, str] = {}
        self._ids: dict[str, uuid.UUID] = {}
        self.node = self._client.ask(m.DescribeClusterRequest(), 0).controller_id

    def run(self) -> list[list[Any]]:
        """Ask everything, and return the lines."""
        self._creations()
        self._partitions()
        self._configs()
        self._records()
        self._deletions()
        return self.lines

    # ---------------------------------------------------------------------------------------------------------- topics
    def create(self, *topics: Any, validate_only: bool = False, version: int = 7) -> None:
        self._ask(m.CreateTopicsRequest(topics=list(topics), timeout_ms=30_000, validate_only=validate_only), version)

    def delete(self, *topics: str | uuid.UUID | tuple[str, uuid.UUID], version: int = 6) -> None:
        state = m.DeleteTopicsRequest.DeleteTopicState
        if version < 6:
            self._ask(m.DeleteTopicsRequest(topic_names=list(topics), timeout_ms=30_000), version)
            return
        states = [
            state(name=each[0], topic_id=each[1])
            if isinstance(each, tuple)
            else state(name=each, topic_id=_NO_ID)
            if isinstance(each, str)
            else state(name=None, topic_id=each)
            for each in topics
        ]
        self._ask(m.DeleteTopicsRequest(topics=states, timeout_ms=30_000), version)

    def _creations(self) -> None:
        self.create(topic("made", 2, 1, {"cleanup.policy": "compact", "retention.ms": "1000"}))
        self.create(topic("defaults"), topic("one", 1), topic("factor", -1, 1))
        self.create(topic("made", 2, 1), topic("new.one", 1))
        self.create(topic("new_one", 1), topic("new.one", 1), topic("c.d", 1), topic("c_d", 1))
        self.create(*(topic(name, 1) for name in ("", ".", "..", "a" * 250, "a/b", "ä", "__cluster_metadata")))
        self.create(*(topic(f"factor{each}", 1, each) for each in (2, 0, -2)))
        self.create(*(topic(f"count{each}", each, 1) for each in (0, -2)))
        self.create(topic("both", 0, 0), topic("twice", 1), topic("twice", 2), topic("twice", 3))
        for version in (2, 3, 4, 5, 6):
            self.create(topic(f"v{version}", 1, 1), topic("made", 1, 1), version=version)
        self.create(topic("dry", 3), topic("made"), topic("dry/", 3), validate_only=True)
        self.create(topic("dry", 1))
        self._assignments()
        for key, values in CONFIGS.items():
            self.create(*(topic(f"{key}-{number}", 1, 1, {key: value}) for number, value in enumerate(values)))
        self.create(topic("two", 1, 1, {"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"}))
        self.create(topic("tier", 1, 1, {"local.retention.ms": "10", "retention.ms": "5"}))
        self.create(topic("-named", 1), topic("unknown", 1, 1, {"no.such": "1"}), topic("several", 1, 1, {"x": "1"}))
        self._metadata("made", "dry", "c.d", "c_d", "nothing")

    def _assignments(self) -> None:
        node = self.node
        self.create(topic("assigned", assignments={0: [node], 1: [node]}))
        self.create(topic("assigned-count", 2, assignments={0: [node], 1: [node]}))
        self.create(topic("assigned-factor", -1, 1, assignments={0: [node], 1: [node]}))
        self.create(topic("gap", assignments={0: [node], 2: [node]}), topic("late", assignments={1: [node]}))
        self.create(topic("empty", assignments={0: []}), topic("other", assignments={0: [node + 70]}))
        self.create(topic("doubled", assignments={0: [node, node]}), topic("negative", assignments={0: [-1]}))
        self.create(topic("mixed", assignments={0: [node], 1: [node, node + 70]}))
        item = m.CreateTopicsRequest.CreatableReplicaAssignment
        self.create(
            m.CreateTopicsRequest.CreatableTopic(
                name="repeated",
                num_partitions=-1,
                replication_factor=-1,
                assignments=[item(partition_index=0, broker_ids=[node]), item(partition_index=0, broker_ids=[node])],
            )
        )

    def _partitions(self) -> None:
        node = self.node
        for version in (0, 1, 2, 3):
            self.grow(("v2", 2 + version, None), version=version)
        self.grow(("made", 2, None), ("one", 0, None), ("one-more", 2, None), ("v3", -1, None), ("v4", 3, [[node]] * 2))
        self.grow(("v5", 3, [[node]]), ("v6", 2, [[node + 70]]), ("factor", 2, [[node, node]]), ("dry", 2, [[]]))
        self.grow(("defaults", 4, None), validate_only=True)
        self.grow(("c.d", 4, None), ("c.d", 5, None), ("c_d", 2, []))
        self._metadata("v2", "v4", "defaults", "c.d")

    def grow(
        self,
        *topics: tuple[str, int, Sequence[Sequence[int]] | None],
        validate_only: bool = False,
        version: int = 3,
    ) -> None:
        request = m.CreatePartitionsRequest
        asked = [
            request.CreatePartitionsTopic(
                name=name,
                count=count,
                assignments=None
                if nodes is None
                else [request.CreatePartitionsAssignment(broker_ids=list(each)) for each in nodes],
            )
            for name, count, nodes in topics
        ]
        self._ask(request(topics=asked, timeout_ms=30_000, validate_only=validate_only), version)

    # --------------------------------------------------------------------------------------------------------- configs
    def alter(
        self,
        *resources: tuple[int, str, Sequence[tuple[str, int, str | None]]],
        validate_only: bool = False,
        version: int = 1,
    ) -> None:
        request = m.IncrementalAlterConfigsRequest
        asked = [
            request.AlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=[
                    request.AlterableConfig(name=key, config_operation=operation, value=value)
                    for key, operation, value in configs
                ],
            )
            for kind, name, configs in resources
        ]
        self._ask(request(resources=asked, validate_only=validate_only), version)

    def replace(
        self,
        *resources: tuple[int, str, Sequence[tuple[str, str | None]]],
        validate_only: bool = False,
        version: int = 2,
    ) -> None:
        request = m.AlterConfigsRequest
        asked = [
            request.AlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=[request.AlterableConfig(name=key, value=value) for key, value in configs],
            )
            for kind, name, configs in resources
        ]
        self._ask(request(resources=asked, validate_only=validate_only), version)

    def describe_set(self, *names: str) -> None:
        """Record the configs that the topics themselves set."""
        request = m.DescribeConfigsRequest
        for version in (1, 4):
            resources = [
                request.DescribeConfigsResource(resource_type=_TOPIC, resource_name=name, configuration_keys=None)
                for name in names
            ]
            asked = request(resources=resources, include_synonyms=True)
            self._ask_until_expected(lambda asked=asked, version=version: self._configs_of(asked, version, names))

    def _configs_of(self, asked: Any, version: int, names: Sequence[str]) -> list[Any]:
        response = self._client.ask(asked, version)
        for result in response.results:
            result.configs = [each for each in result.configs if each.config_source == 1]
            for each in result.configs:
                each.synonyms = each.synonyms[:1]
                each.documentation = None
        return [f"DescribeConfigs v{version} {self._plain(names)}", self._plain(response)]

    def _ask_until_expected(self, read: Callable[[], list[Any]]) -> None:
        limit = time.monotonic() + _SETTLED_SECONDS
        number = len(self.lines)
        line = read()
        while number < len(self._expected) and line != self._expected[number] and time.monotonic() < limit:
            time.sleep(_PAUSE_SECONDS)
            line = read()
        self.lines.append(line)

    def _configs(self) -> None:
        self.describe_set("made", "defaults", "nothing", "a/b")
        self.alter((_TOPIC, "made", [("retention.ms", SET, "2000"), ("cleanup.policy", APPEND, "delete")]))
        self.describe_set("made")
        self.alter((_TOPIC, "made", [("cleanup.policy", SUBTRACT, "compact"), ("retention.ms", DELETE, None)]))
        self.alter((_TOPIC, "defaults", [("cleanup.policy", APPEND, "compact,delete")]))
        self.alter((_TOPIC, "one", [("cleanup.policy", SUBTRACT, "delete")]))
        self.describe_set("made", "defaults", "one")
        self.alter((_TOPIC, "made", [("retention.ms", APPEND, "1")]), (_TOPIC, "one", [("no.such", SET, "1")]))
        self.alter((_TOPIC, "one", [("no.such", DELETE, "1")]), (_TOPIC, "c.d", [("no.such", APPEND, "1")]))
        self.alter((_TOPIC, "nothing", [("retention.ms", SET, "1")]), (_TOPIC, "", [("retention.ms", SET, "1")]))
        self.alter((_TOPIC, "a/b", [("retention.ms", SET, "1")]), (_TOPIC, "nothing", []))
        self.alter((_TOPIC, "made", []), (_TOPIC, "one", []), (_TOPIC, "one", []))
        self.alter((_TOPIC, "one", [("retention.ms", SET, "1"), ("retention.ms", SET, "2")]))
        self.alter((_TOPIC, "one", [("retention.ms", SET, None)]), (_TOPIC, "v2", [("retention.ms", 9, "1")]))
        self.alter((_TOPIC, "v3", [("retention.ms", SET, "77")]), validate_only=True)
        self.alter((_TOPIC, "v3", [("retention.ms", SET, "x")]), validate_only=True, version=0)
        self.alter((_TOPIC, "v4", [("min.compaction.lag.ms", SET, "10")]))
        self.alter((_TOPIC, "v4", [("max.compaction.lag.ms", SET, "5"), ("retention.ms", SET, "5")]))
        self.alter((99, "v4", [("a", SET, "10")]), (3, "v4", []), (_BROKER, "x", []), (_BROKER, "77", []))
        for key, values in CONFIGS.items():
            for value in values:
                self.alter((_TOPIC, "v5", [(key, SET, value)]))
            self.describe_set("v5")
            self.alter((_TOPIC, "v5", [(key, DELETE, None)]))
        self.replace((_TOPIC, "made", [("retention.ms", "5"), ("segment.bytes", "2000000")]))
        self.describe_set("made")
        self.replace((_TOPIC, "made", [("retention.ms", "6")]), validate_only=True)
        self.replace((_TOPIC, "made", [("retention.ms", "6")]), version=0)
        self.describe_set("made")
        self.replace((_TOPIC, "made", [("retention.ms", "x")]), (_TOPIC, "one", [("no.such", "1")]), (_TOPIC, "", []))
        self.replace((_TOPIC, "nothing", []), (_TOPIC, "one", [("retention.ms", None)]), (99, "one", []))
        self.replace((_TOPIC, "one", [("retention.ms", "1"), ("retention.ms", "2")]))
        self.replace((_TOPIC, "made", []))
        self.describe_set("made", "defaults", "one", "v3", "v4", "v5")

    # --------------------------------------------------------------------------------------------------------- records
    def _records(self) -> None:
        self.create(topic("data", 2, 1), topic("compacted", 1, 1, {"cleanup.policy": "compact"}))
        self._metadata("data", "compacted")
        for name in ("data", "compacted"):
            records = batch(*((f"k{number}", "v") for number in range(5)))
            request = m.ProduceRequest
            partition = request.PartitionProduceData(index=0, records=records)
            data = [request.TopicProduceData(name=name, partition_data=[partition])]
            self._produce(request(acks=-1, timeout_ms=10_000, topic_data=data), 9)
        for offset in (2, 1, -1, 6, -2, 5):
            self.delete_records({"data": {0: offset, 1: offset}})
        self.delete_records({"compacted": {0: 1}, "nothing": {0: 1}, "data": {7: 1}, "a/b": {0: 0}})
        request = m.ListOffsetsRequest
        partition = request.ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=-2)
        asked = [request.ListOffsetsTopic(name="data", partitions=[partition])]
        self._ask(request(replica_id=-1, topics=asked), 7)

    def delete_records(self, offsets: Mapping[str, Mapping[int, int]]) -> None:
        request = m.DeleteRecordsRequest
        for version in (0, 2):
            asked = [
                request.DeleteRecordsTopic(
                    name=name,
                    partitions=[
                        request.DeleteRecordsPartition(partition_index=number, offset=offset)
                        for number, offset in partitions.items()
                    ],
                )
                for name, partitions in offsets.items()
            ]
            self._ask(request(topics=asked, timeout_ms=10_000), version)

    # ------------------------------------------------------------------------------------------------------- deletions
    def _deletions(self) -> None:
        self._metadata("made", "one", "defaults", "factor", "v2", "v3", "v4", "v5", "data")
        ids = self._ids
        unknown = uuid.UUID(int=5)
        self.delete("made", "nothing", "", "a/b", version=5)
        self.delete("v2", version=1)
        self.delete("one", "one", ids["defaults"], ids["defaults"])
        self.delete("one", ids["one"], unknown, _NO_ID, ("v3", ids["v3"]), ("v3", _NO_ID))
        self.delete(ids["factor"], "data", "made")
        self._metadata("made", "one", "defaults", "factor", "v2", "v3", "data")
        self.create(topic("data", 1, 1))
        self._metadata("data")

    def _metadata(self, *names: str) -> None:
        self._ask_until_expected(lambda: self._topics_of(names))

    def _topics_of(self, names: Sequence[str]) -> list[Any]:
        asked = [m.MetadataRequest.MetadataRequestTopic(name=name) for name in names]
        response = self._client.ask(m.MetadataRequest(topics=asked, allow_auto_topic_creation=False), 12)
        self._ids |= {each.name: each.topic_id for each in response.topics if each.topic_id != _NO_ID}
        rows = {
            each.name: [each.error_code, self._plain(each.topic_id), sorted(p.partition_index for p in each.partitions)]
            for each in sorted(response.topics, key=lambda topic: names.index(topic.name))
        }
        return [f"Metadata {names}", rows]

    # -------------------------------------------------------------------------------------------------------- recording
    def _ask(self, message: Any, version: int) -> None:
        response = self._client.ask(message, version)
        self._write(f"{type(message).__name__} v{version}", message, response)

    def _produce(self, message: Any, version: int) -> None:
        """Ask until the broker leads the partition, which its metadata says a little earlier."""
        deadline = time.monotonic() + _SETTLED_SECONDS
        response = self._client.ask(message, version)
        while _is_led_by_nobody(response) and time.monotonic() < deadline:
            time.sleep(_PAUSE_SECONDS)
            response = self._client.ask(message, version)
        self._write(f"{type(message).__name__} v{version}", message, response)

    def _write(self, what: str, message: Any, response: Any) -> None:
        self.lines.append([f"{what} {self._plain(message)}", self._plain(response)])

    def _plain(self, value: Any) -> Any:
        if hasattr(value, "FIELDS"):
            if isinstance(value, m.CreateTopicsResponse.CreatableTopicResult):
                value.configs = []
            fields = {field.attribute: getattr(value, field.attribute) for field in value.FIELDS}
            return {name: self._plain(each) for name, each in fields.items() if name not in _DIFFERENT}
        if isinstance(value, list | tuple):
            return sorted((self._plain(each) for each in value), key=repr)
        if isinstance(value, dict):
            return {key: self._plain(each) for key, each in value.items()}
        if isinstance(value, uuid.UUID):
            return self._names.setdefault(value, f"id {len(self._names)}") if value.int else "no id"
        if isinstance(value, bytes | memoryview):
            return len(value)
        return value


def _is_led_by_nobody(response: Any) -> bool:
    found = {partition.error_code for answer in response.responses for partition in answer.partition_responses}
    return ErrorCode.NOT_LEADER_OR_FOLLOWER in found


def topic(
    name: str,
    count: int = -1,
    factor: int = -1,
    configs: Mapping[str, str | None] | None = None,
    assignments: Mapping[int, Sequence[int]] | None = None,
) -> Any:
    """Return a topic of a CreateTopics request."""
    request = m.CreateTopicsRequest
    return request.CreatableTopic(
        name=name,
        num_partitions=count,
        replication_factor=factor,
        configs=[request.CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()],
        assignments=[
            request.CreatableReplicaAssignment(partition_index=number, broker_ids=list(nodes))
            for number, nodes in (assignments or {}).items()
        ],
    )


CONFIGS: Mapping[str, Sequence[str | None]] = {
    "cleanup.policy": ("", "compact,delete", "compact, delete", "compact,compact", "compact,", "keep", "COMPACT", None),
    "compression.type": ("zstd", "lzma", "", " gzip "),
    "compression.gzip.level": ("0", "9", "10", "-1"),
    "compression.lz4.level": ("0", "17", "18"),
    "compression.zstd.level": ("-131072", "23"),
    "retention.ms": ("-1", "-2", "x", "9223372036854775807", "9223372036854775808", "1.5", " 7 ", "+7", "", None),
    "retention.bytes": ("-1", "-7"),
    "segment.bytes": ("1048575", "1048576", "2147483648", "0"),
    "internal.segment.bytes": ("5", "100000"),
    "segment.ms": ("0", "1"),
    "segment.jitter.ms": ("-1", "0"),
    "segment.index.bytes": ("12",),
    "index.interval.bytes": ("-1", "0"),
    "min.cleanable.dirty.ratio": ("1.5", "-0.1", "0.3", "half", "1"),
    "min.insync.replicas": ("0", "2", "1"),
    "max.message.bytes": ("-1", "0"),
    "message.timestamp.type": ("CreateTime", "LogAppendTime", "logappendtime"),
    "message.timestamp.before.max.ms": ("-1", "0"),
    "message.timestamp.after.max.ms": ("-1", "0"),
    "delete.retention.ms": ("-1", "0"),
    "file.delete.delay.ms": ("-1", "0"),
    "flush.messages": ("0", "1"),
    "flush.ms": ("-1", "0"),
    "max.compaction.lag.ms": ("0", "1"),
    "min.compaction.lag.ms": ("-1", "0"),
    "preallocate": ("yes", "TRUE", "false", ""),
    "unclean.leader.election.enable": ("true", "maybe"),
    "leader.replication.throttled.replicas": ("*", "0:1,1:2", "x", "", "none", "0:1,0:1"),
    "remote.storage.enable": ("true", "false"),
    "remote.log.copy.disable": ("true", "false"),
    "remote.log.delete.on.disable": ("true", "false"),
    "local.retention.ms": ("-3", "-2", "5"),
    "local.retention.bytes": ("-3", "-2", "5"),
    "message.format.version": ("3.0",),
}
"""Values of topic configs, good and bad."""

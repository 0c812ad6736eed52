"""Administration by librdkafka; `tests/server/test_local_broker.py` has that by kafka-python."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka as confluent
import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions, NewTopic

from tests.consumers import commit_offsets, committed_offsets, ends
from tests.server.live.nodes import LiveServer, live, new_node
from tests.waiting import LIMIT_SECONDS


@pytest.fixture
def served(tmp_path: Path) -> Iterator[LiveServer]:
    path = new_node(tmp_path / "data", {})
    with live(path, topic_config=None, offsets_topic_num_partitions=1) as server:
        yield server


def done(futures: dict[Any, Any]) -> list[Any]:
    """Return the results of an operation, after all of its parts."""
    return [future.result(LIMIT_SECONDS) for future in futures.values()]


def test_librdkafka_administers_topics_configs_records_and_groups(served: LiveServer) -> None:
    admin = AdminClient({"bootstrap.servers": served.bootstrap})
    done(admin.create_topics([NewTopic("t", 1, 1, config={"retention.ms": "5"})]))
    (again,) = admin.create_topics([NewTopic("t", 1, 1)]).values()
    with pytest.raises(confluent.KafkaException) as refused:
        again.result(LIMIT_SECONDS)
    assert refused.value.args[0].code() == confluent.KafkaError.TOPIC_ALREADY_EXISTS
    assert refused.value.args[0].str() == "Topic 't' already exists."
    done(admin.create_partitions([NewPartitions("t", 2)]))
    assert len(admin.list_topics(timeout=LIMIT_SECONDS).topics["t"].partitions) == 2

    change = ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.APPEND)
    resource = ConfigResource(ConfigResource.Type.TOPIC, "t", incremental_configs=[change])
    done(admin.incremental_alter_configs([resource]))
    (configs,) = done(admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, "t")]))
    assert (configs["cleanup.policy"].value, configs["retention.ms"].value) == ("delete,compact", "5")
    assert not configs["retention.ms"].is_read_only

    producer = confluent.Producer({"bootstrap.servers": served.bootstrap})
    for number in range(5):
        producer.produce("t", b"v", key=b"%d" % number, partition=0)
    assert producer.flush(LIMIT_SECONDS) == 0
    (deleted,) = done(admin.delete_records([confluent.TopicPartition("t", 0, 3)]))
    assert deleted.low_watermark == 3
    assert ends(served.bootstrap, ["t-0"])["t-0"][:2] == (3, 5)

    commit_offsets(served.bootstrap, "g", {"t-0": 4})
    done(admin.delete_consumer_groups(["g"]))
    assert committed_offsets(served.bootstrap, "g", ["t-0"])["t-0"][0] < 0
    done(admin.delete_topics(["t"]))
    assert "t" not in admin.list_topics(timeout=LIMIT_SECONDS).topics

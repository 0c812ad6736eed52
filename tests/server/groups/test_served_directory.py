"""Groups, offsets and transactions of a log directory that a broker of Kafka 4.2.0 wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.slices import ALL
from sediment.segment_io.partition.sources import Source
from sediment.server.coordinator_log import CoordinatorLog, CoordinatorTopic, coordinator_partition
from sediment.server.groups.stored_groups import GroupKind, replay_groups
from sediment.server.transactions.stored_transactions import TransactionState, replay_transactions
from tests.served import GROUPS, expected, unpacked

PARTITIONS = 2


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked(tmp_path_factory.mktemp("served") / "data")


def coordinator_topic(directory: Path, name: str) -> CoordinatorTopic:
    partitions = [TopicPartition(name, number) for number in range(PARTITIONS)]
    return CoordinatorTopic(
        [CoordinatorLog(Source(each, directory / str(each)), ALL) for each in partitions], PARTITIONS
    )


def test_groups_have_the_offsets_that_clients_saw(directory: Path) -> None:
    groups = coordinator_topic(directory, "__consumer_offsets").replay(lambda log: replay_groups(log, Fs()))
    recorded = expected()["groups"]
    for group_id in GROUPS:
        # librdkafka commits its metadata with a zero byte at the end, and leaves it out when it reads.
        found = {f"{t}-{p}": [value.offset, value.metadata.rstrip("\0")] for t, p, value in groups[group_id].offsets}
        assert found == {name: offset for name, offset in recorded[group_id].items() if offset[0] >= 0}
        assert groups[group_id].kind is GroupKind.CLASSIC


def test_transactions_are_committed_aborted_and_open(directory: Path) -> None:
    topic = coordinator_topic(directory, "__transaction_state")
    transactions = topic.replay(lambda log: replay_transactions(log, Fs()))
    states = {transaction.state for transaction in transactions.values()}
    assert transactions["unfinished"].state is TransactionState.ONGOING
    assert transactions["unfinished"].partitions
    assert states <= {TransactionState.ONGOING, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT}


@pytest.mark.parametrize("topic", ["__consumer_offsets", "__transaction_state"])
def test_kafka_keeps_an_id_in_the_partition_of_its_hash_code(directory: Path, topic: str) -> None:
    replay = replay_groups if topic == "__consumer_offsets" else replay_transactions
    found = 0
    for log in coordinator_topic(directory, topic).logs:
        for key in replay(log, Fs()):
            assert coordinator_partition(key, PARTITIONS) == log.partition
            found += 1
    assert found

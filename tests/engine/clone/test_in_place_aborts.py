"""Which open transactions of a stopped node may be aborted in place."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from sediment.engine.clone.coordinator_rewrite import CoordinatedTransaction
from sediment.engine.clone.in_place_aborts import Coordinators, OwningCluster
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.internal_topics.metadata_log import ClusterMetadata
from sediment.segment_io.partition.producer_state import ProducerEntry

PARTITION = TopicPartition("orders", 2)
ENTRY = ProducerEntry(4001, 3, current_txn_first_offset=10)
STATES = "__transaction_state"


def cluster(replicas: Mapping[str, Mapping[int, tuple[int, ...]]], *nodes: int) -> OwningCluster:
    metadata = ClusterMetadata({}, {}, {}, 100, replicas=replicas)
    return OwningCluster(metadata, is_of_node=True, has_zookeeper=False, nodes=frozenset(nodes or (1,)))


def held(producer_id: int, *partitions: TopicPartition) -> Coordinators:
    transaction = CoordinatedTransaction("pay", "being committed", 60_000, frozenset(partitions))
    return Coordinators(frozenset({0, 1}), {producer_id: transaction})


ALONE = cluster({"orders": {2: (1,)}, STATES: {0: (1,), 1: (1,)}})
NO_CLUSTER = OwningCluster(None, is_of_node=False, has_zookeeper=False, nodes=frozenset())


@pytest.mark.parametrize(
    ("owner", "coordinators"),
    [
        (ALONE, Coordinators(frozenset({0, 1}))),
        (ALONE, held(4002, PARTITION)),
        (ALONE, held(4001, TopicPartition("orders", 3))),
        (cluster({"orders": {2: (1,)}}), Coordinators()),
        (cluster({"orders": {2: (1,)}, STATES: {0: (1, 2)}}, 1, 2), Coordinators(frozenset({0}))),
        (NO_CLUSTER, Coordinators()),
    ],
    ids=[
        "no coordinator has it",
        "another producer's",
        "a transaction in other partitions",
        "no coordinators at all",
        "every node's directory was given",
        "no cluster",
    ],
)
def test_a_hanging_transaction_of_the_only_replica_may_be_aborted(
    owner: OwningCluster, coordinators: Coordinators
) -> None:
    assert owner.why_left_open(PARTITION, ENTRY, coordinators) is None


@pytest.mark.parametrize(
    ("owner", "coordinators", "code", "words"),
    [
        (
            cluster({"orders": {2: (3, 1, 2)}}),
            Coordinators(),
            "other-replicas",
            "nodes 1, 2 and 3 have a replica each, and a marker in this one alone would make them differ; start the "
            "brokers, and run `kafka-transactions.sh --bootstrap-server HOST:PORT abort --topic orders --partition 2 "
            "--start-offset 10`",
        ),
        (cluster({}), Coordinators(), "replicas-unknown", "the cluster does not know this partition"),
        (
            OwningCluster(None, is_of_node=True, has_zookeeper=False, nodes=frozenset({1})),
            Coordinators(),
            "replicas-unknown",
            "with --metadata DIR",
        ),
        (
            OwningCluster(None, is_of_node=True, has_zookeeper=True, nodes=frozenset({1})),
            Coordinators(),
            "replicas-unknown",
            "only ZooKeeper says whether other nodes have a replica",
        ),
        (ALONE, Coordinators(frozenset({0})), "coordinator-unknown", "__transaction_state-1 is not here in full"),
        (
            ALONE,
            Coordinators(),
            "coordinator-unknown",
            "__transaction_state-0 and 1 more of its partitions are not here",
        ),
        (
            cluster({"orders": {2: (1,)}, STATES: {0: (1, 2)}}),
            Coordinators(frozenset({0})),
            "coordinator-unknown",
            "__transaction_state-0 is not here in full",
        ),
        (ALONE, Coordinators(failure="they cannot be read"), "coordinator-unknown", "they cannot be read"),
        (
            ALONE,
            held(4001, PARTITION),
            "ongoing-transaction",
            "transactional id pay is being committed; start the broker, whose coordinator ends it, at the latest after "
            "its timeout of 60000 ms",
        ),
        (NO_CLUSTER, held(4001, PARTITION), "ongoing-transaction", "transactional id pay"),
    ],
    ids=[
        "three replicas",
        "a stray",
        "no metadata",
        "ZooKeeper",
        "a coordinator is elsewhere",
        "all are elsewhere",
        "a newer replica may be elsewhere",
        "unreadable",
        "held",
        "held without a cluster",
    ],
)
def test_other_transactions_stay_open_and_the_reason_says_what_to_do(
    owner: OwningCluster, coordinators: Coordinators, code: str, words: str
) -> None:
    found = owner.why_left_open(PARTITION, ENTRY, coordinators)
    assert found is not None
    assert found.reason.startswith("the transaction that producer 4001 (epoch 3) began at offset 10 stays open: ")
    assert words in found.reason
    assert (found.reason_code, found.is_refused) == (code, code != "ongoing-transaction")

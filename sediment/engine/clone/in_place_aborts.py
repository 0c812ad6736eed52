"""Which open transactions of a stopped node may be aborted in place, and why the others stay open.

    aborted          the partition has no other replica, and no coordinator will end the transaction
    left open        another replica would differ from this one; or a coordinator will end the transaction, or may do so

A second replica would lack the marker. If it became the leader, other records could get the marker's offset under the
same leader epoch, and this replica would never truncate the marker.

A coordinator may have decided to commit. Its records therefore must all be here: every partition of
`__transaction_state`, with no replica on another node.

A directory without meta.properties and without metadata belongs to no cluster, so only the coordinators' records that
lie beside it count.

Source: Kafka's TransactionsCommand (find-hanging, abort), KIP-664.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sediment.engine.clone.coordinator_rewrite import CoordinatedTransaction
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.internal_topics.coordinator_records import TRANSACTION_STATE
from sediment.segment_io.internal_topics.metadata_log import ClusterMetadata
from sediment.segment_io.partition.hanging_transactions import kafkas_abort_command
from sediment.segment_io.partition.producer_state import ProducerEntry

OTHER_REPLICAS = "other-replicas"
REPLICAS_UNKNOWN = "replicas-unknown"
COORDINATOR_UNKNOWN = "coordinator-unknown"
ONGOING_TRANSACTION = "ongoing-transaction"
NOT_ASKED = "not-asked"


@dataclass(frozen=True, slots=True)
class LeftOpen:
    """Why a transaction is not aborted: a reason code, and a sentence that ends with what to do."""

    reason_code: str
    reason: str

    @property
    def is_refused(self) -> bool:
        return self.reason_code != ONGOING_TRANSACTION


@dataclass(frozen=True, slots=True)
class Coordinators:
    """`failure` says why the records cannot be read."""

    partitions: frozenset[int] = frozenset()
    transactions: Mapping[int, CoordinatedTransaction] = field(default_factory=dict)
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class OwningCluster:
    """`is_of_node` is True if meta.properties exists; `has_zookeeper` if it is that of a ZooKeeper broker.

    `nodes` are the ids of the nodes whose directories were given.
    """

    metadata: ClusterMetadata | None
    is_of_node: bool
    has_zookeeper: bool
    nodes: frozenset[int]

    def why_left_open(
        self, partition: TopicPartition, entry: ProducerEntry, coordinators: Coordinators
    ) -> LeftOpen | None:
        found = self._why(partition, entry, coordinators)
        return None if found is None else left_open(entry, *found)

    def _why(
        self, partition: TopicPartition, entry: ProducerEntry, coordinators: Coordinators
    ) -> tuple[str, str] | None:
        abort = kafkas_abort_command(partition, entry.current_txn_first_offset)
        if self.metadata is None and self.is_of_node:
            return REPLICAS_UNKNOWN, self._unknown_replicas(abort)
        if self.metadata is not None:
            replicas = self.metadata.replicas.get(partition.topic, {}).get(partition.partition)
            if replicas is None:
                return (
                    REPLICAS_UNKNOWN,
                    "the cluster does not know this partition; a broker's start would rename it to -stray",
                )
            if len(replicas) > 1:
                return OTHER_REPLICAS, (
                    f"{_listed(replicas)} have a replica each, and a marker in this one alone would make them differ; "
                    f"start the brokers, and run `{abort}`"
                )
        if coordinators.failure is not None:
            return COORDINATOR_UNKNOWN, coordinators.failure
        if self.metadata is not None:
            missing = self._missing_coordinators(self.metadata, coordinators.partitions)
            if missing:
                return COORDINATOR_UNKNOWN, (
                    f"its coordinator may have decided to commit it, and {_first_of(missing)} not here in full; give "
                    f"the directories of every node with a replica of {TRANSACTION_STATE}, or start the brokers, and "
                    f"run `{abort}`"
                )
        found = coordinators.transactions.get(entry.producer_id)
        if found is not None and partition in found.partitions:
            return ONGOING_TRANSACTION, (
                f"transactional id {found.transactional_id} is {found.state}; start the broker, whose coordinator ends "
                f"it, at the latest after its timeout of {found.timeout_ms} ms"
            )
        return None

    def _missing_coordinators(self, metadata: ClusterMetadata, here: frozenset[int]) -> list[int]:
        replicas = metadata.replicas.get(TRANSACTION_STATE, {})
        return sorted(
            number for number, nodes in replicas.items() if number not in here or not self.nodes.issuperset(nodes)
        )

    def _unknown_replicas(self, abort: str) -> str:
        if self.has_zookeeper:
            return (
                "only ZooKeeper says whether other nodes have a replica, and a marker in this one alone would make "
                f"them differ; start the brokers, and run `{abort}` of Kafka 3.0 or newer, or clone the directory with "
                "--abort-open-transactions"
            )
        return (
            "without __cluster_metadata-0 it is unknown whether other nodes have a replica; name the directory that "
            "contains it with --metadata DIR"
        )


def left_open(entry: ProducerEntry, code: str, why: str) -> LeftOpen:
    return LeftOpen(
        code,
        f"the transaction that producer {entry.producer_id} (epoch {entry.producer_epoch}) began at offset "
        f"{entry.current_txn_first_offset} stays open: {why}",
    )


def _listed(nodes: Iterable[int]) -> str:
    *others, last = sorted(nodes)
    return f"nodes {', '.join(map(str, others))} and {last}"


def _first_of(missing: list[int]) -> str:
    first = f"{TRANSACTION_STATE}-{missing[0]}"
    others = len(missing) - 1
    return f"{first} is" if not others else f"{first} and {others} more of its partitions are"

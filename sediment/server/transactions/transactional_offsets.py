"""TransactionalOffsets: offsets that are committed as part of a transaction (TxnOffsetCommit).

1. Find the partition of `__consumer_offsets` that stores the group.
2. Check that the transaction has the partition; with transaction version 2, add the partition.  Skip this step if the
   producer already wrote to the partition in the transaction.
3. Append the offsets as one transactional batch; they are pending until the marker of the transaction is appended.
4. Respond when the batch is replicated.

Source: Kafka's GroupCoordinatorService.commitTransactionalOffsets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sediment.engine.live.log.producer_appends import VerificationGuard
from sediment.segment_io.errors import SedimentError
from sediment.segment_io.format.batch_builder import BatchHead, build_batch
from sediment.segment_io.format.layout import NO_SEQUENCE
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.coordinator_log import coordinator_partition
from sediment.server.errors import error_code_of
from sediment.server.groups.group_coordinator import Commit, GroupCoordinator
from sediment.server.groups.group_requests import MemberIdentity
from sediment.server.groups.offsets_topic import commit_records, with_record_offsets
from sediment.server.live.delayed_append import Codes, ReplicatingAppend, ReplicationWaits
from sediment.server.live.partition import Partition
from sediment.server.transactions.transaction_coordinator import TransactionCoordinator
from sediment.server.transactions.transitions import ProducerOf

Respond = Callable[[Sequence[ErrorCode]], object]


@dataclass(frozen=True, slots=True)
class TransactionalCommit:
    transactional_id: str
    producer: ProducerOf
    group_id: str
    identity: MemberIdentity
    generation: int
    commits: Sequence[Commit]


class TransactionalOffsets:
    def __init__(
        self,
        partitions: Callable[[], Mapping[int, Partition | None]],
        transactions: TransactionCoordinator,
        groups: GroupCoordinator,
        waits: ReplicationWaits,
    ) -> None:
        self._partitions = partitions
        self._transactions = transactions
        self._groups = groups
        self._waits = waits

    def commit(self, asked: TransactionalCommit, respond: Respond, *, adds: bool) -> None:
        """If `adds` is True, the partition of the group is added to the transaction."""

        def fail(code: ErrorCode) -> None:
            respond([code for _ in asked.commits])

        partitions = self._partitions()
        if not partitions:
            fail(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            return
        partition = partitions.get(coordinator_partition(asked.group_id, len(partitions)))
        if partition is None:
            fail(ErrorCode.NOT_COORDINATOR)
            return
        refusal = self._transactions.error_of(asked.transactional_id)
        if refusal is not ErrorCode.NONE:
            fail(refusal)
            return
        name, producer = partition.topic_partition, asked.producer
        known = self._transactions.find(asked.transactional_id)
        guard = None
        if known is not None and known.has_producer(producer.producer_id):
            try:
                guard = partition.start_verification(
                    producer.producer_id, NO_SEQUENCE, producer.epoch, supports_epoch_bump=adds
                )
            except (SedimentError, OSError) as error:
                fail(_group_code(error_code_of(error)))
                return
            if guard is None:
                self._append(asked, partition, None, respond)
                return

        def verified(codes: Codes) -> None:
            if codes[name] is ErrorCode.NONE:
                self._append(asked, partition, guard, respond)
            else:
                fail(codes[name])

        self._transactions.verify_or_add(asked.transactional_id, producer, frozenset({name}), verified, adds=adds)

    def _append(
        self, asked: TransactionalCommit, partition: Partition, guard: VerificationGuard | None, respond: Respond
    ) -> None:
        appends: list[ReplicatingAppend] = []

        def append(commits: Sequence[Commit]) -> Sequence[Commit]:
            head = BatchHead(
                leader_epoch=0,
                producer_id=asked.producer.producer_id,
                producer_epoch=asked.producer.epoch,
                is_transactional=True,
            )
            batch = build_batch(commit_records(asked.group_id, commits), head)
            info = partition.append_of_coordinator(batch, wait=False, guard=guard)
            appends.append(ReplicatingAppend(partition, info.last_offset + 1))
            return with_record_offsets(commits, info.first_offset)

        codes = self._groups.commit_in_transaction(
            asked.group_id, asked.identity, asked.generation, asked.producer.producer_id, asked.commits, append
        )

        def replicated(found: Codes) -> None:
            code = _group_code(found.get(partition.topic_partition, ErrorCode.NONE))
            respond([code if each is ErrorCode.NONE else each for each in codes])

        self._waits.then(appends, replicated)


def _group_code(code: ErrorCode) -> ErrorCode:
    return {
        ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    }.get(code, code)

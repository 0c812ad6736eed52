"""TransactionCoordinator: the transactional ids of a server, with their transactions and timeouts.

A change takes effect when its record in `__transaction_state` is replicated. Until then, and until the last marker of a
decided transaction is written, other requests for the transactional id get CONCURRENT_TRANSACTIONS.

One lock guards all ids. No thread holds it while a record or a marker is appended, or while a response is sent. One
lock for each id would not make threads run in parallel, because this code runs under Python's global lock. A thread
waits for the disk only when it reserves a block of producer ids, once per 1,000 ids.

Invariants: at most one change of a transactional id is in progress. No producer gets an epoch above LAST_USABLE_EPOCH.
Memory used for clients stays within `sediment.transactions.max.bytes`; the memory is reserved before a change is
stored.

Source: Kafka's TransactionCoordinator, TransactionStateManager and TransactionMarkerChannelManager.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from sediment.engine.live.scheduler import Clock, Scheduler
from sediment.segment_io.errors import SedimentError
from sediment.segment_io.format.batch_builder import NewRecord
from sediment.segment_io.format.layout import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.client_memory import ClientMemory
from sediment.server.limited_log import LimitedLog
from sediment.server.live.delayed_append import Codes
from sediment.server.live.producer_ids import ProducerIdManager
from sediment.server.server_config import ServerConfig
from sediment.server.transactions import transitions
from sediment.server.transactions.marker_writer import Marker, MarkerWriter
from sediment.server.transactions.stored_transactions import encode_transaction, transaction_key
from sediment.server.transactions.transaction import (
    EPOCH_BUMPING_VERSION,
    NO_TIME,
    PREPARED,
    Transaction,
    TransactionState,
)
from sediment.server.transactions.transaction_log import TransactionLog
from sediment.server.transactions.transitions import ProducerOf

_LOGGER = logging.getLogger(__name__)

NO_PRODUCER = ProducerOf(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
TRANSACTION_BYTES = 2048
"""The allowance for a transactional id."""

PARTITION_BYTES = 256
"""The memory allowance for a partition of a transaction."""

_MARKER_RETRY_MS = 1000
_ADD_RETRIES_MS = (1, 2, 5, 12, 20, 20, 20, 20)
"""Delays of about 100 ms in total, the default of Kafka's `add.partitions.to.txn.retry.backoff.max.ms`."""

_TOMBSTONE_BATCH_BYTES = 16_384
_NEVER_WRITTEN = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED})
_NOT_NEEDED = frozenset({ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION})

InitAnswer = Callable[[ErrorCode, ProducerOf], object]


@dataclass(slots=True, eq=False)
class _Entry:
    current: Transaction
    is_changing: bool = False
    is_epoch_raised: bool = False
    """True if a fence has raised the epoch in memory, but the record of the fence is not stored."""

    decided_ms: int = NO_TIME
    """The time at which the decision to commit or abort was stored or loaded."""

    loaded_bytes: int = 0
    """Memory of a transaction that was loaded from the log directory; this memory is not counted."""

    counted_bytes: int = 0
    """Memory that is reserved for the id."""

    def needed_bytes(self, transaction: Transaction) -> int:
        return max(_size_bytes(transaction) - self.loaded_bytes, 0)


def _is_never(_transactional_id: str) -> bool:
    return False


def _size_bytes(transaction: Transaction) -> int:
    return TRANSACTION_BYTES + len(transaction.transactional_id) + PARTITION_BYTES * len(transaction.partitions)


class TransactionCoordinator:
    """Coordinator of every transactional id; `version` is the cluster's level of `transaction.version`."""

    def __init__(
        self,
        config: ServerConfig,
        version: int,
        log: TransactionLog,
        markers: MarkerWriter,
        producer_ids: ProducerIdManager,
        scheduler: Scheduler,
        clock: Clock,
    ) -> None:
        self._config = config
        self._version = version
        self._log = log
        self._markers = markers
        self._producer_ids = producer_ids
        self._scheduler = scheduler
        self._clock = clock
        self.memory = ClientMemory(config.transactions_max_bytes)
        self._warnings = LimitedLog(_LOGGER)
        self._entries: dict[str, _Entry] = {}
        self._guard = threading.Lock()
        self._is_loaded = False
        self._is_unreadable: Callable[[str], bool] = _is_never

    # ----------------------------------------------------------------------------------------------------- life cycle
    def load(self, stored: Mapping[str, Transaction], is_unreadable: Callable[[str], bool] = _is_never) -> None:
        self._is_unreadable = is_unreadable
        entries = {
            key: _Entry(each, loaded_bytes=_size_bytes(each))
            for key, each in stored.items()
            if each.state is not TransactionState.DEAD
        }
        ids = [each.current.producer_id for each in entries.values()]
        ids += [each.current.next_producer_id for each in entries.values()]
        self._producer_ids.reserve(max(ids, default=NO_PRODUCER_ID) + 1)
        prepared = [each for each in entries.values() if each.current.state in PREPARED]
        now_ms = self._clock.now_ms()
        for entry in prepared:
            entry.is_changing, entry.decided_ms = True, now_ms
        with self._guard:
            self._entries = entries
            self._is_loaded = True
        for entry in prepared:
            self._complete_later(entry, entry.current.partitions)
        config = self._config
        self._every(config.transaction_abort_timed_out_transaction_cleanup_interval_ms, self.abort_timed_out)
        self._every(config.transaction_remove_expired_transaction_cleanup_interval_ms, self.remove_expired)

    def _every(self, period_ms: int, task: Callable[[], object]) -> None:
        self._scheduler.schedule_periodically(task.__name__, task, period_ms=period_ms, delay_ms=period_ms)

    @property
    def transactions(self) -> Mapping[str, Transaction]:
        found = [entry.current for entry in self._snapshot()]
        return {each.transactional_id: each for each in found}

    def _snapshot(self) -> list[_Entry]:
        with self._guard:
            return list(self._entries.values())

    def find(self, transactional_id: str) -> Transaction | None:
        entry = self._entries.get(transactional_id)
        return None if entry is None else entry.current

    def error_of(self, transactional_id: str) -> ErrorCode:
        """After any result except COORDINATOR_LOAD_IN_PROGRESS, `find` finds every stored transaction."""
        if not transactional_id:
            return ErrorCode.INVALID_REQUEST
        if not self._is_loaded:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        if self._is_unreadable(transactional_id):
            return ErrorCode.UNKNOWN_SERVER_ERROR
        is_missing = self._log.coordinator_epoch(transactional_id) is None
        return ErrorCode.NOT_COORDINATOR if is_missing else ErrorCode.NONE

    # ----------------------------------------------------------------------------------------------------- initialize
    def initialize(
        self, transactional_id: str, timeout_ms: int, expected: ProducerOf | None, respond: InitAnswer
    ) -> None:
        """Respond with a producer's id and next epoch; `expected` is set if the producer continues after an error."""
        error = self.error_of(transactional_id)
        if not transactional_id or not 0 < timeout_ms <= self._config.transaction_max_timeout_ms:
            error = ErrorCode.INVALID_TRANSACTION_TIMEOUT if transactional_id else ErrorCode.INVALID_REQUEST
        if error is ErrorCode.NONE:
            error = self._initialize(transactional_id, timeout_ms, expected, respond)
            self._warn_of_memory(error)
        if error is not ErrorCode.NONE:
            respond(error, NO_PRODUCER)

    def _initialize(
        self, transactional_id: str, timeout_ms: int, expected: ProducerOf | None, respond: InitAnswer
    ) -> ErrorCode:
        new_id = NO_PRODUCER_ID
        while True:
            with self._guard:
                entry = self._entries.get(transactional_id)
                is_new = entry is None
                if entry is None and new_id != NO_PRODUCER_ID:
                    made = transitions.new_transaction(transactional_id, new_id, timeout_ms, self._clock.now_ms())
                    entry = _Entry(made)
                if entry is not None:
                    if entry.is_changing:
                        return ErrorCode.CONCURRENT_TRANSACTIONS
                    current = entry.current
                    if current.state is TransactionState.ONGOING:
                        if expected is not None and not transitions.may_continue(current, expected):
                            return ErrorCode.PRODUCER_FENCED
                        after = self._fenced(entry)
                        break
                    if new_id != NO_PRODUCER_ID or not transitions.needs_producer_id_to_initialize(current, expected):
                        outcome = transitions.initialize(current, timeout_ms, expected, new_id, self._clock.now_ms())
                        if isinstance(outcome, ErrorCode):
                            return outcome
                        if not self._begin(entry, outcome):
                            return ErrorCode.POLICY_VIOLATION
                        if is_new:
                            self._entries[transactional_id] = entry
                        after = outcome
                        break
            generated = self._new_producer_id()
            if generated is None:
                return ErrorCode.COORDINATOR_NOT_AVAILABLE
            new_id = generated

        def answer(code: ErrorCode) -> None:
            if code is ErrorCode.NONE and after.state in PREPARED:
                code = ErrorCode.CONCURRENT_TRANSACTIONS  # the client retries until the transaction is aborted
            if code is ErrorCode.NONE:
                respond(code, ProducerOf(after.producer_id, after.producer_epoch))
            else:
                respond(code, NO_PRODUCER)

        self._store(entry, after, answer)
        return ErrorCode.NONE

    def _new_producer_id(self) -> int | None:
        try:
            return self._producer_ids.generate()
        except SedimentError as error:
            self._warnings.warning(f"no producer id can be assigned: {error}")
            return None

    def _fenced(self, entry: _Entry) -> Transaction:
        """Begin the abort of an open transaction under a higher epoch; the guard is held."""
        now_ms, is_raised = self._clock.now_ms(), entry.is_epoch_raised
        after = transitions.fence(entry.current, self._version, now_ms, is_raised=is_raised)
        entry.is_changing = True
        if after.client_version < EPOCH_BUMPING_VERSION:
            # From here on, the producer is fenced, even if the record cannot be stored.
            entry.is_epoch_raised = True
            entry.current = replace(
                entry.current, producer_epoch=after.producer_epoch, last_producer_epoch=NO_PRODUCER_EPOCH
            )
        return after

    # ----------------------------------------------------------------------------------------------------- partitions
    def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerOf,
        partitions: frozenset[TopicPartition],
        version: int,
        respond: Callable[[ErrorCode], object],
    ) -> None:
        error = self.error_of(transactional_id)
        if error is not ErrorCode.NONE:
            respond(error)
            return
        with self._guard:
            entry = self._entries.get(transactional_id)
            outcome: transitions.Outcome = ErrorCode.INVALID_PRODUCER_ID_MAPPING
            if entry is not None and entry.is_changing:
                outcome = ErrorCode.CONCURRENT_TRANSACTIONS
            elif entry is not None:
                outcome = transitions.add_partitions(entry.current, producer, partitions, version, self._clock.now_ms())
                if not isinstance(outcome, ErrorCode) and not self._begin(entry, outcome):
                    outcome = ErrorCode.POLICY_VIOLATION
        if isinstance(outcome, ErrorCode) or entry is None:
            assert isinstance(outcome, ErrorCode)
            self._warn_of_memory(outcome)
            respond(outcome)
        else:
            self._store(entry, outcome, respond)

    def verify(
        self, transactional_id: str, producer: ProducerOf, partitions: frozenset[TopicPartition]
    ) -> Mapping[TopicPartition, ErrorCode]:
        error = self.error_of(transactional_id)
        current = self.find(transactional_id)
        if error is ErrorCode.NONE and current is None:
            error = ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if error is not ErrorCode.NONE or current is None:
            return dict.fromkeys(partitions, error)
        return transitions.verify_partitions(current, producer, partitions)

    def verify_or_add(
        self,
        transactional_id: str,
        producer: ProducerOf,
        partitions: frozenset[TopicPartition],
        then: Callable[[Mapping[TopicPartition, ErrorCode]], object],
        *,
        adds: bool,
        delays_ms: Sequence[int] = _ADD_RETRIES_MS,
    ) -> None:
        """If `adds`, missing partitions are added to the transaction, as clients of transaction version 2 expect.

        Such a client may send the first batch of a transaction while the markers of the previous transaction are being
        written. So the addition is retried for a while.
        """
        if not adds:
            then(self.verify(transactional_id, producer, partitions))
            return

        def answer(code: ErrorCode) -> None:
            if code is ErrorCode.CONCURRENT_TRANSACTIONS and delays_ms:
                again = partial(
                    self.verify_or_add,
                    transactional_id,
                    producer,
                    partitions,
                    then,
                    adds=True,
                    delays_ms=delays_ms[1:],
                )
                self._scheduler.schedule_once("retry-add-partitions-to-txn", again, delay_ms=delays_ms[0])
            else:
                then(dict.fromkeys(partitions, code))

        self.add_partitions(transactional_id, producer, partitions, EPOCH_BUMPING_VERSION, answer)

    # ------------------------------------------------------------------------------------------------------------ end
    def end(
        self, transactional_id: str, producer: ProducerOf, version: int, respond: InitAnswer, *, is_commit: bool
    ) -> None:
        """For clients of transaction version 2, the response has the producer's next id and epoch."""
        error = self.error_of(transactional_id)
        if error is not ErrorCode.NONE:
            respond(error, NO_PRODUCER)
            return
        new_id = None
        while True:
            with self._guard:
                entry = self._entries.get(transactional_id)
                if entry is None:
                    outcome: transitions.Outcome = ErrorCode.INVALID_PRODUCER_ID_MAPPING
                    break
                owner = _producer_of(entry.current)
                outcome = self._decided(entry, producer, version, is_commit=is_commit)
                if isinstance(outcome, ErrorCode):
                    break
                needs_id = transitions.needs_next_producer_id(outcome)
                if not needs_id or new_id is not None:
                    entry.is_changing = True
                    break
            new_id = self._new_producer_id()
            if new_id is None:
                outcome = ErrorCode.COORDINATOR_NOT_AVAILABLE
                break
        is_new = version >= EPOCH_BUMPING_VERSION
        if isinstance(outcome, ErrorCode) or entry is None:
            assert isinstance(outcome, ErrorCode)
            respond(outcome, owner if outcome is ErrorCode.NONE and is_new else NO_PRODUCER)
            return
        prepared = outcome if new_id is None else replace(outcome, next_producer_id=new_id)
        completed = transitions.complete(prepared, prepared.last_update_ms)

        def answer(code: ErrorCode) -> None:
            respond(code, _producer_of(completed) if is_new and code is ErrorCode.NONE else NO_PRODUCER)

        self._store(entry, prepared, answer)

    def _decided(self, entry: _Entry, producer: ProducerOf, version: int, *, is_commit: bool) -> transitions.Outcome:
        """Return the transaction after a producer's decision, or the error; the guard is held."""
        if entry.is_changing and version >= EPOCH_BUMPING_VERSION:
            return ErrorCode.CONCURRENT_TRANSACTIONS  # the client may already have its next epoch
        outcome = transitions.end(entry.current, producer, version, self._clock.now_ms(), is_commit=is_commit)
        is_known = outcome not in (ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.PRODUCER_FENCED)
        return ErrorCode.CONCURRENT_TRANSACTIONS if entry.is_changing and is_known else outcome

    def abort_timed_out(self) -> None:
        now_ms = self._clock.now_ms()
        for entry in self._snapshot():
            if not entry.current.has_timed_out(now_ms):
                continue
            with self._guard:
                if entry.is_changing or not entry.current.has_timed_out(now_ms):
                    continue
                after = self._fenced(entry)
            self._store(entry, after, partial(self._log_timeout, after.transactional_id))

    def _log_timeout(self, transactional_id: str, code: ErrorCode) -> None:
        if code is ErrorCode.NONE:
            _LOGGER.info("the transaction of %s is aborted, because it has timed out", transactional_id)
        else:
            self._warnings.warning(f"the transaction of {transactional_id} cannot be aborted: {code.name}")

    # -------------------------------------------------------------------------------------------------------- changes
    def _begin(self, entry: _Entry, after: Transaction) -> bool:
        """Begin a change and reserve its memory; return False if the limit is reached.

        The guard is held.
        """
        growth = entry.needed_bytes(after) - entry.counted_bytes
        if growth > 0:
            if not self.memory.take(growth):
                return False
            entry.counted_bytes += growth
        entry.is_changing = True
        return True

    def _warn_of_memory(self, code: ErrorCode) -> None:
        if code is ErrorCode.POLICY_VIOLATION:
            self._warnings.warning("a transactional request is refused: sediment.transactions.max.bytes is reached")

    def _store(self, entry: _Entry, after: Transaction, then: Callable[[ErrorCode], object]) -> None:
        number = self._log.partition_number(after.transactional_id)
        if number is None:
            self._stored(entry, after, then, ErrorCode.NOT_COORDINATOR)
            return
        try:
            record = NewRecord(self._clock.now_ms(), *encode_transaction(after, self._version))
        except SedimentError as error:
            self._warnings.warning(f"the transaction of {after.transactional_id} cannot be stored: {error}")
            self._stored(entry, after, then, ErrorCode.UNKNOWN_SERVER_ERROR)
            return
        self._log.append(number, [record], partial(self._stored, entry, after, then))

    def _stored(self, entry: _Entry, after: Transaction, then: Callable[[ErrorCode], object], code: ErrorCode) -> None:
        is_stored = code is ErrorCode.NONE
        is_prepared = is_stored and after.state in PREPARED
        with self._guard:
            before = entry.current
            if is_stored:
                entry.current = after
            if is_prepared:
                entry.is_epoch_raised, entry.decided_ms = False, self._clock.now_ms()
            entry.is_changing = is_prepared
            self._count(entry)
            if not is_stored and before.producer_epoch == NO_PRODUCER_EPOCH:
                self._forget(entry)
        then(code)
        if is_prepared:
            self._complete_later(entry, after.partitions)

    def _count(self, entry: _Entry) -> None:
        """Free the memory that an id does not need any more; the guard is held."""
        surplus = entry.counted_bytes - entry.needed_bytes(entry.current)
        if surplus > 0:
            entry.counted_bytes -= surplus
            self.memory.resize(-surplus)

    def _forget(self, entry: _Entry) -> None:
        """Remove a transactional id; the guard is held."""
        self._entries.pop(entry.current.transactional_id, None)
        self.memory.resize(-entry.counted_bytes)
        entry.counted_bytes = 0

    # -------------------------------------------------------------------------------------------------------- markers
    def _complete_later(self, entry: _Entry, partitions: frozenset[TopicPartition], delay_ms: int = 0) -> None:
        task = partial(self._write_markers, entry, partitions)
        self._scheduler.schedule_once("write-txn-markers", task, delay_ms=delay_ms)

    def _write_markers(self, entry: _Entry, partitions: frozenset[TopicPartition]) -> None:
        current = entry.current
        coordinator_epoch = self._log.coordinator_epoch(current.transactional_id)
        if coordinator_epoch is None:
            self._complete_later(entry, partitions, _MARKER_RETRY_MS)
            return
        marker = Marker(
            current.producer_id,
            current.producer_epoch,
            coordinator_epoch,
            current.client_version,
            current.state is TransactionState.PREPARE_COMMIT,
        )
        self._markers.write(marker, sorted(partitions), partial(self._written, entry))

    def _written(self, entry: _Entry, codes: Codes) -> None:
        transactional_id = entry.current.transactional_id
        for name, code in codes.items():
            if code in _NEVER_WRITTEN:
                _LOGGER.error(
                    "the marker of %s cannot be written to %s, because the log has a marker with a later epoch: %s",
                    transactional_id,
                    name,
                    code.name,
                )
        failed = {name: code for name, code in codes.items() if code not in _NOT_NEEDED | _NEVER_WRITTEN}
        if failed:
            name, code = next(iter(failed.items()))
            self._warnings.warning(f"a marker of {transactional_id} cannot be written to {name} yet: {code.name}")
            self._complete_later(entry, frozenset(failed), _MARKER_RETRY_MS)
        else:
            self._store_end(entry)

    def _store_end(self, entry: _Entry) -> None:
        prepared = entry.current
        if transitions.needs_next_producer_id(prepared):
            new_id = self._new_producer_id()
            if new_id is None:
                self._end_stored(entry, ErrorCode.COORDINATOR_NOT_AVAILABLE)
                return
            prepared = replace(prepared, next_producer_id=new_id)
        self._store(entry, transitions.complete(prepared, entry.decided_ms), partial(self._end_stored, entry))

    def _end_stored(self, entry: _Entry, code: ErrorCode) -> None:
        if code is not ErrorCode.NONE:
            with self._guard:
                entry.is_changing = True
            self._scheduler.schedule_once("complete-txn", partial(self._store_end, entry), delay_ms=_MARKER_RETRY_MS)

    # ----------------------------------------------------------------------------------------------------- expiration
    def remove_expired(self) -> None:
        now_ms, expiration_ms = self._clock.now_ms(), self._config.transactional_id_expiration_ms
        if expiration_ms is None:
            return
        by_partition: dict[int, list[_Entry]] = {}
        for entry in self._snapshot():
            if not entry.current.has_expired(now_ms, expiration_ms):
                continue
            number = self._log.partition_number(entry.current.transactional_id)
            with self._guard:
                is_removed = self._entries.get(entry.current.transactional_id) is not entry
                is_used = entry.is_changing or not entry.current.has_expired(now_ms, expiration_ms)
                if number is None or is_removed or is_used:
                    continue
                entry.is_changing = True
            by_partition.setdefault(number, []).append(entry)
        for number, expired in by_partition.items():
            for batch in _in_batches(expired):
                records = [NewRecord(now_ms, transaction_key(each.current.transactional_id), None) for each in batch]
                self._log.append(number, records, partial(self._removed, batch))

    def _removed(self, entries: Sequence[_Entry], code: ErrorCode) -> None:
        with self._guard:
            for entry in entries:
                entry.is_changing = False
                if code is ErrorCode.NONE:
                    self._forget(entry)
        if code is not ErrorCode.NONE:
            self._warnings.warning(f"expired transactional ids cannot be removed: {code.name}")


def _producer_of(transaction: Transaction) -> ProducerOf:
    return ProducerOf(transaction.producer_id, transaction.producer_epoch)


def _in_batches(entries: Sequence[_Entry]) -> list[list[_Entry]]:
    batches: list[list[_Entry]] = []
    size_bytes = 0
    for entry in entries:
        size_bytes -= len(entry.current.transactional_id.encode())
        if size_bytes < 0:
            batches.append([])
            size_bytes = _TOMBSTONE_BATCH_BYTES
        batches[-1].append(entry)
    return batches

"""CleanedTransactionMetadata: which batches and markers a pass over the log may discard (kafka-log 02 §7)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tests.twin.batches import ControlType
from tests.twin.indexes import AbortedTransaction
from tests.twin.segments import AnyBatch


@dataclass(slots=True)
class _Ongoing:
    transaction: AbortedTransaction
    observed: bool = False


class TransactionState:
    """The state machine of one pass; `kept_aborted` collects the transaction index of the segment being written."""

    def __init__(self) -> None:
        self._waiting: list[AbortedTransaction] = []
        self._aborted: dict[int, _Ongoing] = {}
        self._committed: set[int] = set()
        self.kept_aborted: list[AbortedTransaction] = []

    def add_aborted(self, transactions: Iterable[AbortedTransaction]) -> None:
        """Make aborted transactions known; duplicates do no harm."""
        self._waiting = sorted([*self._waiting, *transactions], key=lambda entry: entry.first_offset)

    def on_batch(self, batch: AnyBatch) -> bool:
        """Take in the next batch; whether it can be discarded (a marker only once its horizon has passed)."""
        self._consume_up_to(batch.last_offset)
        return self._on_marker(batch) if batch.is_control else self._on_data(batch)

    def _consume_up_to(self, offset: int) -> None:
        while self._waiting and self._waiting[0].first_offset <= offset:
            transaction = self._waiting.pop(0)
            self._aborted.setdefault(transaction.producer_id, _Ongoing(transaction))

    def _on_data(self, batch: AnyBatch) -> bool:
        if not batch.is_transactional:
            return False
        ongoing = self._aborted.get(batch.producer_id)
        if ongoing is None:
            self._committed.add(batch.producer_id)
            return False
        ongoing.observed = True
        return True

    def _on_marker(self, batch: AnyBatch) -> bool:
        control_type = batch.control_type()
        if control_type is None:
            return True
        if control_type is ControlType.ABORT:
            ongoing = self._aborted.pop(batch.producer_id, None)
            if ongoing is None or not ongoing.observed:
                return True
            self.kept_aborted.append(ongoing.transaction)
            return False
        if control_type is ControlType.COMMIT:
            was_ongoing = batch.producer_id in self._committed
            self._committed.discard(batch.producer_id)
            return not was_ongoing
        return False

"""Handlers that show the transactions of a directory: DescribeTransactions and ListTransactions.

Source: Kafka's TransactionCoordinator.handleDescribeTransactions and TransactionStateManager.listTransactionStates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.api_keys import ApiKey
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.requests import Handler, Request
from sediment.server.transactions.stored_transactions import by_topic
from sediment.server.transactions.transaction import Transaction, TransactionState

_STATES = {state.title: state for state in TransactionState}


def _is_never(_transactional_id: str) -> bool:
    return False


class TransactionHandlers:
    """Handlers that describe the transactions that `load` provides; `wall_ms` returns the wall-clock time."""

    def __init__(self, wall_ms: Callable[[], int]) -> None:
        self._wall_ms = wall_ms
        self._states: Callable[[], Mapping[str, Transaction]] | None = None
        self._is_unreadable: Callable[[str], bool] = _is_never

    def load(
        self, states: Callable[[], Mapping[str, Transaction]], is_unreadable: Callable[[str], bool] = _is_never
    ) -> None:
        """Start to serve the transactions; before this call, requests get an error that clients retry.

        `states` returns the current transactions.  `is_unreadable` takes a transactional id, and returns True if the
        id's partition cannot be read.
        """
        self._is_unreadable = is_unreadable
        self._states = states

    def _transactions(self) -> Mapping[str, Transaction] | None:
        """Return the current transactions; None before they are loaded."""
        if self._states is None:
            return None
        return {key: each for key, each in self._states().items() if each.state is not TransactionState.DEAD}

    def handlers(self) -> Mapping[ApiKey, Handler]:
        """Return the handlers by API key."""
        return {
            ApiKey.DESCRIBE_TRANSACTIONS: self._describe_transactions,
            ApiKey.LIST_TRANSACTIONS: self._list_transactions,
        }

    def _describe_transactions(self, request: Request) -> Any:
        transactions = self._transactions()
        return m.DescribeTransactionsResponse(
            transaction_states=[self._described(each, transactions) for each in request.message.transactional_ids]
        )

    def _described(self, transactional_id: str, transactions: Mapping[str, Transaction] | None) -> Any:
        response = m.DescribeTransactionsResponse
        if transactions is None:
            error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        elif not transactional_id:
            error = ErrorCode.INVALID_REQUEST
        elif self._is_unreadable(transactional_id):
            error = ErrorCode.UNKNOWN_SERVER_ERROR
        elif transactional_id not in transactions:
            error = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        else:
            found = transactions[transactional_id]
            return response.TransactionState(
                transactional_id=transactional_id,
                transaction_state=found.state.title,
                transaction_timeout_ms=found.timeout_ms,
                transaction_start_time_ms=found.start_timestamp_ms,
                producer_id=found.producer_id,
                producer_epoch=found.producer_epoch,
                topics=[response.TopicData(topic=topic, partitions=each) for topic, each in by_topic(found.partitions)],
            )
        return response.TransactionState(transactional_id=transactional_id, error_code=error)

    def _list_transactions(self, request: Request) -> Any:
        message = request.message
        response = m.ListTransactionsResponse
        transactions = self._transactions()
        if transactions is None:
            return response(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        states = {_STATES[name] for name in message.state_filters if name in _STATES}
        oldest_ms = self._wall_ms() - message.duration_filter
        selected = [
            transaction
            for transaction in transactions.values()
            if (not message.producer_id_filters or transaction.producer_id in message.producer_id_filters)
            and (not message.state_filters or transaction.state in states)
            and (message.duration_filter < 0 or transaction.start_timestamp_ms < oldest_ms)
        ]
        if message.transactional_id_pattern:
            matched = _matching(message.transactional_id_pattern, (each.transactional_id for each in selected))
            if matched is None:
                return response(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
            selected = [each for each, is_match in zip(selected, matched, strict=True) if is_match]
        return response(
            unknown_state_filters=[name for name in message.state_filters if name not in _STATES],
            transaction_states=[
                response.TransactionState(
                    transactional_id=each.transactional_id,
                    producer_id=each.producer_id,
                    transaction_state=each.state.title,
                )
                for each in selected
            ],
        )


def _matching(pattern: str, texts: Iterable[str]) -> Sequence[bool] | None:
    """Return, for each text, whether the whole text matches the pattern; None if the pattern is invalid.

    The pattern comes from a client, so matching must take linear time.  Pyarrow uses RE2, as Kafka does.
    """
    import pyarrow as pa
    from pyarrow import compute

    try:
        found: list[bool] = compute.match_substring_regex(
            pa.array(texts, pa.string()), rf"\A(?:{pattern})\z"
        ).to_pylist()
    except pa.ArrowInvalid:
        return None
    return found

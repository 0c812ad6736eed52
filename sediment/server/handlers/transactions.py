"""Handlers that show the transactions of a directory: DescribeTransactions and ListTransactions.

Source: Kafka's TransactionCoordinator.handleDescribeTransactions and TransactionStateManager.listTransactionStates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.api_keys import ApiKey
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.errors import ApiError
from sediment.server.regex import check_regex, matching_names
from sediment.server.requests import Handler, Request
from sediment.server.transactions.stored_transactions import by_topic
from sediment.server.transactions.transaction import Transaction, TransactionState

_STATES = {state.title: state for state in TransactionState}


def _is_never(_transactional_id: str) -> bool:
    return False


class TransactionHandlers:
    def __init__(self, wall_ms: Callable[[], int]) -> None:
        self._wall_ms = wall_ms
        self._states: Callable[[], Mapping[str, Transaction]] | None = None
        self._is_unreadable: Callable[[str], bool] = _is_never

    def load(
        self, states: Callable[[], Mapping[str, Transaction]], is_unreadable: Callable[[str], bool] = _is_never
    ) -> None:
        """Start to serve the transactions; before this call, requests get an error that clients retry."""
        self._is_unreadable = is_unreadable
        self._states = states

    def _transactions(self) -> Mapping[str, Transaction] | None:
        if self._states is None:
            return None
        return {key: each for key, each in self._states().items() if each.state is not TransactionState.DEAD}

    def handlers(self) -> Mapping[ApiKey, Handler]:
        return {
            ApiKey.DESCRIBE_TRANSACTIONS: self._describe_transactions,
            ApiKey.LIST_TRANSACTIONS: self._list_transactions,
        }

    def _describe_transactions(self, request: Request) -> Any:
        transactions = self._transactions()
        return m.DescribeTransactionsResponse(
            transaction_states=[
                self._described(each, transactions) for each in dict.fromkeys(request.message.transactional_ids)
            ]
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
        producer_ids = frozenset(message.producer_id_filters)
        oldest_ms = self._wall_ms() - message.duration_filter
        selected = [
            transaction
            for transaction in transactions.values()
            if (not producer_ids or transaction.producer_id in producer_ids)
            and (not message.state_filters or transaction.state in states)
            and (message.duration_filter < 0 or transaction.start_timestamp_ms < oldest_ms)
        ]
        if message.transactional_id_pattern:
            matched = _matching(message.transactional_id_pattern, [each.transactional_id for each in selected])
            if matched is None:
                return response(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
            selected = [each for each in selected if each.transactional_id in matched]
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


def _matching(pattern: str, names: Sequence[str]) -> frozenset[str] | None:
    try:
        check_regex(pattern)
    except ApiError:
        return None
    return matching_names(pattern, names)

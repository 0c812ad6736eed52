"""Sequences of coordinator requests, with the answers and states of Kafka's own coordinator."""

from __future__ import annotations

import json
import lzma
from typing import Any

import pytest

from tests.server.transactions.coordinator_steps import RECORDED, first_difference


@pytest.fixture(scope="module")
def sequences() -> list[dict[str, Any]]:
    recorded: list[dict[str, Any]] = json.loads(lzma.decompress(RECORDED.read_bytes()))
    return recorded


def test_recorded_sequences_are_answered_as_kafka_answered_them(sequences: list[dict[str, Any]]) -> None:
    assert len(sequences) >= 300
    differences = [found for each in sequences if (found := first_difference(each)) is not None]
    assert differences == []


def test_the_recorded_sequences_reach_every_state_request_and_kind_of_answer(sequences: list[dict[str, Any]]) -> None:
    results = [result for each in sequences for result in each["results"]]
    states = {result["state"][0] for result in results if result["state"] is not None}
    assert states == {"Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort"}
    operations = {step["op"] for each in sequences for step in each["steps"]}
    assert operations >= {"init", "add", "verify", "end", "time_out", "crash", "hold", "release", "markers"}
    codes = {answer[1] for result in results for answer in result["answers"]}
    assert codes >= {
        "NONE",
        "CONCURRENT_TRANSACTIONS",
        "COORDINATOR_NOT_AVAILABLE",
        "INVALID_PRODUCER_ID_MAPPING",
        "INVALID_TRANSACTION_TIMEOUT",
        "INVALID_TXN_STATE",
        "PRODUCER_FENCED",
        "TRANSACTION_ABORTABLE",
        "UNKNOWN_SERVER_ERROR",
    }

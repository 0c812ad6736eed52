"""What a coordinator does when the markers of a decision get different answers."""

from __future__ import annotations

import logging

import pytest

from tests.server.transactions.coordinator_steps import CoordinatorSteps

NOW_MS = 1_700_000_000_000
RETRY = {"op": "wait", "ms": 1000}


@pytest.fixture
def decided() -> CoordinatorSteps:
    """Return a coordinator that writes the markers of t-0 to t-4."""
    stored = {
        "producer_id": 7, "epoch": 3, "timeout_ms": 60_000, "state": 2, "partitions": [0, 1, 2, 3, 4],
        "start_ms": NOW_MS, "update_ms": NOW_MS, "version": 2,
    }  # fmt: skip
    return CoordinatorSteps({"now_ms": NOW_MS, "version": 2, "stored": stored})


def test_only_markers_that_may_still_be_written_are_written_again(
    decided: CoordinatorSteps, caplog: pytest.LogCaptureFixture
) -> None:
    assert decided.waiting_markers == [0, 1, 2, 3, 4]
    codes = {
        0: "INVALID_PRODUCER_EPOCH",
        1: "KAFKA_STORAGE_ERROR",
        2: "UNKNOWN_TOPIC_OR_PARTITION",
        3: "REQUEST_TIMED_OUT",
    }
    with caplog.at_level(logging.ERROR):
        left = decided.take({"op": "markers", "codes": codes})["state"]
    assert left is not None and left[0] == "PrepareCommit"
    assert [record.getMessage().partition(",")[0] for record in caplog.records] == [
        "the marker of x cannot be written to t-0"
    ]
    assert decided.waiting_markers == []
    decided.take(RETRY)
    assert decided.waiting_markers == [1, 3]
    decided.take({"op": "markers", "codes": {3: "TRANSACTION_COORDINATOR_FENCED", 1: "NOT_LEADER_OR_FOLLOWER"}})
    decided.take(RETRY)
    assert decided.waiting_markers == [1]
    left = decided.take({"op": "markers"})["state"]
    assert left is not None and left[0] == "CompleteCommit"


def test_a_transaction_ends_although_every_marker_is_refused(decided: CoordinatorSteps) -> None:
    left = decided.take({"op": "markers", "codes": dict.fromkeys(range(5), "INVALID_PRODUCER_EPOCH")})["state"]
    assert left is not None and left[0] == "CompleteCommit"


def test_an_end_that_cannot_be_stored_is_stored_later(decided: CoordinatorSteps) -> None:
    for _ in range(2):
        decided.take({"op": "hold"})
        decided.take({"op": "markers"})
        left = decided.take({"op": "release", "code": "NOT_COORDINATOR"})["state"]
        assert left is not None and left[0] == "PrepareCommit"
        busy = {"op": "init", "request": "i", "timeout_ms": 60_000}
        assert decided.take(busy)["answers"] == [["i", "CONCURRENT_TRANSACTIONS", -1, -1]]
        decided.take({"op": "hold"})
        decided.take(RETRY)
    left = decided.take({"op": "release", "code": "NONE"})["state"]
    assert left is not None and left[0] == "CompleteCommit"

"""A producer never gets epoch 32767, whatever a coordinator finds in its log."""

from __future__ import annotations

from typing import Any

import pytest

from sediment.segment_io.errors import ProtocolError
from sediment.server.transactions import transaction_coordinator
from tests.server.transactions.coordinator_steps import FIRST_PRODUCER_ID, CoordinatorSteps

NOW_MS = 1_700_000_000_000
ONGOING, PREPARE_COMMIT, PREPARE_ABORT, COMPLETE_ABORT = 1, 2, 3, 5
ROTATED = [FIRST_PRODUCER_ID, 0]


def coordinator(state: int, epoch: int, version: int = 2) -> CoordinatorSteps:
    stored = {
        "producer_id": 7,
        "epoch": epoch,
        "timeout_ms": 60_000,
        "state": state,
        "partitions": [0] if state != COMPLETE_ABORT else [],
        "start_ms": NOW_MS,
        "update_ms": NOW_MS,
        "version": version,
    }
    return CoordinatorSteps({"now_ms": NOW_MS, "version": version, "stored": stored})


def end(steps: CoordinatorSteps, epoch: int, *, commit: bool, producer_id: int = 7) -> Any:
    step = {"op": "end", "request": "e", "producer_id": producer_id, "epoch": epoch, "version": 2, "commit": commit}
    ((_, code, *producer),) = steps.take(step)["answers"]
    return code, producer


def init(steps: CoordinatorSteps, **producer: int) -> Any:
    ((_, code, *found),) = steps.take({"op": "init", "request": "i", "timeout_ms": 60_000, **producer})["answers"]
    return code, found


@pytest.mark.parametrize(("state", "commit"), [(PREPARE_COMMIT, True), (PREPARE_ABORT, False)])
def test_a_decision_that_kafka_stored_under_the_last_epoch_ends_with_a_new_id(state: int, commit: bool) -> None:
    steps = coordinator(state, 32_767)
    left = steps.take({"op": "markers"})["state"]
    assert left is not None and left[1:5] == [*ROTATED, -1, 7]
    assert end(steps, 32_766, commit=commit) == ("NONE", ROTATED)
    steps.take({"op": "crash"})
    assert end(steps, 32_766, commit=commit) == ("NONE", ROTATED)


def test_a_decision_survives_a_crash_with_the_id_that_the_answer_had() -> None:
    steps = coordinator(ONGOING, 32_766)
    assert end(steps, 32_766, commit=True) == ("NONE", ROTATED)
    steps.take({"op": "crash"})
    steps.take({"op": "markers"})
    assert end(steps, 32_766, commit=True) == ("NONE", ROTATED)


def test_a_transaction_that_times_out_under_the_last_epoch_ends_with_a_new_id() -> None:
    steps = coordinator(ONGOING, 32_766)
    steps.take({"op": "wait", "ms": 60_001})
    steps.take({"op": "time_out"})
    steps.take({"op": "markers"})
    assert end(steps, 32_766, commit=False) == ("NONE", ROTATED)
    assert init(steps, producer_id=7, epoch=32_766) == ("NONE", ROTATED)
    assert init(steps) == ("NONE", [FIRST_PRODUCER_ID, 1])


def test_a_producer_whose_answer_was_lost_may_ask_again_until_its_next_transaction_begins() -> None:
    steps = coordinator(ONGOING, 32_766)
    assert end(steps, 32_766, commit=True) == ("NONE", ROTATED)
    steps.take({"op": "markers"})
    assert init(steps, producer_id=7, epoch=32_766) == ("NONE", ROTATED)
    added = {"op": "add", "request": "a", "producer_id": FIRST_PRODUCER_ID, "epoch": 0, "partitions": [1], "version": 2}
    steps.take(added)
    assert init(steps, producer_id=7, epoch=32_766) == ("PRODUCER_FENCED", [-1, -1])


def test_the_largest_epoch_is_refused_and_the_id_stays_usable() -> None:
    steps = coordinator(COMPLETE_ABORT, 32_767)
    assert end(steps, 32_767, commit=False) == ("UNKNOWN_SERVER_ERROR", [-1, -1])
    assert init(steps) == ("NONE", ROTATED)


def test_a_record_that_cannot_be_encoded_leaves_the_id_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = coordinator(ONGOING, 5)

    def refuse(*_: object) -> tuple[bytes, bytes]:
        raise ProtocolError("a value does not fit its field")

    with monkeypatch.context() as patched:
        patched.setattr(transaction_coordinator, "encode_transaction", refuse)
        assert end(steps, 5, commit=True) == ("UNKNOWN_SERVER_ERROR", [-1, -1])
    assert end(steps, 5, commit=True) == ("NONE", [7, 6])

"""Random sequences of steps of a transaction coordinator (see tests/server/transactions/coordinator_steps.py).

A sequence ends before the step in which Kafka gives an exhausted epoch to a producer, or stays in a state with one.
`python -m tests.conformance.live.transaction_sequences` records the sequences that `make test` replays.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Mapping
from random import Random
from typing import Any

from tests.conformance.oracle import KafkaOracle
from tests.server.transactions.coordinator_steps import FIRST_PRODUCER_ID, RECORDED

NOW_MS = 1_700_000_000_000
RECORDED_SEQUENCES = 500
_STEPS = 16
_LAST_USABLE_EPOCH = 32_766
_EPOCHS = (0, 1, 5, 32_763, 32_764, 32_765, _LAST_USABLE_EPOCH, _LAST_USABLE_EPOCH, _LAST_USABLE_EPOCH + 1)
_TIMEOUTS_MS = (60_000, 60_000, 60_000, 120_000, 0, -1, 900_001, 2**31 - 1)
_WAITS_MS = (1, 5000, 70_000, 200_000)
_WEIGHTS = {
    "init": 5, "add": 6, "verify": 2, "end": 8, "time_out": 1, "wait": 2, "hold": 2, "release": 4, "markers": 6,
    "crash": 1,
}  # fmt: skip
_EMPTY, _ONGOING, _PREPARED, _COMPLETE = 0, 1, (2, 3), (4, 5)


def random_sequence(seed: int, oracle: KafkaOracle) -> dict[str, Any]:
    """Return where a sequence begins, its steps, and Kafka's answer and state after each."""
    random = Random(seed)
    begin: dict[str, Any] = {"now_ms": NOW_MS, "version": random.choice((0, 1, 2, 2, 2))}
    if random.random() < 0.6:
        begin["stored"] = _stored(random, begin["version"])
    oracle.transactions([], begin=begin)
    steps: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    state: list[Any] | None = None
    if "stored" in begin:
        (first,) = oracle.transactions([{"op": "wait", "ms": 0}])
        state = first["state"]
    known = [(begin["stored"]["producer_id"], begin["stored"]["epoch"])] if "stored" in begin else []
    for number in range(_STEPS):
        step = _step(random, number, begin, state, known)
        if step is None:
            continue
        (result,) = oracle.transactions([step])
        if _is_left_out(state, step, result):
            break
        result["answers"].sort()
        known += [(answer[2], answer[3]) for answer in result["answers"] if answer[3] >= 0]
        state = result["state"]
        steps.append(step)
        results.append(result)
        if any(answer[1] == "UNKNOWN_SERVER_ERROR" for answer in result["answers"]):
            break  # Kafka has used up a producer id
    return {"begin": begin, "steps": steps, "results": results}


def _stored(random: Random, version: int) -> dict[str, Any]:
    state = random.choice((_EMPTY, _ONGOING, _ONGOING, *_PREPARED, *_COMPLETE))
    client_version = 2 if version == 2 and random.random() < 0.6 else 0
    epoch = random.choice(_EPOCHS)
    if epoch > _LAST_USABLE_EPOCH and (state == _ONGOING or (state in _PREPARED and client_version == 2)):
        epoch = _LAST_USABLE_EPOCH
    has_partitions = state == _ONGOING or state in _PREPARED
    return {
        "producer_id": 7,
        "epoch": epoch,
        "timeout_ms": 60_000,
        "state": state,
        "partitions": random.sample(range(4), random.randint(1, 3)) if has_partitions else [],
        "start_ms": -1 if state == _EMPTY else NOW_MS - random.choice((0, 1000, 60_000, 60_001)),
        "update_ms": NOW_MS,
        "version": client_version,
    }


def _step(
    random: Random, number: int, begin: Mapping[str, Any], state: list[Any] | None, known: list[tuple[int, int]]
) -> dict[str, Any] | None:
    (op,) = random.choices([*_WEIGHTS], [*_WEIGHTS.values()])
    step: dict[str, Any] = {"op": op}
    if op == "wait":
        return {**step, "ms": random.choice(_WAITS_MS)}
    if op == "release":
        is_decided = state is None or state[0].startswith("Prepare") or state[2] < 0
        return {**step, "code": "NONE" if is_decided or random.random() < 0.6 else "COORDINATOR_NOT_AVAILABLE"}
    if op == "hold":
        return step if state is None or not state[-1] else None
    if op == "crash":
        # Kafka stores neither the previous nor the next id of a producer.
        keeps_id = state is not None and state[4] in (-1, state[1]) and state[5] == -1
        return step if keeps_id else None
    if op in ("time_out", "markers"):
        return step
    step["request"] = str(number)
    if op == "init":
        step["timeout_ms"] = random.choice(_TIMEOUTS_MS)
        if random.random() < 0.5:
            return step
    step["producer_id"], step["epoch"] = _producer(random, state, known)
    if op in ("add", "verify"):
        step["partitions"] = random.sample(range(4), random.randint(1, 2))
    if op in ("add", "end"):
        step["version"] = 2 if begin["version"] == 2 and random.random() < 0.8 else 0
    if op == "end":
        step["commit"] = random.random() < 0.5
    return step


def _producer(random: Random, state: list[Any] | None, known: list[tuple[int, int]]) -> tuple[int, int]:
    """Return a producer of a request: mostly the last one, else an earlier, a later or an unknown one."""
    current = (FIRST_PRODUCER_ID, 0) if state is None else (state[1], max(state[2], 0))
    last = known[-1] if known else current
    kind = random.random()
    if kind < 0.55:
        return last
    if kind < 0.75:
        return current
    if kind < 0.9:
        return random.choice(known) if known else current
    return (
        random.choice((current[0], current[0] + 1)),
        min(max(current[1] + random.choice((-2, -1, 1, 2)), 0), _LAST_USABLE_EPOCH + 1),
    )


def _is_left_out(state: list[Any] | None, step: Mapping[str, Any], result: Mapping[str, Any]) -> bool:
    gets_exhausted = any(answer[1] == "NONE" and answer[3] > _LAST_USABLE_EPOCH for answer in result["answers"])
    after = result["state"]
    if state is None or after is None:
        return gets_exhausted
    was_completed = state[0].startswith("Prepare") and after[0].startswith("Complete")
    is_exhausted = after[2] > _LAST_USABLE_EPOCH
    stays_open = state[0] == "Ongoing" and state[2] > _LAST_USABLE_EPOCH and step["op"] in ("init", "time_out")
    return gets_exhausted or (was_completed and is_exhausted and after[10] == 2) or stays_open


def main() -> None:
    """Write the sequences that `make test` replays."""
    with KafkaOracle() as oracle:
        sequences = [random_sequence(seed, oracle) for seed in range(RECORDED_SEQUENCES)]
    text = json.dumps(sequences, separators=(",", ":"), sort_keys=True)
    RECORDED.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))


if __name__ == "__main__":
    main()

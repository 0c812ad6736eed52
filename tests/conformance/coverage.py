"""Coverage of a set of random logs: the number of logs or cleaning rounds in each dimension.

Invariant: counts come from the written steps and the cleaned rounds, not from probabilities.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.conformance.cases import Case
from tests.conformance.logs import CODECS, START_MS, Step, writing_steps
from tests.twin.segments import list_segments

if TYPE_CHECKING:
    from tests.conformance.rounds import CleanedRound

_SMALL_SEGMENT_BYTES = 4_000
_SMALL_INDEX_BYTES = 1_200

OF_LOGS = (
    *(f"codec {name}" for name in CODECS),
    *("interleaved transactions", "aborted transactions", "open transactions", "empty transactions"),
    *("fenced epochs", "transaction version 2", "idempotent producers"),
    *("tombstones", "headers", "null keys", "empty keys", "empty values"),
    *("log append time", "timestamps in disorder", "no timestamps", "equal timestamps"),
    *("several leader epochs", "small segments", "small indexes", "every batch indexed"),
    *("sparse offsets", "gaps beyond 2^31", "magic 0", "magic 1", "several magics"),
    *("truncations", "log start inside the log", "empty active segment"),
    *("several rounds", "appends between rounds", "topic compression.type", "segment.ms", "compact,delete"),
)
_OF_ROUNDS = (
    *("strategy whole", "strategy split", "cleaner checkpoint", "high watermark inside the log"),
    *("bounded offset map", "map filled", "minimum lag", "maximum lag", "changed segment.bytes"),
    *("expired producers", "delete horizons in the log"),
)
DIMENSIONS = (*OF_LOGS, *_OF_ROUNDS)


@dataclass
class Coverage:
    """Number of logs, or rounds, in each of DIMENSIONS."""

    counts: Counter[str] = field(default_factory=Counter)

    def add_case(self, case: Case) -> None:
        """Count what a log has."""
        self.counts.update(set(dimensions_of(case)))

    def add_round(self, given: CleanedRound) -> None:
        """Count what a round has in which something was cleaned."""
        if given.attempt.cleaned is not None:
            self.counts.update(set(_dimensions_of_round(given)))

    def __str__(self) -> str:
        width = max(map(len, DIMENSIONS))
        logs, rounds = (
            "\n".join(f"  {name:{width}} {self.counts[name]}" for name in names) for names in (OF_LOGS, _OF_ROUNDS)
        )
        return f"logs with\n{logs}\nrounds with\n{rounds}"


def dimensions_of(case: Case) -> Iterator[str]:
    """Yield those of DIMENSIONS that the log of a case has; a name can come more than once."""
    spec, rounds, steps = case["spec"], case["rounds"], writing_steps(case["spec"])
    configs = spec["configs"]
    yield from _of_batches([step for step in steps if "records" in step])
    yield from _of_transactions(steps)
    done = [step["do"] for step in steps]
    yield from _met(
        {
            "truncations": "truncate" in done,
            "log start inside the log": "log_start" in done,
            "empty active segment": [name for name in done if name != "log_start"][-1:] == ["roll"],
            "log append time": configs.get("message.timestamp.type") == "LogAppendTime",
            "small segments": int(configs["segment.bytes"]) <= _SMALL_SEGMENT_BYTES,
            "small indexes": int(configs.get("segment.index.bytes", 1 << 30)) <= _SMALL_INDEX_BYTES,
            "every batch indexed": configs.get("index.interval.bytes") == "0",
            "topic compression.type": "compression.type" in configs,
            "segment.ms": "segment.ms" in configs,
            "compact,delete": configs["cleanup.policy"] == "compact,delete",
            "several rounds": len(rounds) > 1,
            "appends between rounds": any(given["more"] for given in rounds),
        }
    )


def _met(conditions: Mapping[str, bool]) -> Iterator[str]:
    return (name for name, holds in conditions.items() if holds)


def _of_batches(batches: Sequence[Step]) -> Iterator[str]:
    largest_ms = START_MS
    for step in batches:
        yield f"codec {step['codec']}"
        yield from _met({f"magic {step.get('magic', 2)}": step.get("magic", 2) < 2})
        if step.get("gap"):
            yield "sparse offsets"
            yield from _met({"gaps beyond 2^31": step["gap"] > 1 << 31})
        if "log_append_time" in step:
            yield "log append time"
        if "producer" in step and not step["transactional"]:
            yield "idempotent producers"
        times = [record["ts"] for record in step["records"] if "ts" in record]
        if times and min(times) >= 0:
            yield from _met(
                {
                    "timestamps in disorder": min(times) < largest_ms or times != sorted(times),
                    "equal timestamps": len(set(times)) < len(times),
                }
            )
            largest_ms = max(largest_ms, *times)
        yield from _met({"no timestamps": -1 in times})
        for record in step["records"]:
            yield from _of_record(record)
    yield from _met(
        {
            "several leader epochs": len({step["leader_epoch"] for step in batches}) > 1,
            "several magics": len({step.get("magic", 2) for step in batches}) > 1,
        }
    )


def _of_record(record: dict[str, Any]) -> Iterator[str]:
    yield from _met(
        {
            "tombstones": record["v"] is None,
            "headers": "h" in record,
            "null keys": record["k"] is None,
            "empty keys": record["k"] == "",
            "empty values": record["v"] == "",
        }
    )


def _of_transactions(steps: Sequence[Step]) -> Iterator[str]:
    open_now: set[int] = set()
    epochs: dict[int, int] = {}
    for step in steps:
        if step["do"] == "truncate":
            open_now.clear()
        elif step.get("transactional"):
            open_now.add(step["producer"][0])
            yield from _met({"interleaved transactions": len(open_now) > 1})
        if "producer" in step:
            epochs[step["producer"][0]] = step["producer"][1]
        if step["do"] == "end_transaction":
            producer_id, epoch = step["producer_id"], step["producer_epoch"]
            version = step.get("transaction_version", 1)
            yield from _met(
                {
                    "empty transactions": producer_id not in open_now,
                    "aborted transactions": producer_id in open_now and not step["commit"],
                    "fenced epochs": version < 2 and epoch > epochs.get(producer_id, epoch),
                    "transaction version 2": version > 1,
                }
            )
            epochs[producer_id] = epoch
            open_now.discard(producer_id)
    yield from _met({"open transactions": open_now})


def _dimensions_of_round(given: CleanedRound) -> Iterator[str]:
    cleaned = given.attempt.cleaned
    assert cleaned is not None
    yield f"strategy {given.strategy}"
    yield from _met(
        {
            "cleaner checkpoint": given.first_dirty_offset is not None,
            "bounded offset map": given.map_bytes is not None,
            "map filled": given.map_bytes is not None and cleaned.end_offset < cleaned.first_uncleanable_offset,
            "minimum lag": "min.compaction.lag.ms" in given.configs,
            "maximum lag": "max.compaction.lag.ms" in given.configs,
            "changed segment.bytes": given.configs["segment.bytes"] in ("3000", "100000"),
            "expired producers": given.producer_id_expiration_ms is not None,
        }
    )
    segments = list_segments(given.before / "random-0")
    yield from _met({"high watermark inside the log": given.high_watermark < segments[-1].base_offset})
    horizons = (
        getattr(batch, "delete_horizon_ms", None) for segment in segments[:-1] for _, batch in segment.batches()
    )
    yield from _met({"delete horizons in the log": any(horizon is not None for horizon in horizons)})

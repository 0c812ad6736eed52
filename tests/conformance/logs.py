"""Random partition logs for Kafka to write and clean: specs from a seed, and the steps of a spec.

A spec is plain JSON: the fields of `SPEC` (probabilities are per batch or per record), or "steps" as java/Generate.java
takes them.  A round describes one cleaning of a log.  Invariant: the same seed gives the same bytes.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

Spec: TypeAlias = dict[str, Any]
Step: TypeAlias = dict[str, Any]
Round: TypeAlias = dict[str, Any]

START_MS = 1_700_000_000_000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_MINUTE_MS = 60_000
_DAY_MS = 86_400_000

SPEC: Spec = {
    "seed": 0,
    "configs": {"cleanup.policy": "compact", "segment.bytes": "40000"},
    "start_ms": START_MS,  # the clock and the first timestamp
    "start_offset": 0,  # the log end before the first step
    "first_producer_id": 1000,
    "first_leader_epoch": 0,
    "records": 1000,
    "batch_records": 20,  # at most so many in a batch
    "keys": 100,
    "skew": 1.0,  # above 1, some keys come more often
    "value_bytes": 60,
    "vary_values": False,  # lengths from 0 to twice value_bytes
    "incompressible": 0.0,
    "tombstones": 0.0,
    "null_keys": 0.0,
    "empty_keys": 0.0,
    "empty_values": 0.0,
    "headers": 0.0,
    "codecs": ["none"],
    "step_ms": 1,  # between two records
    "jitter_ms": 0,  # timestamps are off by at most so much
    "no_timestamps": 0.0,  # a whole batch without; only as a follower
    "append_time": 0.0,  # a batch of LogAppendTime; only as a follower (leaders obey message.timestamp.type)
    "transactional": 0.0,
    "idempotent": 0.0,
    "producers": 3,
    "ends": 0.3,  # an open transaction ends after its batch
    "aborts": 0.4,
    "epoch_bumps": 0.0,  # a marker that fences: epoch + 1
    "transaction_version": 1,  # from 2 on every marker has the next epoch (KIP-890)
    "empty_transactions": 0.0,  # a marker without data
    "leave_open": False,
    "leader_epochs": 1,
    "magics": [2],  # equal shares of the records, in this order
    "follower": 0.0,  # a batch replicated, not appended by the leader
    "gaps": 0.0,  # offsets missing before, inside or after a batch, as in compacted data
    "gap_offsets": 10,
    "rolls": 0.0,
    "truncations": 0.0,
    "roll_last": False,  # the active segment is empty
    "log_start": None,  # at the end, the log start moves to this share of the log
}


def writing_steps(spec: Mapping[str, Any]) -> list[Step]:
    """Return the steps that a spec stands for; fields it lacks are those of `SPEC`.

    Raises:
        KeyError: the spec has a field that `SPEC` does not have.
    """
    if "steps" in spec:
        return list(renumbered(spec["steps"], spec.get("start_offset", 0)))
    unknown = set(spec) - set(SPEC)
    if unknown:
        raise KeyError(f"unknown fields of a log spec: {sorted(unknown)}")
    return list(_Writer({**SPEC, **spec}).steps())


def continued(spec: Mapping[str, Any], *, log_end_offset: int, part: int) -> Spec:
    """Return the spec that goes on where a log ends: later, with producers and leader epochs of its own."""
    whole = {**SPEC, **spec}
    return {
        **whole,
        "start_offset": log_end_offset,
        "start_ms": whole["start_ms"] + part * 2 * whole["records"] * whole["step_ms"],
        "first_producer_id": whole["first_producer_id"] + part * 100,
        "first_leader_epoch": whole["first_leader_epoch"] + part * 50,
    }


def renumbered(steps: Sequence[Step], start_offset: int) -> Iterator[Step]:
    """Steps with the offsets and sequences that they have where the log begins at `start_offset`.

    That is for steps taken out of a longer list, whose "gap" says how far after the log end a batch begins; others
    stay as they are.
    """
    log_end = start_offset
    sequences: dict[int, tuple[int, int]] = {}
    for step in steps:
        moved = dict(step)
        if step["do"] == "truncate":
            log_end = min(step["offset"], log_end)
        elif step["do"] == "log_start":
            moved["offset"] = min(step["offset"], log_end)
        elif step["do"] == "end_transaction":
            log_end += 1
        elif step["do"] in ("append", "replicate"):
            base, last = log_end, log_end + len(step["records"]) - 1
            if step["do"] == "replicate":
                base = log_end + step["gap"] if "gap" in step else step["base_offset"]
                moved = _shifted(step, base - step["base_offset"])
                last = base + len(step["records"]) - 1
                last = moved.get("last_offset", moved["records"][-1].get("o", last))
            if "producer" in step and "gap" in step:
                producer_id, epoch, _ = step["producer"]
                known_epoch, sequence = sequences.get(producer_id, (epoch, 0))
                sequence = sequence if known_epoch == epoch else 0
                moved["producer"] = [producer_id, epoch, sequence]
                sequences[producer_id] = (epoch, sequence + last - base + 1)
            log_end = last + 1
        yield moved


def _shifted(step: Step, distance: int) -> Step:
    records = [{**record, "o": record["o"] + distance} if "o" in record else record for record in step["records"]]
    moved = {**step, "base_offset": step["base_offset"] + distance, "records": records}
    if "last_offset" in step:
        moved["last_offset"] = step["last_offset"] + distance
    return moved


class _Producer:
    """A producer's id and what its next batch must carry."""

    def __init__(self, producer_id: int) -> None:
        self.producer_id = producer_id
        self.epoch = 0
        self.sequence = 0
        self.in_transaction = False


class _Writer:
    """Turns a spec into steps, keeping the log end, the clock and the producers as Kafka will."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.random = random.Random(spec["seed"])
        self.log_end: int = spec["start_offset"]
        self.now_ms: int = spec["start_ms"]
        self.written: int = 0
        first = spec["first_producer_id"]
        self.transactional = [_Producer(first + n) for n in range(spec["producers"])]
        self.idempotent = [_Producer(first + 50 + n) for n in range(spec["producers"])]

    def chance(self, name: str) -> bool:
        return self.random.random() < float(self.spec[name])

    def leader_epoch(self) -> int:
        share = self.written * self.spec["leader_epochs"] // max(1, self.spec["records"])
        return int(self.spec["first_leader_epoch"] + min(share, self.spec["leader_epochs"] - 1))

    def magic(self) -> int:
        magics: list[int] = self.spec["magics"]
        share: int = self.written * len(magics) // max(1, self.spec["records"])
        return magics[min(share, len(magics) - 1)]

    def steps(self) -> Iterator[Step]:
        spec = self.spec
        while self.written < spec["records"]:
            producer = self.pick_producer() if self.magic() == 2 else None
            yield self.batch(producer)
            if producer and producer.in_transaction and self.chance("ends"):
                yield self.end_transaction(producer)
            if self.chance("empty_transactions") and self.magic() == 2:
                idle = [each for each in self.transactional if not each.in_transaction]
                if idle:
                    yield self.end_transaction(self.random.choice(idle))
            if self.chance("rolls"):
                yield {"do": "roll"}
            if self.chance("truncations"):
                yield self.truncate()
        if not spec["leave_open"]:
            for producer in self.transactional:
                if producer.in_transaction:
                    yield self.end_transaction(producer)
        if spec["roll_last"]:
            yield {"do": "roll"}
        if spec["log_start"] is not None:
            span = self.log_end - spec["start_offset"]
            yield {"do": "log_start", "offset": spec["start_offset"] + int(span * spec["log_start"])}

    def pick_producer(self) -> _Producer | None:
        if self.chance("transactional"):
            producer = self.random.choice(self.transactional)
            producer.in_transaction = True
            return producer
        if self.chance("idempotent"):
            # Also those of transactions, between two of them.
            return self.random.choice([*self.idempotent, *(p for p in self.transactional if not p.in_transaction)])
        return None

    def batch(self, producer: _Producer | None) -> Step:
        spec, magic = self.spec, self.magic()
        count = min(self.random.randint(1, spec["batch_records"]), spec["records"] - self.written)
        records = [self.record(magic) for _ in range(count)]
        leader_epoch = self.leader_epoch()
        self.written += count
        step: Step = {
            "now_ms": self.now_ms,
            "codec": self.codec(magic),
            "leader_epoch": leader_epoch,
            "records": records,
            "gap": 0,
        }
        gaps = self.chance("gaps")
        append_time = self.chance("append_time") and magic > 0
        timeless = self.chance("no_timestamps")
        # A leader takes no record without a key into a compacted log; a follower takes what the leader had.
        keyless = any(record["k"] is None for record in records) and "compact" in spec["configs"]["cleanup.policy"]
        if timeless:
            for record in records:
                record["ts"] = -1
        if magic < 2 or gaps or append_time or timeless or keyless or self.chance("follower"):
            step |= {"do": "replicate", "magic": magic, "base_offset": self.log_end}
            if append_time:
                step["log_append_time"] = self.now_ms
            if gaps:
                self.spread_offsets(step)
        else:
            step["do"] = "append"
        base = step.get("base_offset", self.log_end)
        last = step.get("last_offset", records[-1].get("o", base + count - 1))
        if producer:
            step["producer"] = [producer.producer_id, producer.epoch, producer.sequence]
            step["transactional"] = producer.in_transaction
            producer.sequence += last - base + 1
        self.log_end = last + 1
        return step

    def spread_offsets(self, step: Step) -> None:
        """Leave offsets out before, inside and after a replicated batch; its base need not be a record's."""
        most = self.spec["gap_offsets"]
        step["gap"] = self.random.choice((0, self.random.randint(0, most)))
        offset = step["base_offset"] = self.log_end + step["gap"]
        inner = min(most, 20)
        for record in step["records"]:
            offset += self.random.choice((0, 0, self.random.randint(0, inner)))
            record["o"] = offset
            offset += 1
        if step["magic"] == 2:
            step["last_offset"] = offset - 1 + self.random.choice((0, self.random.randint(0, inner)))

    def codec(self, magic: int) -> str:
        # zstd came with magic 2.
        possible: list[str] = [codec for codec in self.spec["codecs"] if magic == 2 or codec != "zstd"]
        return self.random.choice(possible or ["none"])

    def record(self, magic: int) -> dict[str, Any]:
        spec = self.spec
        self.now_ms += spec["step_ms"]
        record: dict[str, Any] = {"k": self.key(), "v": self.value()}
        if magic > 0:
            record["ts"] = max(0, self.now_ms + self.random.randint(-spec["jitter_ms"], spec["jitter_ms"]))
        if magic == 2 and self.chance("headers"):
            record["h"] = [
                [f"h{n}", self.random.choice([None, "", self.text(self.random.randint(1, 4))])]
                for n in range(self.random.randint(1, 3))
            ]
        return record

    def key(self) -> str | None:
        if self.chance("null_keys"):
            return None
        if self.chance("empty_keys"):
            return ""
        number = int(self.spec["keys"] * self.random.random() ** self.spec["skew"])
        return f"key-{number:08d}".encode().hex()

    def value(self) -> str | None:
        spec = self.spec
        if self.chance("tombstones"):
            return None
        if self.chance("empty_values"):
            return ""
        length = self.random.randint(0, 2 * spec["value_bytes"]) if spec["vary_values"] else spec["value_bytes"]
        return self.random.randbytes(length).hex() if self.chance("incompressible") else self.text(length)

    def text(self, length: int) -> str:
        return "".join(self.random.choices("abcdefgh", k=length)).encode().hex()

    def end_transaction(self, producer: _Producer) -> Step:
        commit = self.random.random() >= self.spec["aborts"]
        if self.chance("epoch_bumps") or self.spec["transaction_version"] > 1:
            producer.epoch += 1
            producer.sequence = 0
        self.log_end += 1
        producer.in_transaction = False
        return {
            "do": "end_transaction",
            "now_ms": self.now_ms,
            "producer_id": producer.producer_id,
            "producer_epoch": producer.epoch,
            "commit": commit,
            "coordinator_epoch": 0,
            "leader_epoch": self.leader_epoch(),
            "transaction_version": self.spec["transaction_version"],
        }

    def truncate(self) -> Step:
        """Cut the end off, as a follower does after a change of leader; producers start anew."""
        offset = max(self.spec["start_offset"], self.log_end - self.random.randint(1, 50))
        for number, producer in enumerate(self.transactional + self.idempotent):
            producer.producer_id += 10_000 * (number + 1)
            producer.epoch = producer.sequence = 0
            producer.in_transaction = False
        self.log_end = offset
        return {"do": "truncate", "offset": offset}


# ------------------------------------------------------------------------------------------------------- random choices
def random_spec(seed: int) -> Spec:
    """Return a spec of a small log: each dimension is off in about half of all specs, so that pairs of them meet."""
    pick = random.Random(seed)

    def sometimes(*shares: float) -> float:
        return pick.choice((0.0,) * len(shares) + shares)

    legacy = pick.random() < 0.12
    transactional = sometimes(0.2, 0.5, 0.9)
    batch_records = pick.choice((1, 4, 20, 60))
    value_bytes = pick.choice((0, 20, 60, 300))
    step_ms = pick.choice((0, 1, 50, _MINUTE_MS))
    largest_batch = 100 + batch_records * (2 * value_bytes + 120)
    configs = {
        "cleanup.policy": "compact",
        "segment.bytes": str(max(largest_batch, pick.choice((1_500, 4_000, 12_000, 40_000)))),
        "index.interval.bytes": str(pick.choice((0, 100, 600, 4096))),
        # An append of many batches, as of uncompressed old records, may overflow a tiny index.
        "segment.index.bytes": str(10_485_760 if legacy else pick.choice((240, 1_200, 10_485_760))),
        "delete.retention.ms": str(pick.choice((0, 1_000, _MINUTE_MS, _DAY_MS))),
    }
    if pick.random() < 0.15:
        configs["message.timestamp.type"] = "LogAppendTime"
    if pick.random() < 0.1:
        configs["compression.type"] = pick.choice(("uncompressed", *CODECS[1:]))
    if pick.random() < 0.1:
        configs["segment.ms"] = str(pick.choice((50, 400)) * max(1, step_ms))
    if pick.random() < 0.15:
        configs["cleanup.policy"] = "compact,delete"
    codecs = pick.choice((["none"], ["none"], [pick.choice(CODECS)], list(CODECS)))
    return {
        "seed": seed,
        "configs": configs,
        "records": pick.choice((0, 1, 50, 300, 800, 2_000)) if pick.random() < 0.5 else pick.randint(100, 1_500),
        "batch_records": batch_records,
        "keys": pick.choice((1, 10, 60, 300, 10**9)),
        "skew": pick.choice((1.0, 3.0)),
        "value_bytes": value_bytes,
        "vary_values": pick.random() < 0.5,
        "incompressible": sometimes(0.5, 1.0),
        "tombstones": sometimes(0.05, 0.3),
        "null_keys": sometimes(0.02),
        "empty_keys": sometimes(0.02),
        "empty_values": sometimes(0.1),
        "headers": sometimes(0.2, 0.8),
        "codecs": codecs,
        "step_ms": step_ms,
        "jitter_ms": pick.choice((0, 0, 30, 5_000)),
        "no_timestamps": sometimes(0.05),
        "append_time": sometimes(0.1),
        "transactional": 0.0 if legacy else transactional,
        "idempotent": sometimes(0.3),
        "producers": pick.choice((1, 3, 8)),
        "ends": pick.choice((0.1, 0.3, 0.9)),
        "aborts": pick.choice((0.1, 0.5, 0.9)),
        "epoch_bumps": sometimes(0.2),
        "transaction_version": pick.choice((1, 1, 2)),
        "empty_transactions": sometimes(0.03) if transactional else 0.0,
        "leave_open": pick.random() < 0.3,
        "leader_epochs": pick.choice((1, 1, 5)),
        "magics": pick.choice(([0], [1], [0, 1], [0, 1, 2], [1, 2])) if legacy else [2],
        "follower": sometimes(0.2, 1.0),
        "gaps": sometimes(0.1),
        "gap_offsets": pick.choice((10, 10, 1_000, 3_000_000_000)),
        "rolls": sometimes(0.05),
        "truncations": 0.01 if pick.random() < 0.1 else 0.0,
        "roll_last": pick.random() < 0.6,
        "log_start": pick.random() if pick.random() < 0.15 else None,
    }


def random_rounds(seed: int) -> list[Round]:
    """Return one to four cleaning rounds of the log of `random_spec(seed)`.

    A round: "now_ms"; "configs" that differ from the log's; "from_checkpoint" (go on at the previous round's end; else
    no checkpoint) or "dirty_share" (a checkpoint at that share of the log); "high_watermark_share" or None for the log
    end; "map_bytes" and "load_factor" or None for Kafka's; "producer_id_expiration_ms"; "more": a spec written (with
    `continued`) before this round, or None; "strategy": how Sediment cleans.
    """
    spec = {**SPEC, **random_spec(seed)}
    pick = random.Random(f"rounds of {seed}")
    retention_ms = int(spec["configs"]["delete.retention.ms"])
    span_ms = max(1, spec["records"] * spec["step_ms"])
    now_ms = spec["start_ms"] + span_ms + pick.choice((0, 1_000_000, _DAY_MS // 2))
    rounds: list[Round] = []
    count = pick.choice((1, 2, 2, 3, 4))
    for number in range(count):
        more = None
        if number and pick.random() < 0.3 and len(spec["magics"]) == 1:
            more = {**spec, "seed": seed + 1_000_003 * number, "records": pick.choice((20, 200)), "log_start": None}
            now_ms += 2 * number * span_ms + 1
        bounded = pick.random() < 0.25
        configs: dict[str, str] = {}
        if pick.random() < 0.2:
            configs["min.compaction.lag.ms"] = str(pick.choice((span_ms // 2, span_ms // 4, 1_000)))
        if pick.random() < 0.2:
            configs["segment.bytes"] = str(pick.choice((3_000, 100_000)))
        if pick.random() < 0.1:
            configs["max.compaction.lag.ms"] = str(pick.choice((_DAY_MS, 2 * _DAY_MS)))
        if pick.random() < 0.2:
            configs["min.cleanable.dirty.ratio"] = str(pick.choice((0.0, 0.1, 0.9)))
        rounds.append(
            {
                "now_ms": now_ms,
                "configs": configs,
                "from_checkpoint": bool(number) and pick.random() < (0.8 if more else 0.25),
                "dirty_share": pick.random() if pick.random() < 0.15 else None,
                "high_watermark_share": pick.random() if pick.random() < 0.15 else None,
                "map_bytes": 24 * pick.randint(3, 300) if bounded else None,
                "load_factor": pick.choice((0.5, 0.75, 0.9)) if bounded else None,
                "producer_id_expiration_ms": pick.choice((1_000, _DAY_MS)) if pick.random() < 0.2 else None,
                "more": more,
                "strategy": "split" if pick.random() < 0.15 else "whole",
            }
        )
        # Just before, at, and after the delete horizons that this round sets.
        now_ms += pick.choice((0, max(0, retention_ms - 1), retention_ms, retention_ms + 1, 2 * _DAY_MS))
    return rounds

"""Sentences about a transaction that is still open: whose it is, how old it is, and what ends it.

A transaction hangs if no coordinator will ever end it.  Kafka calls such a transaction hanging, too (KIP-664).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path

from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.partition.producer_state import ProducerEntry

_LONGEST_MS = 900_000  # transaction.max.timeout.ms: a coordinator ends an older transaction, unless it hangs
_UNITS = (("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000), ("second", 1000))


def describe_open_transaction(entry: ProducerEntry, now_ms: int) -> str:
    return (
        f"producer {entry.producer_id} (epoch {entry.producer_epoch}) began a transaction at offset "
        f"{entry.current_txn_first_offset}, last wrote {_age(now_ms - entry.timestamp_ms)}, and has not ended it"
    )


def kafkas_abort_command(partition: TopicPartition, first_offset: int) -> str:
    return (
        f"kafka-transactions.sh --bootstrap-server HOST:PORT abort --topic {partition.topic} "
        f"--partition {partition.partition} --start-offset {first_offset}"
    )


def how_to_end(partition: TopicPartition, log_dir: Path, first_offset: int) -> str:
    shown = shlex.quote(str(log_dir))
    return (
        "start the broker, so that the transaction's coordinator can end it; if it stays open, it hangs: abort it on "
        f"the running cluster with `{kafkas_abort_command(partition, first_offset)}`, on this node while it is "
        f"stopped with `sediment recover --abort-open-transactions {shown}`, or in a copy with `sediment clone "
        f"--abort-open-transactions {shown} --to DIR`"
    )


def hanging_warning(
    partition: TopicPartition, log_dir: Path, found: Iterable[ProducerEntry], now_ms: int
) -> str | None:
    """Return a warning about transactions that seem to hang, with the way to end the first; None if there are none."""
    hanging = [entry for entry in found if entry.has_open_transaction and now_ms - entry.timestamp_ms > _LONGEST_MS]
    if not hanging:
        return None
    first = min(hanging, key=lambda entry: entry.current_txn_first_offset)
    others = f" ({len(hanging) - 1} more like it)" if len(hanging) > 1 else ""
    end = how_to_end(partition, log_dir, first.current_txn_first_offset)
    return f"{describe_open_transaction(first, now_ms)}{others}, so readers of committed data stop there; {end}"


def _age(age_ms: int) -> str:
    if age_ms < 0:
        return "at a time in the future"
    unit, unit_ms = next(((unit, ms) for unit, ms in _UNITS if age_ms >= 2 * ms), ("second", 1000))
    count = age_ms // unit_ms
    return f"{count} {unit}{'' if count == 1 else 's'} ago"

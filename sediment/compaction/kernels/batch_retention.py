"""The rules for a whole batch: Kafka's checkBatchRetention as kernels (kafka-log 02 §6.2, §6.4).

1. A batch of aborted data is dropped.  A marker is dropped after its delete horizon (`is_discarded`).
   `cleaned_transaction_metadata.classify_batches` (Kafka's onBatchRead and onControlBatchRead) finds these batches.
2. Two kinds of batches keep their header even if they lose all their records (`keeps_header`).  One is the last batch
   below the first uncleanable offset.  The other is the last batch of an active producer.
3. A batch of magic 2 that keeps all its records is copied byte for byte, unless it gets a delete horizon
   (`is_copied`).

Invariant: a rule depends only on header fields, batch flags and the last batches of active producers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sediment.compaction.kernels.batch_decoder import Header
from sediment.compaction.kernels.cleaned_transaction_metadata import DISCARD, LEAVES_HEADER, LEGACY
from sediment.segment_io.compiled.jit import inlined_kernel, kernel
from sediment.segment_io.compiled.memory import load_i16, load_i64
from sediment.segment_io.format.layout import PRODUCER_EPOCH, PRODUCER_ID
from sediment.segment_io.partition.producer_state import ProducerEntry


@kernel
def is_discarded(flags: int, is_control: bool, horizon_passed: bool) -> bool:
    return (flags & DISCARD) != 0 and (not is_control or horizon_passed)


class ActiveProducers(NamedTuple):
    """The last batches of active producers, as arrays for kernels: each is int64[n], sorted by producer id.

    `last_offsets` has the offset of each producer's last data batch, or -1 if the producer has only a marker.
    """

    producer_ids: npt.NDArray[np.int64]
    last_offsets: npt.NDArray[np.int64]
    epochs: npt.NDArray[np.int64]


def active_producers(producers: Iterable[ProducerEntry]) -> ActiveProducers:
    entries = sorted(producers, key=lambda entry: entry.producer_id)
    return ActiveProducers(
        np.array([entry.producer_id for entry in entries], dtype=np.int64),
        np.array([entry.last_offset for entry in entries], dtype=np.int64),
        np.array([entry.producer_epoch for entry in entries], dtype=np.int64),
    )


@inlined_kernel
def keeps_header(header: Header, flags: int, first_uncleanable_offset: int, producers: ActiveProducers) -> bool:
    """The header of the last batch before the first uncleanable offset preserves the last offset of the cleaned range.

    The header of the last batch of an active producer preserves the producer's sequence numbers.
    """
    if header.last_offset + 1 == first_uncleanable_offset or (flags & LEAVES_HEADER) != 0:
        return True
    producer_id = load_i64(header.address + PRODUCER_ID)
    if producer_id < 0:
        return False
    epoch = load_i16(header.address + PRODUCER_EPOCH)
    return is_last_of_producer(producers, producer_id, epoch, header.last_offset, header.is_control)


@inlined_kernel
def is_copied(header: Header, flags: int, retained: int, gets_horizon: bool) -> bool:
    return retained == header.record_count and not gets_horizon and flags & LEGACY == 0


@kernel
def is_last_of_producer(
    producers: ActiveProducers, producer_id: int, epoch: int, last_offset: int, is_control: bool
) -> bool:
    low = 0
    high = producers.producer_ids.size
    while low < high:
        middle = (low + high) >> 1
        if producers.producer_ids[middle] < producer_id:
            low = middle + 1
        else:
            high = middle
    if low == producers.producer_ids.size or producers.producer_ids[low] != producer_id:
        return False
    if producers.last_offsets[low] >= 0:
        return last_offset == producers.last_offsets[low]
    return is_control and epoch == producers.epochs[low]

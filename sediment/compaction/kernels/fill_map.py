"""The kernel that maps each key to its latest offset (buildOffsetMapForSegment); a later sweep filters by the map.

The kernel reads the dirty range forward, because a later offset of a key replaces the earlier one.  A bounded map may
become full before the end of the range; the round then ends at that point (kafka-log 02 §4.2).  The position at which
Kafka begins in the first segment matters only to transactions, so only `transaction_scan` calls `start_position`.

    not in the map     control batches, aborted batches (`cleaned_transaction_metadata`), records without a key
    full map           the pass also stops at a key that the map already contains (`offset_map.put_bounded`)
    end of a segment   the map covers offsets up to the next segment's base, so a gap is skipped (`end_segment`)
    size of the map    `config.offset_map_slots`
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sediment.compaction.kernels.batch_decoder import (
    BatchMemory,
    CheckedBatches,
    KeyMap,
    decode_keys,
    flags_of,
    read_header,
)
from sediment.compaction.kernels.cleaned_transaction_metadata import UNMAPPED, UNREADABLE
from sediment.compaction.kernels.offset_map import FULL, OFFSET_SLOT_BYTES, put_bounded
from sediment.compaction.kernels.registers import (
    CURSOR,
    FIRST_MAPPED_OFFSET,
    HEADROOM,
    LATEST_OFFSET,
    MAP_LIMIT,
    MAPPED,
)
from sediment.segment_io.compiled.jit import kernel
from sediment.segment_io.compiled.status import DONE, MAP_FULL, OK
from sediment.segment_io.format.offset_index import OffsetIndex
from sediment.segment_io.format.record_decoder import KEY_BYTES, OFFSET_DELTA


def start_position(index: OffsetIndex, first_dirty_offset: int) -> int:
    """Return the position at which Kafka begins to fill its map in the first dirty segment, whose `.index` is `index`.

    The batches before this position end below `first_dirty_offset`, so their keys do not enter the map.  But these
    batches may be markers.  Kafka fills the map in a separate pass that has its own transaction state.  That pass knows
    the transactions of those markers only from the transaction index.

    Source: kafka-log 02 §4.2.
    """
    return index.lookup(first_dirty_offset).position


@kernel
def fill_map(
    batches: CheckedBatches,
    rules: npt.NDArray[np.int64],
    keys: KeyMap,
    rows: BatchMemory,
    state: npt.NDArray[np.int64],
) -> int:
    """Put the keys of a chunk's batches, with their offsets, into the map; CURSOR is the next batch.

    LATEST_OFFSET is the latest offset in the map.  Return DONE, a NEEDS_… status, a decoder's status, or MAP_FULL.
    """
    base = np.int64(batches.buffer.ctypes.data)
    first_mapped = rules[FIRST_MAPPED_OFFSET]
    while state[CURSOR] < batches.positions.size:
        ordinal = state[CURSOR]
        flags = flags_of(batches, ordinal)
        if flags & UNREADABLE:
            state[CURSOR] = ordinal + 1
            continue
        header = read_header(base + batches.positions[ordinal])
        is_mapped = header.last_offset >= first_mapped
        if header.record_count > 0 and is_mapped and not header.is_control and not flags & UNMAPPED:
            status = decode_keys(batches, header, ordinal, OFFSET_SLOT_BYTES, keys, rows, state)
            if status != OK:
                return status
            state[HEADROOM] -= header.record_count
            for index in range(header.record_count):
                offset = header.base_offset + rows.records[index, OFFSET_DELTA]
                if rows.records[index, KEY_BYTES] >= 0 and offset >= first_mapped:
                    low, high = rows.hashes[index, 0], rows.hashes[index, 1]
                    added = put_bounded(keys.tables, low, high, offset, state[MAPPED], rules[MAP_LIMIT])
                    if added == FULL:
                        return MAP_FULL
                    state[MAPPED] += added
                    state[LATEST_OFFSET] = offset
        if is_mapped:
            state[LATEST_OFFSET] = header.last_offset
        state[CURSOR] = ordinal + 1
    return DONE


def end_segment(state: npt.NDArray[np.int64], end_offset: int) -> None:
    """Set LATEST_OFFSET after the last batch of a segment: the map covers all offsets below `end_offset`.

    No record has an offset between the segment's last record and `end_offset`, so the next round need not read the
    segment again.
    """
    state[LATEST_OFFSET] = end_offset - 1

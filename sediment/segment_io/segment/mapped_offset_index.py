"""The offset index of an open segment: entries are appended to its file, and searched in a memory mapping.

    lookup               finds the entry with the largest offset at or below the target, or (base offset, 0)
    fetch_upper_bound    finds the first entry at or above a position (Kafka's fetchUpperBoundOffset)
    truncate_to          keeps the entries below an offset
    append               `index_appends` leaves out an entry if the index is full, or if the offset does not ascend
    full                 every slot has an entry (`mapped_index.is_full`)

Source: kafka-log 01 §7.1.
"""

from __future__ import annotations

from sediment.segment_io.errors import CorruptIndexError
from sediment.segment_io.format.layout import OFFSET_ENTRY_BYTES, OFFSET_ENTRY_STRUCT
from sediment.segment_io.format.offset_index import OffsetPosition
from sediment.segment_io.segment.mapped_index import MappedIndex, last_at_most_i32


class MappedOffsetIndex(MappedIndex):
    """The `.index` of an open segment (kafka-log 01 §7.1)."""

    entry_bytes = OFFSET_ENTRY_BYTES

    @property
    def last_offset(self) -> int:
        """The offset of the last entry; the base offset if the index is empty."""
        return self[len(self) - 1].offset if len(self) else self.base_offset

    def __getitem__(self, slot: int) -> OffsetPosition:
        mapping = self.mapped()
        relative_offset, position = OFFSET_ENTRY_STRUCT.unpack_from(mapping.memory, slot * OFFSET_ENTRY_BYTES)
        return OffsetPosition(self.base_offset + relative_offset, position)

    def lookup(self, target_offset: int) -> OffsetPosition:
        """Return the entry with the largest offset ≤ `target_offset`; (base offset, 0) if there is none.

        Raises:
            CorruptIndexError: the position in the entry is negative.  Only this method detects such an entry, because
                after a clean stop, indexes are opened without a check.
        """
        slot = self._slot(target_offset - self.base_offset)
        if slot < 0:
            return OffsetPosition(self.base_offset, 0)
        entry = self[slot]
        if entry.position < 0:
            raise CorruptIndexError(
                f"index entry {slot} has position {entry.position}",
                path=str(self.path),
                offset=entry.offset,
                advice="close the log and delete this file; the next start rebuilds it",
            )
        return entry

    def fetch_upper_bound(self, position: int) -> OffsetPosition | None:
        """Return the first entry at or above byte `position`; all batches before it have lower offsets."""
        entries = len(self)
        if not entries:
            return None
        mapping = self.mapped()
        slot = last_at_most_i32(mapping.address, OFFSET_ENTRY_BYTES, 4, entries, self.warm_entries, position - 1) + 1
        return self[slot] if slot < entries else None

    def truncate_to(self, offset: int) -> None:
        """Keep the entries below `offset`."""
        self.cut(self._slot(offset - self.base_offset - 1) + 1)

    def _slot(self, target: int) -> int:
        entries = len(self)
        if not entries:
            return -1
        mapping = self.mapped()
        return last_at_most_i32(mapping.address, OFFSET_ENTRY_BYTES, 0, entries, self.warm_entries, target)

"""ProducerIdManager: a source of producer ids, in blocks that are first made durable in the metadata.

    next id in the metadata is N -> ProducerIdsRecord(N + 1000) is made durable -> ids N to N + 999 are assigned

After a crash, the rest of the block is not used, and no id is assigned twice.

Source: Kafka's RPCProducerIdManager and ProducerIdControlManager.
"""

from __future__ import annotations

import threading

from sediment.engine.clone.cluster_records import PRODUCER_ID_BLOCK, CloneNode, producer_ids_record
from sediment.engine.metadata.metadata_writer import MetadataWriter


class ProducerIdManager:
    """A source of producer ids; any thread may use it."""

    def __init__(self, node: CloneNode, next_id: int, writer: MetadataWriter) -> None:
        self._node = node
        self._writer = writer
        self._guard = threading.Lock()
        self._next_id = self._block_end = next_id

    def reserve(self, next_id: int) -> None:
        """Assign no id below `next_id`, which may be above the next id in the metadata."""
        with self._guard:
            self._next_id = max(self._next_id, next_id)

    def generate(self) -> int:
        with self._guard:
            if self._next_id >= self._block_end:
                block_end = self._next_id + PRODUCER_ID_BLOCK
                self._writer.append([producer_ids_record(self._node, block_end)])
                self._block_end = block_end
            self._next_id += 1
            return self._next_id - 1

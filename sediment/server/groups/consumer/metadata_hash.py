"""The metadata hash of a group: a number that changes if a subscribed topic appears, disappears or gets partitions.

    topic    byte 0 | id (two i64) | name | partition count i32 | per partition: number i32
    group    the hashes of the topics that exist, in the order of their names, i64 each; 0 if no topic exists

All numbers are little-endian.  The name is stored as its UTF-16 units, followed by their number as i32.  Racks, which
Kafka also hashes, are always absent here.

Source: Kafka's Utils.computeTopicHash and computeGroupHash, and hash4j's HashStream64.putString.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from functools import lru_cache
from uuid import UUID

import xxhash

from sediment.server.groups.consumer.members import SubscribableTopics

_SIGN = 1 << 63
_CACHED_TOPICS = 10_000


@lru_cache(maxsize=_CACHED_TOPICS)
def topic_hash(name: str, topic_id: UUID, partition_count: int) -> int:
    units = name.encode("utf-16-le")
    low = topic_id.int & ((1 << 64) - 1)
    head = struct.pack("<bQQ", 0, topic_id.int >> 64, low)
    numbers = struct.pack(f"<{partition_count}i", *range(partition_count))
    return xxhash.xxh3_64_intdigest(head + units + struct.pack("<ii", len(units) // 2, partition_count) + numbers)


def metadata_hash(names: Iterable[str], topics: SubscribableTopics) -> int:
    found = [topic for topic in map(topics.topic, sorted(set(names))) if topic is not None]
    if not found:
        return 0
    hashes = [topic_hash(topic.name, topic.id, topic.partition_count) for topic in found]
    value = xxhash.xxh3_64_intdigest(struct.pack(f"<{len(hashes)}Q", *hashes))
    return value - (1 << 64) if value & _SIGN else value

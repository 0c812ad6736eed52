"""The metadata hash equals Kafka's: the values are those of hash4j 0.22.0, which Kafka 4.2.0 uses, and of xxHash."""

from __future__ import annotations

from uuid import UUID

import pytest
import xxhash

from sediment.server.groups.consumer.metadata_hash import metadata_hash, topic_hash
from tests.server.groups.consumer.group_members import GivenTopic, GivenTopics

ORDERS = GivenTopic("orders", UUID(int=0x0123456789ABCDEF_FEDCBA9876543210), 3)


@pytest.mark.parametrize(
    ("size", "value"),
    [
        (0, 0x2D06800538D394C2),
        (3, 0x5F4299FC161C9CBB),
        (8, 0x3A1C2D7C85AF88F8),
        (16, 0x8355E3A6F61770DB),
        (100, 0x004E4F921A64BD1C),
        (200, 0xF42A8864FEAF0703),
        (241, 0x02E8CD95421C6D02),
        (2000, 0x8D38FC31DC9D9FAB),
    ],
)
def test_the_hash_of_bytes(size: int, value: int) -> None:
    assert xxhash.xxh3_64_intdigest(bytes(index % 251 for index in range(size))) == value


def test_the_hash_of_topics() -> None:
    assert topic_hash(*ORDERS) == 9017009200229395283
    assert topic_hash("größe", UUID(int=1 << 64 | 2), 100) == -8167866451654556716 + (1 << 64)


def test_the_hash_of_a_group() -> None:
    topics = GivenTopics()
    assert metadata_hash(["orders"], topics) == 0
    topics.found["orders"] = ORDERS
    assert metadata_hash(["orders", "missing", "orders"], topics) == 6309767880947472006

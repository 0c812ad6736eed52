"""Messages of clients and brokers, compared with kio, an implementation of the protocol by others."""

from __future__ import annotations

import io
import random

from kio.index import load_entity_schema
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from sediment.segment_io.protocol.schema import message_lines, snake_case
from tests.segment_io.protocol.random_messages import message_versions, random_message

ROUNDS = 2
ENTITIES = {
    "request": EntityType.request,
    "response": EntityType.response,
    "header": EntityType.header,
    "data": EntityType.data,
}


def test_kio_reads_what_is_encoded_and_writes_the_same_bytes():
    chance = random.Random(6)
    compared = 0
    for name, version in message_versions():
        line = message_lines()[name]
        if line.component != "clients":
            continue
        entity = load_entity_schema(snake_case(_entity_name(name, line.kind)), version, ENTITIES[line.kind])
        for _ in range(ROUNDS):
            # kio has types for error codes and durations, so that not every number can be read.
            content = random_message(name, version, chance, plausible=True).to_bytes(version)
            read, size_bytes = entity_reader(entity)(content, 0)
            written = io.BytesIO()
            entity_writer(entity)(written, read)
            assert (size_bytes, written.getvalue()) == (len(content), content), (name, version, content.hex())
            compared += 1
    assert compared > 600 * ROUNDS


def _entity_name(name: str, kind: str) -> str:
    return name.removesuffix(kind.capitalize()) if kind in ("request", "response") else name

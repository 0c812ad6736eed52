"""Messages of the protocol, compared with Kafka's own generated classes, in every type and version.

    random message ──encode──> bytes ──Kafka reads──> JSON, and the bytes that Kafka writes
                   ──to_json─> JSON  ──Kafka reads──> the bytes that Kafka writes

All are equal, for every message that this Kafka describes as the schema files do: records in them may be those of a
later release.  Mutated bytes that are decoded here are read by Kafka too, and mean the same.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, TypeVar

import pytest

from sediment.segment_io.errors import ProtocolError
from sediment.segment_io.protocol import messages
from sediment.segment_io.protocol.api_keys import ApiKey, advertised_versions
from sediment.segment_io.protocol.compiler import has_records
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.segment_io.protocol.json_converter import to_json
from sediment.segment_io.protocol.schema import FOLDER, message_lines, message_schema
from tests.conformance.formats.message_schemas import described_alike, schema_files
from tests.conformance.oracle import KAFKA_VERSION, REFERENCE_VERSION, KafkaOracle, MessageRead
from tests.retriable_errors import RETRIABLE
from tests.segment_io.protocol.random_messages import message_versions, random_message, random_messages

pytestmark = [pytest.mark.conformance, pytest.mark.timeout(0)]

ROUNDS = int(os.environ.get("SEDIMENT_CONFORMANCE_MESSAGES", "20"))
AT_ONCE = 500
# Kafka takes these for something else, and goes on.
ONLY_REFUSED_HERE = ("utf-8", "does not have its announced size", "a tagged field is longer than its message")

T = TypeVar("T")


of_reference = pytest.mark.skipif(
    KAFKA_VERSION != REFERENCE_VERSION, reason="the errors and APIs of serve are those of the reference"
)


@pytest.fixture(scope="module")
def alike() -> set[str]:
    """The names of the messages to compare."""
    found = described_alike(KAFKA_VERSION)
    assert len(found) > 0.85 * len(message_lines())
    return found


def chunks(items: Iterable[T]) -> Iterator[list[T]]:
    remaining = iter(items)
    while chunk := list(islice(remaining, AT_ONCE)):
        yield chunk


def test_the_schemas_are_those_of_kafkas_jars() -> None:
    assert {path.name: path.read_text(encoding="utf-8") for path in FOLDER.iterdir()} == schema_files()


@of_reference
def test_error_codes_have_kafkas_names_and_are_retriable_as_there(oracle: KafkaOracle) -> None:
    assert {int(code): (code.name, code in RETRIABLE) for code in ErrorCode} == oracle.error_codes()


@of_reference
def test_api_keys_have_kafkas_names_and_versions(oracle: KafkaOracle) -> None:
    ours = {int(key): (key.name, *advertised_versions(key)) for key in ApiKey}
    assert {key: (name, min(versions), max(versions)) for key, (name, *versions) in ours.items()} == (
        oracle.api_versions()
    )


def test_random_messages_are_the_same_bytes_and_the_same_json_to_kafka(oracle: KafkaOracle, alike: set[str]) -> None:
    compared = 0
    for chunk in chunks(one for one in random_messages(random.Random(1), ROUNDS) if one[0] in alike):
        encoded = [(name, version, message.to_bytes(version), version) for name, version, message in chunk]
        for (name, version, message), (_, _, content, _), kafka in zip(
            chunk, encoded, oracle.messages(encoded), strict=True
        ):
            where = (name, version, content.hex())
            assert (kafka.refused, kafka.left_bytes, kafka.unwritable) == (None, 0, None), where
            assert kafka.written == content, where
            assert kafka.json == to_json(message, version), where
            assert getattr(messages, name).decode(content, version) == message, where
            compared += 1
    assert compared == ROUNDS * sum(name in alike for name, _ in message_versions())


def test_kafka_writes_the_same_bytes_of_our_json(oracle: KafkaOracle, alike: set[str]) -> None:
    # Kafka's JSON has no record batches.
    names = {name for name in alike if not has_records(message_schema(name))}
    found = (one for one in random_messages(random.Random(2), ROUNDS) if one[0] in names)
    for chunk in chunks(found):
        written = oracle.messages_from_json(
            (name, version, to_json(message, version)) for name, version, message in chunk
        )
        for (name, version, message), content in zip(chunk, written, strict=True):
            assert content == message.to_bytes(version), (name, version)


def test_a_message_is_written_in_another_version_as_kafka_writes_it_or_refused_as_there(
    oracle: KafkaOracle, alike: set[str]
) -> None:
    def conversions(chance: random.Random) -> Iterator[tuple[Any, str, int, bytes, int]]:
        for _ in range(ROUNDS):
            for name, line in message_lines().items():
                for to in line.versions if name in alike else ():
                    version = chance.randint(line.versions.lowest_version, line.versions.highest_version)
                    message = random_message(name, version, chance, small=True)
                    yield message, name, version, message.to_bytes(version), to

    written = refused = 0
    for chunk in chunks(conversions(random.Random(3))):
        for (message, name, version, content, to), kafka in zip(
            chunk, oracle.messages(one[1:] for one in chunk), strict=True
        ):
            where = (name, version, to, content.hex())
            try:
                ours = message.to_bytes(to)
            except ProtocolError:
                assert kafka.written is None, where
                refused += 1
            else:
                assert kafka.written == ours, where
                written += 1
    assert min(written, refused) > ROUNDS * 50


def test_what_is_decoded_of_mutated_bytes_is_what_kafka_reads(oracle: KafkaOracle, alike: set[str]) -> None:
    def mutated(chance: random.Random) -> Iterator[tuple[str, int, bytes, int]]:
        for name, version, _ in random_messages(random.Random(4), ROUNDS):
            if name not in alike:
                continue
            content = bytearray(random_message(name, version, chance, small=True).to_bytes(version))
            for _ in range(chance.randint(1, 2)):
                if content:
                    content[chance.randrange(len(content))] = chance.choice(
                        (0, 1, 2, 127, 128, 255, chance.randrange(256))
                    )
            if chance.random() < 0.2:
                del content[chance.randrange(len(content) + 1) :]
            yield name, version, bytes(content), version

    decoded = refused = 0
    for chunk in chunks(mutated(random.Random(5))):
        for (name, version, content, _), kafka in zip(chunk, oracle.messages(chunk), strict=True):
            where = (name, version, content.hex(), kafka.refused)
            try:
                ours = getattr(messages, name).decode(content, version)
            except ProtocolError as error:
                assert is_refused(kafka) or any(words in str(error) for words in ONLY_REFUSED_HERE), (
                    *where,
                    str(error),
                )
                refused += 1
            else:
                assert kafka.refused is None, where
                assert kafka.json == to_json(ours, version) or "NaN" in str(kafka.json), where
                decoded += 1
    assert min(decoded, refused) > ROUNDS * 100


def is_refused(kafka: MessageRead) -> bool:
    return kafka.refused is not None or kafka.left_bytes > 0

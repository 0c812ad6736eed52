"""Messages that a client made to harm: one kind of error, and memory in proportion to the frame."""

from __future__ import annotations

import contextlib
import random
import tracemalloc
from collections.abc import Iterator, Sequence
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sediment.segment_io.errors import ProtocolError
from sediment.segment_io.protocol import compiler
from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.compiler import is_structure
from sediment.segment_io.protocol.primitives import write_unsigned_varint
from sediment.segment_io.protocol.schema import FieldSchema, message_lines
from tests.segment_io.protocol.random_messages import message_versions, random_message

MOST_TIMES_THE_FRAME = 32
ELEMENTS = 500
OWN_BYTES = 1024  # of a message without elements
TWO_BYTES_OF_TEXT = "Ā"  # the text with the most bytes of memory, 76, for each byte of a frame


@given(st.sampled_from(message_versions()), st.integers(0, 1 << 32), st.data())
def test_mutated_messages_are_decoded_or_refused_and_nothing_else(message_version, seed, data):
    name, version = message_version
    frame = bytearray(random_message(name, version, random.Random(seed), small=True).to_bytes(version))
    for _ in range(data.draw(st.integers(1, 4)) if frame else 0):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    del frame[data.draw(st.integers(0, len(frame))) :]
    with contextlib.suppress(ProtocolError):
        getattr(m, name).decode(bytes(frame), version)


@given(st.sampled_from(message_versions()), st.binary(max_size=200))
def test_any_bytes_are_decoded_or_refused_and_what_is_decoded_can_be_encoded(message_version, frame):
    name, version = message_version
    message_class = getattr(m, name)
    with contextlib.suppress(ProtocolError):
        message = message_class.decode(frame, version)
        again = message.to_bytes(version)
        assert message_class.decode(again, version).to_bytes(version) == again


@pytest.mark.parametrize("flexible", [False, True])
def test_the_smallest_elements_of_every_array_of_a_request_take_32_times_their_bytes_at_most(flexible):
    measured = 0
    for name, line in message_lines().items():
        versions = [version for version in line.versions if (version in line.flexible_versions) == flexible]
        if line.kind != "request" or not versions:
            continue
        for message in dense_messages(getattr(m, name), versions[-1]):
            assert times_the_frame(message, versions[-1]) < MOST_TIMES_THE_FRAME, (name, versions[-1])
            measured += 1
    assert measured > 60


def test_no_text_takes_much_more_than_that():
    topics = [m.MetadataRequest.MetadataRequestTopic(name=TWO_BYTES_OF_TEXT)] * 5000
    assert times_the_frame(m.MetadataRequest(topics=topics), 9) < MOST_TIMES_THE_FRAME * 1.1


@pytest.mark.parametrize("flexible", [False, True])
def test_all_arrays_of_a_request_have_a_limited_number_of_elements_together(flexible, monkeypatch):
    """A response and a record have no such limit, because a server sent or stored them."""
    monkeypatch.setattr(compiler, "MAX_REQUEST_ELEMENTS", ELEMENTS - 1)
    refused = accepted = 0
    for name, line in message_lines().items():
        versions = [version for version in line.versions if (version in line.flexible_versions) == flexible]
        if line.kind not in ("request", "response") or not versions:
            continue
        version, message_class = versions[-1], getattr(m, name)
        decode = compiler.compile_decoder(message_class.SCHEMA, version, message_class._CLASSES)
        for message in dense_messages(message_class, version):
            if line.kind == "response":
                with contextlib.suppress(ProtocolError):  # records have no minimal value
                    decode(message.to_bytes(version))
                    accepted += 1
                continue
            frame = message.to_bytes(version)
            with pytest.raises(ProtocolError, match=f"more than {ELEMENTS - 1} elements"):
                decode(frame)
            refused += 1
    assert refused > 60 and accepted > 60


def test_unknown_tagged_fields_count_as_elements():
    for count, is_refused in ((compiler.MAX_REQUEST_ELEMENTS, False), (compiler.MAX_REQUEST_ELEMENTS + 1, True)):
        frame = m.HeartbeatRequest().to_bytes(4)[:-1] + write_unsigned_varint(count) + bytes((100, 0)) * count
        with pytest.raises(ProtocolError, match="elements") if is_refused else contextlib.nullcontext():
            m.HeartbeatRequest.decode(frame, 4)


def test_an_announced_count_costs_nothing():
    frame = (2**31 - 1).to_bytes(4) + bytes(100)
    m.MetadataRequest.decode(bytes(4), 0)
    tracemalloc.start()
    with pytest.raises(ProtocolError):
        m.MetadataRequest.decode(frame, 0)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 8192


def times_the_frame(message: Any, version: int) -> float:
    """Return the peak memory of decoding the message, in sizes of its frame."""
    frame = message.to_bytes(version)
    decode = type(message).decode
    decode(frame, version)
    tracemalloc.start()
    kept = decode(frame, version)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert kept == message
    return (peak_bytes - OWN_BYTES) / len(frame)


def dense_messages(message_class: Any, version: int) -> Iterator[Any]:
    """Yield messages with many minimal elements in one array each, for every array at any depth."""
    for path in array_paths(message_class, message_class.FIELDS, version):
        yield filled(message_class, message_class, path, version)


def array_paths(message_class: Any, fields: Sequence[FieldSchema], version: int) -> Iterator[list[FieldSchema]]:
    for field in fields:
        if version not in field.versions:
            continue
        if field.is_array:
            yield [field]
        if is_structure(field):
            inner = getattr(message_class, field.type).FIELDS
            yield from ([field, *path] for path in array_paths(message_class, inner, version))


def filled(message_class: Any, own_class: Any, path: list[FieldSchema], version: int) -> Any:
    made = own_class()
    for field in own_class.FIELDS:
        if version in field.versions and field.default == "null" and version not in field.nullable_versions:
            setattr(made, field.attribute, minimal(field))
    if not path:
        return made
    field, *deeper = path
    if is_structure(field):
        element = filled(message_class, getattr(message_class, field.type), deeper, version)
    else:
        element = minimal(field)
    count = 1 if any(one.is_array for one in deeper) else ELEMENTS
    setattr(made, field.attribute, [element] * count if field.is_array else element)
    return made


def minimal(field: FieldSchema) -> Any:
    return {"string": "", "bytes": b"", "uuid": UUID(int=0)}.get(field.type, 0)

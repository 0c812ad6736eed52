from __future__ import annotations

import base64
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sediment.segment_io.errors import CorruptBatchError, UnsupportedDataError
from sediment.segment_io.internal_topics.metadata_records import (
    ConfigRecord,
    RemoveTopicRecord,
    TopicRecord,
    TransactionStep,
    decode_metadata_record,
)

TOPIC_ID = base64.urlsafe_b64encode(bytes(range(16))).decode()[:22]

# Frames as MetadataRecordSerde of Kafka 4.2.0 writes them: frame version, type, message version, fields, no tags.
GOLDEN = [
    ("01020002" + "61" + bytes(range(16)).hex() + "00", TopicRecord("a", TOPIC_ID)),
    ("010900" + bytes(range(16)).hex() + "00", RemoveTopicRecord(TOPIC_ID)),
    ("0104000202610262023100", ConfigRecord(2, "a", "b", "1")),
    ("01040004010262" + "0000", ConfigRecord(4, "", "b", None)),
    ("01170001001212" + b"Bootstrap records".hex(), TransactionStep.BEGIN),
    ("01170000", TransactionStep.BEGIN),
    ("01180000", TransactionStep.END),
    ("01190000", TransactionStep.ABORT),
    ("01140000", None),
    ("010c000000", None),
]


@pytest.mark.parametrize(("frame", "record"), GOLDEN)
def test_a_record_decodes_to_what_it_says(frame, record):
    assert decode_metadata_record(bytes.fromhex(frame)) == record


@pytest.mark.parametrize(
    "value", [None, b"", b"\x01", b"\x01\x02", b"\x01\x02\x00\x05ab", b"\x01\x04\x00\x02\x00\x02b\x00\x00"]
)
def test_a_malformed_record_is_an_error(value):
    with pytest.raises(CorruptBatchError):
        decode_metadata_record(value)


@pytest.mark.parametrize("value", [b"\x02\x02\x00\x00", b"\x01\x02\x01\x02a" + bytes(17)])
def test_what_a_later_kafka_wrote_is_an_error_of_its_own(value):
    with pytest.raises(UnsupportedDataError):
        decode_metadata_record(value)


@given(st.sampled_from(GOLDEN), st.data())
def test_mutated_records_decode_or_are_told_and_nothing_else(golden, data):
    value = bytearray(bytes.fromhex(golden[0]))
    for _ in range(data.draw(st.integers(1, 4))):
        value[data.draw(st.integers(0, len(value) - 1))] = data.draw(st.integers(0, 255))
    del value[data.draw(st.integers(0, len(value))) :]
    with contextlib.suppress(CorruptBatchError, UnsupportedDataError):
        decode_metadata_record(bytes(value))

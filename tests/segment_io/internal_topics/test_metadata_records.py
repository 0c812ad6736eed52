from __future__ import annotations

import contextlib
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sediment.segment_io.errors import CorruptBatchError, UnsupportedDataError
from sediment.segment_io.internal_topics.metadata_records import decode_metadata_record, encode_metadata_record
from sediment.segment_io.protocol import messages as m

TOPIC_ID = UUID(bytes=bytes(range(16)))

# Frames as MetadataRecordSerde of Kafka 4.2.0 writes them, the last one of 4.4.0: frame version, type, message version,
# fields, no tags.
GOLDEN = [
    ("01020002" + "61" + bytes(range(16)).hex() + "00", m.TopicRecord(name="a", topic_id=TOPIC_ID)),
    ("010900" + bytes(range(16)).hex() + "00", m.RemoveTopicRecord(topic_id=TOPIC_ID)),
    (
        "0104000202610262023100",
        m.ConfigRecord(resource_type=2, resource_name="a", name="b", value="1"),
    ),
    ("01040004010262" + "0000", m.ConfigRecord(resource_type=4, resource_name="", name="b", value=None)),
    ("01170001001212" + b"Bootstrap records".hex(), m.BeginTransactionRecord(name="Bootstrap records")),
    ("01170000", m.BeginTransactionRecord()),
    ("01180000", m.EndTransactionRecord()),
    ("01190000", m.AbortTransactionRecord()),
    ("01140000", m.NoOpRecord()),
    (
        "010c00" + "116d657461646174612e76657273696f6e" + "001d" + "00",
        m.FeatureLevelRecord(name="metadata.version", feature_level=29),
    ),
    ("011d00" + "00000bb8" + "00", m.UnregisterControllerRecord(controller_id=3000)),
]


@pytest.mark.parametrize(("frame", "record"), GOLDEN)
def test_a_record_decodes_to_what_it_says(frame, record):
    assert decode_metadata_record(bytes.fromhex(frame)) == record


@pytest.mark.parametrize(("frame", "record"), GOLDEN)
def test_a_record_is_written_as_kafka_writes_it(frame, record):
    assert encode_metadata_record(record, 0).hex() == frame


def test_records_of_other_types_are_left_out_whatever_they_hold():
    assert decode_metadata_record(b"\x01\x0c\x00\x00\x00", {"TopicRecord"}) is None
    assert decode_metadata_record(b"\x01\x7f\x00\x00\x00") is None
    assert decode_metadata_record(bytes.fromhex(GOLDEN[0][0]), {"TopicRecord"}) == GOLDEN[0][1]


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

"""Records of the coordinators' topics as Kafka 4.2.0's own converters show them."""

import json
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sediment.segment_io.internal_topics.coordinator_records import (
    decode_control_record,
    decode_coordinator_record,
    encode_coordinator_key,
    encode_coordinator_value,
)
from sediment.segment_io.protocol import messages as m

# Every type and version, filled at random, with nulls where allowed, and empty; key and value as Kafka wrote them, and
# the JSON that its record converters made of them.
GOLDEN = [
    json.loads(line)
    for line in (Path(__file__).parents[2] / "data" / "kafka-4.2.0-coordinator-records.jsonl").read_text().splitlines()
]


@pytest.mark.parametrize("given", GOLDEN, ids=lambda g: f"{g['name']}-v{g['version']}")
def test_a_record_decodes_as_kafka_shows_it(given):
    key, value = bytes.fromhex(given["key"]), bytes.fromhex(given["value"])
    record = decode_coordinator_record(given["topic"], key, value)
    assert record.name == given["name"]
    assert record.key_json() == {"type": given["type"], "data": given["keyJson"]}
    assert record.value_json() == {"version": given["version"], "data": given["valueJson"]}


@pytest.mark.parametrize("given", GOLDEN, ids=lambda g: f"{g['name']}-v{g['version']}")
def test_a_record_is_written_as_kafka_wrote_it(given):
    key, value = bytes.fromhex(given["key"]), bytes.fromhex(given["value"])
    record = decode_coordinator_record(given["topic"], key, value)
    assert encode_coordinator_key(record.key) == key
    assert encode_coordinator_value(record.value, record.value_version) == value


def test_all_types_and_versions_of_4_2_0_are_covered():
    assert len({(given["topic"], given["type"]) for given in GOLDEN}) == 23
    assert max(given["version"] for given in GOLDEN) == 4


def test_a_tombstone_has_a_key_only():
    given = GOLDEN[0]
    record = decode_coordinator_record(given["topic"], bytes.fromhex(given["key"]), None)
    assert record.key_json()["data"] == given["keyJson"]
    assert (record.value, record.value_version, record.value_json()) == (None, None, None)


def test_records_of_the_share_coordinator_are_decoded_too():
    key = m.ShareSnapshotKey(group_id="g", topic_id=UUID(int=5), partition=1)
    value = m.ShareSnapshotValue(start_offset=9)
    record = decode_coordinator_record(
        "__share_group_state", encode_coordinator_key(key), encode_coordinator_value(value, 0)
    )
    assert (record.name, record.key, record.value) == ("SHARE_SNAPSHOT", key, value)


@pytest.mark.parametrize(
    ("topic", "key", "value"),
    [
        ("__consumer_offsets", None, b""),
        ("__consumer_offsets", b"", b""),
        ("__consumer_offsets", b"\x00\x63\x00\x00", b""),
        ("__transaction_state", b"\x00\x01\x00\x00", b""),
        ("orders", b"\x00\x01\x00\x00", b""),
    ],
)
def test_what_is_not_known_is_not_decoded(topic, key, value):
    assert decode_coordinator_record(topic, key, value) is None


def test_an_unknown_version_and_bytes_after_the_end_are_not_decoded():
    given = GOLDEN[0]
    key, value = bytes.fromhex(given["key"]), bytes.fromhex(given["value"])
    assert decode_coordinator_record(given["topic"], key, b"\x00\x09" + value[2:]) is None
    assert decode_coordinator_record(given["topic"], key, value + b"\0") is None
    assert decode_coordinator_record(given["topic"], key + b"\0", value) is None


@given(st.sampled_from(GOLDEN), st.data())
def test_mutated_records_decode_or_do_not_and_never_fail(given, data):
    value = bytearray(bytes.fromhex(given["value"]))
    for _ in range(data.draw(st.integers(1, 4))):
        value[data.draw(st.integers(0, len(value) - 1))] = data.draw(st.integers(0, 255))
    del value[data.draw(st.integers(2, len(value))) :]
    record = decode_coordinator_record(given["topic"], bytes.fromhex(given["key"]), bytes(value))
    assert record is None or json.dumps(record.value_json())


def test_bf_28_a_marker_says_its_type_and_coordinator_epoch():
    assert decode_control_record(b"\0\0\0\1", b"\0\0\0\0\0\x09") == {"type": "COMMIT", "coordinatorEpoch": 9}
    assert decode_control_record(b"\0\0\0\0", b"\0\0\0\0\0\x09") == {"type": "ABORT", "coordinatorEpoch": 9}


@pytest.mark.parametrize(
    ("key", "value"), [(b"\0\0\0\2", b"\0" * 6), (b"\0\0", b"\0" * 6), (b"\0\0\0\1", b"\0"), (None, None)]
)
def test_other_control_records_are_left_as_they_are(key, value):
    assert decode_control_record(key, value) is None

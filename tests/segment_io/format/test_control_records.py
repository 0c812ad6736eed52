"""Control records: keys and values of markers, and the names of types."""

from __future__ import annotations

import pytest

from sediment.segment_io.format.control_records import control_key, control_type_name, marker_key_value


@pytest.mark.parametrize(("is_commit", "key"), [(True, "00000001"), (False, "00000000")])
def test_a_marker_is_encoded_as_kafka_encodes_it(is_commit: bool, key: str) -> None:
    """The bytes are those of kafka-log 01 §4, coordinator epoch 9."""
    assert tuple(part.hex() for part in marker_key_value(9, is_commit=is_commit)) == (key, "000000000009")


def test_the_key_of_a_leader_change_has_its_type() -> None:
    assert control_key(2).hex() == "00000002"


@pytest.mark.parametrize(("number", "name"), [(0, "ABORT"), (6, "KRAFT_VOTERS"), (7, "UNKNOWN"), (-2, "UNKNOWN")])
def test_an_unknown_type_has_a_name_too(number: int, name: str) -> None:
    assert control_type_name(number) == name

"""Java properties: the same entries as the library finds, in linear time."""

from __future__ import annotations

import time

import javaproperties
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sediment.segment_io.format.properties import parse_properties

TEXTS = st.lists(
    st.sampled_from(["a", "b", "=", ":", " ", "\t", "\f", "\\", "\\", "\n", "\n", "\r", "#", "!", "\\u0041", "\xe9"])
).map("".join)


@given(TEXTS)
def test_the_entries_are_those_of_the_library(text):
    assert parse_properties(text.encode("latin-1")) == javaproperties.loads(text)


def test_a_malformed_escape_is_an_error():
    with pytest.raises(ValueError, match=r"\\u00"):
        parse_properties(b"a=\\u00")


def test_an_entry_of_very_many_lines_takes_no_time_to_speak_of():
    started = time.process_time()
    found = parse_properties(b"node.id=1\nk=" + b"v\\\n" * 200_000)
    assert found == {"node.id": "1", "k": "v" * 200_000}
    assert time.process_time() - started < 20  # hours, if each line is read again with those before it

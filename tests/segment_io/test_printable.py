"""Escaping of names and contents from disk."""

from __future__ import annotations

import pytest

from sediment.segment_io.errors import SedimentError
from sediment.segment_io.printable import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("orders-0", "orders-0"),
        ("größe, 東京\u3000駅 👩\u200d🚀 → 7", "größe, 東京\u3000駅 👩\u200d🚀 → 7"),
        ("\x1b[2J\x1b]0;title\x07", r"\x1b[2J\x1b]0;title\x07"),
        ("a\nb\r\tc", r"a\nb\r\tc"),
        ("\x9b31m\x7f", r"\x9b31m\x7f"),
        ("\udcffq", r"\udcffq"),
        ("\u202egpj.exe\u2066", r"\u202egpj.exe\u2066"),
        ("\u2028", r"\u2028"),
        (r"C:\x", r"C:\x"),
    ],
)
def test_what_a_terminal_would_obey_is_escaped_and_the_rest_is_not(text, shown):
    assert printable(text) == shown
    assert printable(text).encode()


def test_an_error_is_one_line_whatever_its_path_and_its_words_hold():
    error = SedimentError("line '\x1b[31m' is wrong", path="/logs/a\nb\udcff", advice="look\u202e")
    assert str(error) == r"line '\x1b[31m' is wrong (file /logs/a\nb\udcff); look\u202e"

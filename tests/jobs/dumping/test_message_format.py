"""Format strings of `dump --format`: kcat's tokens and escapes, and what reaches a terminal."""

from __future__ import annotations

import json

import pytest

from sediment.jobs.dumping.line_outputs import CsvLines, JsonLines
from sediment.jobs.dumping.message_format import MessageFormat
from sediment.segment_io.errors import UsageError

ROW = {
    "topic": "orders",
    "partition": 3,
    "offset": 41,
    "timestamp": 1_700_000_000_000,
    "key": b"k1",
    "value": b"caf\xc3\xa9",
    "headers": [{"key": "a", "value": b"1"}, {"key": "b", "value": None}],
    "control": False,
}
EMPTY = {**ROW, "key": None, "value": None, "headers": None, "timestamp": None}
HOSTILE = {**ROW, "key": b"\x1b[2J\xff", "value": "line\n\u202e\u009b".encode()}


def line(text: str, row: dict[str, object] = ROW, *, for_terminal: bool = False) -> bytes:
    return MessageFormat.parse(text).line(row, for_terminal=for_terminal)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"%t-%p %o %k %s\n", "orders-3 41 k1 café\n".encode()),
        ("%K %S", b"2 5"),
        ("%R%s", b"\x00\x00\x00\x05caf\xc3\xa9"),
        ("%T", b"1700000000000"),
        ("%h", b"a=1,b=NULL"),
        ("100%% %%s", b"100% %s"),
        (r"\t\r\n\x41\x9\65\0101\0|\\\q", b"\t\r\nA\tAA\0|\\q"),
        ("\\", b"\\"),
        ("é\udcff", b"\xc3\xa9\xff"),
        ("", b""),
    ],
)
def test_tokens_and_escapes_are_those_of_kcat(text: str, expected: bytes) -> None:
    assert line(text) == expected


def test_a_format_with_a_length_has_the_bytes_and_not_the_decoded_record() -> None:
    marker = {**ROW, "control": True, "key": b"\0\0\0\1", "value": b"\0\0\0\0\0\7"}
    assert line("%k|%s", marker) == b'{"type":"COMMIT","coordinatorEpoch":7}|'
    assert line("%R%s", marker) == b"\0\0\0\6\0\0\0\0\0\7"
    assert line("%K:%k", marker) == b"4:\0\0\0\1"
    assert line("%S %k", marker) == b"6 \0\0\0\1"


def test_a_null_is_empty_with_the_length_minus_one() -> None:
    assert line("[%k|%s|%h|%K|%S|%T]%R", EMPTY) == b"[||||-1|-1|-1]\xff\xff\xff\xff".replace(b"||||", b"|||")
    assert line("%K %S", {**ROW, "key": b"", "value": b""}) == b"0 0"


@pytest.mark.parametrize(
    ("text", "sentence"), [("%q", "the token %q"), ("%o %", "the token %;"), (r"\256", "the largest byte is 255")]
)
def test_an_unknown_token_or_byte_is_wrong_use(text: str, sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        MessageFormat.parse(text)
    assert sentence in f"{caught.value.what}; {caught.value.advice}"


def test_a_pipe_gets_the_bytes_and_a_terminal_gets_no_control_characters() -> None:
    assert line(r"%k %s\n", HOSTILE) == b"\x1b[2J\xff line\n\xe2\x80\xae\xc2\x9b\n"
    assert line(r"%k %s\n", HOSTILE, for_terminal=True) == rb"\x1b[2J\xff line\n\u202e\x9b" + b"\n"


def test_json_and_csv_have_no_control_characters_either() -> None:
    row = {**HOSTILE, "headers": [{"key": "\x9b\u2028", "value": b"x"}]}
    names = ("offset", "key", "headers")
    shown = JsonLines(names).line(row)
    assert shown.isascii() and shown.count(b"\n") == 1
    assert json.loads(shown)["headers"] == [{"key": "\x9b\u2028", "value": "x"}]
    assert CsvLines(names, for_terminal=False).line(row) == (
        b'41,"{""hex"":""1b5b324aff""}","[{""key"":""\\u009b\\u2028"",""value"":""x""}]"\n'
    )


def test_csv_tells_null_from_empty_and_quotes_only_where_it_must() -> None:
    names = ("offset", "key", "value", "control")
    csv = CsvLines(names, for_terminal=False)
    assert csv.head == b"offset,key,value,control\n"
    assert csv.line(EMPTY) == b"41,,,false\n"
    assert csv.line({**ROW, "key": b"", "value": b'a,"b"\r\n'}) == b'41,"","a,""b""\r\n",false\n'
    on_terminal = CsvLines(names, for_terminal=True)
    assert on_terminal.line({**ROW, "value": b"a\r\nb"}) == b"41,k1,a\\r\\nb,false\n"

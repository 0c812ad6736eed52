"""The lines of `--key-format json-path`, and the condition that they become."""

from __future__ import annotations

from pathlib import Path

import pytest

from sediment.jobs.erasing.json_path_keys import read_json_path_keys
from sediment.segment_io.errors import UsageError


def hexed(text: str) -> str:
    return f"CAST(X'{text.encode().hex()}' AS STRING)"


def test_lines_with_the_same_path_share_a_list_and_no_character_of_a_line_is_in_the_sql(tmp_path: Path):
    path, odd_path, odd_value = "$.id", "$['a b'][0]", "b'); DROP"
    (tmp_path / "keys").write_text(f"{path}={odd_value}\n{odd_path}=x=y\n{path}=a\n{path}=a\n")
    found = read_json_path_keys(tmp_path / "keys")
    assert found.text == (
        f"get_json_object(CAST(key AS STRING), {hexed(path)}) IN ({hexed('a')}, {hexed(odd_value)}) OR "
        f"get_json_object(CAST(key AS STRING), {hexed(odd_path)}) IN ({hexed('x=y')})"
    )
    assert found.subjects == (b"$.id=a", b"$.id=b'); DROP", b"$['a b'][0]=x=y")
    assert len(found.hmacs(b"secret")) == 3


@pytest.mark.parametrize(
    "line",
    [b"secret", b"secret=1", b"$=secret", b"$.a", b"$.*=secret", b"$.a[*]=secret", b"$.a..b=secret", b"$.a=\xffsecret",
     b"$.a b=secret", b"$.a=secret\r", b"$.a['b]=secret"],
)  # fmt: skip
def test_a_line_that_is_no_path_and_value_is_refused_and_not_quoted(line: bytes, tmp_path: Path):
    (tmp_path / "keys").write_bytes(b"$.id=1\n" + line + b"\n")
    with pytest.raises(UsageError, match="line 2 is not in format json-path") as caught:
        read_json_path_keys(tmp_path / "keys")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("value", ["null", "1.10", "1e3", "-2.5E-7"])
def test_a_value_that_spark_writes_anew_before_it_compares_it_is_refused(value: str, tmp_path: Path):
    (tmp_path / "keys").write_text(f"$.n={value}\n")
    with pytest.raises(UsageError, match="line 1 has null, or a number with a fraction") as caught:
        read_json_path_keys(tmp_path / "keys")
    assert value not in str(caught.value).replace("has null", "")


@pytest.mark.parametrize("value", ["17", "-3", "007", "1.2.3", "1.", "nullable", "true", ""])
def test_strings_integers_and_truth_values_are_compared_as_written(value: str, tmp_path: Path):
    (tmp_path / "keys").write_text(f"$.n={value}\n")
    assert hexed(value) in read_json_path_keys(tmp_path / "keys").text

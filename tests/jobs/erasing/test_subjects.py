"""Files of keys and secrets: what is read, what is refused, and what is said of their modes."""

from __future__ import annotations

from codecs import BOM_UTF8
from pathlib import Path

import pytest

from sediment.jobs.erasing.envelope import load_signer
from sediment.jobs.erasing.subjects import read_keys, read_secret
from sediment.segment_io.errors import UsageError


def written(file: Path, content: bytes, mode: int = 0o600) -> Path:
    file.write_bytes(content)
    file.chmod(mode)
    return file


@pytest.mark.parametrize("content", [BOM_UTF8 + b"a\nb\n", b"a\r\nb\r\n"])
def test_keys_in_the_form_of_an_editor_on_windows_are_refused_because_no_record_would_have_them(tmp_path, content):
    with pytest.raises(UsageError, match=r"line 1 is not in format text.*without a byte order mark"):
        read_keys(written(tmp_path / "keys", content), "text")


def test_a_key_that_begins_with_a_byte_order_mark_can_be_given_in_another_line_or_in_hex(tmp_path):
    marked = BOM_UTF8 + b"b"
    assert read_keys(written(tmp_path / "keys", b"a\n" + marked), "text").values == (b"a", marked)
    assert read_keys(written(tmp_path / "keys", marked.hex().encode()), "hex").values == (marked,)


def test_files_of_keys_and_secrets_that_others_can_read_are_named_in_a_warning(tmp_path, caplog):
    keys, secret, signing = (written(tmp_path / name, b"k" * 32, 0o644) for name in ("keys", "secret", "signing"))
    read_keys(keys, "text")
    read_secret(secret)
    with pytest.raises(UsageError):
        load_signer(signing)
    given = {"--keys-file": keys, "--secret-file": secret, "--signing-key": signing}
    assert caplog.messages == [
        f"other users can read the file of {option} (mode 644); run chmod 600 {file}" for option, file in given.items()
    ]
    caplog.clear()
    for file in given.values():
        file.chmod(0o600)
    read_keys(keys, "text")
    read_secret(secret)
    assert caplog.messages == []

"""Files that --config may name, and the parts of them that messages may show."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path

import pytest

from sediment.jobs.settings.properties_file import MOST_BYTES, read_properties, shown_key
from sediment.jobs.settings.resolve import Settings
from sediment.segment_io.errors import SettingsError


def refusal(path: Path) -> str:
    with pytest.raises(SettingsError) as caught:
        Settings.load(path, ())
    assert str(path) in str(caught.value) or not str(path).isprintable()
    return str(caught.value)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("place", ["/dev/zero", "/dev/null", "link"])
def test_a_device_is_refused_at_once(tmp_path: Path, place: str) -> None:
    path = Path(place)
    if place == "link":
        path = tmp_path / place
        path.symlink_to("/dev/zero")
    assert "it is neither a file nor a pipe" in refusal(path)


def test_a_directory_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    assert "Is a directory" in refusal(tmp_path)
    assert "No such file or directory" in refusal(tmp_path / "missing")


def test_a_file_is_read_up_to_a_bound(tmp_path: Path) -> None:
    path = tmp_path / "some.properties"
    line = b"log.retention.ms=5\n"
    path.write_bytes(line + b"#" * (MOST_BYTES - len(line)))
    assert read_properties(path) == {"log.retention.ms": "5"}
    with path.open("ab") as file:
        file.truncate(1 << 40)
    assert f"is larger than {MOST_BYTES} bytes" in refusal(path)


def test_a_pipe_is_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=(b"log.retention.ms=5\nlog.dirs=/l\xf6gs\n",))
    writer.start()
    assert read_properties(path) == {"log.retention.ms": "5", "log.dirs": "/lögs"}
    writer.join()


@pytest.mark.parametrize("mark", [b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff"])
def test_a_byte_order_mark_is_refused_because_it_hides_a_key_from_the_broker(tmp_path: Path, mark: bytes) -> None:
    path = tmp_path / "some.properties"
    path.write_bytes(mark + b"log.retention.ms=-1\n")
    assert "byte order mark, so a broker does not recognise its first key" in refusal(path)


@pytest.mark.parametrize("name", ["log.retention.hour", "listener.name.INTERNAL.ssl.x_y", "a.b"])
def test_a_name_in_the_form_of_a_key_is_shown(name: str) -> None:
    assert shown_key(name) == name


@pytest.mark.parametrize(
    "name", ["hunter2", "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC", "a b.c", "\x1b[31m.x", "-----BEGIN", "", "a." + "b" * 41]
)
def test_any_other_name_is_not_shown(name: str) -> None:
    assert shown_key(name) == f"of {len(name)} characters (not shown, because it does not look like a key)"


def test_a_secret_that_lost_its_key_is_in_no_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "some.properties"
    path.write_text("ssl.keystore.key=-----BEGIN\nMIIEvQIBADANBgkqhkiG9w0\nhunter2\nlog.retention.hour=5\n")
    with caplog.at_level(logging.WARNING):
        Settings.load(path, ())
    assert "unknown key log.retention.hour is ignored; the nearest known key is log.retention.hours" in caplog.text
    assert "MIIE" not in caplog.text and "hunter2" not in caplog.text
    assert len(caplog.messages) == 3

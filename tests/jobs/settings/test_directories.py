from __future__ import annotations

from pathlib import Path

import pytest

from sediment.jobs.settings.directories import configured_log_dirs, configured_metadata_dirs, keeps_metadata_apart
from sediment.jobs.settings.resolve import Settings
from sediment.segment_io.errors import SettingsError


def from_file(tmp_path: Path, text: str) -> Settings:
    path = tmp_path / "some.properties"
    path.write_text(text, encoding="latin-1")
    return Settings.load(path, ())


def test_a_brokers_file_names_its_log_directories(tmp_path: Path) -> None:
    assert configured_log_dirs(from_file(tmp_path, "log.dirs=/a, /b\nlog.dir=/c\n")) == (Path("/a"), Path("/b"))
    assert configured_log_dirs(from_file(tmp_path, "log.dir=/c\n")) == (Path("/c"),)
    found = from_file(tmp_path, "log.dirs=/a,/b\nmetadata.log.dir=/m\n")
    assert configured_metadata_dirs(found) == (Path("/m"), Path("/a"), Path("/b"))
    assert keeps_metadata_apart(found)
    assert not keeps_metadata_apart(from_file(tmp_path, "log.dirs=/a,/b\nmetadata.log.dir=/a/\n"))
    assert not keeps_metadata_apart(from_file(tmp_path, "log.dirs=/a\n"))


def test_settings_without_a_file_name_no_directory() -> None:
    unstated = Settings.load(None, ())
    assert configured_log_dirs(unstated) == configured_metadata_dirs(unstated) == ()


def test_a_log_directory_with_a_null_character_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="null character"):
        configured_log_dirs(from_file(tmp_path, "log.dirs=/a\\u0000b\n"))

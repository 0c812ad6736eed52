from __future__ import annotations

from pathlib import Path

import pytest

from sediment.jobs.settings.directories import configured_log_dirs, configured_metadata_dirs, keeps_metadata_apart
from sediment.jobs.settings.resolve import Settings
from sediment.segment_io.errors import SettingsError
from tests.jobs.log_dirs import sediment


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


@pytest.mark.parametrize("command", ["plan", "compact", "expire"])
def test_the_parent_of_log_directories_that_are_called_like_partitions_is_refused(tmp_path: Path, command: str) -> None:
    for name in ("data-1", "data-2"):
        (tmp_path / "kafka" / name / "orders-0").mkdir(parents=True)
        (tmp_path / "kafka" / name / "meta.properties").write_text("version=0\nbroker.id=1\n")
    outcome = sediment(command, tmp_path / "kafka", "--dry-run" if command != "plan" else "--quiet")
    assert outcome.status == 2
    entries = " ".join(str(tmp_path / "kafka" / name) for name in ("data-1", "data-2"))
    assert "not a Kafka log directory, but it contains 2 (" in outcome.stderr
    assert f"; give {entries}\n" in outcome.stderr
    assert not (tmp_path / "kafka" / ".lock").exists()


def test_settings_without_a_file_name_no_directory() -> None:
    unstated = Settings.load(None, ())
    assert configured_log_dirs(unstated) == configured_metadata_dirs(unstated) == ()


def test_a_log_directory_with_a_null_character_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="null character"):
        configured_log_dirs(from_file(tmp_path, "log.dirs=/a\\u0000b\n"))

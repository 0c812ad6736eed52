"""Files for the user: where they are, and who can read them."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

import pytest

from sediment.jobs.process import state_files
from sediment.jobs.process.state_files import save_for_user


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the temporary directory, which every user may write, of a user without a writable home."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    folder.chmod(0o1777)
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(folder))
    monkeypatch.setattr(state_files.platformdirs, "user_state_path", lambda _name: Path("/dev/null/sediment"))
    return folder


def test_a_user_without_a_home_has_a_private_folder_in_the_temporary_directory(shared: Path):
    file = save_for_user("traces", "one.txt", "text")
    assert file == shared / f"sediment-{os.geteuid()}" / "traces" / "one.txt" and file.read_text() == "text"
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (file.parent.parent, file.parent, file)]
    assert modes == [0o700, 0o700, 0o600]


def test_nothing_is_written_where_others_were_first(shared: Path, tmp_path: Path):
    own = shared / f"sediment-{os.geteuid()}"
    (own / "traces").mkdir(parents=True)
    own.chmod(0o777)
    assert save_for_user("traces", "one.txt", "text") is None
    own.chmod(0o700)
    (own / "traces" / "one.txt").symlink_to(tmp_path / "victim")
    assert save_for_user("traces", "one.txt", "text") is None
    assert not (tmp_path / "victim").exists()
    (own / "traces").chmod(0o777)
    assert save_for_user("traces", "two.txt", "text") is None
    assert [path.name for path in shared.rglob("*") if path.is_file()] == []

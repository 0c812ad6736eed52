"""Places of kept files: one directory, a neighbour of each log directory, or a pattern."""

from __future__ import annotations

from pathlib import Path

import pytest

from sediment.engine.directory.originals.kept_in import KEPT_BEFORE_CUTS, KeptIn, kept_in
from sediment.segment_io.errors import UsageError

ELSEWHERE = Path("/proc")  # a filesystem that holds no log directory


@pytest.fixture
def disks(tmp_path, monkeypatch):
    disks = [tmp_path / "disk1" / "logs", tmp_path / "disk2" / "logs"]
    for path in disks:
        path.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    return disks


def places(given, disks, *, shares):
    found = kept_in(Path(given), disks, shares=shares)
    return [found.of(path) for path in disks]


def test_one_directory_serves_one_log_directory(disks, tmp_path):
    assert places("kept", disks[:1], shares=False) == [tmp_path / "kept"]


def test_originals_of_several_directories_share_one_on_their_filesystem(disks, tmp_path):
    assert places("kept", disks, shares=True) == [tmp_path / "kept"] * 2


def test_a_name_that_cannot_serve_all_means_a_neighbour_of_each(disks, tmp_path):
    assert places("kept", disks, shares=False) == [tmp_path / "disk1/logs-kept", tmp_path / "disk2/logs-kept"]


@pytest.mark.parametrize("count", [1, 2])
def test_a_name_on_another_filesystem_means_a_neighbour_of_each(disks, monkeypatch, count):
    monkeypatch.chdir(ELSEWHERE)
    assert places("kept", disks[:count], shares=True) == [path.with_name("logs-kept") for path in disks[:count]]


def test_a_pattern_names_the_place_of_each(disks):
    assert places("{log_dir}.kept/today", disks, shares=True) == [
        path.with_name("logs.kept") / "today" for path in disks
    ]


@pytest.mark.parametrize("pattern", [KEPT_BEFORE_CUTS, KeptIn("{log_dir}-before")])
def test_a_neighbour_of_a_linked_log_directory_is_beside_the_directory_not_beside_the_link(disks, tmp_path, pattern):
    link = tmp_path / "link"
    link.symlink_to(disks[0])
    assert pattern.of(link) == pattern.of(disks[0]) == disks[0].with_name(f"logs-{str(pattern)[10:]}")


@pytest.mark.parametrize(("given", "shares"), [("deep/kept", False), (str(ELSEWHERE / "kept"), True)])
def test_a_path_that_cannot_serve_all_is_refused_with_a_pattern_that_can(disks, given, shares):
    with pytest.raises(UsageError, match="kept") as raised:
        kept_in(Path(given), disks, shares=shares)
    assert "'{log_dir}-kept'" in str(raised.value)


def test_nothing_is_kept_without_the_option(disks):
    assert kept_in(None, disks, shares=True) is None

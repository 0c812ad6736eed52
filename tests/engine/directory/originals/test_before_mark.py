"""The mark of a directory of links: its fingerprint of each partition, and the changes that alter a fingerprint."""

from __future__ import annotations

import os
import shutil

import pytest

from sediment.engine.directory.originals.before_mark import BeforeMark, fingerprint, make_mark, read_mark
from sediment.segment_io.fs import Fs

LOG = f"{0:020d}.log"


@pytest.fixture
def log_dir(tmp_path):
    path = tmp_path / "logs"
    for name in ("t-0", "t-1", "__cluster_metadata-0", "t-2.0123456789abcdef0123456789abcdef-delete"):
        (path / name).mkdir(parents=True)
        (path / name / LOG).write_bytes(b"segment")
    return path


def test_a_mark_names_the_live_partitions_and_reads_back(log_dir, tmp_path):
    mark = make_mark(log_dir, 7, Fs())
    assert (mark.log_dir, set(mark.partitions)) == (str(log_dir), {"t-0", "t-1"})
    assert (mark.now_ms, mark.is_reused) == (7, False)
    (tmp_path / "mark").write_bytes(mark.to_bytes())
    assert read_mark(tmp_path / "mark", Fs()) == mark
    assert read_mark(tmp_path / "none", Fs()) is None


def test_a_log_directory_without_partitions_has_a_mark(tmp_path):
    assert make_mark(tmp_path, 7, Fs()) == BeforeMark(str(tmp_path), {}, 7)


def test_a_mark_without_a_clock_is_of_an_earlier_version(tmp_path):
    (tmp_path / "mark").write_text('{"log_dir": "/a", "partitions": {"t-0": "f"}}')
    assert read_mark(tmp_path / "mark", Fs()) == BeforeMark("/a", {"t-0": "f"})


@pytest.mark.parametrize(
    "text",
    [
        "/var/lib/kafka/data",
        "[1]",
        "{}",
        "7",
        '{"log_dir": "/a", "partitions": [1]}',
        '{"log_dir": 1, "partitions": {}}',
        pytest.param("[" * 100_000, id="deep"),
    ],
)
def test_a_mark_of_an_earlier_version_is_a_path(tmp_path, text):
    (tmp_path / "mark").write_text(text)
    assert read_mark(tmp_path / "mark", Fs()) == BeforeMark(text)


@pytest.mark.parametrize("clock", ['"7"', "7.5", "true", "[7]", "-1", "1e400", str(1 << 70)])
def test_a_mark_whose_clock_is_not_a_time_has_none(tmp_path, clock):
    (tmp_path / "mark").write_text(f'{{"log_dir": "/a", "partitions": {{}}, "now_ms": {clock}, "is_reused": true}}')
    assert read_mark(tmp_path / "mark", Fs()) == BeforeMark("/a", {}, None, is_reused=True)


def _append(path):
    with (path / LOG).open("ab") as file:
        file.write(b"x")


def _replace(path):
    shutil.copy2(path / LOG, path / "copy")
    (path / "copy").rename(path / LOG)


def _touch(path):
    os.utime(path / LOG, ns=(0, 0))


def _add(path):
    (path / f"{9:020d}.log").touch()


def _remove(path):
    (path / LOG).unlink()


@pytest.mark.parametrize("change", [_append, _replace, _touch, _add, _remove])
def test_a_change_of_any_file_changes_the_fingerprint(log_dir, change):
    path = log_dir / "t-0"
    before = fingerprint(path, Fs())
    change(path)
    assert fingerprint(path, Fs()) != before


def test_links_and_unfinished_parts_do_not_change_the_fingerprint(log_dir, tmp_path):
    path = log_dir / "t-0"
    before = fingerprint(path, Fs())
    os.link(path / LOG, tmp_path / "link")
    (path / f"{LOG}.run-1.part").touch()
    assert fingerprint(path, Fs()) == before


def test_a_mark_that_is_a_link_is_not_read_because_a_report_would_show_its_target(tmp_path):
    (tmp_path / "secret").write_text("root:$6$hash")
    (tmp_path / "mark").symlink_to(tmp_path / "secret")
    with pytest.raises(OSError, match="symbolic links"):
        read_mark(tmp_path / "mark", Fs())

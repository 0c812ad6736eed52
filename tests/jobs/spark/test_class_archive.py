"""The archive of Spark's classes: which one is used, which one is replaced, and who makes it."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

import pytest

from sediment.jobs.spark import cds_archive, cds_options
from sediment.jobs.spark.cds_options import (
    BACKGROUND_VARIABLE,
    archive_options,
    archive_path,
    is_worth_making,
    stamp_complete,
    stamp_failed,
    stamp_path,
    usable_archive,
)
from sediment.segment_io.compiled.kernel_folder import CACHE_VARIABLE
from sediment.segment_io.fs import Fs
from tests.jobs.log_dirs import make_log_dir, sediment_process
from tests.logs import write_random_log
from tests.waiting import wait_until


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of a complete archive in a cache folder of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv(BACKGROUND_VARIABLE, "")
    path = archive_path()
    path.parent.mkdir(parents=True)
    path.write_bytes(b"classes" * 1000)
    stamp_complete(path, Fs())
    return path


def test_a_complete_archive_is_used_and_not_made_again(archive: Path) -> None:
    assert usable_archive() == archive
    assert f"-XX:SharedArchiveFile={archive}" in archive_options()
    assert not is_worth_making()


def cut(archive: Path) -> None:
    os.truncate(archive, 1000)


def spoil(archive: Path) -> None:
    status = archive.stat()
    with archive.open("r+b") as file:
        file.write(b"\0" * 100)
    os.utime(archive, ns=(status.st_atime_ns, status.st_mtime_ns))


def replace_by_a_copy(archive: Path) -> None:
    content = archive.read_bytes()
    archive.unlink()
    archive.write_bytes(content)


@pytest.mark.parametrize("harm", [cut, spoil, replace_by_a_copy, Path.unlink, lambda path: stamp_path(path).unlink()])
def test_a_torn_changed_or_unstamped_archive_is_never_used_and_is_made_again(archive: Path, harm) -> None:
    harm(archive)
    assert usable_archive() is None
    assert archive_options() == ""
    assert is_worth_making()


def test_an_archive_that_others_can_change_is_never_used_and_none_is_made_beside_it(
    archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []
    monkeypatch.setattr(cds_options.subprocess, "Popen", lambda *given, **_: started.append(given))
    for opened, mode in ((archive.parent, 0o755), (archive.parent.parent, 0o755)):
        opened.chmod(0o777)
        assert usable_archive() is None and archive_options() == ""
        cds_options.make_archive_in_background()
        with pytest.raises(OSError, match="every user can change"), cds_archive._locked(archive.parent, wait=True):
            pass
        opened.chmod(mode)
    assert started == []
    archive.chmod(0o666)
    stamp_complete(archive, Fs())
    assert usable_archive() is None and is_worth_making(), "it is replaced"
    archive.chmod(0o644)
    stamp_complete(archive, Fs())
    assert usable_archive() == archive


@pytest.mark.parametrize("stamp", [b"", b"[]", b"garbage", b'{"file": null}'])
def test_a_torn_stamp_is_that_of_no_archive(archive: Path, stamp: bytes) -> None:
    stamp_path(archive).write_bytes(stamp)
    assert usable_archive() is None
    archive.unlink()
    assert usable_archive() is None


def test_another_java_or_another_spark_has_another_archive(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def digest() -> str:
        cds_options._digest.cache_clear()
        return cds_options._digest()

    java = tmp_path / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\n")
    java.chmod(0o755)
    (tmp_path / "jdk" / "release").write_text("17.0.1")
    home = tmp_path / "spark"
    (home / "jars").mkdir(parents=True)
    (home / "jars" / "spark-core.jar").write_bytes(b"4.2.0")
    try:
        digests = [digest()]
        monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
        digests.append(digest())
        (tmp_path / "jdk" / "release").write_text("17.0.15")
        digests.append(digest())
        monkeypatch.setenv("SPARK_HOME", str(home))
        digests.append(digest())
        (home / "jars" / "spark-core.jar").write_bytes(b"4.2.1-SNAPSHOT")
        digests.append(digest())
        assert len(set(digests)) == len(digests)
        assert archive_path() != archive and usable_archive() is None
    finally:
        cds_options._digest.cache_clear()


def test_after_a_failure_nothing_is_tried_for_a_day_and_off_means_never(
    archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive.unlink()
    assert is_worth_making()
    stamp_failed(archive, "the disk is full", Fs())
    assert usable_archive() is None and not is_worth_making()
    yesterday = time.time() - 90_000
    os.utime(stamp_path(archive), (yesterday, yesterday))
    assert is_worth_making()
    monkeypatch.setenv(BACKGROUND_VARIABLE, "off")
    assert not is_worth_making()


def test_a_background_process_ends_at_once_while_another_makes_the_archive(
    archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive.unlink()
    monkeypatch.setattr(cds_archive, "_make", lambda *_: pytest.fail("two processes make the archive"))
    monkeypatch.setattr(os, "nice", lambda _: 0)
    monkeypatch.setattr(cds_archive.signal, "alarm", lambda _: 0)
    descriptor = os.open(archive.parent, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        cds_archive.main()
    finally:
        os.close(descriptor)
    assert not archive.exists()


def test_the_first_run_has_the_archive_made_and_the_second_uses_it(tmp_path: Path) -> None:
    import platformdirs

    environment = {
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        CACHE_VARIABLE: platformdirs.user_cache_dir("sediment"),
        BACKGROUND_VARIABLE: "",
    }
    write_random_log(tmp_path / "source", 1)
    log_dir = make_log_dir(tmp_path / "logs", {"t-0": tmp_path / "source"})
    options = ("--broker-defaults", "--set=cleanup.policy=compact", "--force", "--dry-run", "--json")
    first = sediment_process("compact", log_dir, *options, environment=environment)
    assert first.status == 0, first.stderr
    folder = tmp_path / "cache" / "sediment"
    wait_until(lambda: list(folder.glob("spark-*.jsa.stamp")) != [], limit_seconds=240)
    (archive,) = folder.glob("spark-*.jsa")
    made = archive.stat()
    second = sediment_process("compact", log_dir, *options, environment=environment)
    assert second.status == 0, second.stderr
    assert archive.stat().st_mtime_ns == made.st_mtime_ns
    assert sorted(folder.iterdir()) == [archive, stamp_path(archive)]

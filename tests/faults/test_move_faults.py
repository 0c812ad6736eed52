"""Crashes while a partition moves to another log directory: every record stays, and Kafka can use the directories."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from sediment.engine.live.future_log import copy_rest
from sediment.engine.live.log_directory import LogDirectory
from sediment.segment_io.format.checkpoints import format_uuid
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.internal_topics.metadata_log import read_bootstrap_records
from sediment.segment_io.partition.checkpoint_files import read_meta_properties
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.backends.live import LiveBackend
from tests.engine.live_logs import batch, config
from tests.engine.managed import DELETED, append, records_of, running
from tests.faults.faulty_fs import Disk, FaultyFs, write_image
from tests.faults.fs_trace import Crash, CrashImage, FsTrace, Tree, write_tree
from tests.server.live import nodes
from tests.server.live.nodes import two_directories
from tests.waiting import wait_until

T0 = TopicPartition("t", 0)
SMALL_FILES = config(segment_bytes=300)
VALUES = [b"0", b"1", b"2", b"3", b"4", b"5"]
POWER_LOSSES = 12
KINDS = (Crash.KILLED, Crash.TORN_WRITE, Crash.TORN_RENAME)  # the trace does not see which appends were synced


def opened(root: Path) -> AbstractContextManager[LiveBackend]:
    return nodes.opened(root / "a", root / "b", topic_config=lambda _: SMALL_FILES)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return the parent of two directories; the log of t-0 in the first one starts inside a batch."""
    path = tmp_path / "node"
    two_directories(path)
    with opened(path) as backend:
        partition = backend.catalog.partition("t", 0)
        assert partition is not None
        partition.append(batch(("k", "gone"), ("k", "0")))
        for value in VALUES[1:]:
            partition.append(batch(("k", value.decode())))
        partition.delete_records(1)
    return path


def move(backend: LiveBackend, root: Path) -> None:
    """Move t-0 to the second directory, and wait for the end."""
    moved = root / "b" / "t-0"
    assert backend._moves is not None
    assert backend._moves.alter(T0, str(moved.parent)) is ErrorCode.NONE
    wait_until(lambda: backend._manager.get_future_log(T0) is None and moved.exists())
    backend._manager.checkpoint_all()  # waits for the end of the task


def images_of(root: Path, change: Callable[[], None]) -> list[CrashImage]:
    with FsTrace(root, records=True) as trace:
        change()
    return [image for image in trace.images if image.crash in KINDS]


def log_content(tree: Tree, folder: str) -> bytes:
    return b"".join(tree[name][0] for name in sorted(tree) if name.startswith(f"{folder}/") and name.endswith(".log"))


def check_for_kafka(root: Path, tree: Tree) -> tuple[int, int]:
    """Return the numbers of logs of t-0, and of future logs that replace it, after checking both.

    A broker must find exactly one log of t-0, and a future log in its directory must be complete.

    A broker refuses to start if it finds two logs.  It lets a future log replace the log if the metadata names its
    directory.
    """
    names = {name.rstrip("/") for name in tree if name.endswith("/") and name.count("/") == 2}
    live = [name for name in names if name.endswith("/t-0")]
    metadata = read_bootstrap_records(root / "a", Fs())
    assert metadata is not None
    ((stated,),) = (metadata.directory_ids["t"][0],)
    ids = {path: read_meta_properties(Fs(), root / path / "meta.properties") for path in ("a", "b")}
    (assigned,) = [
        path for path, meta in ids.items() if meta is not None and meta.directory_id == format_uuid(stated.bytes)
    ]
    promoted = [name for name in names if name.startswith(f"{assigned}/t-0.") and name.endswith("-future")]
    assert len(live) <= 1
    assert len(live) + len(promoted) >= 1
    for name in promoted:
        assert name + "/partition.metadata" in tree
        if live:
            assert log_content(tree, name) == log_content(tree, live[0])
    return len(live), len(promoted)


def check_start(root: Path) -> None:
    """Start a server, check the records, and append one."""
    with opened(root) as backend:
        log = backend._manager.get_log(T0)
        partition = backend.catalog.partition("t", 0)
        assert log is not None and partition is not None
        assert partition.log is log
        assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (1, 7, 7)
        assert [record.value for record in records_of(log)] == VALUES
        assert partition.append(batch(("k", "6"))).first_offset == 7
        assert len([each for part in ("a", "b") for each in (root / part).glob("t-0")]) == 1


def test_a_crash_during_a_move_keeps_every_record_and_one_valid_log(root: Path, tmp_path: Path) -> None:
    with opened(root) as backend:
        found = images_of(root, lambda: move(backend, root))
    copy = tmp_path / "image"
    states = set()
    for image in found:
        write_tree(copy, image.tree)
        states.add(check_for_kafka(copy, image.tree))
        check_start(copy)
    assert states == {(1, 0), (1, 1), (0, 1)}


def test_a_crash_while_a_start_completes_a_move_keeps_every_record(root: Path, tmp_path: Path) -> None:
    with opened(root) as backend:
        found = images_of(root, lambda: move(backend, root))
    between = [image for image in found if image.what.startswith("rename") and "-future t-0" in image.what]
    renames = [image for image in found if "t-0" in image.what and image.what.endswith("-delete")]
    copy = tmp_path / "image"
    for before in (renames[0], between[0]):
        number = found.index(before)
        write_tree(copy, found[number - 1].tree)  # before the rename
        starts = images_of(copy, lambda: check_start(copy))
        for image in starts:
            write_tree(copy, image.tree)
            check_for_kafka(copy, image.tree)


def test_a_crash_during_a_cancellation_keeps_the_log(root: Path, tmp_path: Path) -> None:
    with opened(root) as backend:
        backend._manager.create_future_log(T0, root / "b")
        found = images_of(root, lambda: backend._manager.delete_future_log(T0))
    copy = tmp_path / "image"
    for image in found:
        write_tree(copy, image.tree)
        check_for_kafka(copy, image.tree)
        check_start(copy)
        assert (copy / "a" / "t-0").exists()


def test_a_future_log_is_on_disk_before_the_metadata_names_its_directory(tmp_path: Path) -> None:
    """After a power loss then, a start uses it, and its records may be nowhere else on disk."""
    chance, fs, images = random.Random(7), FaultyFs(), []
    with running(tmp_path / "a", tmp_path / "b", topic=DELETED, fs=fs) as manager:
        a, b = (directory.path for directory in manager.directories())
        log = manager.create_log(T0, log_dir=a, topic_id=format_uuid(bytes(range(16))))
        append(log, *((str(number), "v") for number in range(8)))
        future = manager.create_future_log(T0, b)
        disk = fs.disk = Disk(future.directory)
        copy_rest(log, future)
        lost = disk.after_power_loss()[0]
        append(log, ("last", "v"))
        expected = records_of(log)

        def assign(_: LogDirectory) -> None:
            images.extend(disk.after_random_power_loss(chance) for _ in range(POWER_LOSSES))
            shutil.copytree(b, tmp_path / "after", ignore=lambda _, names: {n for n in names if n.startswith("t-0")})

        assert manager.replace_current_with_future_log(T0, assign, lambda _: None)
    copy = tmp_path / "after"
    for number, image in enumerate([lost, *images]):
        shutil.rmtree(copy / "t-0", ignore_errors=True)
        write_image(copy / "t-0", image)
        with running(copy, topic=DELETED) as manager:
            found = manager.get_log(T0)
            assert found is not None
            assert (records_of(found) == expected) is (number > 0)  # without a flush, records would be lost

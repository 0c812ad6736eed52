"""Records that a running server adds to the metadata of its node: in the metadata log, or in bootstrap.checkpoint."""

from __future__ import annotations

import errno
import shutil
import threading
import uuid
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sediment.engine.clone.cluster_records import CloneNode, producer_ids_record
from sediment.engine.clone.log_end import AtOnce
from sediment.engine.metadata.bootstrap_writer import BootstrapWriter
from sediment.engine.metadata.metadata_log_writer import MetadataLogWriter
from sediment.engine.metadata.metadata_writer import (
    DirectoryFailure,
    DiskFailed,
    ignore_disk_failure,
    never_fails,
)
from sediment.engine.metadata.topic_records import partition_record, remove_topic_record, topic_record
from sediment.segment_io.buffers import Buffer
from sediment.segment_io.errors import (
    CommitStateUnknownError,
    CorruptBatchError,
    OpenFilesLimitError,
    StorageError,
    UsageError,
)
from sediment.segment_io.format.checkpoints import format_uuid, parse_uuid
from sediment.segment_io.format.layout import BATCH_HEADER_BYTES
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.fs import Fs, OpenFile
from sediment.segment_io.internal_topics.bootstrap_checkpoint import format_bootstrap_checkpoint
from sediment.segment_io.internal_topics.metadata_log import (
    SERVER_TRANSACTION,
    ClusterMetadata,
    read_cluster_metadata,
)
from sediment.segment_io.internal_topics.metadata_records import encode_metadata_record
from sediment.segment_io.partition.clean_shutdown_file import NEW_DIRECTORY, format_clean_shutdown
from sediment.segment_io.protocol import messages as m
from sediment.segment_io.segment.reader import HeaderScan
from tests.segments import NOW_MS
from tests.served import contents, unpacked
from tests.server.read_only.log_dirs import kraft_dir

NODE = CloneNode(1, "cluster", "directory")
TOPIC = encode_metadata_record(m.TopicRecord(name="t"), 0)


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    return unpacked(tmp_path / "data")


def metadata_of(log_dir: Path) -> ClusterMetadata:
    found = read_cluster_metadata(log_dir, Fs())
    assert found is not None
    return found


def log_writer(
    log_dir: Path,
    fs: Fs | None = None,
    directory_failure: DirectoryFailure = never_fails,
    disk_failed: DiskFailed = ignore_disk_failure,
) -> MetadataLogWriter:
    return MetadataLogWriter(
        log_dir,
        metadata_of(log_dir),
        fs or Fs(),
        transaction="test",
        clock=lambda: NOW_MS,
        scheduler=AtOnce(),
        directory_failure=directory_failure,
        disk_failed=disk_failed,
    )


def server_writer(log_dir: Path) -> MetadataLogWriter:
    """Return a writer as a server opens it."""
    return MetadataLogWriter(
        log_dir,
        metadata_of(log_dir),
        Fs(),
        transaction=SERVER_TRANSACTION,
        clock=lambda: NOW_MS,
        scheduler=AtOnce(),
    )


def next_id(value: int) -> bytes:
    return producer_ids_record(NODE, value)


class FullDisk(Fs):
    """A disk on which no sync and no replaced file succeeds once it is full."""

    is_full = False

    def replace_file(self, path: Path, content: bytes, *, like: Path | None = None) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, "disk full")
        super().replace_file(path, content, like=like)

    def open_file(self, path: Path) -> OpenFile:
        disk = self

        class File(OpenFile):
            def sync(self) -> None:
                if disk.is_full:
                    raise OSError(errno.ENOSPC, "disk full")
                super().sync()

        return File(path, create=False)


# ----------------------------------------------------------------------------------------------------- the metadata log
def test_every_record_of_the_log_is_durable_when_append_returns(log_dir: Path) -> None:
    before = metadata_of(log_dir)
    writer = log_writer(log_dir)
    for value in (7000, 8000):
        writer.append([next_id(value)])
        copy = log_dir.with_name(f"copy-{value}")
        shutil.copytree(log_dir, copy)
        assert metadata_of(copy).next_producer_id == value
    writer.close()
    after = metadata_of(log_dir)
    assert (after.end_offset, after.topic_ids) == (before.end_offset + 2, before.topic_ids)


def test_threads_append_one_after_the_other(log_dir: Path) -> None:
    before = metadata_of(log_dir).end_offset
    writer = log_writer(log_dir)
    threads = [threading.Thread(target=writer.append, args=([next_id(9000)],)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.close()
    assert metadata_of(log_dir).end_offset == before + 8


def test_after_a_failed_write_nothing_more_is_appended(log_dir: Path) -> None:
    disk = FullDisk()
    writer = log_writer(log_dir, disk)
    writer.append([next_id(7000)])
    disk.is_full = True
    with pytest.raises(CommitStateUnknownError, match="was interrupted"):
        writer.append([next_id(8000)])
    disk.is_full = False
    with pytest.raises(StorageError, match="an earlier write"):
        writer.append([next_id(9000)])
    writer.close()
    assert metadata_of(log_dir).next_producer_id in (7000, 8000)


def test_partitions_are_added_in_a_transaction_that_shows_that_a_server_did_it(log_dir: Path) -> None:
    before = metadata_of(log_dir)
    added = uuid.UUID(int=77)
    server_writer(log_dir).append(
        [topic_record("new", added), partition_record(added, 0, 1, format_uuid(added.bytes), metadata_version=29)]
    )
    after = metadata_of(log_dir)
    assert after.end_offset == before.end_offset + 5
    assert after.new_partitions == {TopicPartition("new", 0)}
    assert before.new_partitions == frozenset()
    assert after.directory_ids["new"] == {0: (added,)}
    # A transaction of another name says nothing.
    log_writer(log_dir).append([partition_record(added, 1, 1, format_uuid(added.bytes), metadata_version=29)])
    assert metadata_of(log_dir).new_partitions == {TopicPartition("new", 0)}
    server_writer(log_dir).append([partition_record(added, 2, 1, format_uuid(added.bytes), metadata_version=29)])
    assert metadata_of(log_dir).new_partitions == {TopicPartition("new", 0), TopicPartition("new", 2)}


def test_only_topics_that_a_server_removes_and_no_one_adds_again_count_as_removed(log_dir: Path) -> None:
    ids = {name: uuid.UUID(bytes=parse_uuid(metadata_of(log_dir).topic_ids[name])) for name in ("orders", "prices")}
    # As a controller does.
    log_writer(log_dir).append([remove_topic_record(ids["orders"])])
    assert metadata_of(log_dir).removed_topic_ids == frozenset()
    server_writer(log_dir).append([remove_topic_record(ids["prices"])])
    assert metadata_of(log_dir).removed_topic_ids == {format_uuid(ids["prices"].bytes)}
    # As `sediment adopt` does.
    log_writer(log_dir).append([topic_record("prices", ids["prices"])])
    assert metadata_of(log_dir).removed_topic_ids == frozenset()


def test_a_failed_disk_is_reported_and_the_limit_of_open_files_is_not(log_dir: Path) -> None:
    class ShortDisk(FullDisk):
        is_short = False

        def require_descriptors(self, count: int) -> None:
            if self.is_short:
                raise OSError(errno.EMFILE, "too many open files")
            super().require_descriptors(count)

    errors: list[OSError] = []
    disk = ShortDisk()
    writer = log_writer(log_dir, disk, disk_failed=errors.append)
    disk.is_short = True
    with pytest.raises(OpenFilesLimitError):
        writer.append([next_id(7000)])
    disk.is_short = False
    writer.append([next_id(8000)])
    assert not errors
    disk.is_full = True
    with pytest.raises(CommitStateUnknownError):
        writer.append([next_id(9000)])
    writer.close()
    assert [error.errno for error in errors] == [errno.ENOSPC]


def test_a_change_that_needs_a_transaction_is_refused_where_the_cluster_has_none(log_dir: Path) -> None:
    metadata = metadata_of(log_dir)
    old = replace(metadata, features={**metadata.features, "metadata.version": 12})
    writer = MetadataLogWriter(log_dir, old, Fs(), transaction="test", clock=lambda: NOW_MS, scheduler=AtOnce())
    before = contents(log_dir)
    with pytest.raises(UsageError, match="1001 records need a metadata transaction"):
        writer.append([next_id(number) for number in range(1001)])
    assert contents(log_dir) == before
    writer.append([next_id(7000)])
    writer.close()
    assert metadata_of(log_dir).next_producer_id == 7000


def damage(log: Path, number: int) -> None:
    """Flip a bit in a batch of the log, by its number."""
    position = int(np.concatenate(list(HeaderScan(log)))["position"][number])
    content = bytearray(log.read_bytes())
    content[position + BATCH_HEADER_BYTES] ^= 1
    log.write_bytes(content)


def test_a_log_that_a_load_would_truncate_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    log_dir = kraft_dir(tmp_path / "kraft")
    (log,) = (log_dir / "__cluster_metadata-0").glob("*.log")
    before = metadata_of(log_dir)
    damage(log, 5)
    assert metadata_of(log_dir) == before  # nothing below the snapshot is read
    content = contents(log_dir)
    with pytest.raises(CorruptBatchError, match="the batch fails its CRC") as caught:
        log_writer(log_dir)
    assert "a start truncates the log" in str(caught.value)
    assert contents(log_dir) == content


def test_a_torn_batch_at_the_end_of_the_log_is_cut_off(log_dir: Path) -> None:
    writer = log_writer(log_dir)
    writer.append([next_id(7000)])
    writer.append([next_id(8000)])
    writer.close()
    (log,) = (log_dir / "__cluster_metadata-0").glob("*.log")
    for file in log.parent.glob("*.snapshot"):
        file.unlink()  # as after a crash, no file shows that the log was longer
    log.write_bytes(log.read_bytes()[:-1])
    assert metadata_of(log_dir).next_producer_id == 7000
    writer = log_writer(log_dir)
    writer.append([next_id(9000)])
    writer.close()
    assert metadata_of(log_dir).next_producer_id == 9000


def test_nothing_is_written_once_the_log_directory_is_offline(log_dir: Path) -> None:
    reasons: list[str] = []
    writer = log_writer(log_dir, directory_failure=lambda: next(iter(reasons), None))
    writer.append([next_id(7000)])
    before = contents(log_dir)
    reasons.append("disk failed")
    with pytest.raises(StorageError, match="the log directory with the metadata has failed: disk failed"):
        writer.append([next_id(8000)])
    writer.close()
    assert contents(log_dir) == before


# ------------------------------------------------------------------------------------------------- bootstrap.checkpoint
@pytest.fixture
def new_node(tmp_path: Path) -> Path:
    path = tmp_path / "bootstrap.checkpoint"
    path.write_bytes(format_bootstrap_checkpoint([TOPIC, next_id(1000)], now_ms=NOW_MS))
    (tmp_path / ".kafka_cleanshutdown").write_bytes(format_clean_shutdown(NEW_DIRECTORY))
    return tmp_path


def test_a_bootstrap_checkpoint_has_the_last_producer_ids_only(new_node: Path) -> None:
    writer = BootstrapWriter(new_node, Fs(), clock=lambda: NOW_MS)
    sizes = set()
    for value in (2000, 3000, 4000):
        writer.append([next_id(value)])
        found = metadata_of(new_node)
        assert (found.next_producer_id, list(found.topic_ids)) == (value, ["t"])
        sizes.add((new_node / "bootstrap.checkpoint").stat().st_size)
    assert len(sizes) == 1
    BootstrapWriter(new_node, Fs(), clock=lambda: NOW_MS).append([encode_metadata_record(m.TopicRecord(name="u"), 0)])
    found = metadata_of(new_node)
    assert (found.next_producer_id, sorted(found.topic_ids)) == (4000, ["t", "u"])


def test_a_bootstrap_checkpoint_that_cannot_be_replaced_stays_and_the_next_write_has_everything(new_node: Path) -> None:
    disk = FullDisk()
    writer = BootstrapWriter(new_node, disk, clock=lambda: NOW_MS)
    disk.is_full = True
    with pytest.raises(StorageError, match=r"bootstrap\.checkpoint could not be replaced"):
        writer.append([next_id(2000)])
    assert metadata_of(new_node).next_producer_id == 1000
    disk.is_full = False
    writer.append([next_id(3000)])
    assert metadata_of(new_node).next_producer_id == 3000


def test_it_is_reported_if_it_is_not_known_whether_a_bootstrap_checkpoint_was_replaced(new_node: Path) -> None:
    class UnsyncedDisk(Fs):
        is_broken = False

        def sync_directory(self, path: Path) -> None:
            if self.is_broken:
                raise OSError(errno.EIO, "disk failed")
            super().sync_directory(path)

    errors: list[OSError] = []
    disk = UnsyncedDisk()
    writer = BootstrapWriter(new_node, disk, clock=lambda: NOW_MS, disk_failed=errors.append)
    disk.is_broken = True
    with pytest.raises(CommitStateUnknownError, match=r"bootstrap\.checkpoint may or may not be replaced"):
        writer.append([next_id(2000)])
    assert [error.errno for error in errors] == [errno.EIO]


class ShortDisk(Fs):
    """A disk on which the process may open no file from `short_at` on, a step of a replacement."""

    short_at: str | None = None

    def _check(self, step: str) -> None:
        if self.short_at == step:
            raise OSError(errno.EMFILE, "too many open files")

    def write_new(self, path: Path, chunks: Iterable[Buffer]) -> int:
        self._check("write")
        return super().write_new(path, chunks)

    def sync_directory(self, path: Path) -> None:
        self._check("sync")
        super().sync_directory(path)

    def read_bytes(self, path: Path) -> bytes:
        if self.short_at is not None:
            raise OSError(errno.EMFILE, "too many open files")
        return super().read_bytes(path)


def test_without_descriptors_a_bootstrap_checkpoint_is_known_to_be_unchanged(new_node: Path) -> None:
    disk = ShortDisk()
    errors: list[OSError] = []
    writer = BootstrapWriter(new_node, disk, clock=lambda: NOW_MS, disk_failed=errors.append)
    disk.short_at = "write"
    with pytest.raises(OpenFilesLimitError):
        writer.append([next_id(2000)])
    disk.short_at = None
    assert metadata_of(new_node).next_producer_id == 1000
    writer.append([next_id(3000)])
    assert (metadata_of(new_node).next_producer_id, errors) == (3000, [])


def test_a_bootstrap_checkpoint_whose_last_change_may_not_be_durable_is_not_changed_again(new_node: Path) -> None:
    # The next start may find the change or not, so it is not known which records another change would add to.
    disk = ShortDisk()
    writer = BootstrapWriter(new_node, disk, clock=lambda: NOW_MS)
    disk.short_at = "sync"
    with pytest.raises(CommitStateUnknownError):
        writer.append([next_id(2000)])
    disk.short_at = None
    with pytest.raises(StorageError, match="an earlier change of bootstrap"):
        writer.append([next_id(3000)])
    assert metadata_of(new_node).next_producer_id == 2000


@pytest.mark.parametrize("is_started", [False, True])
def test_nothing_is_written_after_a_writer_was_closed(new_node: Path, tmp_path: Path, is_started: bool) -> None:
    path = unpacked(tmp_path / "data") if is_started else new_node
    writer = log_writer(path) if is_started else BootstrapWriter(path, Fs(), clock=lambda: NOW_MS)
    writer.close()
    before = contents(path)
    with pytest.raises(StorageError, match="the server has stopped"):
        writer.append([next_id(9000)])
    assert contents(path) == before


@pytest.mark.parametrize(("level", "fits"), [(12, False), (13, True)])
def test_a_bootstrap_checkpoint_grows_only_as_far_as_a_controller_can_copy_it(
    new_node: Path, level: int, fits: bool
) -> None:
    writer = BootstrapWriter(new_node, Fs(), clock=lambda: NOW_MS)
    feature = encode_metadata_record(m.FeatureLevelRecord(name="metadata.version", feature_level=level), 0)
    topics = [topic_record(f"t{number}", uuid.UUID(int=number)) for number in range(9996)]
    writer.append([feature, *topics])  # with the two records of the node
    before = contents(new_node)
    if fits:
        writer.append([TOPIC])
        assert contents(new_node) != before
    else:
        with pytest.raises(UsageError, match="would have 10000 records"):
            writer.append([TOPIC])
        assert contents(new_node) == before
        writer.append([next_id(2000)])
        assert metadata_of(new_node).next_producer_id == 2000

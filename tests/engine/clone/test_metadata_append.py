"""Appends to the metadata log of a stopped node of Kafka 4.2.0 (tests/data/served)."""

from __future__ import annotations

import tarfile
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from sediment.engine.clone.metadata_append import (
    append_records,
    check_appended,
    check_started,
    keep_metadata_log,
)
from sediment.engine.metadata.metadata_log_writer import check_fits
from sediment.segment_io.errors import CommitStateUnknownError, UsageError
from sediment.segment_io.format.checkpoints import format_uuid
from sediment.segment_io.fs import Fs
from sediment.segment_io.internal_topics.metadata_log import ClusterMetadata, read_cluster_metadata
from sediment.segment_io.internal_topics.metadata_records import decode_metadata_record, encode_metadata_record
from sediment.segment_io.protocol import messages as m
from tests.jobs.log_dirs import tree
from tests.segments import NOW_MS
from tests.served import unpacked
from tests.twin.segments import list_segments

LOG = "00000000000000000000.log"


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    return unpacked(tmp_path / "data")


def metadata_of(log_dir: Path) -> ClusterMetadata:
    found = read_cluster_metadata(log_dir, Fs())
    assert found is not None
    return found


def topics(count: int) -> list[bytes]:
    return [
        encode_metadata_record(m.TopicRecord(name=f"new{n}", topic_id=uuid.UUID(int=1000 + n)), 0) for n in range(count)
    ]


def append(log_dir: Path, values: Sequence[bytes]) -> None:
    append_records(log_dir, values, metadata_of(log_dir), Fs(), now_ms=NOW_MS)


def metadata_batches(log_dir: Path) -> list:
    (segment,) = list_segments(log_dir / "__cluster_metadata-0")
    return [batch for _, batch in segment.batches()]


def test_records_follow_the_log_end_as_one_batch_of_the_last_epoch(log_dir: Path) -> None:
    before, batches = metadata_of(log_dir), metadata_batches(log_dir)
    append(log_dir, topics(3))
    after = metadata_of(log_dir)
    assert after.end_offset == before.end_offset + 3
    assert after.topic_ids.keys() - before.topic_ids.keys() == {"new0", "new1", "new2"}
    *same, new = metadata_batches(log_dir)
    assert same == batches
    assert (new.base_offset, new.leader_epoch, new.is_valid()) == (before.end_offset, batches[-1].leader_epoch, True)
    assert {record.timestamp for record in new.records()} == {NOW_MS}


def test_many_records_are_one_metadata_transaction(log_dir: Path) -> None:
    before, batches = metadata_of(log_dir), metadata_batches(log_dir)
    append(log_dir, topics(2500))
    after = metadata_of(log_dir)
    assert len(after.topic_ids) == len(before.topic_ids) + 2500
    assert not after.has_open_transaction
    new = metadata_batches(log_dir)[len(batches) :]
    assert [len(batch.records()) for batch in new] == [2, 1000, 1000, 500, 1]
    # A node whose newest snapshot ends where a transaction begins cannot start, and it makes no snapshot in a batch.
    first, second = (decode_metadata_record(record.value) for record in new[0].records())
    assert (type(first), type(second)) == (m.NoOpRecord, m.BeginTransactionRecord)


def test_a_transaction_without_its_end_changes_nothing_and_is_aborted_by_the_next_append(log_dir: Path) -> None:
    before = metadata_of(log_dir)
    append(log_dir, topics(1500))
    *_, last = metadata_batches(log_dir)
    path = log_dir / "__cluster_metadata-0" / LOG
    path.write_bytes(path.read_bytes()[: -len(last.data)])
    (log_dir / "__cluster_metadata-0" / f"{last.last_offset + 1:020d}.snapshot").unlink()
    broken = metadata_of(log_dir)
    assert broken.has_open_transaction
    assert broken.topic_ids == before.topic_ids
    append(log_dir, topics(2))
    after = metadata_of(log_dir)
    assert after.topic_ids.keys() - before.topic_ids.keys() == {"new0", "new1"}


def test_an_append_that_a_crash_tore_anywhere_is_cut_and_can_be_repeated(log_dir: Path) -> None:
    path = log_dir / "__cluster_metadata-0" / LOG
    before, content = metadata_of(log_dir), path.read_bytes()
    append(log_dir, topics(3))
    whole = path.read_bytes()
    for path_ in (log_dir / "__cluster_metadata-0").glob("*.snapshot"):
        path_.unlink()
    for size in range(len(content), len(whole), 7):
        for torn in (whole[:size], whole[:size].ljust(len(whole), b"\0")):
            path.write_bytes(torn)
            assert metadata_of(log_dir).topic_ids == before.topic_ids
    append(log_dir, topics(3))
    assert path.read_bytes() == whole


def test_the_kept_archive_has_every_file_of_the_log(log_dir: Path, tmp_path: Path) -> None:
    (log_dir / "__cluster_metadata-0" / LOG).chmod(0o600)
    keep_metadata_log(log_dir, "kept.tar", Fs())
    assert (log_dir / "kept.tar").stat().st_mode & 0o777 == 0o600
    with tarfile.open(log_dir / "kept.tar") as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    assert tree(tmp_path / "unpacked" / "__cluster_metadata-0") == tree(log_dir / "__cluster_metadata-0")


def test_a_node_that_never_started_is_refused(log_dir: Path) -> None:
    metadata = metadata_of(log_dir)
    assert check_started(log_dir, metadata, Fs(), advice="start it") is metadata
    for started in (None, replace(metadata, features={})):
        with pytest.raises(UsageError, match=r"never been started.*; start it"):
            check_started(log_dir, started, Fs(), advice="start it")
    (log_dir / "__cluster_metadata-0" / "leader-epoch-checkpoint").unlink()
    with pytest.raises(UsageError, match=r"never been started.*; start it"):
        check_started(log_dir, metadata, Fs(), advice="start it")


def test_records_that_need_a_transaction_are_refused_where_the_cluster_has_none(log_dir: Path) -> None:
    metadata = metadata_of(log_dir)
    old = replace(metadata, features={"metadata.version": 12})
    check_fits(topics(1000), old)
    check_fits(topics(1001), metadata)
    with pytest.raises(UsageError, match="need a metadata transaction"):
        check_fits(topics(1001), old)


def test_a_topic_that_the_log_lacks_after_the_append_is_an_error(log_dir: Path) -> None:
    ids = set(metadata_of(log_dir).topic_ids.values())
    check_appended(log_dir, ids, Fs())
    with pytest.raises(CommitStateUnknownError, match="lacks topic id"):
        check_appended(log_dir, ids | {format_uuid(uuid.UUID(int=5).bytes)}, Fs())

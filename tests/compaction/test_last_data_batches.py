"""Producer snapshots of Kafka 0.11, which name a marker as a producer's last offset: the last data batch stays.

Kafka 0.11.0.3 wrote such a log with its own classes, and kept the batch when it cleaned; `append` refused the next
sequence of the producer after a cleaning without the batch (OutOfOrderSequenceException), in 0.11.0.3, 2.8.2 and 4.2.0.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from sediment.compaction.last_data_batches import with_data_offsets
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import PartitionCheckpoints
from sediment.segment_io.partition.listing import list_log
from sediment.segment_io.partition.log_view import LogView, open_view
from tests.compaction.cleanings import PARTITION, Round, prepare, put_in_place
from tests.jobs.log_dirs import sediment
from tests.segments import COMMIT, NOW_MS, batch_bytes, marker_bytes, write_segment, write_snapshot
from tests.twin.segments import file_batches
from tests.twin.snapshots import ProducerEntry

PRODUCER, EPOCH = 7, 2
OF_MARKER = ProducerEntry(PRODUCER, epoch=EPOCH, last_sequence=1, last_offset=2, timestamp=NOW_MS, coordinator_epoch=0)
"""The entry of 0.11: the sequence of the data batch, the offset of the marker, and the delta 0."""

END = 5


def transaction(base_offset: int = 0, sequence: int = 0, keys: str = "ab") -> list[bytes]:
    data = batch_bytes(
        base_offset, keys, producer_id=PRODUCER, producer_epoch=EPOCH, sequence=sequence, transactional=True
    )
    marker = marker_bytes(base_offset + len(keys), COMMIT, producer_id=PRODUCER, producer_epoch=EPOCH)
    return [data, marker]


def write_log(directory: Path, *first: bytes, entry: ProducerEntry = OF_MARKER) -> Path:
    """Write a log whose plain batch, at offsets 3 and 4, replaces every key of the transaction in `first`."""
    write_segment(directory, 0, first or transaction())
    write_segment(directory, 3, [batch_bytes(3, "ab")])
    write_segment(directory, END, [])
    write_snapshot(directory, END, [entry])
    return directory


def view_of(directory: Path) -> LogView:
    listing = list_log(PARTITION, directory, Fs())
    checkpoints = PartitionCheckpoints(clean_shutdown=True)
    return open_view(listing, checkpoints, Fs(), now_ms=NOW_MS, producer_id_expiration_ms=None)


def offsets_of(directory: Path) -> tuple[int, int]:
    (entry,) = with_data_offsets(view_of(directory), Fs())
    return entry.last_offset, entry.offset_delta


def kept(directory: Path) -> list[tuple[int, int, int]]:
    """Return base offset, last sequence and number of records of each batch of the producer, without markers."""
    return [
        (batch.base_offset, batch.base_sequence + batch.last_offset - batch.base_offset, len(batch.records()))
        for path in sorted(directory.glob("*.log"))
        for _, batch in file_batches(path.read_bytes())
        if batch.producer_id == PRODUCER and batch.base_sequence >= 0
    ]


# --------------------------------------------------------------------------------------------------------- the entries
def test_an_entry_that_names_a_marker_gets_the_offset_of_its_data_batch(tmp_path: Path) -> None:
    assert offsets_of(write_log(tmp_path / "t-0")) == (1, 1)


def test_the_data_batch_may_be_segments_before_its_marker(tmp_path: Path) -> None:
    data, marker = transaction()
    directory = tmp_path / "t-0"
    write_segment(directory, 0, [data])
    write_segment(directory, 2, [marker])
    write_segment(directory, 3, [batch_bytes(3, "ab")])
    write_snapshot(directory, END, [OF_MARKER])
    assert offsets_of(directory) == (1, 1)


def test_a_wrong_index_entry_is_not_trusted(tmp_path: Path) -> None:
    directory = write_log(tmp_path / "t-0")
    (directory / f"{0:020d}.index").write_bytes(bytes([0, 0, 0, 1, 0, 0, 0, 33]))
    assert offsets_of(directory) == (1, 1)


@pytest.mark.parametrize(
    ("entry", "first"),
    [
        (replace(OF_MARKER, last_offset=1, offset_delta=1), ()),
        (replace(OF_MARKER, last_sequence=-1), ()),
        (replace(OF_MARKER, last_sequence=8), ()),
        (replace(OF_MARKER, coordinator_epoch=-1), ()),
        (replace(OF_MARKER, last_sequence=0, last_offset=0), transaction(keys="a")),
        (OF_MARKER, [transaction()[1]]),
        (OF_MARKER, [batch_bytes(0, "ab"), transaction()[1]]),
    ],
    ids=[
        "the data batch",
        "no data under this epoch",
        "another batch's sequence",
        "no marker yet",
        "a data batch of one record",
        "the data batch is gone",
        "another producer's data",
    ],
)
def test_every_other_entry_stays_as_it_is(entry: ProducerEntry, first: list[bytes], tmp_path: Path) -> None:
    view = view_of(write_log(tmp_path / "t-0", *first, entry=entry))
    assert with_data_offsets(view, Fs()) == view.producers


def test_a_corrupt_segment_leaves_the_entry_as_it_is(tmp_path: Path) -> None:
    directory = write_log(tmp_path / "t-0")
    log = directory / f"{0:020d}.log"
    log.write_bytes(b"\0" * 61 + log.read_bytes()[61:])
    view = view_of(directory)
    assert with_data_offsets(view, Fs()) == view.producers


# ------------------------------------------------------------------------------------------------------------ cleanings
def test_the_last_data_batch_of_a_producer_of_kafka_0_11_keeps_its_header(tmp_path: Path) -> None:
    directory = write_log(tmp_path / "t-0", *transaction())
    swap = prepare(directory, Round(NOW_MS))
    assert swap is not None
    put_in_place(swap)
    assert kept(directory) == [(0, 1, 0)]


def test_verify_calls_the_cleaning_correct_and_one_without_the_batch_wrong(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    write_log(before / "t-0")
    shutil.copytree(before, after)
    arguments = ("--json", "--set=t:cleanup.policy=compact", "--broker-defaults", "--now-ms", NOW_MS)
    assert sediment("compact", after, "--force", *arguments).partitions()["t-0"]["status"] == "compacted"
    verified = sediment("verify", before, after, *arguments).partitions()["t-0"]
    assert verified["status"] == "correct", verified
    log = after / "t-0" / f"{0:020d}.log"
    batches = [batch.data for _, batch in file_batches(log.read_bytes())]
    log.write_bytes(b"".join(batches[1:]))
    verified = sediment("verify", before, after, *arguments).partitions()["t-0"]
    assert any("was the last batch of producer 7" in each["what"] for each in verified["differences"])

"""Rolling the last segment of a stopped copy: the files afterwards, and loading after a crash at every step."""

from __future__ import annotations

import shutil

import pytest

from sediment.compaction.config import CompactionConfig
from sediment.engine.directory.loading.interrupted_swaps import finish_interrupted
from sediment.engine.directory.loading.log_loader import load_log
from sediment.engine.directory.roll import perform_roll, plan_roll
from sediment.engine.log_config import LogConfig
from sediment.segment_io.errors import CorruptBatchError, UncleanDirectoryError
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import PartitionCheckpoints
from sediment.segment_io.partition.listing import list_log
from sediment.segment_io.partition.log_view import open_view
from sediment.segment_io.partition.producer_snapshots import parse_snapshot
from tests.jobs.log_dirs import tree
from tests.segments import NOW_MS, batch_bytes, write_segment, write_snapshot

PARTITION = TopicPartition("t", 0)
STOPPED = PartitionCheckpoints(clean_shutdown=True)


class CutError(Exception):
    """The crash."""


class CrashingFs(Fs):
    """Ends at the first change after `changes` of them."""

    def __init__(self, changes):
        self.left = changes

    def _change(self):
        if self.left == 0:
            raise CutError
        self.left -= 1

    def write_new(self, path, chunks):
        self._change()
        return super().write_new(path, chunks)

    def rename(self, source, target):
        self._change()
        super().rename(source, target)


@pytest.fixture
def log(tmp_path):
    """Make a rolled segment and an active one as in a live broker: preallocated indexes, no snapshot at the end."""
    path = tmp_path / "t-0"
    write_segment(path, 0, [batch_bytes(0, "ab"), batch_bytes(2, "a")])
    producer = [batch_bytes(3 + n, "ab"[n % 2], producer_id=9, sequence=n, value=bytes(900)) for n in range(12)]
    write_segment(path, 3, producer, preallocated_index_bytes=1200)
    write_snapshot(path, 3)
    return path


def view_of(path, checkpoints=STOPPED):
    fs = Fs()
    listing = list_log(PARTITION, path, fs)
    return open_view(listing, checkpoints, fs, now_ms=NOW_MS, producer_id_expiration_ms=86_400_000)


def planned(path, checkpoints=STOPPED):
    return plan_roll(view_of(path, checkpoints), Fs(), index_interval_bytes=4096, segment_index_bytes=10 << 20)


def loaded(path):
    config = LogConfig(compaction=CompactionConfig())
    return load_log(PARTITION, path, config, STOPPED, Fs(), now_ms=NOW_MS)


def test_ap_25_the_log_is_rolled_as_a_broker_rolls_it(log):
    content = (log / f"{3:020d}.log").read_bytes()
    roll = planned(log)
    perform_roll(roll, Fs())
    names = sorted(path.name for path in log.iterdir())
    assert names == sorted(
        [f"{base:020d}{suffix}" for base in (0, 3, 15) for suffix in (".log", ".index", ".timeindex")]
        + [f"{base:020d}.snapshot" for base in (3, 15)]
    )
    assert (log / f"{3:020d}.log").read_bytes() == content
    assert [(log / f"{15:020d}{suffix}").stat().st_size for suffix in (".log", ".index", ".timeindex")] == [0, 0, 0]
    assert (log / f"{3:020d}.index").stat().st_size == 16, "trimmed to its entries"
    assert (log / f"{3:020d}.timeindex").stat().st_size == 12, "with the entry that ends it"
    (producer,) = parse_snapshot((log / f"{15:020d}.snapshot").read_bytes())
    assert (producer.producer_id, producer.last_sequence) == (9, 11)
    assert list_log(PARTITION, log, Fs()).segments[:-1] == roll.listing.segments[:-1]
    assert list_log(PARTITION, log, Fs()).segments[-1].base_offset == roll.listing.segments[-1].base_offset == 15


def test_a_start_finds_nothing_to_repair_after_it_and_the_same_log(log, tmp_path):
    before = loaded(shutil.copytree(log, tmp_path / "before" / "t-0"))
    perform_roll(planned(log), Fs())
    after = loaded(log)
    assert (after.log_end_offset, after.producers.entries) == (15, before.producers.entries)
    assert after.damage == ()
    assert [repair for repair in after.repairs if f"{15:020d}" in repair.name or f"{3:020d}" in repair.name] == []


def test_a_second_roll_has_nothing_to_do(log):
    perform_roll(planned(log), Fs())
    before = tree(log)
    assert planned(log) is None
    assert tree(log) == before


def test_a_crash_at_every_change_leaves_a_log_that_loads_and_can_be_rolled_again(log, tmp_path):
    done = tree(_rolled(log, tmp_path / "done" / "t-0"))
    for changes in range(100):
        path = shutil.copytree(log, tmp_path / str(changes) / "t-0")
        try:
            perform_roll(planned(path), CrashingFs(changes))
        except CutError:
            crashed = shutil.copytree(path, tmp_path / f"{changes}-start" / "t-0")
            assert loaded(crashed).log_end_offset == 15
            finish_interrupted(path, Fs())
            roll = planned(path)
            if roll is not None:
                perform_roll(roll, Fs())
            found = {name: content for name, content in tree(path).items() if not name.endswith(".tmp")}
            assert found == done, changes
            continue
        assert changes > 5
        return
    raise AssertionError("the roll never ended")


def _rolled(log, path):
    shutil.copytree(log, path)
    perform_roll(planned(path), Fs())
    return path


def test_what_is_not_verified_is_not_rolled(log):
    assert planned(log, PartitionCheckpoints(recovery_point=0)) is None


def test_a_torn_tail_asks_for_recover(log):
    active = log / f"{3:020d}.log"
    active.write_bytes(active.read_bytes() + batch_bytes(15)[:40])
    with pytest.raises(UncleanDirectoryError, match=r"ends inside a batch.*sediment recover"):
        planned(log)


def test_damage_in_the_last_segment_is_found_before_anything_is_changed(log):
    active = log / f"{3:020d}.log"
    content = bytearray(active.read_bytes())
    content[200] ^= 1
    active.write_bytes(bytes(content))
    before = tree(log)
    with pytest.raises(CorruptBatchError):
        planned(log)
    assert tree(log) == before


def test_files_that_are_right_are_left_as_they_are(log):
    perform_roll(planned(log), Fs())
    path = log / f"{15:020d}.log"
    path.write_bytes(batch_bytes(15, producer_id=9, sequence=12))
    inodes = {name: (log / name).stat().st_ino for name in (f"{3:020d}.index", f"{15:020d}.index")}
    roll = planned(log)
    perform_roll(roll, Fs())
    assert {name: (log / name).stat().st_ino for name in inodes} == inodes
    assert [name for name, _ in roll.replaced] == [f"{15:020d}.timeindex", f"{16:020d}.snapshot"]


@pytest.mark.parametrize("lost", [".index", ".timeindex", "index"])
def test_a_log_without_indexes_is_rolled_and_a_view_before_the_roll_needs_none(log, lost):
    for path in log.glob(f"*{lost}"):
        path.unlink()
    roll = planned(log)
    view = open_view(roll.listing, STOPPED, Fs(), now_ms=NOW_MS, producer_id_expiration_ms=86_400_000)
    assert view.log_end_offset == 15
    perform_roll(roll, Fs())
    assert {f"{3:020d}.index", f"{3:020d}.timeindex"} <= {path.name for path in log.iterdir()}
    assert loaded(log).damage == ()

"""Limits of a `compact` run: quarantine, rates, network filesystems, memory and originals."""

from __future__ import annotations

import errno
import json
import os
import time
from pathlib import Path

import pytest
from pyspark import SparkFiles

from sediment.compaction.config import CompactionConfig
from sediment.engine.directory.throttle import Throttle
from sediment.jobs.cleaning.options import CleaningTask, CompactOptions
from sediment.jobs.cleaning.task import clean_partition
from sediment.jobs.settings import directories
from sediment.jobs.spark.task_environment import RateLimit
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import PartitionCheckpoints
from sediment.segment_io.partition.listing import list_log
from tests.corpus import load_case
from tests.jobs.log_dirs import make_log_dir, read_checkpoint, sediment, topic_sets, tree, write_checkpoint
from tests.jobs.originals.kept_originals import catalogues, originals_of, put_back
from tests.segments import NOW_MS, batch_bytes, write_segment

DAMAGED = "plain-1"


@pytest.fixture
def plain(tmp_path):
    return load_case("plain", tmp_path / "corpus")


@pytest.fixture
def log_dir(tmp_path, plain):
    return make_log_dir(tmp_path / "logs", {"plain-0": plain.before, "plain-1": plain.before})


def compact(log_dir, plain, *options, now_ms=NOW_MS):
    return sediment("compact", log_dir, "--json", "--now-ms", now_ms, *topic_sets("plain", plain.configs), *options)


def flip(segment: Path, position: int) -> None:
    """Damage a byte and keep the times, as a disk does that goes bad."""
    status = segment.stat()
    content = bytearray(segment.read_bytes())
    content[position] ^= 1
    segment.write_bytes(bytes(content))
    os.utime(segment, ns=(status.st_atime_ns, status.st_mtime_ns))


def damage(log_dir):
    segment = log_dir / DAMAGED / f"{448:020d}.log"
    flip(segment, 5000)
    return segment


def marks(log_dir):
    path = log_dir / ".sediment-uncleanable"
    return json.loads(path.read_text())["partitions"] if path.exists() else []


# ------------------------------------------------------------------------------------------------------------- damage
def test_cp_32_a_damaged_partition_is_quarantined_with_reason_and_time_and_the_others_go_on(log_dir, plain):
    segment = damage(log_dir)
    before = tree(log_dir / DAMAGED)
    outcome = compact(log_dir, plain)
    assert outcome.status == 1
    assert outcome.partitions()["plain-0"]["status"] == "compacted"
    (mark,) = marks(log_dir)
    assert (mark["partition"], mark["reason_code"], mark["since_ms"]) == (DAMAGED, "corrupt-batch", NOW_MS)
    assert str(segment) in mark["reason"]
    assert tree(log_dir / DAMAGED) == before
    assert read_checkpoint(log_dir / "cleaner-offset-checkpoint") == {"plain-0": 2000}


def test_cm_02_a_quarantined_partition_is_not_looked_at_again_until_it_is_asked_for(log_dir, plain):
    segment = damage(log_dir)
    compact(log_dir, plain)
    later = compact(log_dir, plain, now_ms=NOW_MS + 1)
    assert later.status == 1
    bad = later.partitions()[DAMAGED]
    assert (bad["status"], bad["reason_code"]) == ("quarantined", "corrupt-batch")
    for word in ("2023-11-14 22:13:20 UTC", "CRC", "--retry-quarantined"):
        assert word in bad["reason"]
    flip(segment, 5000)
    asked = compact(log_dir, plain, "--retry-quarantined")
    assert (asked.status, asked.partitions()[DAMAGED]["status"]) == (0, "compacted")
    assert not (log_dir / ".sediment-uncleanable").exists()


def test_a_quarantined_partition_whose_segments_changed_is_looked_at_again(log_dir, plain):
    segment = damage(log_dir)
    compact(log_dir, plain)
    segment.unlink()
    segment.write_bytes((plain.before / segment.name).read_bytes())
    assert compact(log_dir, plain).partitions()[DAMAGED]["status"] == "compacted"
    assert marks(log_dir) == []


def test_a_partition_that_was_mended_under_the_same_size_and_time_is_looked_at_again(log_dir, plain):
    segment = damage(log_dir)
    compact(log_dir, plain)
    before = segment.stat()
    flip(segment, 5000)
    assert (segment.stat().st_size, segment.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert compact(log_dir, plain).partitions()[DAMAGED]["status"] == "compacted"


def test_a_retry_that_fails_again_is_marked_anew(log_dir, plain):
    damage(log_dir)
    compact(log_dir, plain)
    assert compact(log_dir, plain, "--retry-quarantined", now_ms=NOW_MS + 7).status == 1
    assert [mark["since_ms"] for mark in marks(log_dir)] == [NOW_MS + 7]


def test_a_dry_run_says_the_same_of_damage_and_remembers_nothing(log_dir, plain):
    damage(log_dir)
    before = tree(log_dir)
    outcome = compact(log_dir, plain, "--dry-run")
    assert (outcome.status, outcome.partitions()[DAMAGED]["status"]) == (1, "quarantined")
    assert tree(log_dir) == before


def test_cp_33_an_unknown_magic_is_quarantined_too(log_dir, plain):
    segment = log_dir / DAMAGED / f"{448:020d}.log"
    content = bytearray(segment.read_bytes())
    content[16] = 7
    segment.write_bytes(bytes(content))
    assert compact(log_dir, plain).partitions()[DAMAGED]["status"] == "quarantined"
    assert len(marks(log_dir)) == 1


# ---------------------------------------------------------------------------------------------------- limits of a run
@pytest.fixture
def three(tmp_path, plain):
    """Ratios 1, about 0.5 and about 0.2."""
    partitions = {f"plain-{number}": plain.before for number in range(3)}
    log_dir = make_log_dir(tmp_path / "three", partitions)
    write_checkpoint(log_dir / "cleaner-offset-checkpoint", {"plain-0": 1787, "plain-1": 894})
    return log_dir


def log_bytes(partition: Path) -> int:
    return sum(path.stat().st_size for path in partition.glob("*.log"))


def test_cm_01_with_a_limit_the_filthiest_come_first_and_the_rest_is_left_and_named(three, plain):
    room = log_bytes(three / "plain-2") + 1
    untouched = {name: tree(three / name) for name in ("plain-0", "plain-1")}
    outcome = compact(three, plain, "--force", "--max-bytes", room)
    assert outcome.status == 0, outcome.stderr
    partitions = outcome.partitions()
    assert partitions["plain-2"]["status"] == "compacted"
    for name in untouched:
        assert (partitions[name]["status"], partitions[name]["reason_code"]) == ("skipped", "max-bytes")
        assert "run again" in partitions[name]["reason"]
        assert tree(three / name) == untouched[name]
    table = sediment(
        "compact", three, "--force", "--max-bytes", 1, "--now-ms", NOW_MS, *topic_sets("plain", plain.configs)
    )
    assert "not done because of --max-bytes: plain-0, plain-1" in table.stdout


def test_runs_with_a_limit_come_to_the_end_one_after_the_other(three, plain):
    room = log_bytes(three / "plain-2") + 1
    done = []
    for _ in range(4):
        partitions = compact(three, plain, "--force", "--max-bytes", room).partitions()
        done.append([name for name, partition in partitions.items() if partition["status"] == "compacted"])
    assert done == [["plain-2"], ["plain-1"], ["plain-0"], []]


def test_no_time_leaves_everything_as_it_is(three, plain):
    before = {name: tree(three / name) for name in ("plain-0", "plain-1", "plain-2")}
    outcome = compact(three, plain, "--force", "--max-seconds", 0)
    assert outcome.status == 0
    assert {(p["status"], p["reason_code"]) for p in outcome.partitions().values()} == {("skipped", "max-seconds")}
    assert {name: tree(three / name) for name in before} == before


def test_at_the_deadline_what_is_finished_is_committed_and_nothing_is_half_done(tmp_path):
    source = write_segment(tmp_path / "t", 0, [batch_bytes(n, "k", value=bytes(1000)) for n in range(20)]).parent
    write_segment(source, 20)
    before = tree(source)
    # When the first is done and when the last is up to the machine; no rate holds what takes no time.
    too_few, too_many = 0.0, 30.0
    for attempt in range(12):
        log_dir = make_log_dir(tmp_path / f"logs-{attempt}", {f"t-{number}": source for number in range(80)})
        seconds = (too_few + too_many) / 2
        outcome = sediment("compact", log_dir, "--json", "--max-seconds", seconds, "--set=t:cleanup.policy=compact")
        assert outcome.status == 0
        partitions = outcome.partitions()
        done = {name for name, partition in partitions.items() if partition["status"] == "compacted"}
        if not done:
            too_few = seconds
        elif len(done) == len(partitions):
            too_many = seconds
        else:
            break
    assert 0 < len(done) < len(partitions)
    assert {partitions[name]["reason_code"] for name in set(partitions) - done} == {"max-seconds"}
    for name in partitions:
        assert (tree(log_dir / name) == before) == (name not in done)
    assert read_checkpoint(log_dir / "cleaner-offset-checkpoint") == dict.fromkeys(done, 20)


def test_reading_and_writing_keep_to_the_rate(tmp_path):
    """The window of the throttle began a while ago, so that the first chunk is already slept out."""
    path = write_segment(tmp_path / "t-0", 0, [batch_bytes(n, "k", value=bytes(1000)) for n in range(500)]).parent
    write_segment(path, 500)
    name = f"{tmp_path.name}.throttle"
    started = time.monotonic()
    Throttle(Path(SparkFiles.getRootDirectory()) / name, 1e6).close()
    time.sleep(0.31)
    listing = list_log(TopicPartition("t", 0), path, Fs())
    options = CompactOptions(force=True, dry_run=True, from_start=False)
    config = CompactionConfig(cleanup_policy=("compact",))
    limit = RateLimit(bytes_per_second=500_000, throttle_name=name)
    task = CleaningTask(listing, PartitionCheckpoints(), config, options, NOW_MS, "run", rate_limit=limit)
    assert clean_partition(task, "0").swap is not None
    assert time.monotonic() - started > 0.8, "530 kB take a second, but for what the last window saves"


def test_a_task_that_needs_more_memory_than_it_has_says_so_and_leaves_its_partition(log_dir, plain):
    before = tree(log_dir / "plain-0")
    outcome = compact(log_dir, plain, "--set=sediment.task.memory.bytes=100000")
    assert outcome.status == 1
    partition = outcome.partitions()["plain-0"]
    assert (partition["status"], partition["reason_code"]) == ("failed", "memory-budget")
    for word in ("100000 bytes of memory", "sediment.task.memory.bytes", str(log_dir / "plain-0")):
        assert word in partition["reason"]
    assert tree(log_dir / "plain-0") == before
    enough = compact(log_dir, plain, "--set=sediment.task.memory.bytes=100000000")
    assert enough.partitions()["plain-0"]["status"] == "compacted"


# ------------------------------------------------------------------------------------------------ network filesystems
def test_a_network_filesystem_is_refused_unless_it_is_allowed(log_dir, plain, tmp_path, monkeypatch):
    table = tmp_path / "mountinfo"
    table.write_text(f"27 1 0:1 / / rw - ext4 /dev/vda rw\n28 27 0:50 / {log_dir} rw - nfs4 server:/x rw\n")
    monkeypatch.setattr(directories, "MOUNT_TABLE", table)
    before = tree(log_dir)
    outcome = compact(log_dir, plain)
    assert outcome.status == 2
    assert "nfs4" in outcome.stderr
    assert "--allow-network-fs" in outcome.stderr
    assert tree(log_dir) == before
    assert compact(log_dir, plain, "--dry-run").status == 0, "reading needs no permission"
    assert compact(log_dir, plain, "--allow-network-fs").status == 0


# ------------------------------------------------------------------------------------------------------------ originals
def test_originals_are_kept_as_links_to_the_very_files_that_went(log_dir, plain, tmp_path):
    partition = log_dir / "plain-0"
    inodes = {path.name: path.stat().st_ino for path in partition.iterdir()}
    before = tree(partition)
    kept = tmp_path / "deep" / "originals"
    assert compact(log_dir, plain, "--keep-originals", kept).status == 0
    folder = originals_of(kept, catalogues(kept)[0], "plain-0")
    found = tree(folder)
    assert {name for name in found if name.endswith(".log")} == {
        name for name in before if name.endswith(".log") and not name.startswith(f"{2000:020d}")
    }
    for name, content in found.items():
        assert content == before[name]
        assert (folder / name).stat().st_ino == inodes[name]


def test_the_catalogue_of_a_compaction_puts_back_every_byte(log_dir, plain, tmp_path):
    write_checkpoint(log_dir / "cleaner-offset-checkpoint", {"other-3": 77, "plain-0": 5})
    before, kept = tree(log_dir), tmp_path / "originals"
    assert compact(log_dir, plain, "--keep-originals", kept).status == 0
    (catalogue,) = catalogues(kept)
    assert (catalogue["state"], catalogue["command"]) == ("done", "compact")
    partitions = {partition["partition"]: partition for partition in catalogue["partitions"]}
    assert partitions["plain-0"]["checkpoints"]["cleaner-offset-checkpoint"] == 5
    assert {file["name"] for file in partitions["plain-0"]["files"]} == set(
        tree(originals_of(kept, catalogue, "plain-0"))
    )
    assert tree(log_dir) != before
    put_back(kept, catalogue)
    assert tree(log_dir) == before


def test_one_directory_for_originals_and_for_what_verify_compares_with_is_refused(log_dir, plain, tmp_path):
    before = tree(log_dir)
    outcome = compact(log_dir, plain, f"--keep-originals={tmp_path}/kept", f"--keep-before={tmp_path}/kept")
    assert (outcome.status, "name a directory for each" in outcome.stderr) == (2, True), outcome.stderr
    assert tree(log_dir) == before


def test_no_inode_that_was_there_is_changed(log_dir, plain, tmp_path):
    """Every file of the directory, the checkpoints too, is linked elsewhere first and compared afterwards."""
    write_checkpoint(log_dir / "cleaner-offset-checkpoint", {"plain-0": 5, "other-3": 77})
    damage(log_dir)
    before = tree(log_dir)
    copy = tmp_path / "links"
    for name in before:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        os.link(log_dir / name, copy / name)
    compact(log_dir, plain, "--roll-active", "--force")
    assert tree(copy) == before


def test_what_was_kept_earlier_is_not_replaced(log_dir, plain, tmp_path):
    kept = tmp_path / "originals"
    compact(log_dir, plain, "--keep-originals", kept, "--partition", "plain-0")
    first = tree(kept)
    grouped = {**plain.configs, "segment.bytes": "1000000"}
    again = sediment(
        "compact", log_dir, "--json", "--force", "--from-start", "--keep-originals", kept, "--partition", "plain-0",
        *topic_sets("plain", grouped),
    )  # fmt: skip
    assert (again.status, again.partitions()["plain-0"]["status"]) == (0, "compacted")
    assert first.items() < tree(kept).items()


def test_originals_inside_a_log_directory_are_refused(log_dir, plain):
    before = tree(log_dir)
    outcome = compact(log_dir, plain, "--keep-originals", log_dir / "originals")
    assert outcome.status == 2
    assert "log directory" in outcome.stderr
    assert tree(log_dir) == before


def test_originals_on_another_filesystem_are_refused(log_dir, plain):
    elsewhere = Path("/dev/shm")
    if not elsewhere.is_dir() or elsewhere.stat().st_dev == log_dir.stat().st_dev:
        pytest.skip("this system has no second filesystem to write to")
    target = elsewhere / f"sediment-{os.getpid()}"
    before = tree(log_dir)
    try:
        outcome = compact(log_dir, plain, "--keep-originals", target)
    finally:
        if target.exists():
            target.rmdir()
    assert outcome.status == 2
    assert "another filesystem" in outcome.stderr
    assert tree(log_dir) == before


def test_links_that_the_filesystem_refuses_are_a_sentence_and_nothing_changes(tmp_path):
    from sediment.compaction.prepared_swap import CleanedGroup, CleanStats, PartSegment, PreparedSwap
    from sediment.engine.directory.originals.backup_links import link_replaced_files
    from sediment.segment_io.errors import UsageError
    from sediment.segment_io.format.names import TopicPartition
    from sediment.segment_io.fs import Fs
    from sediment.segment_io.partition.listing import list_log

    class WithoutLinks(Fs):
        def link(self, source, target):
            raise OSError(errno.EPERM, "Operation not permitted", str(source))

    write_segment(tmp_path / "t-0", 0, [batch_bytes(0)])
    segments = list_log(TopicPartition("t", 0), tmp_path / "t-0", Fs()).segments
    group = CleanedGroup(segments, (PartSegment(0, ()),), CleanStats())
    swap = PreparedSwap(TopicPartition("t", 0), str(tmp_path / "t-0"), (group,), 1)
    with pytest.raises(UsageError, match="without hard links"):
        link_replaced_files(swap, tmp_path / "kept", WithoutLinks())


# ----------------------------------------------------------------------------------------------------- the last segment
def stopped_copy(path: Path) -> Path:
    """Return a partition whose last segment holds data: everything is in it."""
    write_segment(path, 0, [batch_bytes(n, "ab"[n % 2]) for n in range(30)])
    return path


def test_ap_25_the_last_segment_of_a_stopped_copy_is_rolled_and_cleaned(tmp_path):
    log_dir = make_log_dir(tmp_path / "logs", {"t-0": stopped_copy(tmp_path / "t-0")})
    options = ("--json", "--now-ms", NOW_MS, "--set=t:cleanup.policy=compact")
    without = sediment("compact", log_dir, *options).partitions()["t-0"]
    assert (without["status"], without["reason_code"]) == ("skipped", "active-segment")
    before = tree(log_dir)
    dry = sediment("compact", log_dir, *options, "--roll-active", "--dry-run").partitions()["t-0"]
    assert tree(log_dir) == before
    real = sediment("compact", log_dir, *options, "--roll-active").partitions()["t-0"]
    assert (real["status"], real["messages_written"], real["segments"]) == ("compacted", 2, [0, 30])
    unlike = {"segments_before", "strip_before", "seconds_by_stage"}
    assert {k: v for k, v in dry.items() if k not in unlike} == {k: v for k, v in real.items() if k not in unlike}
    assert (log_dir / "t-0" / f"{30:020d}.log").stat().st_size == 0
    assert (log_dir / "t-0" / f"{30:020d}.snapshot").exists()
    again = sediment("compact", log_dir, *options, "--roll-active").partitions()["t-0"]
    assert again["reason_code"] == "nothing-dirty"


def test_the_last_segment_is_not_rolled_where_that_would_not_let_it_be_cleaned(tmp_path):
    log_dir = make_log_dir(tmp_path / "logs", {"t-0": stopped_copy(tmp_path / "t-0")})
    before = tree(log_dir)
    options = ("--json", "--now-ms", NOW_MS, "--set=t:cleanup.policy=compact", "--roll-active")
    young = sediment("compact", log_dir, *options, "--set=t:min.compaction.lag.ms=1000").partitions()["t-0"]
    assert young["reason_code"] == "active-segment"
    assert tree(log_dir) == before


def test_damage_in_the_last_segment_quarantines_the_partition_before_it_is_rolled(tmp_path):
    log_dir = make_log_dir(tmp_path / "logs", {"t-0": stopped_copy(tmp_path / "t-0")})
    flip(log_dir / "t-0" / f"{0:020d}.log", 100)
    before = tree(log_dir / "t-0")
    options = ("--json", "--now-ms", NOW_MS, "--set=t:cleanup.policy=compact", "--roll-active")
    outcome = sediment("compact", log_dir, *options)
    assert (outcome.status, outcome.partitions()["t-0"]["status"]) == (1, "quarantined")
    assert tree(log_dir / "t-0") == before
    assert len(marks(log_dir)) == 1

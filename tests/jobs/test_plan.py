"""`sediment plan`: it changes nothing, predicts what `compact` and `expire` do, and explains why they do no more."""

from __future__ import annotations

import fcntl
import re
import shutil
from pathlib import Path

import pytest

import sediment.jobs.plan as plan_command
from sediment.compaction.config import CompactionConfig
from sediment.compaction.reencode.plan import Encoding
from sediment.jobs.cleaning.options import CleaningTask, CompactOptions
from sediment.jobs.planning import driver, task
from sediment.retention.policy import RetentionConfig
from sediment.segment_io.format import layout
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.partition.checkpoint_files import PartitionCheckpoints
from sediment.segment_io.partition.listing import LogListing, SegmentRef
from tests.corpus import cleaning_cases, load_case
from tests.faults.inline_spark import inline_spark
from tests.jobs.log_dirs import corpus_log_dir, make_log_dir, sediment, topic_sets, tree, write_checkpoint
from tests.segments import NOW_MS, batch_bytes, write_segment

DAY_MS = 86_400_000
SAME = (
    "next_dirty_offset",
    "first_dirty_offset",
    "first_uncleanable_offset",
    "messages_read",
    "messages_written",
    "bytes_before",
    "bytes_after",
    "segments",
    "segments_before",
    "groups_rewritten",
    "groups_skipped",
    "dirty_ratio",
    "tombstones_waiting",
    "first_delete_horizon_ms",
    "last_delete_horizon_ms",
    "strategy",
)


@pytest.fixture
def plain(tmp_path):
    return load_case("plain", tmp_path / "corpus")


@pytest.fixture
def log_dir(tmp_path, plain):
    return make_log_dir(tmp_path / "logs", {plain.partition: plain.before})


def plan(log_dir, *options, now_ms=NOW_MS):
    outcome = sediment("plan", log_dir, "--json", "--now-ms", now_ms, *options)
    assert outcome.status in (0, 1), outcome.stderr
    return outcome


def keyed_log(path, *, batches=40, keys=4, tombstones=False, timestamp=NOW_MS - DAY_MS):
    """Return a partition of two rolled segments and an empty active one, one record a batch."""
    half = batches // 2

    def batch(offset):
        value = None if tombstones and offset < keys else b"value-%04d" % offset
        return batch_bytes(offset, chr(97 + offset % keys), value=value, timestamp=timestamp + offset)

    write_segment(path, 0, [batch(offset) for offset in range(half)])
    write_segment(path, half, [batch(offset) for offset in range(half, batches)])
    write_segment(path, batches)
    return path


def test_a_plan_changes_nothing_and_asks_for_no_lock(log_dir, plain):
    before = tree(log_dir)
    with (log_dir / ".lock").open("w") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for options in ((), ("--exact",)):
            assert plan(log_dir, *options, *topic_sets("plain", plain.configs)).status == 0
    assert tree(log_dir) == before


def test_an_exact_plan_beside_a_broker_that_appends_and_rolls_has_the_figures_of_the_closed_segments(
    tmp_path, monkeypatch
):
    log_dir = make_log_dir(tmp_path / "logs", {"t-0": keyed_log(tmp_path / "t-0")})
    options = ("--exact", "--force", "--set=cleanup.policy=compact")
    partition = log_dir / "t-0"
    exact_plans = plan_command.exact_plans

    def append_first(*given, **named):
        with (partition / f"{40:020d}.log").open("ab") as active:
            active.write(batch_bytes(40, "z", value=b"new", timestamp=NOW_MS))
        write_segment(partition, 41)
        return exact_plans(*given, **named)

    with inline_spark():
        expected = plan(log_dir, *options).partitions()["t-0"]
        monkeypatch.setattr(plan_command, "exact_plans", append_first)
        assert plan(log_dir, *options).partitions()["t-0"] == expected
    assert (expected["status"], expected["is_exact"]) == ("cleanable", True)


def test_an_exact_plan_whose_closed_segments_change_names_the_broker(tmp_path, monkeypatch):
    log_dir = make_log_dir(tmp_path / "logs", {"t-0": keyed_log(tmp_path / "t-0")})
    exact_plans = plan_command.exact_plans

    def shorten_first(*given, **named):
        (log_dir / "t-0" / f"{20:020d}.log").write_bytes(b"")
        return exact_plans(*given, **named)

    monkeypatch.setattr(plan_command, "exact_plans", shorten_first)
    with inline_spark():
        found = plan(log_dir, "--exact", "--force", "--set=cleanup.policy=compact").partitions()["t-0"]
    assert (found["status"], found["reason_code"]) == ("failed", "source-changed")
    assert "stop the broker" in found["reason"]


def test_the_steps_of_an_exact_plan_are_packed_and_counted_by_the_bytes_that_each_reads(tmp_path, monkeypatch):
    log_dir = make_log_dir(tmp_path / "logs", {f"t-{number}": keyed_log(tmp_path / "t-0") for number in range(2)})
    log_bytes = sum(path.stat().st_size for path in log_dir.glob("t-*/*.log"))
    monkeypatch.setattr(driver, "SAMPLE_BYTES", 100)
    shown = []

    class Shown(driver.Progress):
        def __init__(self, console, partitions, total_bytes, *, phase):
            self.row = [phase, partitions, total_bytes, 0]
            shown.append(self.row)
            super().__init__(console, partitions, total_bytes, phase=phase)

        def advance(self, size_bytes, *, partitions=1):
            self.row[3] += size_bytes
            super().advance(size_bytes, partitions=partitions)

    monkeypatch.setattr(driver, "Progress", Shown)
    with inline_spark():
        plan(log_dir, "--exact", "--force", "--set=cleanup.policy=compact")
    assert shown == [["planning", 2, 200, 200], ["cleaning", 2, log_bytes, log_bytes]]


@pytest.mark.parametrize("name", [name for name in cleaning_cases() if name != "compact-delete"][::3])
def test_an_exact_plan_is_what_compact_then_does(tmp_path, name):
    case = load_case(name, tmp_path / "corpus")
    log_dir, sets = corpus_log_dir(tmp_path / "logs", [(case, case.rounds[0])])
    options = ("--force", *sets)
    planned = plan(log_dir, "--exact", *options, now_ms=case.rounds[0].now_ms).partitions()[case.partition]
    done = sediment("compact", log_dir, "--json", "--now-ms", case.rounds[0].now_ms, *options)
    found = done.partitions()[case.partition]
    assert (planned["status"], found["status"], planned["is_exact"]) == ("cleanable", "compacted", True)
    assert {name: planned[name] for name in SAME} == {name: found[name] for name in SAME}
    assert planned["bytes_back"] == found["bytes_before"] - found["bytes_after"]


def test_an_estimate_of_a_sampled_whole_is_close_to_the_exact_figures(log_dir, plain):
    sets = topic_sets("plain", plain.configs)
    estimated = plan(log_dir, *sets).partitions()["plain-0"]
    exact = plan(log_dir, "--exact", *sets).partitions()["plain-0"]
    assert (estimated["is_exact"], exact["is_exact"]) == (False, True)
    assert estimated["messages_written"] == pytest.approx(exact["messages_written"], rel=0.02)
    assert estimated["bytes_back"] == pytest.approx(exact["bytes_back"], rel=0.05)
    assert estimated["keys"] == 150


def test_the_plan_names_the_rule_that_blocks_and_when_it_stops(tmp_path):
    log_dir = make_log_dir(tmp_path / "logs", {"t-0": keyed_log(tmp_path / "t-0")})
    lag = ("--set=t:cleanup.policy=compact", f"--set=t:min.compaction.lag.ms={2 * DAY_MS}")
    blocked = plan(log_dir, *lag).partitions()["t-0"]
    assert (blocked["status"], blocked["reason_code"]) == ("blocked", "min-compaction-lag")
    until_ms = NOW_MS - DAY_MS + 19 + 2 * DAY_MS
    assert blocked["unblocks_at_ms"] == until_ms
    assert plan(log_dir, *lag, now_ms=until_ms - 1).partitions()["t-0"]["status"] == "blocked"
    assert plan(log_dir, *lag, now_ms=until_ms).partitions()["t-0"]["status"] == "cleanable"


def test_cm_03_a_ratio_at_the_minimum_blocks_and_force_shows_what_would_be(tmp_path):
    log_dir = make_log_dir(tmp_path / "logs", {"t-0": keyed_log(tmp_path / "t-0")}, dirty={"t-0": 20})
    ratio = ("--set=t:cleanup.policy=compact", "--set=t:min.cleanable.dirty.ratio=0.5")
    blocked = plan(log_dir, *ratio).partitions()["t-0"]
    assert (blocked["reason_code"], blocked["bytes_back"]) == ("dirty-ratio", 0)
    assert blocked["dirty_ratio"] == 0.5
    assert plan(log_dir, *ratio, "--force").partitions()["t-0"]["bytes_back"] > 0


def test_cm_12_the_maximum_lag_unblocks_by_time(tmp_path):
    log_dir = make_log_dir(tmp_path / "logs", {"t-0": keyed_log(tmp_path / "t-0")}, dirty={"t-0": 20})
    options = (
        "--set=t:cleanup.policy=compact",
        "--set=t:min.cleanable.dirty.ratio=0.9",
        f"--set=t:max.compaction.lag.ms={2 * DAY_MS}",
    )
    blocked = plan(log_dir, *options).partitions()["t-0"]
    first_ms = NOW_MS - DAY_MS + 20
    assert (blocked["reason_code"], blocked["unblocks_at_ms"]) == ("dirty-ratio", first_ms + 2 * DAY_MS + 1)


def test_tombstones_and_their_delete_time_are_shown(tmp_path):
    path = keyed_log(tmp_path / "t-0", batches=4, keys=4, tombstones=True)
    log_dir = make_log_dir(tmp_path / "logs", {"t-0": path})
    options = ("--set=t:cleanup.policy=compact", "--set=t:delete.retention.ms=60000")
    for exact in ((), ("--exact",)):
        found = plan(log_dir, *options, *exact).partitions()["t-0"]
        assert found["tombstones_waiting"] == 4
        assert (found["first_delete_horizon_ms"], found["last_delete_horizon_ms"]) == (NOW_MS + 60_000,) * 2
    sediment("compact", log_dir, "--now-ms", NOW_MS, *options)
    waiting = plan(log_dir, *options, now_ms=NOW_MS + 5).partitions()["t-0"]
    assert (waiting["reason_code"], waiting["tombstones_waiting"]) == ("nothing-dirty", 4)
    assert waiting["first_delete_horizon_ms"] == NOW_MS + 60_000
    assert plan(log_dir, *options, now_ms=NOW_MS + 60_000).partitions()["t-0"]["tombstones_waiting"] == 0


def test_dates_in_microseconds_and_seconds_are_explained(tmp_path):
    for name, timestamp in {"micros": NOW_MS * 1000, "seconds": NOW_MS // 1000}.items():
        write_segment(tmp_path / name, 0, [batch_bytes(0, timestamp=timestamp)])
        write_segment(tmp_path / name, 1, [batch_bytes(1)])
    log_dir = make_log_dir(tmp_path / "logs", {f"{name}-0": tmp_path / name for name in ("micros", "seconds")})
    outcome = plan(log_dir, "--broker-defaults")
    micros, seconds = outcome.partitions()["micros-0"], outcome.partitions()["seconds-0"]
    assert "segment 0 is dated in the year 55840 (microseconds?)" in micros["warnings"][0]
    assert (seconds["retention"]["segments"], "(seconds?)" in seconds["warnings"][0]) == ([0], True)
    shown = sediment("plan", log_dir, "--broker-defaults", "--now-ms", NOW_MS).stdout
    assert "retention deletes the next segment in the year 55840" in shown
    assert not re.search(r"\d{15} ms", shown)
    lag = ("--set=micros:cleanup.policy=compact", "--set=micros:min.compaction.lag.ms=5")
    lagging = plan(log_dir, *lag).partitions()["micros-0"]
    assert lagging["reason"].endswith("its newest record is dated in the year 55840 (microseconds?)")


def test_a_policy_that_eats_a_topic_known_by_its_name_is_a_warning(tmp_path):
    path = keyed_log(tmp_path / "t-0")
    log_dir = make_log_dir(tmp_path / "logs", {"_schemas-0": path, "connect-offsets-0": path, "orders-0": path})
    unstated = plan(log_dir).partitions()
    assert all(row["warnings"] == [] for row in unstated.values())
    stated = plan(log_dir, "--broker-defaults", "--set=connect-offsets:cleanup.policy=compact").partitions()
    assert [name for name, row in stated.items() if row["warnings"]] == ["_schemas-0"]
    assert "set cleanup.policy=compact" in stated["_schemas-0"]["warnings"][0]


def test_cp_45_what_retention_deletes_is_told_beside_compaction(tmp_path):
    path = keyed_log(tmp_path / "t-0")
    log_dir = make_log_dir(tmp_path / "logs", {"t-0": path, "d-0": path})
    options = (
        *("--set=t:cleanup.policy=compact,delete", "--set=t:retention.ms=1000"),
        *("--set=d:cleanup.policy=delete", "--set=d:retention.ms=1000"),
    )
    partitions = plan(log_dir, *options).partitions()
    assert (partitions["t-0"]["status"], partitions["d-0"]["reason_code"]) == ("cleanable", "not-compacted")
    for partition in partitions.values():
        assert partition["retention"]["segments"] == [0, 20]
        assert partition["retention"]["log_start_offset"] == 40
    later = plan(log_dir, "--broker-defaults", "--set=d:retention.ms=172800000").partitions()["d-0"]["retention"]
    assert (later["segments"], later["next_at_ms"]) == ([], NOW_MS - DAY_MS + 19 + 2 * DAY_MS + 1)


def test_the_retention_shown_is_the_retention_that_expire_applies(tmp_path):
    path = keyed_log(tmp_path / "t-0")
    log_dir = make_log_dir(tmp_path / "logs", {"d-0": path, "u-0": path}, dirty={"u-0": 5})
    write_checkpoint(log_dir / "replication-offset-checkpoint", {"d-0": 25, "u-0": 40})
    options = ("--broker-defaults", "--set=retention.ms=1000")
    planned = {name: p["retention"] for name, p in plan(log_dir, *options).partitions().items()}
    done = sediment("expire", log_dir, "--json", "--now-ms", NOW_MS, *options).partitions()
    for name in planned:
        assert planned[name]["segments"] == [gone["base_offset"] for gone in done[name]["deleted_segments"]]
    assert planned["d-0"]["segments"] == [0]
    assert planned["d-0"]["log_start_offset"] == done["d-0"]["log_start_offset"] == 20
    assert planned["u-0"]["reason_code"] == done["u-0"]["reason_code"] == "policy-unknown"


def test_a_corrupt_partition_is_reported_as_by_compact_and_not_marked(tmp_path, plain):
    log_dir = make_log_dir(tmp_path / "logs", {"plain-0": plain.before, "plain-1": plain.before})
    segment = log_dir / "plain-1" / f"{448:020d}.log"
    content = bytearray(segment.read_bytes())
    content[5000] ^= 1
    segment.write_bytes(bytes(content))
    before = tree(log_dir)
    outcome = plan(log_dir, "--exact", *topic_sets("plain", plain.configs))
    assert outcome.status == 1
    bad = outcome.partitions()["plain-1"]
    assert (bad["status"], bad["reason_code"]) == ("quarantined", "corrupt-batch")
    assert outcome.partitions()["plain-0"]["status"] == "cleanable"
    assert tree(log_dir) == before


def test_a_quarantined_partition_is_shown_with_its_reason(tmp_path, plain):
    log_dir = make_log_dir(tmp_path / "logs", {"plain-0": plain.before})
    segment = log_dir / "plain-0" / f"{448:020d}.log"
    content = bytearray(segment.read_bytes())
    content[5000] ^= 1
    segment.write_bytes(bytes(content))
    sets = topic_sets("plain", plain.configs)
    assert sediment("compact", log_dir, "--now-ms", NOW_MS, *sets).status == 1
    outcome = plan(log_dir, *sets, now_ms=NOW_MS + 1)
    assert outcome.status == 1
    assert outcome.partitions()["plain-0"]["status"] == "quarantined"
    assert "--retry-quarantined" in outcome.partitions()["plain-0"]["reason"]


def test_an_interrupted_swap_is_reported_and_left_alone(log_dir, plain):
    (log_dir / "plain-0" / f"{0:020d}.log.swap").write_bytes(b"")
    before = tree(log_dir)
    found = plan(log_dir, *topic_sets("plain", plain.configs)).partitions()["plain-0"]
    assert (found["status"], found["reason_code"]) == ("blocked", "interrupted")
    assert tree(log_dir) == before


def test_files_whose_deletion_began_are_no_hindrance(log_dir, plain):
    sets = topic_sets("plain", plain.configs)
    without = plan(log_dir, "--exact", *sets).partitions()["plain-0"]
    (log_dir / "plain-0" / f"{0:020d}.log.deleted").write_bytes(b"gone")
    assert plan(log_dir, "--exact", *sets).partitions()["plain-0"] == without
    assert without["status"] == "cleanable"


def test_an_unclean_stop_and_an_unknown_high_watermark_are_reported(tmp_path, plain):
    log_dir = make_log_dir(tmp_path / "logs", {"plain-0": plain.before, "plain-1": plain.before}, clean=False)
    write_checkpoint(log_dir / "recovery-point-offset-checkpoint", {"plain-0": 0, "plain-1": 2000})
    write_checkpoint(log_dir / "replication-offset-checkpoint", {"plain-0": 2000})
    partitions = plan(log_dir, *topic_sets("plain", plain.configs)).partitions()
    assert partitions["plain-0"]["reason_code"] == "unclean"
    assert partitions["plain-1"]["reason_code"] == "no-high-watermark"


def test_the_table_explains_each_partition(log_dir, plain):
    outcome = sediment("plan", log_dir, "--now-ms", NOW_MS, *topic_sets("plain", plain.configs))
    assert outcome.status == 0, outcome.stderr
    for word in ("plain-0", "yes", "≈", "can be cleaned", "strategy whole", "would free"):
        assert word in outcome.stdout, outcome.stdout


def test_the_json_has_one_object_with_the_clock_of_the_rules(log_dir, plain):
    report = plan(log_dir, *topic_sets("plain", plain.configs)).report
    assert (report["schema"], report["command"], report["now_ms"]) == (1, "plan", NOW_MS)


def test_a_partition_that_went_away_fails_alone(tmp_path, plain):
    log_dir = make_log_dir(tmp_path / "logs", {"plain-0": plain.before, "plain-1": plain.before})
    shutil.rmtree(log_dir / "plain-1")
    (log_dir / "plain-1").mkdir()
    partitions = plan(log_dir, *topic_sets("plain", plain.configs)).partitions()
    assert partitions["plain-1"]["reason_code"] == "nothing-dirty"
    assert partitions["plain-0"]["status"] == "cleanable"


def test_a_fault_in_one_partition_fails_it_alone_without_spark_too(tmp_path, plain, monkeypatch):
    log_dir = make_log_dir(tmp_path / "logs", {"plain-0": plain.before, "plain-1": plain.before})
    open_and_select = task.open_and_select

    def faulty(cleaning, fs):
        if cleaning.listing.partition.partition == 1:
            raise ZeroDivisionError("a fault")
        return open_and_select(cleaning, fs)

    monkeypatch.setattr(task, "open_and_select", faulty)
    monkeypatch.setattr(driver, "spark_context", lambda *_: pytest.fail("a small plan started Spark"))
    outcome = plan(log_dir, *topic_sets("plain", plain.configs))
    assert outcome.status == 1
    partitions = outcome.partitions()
    assert partitions["plain-0"]["status"] == "cleanable"
    assert (partitions["plain-1"]["status"], partitions["plain-1"]["reason_code"]) == ("failed", "task-lost")
    assert partitions["plain-1"]["reason"] == "the task failed: ZeroDivisionError: a fault"


MIB = 1 << 20


def planning_tasks(count, *, rolled, active, encoding=None, has_snapshot=True):
    """Return tasks for partitions with a rolled and an active segment of so many MiB."""
    segments = (SegmentRef(0, rolled * MIB, 0, 0, None, 0), SegmentRef(9, active * MIB, 0, 0, None, 0))
    listing = LogListing(TopicPartition("t", 0), Path("t-0"), segments, (9,) if has_snapshot else (), ())
    own = CompactOptions(force=True, dry_run=True, from_start=False)
    cleaning = CleaningTask(listing, PartitionCheckpoints(), CompactionConfig(), own, NOW_MS, "run")
    return [task.PlanningTask(cleaning, RetentionConfig(), False, None, None, None, None, encoding)] * count


@pytest.mark.parametrize(
    ("count", "sizes", "sampled_mib"),
    [
        (1, {"rolled": 900, "active": 100}, 32),
        (40, {"rolled": 700, "active": 300}, 6.4),
        (300, {"rolled": 80, "active": 20}, 1),
        (1000, {"rolled": 0.1, "active": 0}, 0.1),
        (30, {"rolled": 700, "active": 300, "encoding": Encoding(layout.CODEC_ZSTD)}, 1),
        (40, {"rolled": 700, "active": 300, "has_snapshot": False}, None),
        (2000, {"rolled": 80, "active": 20}, None),
        (200, {"rolled": 700, "active": 0, "encoding": Encoding(layout.CODEC_ZSTD)}, None),
    ],
)
def test_tens_of_gigabytes_are_planned_without_spark_from_smaller_samples(count, sizes, sampled_mib, monkeypatch):
    monkeypatch.setattr(driver, "available_slots", lambda: 2)
    quick = driver._quick(planning_tasks(count, **sizes))
    assert (None if quick is None else quick[0].weight() // (MIB // 10) / 10) == sampled_mib
    monkeypatch.setattr(driver, "available_slots", lambda: 1)
    assert driver._quick(planning_tasks(count, **sizes)) is not None
    monkeypatch.setattr(driver, "available_slots", lambda: 2)
    monkeypatch.setattr(driver, "has_spark", lambda: False)
    assert driver._quick(planning_tasks(count, **sizes)) is not None


def test_the_size_after_a_reencoding_is_estimated_and_nothing_changes(log_dir, plain):
    before = tree(log_dir)
    encoding = ("--codec=zstd", "--batch-bytes=64k")
    report = plan(log_dir, *encoding, *topic_sets("plain", plain.configs)).report
    (row,) = report["partitions"]
    assert (report["codec"], report["level"], report["batch_bytes"]) == ("zstd", None, 65536)
    assert row["reencode_sampled_bytes"] == row["bytes_before"]
    assert row["reencoded_bytes"] < row["bytes_before"] / 2
    assert tree(log_dir) == before
    exact = sediment("reencode", log_dir, "--json", "--dry-run", *encoding).report["partitions"][0]
    assert abs(row["reencoded_bytes"] - exact["bytes_after"]) < exact["bytes_before"] / 10


def test_a_level_without_a_codec_is_refused_before_anything_is_read(log_dir):
    outcome = sediment("plan", log_dir, "--level=3", "--broker-defaults")
    assert outcome.status == 2
    assert "give" in outcome.stderr

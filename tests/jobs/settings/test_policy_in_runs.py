"""Rules for choosing logs and limiting a run, in runs over complete log directories (kafka-log 02 §1, §2, §9; 06)."""

from __future__ import annotations

import pytest

from tests.corpus import load_case
from tests.jobs.log_dirs import make_log_dir, read_checkpoint, sediment, topic_sets, tree, write_checkpoint
from tests.segments import NOW_MS, batch_bytes, write_segment

CLEANER = "cleaner-offset-checkpoint"
LOG_START = "log-start-offset-checkpoint"
COMPACT = "--set=t:cleanup.policy=compact"


@pytest.fixture
def plain(tmp_path):
    return load_case("plain", tmp_path / "corpus")


def small_log(path, *, bases=(0, 10, 20), end=20):
    """Segments of ten one-record batches of two keys each, the last one empty."""
    for base in bases[:-1]:
        write_segment(path, base, [batch_bytes(base + n, "ab"[n % 2]) for n in range(10)])
    write_segment(path, end)
    return path


def compact(*arguments, now_ms=NOW_MS):
    return sediment("compact", *arguments, "--json", "--now-ms", now_ms)


def test_cm_04_a_checkpoint_beyond_the_log_end_is_repaired_even_where_nothing_is_cleaned(tmp_path):
    log_dir = make_log_dir(tmp_path / "logs", {"t-0": small_log(tmp_path / "t-0")}, dirty={"t-0": 200, "x-1": 5})
    outcome = compact(log_dir, COMPACT, "--set=t:min.cleanable.dirty.ratio=1")
    assert outcome.partitions()["t-0"]["reason_code"] == "dirty-ratio"
    assert read_checkpoint(log_dir / CLEANER) == {"t-0": 0, "x-1": 5}


def test_cm_05_a_checkpoint_below_the_log_start_is_raised_even_where_nothing_is_cleaned(tmp_path):
    log_dir = make_log_dir(tmp_path / "logs", {"t-0": small_log(tmp_path / "t-0")}, dirty={"t-0": 0})
    write_checkpoint(log_dir / LOG_START, {"t-0": 3})
    outcome = compact(log_dir, COMPACT, "--set=t:min.cleanable.dirty.ratio=1")
    assert outcome.partitions()["t-0"]["first_dirty_offset"] == 3
    assert read_checkpoint(log_dir / CLEANER) == {"t-0": 3}


def test_cm_06_the_checkpoint_of_an_emptied_log_follows_its_start(tmp_path):
    path = tmp_path / "t-0"
    write_segment(path, 20)
    log_dir = make_log_dir(tmp_path / "logs", {"t-0": path}, dirty={"t-0": 15})
    outcome = compact(log_dir, COMPACT)
    assert outcome.partitions()["t-0"]["reason_code"] == "nothing-dirty"
    assert read_checkpoint(log_dir / CLEANER) == {"t-0": 20}


def test_a_dry_run_and_a_plan_repair_no_checkpoint(tmp_path):
    log_dir = make_log_dir(tmp_path / "logs", {"t-0": small_log(tmp_path / "t-0")}, dirty={"t-0": 200})
    before = tree(log_dir)
    compact(log_dir, COMPACT, "--dry-run")
    sediment("plan", log_dir, COMPACT, "--exact")
    assert tree(log_dir) == before


def test_a_cleaner_checkpoint_that_cannot_be_read_costs_a_cleaning_from_the_start(tmp_path):
    log_dir = make_log_dir(tmp_path / "logs", {"t-0": small_log(tmp_path / "t-0")})
    (log_dir / CLEANER).write_text("what is this\n")
    partition = compact(log_dir, COMPACT).partitions()["t-0"]
    assert (partition["status"], partition["first_dirty_offset"]) == ("compacted", 0)
    assert read_checkpoint(log_dir / CLEANER) == {"t-0": 20}


def test_cm_08_the_high_watermark_bounds_and_is_rounded_down_to_a_segment(tmp_path):
    log_dir = make_log_dir(tmp_path / "logs", {"t-0": small_log(tmp_path / "t-0")})
    write_checkpoint(log_dir / "replication-offset-checkpoint", {"t-0": 13})
    partition = compact(log_dir, COMPACT).partitions()["t-0"]
    assert (partition["first_uncleanable_offset"], partition["next_dirty_offset"]) == (10, 10)


def test_cm_10_cm_12_minimum_and_maximum_lag_hold_in_a_run(tmp_path):
    log_dir = make_log_dir(tmp_path / "logs", {"t-0": small_log(tmp_path / "t-0")}, dirty={"t-0": 10})
    lags = (COMPACT, "--set=t:min.cleanable.dirty.ratio=1", "--set=t:max.compaction.lag.ms=5000")
    assert compact(log_dir, *lags, now_ms=NOW_MS + 5000).partitions()["t-0"]["reason_code"] == "dirty-ratio"
    young = (*lags, "--set=t:min.compaction.lag.ms=5000")
    assert compact(log_dir, *young, now_ms=NOW_MS + 4999).partitions()["t-0"]["reason_code"] == "min-compaction-lag"
    assert compact(log_dir, *lags, now_ms=NOW_MS + 5001).partitions()["t-0"]["status"] == "compacted"


def test_cm_11_an_open_transaction_bounds_a_run(tmp_path):
    path = tmp_path / "t-0"
    write_segment(path, 0, [batch_bytes(n, "ab"[n % 2]) for n in range(10)])
    opened = batch_bytes(12, "a", producer_id=5, transactional=True)
    write_segment(path, 10, [batch_bytes(10, "a"), batch_bytes(11, "b"), opened])
    write_segment(path, 13)
    log_dir = make_log_dir(tmp_path / "logs", {"t-0": path})
    partition = compact(log_dir, COMPACT).partitions()["t-0"]
    assert (partition["first_uncleanable_offset"], partition["messages_written"]) == (10, 2)


def test_cm_22_a_partition_that_cannot_be_judged_fails_alone(tmp_path):
    path = small_log(tmp_path / "t-0")
    log_dir = make_log_dir(tmp_path / "logs", {"t-0": path, "t-1": path})
    (log_dir / "t-1" / f"{0:020d}.txnindex").write_bytes(b"\x63" + bytes(33))
    outcome = compact(log_dir, COMPACT)
    partitions = outcome.partitions()
    assert outcome.status == 1
    assert (partitions["t-0"]["status"], partitions["t-1"]["status"]) == ("compacted", "failed")
    assert "t-1" in partitions["t-1"]["reason"]


def test_directories_on_their_way_out_or_in_are_left_alone(tmp_path):
    path = small_log(tmp_path / "t-0")
    aside = [f"t-1.{'0' * 32}-{state}" for state in ("delete", "stray", "future")]
    log_dir = make_log_dir(tmp_path / "logs", dict.fromkeys(["t-0", *aside], path))
    (log_dir / "remote-log-index-cache").mkdir()
    before = {name: tree(log_dir / name) for name in aside}
    outcome = compact(log_dir, COMPACT, "--force")
    assert list(outcome.partitions()) == ["t-0"]
    assert {name: tree(log_dir / name) for name in aside} == before


def test_internal_topics_are_compacted_without_any_setting(tmp_path):
    path = small_log(tmp_path / "t-0")
    names = ["__consumer_offsets-3", "__transaction_state-0", "__share_group_state-0"]
    log_dir = make_log_dir(tmp_path / "logs", dict.fromkeys(names, path))
    partitions = compact(log_dir).partitions()
    assert [partitions[name]["status"] for name in names] == ["compacted", "compacted", "skipped"]


def test_cp_45_compact_and_delete_together_are_compacted_and_expired_by_their_own_commands(tmp_path):
    log_dir = make_log_dir(tmp_path / "logs", {"t-0": small_log(tmp_path / "t-0")})
    both = ("--set=t:cleanup.policy=compact,delete", "--set=t:retention.ms=1000")
    partition = compact(log_dir, *both, now_ms=NOW_MS + 2000).partitions()["t-0"]
    assert (partition["status"], partition["messages_written"]) == ("compacted", 2)
    outcome = sediment("expire", log_dir, "--json", "--now-ms", NOW_MS + 2000, *both)
    assert outcome.status == 0, outcome.stderr
    assert outcome.partitions()["t-0"]["log_start_offset"] == 20


def test_several_log_directories_keep_checkpoints_and_marks_of_their_own(tmp_path, plain):
    first = make_log_dir(tmp_path / "a", {"plain-0": plain.before})
    second = make_log_dir(tmp_path / "b", {"plain-1": plain.before})
    segment = second / "plain-1" / f"{448:020d}.log"
    content = bytearray(segment.read_bytes())
    content[5000] ^= 1
    segment.write_bytes(bytes(content))
    outcome = compact(first, second, *topic_sets("plain", plain.configs))
    assert {name: p["status"] for name, p in outcome.partitions().items()} == {
        "plain-0": "compacted",
        "plain-1": "quarantined",
    }
    assert read_checkpoint(first / CLEANER) == {"plain-0": 2000}
    assert not (second / CLEANER).exists()
    assert not (first / ".sediment-uncleanable").exists()
    assert (second / ".sediment-uncleanable").exists()


def test_cm_01_the_filthiest_log_of_all_directories_comes_first(tmp_path):
    clean, filthy = small_log(tmp_path / "clean"), small_log(tmp_path / "filthy")
    first = make_log_dir(tmp_path / "a", {"t-0": clean}, dirty={"t-0": 10})
    second = make_log_dir(tmp_path / "b", {"t-1": filthy})
    bytes_of_one = sum(path.stat().st_size for path in clean.glob("*.log"))
    outcome = compact(first, second, COMPACT, "--force", "--max-bytes", bytes_of_one)
    partitions = outcome.partitions()
    assert (partitions["t-0"]["reason_code"], partitions["t-1"]["status"]) == ("max-bytes", "compacted")


@pytest.mark.parametrize("strategy", ["whole", "split"])
@pytest.mark.parametrize("retention_ms", [2**63 - 1 - NOW_MS, 2**63 - 1 - NOW_MS + 1, 2**63 - 1])
def test_the_largest_settings_and_timestamps_end_no_task(tmp_path, strategy, retention_ms):
    path = tmp_path / "t-0"
    tombstones = [batch_bytes(n, "abc"[n], value=None, timestamp=(NOW_MS, 2**63 - 1, -1)[n]) for n in range(3)]
    write_segment(path, 0, [*tombstones, batch_bytes(3, "z"), batch_bytes(4, "z")])
    write_segment(path, 5, [batch_bytes(5, "y", timestamp=2**63 - 1)])
    write_segment(path, 6)
    log_dir = make_log_dir(tmp_path / "logs", {"t-0": path})
    largest = ("retention.ms", "max.compaction.lag.ms", "segment.ms", "segment.jitter.ms", "file.delete.delay.ms")
    options = (
        "--set=t:cleanup.policy=compact,delete",
        f"--set=t:delete.retention.ms={retention_ms}",
        *(f"--set=t:{key}={2**63 - 1}" for key in largest),
    )
    for command, *more in (("plan",), ("plan", "--exact"), ("expire", "--dry-run")):
        found = sediment(command, log_dir, "--json", "--now-ms", NOW_MS, *more, *options).partitions()["t-0"]
        assert found["status"] in ("cleanable", "nothing-to-delete", "skipped"), found
    report, metrics = tmp_path / "report.html", tmp_path / "metrics.prom"
    outputs = ("--report", report, "--metrics", metrics)
    found = compact(log_dir, f"--strategy={strategy}", *outputs, *options).partitions()["t-0"]
    assert (found["status"], found["reason_code"], found["messages_written"]) == ("compacted", None, 5)
    horizon_ms = 2**63 - 1 if retention_ms == 2**63 - 1 - NOW_MS else None
    assert (found["tombstones_waiting"], found["first_delete_horizon_ms"]) == (3, horizon_ms)
    assert report.stat().st_size > 0
    assert metrics.stat().st_size > 0

"""Records that are gone, or that a start cuts off: `recover`, `plan` and `doctor` say so, and a cut can be undone."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest

from sediment.segment_io.fs import Fs
from tests.jobs.log_dirs import Outcome, sediment, tree, write_checkpoint
from tests.segments import NOW_MS, batch_bytes, write_segment
from tests.twin.batches import Record, encode_batch

DELETES = "--set=t:cleanup.policy=delete"
HIGH_WATERMARKS = "replication-offset-checkpoint"
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
BASES = (0, 3, 6)
END = 9


def log_name(base: int) -> str:
    return f"{base:020d}.log"


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """Three segments of three batches, after a crash that may have torn everything from the second segment on."""
    path = tmp_path / "logs"
    for base in BASES:
        batches = [batch_bytes(offset, timestamp=NOW_MS + offset) for offset in range(base, base + 3)]
        write_segment(path / "t-0", base, batches, index_interval_bytes=0)
    write_checkpoint(path / RECOVERY_POINTS, {"t-0": 3})
    write_checkpoint(path / HIGH_WATERMARKS, {"t-0": 6})
    return path


def run(log_dir: Path, *arguments: object) -> Outcome:
    return sediment("recover", log_dir, "--json", "--now-ms", NOW_MS, *arguments)


def row(outcome: Outcome) -> dict[str, Any]:
    return outcome.partitions()["t-0"]


def ranges(outcome: Outcome) -> list[tuple[str, int, int]]:
    return [(each["kind"], each["first_offset"], each["last_offset"]) for each in row(outcome)["missing_records"]]


def truncate(log: Path, by: int) -> None:
    log.write_bytes(log.read_bytes()[:-by])


def damage(log: Path, batch: int) -> None:
    """Flip a byte in a batch of a segment with three batches of equal size."""
    data = bytearray(log.read_bytes())
    data[batch * len(data) // 3 + 70] ^= 1
    log.write_bytes(data)


def records_check(log_dir: Path, *arguments: object) -> str:
    checks = sediment("doctor", "--json", log_dir, *arguments).report["checks"]
    return next(check["status"] for check in checks if check["name"] == "records")


# ------------------------------------------------------------------------------------------------------------- holes
def lose_segment(log_dir: Path, base: int, *, with_indexes: bool = True) -> None:
    for path in (log_dir / "t-0").glob(f"{base:020d}.*"):
        if with_indexes or path.suffix == ".log":
            path.unlink()


def test_a_lost_segment_of_a_delete_topic_is_named_and_nothing_is_changed(log_dir: Path) -> None:
    assert run(log_dir, DELETES).status == 0
    assert records_check(log_dir, DELETES) == "ok"
    lose_segment(log_dir, 3)
    before = tree(log_dir)
    tried, done = run(log_dir, DELETES, "--dry-run"), run(log_dir, DELETES)
    for outcome in (tried, done):
        assert (outcome.status, row(outcome)["status"], row(outcome)["reason_code"]) == (1, "failed", "records-missing")
        assert ranges(outcome) == [("hole", 3, 5)]
        assert "offsets 3 to 5 (3 offsets) are missing between the segments 0 and 6" in row(outcome)["reason"]
    assert tree(log_dir) == before
    (warning,) = sediment("plan", log_dir, DELETES, "--json", "--now-ms", NOW_MS).partitions()["t-0"]["warnings"]
    assert warning == row(done)["reason"]
    assert records_check(log_dir, DELETES) == "failed"


@pytest.mark.parametrize(
    ("settings", "warnings", "status"),
    [
        ("--set=t:cleanup.policy=compact", 0, "ok"),
        ("--set=t:retention.ms=-1", 1, "warning"),
    ],
)
def test_a_hole_is_no_loss_in_a_compacted_log_and_only_a_warning_if_the_policy_is_not_known(
    log_dir: Path, settings: str, warnings: int, status: str
) -> None:
    lose_segment(log_dir, 3)
    done = run(log_dir, settings)
    assert (done.status, ranges(done), len(row(done)["warnings"])) == (0, [], warnings)
    assert records_check(log_dir, settings) == status


def test_an_index_without_its_log_shows_the_loss_whatever_the_policy_is(log_dir: Path) -> None:
    lose_segment(log_dir, 3, with_indexes=False)
    assert ranges(run(log_dir, "--dry-run")) == [("hole", 3, 5)]
    assert "00000000000000000003.index is there without its log" in row(run(log_dir))["reason"]


def test_a_hole_that_an_erasure_left_is_only_a_warning(log_dir: Path) -> None:
    write_segment(log_dir / "t-0", 3, [encode_batch([Record(4, 0, None, b"v")], base_offset=3, last_offset=4)])
    done = run(log_dir, DELETES)
    assert (done.status, ranges(done)) == (0, [])
    assert "unless the log was compacted earlier, or records were erased" in row(done)["warnings"][0]


# ----------------------------------------------------------------------------------------------------- the end of a log
def test_a_torn_end_above_the_high_watermark_is_cut_without_ado(log_dir: Path) -> None:
    truncate(log_dir / "t-0" / log_name(6), 10)
    done = run(log_dir)
    assert (done.status, ranges(done), row(done)["log_end_offset"]) == (0, [], 8)
    assert done.report["originals"] is None and not log_dir.with_name("logs-originals").exists()


@pytest.mark.parametrize("is_clean", [False, True])
def test_offsets_below_the_high_watermark_that_are_gone_are_named(log_dir: Path, is_clean: bool) -> None:
    write_checkpoint(log_dir / HIGH_WATERMARKS, {"t-0": END})
    if is_clean:
        (log_dir / ".kafka_cleanshutdown").touch()
    truncate(log_dir / "t-0" / log_name(6), 10)
    before = tree(log_dir)
    tried = run(log_dir, "--dry-run")
    assert (tried.status, ranges(tried), tree(log_dir)) == (1, [("log-end", 8, 8)], before)
    assert records_check(log_dir) == "failed"
    done = run(log_dir)
    assert (done.status, ranges(done)) == (1, [("log-end", 8, 8)])
    # The directory can be used: the loss is said, and nothing else is wrong with it.
    assert done.report["clean_directories"] == [str(log_dir)]


def test_what_a_cut_loses_is_said_and_kept_before_it_is_cut(log_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    damage(log_dir / "t-0" / log_name(3), 1)
    before = {name: data for name, data in tree(log_dir).items() if name.endswith(".log")}
    with caplog.at_level(logging.WARNING):
        done = run(log_dir)
    assert (done.status, ranges(done), row(done)["log_end_offset"]) == (1, [("log-end", 4, 8)], 4)
    assert "with 1 readable batch after it and 1 later segment, and the broker had written" in row(done)["reason"]
    said, kept = (record.getMessage() for record in caplog.records[:2])
    assert "offsets 4 to 8 (5 offsets) are missing" in said and "logs-originals; `sediment restore`" in kept
    originals = log_dir.with_name("logs-originals")
    assert done.report["catalogue"] == str(originals / f"catalogue-{done.report['run_id']}.json")
    undone = sediment("restore", log_dir, f"--from={originals}", f"--run={done.report['run_id']}", "--yes")
    assert undone.status == 0
    assert {name: data for name, data in tree(log_dir).items() if name.endswith(".log")} == before


@pytest.mark.parametrize("failing", [RECOVERY_POINTS, ".kafka_cleanshutdown"])
@pytest.mark.parametrize("keeps", [False, True])
def test_a_run_that_fails_after_its_cuts_can_be_undone(
    log_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keeps: bool, failing: str
) -> None:
    replace_file = Fs.replace_file

    def fails(self: Fs, path: Path, *given: Any, **named: Any) -> None:
        if path.name == failing:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        replace_file(self, path, *given, **named)

    damage(log_dir / "t-0" / log_name(3), 1)
    before = {name: data for name, data in tree(log_dir).items() if name.endswith(".log")}
    originals = tmp_path / "kept" if keeps else log_dir.with_name("logs-originals")
    with monkeypatch.context() as patch:
        patch.setattr(Fs, "replace_file", fails)
        failed = run(log_dir, *([f"--keep-originals={originals}"] if keeps else []))
    assert (failed.status, failed.stdout) == (1, "") and "Input/output error" in failed.stderr
    assert {name: data for name, data in tree(log_dir).items() if name.endswith(".log")} != before
    (found,) = sediment("originals", originals, "--json").report["partitions"]
    assert found["status"] == "restorable"
    undone = sediment("restore", log_dir, f"--from={originals}", f"--run={found['run']}", "--yes")
    assert undone.status == 0, undone.stderr
    assert {name: data for name, data in tree(log_dir).items() if name.endswith(".log")} == before


def test_several_partitions_share_a_catalogue(log_dir: Path) -> None:
    for base in BASES:
        batches = [batch_bytes(offset, timestamp=NOW_MS + offset) for offset in range(base, base + 3)]
        write_segment(log_dir / "u-0", base, batches, index_interval_bytes=0)
    for name in ("t-0", "u-0"):
        damage(log_dir / name / log_name(6), 0)
    done = run(log_dir, "--threads", 2)
    originals = log_dir.with_name("logs-originals")
    found = sediment("originals", originals, "--json").report["partitions"]
    assert {(each["partition"], each["status"]) for each in found} == {("t-0", "restorable"), ("u-0", "restorable")}
    assert {each["run"] for each in found} == {done.report["run_id"]}


def test_a_log_that_cannot_be_kept_is_not_cut_unless_that_is_asked_for(log_dir: Path) -> None:
    damage(log_dir / "t-0" / log_name(3), 0)
    log_dir.with_name("logs-originals").write_text("not a directory")
    logs = {name: data for name, data in tree(log_dir).items() if name.endswith(".log")}
    refused = run(log_dir)
    assert (refused.status, row(refused)["reason_code"]) == (1, "records-would-be-lost")
    assert "--without-undo" in row(refused)["reason"]
    assert {name: data for name, data in tree(log_dir).items() if name.endswith(".log")} == logs
    done = run(log_dir, "--without-undo")
    assert (done.status, ranges(done)) == (1, [("log-end", 3, 8)])


def test_a_full_disk_cuts_nothing_and_names_what_needs_no_space(log_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Fs, source: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))

    damage(log_dir / "t-0" / log_name(3), 0)
    before = {name: data for name, data in tree(log_dir).items() if name.endswith(".log")}
    with monkeypatch.context() as patch:
        patch.setattr(Fs, "link", full)
        refused = run(log_dir)
    assert (refused.status, row(refused)["reason_code"]) == (1, "records-would-be-lost")
    assert "the disk is full" in row(refused)["reason"] and "--without-undo" in row(refused)["reason"]
    assert {name: data for name, data in tree(log_dir).items() if name.endswith(".log")} == before


@pytest.mark.parametrize("can_keep", [True, False])
def test_a_copy_without_checkpoints_says_that_its_last_batch_is_cut_and_keeps_it_if_it_can(
    log_dir: Path, can_keep: bool
) -> None:
    for name in (RECOVERY_POINTS, HIGH_WATERMARKS):
        (log_dir / name).unlink()
    originals = log_dir.with_name("logs-originals")
    if not can_keep:
        originals.write_text("not a directory")
    log = log_dir / "t-0" / log_name(6)
    damage(log, 2)
    content = log.read_bytes()
    tried, done = run(log_dir, "--dry-run"), run(log_dir)
    for outcome in (tried, done):
        (warning,) = row(outcome)["warnings"]
        assert (outcome.status, row(outcome)["log_end_offset"]) == (0, 8)
        assert warning.startswith(f"a start cuts {log.name} off at offset 8 (") and "acknowledged" in warning
    assert len(log.read_bytes()) < len(content)
    assert done.report["originals"] == (str(originals) if can_keep else None)
    if can_keep:
        undone = sediment("restore", log_dir, f"--from={originals}", f"--run={done.report['run_id']}", "--yes")
        assert (undone.status, log.read_bytes()) == (0, content)


@pytest.mark.parametrize("links", ["folder", "segment"])
def test_a_linked_log_whose_files_cannot_be_kept_is_refused_before_its_first_change(
    log_dir: Path, tmp_path: Path, links: str
) -> None:
    damage(log_dir / "t-0" / log_name(6), 0)
    elsewhere = Path("/dev/shm")
    if links == "folder" and (not elsewhere.is_dir() or elsewhere.stat().st_dev == log_dir.stat().st_dev):
        pytest.skip("no second filesystem")
    with tempfile.TemporaryDirectory(dir=elsewhere if links == "folder" else tmp_path) as folder:
        linked = log_dir / "t-0" / ("" if links == "folder" else log_name(0))
        shutil.move(linked, Path(folder) / linked.name)
        linked.symlink_to(Path(folder) / linked.name)
        before = tree(log_dir / "t-0")
        refused = run(log_dir)
        assert row(refused)["reason_code"] == "records-would-be-lost" and "--without-undo" in row(refused)["reason"]
        assert tree(log_dir / "t-0") == before
        assert not log_dir.with_name("logs-originals").exists()
        assert row(run(log_dir, "--without-undo"))["log_end_offset"] == 6


def test_a_linked_log_says_once_what_is_cut_off_and_where_it_is_kept(
    log_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    damage(log_dir / "t-0" / log_name(6), 0)
    (tmp_path / "elsewhere").mkdir()
    shutil.move(log_dir / "t-0", tmp_path / "elsewhere")
    (log_dir / "t-0").symlink_to(tmp_path / "elsewhere" / "t-0")
    with caplog.at_level(logging.WARNING):
        assert row(run(log_dir))["log_end_offset"] == 6
    said = [record.getMessage() for record in caplog.records]
    assert any("the files before the cut are kept in" in text for text in said)
    assert len(said) == len(set(said))


@pytest.mark.parametrize("batch", [0, 2])
def test_the_target_of_a_linked_segment_is_never_cut(log_dir: Path, tmp_path: Path, batch: int) -> None:
    log, target = log_dir / "t-0" / log_name(6), tmp_path / "target"
    damage(log, batch)
    log.rename(target)
    log.symlink_to(target)
    content = target.read_bytes()
    refused = run(log_dir, f"--keep-originals={tmp_path / 'kept'}")
    assert row(refused)["status"] == "failed" and "a symbolic link cannot be kept" in row(refused)["reason"]
    assert log.is_symlink()
    if batch == 0:
        assert row(run(log_dir))["reason_code"] == "records-would-be-lost" and log.is_symlink()
    done = run(log_dir, "--without-undo")
    assert row(done)["log_end_offset"] == 6 + batch
    assert target.read_bytes() == content
    assert not log.is_symlink() and log.read_bytes() == content[: batch * len(content) // 3]


def test_what_a_load_repaired_before_it_failed_is_reported(log_dir: Path) -> None:
    damage(log_dir / "t-0" / log_name(3), 0)
    log_dir.with_name("logs-originals").write_text("not a directory")
    (log_dir / "t-0" / "leader-epoch-checkpoint.tmp").write_text("")
    refused = run(log_dir)
    assert row(refused)["reason_code"] == "records-would-be-lost"
    assert [each for each in row(refused)["repairs"] if "leader-epoch-checkpoint.tmp" in each]


def test_originals_that_the_caller_keeps_are_enough(log_dir: Path, tmp_path: Path) -> None:
    damage(log_dir / "t-0" / log_name(3), 0)
    done = run(log_dir, f"--keep-originals={tmp_path / 'kept'}")
    assert (done.status, done.report["originals"]) == (1, str(tmp_path / "kept"))
    assert not log_dir.with_name("logs-originals").exists()


def test_directories_that_share_a_place_share_its_catalogue(log_dir: Path, tmp_path: Path) -> None:
    other = tmp_path / "more"
    for base in BASES:
        write_segment(other / "u-0", base, [batch_bytes(offset) for offset in range(base, base + 3)])
    write_checkpoint(other / RECOVERY_POINTS, {"u-0": 3})
    damage(log_dir / "t-0" / log_name(3), 0)
    damage(other / "u-0" / log_name(3), 0)
    done = run(log_dir, other, "--keep-originals={log_dir}/../kept")
    assert done.status == 1, done.stderr
    found = sediment("originals", tmp_path / "kept", "--json").report["partitions"]
    assert {(each["partition"], each["status"]) for each in found} == {("t-0", "restorable"), ("u-0", "restorable")}


def test_a_segment_without_an_index_that_is_cut_leaves_a_hole_that_is_said(log_dir: Path) -> None:
    damage(log_dir / "t-0" / log_name(3), 2)
    (log_dir / "t-0" / "00000000000000000003.index").unlink()
    done = run(log_dir, "--set=t:cleanup.policy=compact")
    assert (done.status, ranges(done)) == (1, [("hole", 5, 5)])
    assert "because a start cuts segment 3 off at offset 5" in row(done)["reason"]


def test_two_segments_that_are_cut_are_kept_once_and_each_loss_is_said(
    log_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_checkpoint(log_dir / RECOVERY_POINTS, {"t-0": 0})
    for base in (0, 3):
        damage(log_dir / "t-0" / log_name(base), 1)
        (log_dir / "t-0" / f"{base:020d}.index").unlink()
    before = {name: data for name, data in tree(log_dir).items() if name.endswith(".log")}
    with caplog.at_level(logging.WARNING):
        done = run(log_dir)
    assert (done.status, ranges(done)) == (1, [("hole", 1, 2), ("hole", 4, 5)])
    said = [text for text in (record.getMessage() for record in caplog.records) if "are missing" in text]
    assert ["between the segments 0 and 3" in said[0], "between the segments 3 and 6" in said[1]] == [True, True]
    originals, run_id = log_dir.with_name("logs-originals"), done.report["run_id"]
    assert sediment("restore", log_dir, f"--from={originals}", f"--run={run_id}", "--yes").status == 0
    assert {name: data for name, data in tree(log_dir).items() if name.endswith(".log")} == before


def test_a_future_replica_is_a_copy_so_the_checkpoints_say_nothing_about_it(log_dir: Path) -> None:
    future = log_dir / f"t-0.{'0' * 32}-future"
    write_segment(future, 0, [batch_bytes(0)])
    assert run(log_dir).partitions()[future.name]["missing_records"] == []


# ------------------------------------------------------------------------------------------------ offsets written twice
def test_offsets_that_are_in_a_segment_twice_are_named(log_dir: Path) -> None:
    batches = [batch_bytes(offset, timestamp=NOW_MS) for offset in (3, 4, 4, 5)]
    log = write_segment(log_dir / "t-0", 3, batches, index_interval_bytes=4096)
    position = len(batches[0]) + len(batches[1])
    place = f"{log.name} has offsets twice: its batch at position {position} begins at offset 4, although the batches"
    done = run(log_dir, "--dry-run")
    assert done.status == 0 and place in row(done)["warnings"][0]
    (warning,) = sediment("plan", log_dir, DELETES, "--json", "--now-ms", NOW_MS).partitions()["t-0"]["warnings"]
    assert warning == row(done)["warnings"][0]


def test_offsets_that_are_in_two_segments_are_named(log_dir: Path) -> None:
    write_segment(log_dir / "t-0", 3, [batch_bytes(offset) for offset in range(3, 8)])
    (log_dir / ".kafka_cleanshutdown").touch()
    done = run(log_dir)
    assert done.status == 0
    assert row(done)["warnings"][0].startswith("offsets 6 to 7 are in segment 3 and again in segment 6; ")
    assert records_check(log_dir) == "warning"

"""`sediment restore`: what a run changed is put back, byte for byte, unless something would be lost."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from sediment.jobs.command_line.options import CommonOptions
from sediment.jobs.restore import RestoreOptions, parse_time
from sediment.jobs.restore import restore as run_restore
from sediment.segment_io.errors import UsageError
from sediment.segment_io.fs import Fs
from tests.faults.faulty_fs import Kill, Killed
from tests.faults.inline_spark import inline_spark
from tests.jobs.expiring.expired_logs import EPOCHS, NAME, LinkingFs, make_log
from tests.jobs.log_dirs import read_checkpoint, sediment, tree, write_checkpoint
from tests.jobs.originals.kept_originals import ALL, SOME, Found, catalogues, expire, found, recover, restore, restored
from tests.logs import START_MS, LogShape, write_random_log
from tests.segments import NOW_MS, batch_bytes

LOG_START = "log-start-offset-checkpoint"
CLEANER = "cleaner-offset-checkpoint"
CLOSED = f"{5:020d}.log"
RANDOM = "t-0"


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    return tmp_path / "kept"


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    path = tmp_path / "logs"
    make_log(path, epochs=EPOCHS)
    write_checkpoint(path / CLEANER, {"other-0": 3})
    write_checkpoint(path / "recovery-point-offset-checkpoint", {NAME: 15, "other-0": 4})
    write_checkpoint(path / "replication-offset-checkpoint", {NAME: 15})
    return path


def compact(log_dir: Path, kept: Path, *more: str, segment_bytes: int = 1800) -> str:
    """Compact the random log and return the run's id."""
    with inline_spark():
        outcome = sediment(
            *("compact", log_dir, "--json", "--quiet", "--force", f"--now-ms={START_MS + 1_000_000}"),
            *("--set=cleanup.policy=compact", f"--set=segment.bytes={segment_bytes}", "--set=index.interval.bytes=300"),
            *(f"--keep-originals={kept}", f"--partition={RANDOM}", *more),
        )
    assert outcome.status == 0, outcome.stderr
    assert outcome.partitions()[RANDOM]["groups_rewritten"], "the run changed nothing"
    return outcome.report["run_id"]


@pytest.fixture
def random_log_dir(tmp_path: Path) -> Path:
    path = tmp_path / "random"
    write_random_log(path / RANDOM, 5, LogShape(batches=30, segment_bytes=700, interval_bytes=300))
    (path / ".kafka_cleanshutdown").touch()
    return path


# -------------------------------------------------------------------------------------------------------- byte for byte
@pytest.mark.parametrize("sets", [SOME, ALL], ids=["some segments", "every segment"])
def test_a_restore_after_expire_gives_every_byte_back_and_can_itself_be_undone(
    log_dir: Path, kept: Path, sets: tuple[str, ...]
) -> None:
    before = found(log_dir)
    run = expire(log_dir, kept, *sets)
    after = found(log_dir)
    report = restored(log_dir, kept, f"--run={run}")
    assert found(log_dir) == before
    assert report["partitions"][0]["segments"] == [0, 5, 10]
    undone = restored(log_dir, kept, f"--run={report['run_id']}")
    assert found(log_dir) == after
    assert undone["partitions"][0]["reason_code"] is None


def test_a_restore_after_compact_gives_every_byte_back_and_can_itself_be_undone(
    random_log_dir: Path, kept: Path
) -> None:
    write_checkpoint(random_log_dir / CLEANER, {"other-3": 77, RANDOM: 1})
    before = found(random_log_dir)
    run = compact(random_log_dir, kept, "--from-start")
    after = found(random_log_dir)
    report = restored(random_log_dir, kept, f"--run={run}")
    assert found(random_log_dir) == before
    restored(random_log_dir, kept, f"--run={report['run_id']}")
    assert found(random_log_dir) == after


def test_a_checkpoint_file_that_the_run_made_is_gone_again(random_log_dir: Path, kept: Path) -> None:
    before = found(random_log_dir)
    run = compact(random_log_dir, kept)
    assert (random_log_dir / CLEANER).exists()
    restored(random_log_dir, kept, f"--run={run}")
    assert found(random_log_dir) == before


def test_as_of_undoes_a_chain_of_runs_newest_first(random_log_dir: Path, kept: Path) -> None:
    states = [found(random_log_dir)]
    retention = ("--set=cleanup.policy=compact,delete", "--set=retention.ms=-1")
    runs = [compact(random_log_dir, kept, "--strategy=whole")]
    states.append(found(random_log_dir))
    size_bytes = sum(path.stat().st_size for path in (random_log_dir / RANDOM).glob("*.log"))
    runs.append(expire(random_log_dir, kept, *retention, f"--set=retention.bytes={size_bytes // 4}"))
    states.append(found(random_log_dir))
    assert len(states[2]) < len(states[1])
    runs.append(compact(random_log_dir, kept, "--from-start", segment_bytes=4000))
    times = {catalogue["run_id"]: catalogue["started_ms"] for catalogue in catalogues(kept)}
    report = restored(random_log_dir, kept, f"--as-of={times[runs[1]]}")
    assert report["partitions"][0]["runs"] == [runs[2], runs[1]]
    assert found(random_log_dir) == states[1]
    restored(random_log_dir, kept, f"--as-of={times[runs[0]]}")
    assert found(random_log_dir) == states[0]


def test_a_second_restore_says_that_the_partition_is_already_restored(log_dir: Path, kept: Path) -> None:
    run_id = expire(log_dir, kept, *SOME)
    given = ("restore", log_dir, f"--from={kept}", f"--run={run_id}")
    assert "1 would be restored" in sediment(*given, "--dry-run").stdout
    assert "1 restored" in sediment(*given, "--yes").stdout
    for more in ("--dry-run", "--yes"):
        last = sediment(*given, more).stdout.splitlines()[-1]
        assert last.startswith("1 already restored; "), last


def test_a_run_that_is_undone_already_is_left_out_of_a_chain(log_dir: Path, kept: Path) -> None:
    before = found(log_dir)
    first = expire(log_dir, kept, *SOME)
    second = expire(log_dir, kept, *ALL)
    restored(log_dir, kept, f"--run={second}")
    (row,) = restored(log_dir, kept, "--as-of=0")["partitions"]
    assert (row["runs"], found(log_dir)) == ([first], before)


def test_a_dry_run_says_what_a_chain_would_give_and_changes_nothing(log_dir: Path, kept: Path) -> None:
    expire(log_dir, kept, "--set=retention.bytes=720", "--set=retention.ms=-1")
    expire(log_dir, kept, *ALL)
    before = tree(log_dir.parent)
    outcome = sediment("restore", log_dir, f"--from={kept}", "--json", "--quiet", "--as-of=0", "--dry-run")
    (row,) = outcome.report["partitions"]
    assert (row["status"], row["segments"], row["bytes_after"]) == ("restored", [0, 5, 10], 1080)
    shown = sediment("restore", log_dir, f"--from={kept}", "--quiet", "--as-of=0", "--dry-run").stdout
    assert "1 would be restored; " in shown
    assert tree(log_dir.parent) == before


def test_originals_share_no_inode_with_a_file_that_a_broker_changes(log_dir: Path, kept: Path) -> None:
    run = expire(log_dir, kept, *ALL)
    restored(log_dir, kept, f"--run={run}")
    linked = {path.name for path in (log_dir / NAME).iterdir() if path.stat().st_nlink > 1}
    assert linked == {f"{0:020d}.log", CLOSED}


# ------------------------------------------------------------------------------------------------------------ recover


def of_partition(files: Found) -> Found:
    """Return the files of the partition that a start does not remove."""
    return {name: data for name, data in files.items() if name.startswith(f"{NAME}/") and not name.endswith(".deleted")}


def test_what_recover_cut_off_comes_back_and_the_next_start_verifies_it_again(log_dir: Path, kept: Path) -> None:
    (log_dir / ".kafka_cleanshutdown").unlink()
    write_checkpoint(log_dir / "recovery-point-offset-checkpoint", {NAME: 5, "other-0": 4})
    with (log_dir / NAME / CLOSED).open("r+b") as file:
        file.seek(61)
        file.write(b"\xff\xff\xff")
    before = found(log_dir)
    report = recover(log_dir, kept)
    assert report["catalogue"] == str(kept / f"catalogue-{report['run_id']}.json")
    assert [segment["base_offset"] for segment in report["partitions"][0]["segments"]] == [0, 5]
    after = found(log_dir)
    assert ".kafka_cleanshutdown" in after
    undone = restored(log_dir, kept, f"--run={report['run_id']}")
    assert of_partition(found(log_dir)) == of_partition(before)
    assert not (log_dir / ".kafka_cleanshutdown").exists()
    assert read_checkpoint(log_dir / "recovery-point-offset-checkpoint") == {NAME: 5, "other-0": 4}
    restored(log_dir, kept, f"--run={undone['run_id']}")
    assert of_partition(found(log_dir)) == of_partition(after)


def test_recover_keeps_only_files_that_it_changed(log_dir: Path, kept: Path) -> None:
    recover(log_dir, kept)
    (log_dir / NAME / f"{0:020d}.index").unlink()
    before = found(log_dir)
    report = recover(log_dir, kept)
    catalogue = catalogues(kept)[-1]
    assert {file["name"] for file in catalogue["partitions"][0]["new_files"]} >= {f"{0:020d}.index"}
    assert not list((kept / report["run_id"]).rglob("*.log"))
    restored(log_dir, kept, f"--run={report['run_id']}")
    assert of_partition(found(log_dir)) == of_partition(before)


# ----------------------------------------------------------------------------------------------------- a broker went on
def append(log_dir: Path, base: int) -> bytes:
    """Append a batch to a segment as a broker would, and return its bytes."""
    batch = batch_bytes(15, value=b"later", timestamp=NOW_MS, producer_id=-1)
    with (log_dir / NAME / f"{base:020d}.log").open("ab") as file:
        file.write(batch)
    return batch


def test_what_was_appended_after_the_run_stays(log_dir: Path, kept: Path) -> None:
    before = found(log_dir)
    run = expire(log_dir, kept, *ALL)
    batch = append(log_dir, 15)
    (row,) = restored(log_dir, kept, f"--run={run}")["partitions"]
    assert row["segments"] == [0, 5, 10, 15]
    after = found(log_dir)
    assert after[f"{NAME}/{15:020d}.log"][0] == batch
    assert {name: after[name] for name in before if name.endswith(".log")} == {
        name: data for name, data in before.items() if name.endswith(".log")
    }


def _touch_closed(log_dir: Path, kept: Path) -> None:
    """Replace a segment that the run left, as a broker's cleaner does."""
    path = log_dir / NAME / f"{10:020d}.log"
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content[:72])


def _lose_original(log_dir: Path, kept: Path) -> None:
    (path,) = kept.glob(f"*/{NAME}/{CLOSED}")
    path.unlink()


def _change_original(log_dir: Path, kept: Path) -> None:
    (path,) = kept.glob(f"*/{NAME}/{CLOSED}")
    os.truncate(path, 72)


def _raise_log_start(log_dir: Path, kept: Path) -> None:
    write_checkpoint(log_dir / LOG_START, {NAME: 12})


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (_touch_closed, "changed-since"),
        (_lose_original, "originals-missing"),
        (_change_original, "originals-missing"),
        (_raise_log_start, "log-start-raised"),
    ],
)
def test_a_partition_that_went_on_in_another_way_is_refused_and_stays(
    log_dir: Path, kept: Path, change: Callable[[Path, Path], None], code: str
) -> None:
    run = expire(log_dir, kept, *SOME)
    change(log_dir, kept)
    before = tree(log_dir.parent)
    outcome = restore(log_dir, kept, f"--run={run}")
    (row,) = outcome.report["partitions"]
    assert (outcome.status, row["status"], row["reason_code"]) == (1, "refused", code)
    assert run in row["reason"]
    assert tree(log_dir.parent) == before


def test_a_partition_that_is_gone_is_refused(log_dir: Path, kept: Path) -> None:
    make_log(log_dir, "more-0")
    write_checkpoint(log_dir / "replication-offset-checkpoint", {NAME: 15, "more-0": 15})
    run = expire(log_dir, kept, *SOME)
    shutil.rmtree(log_dir / "more-0")
    rows = restore(log_dir, kept, f"--run={run}").partitions()
    assert {name: (row["status"], row["reason_code"]) for name, row in rows.items()} == {
        NAME: ("restored", None),
        "more-0": ("refused", "changed-since"),
    }


def test_records_appended_to_a_segment_that_a_restore_put_back_are_not_lost(log_dir: Path, kept: Path) -> None:
    run = expire(log_dir, kept, *ALL)
    report = restored(log_dir, kept, f"--run={run}")
    append(log_dir, 10)
    before = tree(log_dir)
    (row,) = restore(log_dir, kept, f"--run={report['run_id']}").report["partitions"]
    assert (row["status"], row["reason_code"]) == ("refused", "appended-since")
    assert tree(log_dir) == before


def test_an_erasure_is_undone_only_if_that_is_asked_for(log_dir: Path, kept: Path) -> None:
    before = found(log_dir)
    run = expire(log_dir, kept, *SOME)
    path = kept / f"catalogue-{run}.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "command": "erase"}))
    left = tree(log_dir)
    (row,) = restore(log_dir, kept, f"--run={run}").report["partitions"]
    assert (row["status"], row["reason_code"], tree(log_dir)) == ("refused", "erasure", left)
    report = restored(log_dir, kept, f"--run={run}", "--undo-erasure")
    assert found(log_dir) == before
    restored(log_dir, kept, f"--run={report['run_id']}")
    again = next(each["run_id"] for each in catalogues(kept) if each["restores"] == report["run_id"])
    (row,) = restore(log_dir, kept, f"--run={again}").report["partitions"]
    assert row["reason_code"] == "erasure", "the erasure was done again, and its originals contain the records"


# ------------------------------------------------------------------------------------------------------------ wrong use
@pytest.mark.parametrize(
    "more",
    [
        (),
        ("--run=nothing",),
        ("--run=x", "--as-of=0"),
        ("--as-of=yesterday",),
        ("--run={run}", "--partition=none-0"),
    ],
)
def test_wrong_use_is_exit_2_and_changes_nothing(log_dir: Path, kept: Path, more: tuple[str, ...]) -> None:
    run = expire(log_dir, kept, *SOME)
    before = tree(log_dir.parent)
    outcome = restore(log_dir, kept, *(option.format(run=run) for option in more))
    assert (outcome.status, outcome.stdout, outcome.stderr.count("\n")) == (2, "", 1), outcome.stderr
    assert tree(log_dir.parent) == before


def test_without_a_terminal_yes_is_needed(log_dir: Path, kept: Path) -> None:
    run = expire(log_dir, kept, *SOME)
    outcome = sediment("restore", log_dir, f"--from={kept}", f"--run={run}")
    assert (outcome.status, "--yes" in outcome.stderr) == (2, True)


def test_another_log_directory_is_refused(log_dir: Path, kept: Path, tmp_path: Path) -> None:
    run = expire(log_dir, kept, *SOME)
    make_log(tmp_path / "other", "other-0")
    outcome = restore(tmp_path / "other", kept, f"--run={run}")
    assert (outcome.status, str(log_dir) in outcome.stderr) == (2, True)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1700000000000", 1_700_000_000_000),
        ("2023-11-14T22:13:20Z", 1_700_000_000_000),
        ("2023-11-14T22:13:20", 1_700_000_000_000),
        ("2023-11-14T23:13:20+01:00", 1_700_000_000_000),
    ],
)
def test_a_time_is_a_number_of_milliseconds_or_iso_8601_in_utc(text: str, ms: int) -> None:
    assert parse_time(text) == ms


def test_text_that_is_no_time_is_wrong_use() -> None:
    with pytest.raises(UsageError, match="not a time"):
        parse_time("soon")


# --------------------------------------------------------------------------------------------------------------- killed
def run_with(fs: Fs, log_dir: Path, kept: Path, run_id: str) -> None:
    options = CommonOptions(log_dirs=(log_dir,), now_ms=NOW_MS, as_json=True, quiet=True)
    report = run_restore(options, RestoreOptions(kept, run_id=run_id), fs=fs)
    assert not report.failed, report


@pytest.mark.parametrize("sets", [SOME, ALL], ids=["some segments", "every segment"])
def test_a_restore_killed_after_any_step_is_finished_by_the_same_command_and_can_be_undone(
    tmp_path: Path, sets: tuple[str, ...]
) -> None:
    for number in itertools.count(1, 7):  # tests/faults tries every step
        root = tmp_path / str(number)
        log_dir, kept = root / "logs", root / "kept"
        make_log(log_dir, epochs=EPOCHS)
        before = found(log_dir)
        run = expire(log_dir, kept, *sets)
        after = found(log_dir)
        try:
            run_with(LinkingFs(Kill(number)), log_dir, kept, run)
        except Killed:
            pass
        else:
            assert number > 20
            return
        restored(log_dir, kept, f"--run={run}")
        assert found(log_dir) == before
        undo = [each["run_id"] for each in reversed(catalogues(kept)) if each["restores"] == run]
        for each in undo:
            assert restore(log_dir, kept, f"--run={each}").status == 0
        assert found(log_dir) == after


def test_a_killed_run_can_be_undone(tmp_path: Path) -> None:
    from tests.jobs.expiring.test_expire_originals import run as run_expire

    for number in itertools.count(2, 7):
        root = tmp_path / str(number)
        log_dir, kept = root / "logs", root / "kept"
        make_log(log_dir, epochs=EPOCHS)
        before = found(log_dir)
        try:
            run_expire(log_dir, kept, ALL, LinkingFs(Kill(number)))
        except Killed:
            pass
        else:
            return
        if catalogues(kept):
            (catalogue,) = catalogues(kept)
            restored(log_dir, kept, f"--run={catalogue['run_id']}")
        left = {name: data for name, data in found(log_dir).items() if not name.endswith(".tmp")}
        assert left.keys() - before.keys() <= {LOG_START}
        assert {name: left[name] for name in before} == before

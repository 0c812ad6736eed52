"""`sediment originals` and `sediment vacuum`: what is kept, what can be undone, and what is removed."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sediment.engine.directory.lock import DirectoryLock
from sediment.jobs.command_line.units import parse_duration
from sediment.jobs.reporting.screen import screen_text
from sediment.jobs.vacuum import VacuumOptions, print_report
from sediment.jobs.vacuum import vacuum as vacuum_originals
from sediment.segment_io.errors import UsageError
from tests.jobs.expiring.expired_logs import EPOCHS, NAME, make_log
from tests.jobs.log_dirs import Outcome, sediment, tree
from tests.jobs.originals.kept_originals import ALL, SOME, catalogues, expire, restored

DAY_MS = 86_400_000


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    return tmp_path / "kept"


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    make_log(tmp_path / "logs", epochs=EPOCHS)
    return tmp_path / "logs"


def originals(kept: Path) -> dict[str, dict[str, Any]]:
    """Return the rows of a listing by run; the runs of these tests change one partition."""
    outcome = sediment("originals", kept, "--json")
    assert outcome.status == 0, outcome.stderr
    return {row["run"]: row for row in outcome.report["partitions"]}


def vacuum(kept: Path, *more: str) -> Outcome:
    return sediment("vacuum", kept, "--json", "--yes", *more)


def age(kept: Path, run: str, days: int) -> None:
    """Make a run end earlier."""
    path = kept / f"catalogue-{run}.json"
    catalogue = json.loads(path.read_text())
    moved = {name: catalogue[name] - days * DAY_MS for name in ("started_ms", "finished_ms")}
    path.write_text(json.dumps(catalogue | moved))


# ------------------------------------------------------------------------------------------------------------ originals
def test_the_listing_says_what_is_kept_and_what_can_be_undone(log_dir: Path, kept: Path) -> None:
    first = expire(log_dir, kept, *SOME)
    second = expire(log_dir, kept, *ALL)
    rows = originals(kept)
    assert list(rows) == [second, first]
    assert {run: (row["status"], row["reason_code"]) for run, row in rows.items()} == {
        second: ("restorable", None),
        first: ("restorable", "newer-first"),
    }
    bytes_kept = sum(path.stat().st_size for path in (kept / first).rglob("*") if path.is_file())
    assert (rows[first]["bytes"], rows[first]["only_here_bytes"]) == (bytes_kept, bytes_kept)
    assert (rows[first]["run_command"], rows[first]["partition"]) == ("expire", NAME)
    restored(log_dir, kept, f"--run={second}")
    rows = originals(kept)
    assert (rows[second]["reason_code"], rows[first]["reason_code"]) == ("already-restored", None)
    restored(log_dir, kept, f"--run={first}")
    row = originals(kept)[first]
    assert row["only_here_bytes"] < row["bytes"], "closed logs are shared with the log directory"


def test_plan_and_the_listing_count_a_file_once_that_several_runs_keep(log_dir: Path, kept: Path) -> None:
    run = expire(log_dir, kept, *ALL)
    os.link(next((kept / run).rglob(f"{0:020d}.log")), kept.parent / "elsewhere")
    shared = (kept.parent / "elsewhere").stat().st_size
    listed = sediment("originals", kept, "--json").report
    assert listed["originals_bytes"] == sum(row["bytes"] for row in listed["partitions"]) - shared
    restored(log_dir, kept, f"--run={run}")
    expire(log_dir, kept, *ALL)
    (kept.parent / "elsewhere").unlink()
    by_inode = {path.stat().st_ino: path.stat().st_size for path in kept.glob(f"*/{NAME}/*")}
    planned = sediment("plan", log_dir, "--json", "--quiet", "--broker-defaults", f"--originals={kept}").report
    assert (planned["originals"], planned["originals_bytes"]) == (str(kept), sum(by_inode.values()))


def test_the_table_fits_80_columns(log_dir: Path, kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    run = expire(log_dir, kept, *SOME)
    shown = sediment("originals", kept).stdout
    (row,) = [line for line in shown.splitlines() if run in line]
    assert len(row) <= 80 and "expire" in row and "yes" in row


def test_originals_that_an_earlier_version_kept_have_no_catalogue_and_stay(log_dir: Path, kept: Path) -> None:
    expire(log_dir, kept, *SOME)
    (kept / NAME).mkdir()
    (kept / NAME / f"{0:020d}.log").write_bytes(b"kept earlier")
    row = originals(kept)[None]  # type: ignore[index]
    assert (row["status"], row["partition"], row["bytes"]) == ("no-catalogue", NAME, 12)
    listed = sediment("originals", kept, "--json").report
    assert listed["originals_bytes"] == sum(row["only_here_bytes"] for row in listed["partitions"]) - 12
    outcome = vacuum(kept, "--older-than=0s", "--force")
    assert {row["status"] for row in outcome.report["partitions"]} == {"removed", "no-catalogue"}
    assert tree(kept) == {f"{NAME}/{0:020d}.log": b"kept earlier"}
    shown = sediment("originals", kept).stdout
    assert "12 B" not in shown and "0 runs; a vacuum of all originals would free 0 B" in shown


@pytest.mark.parametrize(
    "name",
    [
        "meta.properties",
        ".kafka_cleanshutdown",
        "recovery-point-offset-checkpoint",
        "log-start-offset-checkpoint",
        "replication-offset-checkpoint",
        "cleaner-offset-checkpoint",
    ],
)
def test_a_log_directory_is_refused(tmp_path: Path, name: str) -> None:
    live = tmp_path / "live"
    (live / NAME).mkdir(parents=True)
    (live / NAME / f"{0:020d}.log").write_bytes(b"records")
    (live / name).write_bytes(b"")
    for outcome in (sediment("originals", live), vacuum(live, "--older-than=7d")):
        assert outcome.status == 2, outcome.stdout
        assert "this is a log directory" in outcome.stderr
        assert "give the directory that --keep-originals named" in outcome.stderr
    assert not (live / ".lock").exists()


def test_a_directory_whose_runs_are_all_removed_stays_a_directory_of_originals(log_dir: Path, kept: Path) -> None:
    expire(log_dir, kept, *SOME)
    vacuum(kept, "--older-than=0s", "--force")
    assert (kept / ".lock").exists(), "the lock file stays"
    assert originals(kept) == {}


def test_originals_with_erased_records_are_named(log_dir: Path, kept: Path) -> None:
    run = expire(log_dir, kept, *SOME)
    path = kept / f"catalogue-{run}.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "command": "erase"}))
    assert originals(kept)[run]["holds_erased"]
    assert "contain erased records until they are vacuumed" in sediment("originals", kept).stdout


@pytest.mark.parametrize("damage", [b"{}", b"not json", b'{"catalogue": 3, "state": "done"}'])
def test_a_catalogue_that_cannot_be_read_is_an_error_and_nothing_is_removed(
    log_dir: Path, kept: Path, damage: bytes
) -> None:
    expire(log_dir, kept, *SOME)
    (kept / "catalogue-odd.json").write_bytes(damage)
    before = tree(kept)
    for outcome in (sediment("originals", kept), vacuum(kept, "--older-than=0s", "--force")):
        assert (outcome.status, "catalogue-odd.json" in outcome.stderr) == (1, True)
    assert tree(kept) == before


@pytest.mark.parametrize(
    "change",
    [
        {"log_dir": "/logs\0"},
        {"log_dir": "/\ud800"},
        {"leader_epochs": "\ud800"},
        {"checkpoints": []},
        {"checkpoints": {"log-start-offset-checkpoint": 1 << 63}},
    ],
)
def test_a_catalogue_with_a_value_that_no_run_writes_is_malformed(
    log_dir: Path, kept: Path, change: dict[str, object]
) -> None:
    run = expire(log_dir, kept, *SOME)
    path = kept / f"catalogue-{run}.json"
    catalogue = json.loads(path.read_text())
    catalogue["partitions"][0].update(change)
    path.write_text(json.dumps(catalogue))
    before = tree(kept)
    for outcome in (sediment("originals", kept), vacuum(kept, "--older-than=0s", "--force")):
        assert (outcome.status, path.name in outcome.stderr) == (1, True)
        assert "Traceback" not in outcome.stderr
    assert tree(kept) == before


def test_a_catalogue_whose_log_directory_is_not_a_path_is_malformed(log_dir: Path, kept: Path) -> None:
    run = expire(log_dir, kept, *SOME)
    path = kept / f"catalogue-{run}.json"
    catalogue = json.loads(path.read_text())
    catalogue["log_dirs"][0]["path"] = "/logs\0"
    path.write_text(json.dumps({**catalogue, "state": "planned", "finished_ms": None}))
    outcome = vacuum(kept, "--older-than=0s", "--force")
    assert (outcome.status, "is not a path" in outcome.stderr) == (1, True)


# --------------------------------------------------------------------------------------------------------------- vacuum
def test_only_runs_that_are_old_enough_are_removed_with_their_catalogue(log_dir: Path, kept: Path) -> None:
    old, young = expire(log_dir, kept, *SOME), expire(log_dir, kept, *ALL)
    age(kept, old, 8)
    live = tree(log_dir)
    dry = vacuum(kept, "--older-than=7d", "--dry-run")
    outcome = vacuum(kept, "--older-than=7d")
    for each in (dry, outcome):
        statuses = {row["run"]: (row["status"], row["reason_code"]) for row in each.report["partitions"]}
        assert statuses == {old: ("removed", None), young: ("kept", "young")}
    assert [catalogue["run_id"] for catalogue in catalogues(kept)] == [young]
    assert not (kept / old).exists() and (kept / young).exists()
    assert tree(log_dir) == live


def test_people_read_what_can_no_longer_be_undone(log_dir: Path, kept: Path) -> None:
    run = expire(log_dir, kept, *SOME)
    shown = sediment("vacuum", kept, "--older-than=0s", "--force", "--yes").stdout
    assert f"expire of run {run} can no longer be undone in {NAME}" in shown


def test_partitions_that_can_no_longer_be_undone_are_in_natural_order(log_dir: Path, kept: Path) -> None:
    expire(log_dir, kept, *SOME)
    report = vacuum_originals(VacuumOptions(kept, older_than="0s", dry_run=True, force=True))
    rows = tuple(replace(report.partitions[0], partition=name) for name in ("g10-0", "g2-0", "g1-0"))
    assert "undone in g1-0, g2-0, g10-0\n" in screen_text(partial(print_report, replace(report, partitions=rows)))


def test_a_pinned_run_stays_until_the_pin_is_removed(log_dir: Path, kept: Path) -> None:
    run = expire(log_dir, kept, *SOME)
    assert vacuum(kept, f"--run={run}", "--pin=audit").status == 0
    assert originals(kept)[run]["pins"] == ["audit"]
    (row,) = vacuum(kept, "--older-than=0s", "--force").report["partitions"]
    assert (row["status"], "audit" in row["reason"], (kept / run).exists()) == ("pinned", True, True)
    (row,) = vacuum(kept, "--older-than=0s", "--force", "--unpin=audit").report["partitions"]
    assert (row["status"], (kept / run).exists()) == ("removed", False)


def test_foreign_files_and_files_reached_by_links_stay(log_dir: Path, kept: Path, tmp_path: Path) -> None:
    first, second = expire(log_dir, kept, *SOME), expire(log_dir, kept, *ALL)
    (kept / first / NAME / "notes.txt").write_text("mine")
    replaced = kept / first / NAME / f"{5:020d}.log"
    replaced.unlink()
    replaced.write_bytes(b"not the original")
    (kept / second).rename(tmp_path / "moved")
    (kept / second).symlink_to(tmp_path / "moved")
    moved = tree(tmp_path / "moved")
    assert vacuum(kept, "--older-than=0s", "--force").status == 0
    assert tree(kept / first) == {f"{NAME}/notes.txt": b"mine", f"{NAME}/{5:020d}.log": b"not the original"}
    assert tree(tmp_path / "moved") == moved
    assert catalogues(kept) == []


def test_a_run_that_still_works_keeps_its_originals(log_dir: Path, kept: Path) -> None:
    run = expire(log_dir, kept, *SOME)
    path = kept / f"catalogue-{run}.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "state": "planned", "finished_ms": None}))
    with DirectoryLock(log_dir):
        (row,) = vacuum(kept, "--older-than=0s", "--force").report["partitions"]
    assert (row["status"], row["reason_code"]) == ("kept", "running")


@pytest.mark.parametrize(
    "more",
    [
        (),
        ("--older-than=7",),
        ("--older-than=23h",),
        ("--pin=x",),
        ("--run={run}",),
        ("--run=none", "--pin=x"),
        ("--unpin=x",),
    ],
)
def test_wrong_use_is_exit_2_and_removes_nothing(log_dir: Path, kept: Path, more: tuple[str, ...]) -> None:
    run = expire(log_dir, kept, *SOME)
    before = tree(kept)
    outcome = vacuum(kept, *(option.format(run=run) for option in more))
    assert (outcome.status, outcome.stdout, outcome.stderr.count("\n")) == (2, "", 1), outcome.stderr
    assert tree(kept) == before


def test_without_a_terminal_yes_is_needed(log_dir: Path, kept: Path) -> None:
    expire(log_dir, kept, *SOME)
    outcome = sediment("vacuum", kept, "--older-than=7d")
    assert (outcome.status, "--yes" in outcome.stderr) == (2, True)


def test_a_directory_that_does_not_exist_is_wrong_use(tmp_path: Path) -> None:
    for outcome in (sediment("originals", tmp_path / "none"), vacuum(tmp_path / "none", "--older-than=7d")):
        assert outcome.status == 2


@pytest.mark.parametrize(
    ("text", "ms"), [("30s", 30_000), ("90m", 5_400_000), ("24h", DAY_MS), ("7d", 7 * DAY_MS), ("2w", 14 * DAY_MS)]
)
def test_an_age_has_a_unit(text: str, ms: int) -> None:
    assert parse_duration(text) == ms


@pytest.mark.parametrize("text", ["7", "d", "-1d", "1.5d", "7 d", "7y"])
def test_other_ages_are_wrong_use(text: str) -> None:
    with pytest.raises(UsageError, match="duration"):
        parse_duration(text)

"""`sediment clone --check`: a copy that differs from its manifest in any way is found, and nothing is changed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import sediment as api
from sediment.engine.copying.partition_copy import CopyRules
from sediment.engine.directory.lock import DirectoryLock
from sediment.engine.directory.output import LinkKind
from sediment.segment_io.manifest import MANIFEST_FILE
from tests.engine.copying.test_partition_copy import ACTIVE, HELD, LOG, copied, settled, write_partition
from tests.jobs.log_dirs import Outcome, sediment, tree

__all__ = ["settled"]

NAME = f"a-0/{LOG}"


@pytest.fixture
def logs(tmp_path: Path, settled: None) -> Path:
    for name in ("a-0", "b-0"):
        write_partition(tmp_path / "logs", name)
    return tmp_path / "logs"


@pytest.fixture
def copy(logs: Path, tmp_path: Path) -> Path:
    copied(logs, tmp_path / "copy")
    (tmp_path / "copy" / ".lock").touch()
    return tmp_path / "copy"


def check(copy: Path, *more: object, status: int = 0) -> Outcome:
    outcome = sediment("clone", "--check", copy, "--json", *more)
    assert outcome.status == status, outcome.stderr
    return outcome


def state(copy: Path) -> dict[str, tuple[int, int, int]]:
    stats = {str(path): path.stat() for path in (copy, *copy.rglob("*"))}
    return {name: (stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns) for name, stat in stats.items()}


def edit_manifest(copy: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = copy / MANIFEST_FILE
    document = json.loads(path.read_bytes())
    change(document)
    path.write_text(json.dumps(document))


def row(document: dict[str, Any], name: str = NAME) -> dict[str, Any]:
    found: dict[str, Any] = next(file for file in document["files"] if file["name"] == name)
    return found


# ------------------------------------------------------------------------------------------------------ healthy copies
def test_a_copy_that_equals_its_manifest_is_unchanged_by_what_is_in_it_and_by_the_check(copy: Path) -> None:
    before = state(copy)
    report = check(copy).report
    assert state(copy) == before
    assert {each["partition"]: each["status"] for each in report["partitions"]} == {
        "a-0": "unchanged",
        "b-0": "unchanged",
    }
    names = tree(copy).keys() - {MANIFEST_FILE}
    whole = sum((copy / name).stat().st_size for name in names)
    assert (report["files"], report["bytes_read"]) == (len(names), whole)
    assert (report["files_without_digest"], report["files_that_differ"]) == (0, 0)
    assert (report["run_checked"], report["problems"], report["notes"]) == ("run", [], [])
    assert "equals its manifest" in sediment("clone", "--check", copy).stdout


def test_a_copy_in_use_is_checked_too(copy: Path) -> None:
    with DirectoryLock(copy):
        check(copy)


def test_files_without_a_digest_are_counted_and_compared_by_size(logs: Path, tmp_path: Path) -> None:
    rules = CopyRules(links=(LinkKind.HARD,), digests_links=False)
    copied(logs, tmp_path / "linked", rules=rules)
    report = check(tmp_path / "linked").report
    assert report["files_without_digest"] == sum(each["files_without_digest"] for each in report["partitions"]) == 12
    assert "12 files without a digest" in sediment("clone", "--check", tmp_path / "linked").stdout
    os.truncate(tmp_path / "linked" / NAME, 3)
    assert check(tmp_path / "linked", status=1).report["files_that_differ"] == 1


def test_files_that_an_earlier_copy_holds_are_read_there(logs: Path, tmp_path: Path) -> None:
    days = [tmp_path / f"day-{number}" for number in range(3)]
    copied(logs, days[0])
    for earlier, day in pairwise(days):
        copied(logs, day, since=earlier, rules=HELD)
    assert all(row(json.loads((day / MANIFEST_FILE).read_bytes()))["held_in"] == "../day-0" for day in days[1:])
    expected = check(days[0]).report["bytes_read"]
    assert check(days[2]).report["bytes_read"] == expected
    (days[0] / NAME).write_bytes((days[0] / NAME).read_bytes()[::-1])
    for day in days:
        assert check(day, status=1).partitions()["a-0"]["problems"] == [f"{NAME} has different content"]
    (days[0] / NAME).unlink()
    assert f"does not exist in {days[0]}" in check(days[2], status=1).partitions()["a-0"]["reason"]


def test_damage_that_was_copied_is_reported_again(copy: Path) -> None:
    edit_manifest(copy, lambda document: document["partitions"][0].update(damage="the batch at offset 7 is corrupt"))
    found = check(copy, status=1).partitions()
    assert [(each["status"], each["reason_code"]) for each in found.values()] == [
        ("quarantined", "corrupt-batch"),
        ("unchanged", None),
    ]


# ------------------------------------------------------------------------------------------------------- broken copies
def flip(copy: Path) -> None:
    content = bytearray((copy / NAME).read_bytes())
    content[len(content) // 2] ^= 1
    (copy / NAME).write_bytes(content)


def swap(copy: Path) -> None:
    (copy / "b-0" / LOG).rename(copy / "kept")
    (copy / NAME).rename(copy / "b-0" / LOG)
    (copy / "kept").rename(copy / NAME)


def replace_by_folder(copy: Path) -> None:
    (copy / NAME).unlink()
    (copy / NAME).mkdir()


def forget_partition(document: dict[str, Any]) -> None:
    document["files"] = [file for file in document["files"] if not file["name"].startswith("a-0/")]


BROKEN: dict[str, tuple[Callable[[Path], object], dict[str, int]]] = {
    "a bit is flipped": (flip, {"a-0": 1}),
    "a file is shorter": (lambda copy: os.truncate(copy / NAME, 100), {"a-0": 1}),
    "a file is longer": (lambda copy: os.truncate(copy / NAME, 10_000), {"a-0": 1}),
    "a file is empty": (lambda copy: os.truncate(copy / NAME, 0), {"a-0": 1}),
    "a file is missing": (lambda copy: (copy / NAME).unlink(), {"a-0": 1}),
    "a file is a folder": (replace_by_folder, {"a-0": 1}),
    "a partition is missing": (lambda copy: (copy / "a-0").rename(copy.parent / "gone"), {"a-0": 10}),
    "a file was added": (lambda copy: (copy / "a-0" / "more").touch(), {"a-0": 1}),
    "two files are swapped": (swap, {"a-0": 1, "b-0": 1}),
    "two folders are swapped": (
        lambda copy: [(copy / old).rename(copy / new) for old, new in (("a-0", "c"), ("b-0", "a-0"), ("c", "b-0"))],
        {"a-0": 9, "b-0": 9},
    ),
    "the manifest has another digest": (
        lambda copy: edit_manifest(copy, lambda document: row(document).update(sha256="0" * 64)),
        {"a-0": 1},
    ),
    "the manifest has another size": (
        lambda copy: edit_manifest(copy, lambda document: row(document).update(size_bytes=1)),
        {"a-0": 1},
    ),
    "the manifest lacks a file": (
        lambda copy: edit_manifest(copy, lambda document: document["files"].remove(row(document))),
        {"a-0": 1},
    ),
    "the manifest lacks the files of a partition": (
        lambda copy: edit_manifest(copy, forget_partition),
        {"a-0": 11},
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_every_way_to_break_a_copy_is_found_in_its_partition(copy: Path, name: str) -> None:
    damage, expected = BROKEN[name]
    damage(copy)
    outcome = check(copy, status=1)
    found = outcome.partitions()
    assert {name: each["files_that_differ"] for name, each in found.items() if each["status"] == "failed"} == expected
    assert outcome.report["files_that_differ"] == sum(expected.values())
    for partition in expected:
        each = found[partition]
        assert each["reason_code"] == "differs" and each["reason"] == each["problems"][0]
    people = sediment("clone", "--check", copy)
    assert people.status == 1 and found["a-0"]["reason"] in people.stdout and "equals" not in people.stdout


def test_files_and_folders_beside_the_partitions_are_problems_of_the_copy(copy: Path) -> None:
    (copy / "more").touch()
    (copy / "c-0").mkdir()
    report = check(copy, status=1).report
    assert report["problems"] == ["more is not in the manifest", "c-0/ is not in the manifest"]
    assert {each["status"] for each in report["partitions"]} == {"unchanged"}


def test_a_clone_that_a_broker_has_started_on_is_said_to_be_one(copy: Path) -> None:
    (copy / "__cluster_metadata-0").mkdir()
    (copy / "__cluster_metadata-0" / LOG).touch()
    (copy / "a-0" / ACTIVE).write_bytes(b"more")
    report = check(copy, status=1).report
    assert len(report["notes"]) == 1 and "a broker has been started on this directory" in report["notes"][0]


def test_a_file_that_cannot_be_read_does_not_hide_the_others(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (copy / NAME).unlink()
    (copy / NAME).mkdir()
    edit_manifest(copy, lambda document: row(document).update(size_bytes=(copy / NAME).stat().st_size))
    flip_other = bytearray((copy / "b-0" / LOG).read_bytes())
    flip_other[0] ^= 1
    (copy / "b-0" / LOG).write_bytes(flip_other)
    found = check(copy, status=1).partitions()
    assert f"{NAME} cannot be read" in found["a-0"]["reason"]
    assert found["b-0"]["reason"] == f"b-0/{LOG} has different content"


def test_the_first_differences_are_shown_and_all_are_counted(copy: Path) -> None:
    for number in range(30):
        (copy / "a-0" / f"more-{number:02}").touch()
    each = check(copy, status=1).partitions()["a-0"]
    assert (each["files_that_differ"], len(each["problems"])) == (30, 20)
    assert "and 10 more" in sediment("clone", "--check", copy).stdout


# ---------------------------------------------------------------------------------------------------------- no check
def test_a_directory_without_a_readable_manifest_is_not_checked(copy: Path, tmp_path: Path) -> None:
    (copy / MANIFEST_FILE).write_bytes((copy / MANIFEST_FILE).read_bytes()[:-20])
    outcome = check(copy, status=1)
    assert outcome.stdout == "" and "the manifest cannot be read" in outcome.stderr
    (copy / MANIFEST_FILE).unlink()
    outcome = check(copy, status=2)
    assert outcome.stdout == "" and "not a complete copy" in outcome.stderr
    check(tmp_path / "absent", status=2)


def test_options_of_a_run_do_not_belong_to_a_check(copy: Path, logs: Path) -> None:
    for more, named in (
        ([logs], "SOURCE"),
        (["--to", copy], "--to"),
        (["--topic", "a", "--since", copy], "--topic, --since"),
        (["--no-hold"], "--no-hold"),
        (["--partition", "a-0"], "--partition"),
    ):
        outcome = check(copy, *more, status=2)
        assert f"leave out {named}" in outcome.stderr


def test_a_check_has_a_page_metrics_and_a_python_function(copy: Path, tmp_path: Path) -> None:
    page, metrics = tmp_path / "page.html", tmp_path / "run.prom"
    (copy / NAME).unlink()
    check(copy, "--report", page, "--metrics", metrics, status=1)
    assert f"{NAME} does not exist" in page.read_text() and metrics.read_text()
    report = api.LogDirectories(copy).check_clone()
    assert isinstance(report, api.CopyCheckReport)
    assert [each.status for each in report.partitions] == ["failed", "unchanged"]
    assert report.to_arrow().num_rows == 2
    with pytest.raises(api.RunFailedError):
        report.raise_for_status()
    with pytest.raises(api.UsageError, match="makes no clone; leave out topics"):
        api.LogDirectories(copy, topics="t").check_clone()

"""`sediment clone --suppress`: a restored backup does not bring erased records back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sediment.jobs.erasing.suppression_file import add_to_suppression_list
from tests.jobs.cloning.clones import clone
from tests.jobs.log_dirs import Outcome, make_log_dir, sediment, tree, write_checkpoint, write_log
from tests.served import contents

pytestmark = pytest.mark.usefixtures("without_spark")

SECRET = b"a secret of the operator"
ERASED = "a"
COMPACTED = "--set=t:cleanup.policy=compact"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    logs = {f"{topic}-0": write_log(tmp_path / topic) for topic in ("t", "other", "third")}
    path = make_log_dir(tmp_path / "logs", logs, dirty={"t-0": 0})
    for name in ("recovery-point", "replication"):
        write_checkpoint(path / f"{name}-offset-checkpoint", dict.fromkeys(logs, 30))
    (tmp_path / "secret").write_bytes(SECRET + b"\n")
    add_to_suppression_list(tmp_path / "list", SECRET, ["t", "other", "gone"], [ERASED.encode()])
    return path


def clone_compacted(source: Path, to: Path, *more: object, status: int = 0) -> Outcome:
    return clone(source, to, COMPACTED, *more, status=status)


def suppressed(tmp_path: Path) -> tuple[str, ...]:
    return f"--suppress={tmp_path}/list", f"--secret-file={tmp_path}/secret"


def records(log_dir: Path, name: str) -> dict[int, tuple[str | None, str | None]]:
    outcome = sediment("dump", log_dir / name, "--what", "records", "--json")
    rows = map(json.loads, outcome.stdout.splitlines())
    return {row["offset"]: (row["key"], row["value"]) for row in rows}


@pytest.mark.parametrize("link", ["copy", "hard"])
def test_erased_records_stay_away_as_tombstones_or_without_a_trace(source: Path, tmp_path: Path, link: str) -> None:
    before, given = contents(source), records(source, "t-0")
    to = tmp_path / "clone"
    found = clone_compacted(source, to, *suppressed(tmp_path), "--link", link)
    assert contents(source) == before
    erased = {offset for offset, (key, _) in given.items() if key == given[0][0]}
    assert len(erased) == 15 and given[0] != given[1]
    assert records(to, "t-0") == {
        offset: (key, None if offset in erased else value) for offset, (key, value) in given.items()
    }
    assert records(to, "other-0") == {offset: each for offset, each in given.items() if offset not in erased}
    assert records(to, "third-0") == given
    rows = found.partitions()
    assert {name: row["records_suppressed"] for name, row in rows.items()} == {"t-0": 15, "other-0": 15, "third-0": 0}
    assert {row["log_end_offset"] for row in rows.values()} == {30}
    assert "--suppress: 30 records of 2 partitions were left out" in found.report["notes"]
    assert sediment("clone", "--check", to).status == 0
    assert sediment("recover", to, "--dry-run").status == 0


def test_an_incremental_clone_takes_no_erased_record_from_the_earlier_one(source: Path, tmp_path: Path) -> None:
    clone_compacted(source, tmp_path / "first")
    before = contents(tmp_path / "first")
    rows = clone_compacted(
        source, tmp_path / "second", "--since", tmp_path / "first", *suppressed(tmp_path)
    ).partitions()
    assert {name: row["status"] for name, row in rows.items()} == {
        "t-0": "cloned",
        "other-0": "cloned",
        "third-0": "unchanged",
    }
    assert contents(tmp_path / "first") == before
    clone_compacted(source, tmp_path / "whole", *suppressed(tmp_path))
    logs = [
        {name: content for name, content in tree(tmp_path / each).items() if name.endswith((".log", "index"))}
        for each in ("second", "whole")
    ]
    assert logs[0] == logs[1]


def test_a_clone_may_be_compacted_too(source: Path, tmp_path: Path) -> None:
    rows = clone_compacted(source, tmp_path / "clone", "--compact", *suppressed(tmp_path)).partitions()
    assert rows["t-0"]["compacted"] and rows["t-0"]["records_suppressed"] == 15
    first_key = records(source, "t-0")[0][0]
    values = [value for key, value in records(tmp_path / "clone", "t-0").values() if key == first_key]
    assert values and not any(values)


def test_a_log_that_cannot_be_searched_leaves_the_clone_incomplete(source: Path, tmp_path: Path) -> None:
    log = min((source / "other-0").glob("*.log"))
    content = bytearray(log.read_bytes())
    content[80] ^= 1
    log.write_bytes(content)
    found = clone_compacted(source, tmp_path / "clone", *suppressed(tmp_path), status=1)
    assert found.partitions()["other-0"]["status"] == "failed"
    assert not found.report["is_complete"] and not (tmp_path / "clone" / "meta.properties").exists()


def test_another_secret_and_half_of_the_options_are_refused(source: Path, tmp_path: Path) -> None:
    to = tmp_path / "clone"
    assert "go together" in clone_compacted(source, to, f"--suppress={tmp_path}/list", status=2).stderr
    (tmp_path / "secret").write_bytes(b"another secret that is long enough\n")
    assert "another secret" in clone_compacted(source, to, *suppressed(tmp_path), status=2).stderr
    (tmp_path / "list").write_text("{}")
    assert "not a suppression list" in clone_compacted(source, to, *suppressed(tmp_path), status=2).stderr
    assert not to.exists()

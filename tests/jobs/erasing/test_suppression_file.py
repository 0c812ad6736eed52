"""`erase --suppress-out` writes what `restore --suppress` reads: a restored log does not bring erased records back."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sediment.jobs.erasing.suppression_file import add_to_suppression_list, read_suppression_list
from sediment.segment_io.errors import UsageError
from tests.faults.inline_spark import inline_spark
from tests.jobs.erasing.erased_logs import STATED, erase, make_logs, records
from tests.jobs.log_dirs import sediment, tree
from tests.segments import NOW_MS

SECRET = b"a secret of the operator"


@pytest.fixture(autouse=True)
def tasks_in_this_process() -> Iterator[None]:
    with inline_spark():
        yield


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_bytes(SECRET + b"\n")
    (tmp_path / "keys.txt").write_text("a\n")
    return make_logs(tmp_path / "logs")


def suppress_out(folder: Path) -> tuple[str, ...]:
    return f"--keys-file={folder}/keys.txt", f"--suppress-out={folder}/list", f"--secret-file={folder}/secret"


def test_the_keys_are_listed_for_every_selected_topic_also_where_none_was_found(logs, tmp_path):
    (tmp_path / "keys.txt").write_text("x\n")
    erase(logs, *STATED, *suppress_out(tmp_path))
    assert (tmp_path / "list").stat().st_mode & 0o777 == 0o600
    found = read_suppression_list(tmp_path / "list", tmp_path / "secret")
    assert [b"x" in found.of_topic(topic) for topic in ("people", "visits")] == [True, True]


def test_a_later_run_adds_to_the_list(logs, tmp_path):
    erase(logs, *STATED, "--partition=people-0", *suppress_out(tmp_path))
    (tmp_path / "keys.txt").write_text("b\n")
    erase(logs, *STATED, *suppress_out(tmp_path))
    found = read_suppression_list(tmp_path / "list", tmp_path / "secret")
    people, visits = found.of_topic("people"), found.of_topic("visits")
    assert [key in people for key in (b"a", b"b")] == [True, True]
    assert [key in visits for key in (b"a", b"b")] == [False, True]


def test_runs_at_the_same_time_lose_no_key(tmp_path):
    keys = [bytes([number]) for number in range(16)]
    runs = [
        threading.Thread(target=add_to_suppression_list, args=(tmp_path / "list", SECRET, ["t"], [key])) for key in keys
    ]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
    (tmp_path / "secret").write_bytes(SECRET)
    found = read_suppression_list(tmp_path / "list", tmp_path / "secret").of_topic("t")
    assert all(key in found for key in keys)


def test_a_dry_run_writes_no_list(logs, tmp_path):
    erase(logs, *STATED, "--dry-run", *suppress_out(tmp_path))
    assert not (tmp_path / "list").exists()


def test_nothing_is_erased_if_the_list_cannot_be_written(logs, tmp_path):
    before = tree(logs)
    (tmp_path / f"list.{os.getpid()}.tmp").mkdir()
    outcome = sediment("erase", logs, *STATED, "--json", "--yes", *suppress_out(tmp_path))
    assert outcome.status == 1
    assert "nothing was erased" in outcome.stderr
    assert tree(logs) == before


def test_a_list_of_another_secret_stops_the_run_before_anything_changes(logs, tmp_path):
    add_to_suppression_list(tmp_path / "list", b"another secret of theirs", ["people"], [b"z"])
    before = tree(logs)
    outcome = sediment("erase", logs, *STATED, "--yes", *suppress_out(tmp_path))
    assert (outcome.status, tree(logs)) == (2, before)
    assert "another secret" in outcome.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--where=true", "--suppress-out=@/list", "--secret-file=@/secret"), "lists complete keys"),
        (("--keys-file=@/keys.txt", "--suppress-out=@/list"), "needs --secret-file"),
        (
            (
                *("--keys-file=@/keys.txt", "--suppress-out=@/list", "--secret-file=@/secret"),
                *("--action=replace", "--replacement=@/keys.txt"),
            ),
            "is for keys that must have no value",
        ),
        (("--keys-file=@/keys.txt", "--suppress-out=@/logs/list", "--secret-file=@/secret"), "inside a log directory"),
    ],
)
def test_wrong_use_is_refused(logs, tmp_path, arguments, text):
    outcome = sediment("erase", logs, *STATED, "--yes", *(each.replace("@", str(tmp_path)) for each in arguments))
    assert outcome.status == 2
    assert text in outcome.stderr


# -------------------------------------------------------------------------------------------------------------- restore
def expired_and_erased(logs: Path, folder: Path) -> str:
    """Expire the segment with the only record of key x, with originals, then erase x; return the id of the expiry."""
    expired = sediment(
        *("expire", logs, "--json", "--broker-defaults", f"--keep-originals={folder}/kept", f"--now-ms={NOW_MS}"),
        *("--partition=visits-0", "--set=visits:retention.bytes=1", *STATED),
    )
    assert expired.status == 0, expired
    (folder / "keys.txt").write_text("x\n")
    erase(logs, *STATED, *suppress_out(folder))
    return str(expired.report["run_id"])


def test_a_restore_refuses_originals_with_suppressed_keys_and_says_so(logs, tmp_path):
    run = expired_and_erased(logs, tmp_path)
    before = tree(logs)
    restore = ("restore", logs, f"--from={tmp_path}/kept", f"--run={run}", "--json", "--yes")
    options = (f"--suppress={tmp_path}/list", f"--secret-file={tmp_path}/secret")
    for more in (("--dry-run",), ("--undo-erasure",)):
        refused = sediment(*restore, *options, *more)
        (report,) = refused.report["partitions"]
        assert (refused.status, report["status"], report["reason_code"]) == (1, "refused", "suppressed")
        assert "1 record with suppressed keys, the first at offset 1" in report["reason"]
        assert tree(logs) == before
    assert sediment(*restore).status == 0
    assert records(logs / "visits-0")[1] == (b"x", b"value")


def test_a_restore_takes_originals_without_suppressed_values(logs, tmp_path):
    erase(logs, *STATED, *suppress_out(tmp_path))
    (tmp_path / "keys.txt").write_text("c\n")
    kept = erase_with_originals(logs, tmp_path)
    outcome = sediment(
        *("restore", logs, f"--from={tmp_path}/kept", f"--run={kept}", "--json", "--yes", "--undo-erasure"),
        *(f"--suppress={tmp_path}/list", f"--secret-file={tmp_path}/secret"),
    )
    assert outcome.status == 0, outcome
    assert records(logs / "people-0")[3] == (b"c", b"value")
    assert records(logs / "people-0")[0] == (b"a", None)


def erase_with_originals(logs: Path, folder: Path) -> str:
    outcome = sediment(
        *("erase", logs, "--json", "--yes", *STATED, f"--keys-file={folder}/keys.txt"),
        f"--keep-originals={folder}/kept",
    )
    assert outcome.status == 0, outcome
    return str(outcome.report["run_id"])


def test_a_restore_needs_the_secret_of_the_list(logs, tmp_path):
    run = expired_and_erased(logs, tmp_path)
    restore = ("restore", logs, f"--from={tmp_path}/kept", f"--run={run}", "--yes", f"--suppress={tmp_path}/list")
    assert "go together" in sediment(*restore).stderr
    (tmp_path / "other").write_bytes(b"another secret of theirs")
    outcome = sediment(*restore, f"--secret-file={tmp_path}/other")
    assert (outcome.status, "another secret" in outcome.stderr) == (2, True)


@pytest.mark.parametrize("text", [json.dumps({"kind": "other"}), "[" * 100_000, "null", "9" * 5000])
def test_a_file_that_is_not_a_list_is_named(tmp_path, text):
    (tmp_path / "secret").write_bytes(SECRET)
    (tmp_path / "list").write_text(text)
    with pytest.raises(UsageError, match="not a suppression list"):
        read_suppression_list(tmp_path / "list", tmp_path / "secret")


@pytest.mark.parametrize("kind", ["pipe", "dangling link"])
def test_a_list_that_is_no_file_is_refused_before_anything_changes(logs, tmp_path, kind):
    path = tmp_path / "list"
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(tmp_path / "nowhere")
    before = tree(logs)
    outcome = sediment("erase", logs, *STATED, *suppress_out(tmp_path), "--action=drop", "--yes")
    assert outcome.status == 2 and "--suppress-out is not a regular file" in outcome.stderr
    assert tree(logs) == before

"""Expired tombstones and markers of an idle log: a broker keeps them for ever, and `compact --force` drops them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.faults.inline_spark import inline_spark
from tests.jobs.log_dirs import Outcome, make_log_dir, sediment, tree
from tests.segments import COMMIT, NOW_MS, batch_bytes, marker_bytes, write_segment
from tests.twin.segments import file_batches

RETENTION_MS = 60_000
LATER_MS = NOW_MS + RETENTION_MS
SETS = ("--broker-defaults", "--set=t:cleanup.policy=compact", f"--set=t:delete.retention.ms={RETENTION_MS}")


@pytest.fixture(autouse=True)
def _in_this_process():
    with inline_spark():
        yield


def run(command: str, log_dir: Path, *options: object, now_ms: int = LATER_MS) -> dict:
    outcome = sediment(command, log_dir, "--json", "--now-ms", now_ms, *SETS, *options)
    assert outcome.status == 0, outcome.stderr
    return outcome.partitions()["t-0"]


def shown(log_dir: Path, *options: object, now_ms: int = LATER_MS) -> str:
    outcome: Outcome = sediment("plan", log_dir, "--now-ms", now_ms, *SETS, *options)
    return outcome.stdout


def tombstones(log_dir: Path) -> int:
    logs = sorted((log_dir / "t-0").glob("*.log"))
    batches = [batch for log in logs for _, batch in file_batches(log.read_bytes()) if not batch.is_control]
    return sum(record.value is None for batch in batches for record in batch.records())


@pytest.fixture
def idle(tmp_path):
    """Return a log directory whose only log was cleaned, so that its four tombstones have a horizon."""
    source = tmp_path / "source"
    write_segment(source, 0, [batch_bytes(0, "abcd"), batch_bytes(4, "abcd", value=None)])
    write_segment(source, 8, [batch_bytes(8, "ef")])
    write_segment(source, 10, [batch_bytes(10, "z")])
    log_dir = make_log_dir(tmp_path / "logs", {"t-0": source}, dirty={"t-0": 0})
    assert run("compact", log_dir, now_ms=NOW_MS)["tombstones_waiting"] == 4
    return log_dir


def test_force_drops_the_expired_tombstones_of_an_idle_log(tmp_path, idle):
    before = tree(idle)
    for options, now_ms in (((), LATER_MS), (("--force",), LATER_MS - 1)):
        left = run("compact", idle, *options, now_ms=now_ms)
        assert (left["status"], left["reason_code"]) == ("skipped", "active-segment")
        assert tree(idle) == before
    shutil.copytree(idle, tmp_path / "before")
    for options in (("--force", "--dry-run"), ("--force",)):
        done = run("compact", idle, *options)
        assert (done["status"], done["messages_read"], done["messages_written"]) == ("compacted", 6, 2)
    assert tombstones(idle) == 0
    verified = sediment("verify", tmp_path / "before", idle, "--json", "--now-ms", LATER_MS, *SETS)
    assert verified.status == 0, verified.stdout
    done = tree(idle)
    again = run("compact", idle, "--force", now_ms=LATER_MS + 1)
    assert (again["status"], again["reason_code"]) == ("skipped", "active-segment")
    assert tree(idle) == done


def test_the_plan_says_what_drops_the_tombstones(idle):
    waiting = shown(idle, now_ms=NOW_MS + 1)
    assert "after that time, the next compaction of new records drops them, and `compact --force` does so" in waiting
    found = run("plan", idle)
    assert (found["status"], found["tombstones_waiting"], found["tombstones_expired"]) == ("blocked", 0, 4)
    assert "4 tombstones have expired; the next compaction of new records drops them, and `compact --force`" in shown(
        idle
    )
    for options in (("--force",), ("--force", "--exact")):
        forced = run("plan", idle, *options)
        assert (forced["status"], forced["messages_written"]) == ("cleanable", 2)
        assert "are cleaned again" in forced["reason"]
    run("compact", idle, "--force")
    assert run("plan", idle)["tombstones_expired"] == 0


def test_an_output_of_force_lacks_them_too(tmp_path, idle):
    before = tree(idle)
    assert run("compact", idle, "--force", "--output", tmp_path / "output")["status"] == "compacted"
    assert (tombstones(tmp_path / "output"), tree(idle)) == (0, before)


def test_tombstones_in_the_active_segment_need_a_roll(tmp_path):
    write_segment(tmp_path / "source", 0, [batch_bytes(0, "ab", value=None)])
    log_dir = make_log_dir(tmp_path / "logs", {"t-0": tmp_path / "source"})
    found = run("plan", log_dir)
    assert (found["reason_code"], found["tombstones_not_cleaned"]) == ("active-segment", 2)
    assert "2 tombstones are in the active segment" in shown(log_dir)
    assert "`compact --roll-active` rolls it" in shown(log_dir)
    rolled = run("compact", log_dir, "--roll-active", now_ms=NOW_MS)
    assert (rolled["status"], rolled["tombstones_waiting"]) == ("compacted", 2)
    assert run("compact", log_dir, "--force")["messages_written"] == 0


def test_tombstones_without_a_horizon_need_a_cleaning_from_the_start(tmp_path):
    write_segment(tmp_path / "source", 0, [batch_bytes(0, "ab", value=None)])
    write_segment(tmp_path / "source", 2, [batch_bytes(2, "z")])
    log_dir = make_log_dir(tmp_path / "logs", {"t-0": tmp_path / "source"}, dirty={"t-0": 2})
    found = run("plan", log_dir)
    assert (found["tombstones_waiting"], found["first_delete_horizon_ms"]) == (2, None)
    assert "`compact --from-start`, gives them one if delete.retention.ms is stated" in shown(log_dir)
    assert run("compact", log_dir, "--force")["status"] == "skipped"
    assert run("compact", log_dir, "--from-start")["first_delete_horizon_ms"] == LATER_MS + RETENTION_MS


def test_expired_markers_of_an_idle_log_go_too(tmp_path):
    source = tmp_path / "source"
    data = [batch_bytes(offset, "a", producer_id=7, sequence=offset, transactional=True) for offset in range(2)]
    write_segment(source, 0, [*data, marker_bytes(2, COMMIT, producer_id=7)])
    write_segment(source, 3, [batch_bytes(3, "a"), batch_bytes(4, "b")])
    write_segment(source, 5, [batch_bytes(5, "z")])
    log_dir = make_log_dir(tmp_path / "logs", {"t-0": source}, dirty={"t-0": 0})
    sets = ("--set=producer.id.expiration.ms=1",)
    first = run("compact", log_dir, *sets, now_ms=NOW_MS + 10)
    assert (first["status"], first["messages_written"]) == ("compacted", 3)
    # As in a broker, the marker gets its horizon from the first cleaning that finds no data of its transaction.
    assert run("compact", log_dir, *sets, "--from-start", now_ms=NOW_MS + 10)["messages_written"] == 3
    assert run("compact", log_dir, *sets, "--force", now_ms=LATER_MS)["status"] == "skipped"
    done = run("compact", log_dir, *sets, "--force", now_ms=LATER_MS + 10)
    assert (done["status"], done["messages_written"]) == ("compacted", 2)
    assert run("compact", log_dir, *sets, "--force", now_ms=LATER_MS + 11)["status"] == "skipped"


def test_tombstones_in_an_unreadable_batch_are_no_reason_to_clean_again(idle):
    log = idle / "t-0" / f"{0:020d}.log"
    content = log.read_bytes()
    log.write_bytes(content[:70] + bytes([content[70] ^ 1]) + content[71:])  # in the first record
    before = tree(idle)
    left = run("compact", idle, "--force")
    assert (left["status"], left["reason_code"]) == ("skipped", "active-segment")
    assert tree(idle) == before

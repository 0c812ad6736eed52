"""`sediment recover --abort-open-transactions`: what it ends, what it leaves open and why, and how it is undone."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from sediment.engine.clone.log_end import AtOnce
from sediment.engine.live.log.partition_log import PartitionLog
from sediment.engine.log_config import LogConfig
from sediment.jobs.command_line.options import CommonOptions
from sediment.jobs.recover import RecoverOptions, recover
from sediment.jobs.recovering.report import RecoveryReport
from sediment.segment_io.errors import DeclinedError
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import PartitionCheckpoints
from tests.jobs.log_dirs import Outcome, read_checkpoint, sediment, tree, write_checkpoint
from tests.segments import NOW_MS, batch_bytes, write_segment
from tests.served import unpacked

HANGING, EPOCH = 4001, 3
MARKER = ".kafka_cleanshutdown"
BROKER_EPOCH = '{"version":0,"brokerEpoch":17}'
HIGH_WATERMARKS = "replication-offset-checkpoint"
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
FIRST, END = 60, 62
"""The first offset of the hanging transaction in orders-1, and the log end: one plain record follows."""


def hang(log_dir: Path, name: str = "orders-1") -> Path:
    """Append a batch of a transaction that no coordinator knows, and a plain one; return the partition's directory."""
    partition = TopicPartition(*(part if n == 0 else int(part) for n, part in enumerate(name.rsplit("-", 1))))  # type: ignore[arg-type]
    directory = log_dir / name
    checkpoints = PartitionCheckpoints(clean_shutdown=True)
    with PartitionLog.open(
        partition,
        directory,
        LogConfig(),
        checkpoints,
        Fs(),
        clock=lambda: NOW_MS,
        scheduler=AtOnce(),
        verify_transactions=False,
    ) as log:
        data = batch_bytes(0, producer_id=HANGING, producer_epoch=EPOCH, transactional=True)
        log.append_as_leader(data, max(log.latest_epoch, 0))
        log.append_as_leader(batch_bytes(0), max(log.latest_epoch, 0))
        end = log.log_end_offset
    for file in (HIGH_WATERMARKS, RECOVERY_POINTS):
        if (log_dir / file).exists():
            write_checkpoint(log_dir / file, {**read_checkpoint(log_dir / file), name: end})
    return directory


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """Return the directory of a node that is the whole cluster, with a hanging transaction, after a clean stop."""
    found = unpacked(tmp_path / "logs")
    hang(found)
    (found / MARKER).write_text(BROKER_EPOCH)
    return found


def bare(tmp_path: Path) -> Path:
    """Return a copy of a partition that belongs to no cluster, without snapshots, as after a clean stop."""
    found = tmp_path / "bare"
    data = [batch_bytes(0), batch_bytes(1, producer_id=HANGING, producer_epoch=EPOCH, transactional=True)]
    write_segment(found / "t-0", 0, [*data, batch_bytes(2)])
    (found / MARKER).touch()
    return found


def abort(*log_dirs: Path, arguments: Sequence[object] = ()) -> Outcome:
    return sediment(
        "recover", *log_dirs, "--abort-open-transactions", "--yes", "--json", "--now-ms", NOW_MS, *arguments
    )


def open_producers(*log_dirs: Path) -> dict[str, list[int]]:
    rows = sediment("dump", "--what", "open_transactions", "--json", *log_dirs).stdout.splitlines()
    found: dict[str, list[int]] = {}
    for row in map(json.loads, rows):
        found.setdefault(f"{row['topic']}-{row['partition']}", []).append(row["producerId"])
    return found


def committed(log_dir: Path, name: str) -> list[int]:
    """Return the offsets that a reader of committed data sees."""
    dumped = sediment("dump", "--what", "records", "--isolation", "read_committed", "--json", log_dir / name)
    return [json.loads(line)["offset"] for line in dumped.stdout.splitlines()]


# -------------------------------------------------------------------------------------------------------------- aborted
def test_readers_of_committed_data_go_on_after_a_hanging_transaction(log_dir: Path) -> None:
    before = tree(log_dir / "orders-1")
    assert committed(log_dir, "orders-1")[-1] == FIRST - 1
    outcome = abort(log_dir)
    assert outcome.status == 0, outcome.stderr
    row = outcome.partitions()["orders-1"]
    assert row["repairs"] == [
        f"transaction from offset {FIRST} on, of producer {HANGING} (epoch {EPOCH}), aborted: the ABORT marker at "
        f"offset {END} ends it"
    ]
    assert (row["log_end_offset"], row["last_stable_offset"], row["high_watermark"]) == (END + 1, END + 1, END + 1)
    assert [HANGING, FIRST, END, END + 1] in row["aborted"]
    seen = committed(log_dir, "orders-1")
    assert (FIRST in seen, END - 1 in seen) == (False, True)
    after = tree(log_dir / "orders-1")
    assert {name: after[name] for name in before if name.endswith(".log")} == {
        name: data for name, data in before.items() if name.endswith(".log")
    }


def test_the_files_of_the_directory_are_those_of_a_clean_stop_after_the_marker(log_dir: Path) -> None:
    watermarks = read_checkpoint(log_dir / HIGH_WATERMARKS)
    assert abort(log_dir).status == 0
    assert (log_dir / MARKER).read_text() == BROKER_EPOCH
    assert read_checkpoint(log_dir / HIGH_WATERMARKS) == {**watermarks, "orders-1": END + 1}
    assert read_checkpoint(log_dir / RECOVERY_POINTS)["orders-1"] == END + 1
    assert (log_dir / "orders-1" / f"{END + 1:020d}.snapshot").exists()
    again = abort(log_dir).partitions()["orders-1"]
    assert (again["repairs"], again["log_end_offset"]) == ([], END + 1)


def test_a_log_without_a_high_watermark_gets_none(log_dir: Path) -> None:
    watermarks = read_checkpoint(log_dir / HIGH_WATERMARKS)
    del watermarks["orders-1"]
    write_checkpoint(log_dir / HIGH_WATERMARKS, watermarks)
    assert abort(log_dir).status == 0
    assert read_checkpoint(log_dir / HIGH_WATERMARKS) == watermarks


def test_after_an_unclean_stop_the_log_is_repaired_first(log_dir: Path) -> None:
    (log_dir / MARKER).unlink()
    log = max((log_dir / "orders-1").glob("*.log"))
    log.write_bytes(log.read_bytes()[:-5])
    row = abort(log_dir).partitions()["orders-1"]
    assert "the log ends at offset 61" in row["repairs"][0]
    assert row["repairs"][-1].endswith("the ABORT marker at offset 61 ends it")
    assert (log_dir / MARKER).read_bytes() == b""
    assert open_producers(log_dir) == {"payments-0": [2]}


def test_a_copy_without_snapshots_does_not_forget_its_transaction(tmp_path: Path) -> None:
    found = bare(tmp_path)
    row = abort(found).partitions()["t-0"]
    assert "producer 4001 (epoch 3)" in row["repairs"][-1]
    assert committed(found, "t-0") == [0, 2]


def test_a_log_that_lacks_records_of_another_replica_gets_no_markers(tmp_path: Path) -> None:
    found = bare(tmp_path)
    write_checkpoint(found / HIGH_WATERMARKS, {"t-0": 9})
    before = tree(found / "t-0")
    outcome = abort(found)
    row = outcome.partitions()["t-0"]
    assert (outcome.status, row["reason_code"], row["log_end_offset"]) == (1, "records-missing", 3)
    assert row["warnings"][-1].startswith("no transaction was aborted, because the markers would take the offsets")
    assert {name: data for name, data in tree(found / "t-0").items() if name in before} == before


def test_an_empty_active_segment_is_replaced(log_dir: Path) -> None:
    empty = log_dir / "orders-1" / f"{END:020d}.log"
    empty.touch()
    assert abort(log_dir).status == 0
    assert empty.stat().st_size > 0
    assert open_producers(log_dir) == {"payments-0": [2]}


def test_links_of_earlier_backups_keep_their_bytes(log_dir: Path, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    backup.mkdir()
    for path in (log_dir / "orders-1").iterdir():
        os.link(path, backup / path.name)
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in backup.iterdir()}
    assert abort(log_dir).status == 0
    assert {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in backup.iterdir()} == before


def test_new_files_have_the_mode_of_the_log(log_dir: Path) -> None:
    for path in (log_dir / "orders-1").iterdir():
        path.chmod(0o600)
    assert abort(log_dir).status == 0
    assert {path.stat().st_mode & 0o777 for path in (log_dir / "orders-1").iterdir()} == {0o600}


# ------------------------------------------------------------------------------------------------------------ left open
def test_a_transaction_that_its_coordinator_will_end_stays_open(log_dir: Path) -> None:
    before = tree(log_dir / "payments-0")
    outcome = abort(log_dir)
    row = outcome.partitions()["payments-0"]
    assert (outcome.status, row["status"], row["reason_code"]) == (0, "recovered", "ongoing-transaction")
    assert "producer 2 (epoch 0) began at offset 35 stays open: transactional id unfinished is ongoing" in row["reason"]
    assert tree(log_dir / "payments-0") == before
    assert open_producers(log_dir) == {"payments-0": [2]}


def test_a_transaction_whose_coordinator_is_elsewhere_stays_open(log_dir: Path) -> None:
    (log_dir / "__transaction_state-0").rename(log_dir.parent / "elsewhere")
    sediment("recover", log_dir)  # removes an old snapshot
    before = tree(log_dir / "orders-1")
    outcome = abort(log_dir)
    row = outcome.partitions()["orders-1"]
    assert (outcome.status, row["status"], row["reason_code"]) == (1, "failed", "coordinator-unknown")
    assert "its coordinator may have decided to commit it, and __transaction_state-0 is not here" in row["reason"]
    assert tree(log_dir / "orders-1") == before
    assert (log_dir / MARKER).read_text() == BROKER_EPOCH


def test_unreadable_records_of_the_coordinators_leave_every_transaction_open(log_dir: Path) -> None:
    log = log_dir / "__transaction_state-1" / f"{0:020d}.log"
    data = bytearray(log.read_bytes())
    data[300] ^= 1
    log.write_bytes(data)
    row = abort(log_dir, arguments=["--partition", "orders-1"]).partitions()["orders-1"]
    assert (row["status"], row["reason_code"]) == ("failed", "coordinator-unknown")
    assert "the records of the transaction coordinators cannot be read" in row["reason"]


def test_a_node_without_its_metadata_aborts_nothing(log_dir: Path) -> None:
    (log_dir / "__cluster_metadata-0").rename(log_dir.parent / "metadata")
    outcome = abort(log_dir)
    assert (outcome.status, outcome.partitions()["orders-1"]["reason_code"]) == (1, "replicas-unknown")


def test_a_zookeeper_broker_aborts_nothing_but_names_what_does(tmp_path: Path) -> None:
    found = bare(tmp_path)
    (found / "meta.properties").write_text("version=0\nbroker.id=1\ncluster.id=abc\n")
    row = abort(found).partitions()["t-0"]
    assert (row["status"], row["reason_code"]) == ("failed", "replicas-unknown")
    assert "clone the directory with --abort-open-transactions" in row["reason"]


# ------------------------------------------------------------------------------------------------- asked, shown, undone
def test_a_dry_run_changes_nothing_and_says_the_same(log_dir: Path) -> None:
    before = tree(log_dir)
    planned = abort(log_dir, arguments=["--dry-run"]).partitions()
    assert tree(log_dir) == before
    done = abort(log_dir).partitions()
    assert {name: row["repairs"] for name, row in planned.items()} == {
        name: row["repairs"] for name, row in done.items()
    }


def test_without_a_terminal_yes_is_needed(log_dir: Path) -> None:
    before = tree(log_dir)
    outcome = sediment("recover", log_dir, "--abort-open-transactions")
    assert (outcome.status, outcome.stdout, tree(log_dir)) == (2, "", before)
    assert "--abort-open-transactions asks on a terminal before it changes anything" in outcome.stderr


def options_for(log_dir: Path) -> CommonOptions:
    return CommonOptions(log_dirs=(log_dir,), now_ms=NOW_MS, as_json=True, quiet=True)


def test_a_no_changes_nothing(log_dir: Path) -> None:
    (log_dir / MARKER).unlink()
    before, asked = tree(log_dir), []

    def confirm(transactions: Sequence[str]) -> bool:
        asked.extend(transactions)
        return False

    with pytest.raises(DeclinedError):
        recover(options_for(log_dir), RecoverOptions(abort_open_transactions=True), confirm=confirm)
    assert tree(log_dir) == before
    assert asked == [
        f"orders-1: producer {HANGING} (epoch {EPOCH}) began a transaction at offset {FIRST}, last wrote 0 seconds "
        "ago, and has not ended it"
    ]


def test_only_what_was_shown_is_aborted(log_dir: Path) -> None:
    """A repair that cuts off the corrupt marker of a transaction opens the transaction again, after the question."""
    directory = hang(log_dir, "orders-0")
    assert abort(log_dir, arguments=["--partition", "orders-0"]).status == 0
    (log_dir / MARKER).unlink()
    marker = max(directory.glob("*.log"))
    data = bytearray(marker.read_bytes())
    data[-1] ^= 1
    marker.write_bytes(data)
    report = recover(options_for(log_dir), RecoverOptions(abort_open_transactions=True), confirm=lambda _: True)
    rows: dict[str, RecoveryReport] = {row.partition: row for row in report.partitions}
    assert "aborted" in rows["orders-1"].repairs[-1]
    assert not any("aborted" in repair for repair in rows["orders-0"].repairs)
    assert open_producers(log_dir)["orders-0"] == [HANGING]
    assert (rows["orders-0"].status, rows["orders-0"].reason_code) == ("failed", "not-asked")
    assert "run the command again" in (rows["orders-0"].reason or "")


def test_a_snapshot_for_a_bare_copy_gets_the_mode_of_the_log(tmp_path: Path) -> None:
    log_dir = tmp_path / "bare"
    log = write_segment(log_dir / "t-0", 0, [batch_bytes(0, producer_id=HANGING, producer_epoch=EPOCH)])
    (log_dir / MARKER).touch()
    log.chmod(0o640)
    assert abort(log_dir).status == 0
    assert (log_dir / "t-0" / f"{1:020d}.snapshot").stat().st_mode & 0o777 == 0o640


def test_nothing_to_abort_asks_nothing(log_dir: Path) -> None:
    assert abort(log_dir).status == 0
    report = recover(
        options_for(log_dir), RecoverOptions(abort_open_transactions=True), confirm=lambda _: pytest.fail("asked")
    )
    assert len(report.partitions) == 10


def test_restore_undoes_it(log_dir: Path, tmp_path: Path) -> None:
    before = tree(log_dir / "orders-1")
    outcome = abort(log_dir, arguments=["--keep-originals", tmp_path / "kept"])
    undo = outcome.partitions()["orders-1"]["undo"]
    _, command, _ = undo.split("`")
    assert sediment(*shlex.split(command)[1:], "--yes").status == 0
    assert tree(log_dir / "orders-1") == before
    assert open_producers(log_dir) == {"payments-0": [2], "orders-1": [HANGING]}
    assert committed(log_dir, "orders-1")[-1] == FIRST - 1
    assert_lacks_nothing(log_dir)


def assert_lacks_nothing(log_dir: Path) -> None:
    """Check that the offsets of the removed markers do not count as lost."""
    outcome = sediment("recover", log_dir, "--json")
    assert (outcome.status, outcome.partitions()["orders-1"]["missing_records"]) == (0, [])
    for file in (HIGH_WATERMARKS, RECOVERY_POINTS):
        assert read_checkpoint(log_dir / file)["orders-1"] == END


@pytest.mark.parametrize("has_empty_segment", [False, True])
def test_without_originals_the_named_files_are_the_undo(log_dir: Path, has_empty_segment: bool) -> None:
    if has_empty_segment:
        (log_dir / "orders-1" / f"{END:020d}.log").touch()
    logs = {name: data for name, data in tree(log_dir / "orders-1").items() if name.endswith(".log") and data}
    _, command, _ = abort(log_dir).partitions()["orders-1"]["undo"].split("`")
    subprocess.run(command, shell=True, check=True)
    assert_lacks_nothing(log_dir)
    assert open_producers(log_dir) == {"payments-0": [2], "orders-1": [HANGING]}
    row = sediment("recover", log_dir, "--json").partitions()["orders-1"]
    assert (row["log_end_offset"], row["first_unstable_offset"], row["high_watermark"]) == (END, FIRST, END)
    assert {name: data for name, data in tree(log_dir / "orders-1").items() if name in logs} == logs

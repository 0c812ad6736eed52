"""A directory that a broker before Kafka 0.11 wrote: such a broker cannot read what Sediment writes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.jobs.log_dirs import sediment, tree, write_checkpoint
from tests.segments import NOW_MS, batch_bytes, write_segment
from tests.twin.batches import Record
from tests.twin.legacy import encode_legacy_record

POLICY = "--set=old:cleanup.policy=compact"
REFUSED = "a broker before Kafka 0.11 wrote this directory"


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """What a clean stop of Kafka 0.10.2 leaves: no file of log start offsets, no snapshots and no leader epochs."""
    path = tmp_path / "data"
    for base in (0, 5):
        records = (Record(base + n, NOW_MS, b"key", b"value") for n in range(5))
        write_segment(path / "old-0", base, [encode_legacy_record(record, magic=1) for record in records])
    (path / "old-0" / f"{10:020d}.log").touch()
    (path / "empty-0").mkdir()
    (path / "empty-0" / f"{0:020d}.log").touch()
    (path / "meta.properties").write_text("version=0\nbroker.id=1\n")
    for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
        write_checkpoint(path / name, {"old-0": 10})
    (path / ".kafka_cleanshutdown").touch()
    return path


@pytest.mark.parametrize("command", [("compact", "--force", POLICY), ("erase", "--yes"), ("expire", POLICY)])
def test_no_run_changes_it(log_dir: Path, tmp_path: Path, command: tuple[str, ...]) -> None:
    keys = tmp_path / "keys.txt"
    keys.write_text("key\n")
    before = tree(log_dir)
    more = ("--keys-file", keys) if command[0] == "erase" else ()
    outcome = sediment(command[0], log_dir, *command[1:], *more)
    assert outcome.status == 2 and REFUSED in outcome.stderr, outcome.stderr
    assert tree(log_dir) == before


def test_an_output_may_have_the_result(log_dir: Path, tmp_path: Path) -> None:
    before = tree(log_dir)
    outcome = sediment("compact", log_dir, "--output", tmp_path / "output", POLICY, "--json")
    assert outcome.partitions()["old-0"]["status"] == "compacted", outcome.stderr
    assert tree(log_dir) == before


def test_it_may_be_changed_once_a_later_broker_has_used_it(log_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert sediment("compact", log_dir, "--dry-run", POLICY).status == 0
    assert REFUSED in caplog.text
    caplog.clear()
    write_segment(log_dir / "new-0", 0, [batch_bytes(0)])
    assert sediment("compact", log_dir, "--dry-run", POLICY).status == 0
    assert REFUSED not in caplog.text
    shutil.rmtree(log_dir / "new-0")
    write_checkpoint(log_dir / "log-start-offset-checkpoint", {})
    assert sediment("compact", log_dir, "--dry-run", POLICY).status == 0
    assert REFUSED not in caplog.text


VERSIONS = {"0.9.0": True, "0.10.2-IV0": True, "0.11.0": False, "2.8": False}


@pytest.mark.parametrize("command", [("plan",), ("compact", "--dry-run")])
@pytest.mark.parametrize("version", VERSIONS)
def test_a_run_warns_of_a_topic_whose_clients_may_not_read_format_2(
    log_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, command: tuple[str, ...], version: str
) -> None:
    write_checkpoint(log_dir / "log-start-offset-checkpoint", {})
    configs = tmp_path / "topics.json"
    own = {"cleanup.policy": "compact", "message.format.version": version}
    configs.write_text(json.dumps({"old": own, "empty": {}}))
    outcome = sediment(command[0], log_dir, f"--topic-configs={configs}", *command[1:])
    assert outcome.status == 0, outcome.stderr
    assert ("message.format.version is below 0.11 for topic old, " in caplog.text) == VERSIONS[version]

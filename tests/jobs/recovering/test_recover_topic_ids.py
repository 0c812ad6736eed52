"""`sediment recover`, `plan` and `doctor` on folders whose partition.metadata a power loss has emptied or removed."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from tests.archives import unpack
from tests.jobs.log_dirs import sediment, tree
from tests.segments import NOW_MS, batch_bytes, write_segment

KRAFT = Path(__file__).parents[2] / "data" / "kraft"
COMPACTED = "compacted-0"


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """A directory of a stopped KRaft broker, with two records in one partition."""
    with tarfile.open(KRAFT / "log-dir.tar.gz") as archive:
        unpack(archive, tmp_path / "data")
    write_segment(tmp_path / "data" / COMPACTED, 0, [batch_bytes(0), batch_bytes(1)])
    (tmp_path / "data" / ".kafka_cleanshutdown").touch()
    return tmp_path / "data"


def id_file(log_dir: Path, name: str = COMPACTED) -> Path:
    return log_dir / name / "partition.metadata"


def lose(file: Path, content: bytes | None) -> None:
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)


def check_of(log_dir: Path) -> dict[str, str]:
    (found,) = [
        check for check in sediment("doctor", "--json", log_dir).report["checks"] if check["name"] == "topic-ids"
    ]
    return found


@pytest.mark.parametrize("content", [None, b"", b"version: 0\ntopic_i"])
def test_a_lost_id_is_written_from_the_metadata_log(log_dir: Path, content: bytes | None) -> None:
    wanted = id_file(log_dir).read_bytes()
    assert sediment("recover", log_dir, "--json").partitions()[COMPACTED]["repairs"] == []
    lose(id_file(log_dir), content)
    before = tree(log_dir)
    assert check_of(log_dir)["status"] == "failed"
    tried = sediment("recover", log_dir, "--dry-run", "--json", "--now-ms", NOW_MS)
    assert (tried.status, tree(log_dir)) == (0, before)
    done = sediment("recover", log_dir, "--json", "--now-ms", NOW_MS)
    for outcome in (tried, done):
        (repair,) = outcome.partitions()[COMPACTED]["repairs"]
        assert repair.startswith("partition.metadata ") and wanted.decode()[-22:] in repair
        assert all(row["status"] == "recovered" for row in outcome.report["partitions"])
    assert (done.status, id_file(log_dir).read_bytes()) == (0, wanted)
    assert check_of(log_dir)["status"] == "ok"


def test_an_id_that_was_written_is_reported_even_if_the_log_then_cannot_be_loaded(log_dir: Path) -> None:
    wanted = id_file(log_dir).read_bytes()
    lose(id_file(log_dir), b"")
    (log_dir / COMPACTED / "leader-epoch-checkpoint").write_text("nonsense")
    tried = sediment("recover", log_dir, "--dry-run", "--json")
    done = sediment("recover", log_dir, "--json")
    for outcome in (tried, done):
        row = outcome.partitions()[COMPACTED]
        (repair,) = row["repairs"]
        assert (outcome.status, row["status"]) == (1, "failed") and repair.startswith("partition.metadata ")
    assert id_file(log_dir).read_bytes() == wanted


def test_a_readable_id_that_differs_stays_and_is_said(log_dir: Path) -> None:
    other = b"version: 0\ntopic_id: 4vTm1bxNTxK4bBqO3mAVxg"
    id_file(log_dir).write_bytes(other)
    done = sediment("recover", log_dir, "--json")
    (warning,) = done.partitions()[COMPACTED]["warnings"]
    assert "4vTm1bxNTxK4bBqO3mAVxg" in warning and "-stray" in warning
    assert (done.status, id_file(log_dir).read_bytes()) == (0, other)
    assert f"{COMPACTED}: partition.metadata has topic id" in sediment("recover", log_dir).stdout
    assert check_of(log_dir)["status"] == "warning"


def test_the_folder_of_a_topic_that_was_made_again_gets_no_id(log_dir: Path) -> None:
    (deleted,) = log_dir.glob("again-0.*-delete")
    for path in (log_dir / "again-0").iterdir():
        path.unlink()
    (log_dir / "again-0").rmdir()
    deleted.rename(log_dir / "again-0")
    id_file(log_dir, "again-0").unlink()
    row = sediment("recover", log_dir, "--json").partitions()["again-0"]
    assert "topic again was deleted and created again" in row["warnings"][0]
    assert not id_file(log_dir, "again-0").exists()


def test_an_empty_id_without_metadata_fails_only_its_own_partition(log_dir: Path) -> None:
    for path in (log_dir / "__cluster_metadata-0").iterdir():
        path.unlink()
    (log_dir / "__cluster_metadata-0").rmdir()
    lose(id_file(log_dir), b"")
    done = sediment("recover", log_dir, "--json")
    rows = done.partitions()
    assert (done.status, rows.pop(COMPACTED)["reason_code"]) == (1, "no-topic-id")
    assert {row["status"] for row in rows.values()} == {"recovered"}
    assert id_file(log_dir).read_bytes() == b""
    (log_dir / "meta.properties").write_text("version=0\nbroker.id=1\n")
    reason = sediment("recover", log_dir, "--json").partitions()[COMPACTED]["reason"]
    assert "partition.metadata has 0 bytes, so a broker does not start" in reason
    assert "move the file out of the folder" in reason
    id_file(log_dir).unlink()
    assert sediment("recover", log_dir).status == 0


def test_plan_says_what_a_broker_will_do(log_dir: Path) -> None:
    lose(id_file(log_dir), None)
    done = sediment("plan", log_dir, "--json", "--now-ms", NOW_MS)
    rows = done.partitions()
    assert rows.pop(COMPACTED)["warnings"] == [
        "partition.metadata is missing, so a broker renames the folder to -stray and serves the partition empty; run "
        "`sediment recover`, which writes the id from __cluster_metadata-0"
    ]
    assert not any(row["warnings"] for row in rows.values())
    assert f"{COMPACTED}: partition.metadata is missing" in sediment("plan", log_dir, "--now-ms", NOW_MS).stdout

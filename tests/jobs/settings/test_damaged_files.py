"""Small files of a log directory that a power loss emptied: what is said about each, and by which commands."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import pytest

from sediment.jobs.settings.cluster_settings import open_directories
from sediment.jobs.settings.damaged_files import DamagedFile, damaged_files
from sediment.jobs.settings.resolve import Settings
from sediment.jobs.settings.run_settings import RunSettings
from sediment.jobs.settings.selection import Selection
from sediment.segment_io.errors import CorruptCheckpointError
from sediment.segment_io.fs import Fs
from tests.archives import unpack
from tests.jobs.log_dirs import sediment, tree, write_checkpoint

KRAFT = Path(__file__).parents[2] / "data" / "kraft"
METADATA = "__cluster_metadata-0"
CHECKPOINTS = (
    "recovery-point-offset-checkpoint",
    "log-start-offset-checkpoint",
    "replication-offset-checkpoint",
    "cleaner-offset-checkpoint",
)


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    with tarfile.open(KRAFT / "log-dir.tar.gz") as archive:
        unpack(archive, tmp_path / "data")
    (tmp_path / "data" / ".kafka_cleanshutdown").touch()
    return tmp_path / "data"


def found_in(*log_dirs: Path, settings: Settings | None = None) -> list[DamagedFile]:
    opened = open_directories(log_dirs, Selection(), RunSettings((settings or Settings(),)), Fs())
    return [file for directory in opened for file in damaged_files(directory, opened, Fs())]


def latest_snapshot(log_dir: Path) -> str:
    return max(path.name for path in (log_dir / METADATA).glob("*.checkpoint"))


def test_a_whole_directory_has_no_damaged_file(log_dir: Path) -> None:
    assert found_in(log_dir) == []


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("meta.properties", "write these lines into it: version=1, node.id="),
        ("bootstrap.checkpoint", "move it away, because the metadata log has replaced it"),
        (f"{METADATA}/partition.metadata", "move it away, and the broker writes it again"),
        (f"{METADATA}/quorum-state", "if this node is the only controller, or no controller, move it away"),
        (f"{METADATA}/snapshot", "move it away, because the log, or an older snapshot and the log"),
    ],
)
def test_a_file_on_which_no_broker_starts_is_named_with_the_next_action(log_dir: Path, name: str, advice: str) -> None:
    name = name.replace("snapshot", latest_snapshot(log_dir))
    (log_dir / name).write_bytes(b"")
    before = tree(log_dir)
    (file,) = found_in(log_dir)
    assert (file.file, file.prevents_start) == (name, True)
    assert advice in file.advice and file.what.endswith(", so a broker does not start")
    done = sediment("recover", log_dir, "--dry-run", "--json")
    (said,) = done.report["damaged_files"]
    assert (done.status, said["file"], said["advice"]) == (1, name, file.advice)
    assert {row["status"] for row in done.report["partitions"]} == {"recovered"}
    assert f"{log_dir / name} {file.what}; {file.advice}" in sediment("recover", log_dir, "--dry-run").stdout
    (check,) = checks_of(log_dir)
    assert (check["status"], check["found"], check["advice"]) == ("failed", f"{name} {file.what}", file.advice)
    assert sediment("plan", log_dir).status == 0
    assert tree(log_dir) == before


def checks_of(log_dir: Path) -> list[dict[str, Any]]:
    return [check for check in sediment("doctor", "--json", log_dir).report["checks"] if check["name"] == "small-files"]


def test_a_bootstrap_checkpoint_that_nothing_has_replaced_must_be_restored(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=c\n")
    (tmp_path / "bootstrap.checkpoint").touch()
    (file,) = found_in(tmp_path)
    assert "restore it" in file.advice


def test_the_lines_of_meta_properties_come_from_the_metadata_and_from_the_nodes_other_directories(
    log_dir: Path, tmp_path: Path
) -> None:
    (log_dir / "meta.properties").write_bytes(b"node.id=1\n#")
    lines = found_in(log_dir)[0].advice
    assert "node.id=… (of the broker's server.properties), cluster.id=… (of another meta.properties" in lines
    config = tmp_path / "server.properties"
    config.write_text("process.roles=broker\nnode.id=7\n")
    assert "node.id=7," in found_in(log_dir, settings=Settings.load(config, ()))[0].advice
    other = tmp_path / "other"
    other.mkdir()
    (other / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=c-1\n")
    assert "version=1, node.id=1, cluster.id=c-1" in found_in(log_dir, other)[0].advice


def test_a_meta_properties_that_has_lost_its_node_is_named(log_dir: Path) -> None:
    (log_dir / "meta.properties").write_text("cluster.id=c\n")
    (file,) = found_in(log_dir)
    assert file.what == "names no node, so a broker does not start"


def test_only_what_reads_goes_on_without_meta_properties(log_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    (log_dir / "meta.properties").write_bytes(b"")
    found_in(log_dir)
    assert "a broker does not start on this directory: meta.properties has 0 bytes" in caplog.text
    with pytest.raises(CorruptCheckpointError, match="has 0 bytes"):
        open_directories([log_dir], Selection(), RunSettings((Settings(),)), Fs(), in_place=True)


def test_an_empty_checkpoint_beside_others_is_a_warning(log_dir: Path) -> None:
    for name in CHECKPOINTS:
        (log_dir / name).touch()
    assert found_in(log_dir) == []  # a broker that was stopped in its first minute
    write_checkpoint(log_dir / CHECKPOINTS[0], {"plain-0": 0})
    found = found_in(log_dir)
    assert [file.file for file in found] == list(CHECKPOINTS[1:])
    assert not any(file.prevents_start for file in found)
    done = sediment("recover", log_dir, "--dry-run", "--json")
    assert (done.status, len(done.report["damaged_files"])) == (0, 3)
    assert {check["status"] for check in checks_of(log_dir)} == {"warning"}

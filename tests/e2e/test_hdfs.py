"""Directories on a real HDFS as sources and outputs: the same bytes as from and to directories of this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sediment.segment_io.errors import UsageError
from sediment.segment_io.stores import CHUNK_BYTES, Store
from tests.e2e.hdfs import running_hdfs
from tests.jobs.log_dirs import Outcome, make_log_dir, sediment_process, tree, write_log
from tests.served import unpacked

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

MANIFEST = "sediment-manifest.json"
OPTIONS = ("--with", "groups,transactions,configs")


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_hdfs(tmp_path_factory.mktemp("hdfs")) as uri:
        yield uri


def upload(log_dir: Path, uri: str) -> None:
    store = Store(uri)
    for name, content in tree(log_dir).items():
        store.make_folder(name.rpartition("/")[0])
        store.write(name, [content])


def content_of(uri: str) -> dict[str, bytes]:
    store = Store(uri)
    return {name: b"".join(store.chunks(name)) for name in store.files()}


def run(*arguments: object) -> Outcome:
    outcome = sediment_process(*arguments, "--json", timeout=600)
    assert outcome.status == 0, outcome.stderr
    return outcome


def test_files_are_written_listed_renamed_read_in_ranges_and_removed(hdfs: str) -> None:
    store = Store(f"{hdfs}/a%20b/store")
    assert store.files() == {} and store.folders() == [] and store.stamp("x") is None and store.read("x") is None
    with pytest.raises(FileNotFoundError, match=r"hdfs://127\.0\.0\.1:[0-9]+/a%20b/store/x"):
        store.open_ranges("x")
    store.make_folder("t-0")
    content = bytes(range(256)) * (CHUNK_BYTES // 256) + b"end"
    assert store.write("t-0/x", [content[:5], memoryview(content)[5:]]) == len(content)
    assert [len(piece) for piece in store.chunks("t-0/x")] == [CHUNK_BYTES, 3]
    assert store.open_ranges("t-0/x").read(CHUNK_BYTES - 2, 100) == content[-5:]
    for wanted in (b"old", b"newer"):
        assert store.put("y", [wanted], part="y.part") == len(wanted)
        assert store.read("y") == wanted
    stamp = store.stamp("y")
    assert stamp is not None and stamp.size_bytes == 5 and stamp.mtime_ns > 0
    assert store.files()["y"].mtime_ns == stamp.mtime_ns
    assert list(store.files()) == ["t-0/x", "y"] and store.folders() == ["t-0"]
    assert store.shows_incomplete_files and store.local_path is None
    store.delete("y")
    store.delete("y")
    store.delete_folder("t-0")
    store.delete_folder("t-0")
    assert store.files() == {}


def test_a_uri_with_a_user_is_refused(hdfs: str) -> None:
    with pytest.raises(UsageError, match="HADOOP_USER_NAME"):
        Store(hdfs.replace("//", "//me@")).files()


def test_a_clone_from_hdfs_is_the_clone_from_the_files(hdfs: str, tmp_path: Path) -> None:
    source, uri = unpacked(tmp_path / "source"), f"{hdfs}/clone/logs"
    upload(source, uri)
    before = content_of(uri)
    remote = run("clone", uri, "--to", tmp_path / "remote", *OPTIONS).partitions()
    run("clone", source, "--to", tmp_path / "local", *OPTIONS)
    assert content_of(uri) == before
    assert remote["orders-0"]["from"] == f"{uri}/orders-0"
    found, wanted = tree(tmp_path / "remote"), tree(tmp_path / "local")
    logs = [name for name in wanted if "/" in name or name.endswith("-checkpoint")]
    assert logs and {name: found.get(name) for name in logs} == {name: wanted[name] for name in logs}


def test_an_output_on_hdfs_has_the_files_of_an_output_here_and_can_be_cloned(hdfs: str, tmp_path: Path) -> None:
    partitions = {name: write_log(tmp_path / "made" / name) for name in ("t-0", "other-0")}
    log_dir = make_log_dir(tmp_path / "logs", partitions, dirty={"t-0": 0})
    source, output = f"{hdfs}/output/logs", f"{hdfs}/output/compacted"
    upload(log_dir, source)
    before = content_of(source)
    options = ("--force", "--set=t:cleanup.policy=compact")
    rows = run("compact", source, "--output", output, *options).partitions()
    assert rows["t-0"]["status"] == "compacted"
    run("compact", log_dir, "--output", tmp_path / "local", *options)
    assert content_of(source) == before
    found, wanted = content_of(output), tree(tmp_path / "local")
    assert found.keys() - {".lock"} == wanted.keys() and MANIFEST in found
    differing = (MANIFEST, ".lock")
    assert {name: content for name, content in found.items() if name not in differing} == {
        name: content for name, content in wanted.items() if name not in differing
    }
    assert not [name for name in found if name.endswith(".part")]
    cloned = run("clone", output, "--to", tmp_path / "clone").partitions()
    assert {row["status"] for row in cloned.values()} == {"cloned"}
    assert tree(tmp_path / "clone")["t-0/00000000000000000000.log"] == wanted["t-0/00000000000000000000.log"]

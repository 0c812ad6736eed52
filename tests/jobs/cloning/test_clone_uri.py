"""`sediment clone` of directories at URIs: the same clone as from the files, and nothing is written there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.jobs.cloning.clones import clone
from tests.jobs.log_dirs import make_log_dir, sediment, tree, write_checkpoint, write_log
from tests.object_server import ObjectServer, running_server
from tests.served import contents, unpacked

pytestmark = pytest.mark.usefixtures("without_spark")

KEPT = ("--abort-open-transactions", "--with", "groups,transactions,configs")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked(tmp_path_factory.mktemp("served") / "source")


@pytest.fixture
def server() -> Iterator[ObjectServer]:
    with running_server() as running:
        yield running


def upload(log_dir: Path, server: ObjectServer) -> str:
    for name, content in tree(log_dir).items():
        server.objects[f"/bucket/logs/{name}"] = content
    return server.store().where


def logs_of(log_dir: Path) -> dict[str, bytes]:
    found = tree(log_dir)
    return {name: content for name, content in found.items() if "/" in name or name.endswith("-checkpoint")}


def test_a_bucket_gives_the_clone_that_its_files_give_and_stays_as_it_is(
    source: Path, tmp_path: Path, server: ObjectServer
) -> None:
    uri = upload(source, server)
    before = dict(server.objects)
    remote = clone(uri, tmp_path / "remote", *KEPT).partitions()
    assert server.objects == before and not server.asked["PUT"]
    local = clone(source, tmp_path / "local", *KEPT).partitions()
    assert logs_of(tmp_path / "remote") == logs_of(tmp_path / "local")
    assert "secret" not in remote["orders-0"]["from"]
    assert remote["orders-0"]["from"] == "s3://bucket/logs/orders-0"
    differing = ("from", "log_dir")
    assert {name: {k: v for k, v in row.items() if k not in differing} for name, row in remote.items()} == {
        name: {k: v for k, v in row.items() if k not in differing} for name, row in local.items()
    }
    assert sediment("clone", "--check", tmp_path / "remote").status == 0


def test_a_file_uri_is_the_directory(source: Path, tmp_path: Path) -> None:
    before = contents(source)
    clone(f"file://{source}", tmp_path / "clone", "--topic", "orders")
    assert contents(source) == before
    inside = clone(f"file://{source}", source / "clone", "--topic", "orders", status=2)
    assert "is inside the source" in inside.stderr


def test_the_next_clone_of_a_bucket_links_what_did_not_change(tmp_path: Path, server: ObjectServer) -> None:
    logs = make_log_dir(tmp_path / "logs", {"t-0": write_log(tmp_path / "t")})
    for name in ("recovery-point", "replication"):
        write_checkpoint(logs / f"{name}-offset-checkpoint", {"t-0": 30})
    uri = upload(logs, server)
    clone(uri, tmp_path / "first")
    asked = server.asked["GET"]
    again = clone(uri, tmp_path / "second", "--since", tmp_path / "first").partitions()
    assert again["t-0"]["status"] == "unchanged" and again["t-0"]["linked_bytes"] > 0
    assert server.asked["GET"] - asked < asked


def test_replicas_at_uris_are_compared_like_those_of_directories(
    source: Path, tmp_path: Path, server: ObjectServer
) -> None:
    uri = upload(source, server)
    epochs = "/bucket/logs/orders-0/leader-epoch-checkpoint"
    server.objects[epochs] = b"0\n2\n0 0\n7 50\n"
    outcome = sediment("clone", source, uri, "--to", tmp_path / "clone", "--topic", "orders", "--json")
    assert outcome.status == 0, outcome.stderr
    assert outcome.partitions()["orders-0"]["from"] == "s3://bucket/logs/orders-0"
    assert outcome.partitions()["orders-0"]["leader_epoch"] == 7


def test_what_is_not_a_log_directory_is_refused_and_nothing_is_made(tmp_path: Path, server: ObjectServer) -> None:
    uri = server.store().where
    assert "no such directory" in clone(uri, tmp_path / "clone", status=2).stderr
    server.objects["/bucket/logs/00000000000000000000.log"] = b""
    assert "one partition" in clone(uri, tmp_path / "clone", status=2).stderr
    assert not (tmp_path / "clone").exists()
    assert "local disk" in clone(tmp_path, Path("s3://bucket/clone"), status=2).stderr

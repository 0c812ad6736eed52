"""Copies of a log directory, and originals that a run keeps, are as private as their source."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from unittest import mock

import pytest

from sediment.segment_io.fs import Fs
from sediment.segment_io.stores import Store
from tests.faults.inline_spark import inline_spark
from tests.jobs.log_dirs import make_log_dir, sediment, write_checkpoint
from tests.segments import NOW_MS, batch_bytes, write_segment, write_snapshot
from tests.served import unpacked

COMPACT = ("--set=cleanup.policy=compact", "--broker-defaults", "--force", f"--now-ms={NOW_MS}")
BOOTSTRAP = "bootstrap.checkpoint"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def make_private(path: Path, folder_mode: int = 0o700, file_mode: int = 0o600) -> Path:
    for place in (path, *path.rglob("*")):
        place.chmod(folder_mode if place.is_dir() else file_mode)
    return path


def open_places(path: Path) -> dict[str, str]:
    """Return the files and folders below `path`, and itself, that others than their owner can open, except `.lock`."""
    places = (path, *(place for place in path.rglob("*") if place.name != ".lock"))
    return {str(place.relative_to(path)): oct(mode(place)) for place in places if mode(place) & 0o077}


@pytest.fixture(autouse=True)
def without_spark_and_with_a_usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    try:
        with inline_spark():
            yield
    finally:
        os.umask(before)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked(tmp_path_factory.mktemp("served") / "source")


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    source = tmp_path / "t"
    for base in range(0, 30, 10):
        batches = [batch_bytes(n, "ab"[n % 2], timestamp=NOW_MS) for n in range(base, base + 10)]
        write_segment(source, base, batches)
    (source / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
    write_snapshot(source, 20)
    path = make_log_dir(tmp_path / "logs", {"t-0": source, "t-1": source}, dirty={"t-0": 0})
    for name, offset in (("recovery-point", 20), ("replication", 30)):
        write_checkpoint(path / f"{name}-offset-checkpoint", {"t-0": offset, "t-1": offset})
    return path


@pytest.fixture
def seen_open() -> Iterator[list[str]]:
    """Collect the files that others could open while they were written."""
    found: list[str] = []

    def watching(path_of: Callable[..., Path], real: Callable[..., int]) -> Callable[..., int]:
        def write(owner: object, name: object, chunks: Iterable[bytes]) -> int:
            def watched() -> Iterator[bytes]:
                for chunk in chunks:
                    yield chunk
                    path = path_of(owner, name)
                    if mode(path) & 0o077:
                        found.append(str(path))

            return real(owner, name, watched())

        return write

    def in_store(store: Store, name: str) -> Path:
        return store.local_path / name

    with (
        mock.patch.object(Fs, "write_new", watching(lambda _fs, path: path, Fs.write_new)),
        mock.patch.object(Store, "write", watching(in_store, Store.write)),
    ):
        yield found


def test_a_clone_of_private_files_is_private_in_every_moment(
    served: Path, tmp_path: Path, seen_open: list[str]
) -> None:
    source = make_private(shutil.copytree(served, tmp_path / "source"))
    to = tmp_path / "clone"
    done = sediment("clone", source, "--to", to, "--with", "configs,acls,quotas,scram", "--json")
    assert done.status == 0, done.stderr
    assert (to / BOOTSTRAP).exists() and open_places(to) == {} and seen_open == []


def test_a_clone_has_the_modes_of_its_source_and_only_the_file_with_keys_is_private(
    served: Path, tmp_path: Path
) -> None:
    source = make_private(shutil.copytree(served, tmp_path / "source"), 0o755, 0o644)
    make_private(source / "orders-0", 0o750, 0o640)
    to = tmp_path / "clone"
    for more in ((), ("--strategy", "split", "--compact"), ("--link", "hard"), ("--since", tmp_path / "earlier")):
        assert sediment("clone", source, "--to", to, "--json", *more).status == 0
        modes = {str(path.relative_to(to)): mode(path) for path in to.rglob("*")}
        assert modes.pop(BOOTSTRAP) == 0o600
        private = {modes.pop(name) for name in list(modes) if name.startswith("orders-0/")}
        assert (modes.pop("orders-0"), private) == (0o750, {0o640})
        folders = {name for name in modes if "/" not in name and (to / name).is_dir()}
        assert {modes.pop(name) for name in folders} == {0o755}
        assert set(modes.values()) == {0o644}, more
        shutil.rmtree(tmp_path / "earlier", ignore_errors=True)
        to.rename(tmp_path / "earlier")


@pytest.mark.parametrize(
    "command",
    [
        ("compact", *COMPACT),
        ("compact", *COMPACT, "--roll-active"),
        ("compact", *COMPACT, "--strategy", "split"),
        ("compact", *COMPACT, "--partition", "t-0"),
        ("reencode", "--codec", "zstd", "--broker-defaults"),
        ("erase", "--broker-defaults", "--yes", "--action", "drop", "--where", "key = 'a'"),
    ],
    ids=lambda command: "-".join((command[0], *command[5:])),
)
def test_an_output_of_private_files_is_private_in_every_moment(
    log_dir: Path, tmp_path: Path, seen_open: list[str], command: tuple[str, ...]
) -> None:
    make_private(log_dir)
    output = tmp_path / "new" / "output"
    done = sediment(command[0], log_dir, *command[1:], "--output", output, "--json")
    assert done.status == 0, done.stderr
    assert open_places(output) == {} and seen_open == []
    assert mode(output.parent) == 0o755, "the parent is no copy"


def test_an_output_has_the_modes_of_its_source(log_dir: Path, tmp_path: Path) -> None:
    make_private(log_dir, 0o755, 0o640)
    make_private(log_dir / "t-1", 0o750, 0o644)
    assert sediment("compact", log_dir, *COMPACT, "--output", tmp_path / "output", "--json").status == 0
    output = tmp_path / "output"
    assert [mode(output / name) for name in ("", "t-0", "t-1")] == [0o755, 0o755, 0o750]
    assert {mode(path) for path in output.glob("t-0/*")} == {0o640}
    assert {mode(path) for path in output.glob("t-1/*")} == {0o644}
    assert {mode(path) for path in output.glob("*") if path.is_file() and path.name != ".lock"} == {0o640}


def test_an_output_of_files_that_nobody_may_write_can_be_written_by_its_owner(log_dir: Path, tmp_path: Path) -> None:
    make_private(log_dir, 0o555, 0o444)
    try:
        assert sediment("compact", log_dir, *COMPACT, "--output", tmp_path / "output", "--json").status == 0
    finally:
        make_private(log_dir)
    assert {mode(path) for path in (tmp_path / "output").glob("t-0/*")} == {0o644}
    assert mode(tmp_path / "output") == 0o755


def test_the_originals_of_private_files_and_their_catalogue_are_private(
    log_dir: Path, tmp_path: Path, seen_open: list[str]
) -> None:
    make_private(log_dir)
    kept, before = tmp_path / "new" / "originals", tmp_path / "before"
    options = ("--keep-originals", kept, "--keep-before", before)
    done = sediment("compact", log_dir, *COMPACT, *options, "--json")
    assert done.status == 0, done.stderr
    run = done.report["run_id"]
    assert sorted(path.name for path in kept.iterdir()) == sorted([run, f"catalogue-{run}.json"])
    assert open_places(kept.parent) == {} and open_places(before) == {} and open_places(log_dir) == {}
    assert seen_open == []
    undone = sediment("restore", log_dir, "--from", kept, "--run", run, "--yes", "--json")
    assert undone.status == 0, undone.stderr
    assert open_places(kept) == {}
    assert sediment("vacuum", kept, "--run", run, "--pin", "kept").status == 0
    assert mode(kept / "pins.json") == 0o600


def test_a_catalogue_is_private_although_its_directory_is_not(log_dir: Path, tmp_path: Path) -> None:
    make_private(log_dir)
    kept = tmp_path / "originals"
    kept.mkdir(0o755)
    done = sediment("compact", log_dir, *COMPACT, "--keep-originals", kept, "--json")
    assert done.status == 0, done.stderr
    assert open_places(kept) == {".": "0o755"}

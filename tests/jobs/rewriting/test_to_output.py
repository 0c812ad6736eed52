"""`reencode --output`: the same result as in place, in another directory, and an unchanged source."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from sediment.jobs.rewriting import to_output
from sediment.segment_io.stores import Store
from tests.faults.inline_spark import inline_spark
from tests.jobs.cleaning.outputs import CLEANER, MANIFEST, image, published, uri
from tests.jobs.log_dirs import Outcome, read_checkpoint, sediment, tree, write_checkpoint
from tests.rewrites import visible_records
from tests.segments import batch_bytes, write_segment, write_snapshot

NAMES = ("orders-0", "orders-1", "__consumer_offsets-0")
SMALLER = ("--codec=zstd", "--batch-bytes=64k")


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Lay out two partitions and one of an internal topic, of two segments each, with every checkpoint file."""
    path = tmp_path / "logs"
    for name in NAMES:
        for base in (0, 40):
            write_segment(path / name, base, [batch_bytes(base + n, value=b"value" * 20) for n in range(40)])
        write_snapshot(path / name, 40)
        (path / name / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
    for name in ("recovery-point", "log-start", "replication"):
        offset = 0 if name == "log-start" else 80
        write_checkpoint(path / f"{name}-offset-checkpoint", {**dict.fromkeys(NAMES, offset), "gone-0": 7})
    write_checkpoint(path / CLEANER, {"orders-0": 40})
    (path / ".kafka_cleanshutdown").touch()
    return path


def to(output: object, logs: object, *arguments: object, status: int = 0) -> Outcome:
    outcome = sediment("reencode", logs, "--json", f"--output={output}", *arguments)
    assert outcome.status == status, outcome
    return outcome


def rows(outcome: Outcome) -> Mapping[str, Mapping]:
    return outcome.partitions()


@pytest.mark.parametrize(("source_as", "output_as"), [(str, str), (uri, uri)])
def test_an_output_is_what_reencoding_in_place_leaves_and_the_source_stays(
    logs: Path, source_as: Callable[[Path], str], output_as: Callable[[Path], str], tmp_path: Path
):
    in_place, output = shutil.copytree(logs, tmp_path / "in-place"), tmp_path / "output"
    before = image(logs)
    outcome = to(output_as(output), source_as(logs), *SMALLER)
    theirs = sediment("reencode", in_place, "--json", *SMALLER)
    assert image(logs) == before
    assert outcome.report["output"] == output_as(output)
    for name, row in theirs.partitions().items():
        assert rows(outcome)[name] == {**row, "log_dir": source_as(logs)}
    assert {name: row["status"] for name, row in rows(outcome).items()} == {
        "orders-0": "reencoded",
        "orders-1": "reencoded",
        "__consumer_offsets-0": "skipped",
    }
    found, expected = published(output), tree(in_place)
    for name in [name for name in found if name.endswith("-offset-checkpoint")]:
        entries = read_checkpoint(in_place / name)
        entries.pop("gone-0", None)
        assert read_checkpoint(output / name) == entries
        del found[name], expected[name]
    assert found == expected
    for name in NAMES:
        assert visible_records(output / name, committed=True) == visible_records(logs / name, committed=True)
        for file in (output / name).iterdir():
            assert file.stat().st_mtime_ns == (in_place / name / file.name).stat().st_mtime_ns
    refused = to(output_as(output), source_as(logs), *SMALLER, status=2)
    assert "already complete" in refused.stderr


@pytest.fixture
def inline() -> Iterator[None]:
    with inline_spark():
        yield


def test_a_dry_run_writes_nothing_and_has_the_figures_of_the_run(logs: Path, inline: None, tmp_path: Path):
    output = tmp_path / "output"
    planned = to(output, logs, *SMALLER, "--dry-run")
    assert not output.exists()
    assert rows(planned) == rows(to(output, logs, *SMALLER))


@pytest.mark.parametrize("source_as", [str, uri])
def test_a_damaged_partition_is_there_byte_for_byte_with_its_mark(
    logs: Path, source_as: Callable[[Path], str], inline: None, tmp_path: Path
):
    path = logs / "orders-1" / f"{40:020d}.log"
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    before, output = image(logs), tmp_path / "output"
    outcome = to(output, source_as(logs), *SMALLER, "--partition=orders-*", status=1)
    assert image(logs) == before
    assert {name: row["status"] for name, row in rows(outcome).items()} == {
        "orders-0": "reencoded",
        "orders-1": "quarantined",
    }
    damaged = rows(outcome)["orders-1"]
    assert f"{source_as(logs)}/orders-1/{40:020d}.log" in damaged["reason"]
    assert damaged["bytes_after"] == damaged["bytes_before"] == sum(f.stat().st_size for f in path.parent.glob("*.log"))
    found = published(output)
    of_partition = {name: content for name, content in tree(logs).items() if name.startswith("orders-1/")}
    assert {name: content for name, content in found.items() if name.startswith("orders-1/")} == of_partition
    assert b"orders" in found[".sediment-uncleanable"]
    assert not any(name.startswith("__consumer_offsets") for name in found)


def test_an_interrupted_partition_is_copied_as_it_is_and_reported(logs: Path, inline: None, tmp_path: Path):
    swap = logs / "orders-0" / f"{0:020d}.log.swap"
    shutil.copyfile(swap.with_suffix(""), swap)
    output = tmp_path / "output"
    row = rows(to(output, logs, *SMALLER, "--partition=orders-0", status=1))["orders-0"]
    assert (row["status"], row["reason_code"]) == ("failed", "interrupted")
    assert "sediment recover" in row["reason"]
    assert f"orders-0/{swap.name}" in published(output)


@pytest.mark.parametrize(
    ("place", "more", "message"),
    [
        ("logs", (), "the output is the source"),
        ("logs/out", (), "is inside the source"),
        ("out", ("--keep-originals=kept",), "--output excludes --keep-originals"),
        ("full", (), "the output is not empty"),
    ],
)
def test_outputs_and_options_that_make_no_sense_are_refused(
    logs: Path, place: str, more: tuple[str, ...], message: str, tmp_path: Path
):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    before = image(tmp_path)
    outcome = to(tmp_path / place, logs, *SMALLER, *more, status=2)
    assert message in outcome.stderr
    assert image(tmp_path) == before


def test_a_directory_that_was_not_stopped_cleanly_is_refused(logs: Path, tmp_path: Path):
    (logs / ".kafka_cleanshutdown").unlink()
    outcome = sediment("reencode", logs, *SMALLER, "--output", tmp_path / "output")
    assert outcome.status == 1
    assert "sediment recover" in outcome.stderr
    assert not (tmp_path / "output").exists()


def meanwhile(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """Act once the new segments are written, before the other files are copied."""
    original = to_output.run_on_executors

    def act_and_run(*arguments, **named):
        act()
        yield from original(*arguments, **named)

    monkeypatch.setattr(to_output, "run_on_executors", act_and_run)


def test_a_source_that_changes_meanwhile_leaves_the_output_incomplete(
    logs: Path, inline: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    output = tmp_path / "output"

    def append() -> None:
        with (logs / "orders-0" / f"{40:020d}.log").open("ab") as file:
            file.write(batch_bytes(80))

    with monkeypatch.context() as patched:
        meanwhile(patched, append)
        outcome = to(output, logs, *SMALLER, status=1)
    assert {name: row["reason_code"] for name, row in rows(outcome).items()} == {
        "orders-0": "source-changed",
        "orders-1": "output-incomplete",
        "__consumer_offsets-0": "output-incomplete",
    }
    assert "is not complete" in outcome.stderr
    assert not (output / MANIFEST).exists()

    again = to(output, logs, *SMALLER)
    assert "starting over" in again.stderr
    assert visible_records(output / "orders-0", committed=True) == visible_records(logs / "orders-0", committed=True)
    published(output)


def test_a_disk_that_fills_up_leaves_the_output_incomplete_and_the_next_run_starts_over(
    logs: Path, inline: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    output = tmp_path / "output"
    original = Store.put

    def put_until_full(self, name, chunks, **named):
        if name.endswith(".snapshot") and "orders-1" in name:
            raise OSError(28, "No space left on device", name)
        return original(self, name, chunks, **named)

    with monkeypatch.context() as patched:
        patched.setattr(Store, "put", put_until_full)
        found = rows(to(output, logs, *SMALLER, status=1))
    assert found["orders-1"]["status"] == found["orders-0"]["status"] == "failed"
    assert (found["orders-0"]["reason_code"], found["__consumer_offsets-0"]["reason_code"]) == (
        "output-incomplete",
        "output-incomplete",
    )
    assert not (output / MANIFEST).exists()
    to(output, logs, *SMALLER)
    published(output)


def test_a_stop_leaves_the_output_incomplete(logs: Path, inline: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    output = tmp_path / "output"
    stops: list[threading.Event] = []
    original = to_output.NewLogDirectory.__init__

    def remember(self, *arguments, **named):
        original(self, *arguments, **named)
        stops.append(self.run.stop)

    monkeypatch.setattr(to_output.NewLogDirectory, "__init__", remember)
    meanwhile(monkeypatch, lambda: stops[0].set())
    found = rows(to(output, logs, *SMALLER, status=1))
    assert {row["reason_code"] for row in found.values()} == {"stopped"}
    assert not (output / MANIFEST).exists()


@pytest.mark.parametrize(
    ("command", "output", "advice"),
    [
        (("reencode", "--codec=zstd"), False, "give --output a destination"),
        (("erase", "--where=offset = 1", "--yes"), False, "give --output a destination"),
        (("erase", "--where=offset = 1", "--yes"), True, "copy the log directory to a local disk first"),
        (("erase", "--verdicts=table.csv", "--yes"), True, "copy the log directory to a local disk first"),
    ],
)
def test_a_uri_that_a_command_cannot_read_is_refused(
    command: tuple[str, ...], output: bool, advice: str, logs: Path, tmp_path: Path
):
    before = image(logs)
    where = [f"--output={tmp_path / 'output'}"] if output else []
    outcome = sediment(command[0], uri(logs), *command[1:], *where)
    assert outcome.status == 2
    assert advice in outcome.stderr
    assert image(logs) == before
    assert not (tmp_path / "output").exists()

"""Corrupted log directories: each command reports them or leaves the partition alone.

It does not hang or lose data, and does its work on the other partitions.
"""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from sediment.segment_io.errors import SourceChangedError
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.fs import Fs, open_to_read
from sediment.segment_io.partition.listing import list_log
from sediment.segment_io.segment.reader import HeaderScan
from tests.faults.inline_spark import inline_spark
from tests.jobs.log_dirs import make_log_dir, sediment
from tests.segments import NOW_MS, batch_bytes, write_segment
from tests.twin.segments import file_batches
from tests.waiting import LIMIT_SECONDS

BASES = (0, 20, 40)
KEYS = 4
COMMANDS = {
    "compact": ("compact", "--force"),
    "plan": ("plan", "--exact"),
    "dump": ("dump",),
    "recover": ("recover", "--dry-run"),
    "expire": ("expire", "--dry-run"),
    "compact what is readable": ("compact", "--force", "--on-corruption=keep"),
    "compact in splits": ("compact", "--force", "--strategy=split"),
    "recover and write": ("recover",),
    "expire and delete": ("expire",),
    "verify": ("verify",),
}
EVERY_RUN = 5  # of COMMANDS, the first ones


def log_of_three_segments(path):
    for base in BASES[:-1]:
        batches = [batch_bytes(n, chr(97 + n % KEYS), value=b"%d" % n) for n in range(base, base + 20)]
        write_segment(path, base, batches, index_interval_bytes=100)
    write_segment(path, BASES[-1])
    return path


@pytest.fixture
def log_dir(tmp_path):
    source = log_of_three_segments(tmp_path / "source")
    return make_log_dir(tmp_path / "logs", {"good-0": source, "t-0": source})


def run(command, log_dir):
    name, *options = COMMANDS[command]
    if name == "verify":
        return sediment(name, log_dir.parent / "before", log_dir, "--json", "--set=t:cleanup.policy=compact")
    sets = () if name in ("dump",) else ("--set=t:cleanup.policy=compact", "--set=good:cleanup.policy=compact")
    clock = () if name in ("dump",) else ("--now-ms", NOW_MS + 86_400_000)
    return sediment(name, log_dir, "--json", *options, *clock, *sets)


def latest_values(partition):
    """Return the newest value of each key, of what is readable as a segment."""
    found = {}
    for path in sorted(partition.glob("*.log")):
        if path.is_file() and path.stat().st_size < 1 << 20:
            for _, batch in file_batches(path.read_bytes()):
                found |= {record.key: record.value for record in batch.records()}
    return found


EXPECTED = {b"%c" % (97 + key): b"%d" % (36 + key) for key in range(KEYS)}


# --------------------------------------------------------------------------------------------------------- what is done
def fifo(name):
    def spoil(log_dir):
        path = log_dir / name
        path.unlink(missing_ok=True)
        os.mkfifo(path)

    return spoil


def link(name, target):
    def spoil(log_dir):
        path = log_dir / name
        path.unlink(missing_ok=True)
        path.symlink_to(target)

    return spoil


def a_socket(log_dir):
    with socket.socket(socket.AF_UNIX) as made:
        before = Path.cwd()
        os.chdir(log_dir / "t-0")
        try:
            made.bind(f"{60:020d}.log")
        finally:
            os.chdir(before)


def a_directory(name):
    def spoil(log_dir):
        path = log_dir / name
        path.unlink(missing_ok=True)
        path.mkdir()
        (path / "kept").write_text("kept")

    return spoil


def moved_and_linked(log_dir):
    for path in sorted((log_dir / "t-0").iterdir()):
        target = log_dir.parent / "elsewhere" / path.name
        target.parent.mkdir(exist_ok=True)
        shutil.move(path, target)
        path.symlink_to(target)


def partition_linked(log_dir):
    shutil.move(log_dir / "t-0", log_dir.parent / "moved")
    (log_dir / "t-0").symlink_to(log_dir.parent / "moved")


def named(*names):
    def spoil(log_dir):
        for name in names:
            (log_dir / os.fsdecode(name)).write_bytes(b"strange")

    return spoil


def sparse(name, size_bytes):
    def spoil(log_dir):
        with (log_dir / name).open("ab") as file:
            file.truncate(size_bytes)

    return spoil


def strays(log_dir):
    for number in range(3000):
        (log_dir / "t-0" / f"stray-{number}.bin").touch()
        (log_dir / f"stray-{number}").touch()


SPOILED = {
    "a pipe named as a segment": fifo(f"t-0/{60:020d}.log"),
    "a pipe in the place of a segment": fifo(f"t-0/{20:020d}.log"),
    "a pipe in the place of an offset index": fifo(f"t-0/{0:020d}.index"),
    "a pipe in the place of a time index": fifo(f"t-0/{0:020d}.timeindex"),
    "a pipe in the place of a transaction index": fifo(f"t-0/{0:020d}.txnindex"),
    "a pipe in the place of a snapshot": fifo(f"t-0/{40:020d}.snapshot"),
    "a pipe in the place of leader epochs": fifo("t-0/leader-epoch-checkpoint"),
    "a pipe in the place of partition metadata": fifo("t-0/partition.metadata"),
    "a pipe in the place of the cleaner checkpoint": fifo("cleaner-offset-checkpoint"),
    "a pipe in the place of the high watermarks": fifo("replication-offset-checkpoint"),
    "a pipe in the place of the clean marker": fifo(".kafka_cleanshutdown"),
    "a pipe in the place of meta.properties": fifo("meta.properties"),
    "a pipe in the place of the lock": fifo(".lock"),
    "a pipe named as a partition": fifo("pipe-0"),
    "a pipe as an interrupted swap": fifo(f"t-0/{0:020d}.log.swap"),
    "a pipe in the place of the cluster's metadata": fifo("__cluster_metadata-0"),
    "a socket named as a segment": a_socket,
    "a device named as a segment": link(f"t-0/{60:020d}.log", "/dev/zero"),
    "a device in the place of an index": link(f"t-0/{0:020d}.index", "/dev/zero"),
    "a device in the place of a checkpoint": link("cleaner-offset-checkpoint", "/dev/zero"),
    "a terminal named as a segment": link(f"t-0/{60:020d}.log", "/dev/tty"),
    "a link that leads to itself": link(f"t-0/{60:020d}.log", f"{60:020d}.log"),
    "an index that leads to itself": link(f"t-0/{0:020d}.index", f"{0:020d}.index"),
    "a checkpoint that leads to itself": link("cleaner-offset-checkpoint", "cleaner-offset-checkpoint"),
    "a link that leads nowhere": link(f"t-0/{60:020d}.log", "nowhere"),
    "a partition that leads to itself": link("loop-0", "loop-0"),
    "a partition that leads to its log directory": link("up-0", "."),
    "a partition that leads nowhere": link("gone-0", "nowhere"),
    "a directory named as a segment": a_directory(f"t-0/{60:020d}.log"),
    "a directory in the place of an index": a_directory(f"t-0/{0:020d}.index"),
    "a directory in the place of a checkpoint": a_directory("cleaner-offset-checkpoint"),
    "a directory in the place of leader epochs": a_directory("t-0/leader-epoch-checkpoint"),
    "segments that are links": moved_and_linked,
    "a partition that is a link": partition_linked,
    "an offset of 30 digits": named(b"t-0/" + b"9" * 30 + b".log"),
    "an offset beyond 2^63": named(b"t-0/%d.log" % 2**63),
    "an index beyond 2^63": named(b"t-0/%d.index" % 2**63),
    "a snapshot beyond 2^63": named(b"t-0/%d.snapshot" % 2**63),
    "a swap beyond 2^63": named(b"t-0/%d.log.swap" % 2**63),
    "a part beyond 2^63": named(b"t-0/%d.log.x-y.part" % 2**63),
    "names that are no text": named(b"t-0/\xff\xfe.log", b"\xff\xfe-0", b"t-0/\x80"),
    "names with line ends": named(b"t-0/a\nb.log", b"a\n-0"),
    "a huge sparse index": sparse(f"t-0/{0:020d}.index", 1 << 40),
    "a huge sparse time index": sparse(f"t-0/{20:020d}.timeindex", 1 << 40),
    "a huge sparse transaction index": sparse(f"t-0/{20:020d}.txnindex", 1 << 40),
    "a huge sparse snapshot": sparse(f"t-0/{40:020d}.snapshot", 1 << 40),
    "a huge sparse checkpoint": sparse("cleaner-offset-checkpoint", 1 << 40),
    "a huge sparse segment": sparse(f"t-0/{20:020d}.log", 1 << 40),
    "thousands of stray files": strays,
}


def _cases():
    """Yield every command on every spoiled directory, of which two each are for every run of the tests."""
    for row, (name, spoil) in enumerate(SPOILED.items()):
        for column, command in enumerate(COMMANDS):
            marks = [] if column < EVERY_RUN and (column + row) % EVERY_RUN < 2 else [pytest.mark.fuzz]
            yield pytest.param(spoil, command, id=f"{name}-{command}", marks=marks)


@pytest.mark.parametrize(("spoil", "command"), list(_cases()))
def test_a_corrupted_directory_is_reported_and_nothing_is_lost(tmp_path, log_dir, spoil, command):
    shutil.copytree(log_dir, tmp_path / "before")
    spoil(log_dir)
    readable = latest_values(log_dir / "t-0")
    outcome = run(command, log_dir)
    assert outcome.status in (0, 1, 2), outcome.stderr
    assert "Traceback" not in outcome.stderr
    assert outcome.status == 0 or len(outcome.stderr) + len(outcome.stdout) > 20
    assert latest_values(log_dir / "good-0") == EXPECTED
    assert latest_values(log_dir / "t-0") == readable


COPIES = {
    "clone": ("clone", "--to"),
    "clone in splits": ("clone", "--strategy=split", "--to"),
    "compact to an output": ("compact", "--force", "--set=t:cleanup.policy=compact", "--output"),
}


def _copies():
    """Yield every way to copy every spoiled directory, of which one each is for every run of the tests."""
    for row, (name, spoil) in enumerate(SPOILED.items()):
        for column, copy in enumerate(COPIES):
            marks = [] if (column + row) % len(COPIES) == 0 or "sparse" in name else [pytest.mark.fuzz]
            yield pytest.param(spoil, COPIES[copy], id=f"{name}-{copy}", marks=marks)


@pytest.mark.parametrize(("spoil", "command"), list(_copies()))
def test_a_copy_of_a_corrupted_directory_ends_fills_no_disk_and_changes_nothing(tmp_path, log_dir, spoil, command):
    spoil(log_dir)
    to = tmp_path / "copy"
    before = {path: path.lstat() for path in log_dir.rglob("*") if path.name != ".lock"}
    with inline_spark():
        outcome = sediment(command[0], log_dir, "--json", *command[1:], to)
    assert outcome.status in (0, 1, 2), outcome.stderr
    assert "Traceback" not in outcome.stderr
    assert outcome.status == 0 or len(outcome.stderr) + len(outcome.stdout) > 20
    after = {path: path.lstat() for path in log_dir.rglob("*") if path.name != ".lock"}
    states = [
        {path: (status.st_ino, status.st_mode, status.st_size, status.st_mtime_ns) for path, status in found.items()}
        for found in (before, after)
    ]
    assert states[0] == states[1]
    written = [path.lstat() for path in to.rglob("*")]
    assert sum(status.st_blocks * 512 for status in written) < 16 << 20
    assert all(stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode) for status in written)


REWRITES = {
    "compact": ("compact", "--force", "--set=t:cleanup.policy=compact"),
    "expire": ("expire", "--set=t:cleanup.policy=delete", "--set=t:retention.ms=1"),
    "erase": ("erase", "--yes", "--keys-file=keys", "--action=drop"),
    "reencode": ("reencode", "--codec=gzip"),
    "compact to an output": ("compact", "--force", "--set=t:cleanup.policy=compact", "--output=out"),
    "erase to an output": ("erase", "--yes", "--keys-file=keys", "--action=drop", "--output=out"),
    "clone": ("clone", "--to=out"),
    "recover": ("recover", "--keep-originals=originals"),
}


@pytest.mark.parametrize("command", REWRITES)
def test_a_run_that_would_miss_the_records_of_a_segment_on_another_disk_fails(tmp_path, log_dir, monkeypatch, command):
    (tmp_path / "keys").write_text("a\n")
    monkeypatch.chdir(tmp_path)
    link(f"t-0/{0:020d}.log", "/no/such/mount/segment")(log_dir)
    before = {path.name: path.read_bytes() for path in (log_dir / "t-0").iterdir() if path.exists()}
    name, *options = REWRITES[command]
    with inline_spark():
        outcome = sediment(name, log_dir, "--json", "--partition=t-0", *options)
    assert outcome.status == 1, outcome
    (row,) = outcome.report["partitions"]
    assert row["status"] == "failed" and "its link is dangling" in row["reason"]
    assert {path.name: path.read_bytes() for path in (log_dir / "t-0").iterdir() if path.exists()} == before


@pytest.mark.parametrize("command", ["plan", "verify", "dump"])
def test_a_command_that_would_read_past_a_segment_on_another_disk_fails(tmp_path, log_dir, command):
    shutil.copytree(log_dir, tmp_path / "after")
    link(f"t-0/{0:020d}.log", "/no/such/mount/segment")(log_dir)
    others = {"plan": ["--partition=t-0"], "verify": [tmp_path / "after"], "dump": ["--what=records"]}
    with inline_spark():
        outcome = sediment(command, log_dir / "t-0" if command == "dump" else log_dir, "--json", *others[command])
    assert outcome.status == 1, outcome
    assert "its link is dangling" in outcome.stdout + outcome.stderr


# --------------------------------------------------------------------------------------------- while somebody reads it
def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="Not a regular file"):
        open_to_read(tmp_path / "pipe")
    with pytest.raises(IsADirectoryError):
        Fs().read_bytes(tmp_path)
    with pytest.raises(OSError, match="Not a regular file"):
        Fs().read_bytes(Path("/dev/zero"))


def test_a_segment_must_be_a_regular_file(log_dir):
    partition = log_dir / "t-0"
    before = list_log(TopicPartition("t", 0), partition, Fs())
    fifo(f"t-0/{60:020d}.log")(log_dir)
    named(b"t-0/%d.log" % 2**63)(log_dir)
    link(f"t-0/{70:020d}.log", f"{70:020d}.log")(log_dir)
    assert list_log(TopicPartition("t", 0), partition, Fs()) == before


@pytest.mark.parametrize("left_bytes", [0, 5, 700])
def test_a_file_that_shrinks_while_it_is_read_is_said(log_dir, left_bytes):
    path = log_dir / "t-0" / f"{0:020d}.log"
    walk = HeaderScan(path, size_bytes=path.stat().st_size)
    os.truncate(path, left_bytes)
    with pytest.raises(SourceChangedError, match="became shorter"):
        list(walk)


@pytest.mark.parametrize("command", ["plan", "dump", "expire", "recover"])
def test_segments_that_come_go_shrink_and_grow_while_they_are_read_end_in_an_answer(log_dir, command):
    partition = log_dir / "t-0"
    contents = {path: path.read_bytes() for path in partition.iterdir()}
    stop = threading.Event()

    def churn():
        while not stop.is_set():
            for path, content in contents.items():
                path.unlink(missing_ok=True)
                path.write_bytes(content)
                os.truncate(path, len(content) // 2)
                path.write_bytes(content * 2)

    worker = threading.Thread(target=churn)
    worker.start()
    try:
        for _ in range(3):
            outcome = run(command, log_dir)
            assert outcome.status in (0, 1, 2), outcome.stderr
            assert "Traceback" not in outcome.stderr
    finally:
        stop.set()
        worker.join()
    assert latest_values(log_dir / "good-0") == EXPECTED


@pytest.mark.parametrize(
    "place",
    [
        "t-0",
        pytest.param(f"t-0/{20:020d}.log", marks=pytest.mark.fuzz),
        pytest.param("cleaner-offset-checkpoint", marks=pytest.mark.fuzz),
    ],
)
def test_what_may_not_be_read_is_said_and_nothing_changes(log_dir, place):
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("only root can lay down privileges, with setpriv")
    (log_dir / "cleaner-offset-checkpoint").write_text("0\n0\n")
    nobody = pwd.getpwnam("nobody")
    os.chown(log_dir / place, nobody.pw_uid, nobody.pw_gid)
    (log_dir / place).chmod(0)
    dropped = "--bounding-set=-chown,-dac_override,-dac_read_search,-fowner"
    command = ["setpriv", dropped, sys.executable, "-m", "sediment.jobs.cli", "plan", str(log_dir), "--json"]
    finished = subprocess.run(
        [*command, "--set=t:cleanup.policy=compact", "--set=good:cleanup.policy=compact"],
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert finished.returncode == 1, finished.stderr
    assert "Traceback" not in finished.stderr
    assert "ermission" in finished.stdout + finished.stderr
    (log_dir / place).chmod(0o755)
    assert latest_values(log_dir / "t-0") == EXPECTED

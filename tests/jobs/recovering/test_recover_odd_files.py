"""Partition directories with files that no broker leaves there: no traceback, no wait for a pipe, no silent loss."""

import os
import shutil
import socket

import pytest

from tests.jobs.log_dirs import sediment, tree, write_checkpoint
from tests.segments import NOW_MS, batch_bytes, write_segment, write_snapshot

SUFFIXES = (".log", ".index", ".timeindex")
END = 9
LARGEST = 2**63 - 1


def name(base, suffix):
    return f"{base:020d}{suffix}"


def segments(directory):
    for base in (0, 3, 6):
        batches = [batch_bytes(offset, timestamp=NOW_MS + offset) for offset in range(base, base + 3)]
        write_segment(directory, base, batches, index_interval_bytes=0)
    (directory / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")


def file(file_name, content=b""):
    return lambda directory: (directory / file_name).write_bytes(content)


def huge(file_name, size_bytes):
    def make(directory):
        with (directory / file_name).open("ab") as opened:
            opened.truncate(size_bytes)

    return make


def pipe(file_name):
    def make(directory):
        (directory / file_name).unlink(missing_ok=True)
        os.mkfifo(directory / file_name)

    return make


def folder(file_name):
    def make(directory):
        (directory / file_name).unlink(missing_ok=True)
        (directory / file_name).mkdir()

    return make


def link(file_name, target):
    def make(directory):
        (directory / file_name).unlink(missing_ok=True)
        (directory / file_name).symlink_to(target)

    return make


def left(base, state, log=None, index=None):
    """Copies of the files of a segment, of which the log or the offset index may have other content."""

    def make(directory):
        for suffix in SUFFIXES:
            shutil.copy(directory / name(base, suffix), directory / name(base, suffix + state))
        if log is not None:
            path = directory / name(base, ".log" + state)
            path.write_bytes(log(path.read_bytes()))
        if index is not None:
            (directory / name(base, ".index" + state)).write_bytes(index)

    return make


def without(*file_names):
    def make(directory):
        for file_name in file_names:
            (directory / file_name).unlink()

    return make


def both(*makers):
    return lambda directory: [make(directory) for make in makers]


def of_a_later_version(content):
    return content[:16] + b"\x09" + content[17:]


def a_socket(directory):
    listening = socket.socket(socket.AF_UNIX)
    here = os.open(directory, os.O_RDONLY)
    try:
        listening.bind(f"/proc/self/fd/{here}/{name(9, '.log')}")
    finally:
        os.close(here)
        listening.close()


# What lies in a copy of a log that ends at 9, and its log end or the code of the reason why it is refused.
ODD = {
    "empty-swap": (file(name(3, ".log.swap")), END),
    "empty-swap-with-indexes": (both(*(file(name(3, f"{suffix}.swap")) for suffix in SUFFIXES)), END),
    "torn-swap": (left(3, ".swap", lambda content: content[:100]), END),
    "swap-cut-at-a-batch": (left(3, ".swap", lambda content: content[: len(content) // 3]), END),
    "swap-of-zeros": (left(3, ".swap", lambda content: bytes(len(content))), END),
    "swap-with-garbage-index": (left(3, ".swap", index=b"\x7f" * 32), END),
    "swap-of-a-later-version": (left(3, ".swap", of_a_later_version), "unsupported-data"),
    "huge-swap": (huge(name(3, ".log.swap"), 1 << 40), END),
    "two-swaps": (both(left(0, ".swap"), left(6, ".swap")), END),
    "two-cleaned": (both(left(0, ".cleaned"), left(6, ".cleaned")), END),
    "torn-swap-outside": (file(name(99, ".log.swap"), batch_bytes(99)[:30]), "corrupt-data"),
    "torn-swap-of-a-lost-log": (
        both(left(3, ".swap", lambda content: content[:100]), without(name(3, ".log"))),
        "corrupt-data",
    ),
    "whole-swap": (left(3, ".swap"), END),
    "cleaned-swap": (left(3, ".cleaned.swap"), END),
    "swap-swap": (left(3, ".swap.swap"), END),
    "torn-swap-swap": (left(3, ".swap.swap", lambda content: content[:100]), END),
    "deleted-swap": (left(3, ".deleted.swap"), END),
    "part-swap": (left(3, ".run-0.part.swap"), END),
    "tmp-swap": (left(3, ".tmp.swap"), END),
    "cleaned-swap-below-a-swap": (both(left(0, ".cleaned.swap"), left(3, ".swap")), END),
    "index-swap-only": (file(name(3, ".index.swap"), b"\x7f" * 48), END),
    "swap-that-is-a-pipe": (pipe(name(3, ".log.swap")), END),
    "index-swap-that-is-a-pipe": (pipe(name(3, ".index.swap")), END),
    "swap-that-leads-nowhere": (link(name(3, ".log.swap"), "nowhere"), END),
    "swap-that-is-a-directory": (folder(name(3, ".log.swap")), END),
    "swap-without-an-offset": (file("foo.swap"), "corrupt-data"),
    "cleaned-beyond-the-largest-offset": (file(f"{2**63}.log.cleaned"), "corrupt-data"),
    "log-that-is-a-pipe": (pipe(name(3, ".log")), "corrupt-data"),
    "log-that-is-a-socket": (a_socket, "corrupt-data"),
    "log-that-leads-nowhere": (link(name(3, ".log"), "nowhere"), "corrupt-data"),
    "log-that-leads-to-itself": (link(name(9, ".log"), name(9, ".log")), "corrupt-data"),
    "log-that-is-a-device": (link(name(9, ".log"), "/dev/zero"), "corrupt-data"),
    "log-that-is-a-directory": (folder(name(9, ".log")), END),
    "index-that-is-a-pipe": (pipe(name(3, ".index")), "io-error"),
    "index-that-is-a-directory": (folder(name(3, ".index")), "io-error"),
    "index-that-is-a-device": (link(name(6, ".index"), "/dev/zero"), "io-error"),
    "epochs-that-are-a-pipe": (pipe("leader-epoch-checkpoint"), "io-error"),
    "snapshot-that-is-a-pipe": (pipe(name(9, ".snapshot")), END),
    "huge-log": (huge(name(9, ".log"), 1 << 40), "corrupt-data"),
    "huge-index": (huge(name(6, ".index"), 1 << 40), END),
    "snapshot-below-0": (file("-0000000000000000001.snapshot"), END),
    "snapshot-at-the-largest-offset": (lambda directory: write_snapshot(directory, LARGEST), END),
    "a-batch-at-the-largest-offset": (
        lambda directory: write_segment(directory, LARGEST, [batch_bytes(LARGEST)]),
        "corrupt-data",
    ),
    "a-log-under-another-base": (
        lambda directory: (directory / name(6, ".log")).rename(directory / name(8, ".log")),
        "corrupt-batch",
    ),
    "a-log-twice": (
        lambda directory: os.link(directory / name(0, ".log"), directory / name(9, ".log")),
        "corrupt-batch",
    ),
}


@pytest.fixture(params=["clean", "unclean"])
def log_dir(request, tmp_path):
    path = tmp_path / "logs"
    for odd, (make, _) in ODD.items():
        segments(path / f"{odd}-0")
        make(path / f"{odd}-0")
    write_checkpoint(path / "recovery-point-offset-checkpoint", dict.fromkeys((f"{odd}-0" for odd in ODD), 0))
    if request.param == "clean":
        (path / ".kafka_cleanshutdown").touch()
    return path


def logs(log_dir):
    return {
        path: path.read_bytes() for path in log_dir.glob("*/*.log") if path.is_file() and path.stat().st_size < 1000
    }


def comparable(report):
    return {key: value for key, value in report.items() if key not in ("segments", "log_dir")}


@pytest.mark.timeout(120)
def test_what_no_broker_leaves_is_passed_over_undone_or_refused(log_dir):
    before = logs(log_dir)
    rehearsed = sediment("recover", log_dir, "--json", "--dry-run", "--now-ms", NOW_MS)
    assert logs(log_dir) == before
    done = sediment("recover", log_dir, "--json", "--now-ms", NOW_MS)
    assert (rehearsed.status, done.status) == (1, 1)
    found = {
        odd: report["log_end_offset"] if report["status"] == "recovered" else report["reason_code"]
        for odd, report in ((odd, done.partitions()[f"{odd}-0"]) for odd in ODD)
    }
    assert found == {odd: expected for odd, (_, expected) in ODD.items()}
    for partition, report in done.partitions().items():
        assert comparable(rehearsed.partitions()[partition]) == comparable(report)
        assert "sediment-" not in str(report["reason"])
    after = logs(log_dir)
    assert {path: after.get(path) for path in before} == before


def test_a_partition_that_was_refused_is_left_for_the_next_run(log_dir):
    sediment("recover", log_dir, "--json", "--now-ms", NOW_MS)
    refused = [f"{odd}-0" for odd, (_, expected) in ODD.items() if expected == "corrupt-data"]
    before = {partition: sorted(tree(log_dir / partition)) for partition in refused if "huge" not in partition}
    assert sediment("recover", log_dir, "--json", "--now-ms", NOW_MS).status == 1
    assert {partition: sorted(tree(log_dir / partition)) for partition in before} == before


def everything(log_dir):
    """Names below a log directory, with the content of small regular files."""
    return {
        path: path.read_bytes() if path.is_file() and path.stat().st_size < 10_000 else None
        for path in log_dir.glob("*/*")
    }


def test_a_second_run_finds_nothing_to_repair(log_dir):
    sediment("recover", log_dir, "--json", "--now-ms", NOW_MS)
    before = everything(log_dir)
    again = sediment("recover", log_dir, "--json", "--now-ms", NOW_MS).partitions()
    assert {name: report["repairs"] for name, report in again.items() if report.get("repairs")} == {}
    assert everything(log_dir) == before


def test_expire_undoes_and_refuses_as_recover_does(tmp_path):
    log_dir = tmp_path / "logs"
    for odd in ("torn-swap", "torn-swap-of-a-lost-log"):
        segments(log_dir / f"{odd}-0")
        ODD[odd][0](log_dir / f"{odd}-0")
    (log_dir / ".kafka_cleanshutdown").touch()
    before = logs(log_dir)
    done = sediment(
        "expire", log_dir, "--json", "--now-ms", NOW_MS, "--broker-defaults", "--set", "log.retention.ms=-1"
    )
    assert done.status == 1
    codes = {partition: report["reason_code"] for partition, report in done.partitions().items()}
    assert codes == {"torn-swap-0": "nothing-to-delete", "torn-swap-of-a-lost-log-0": "corrupt-data"}
    assert logs(log_dir) == before
    assert not list((log_dir / "torn-swap-0").glob("*.swap"))
    assert (log_dir / "torn-swap-of-a-lost-log-0" / name(3, ".log.swap")).exists()

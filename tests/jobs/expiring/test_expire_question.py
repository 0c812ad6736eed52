"""The question of `expire`: once, only on a terminal, before any change; a yes deletes the segments that were shown."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path

import pytest

from sediment.jobs.command_line.options import CommonOptions
from sediment.jobs.expire import expire as run_expire
from sediment.jobs.expiring.report import ExpiryRunReport
from sediment.jobs.settings.resolve import Settings
from sediment.segment_io.errors import DeclinedError, SourceChangedError
from tests.jobs.expiring.expired_logs import NAME, bases, make_log
from tests.jobs.log_dirs import tree, write_checkpoint
from tests.jobs.originals.kept_originals import catalogues
from tests.segments import NOW_MS, batch_bytes, write_segment

SETS = ("cleanup.policy=delete", "retention.bytes=360", "retention.ms=-1")
ARGUMENTS = (f"--now-ms={NOW_MS}", *(f"--set={given}" for given in SETS))
QUESTION = "Delete 2 segments with 720 B from 1 partition? [y/N] "
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


def on_terminal(*arguments: object, answer: bytes | Callable[[int], None] = b"") -> tuple[int, str, str]:
    """Run `expire` with stdin and stderr on a terminal; `answer` is typed, or does something to the process.

    Returns the exit status, stdout, and what the terminal showed without its control sequences.
    """
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "sediment.jobs.cli", "expire", *map(str, arguments)],
        stdin=theirs,
        stderr=theirs,
        stdout=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        env={**os.environ, "COLUMNS": "200"},
    )
    os.close(theirs)
    shown, asked = b"", False
    while select.select([ours], [], [], 60)[0]:
        try:
            chunk = os.read(ours, 4096)
        except OSError:  # the process has closed the terminal
            break
        if not chunk:
            break
        shown += chunk
        if b"[y/N] " in shown and not asked:
            asked = True
            if callable(answer):
                answer(process.pid)
            else:
                os.write(ours, answer)
    assert process.stdout is not None
    stdout = process.stdout.read().decode()
    os.close(ours)
    return process.wait(60), stdout, _CONTROL.sub("", shown.decode()).replace("\r\n", "\n")


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    return make_log(tmp_path / "logs").parent


def test_yes_deletes_what_was_shown(log_dir, tmp_path):
    status, stdout, shown = on_terminal(
        log_dir, *ARGUMENTS, f"--keep-originals={tmp_path}/kept", answer=b"y\n"
    )  # fmt: skip
    assert status == 0, shown
    assert shown.count(QUESTION) == 1
    assert f"2 segments with 720 B would be deleted, the files would be kept in {tmp_path}/kept" in shown
    assert NAME in shown.split(QUESTION)[0] and "3 → 1" in shown.split(QUESTION)[0]
    assert "2 segments with 720 B deleted" in stdout
    assert bases(log_dir / NAME) == [10]
    assert len(catalogues(tmp_path / "kept")) == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"n\n",
        b"\n",
        b"\x04",
        b"\x03",
        lambda pid: os.kill(pid, signal.SIGTERM),
    ],
    ids=["n", "nothing", "end of input", "Ctrl-C", "SIGTERM"],
)
def test_anything_else_changes_nothing_and_ends_with_one_sentence_and_exit_status_1(log_dir, answer):
    (log_dir / NAME / f"{3:020d}.log.deleted").touch()
    before = tree(log_dir)
    status, stdout, shown = on_terminal(log_dir, *ARGUMENTS, answer=answer)
    assert (status, stdout) == (1, "")
    assert shown.count(QUESTION) == 1
    assert shown.rstrip().endswith("sediment: nothing was deleted; answer y, or give --yes, to delete")
    assert "Traceback" not in shown
    assert tree(log_dir) == before


@pytest.mark.parametrize("option", ["--yes", "--json", "--quiet", "--dry-run"])
def test_a_run_with_an_explicit_option_does_not_ask(log_dir, option):
    status, _, shown = on_terminal(log_dir, *ARGUMENTS, option)
    assert status == 0, shown
    assert "[y/N]" not in shown
    assert bases(log_dir / NAME) == ([0, 5, 10] if option == "--dry-run" else [10])


def test_a_run_with_nothing_to_delete_does_not_ask(log_dir):
    status, stdout, shown = on_terminal(log_dir, "--set=retention.ms=-1", "--broker-defaults")
    assert (status, "[y/N]" in shown) == (0, False), shown
    assert "nothing-to-delete" in stdout


@pytest.mark.parametrize("stream", ["stdin", "stderr"])
def test_without_a_terminal_there_is_no_question(log_dir, stream):
    ours, theirs = pty.openpty()
    streams = {"stdin": theirs, "stderr": theirs, stream: subprocess.DEVNULL}
    done = subprocess.run(
        [sys.executable, "-m", "sediment.jobs.cli", "expire", str(log_dir), *ARGUMENTS],
        stdout=subprocess.PIPE,
        timeout=60,
        check=False,
        **streams,
    )
    os.close(theirs)
    os.close(ours)
    assert done.returncode == 0
    assert bases(log_dir / NAME) == [10]


# -------------------------------------------------------------------------------------------------- while it is asking
def run(log_dir: Path, confirm: Callable[[ExpiryRunReport], bool]) -> ExpiryRunReport:
    options = CommonOptions(
        log_dirs=(log_dir,), settings=Settings.load(None, SETS), now_ms=NOW_MS, as_json=True, quiet=True
    )
    return run_expire(options, confirm=confirm)


def test_the_run_that_is_shown_is_the_run_that_follows(log_dir):
    shown: list[ExpiryRunReport] = []
    done = run(log_dir, lambda plan: not shown.append(plan))
    assert (shown[0].partitions, shown[0].run_id, shown[0].dry_run) == (done.partitions, done.run_id, True)
    assert not done.dry_run


def test_a_question_answered_no_is_an_error_of_its_own(log_dir):
    with pytest.raises(DeclinedError):
        run(log_dir, lambda plan: False)


@pytest.mark.parametrize("change", ["segment", "time", "checkpoint", "replacement"])
def test_a_partition_that_changes_while_the_question_is_open_is_not_touched(log_dir, change):
    make_log(log_dir, "orders-1")

    def changed(_plan: ExpiryRunReport) -> bool:
        if change == "segment":
            write_segment(log_dir / NAME, 15, [batch_bytes(15, value=b"new")])
        elif change == "time":
            os.utime(log_dir / NAME / f"{0:020d}.log", ns=(1, 1))
        elif change == "checkpoint":
            write_checkpoint(log_dir / "replication-offset-checkpoint", {NAME: 3, "orders-1": 15})
        else:
            (log_dir / NAME / f"{5:020d}.log.swap").touch()
        before.update(tree(log_dir))
        return True

    before: dict[str, bytes] = {}
    with pytest.raises(SourceChangedError, match="run again"):
        run(log_dir, changed)
    assert tree(log_dir) == before


def test_what_was_interrupted_is_left_to_a_run_that_does_not_ask(log_dir):
    make_log(log_dir, "orders-1")
    (log_dir / NAME / f"{5:020d}.log.cleaned").write_bytes(b"half")
    before = tree(log_dir / NAME)
    reports = {report.partition: report for report in run(log_dir, lambda plan: True).partitions}
    assert (reports[NAME].reason_code, reports["orders-1"].status) == ("interrupted", "expired")
    assert "--yes" in str(reports[NAME].reason)
    assert tree(log_dir / NAME) == before

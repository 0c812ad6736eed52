"""Options that name a file: a device is refused at once, and a signal ends the wait for the writer of a pipe."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from sediment.jobs.process.cancellation import RunStopped, end_on_signals, stop_on_signals
from sediment.jobs.process.input_files import read_input_file
from tests.jobs.log_dirs import sediment
from tests.segments import batch_bytes, write_segment
from tests.waiting import LIMIT_SECONDS

ERASE = ["erase", "LOGS", "--broker-defaults", "--yes"]
SUPPRESS = ["--suppress=ZERO", "--secret-file=SECRET"]


@pytest.mark.parametrize(
    "arguments",
    [
        [*ERASE, "--keys-file=ZERO"],
        [*ERASE, "--where=@ZERO"],
        [*ERASE, "--keys-file=KEYS", "--action=replace", "--replacement=ZERO"],
        [*ERASE, "--keys-file=KEYS", "--evidence=E", "--secret-file=ZERO", "--signing-key=ZERO"],
        [*ERASE, "--keys-file=KEYS", "--evidence=E", "--secret-file=SECRET", "--signing-key=ZERO"],
        ["erase", "--check=ZERO", "--public-key=ZERO"],
        ["clone", "LOGS", "--to=CLONE", *SUPPRESS],
        ["restore", "LOGS", "--from=LOGS", "--run=x", "--yes", *SUPPRESS],
        ["plan", "LOGS", "--config=ZERO"],
        ["plan", "LOGS", "--topic-configs=ZERO"],
        ["plan", "LOGS", "--settings=ZERO"],
        ["history", "LEDGER", "--replay=ZERO"],
        ["serve", "LOGS", "--users=ZERO"],
    ],
    ids=lambda arguments: " ".join(arguments).replace(" LOGS", ""),
)
def test_a_device_that_never_ends_is_refused_at_once(tmp_path: Path, arguments: list[str]) -> None:
    write_segment(tmp_path / "LOGS" / "t-0", 0, [batch_bytes(0)])
    (tmp_path / "KEYS").write_text("a\n")
    (tmp_path / "SECRET").write_text("0" * 32)
    (tmp_path / "SECRET").chmod(0o600)
    given = [argument.replace("ZERO", "/dev/zero") for argument in arguments]
    for name in ("LOGS", "KEYS", "SECRET", "CLONE", "LEDGER"):
        given = [argument.replace(name, str(tmp_path / name)) for argument in given]
    outcome = sediment(*given)
    assert outcome.status == 2, outcome.stderr
    assert "cannot be read: it is neither a file nor a pipe" in " ".join(outcome.stderr.split())


def test_no_settings_file_can_be_stated(tmp_path: Path) -> None:
    write_segment(tmp_path / "t-0", 0, [batch_bytes(0)])
    assert sediment("dump", tmp_path, "--settings=/dev/null").status == 0


@pytest.mark.timeout(60)
def test_a_signal_ends_the_wait_for_a_writer_in_a_run_that_ends_itself(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with end_on_signals(), stop_on_signals():
        threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGTERM]).start()
        with pytest.raises(RunStopped):
            read_input_file(pipe, 10, "--thing")


@pytest.mark.parametrize(("written", "content"), [("true", b""), ("printf a", b"a"), ("sleep 0.1; printf b", b"b")])
def test_the_pipe_of_a_process_substitution_is_read_to_its_end(written: str, content: bytes) -> None:
    read = "from sediment.segment_io.input_files import *; print(read_input_file(Path(sys.argv[1]), 10, 'x'))"
    command = ["bash", "-c", f'"{sys.executable}" -c "import sys; {read}" <({written})']
    assert subprocess.check_output(command, text=True, timeout=LIMIT_SECONDS) == f"{content!r}\n"


@pytest.mark.timeout(60)
@pytest.mark.parametrize("is_open", [False, True])
def test_a_signal_that_interrupts_no_system_call_ends_the_wait_for_a_writer(tmp_path: Path, is_open: bool) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = os.open(pipe, os.O_RDWR) if is_open else None
    # The main thread then learns of the signal when it runs Python code next, as of one just before a system call.
    other = threading.Timer(0.2, lambda: signal.pthread_kill(threading.get_ident(), signal.SIGTERM))
    with end_on_signals():
        other.start()
        with pytest.raises(RunStopped):
            read_input_file(pipe, 10, "--thing")
    if writer is not None:
        os.close(writer)


@pytest.mark.timeout(LIMIT_SECONDS)
def test_a_command_that_waits_for_a_writer_ends_with_one_sentence(tmp_path: Path) -> None:
    write_segment(tmp_path / "logs" / "t-0", 0, [batch_bytes(0)])
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    command = [sys.executable, "-m", "sediment.jobs.cli", "erase", tmp_path / "logs", "--broker-defaults", "--yes"]
    process = subprocess.Popen([*map(str, command), f"--keys-file={pipe}"], stderr=subprocess.PIPE, text=True)
    descriptor = os.open(pipe, os.O_WRONLY)  # returns once the command has opened the pipe
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate()
    os.close(descriptor)
    assert (process.returncode, stderr) == (1, "sediment: the run was stopped before it was done; run again\n")

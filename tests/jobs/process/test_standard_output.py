"""A result that cannot be printed: the run is recorded, and one line without a traceback reports it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sediment.jobs.command_line.options import message_console
from sediment.jobs.process.standard_output import OutputError, as_text, write_result
from sediment.jobs.reporting.run_report import result_console
from tests.corpus import load_case
from tests.jobs.log_dirs import make_log_dir, sediment
from tests.waiting import LIMIT_SECONDS

NOW_MS = 1_700_001_000_000
_READER_LEFT = 141


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    plain = load_case("plain", tmp_path / "corpus")
    return make_log_dir(tmp_path / "logs", {plain.partition: plain.before})


def run(*arguments: object, full: bool) -> tuple[int, str]:
    """Exit status and stderr of a command whose stdout is full, or a pipe that nothing reads."""
    if full:
        stdout = os.open("/dev/full", os.O_WRONLY)
    else:
        reader, stdout = os.pipe()
        os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "sediment.jobs.cli", *map(str, arguments)],
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            timeout=LIMIT_SECONDS,
            check=False,
        )
    finally:
        os.close(stdout)
    return done.returncode, done.stderr


def is_one_sentence(stderr: str) -> bool:
    return stderr.startswith("sediment: ") and stderr.count("\n") == 1 and "None" not in stderr


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("full", [False, True])
def test_a_run_whose_result_cannot_be_printed_is_in_ledger_page_and_metrics(
    log_dir: Path, tmp_path: Path, full: bool, as_json: bool
) -> None:
    kept = (f"--ledger={tmp_path}/ledger", f"--report={tmp_path}/run.html", f"--metrics={tmp_path}/run.prom")
    sets = ("--set=plain:cleanup.policy=delete", "--set=plain:retention.ms=1000", "--now-ms", 2 * NOW_MS)
    status, stderr = run("expire", log_dir, *sets, *kept, *(["--json"] if as_json else []), full=full)
    assert is_one_sentence(stderr), stderr
    assert "the result could not be printed" in stderr and "the run itself is finished" in stderr
    assert status == (1 if full else 0)
    (recorded,) = json.loads(sediment("history", tmp_path / "ledger", "--json").stdout)["runs"]
    assert [partition["status"] for partition in recorded["partitions"]] == ["expired"]
    assert recorded["run_id"] in (tmp_path / "run.html").read_text()
    assert "sediment_run_success" in (tmp_path / "run.prom").read_text()


def test_a_failed_run_keeps_its_status_where_the_reader_has_left(log_dir: Path) -> None:
    damaged = next((log_dir / "plain-0").glob("*.log"))
    content = bytearray(damaged.read_bytes())
    content[30] ^= 1
    damaged.write_bytes(content)
    assert sediment("recover", log_dir, "--dry-run", "--json").status == 1
    status, stderr = run("recover", log_dir, "--dry-run", full=False)
    assert status == 1
    assert is_one_sentence(stderr), stderr


@pytest.mark.parametrize("command", ["dump", "dump --json", "history", "completion"])
def test_a_command_that_only_prints_ends_silently_without_a_reader(command: str, log_dir: Path, tmp_path: Path) -> None:
    arguments: tuple[object, ...] = ("setup", "completion", "bash")
    if command == "history":
        assert sediment("expire", log_dir, "--dry-run", f"--ledger={tmp_path}/ledger").status == 0
        arguments = ("history", tmp_path / "ledger")
    elif command != "completion":
        arguments = (*command.split(), log_dir, "--what", "records", "--limit", 0)
    assert run(*arguments, full=False) == (_READER_LEFT, "")
    status, stderr = run(*arguments, full=True)
    assert status == 1
    assert is_one_sentence(stderr), stderr
    assert "No space left on device" in stderr


def test_stderr_that_is_full_or_gone_ends_no_run(log_dir: Path) -> None:
    (log_dir / "no partition-x").mkdir()
    command = [sys.executable, "-m", "sediment.jobs.cli", "recover", log_dir, "--dry-run", "--json"]
    assert "no partition-x" in subprocess.run(command, capture_output=True, text=True, check=True).stderr
    reader, stderr = os.pipe()
    os.close(reader)
    for broken in (stderr, os.open("/dev/full", os.O_WRONLY)):
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=broken, timeout=LIMIT_SECONDS, check=False)
        os.close(broken)
        assert done.returncode == 0
        assert len(json.loads(done.stdout)["partitions"]) == 1


@pytest.mark.parametrize("arguments", [("--help",), ("--version",), ("compact", "--help")])
def test_help_that_stdout_does_not_take_is_one_sentence(arguments: tuple[str, ...]) -> None:
    status, stderr = run(*arguments, full=True)
    assert status == 1
    assert is_one_sentence(stderr), stderr
    assert "No space left on device" in stderr


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)])
def test_no_file_gets_the_number_of_a_closed_standard_stream(closed: tuple[int, ...], tmp_path: Path) -> None:
    """Messages of Spark go to 2 whatever it is; it was the lock of the log directory."""
    script = (
        "import os, sys; from sediment.jobs import cli; sys.argv = ['sediment', '--version']\n"
        "try: cli.main()\nexcept SystemExit: pass\n"
        f"number = os.open({str(tmp_path)!r}, os.O_RDONLY)\n"
        f"open({str(tmp_path / 'number')!r}, 'w').write(str(number))"
    )
    redirections = " ".join(f"{number}>&-" for number in closed)
    command = ["sh", "-c", f'exec "$0" -c "$1" {redirections}', sys.executable, script]
    subprocess.run(command, timeout=LIMIT_SECONDS, check=True)
    assert int((tmp_path / "number").read_text()) > 2


def test_text_that_would_command_the_terminal_is_shown_as_text() -> None:
    shown = as_text(lambda console: console.print("größer → \x1b[2Jt-0\nx", markup=False), result_console())
    assert shown == "größer → \\x1b[2Jt-0\\nx\n"


def test_text_that_the_encoding_cannot_say_is_escaped_and_not_an_error(capsysbinary: pytest.CaptureFixture) -> None:
    write_result("caf\udce9\n")
    assert capsysbinary.readouterr().out == b"caf\\udce9\n"


@pytest.mark.parametrize("plain", [True, False])
def test_a_message_in_a_file_is_one_line(plain: bool, capsys: pytest.CaptureFixture[str]) -> None:
    sentence = "nothing is deleted by retention or the cleaner in topics without a stated policy: " + "orders, " * 20
    message_console(quiet=False, plain=plain).print(sentence)
    assert capsys.readouterr().err == f"{sentence}\n"


def test_an_output_error_says_why() -> None:
    error = OutputError("Broken pipe", reader_left=True)
    assert error.reader_left and str(error) == "stdout cannot be written: Broken pipe"

"""SIGINT and SIGTERM: at any moment a command ends with one sentence and exit status 1, with nothing half-done."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.errors import PySparkException

import sediment.jobs as sediment_jobs
from sediment.engine.directory.lock import DirectoryLock
from sediment.jobs.process.cancellation import (
    RunStopped,
    end_on_signals,
    interruptible,
    is_stopping,
    stop_on_signals,
    was_stopped,
)
from sediment.jobs.reporting.error_text import error_text_of
from tests.corpus import load_case
from tests.jobs.log_dirs import make_log_dir, sediment, topic_sets, tree
from tests.waiting import LIMIT_SECONDS, wait_until

NOW_MS = 1_700_001_000_000
_STOPPED = "sediment: the run was stopped before it was done; run again\n"


# ---------------------------------------------------------------------------------------------------- in this process
def test_a_signal_ends_a_block_and_afterwards_signals_are_as_they_were() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(RunStopped), end_on_signals():
        assert not is_stopping()
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            assert is_stopping()
    assert signal.getsignal(signal.SIGTERM) is before
    assert not is_stopping()


def test_an_object_that_a_signal_left_unfinished_is_deleted_without_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    class Unfinished:
        def __init__(self, value: int) -> None:
            signal.raise_signal(signal.SIGINT)
            self.value = value

        def __del__(self) -> None:
            if self.value:
                raise ValueError("a fault of the clean-up")

    messages: list[type[BaseException]] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda error: messages.append(error.exc_type))
    with contextlib.suppress(RunStopped), end_on_signals():
        Unfinished(1)
    gc.collect()
    assert messages == []
    finished = Unfinished.__new__(Unfinished)
    finished.value = 1
    del finished
    assert messages == [ValueError]
    hook = sys.unraisablehook
    with contextlib.suppress(RunStopped), end_on_signals():
        signal.raise_signal(signal.SIGINT)
    assert sys.unraisablehook is hook


def test_a_signal_in_a_function_that_c_code_calls_ends_the_block_without_a_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    messages: list[type[BaseException]] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda error: messages.append(error.exc_type))
    called_by_c = ctypes.CFUNCTYPE(None)(lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(RunStopped), end_on_signals():
        called_by_c()
        time.sleep(LIMIT_SECONDS)
        pytest.fail("the command went on")
    assert messages == []


def test_a_block_that_ends_itself_is_notified_first_and_then_interrupted() -> None:
    with end_on_signals(), stop_on_signals() as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop.is_set()
        with pytest.raises(RunStopped):
            signal.raise_signal(signal.SIGINT)


def test_a_part_that_may_be_interrupted_is_not_begun_once_a_signal_came() -> None:
    with end_on_signals(), stop_on_signals():
        with interruptible():
            pass
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(RunStopped), interruptible():
            pytest.fail("begun")


def test_an_error_of_a_clean_up_after_a_signal_is_the_signal() -> None:
    try:
        try:
            raise RunStopped
        finally:
            raise ValueError("the JVM has gone")
    except ValueError as error:
        assert was_stopped(error)
    assert not was_stopped(ValueError("a fault"))


@pytest.mark.parametrize(
    "error", [Py4JNetworkError("gone"), PySparkException("gone"), ConnectionRefusedError(), EOFError()]
)
def test_an_error_of_spark_after_a_signal_is_the_signal_which_has_also_ended_the_jvm(error: Exception) -> None:
    assert not was_stopped(error)
    with end_on_signals(), stop_on_signals():
        signal.raise_signal(signal.SIGTERM)
        assert error_text_of(error).sentence == "the run was stopped before it was done; run again"
        for other, code in ((ValueError("a bug"), "fault"), (OSError(errno.ENOSPC, "full"), "no-space")):
            assert error_text_of(other).reason_code == code


# -------------------------------------------------------------------------------------------- in processes of their own
@pytest.mark.parametrize("name", [None, "py4j.clientserver", "py4j.java_gateway"])
def test_py4j_says_nothing_once_a_signal_ends_the_command(sc: object, name: str | None) -> None:
    logger = logging.getLogger(name)
    record = logger.makeRecord("py4j", logging.ERROR, "", 0, "Exception occurred while shutting down", (), None)
    with end_on_signals():
        assert logger.filter(record)
        with pytest.raises(RunStopped):
            signal.raise_signal(signal.SIGINT)
        assert not logger.filter(record)
    assert logger.filter(record)


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    plain = load_case("plain", tmp_path / "corpus")
    return make_log_dir(tmp_path / "logs", {f"plain-{number}": plain.before for number in range(4)})


@pytest.fixture
def sets() -> list[str]:
    return topic_sets("plain", {"cleanup.policy": "compact", "delete.retention.ms": "0"})


Started = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Started]:
    running: list[subprocess.Popen[str]] = []

    def start(*arguments: object) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "sediment.jobs.cli", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "SEDIMENT_TRACEBACK": "", "XDG_STATE_HOME": str(tmp_path / "state")},
        )
        running.append(process)
        return process

    yield start
    for process in running:
        process.kill()
        process.wait()
        for jvm in jvms_of(process.pid):
            os.kill(jvm, signal.SIGKILL)


def descendants(pid: int) -> list[int]:
    """Processes below one, as /proc tells."""
    parents: dict[int, int] = {}
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            try:
                parents[int(place.name)] = int((place / "stat").read_text().rpartition(") ")[2].split()[1])
            except OSError:
                continue
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found[1:]


def runs_below(pid: int, program: bytes) -> bool:
    for child in descendants(pid):
        try:
            if program in Path(f"/proc/{child}/cmdline").read_bytes():
                return True
        except OSError:
            continue
    return False


def when_java_starts(process: subprocess.Popen[str]) -> bool:
    return runs_below(process.pid, b"org.apache.spark.deploy.SparkSubmit")


def when_workers_start(process: subprocess.Popen[str]) -> bool:
    return runs_below(process.pid, b"sediment.jobs.spark.worker_daemon")


def end(process: subprocess.Popen[str], number: int, *, group: bool = False) -> tuple[int, str, str]:
    """Send a signal unless the process has ended, and return exit status, stdout and stderr; no JVM may be left."""
    if process.poll() is None:
        (os.killpg if group else os.kill)(process.pid, number)
    stdout, stderr = process.communicate(timeout=LIMIT_SECONDS)
    wait_until(lambda: not jvms_of(process.pid))
    return process.returncode, stdout, stderr


def jvms_of(session: int) -> list[int]:
    """Return the JVMs in a session, whoever their parent is by now."""
    found = []
    for place in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            is_one = b"org.apache.spark.deploy.SparkSubmit" in (place / "cmdline").read_bytes()
            if is_one and os.getsid(int(place.name)) == session:
                found.append(int(place.name))
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_command_that_only_reads_ends_with_one_sentence_while_spark_starts(
    log_dir: Path, sets: list[str], start: Started, tmp_path: Path, number: int
) -> None:
    process = start("plan", log_dir, *sets, "--master=local[1]", f"--report={tmp_path}/run.html")
    wait_until(lambda: when_java_starts(process) or process.poll() is not None)
    assert end(process, number) == (1, "", _STOPPED)
    assert "the run was stopped" in (tmp_path / "run.html").read_text()


def test_a_command_that_only_reads_ends_with_one_sentence_once_tasks_run(
    log_dir: Path, sets: list[str], start: Started
) -> None:
    process = start("verify", log_dir, log_dir, *sets, "--master=local[1]")
    wait_until(lambda: when_workers_start(process) or process.poll() is not None)
    assert end(process, signal.SIGINT, group=True) == (1, "", _STOPPED)


def test_a_run_that_is_stopped_while_spark_starts_reports_every_partition_and_changes_none(
    log_dir: Path, sets: list[str], start: Started, tmp_path: Path
) -> None:
    before = tree(log_dir)
    ledger = tmp_path / "ledger"
    process = start("compact", log_dir, *sets, "--master=local[1]", f"--ledger={ledger}")
    wait_until(lambda: when_java_starts(process) or process.poll() is not None)
    status, stdout, stderr = end(process, signal.SIGINT)
    assert (status, stderr) == (1, "")
    (told,) = (line for line in stdout.splitlines() if "run the same command again" in line)
    assert told.startswith("stopped: 4 of 4 partitions are not done") and "plain-0, plain-1, plain-2, plain-3" in told
    assert tree(log_dir) == before
    (run,) = json.loads(sediment("history", ledger, "--json").stdout)["runs"]
    assert {partition["reason_code"] for partition in run["partitions"]} == {"stopped"}
    with DirectoryLock(log_dir):
        assert not [name for name in os.listdir(log_dir) if "sediment" in name]


def test_what_prints_without_end_is_stopped_with_one_sentence(log_dir: Path, start: Started) -> None:
    process = start("dump", *[log_dir] * 40, "--what=records", "--json")
    assert process.stdout is not None
    process.stdout.readline()
    status, _, stderr = end(process, signal.SIGINT)
    assert (status, stderr) == (1, _STOPPED)


def test_a_command_that_is_still_loading_ends_with_one_sentence(log_dir: Path, start: Started) -> None:
    process = start("plan", log_dir)
    # The interpreter itself takes the first moments; a handler of ours shows in the signals that are caught.
    wait_until(lambda: catches_sigterm(process.pid) or process.poll() is not None)
    status, stdout, stderr = end(process, signal.SIGTERM)
    assert (status, stdout) == (1, "")
    assert stderr.startswith("sediment: the run was stopped before it ") and stderr.count("\n") == 1


JOBS = Path(sediment_jobs.__file__).parent
SCRIPTS = sorted(
    path
    for path in JOBS.glob("*.py")
    if 'if __name__ == "__main__"' in path.read_text() and path.name != "worker_daemon.py"
)
_LIBRARY_THAT_SIGNALS = "import os, signal\nos.kill(os.getpid(), signal.{name})\nraise SystemExit('not stopped')\n"


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
@pytest.mark.parametrize(
    "program",
    [
        [Path(sys.executable).with_name("sediment"), "plan"],
        [sys.executable, "-m", "sediment.jobs.cli", "plan"],
        *([sys.executable, script] for script in SCRIPTS),
    ],
    ids=lambda program: f"{Path(program[0]).name} {Path(program[1]).name}",
)
def test_a_command_that_imports_its_first_library_ends_with_one_sentence(
    program: list[str | Path], name: str, tmp_path: Path
) -> None:
    (tmp_path / "click.py").write_text(_LIBRARY_THAT_SIGNALS.format(name=name))
    done = subprocess.run(
        program, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(tmp_path)}, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "sediment: the run was stopped before it started\n"


def test_an_ignored_signal_stays_ignored_while_a_command_loads(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text(_LIBRARY_THAT_SIGNALS.format(name="SIGINT"))
    done = subprocess.run(
        [sys.executable, "-m", "sediment.jobs.cli"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
        check=False,
    )
    assert done.stderr == "not stopped\n"


def catches_sigterm(pid: int) -> bool:
    """True if a process that has not been waited for has a handler for SIGTERM."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    caught = next((int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:")), 0)
    return bool(caught >> (signal.SIGTERM - 1) & 1)


_KILLED_WHILE_IT_STOPS = """
import signal
from sediment.jobs.process.cancellation import RunStopped, end_on_signals, ended_if_killed
with end_on_signals(), ended_if_killed(lambda: print("ended", flush=True)):
    try:
        signal.raise_signal(signal.SIGINT)
    except RunStopped:
        signal.raise_signal(signal.SIGINT)
"""


def test_a_second_signal_ends_the_jvm_that_is_being_launched_too() -> None:
    code = [sys.executable, "-c", _KILLED_WHILE_IT_STOPS]
    found = subprocess.run(code, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False)
    assert (found.returncode, found.stdout) == (-signal.SIGINT, "ended\n"), found.stderr


def test_a_signal_that_also_ends_the_jvm_is_no_bug(log_dir: Path, start: Started, tmp_path: Path) -> None:
    process = start("clone", log_dir, f"--to={tmp_path / 'clone'}", "--master=local[1]", "--strategy=split")
    wait_until(lambda: when_workers_start(process) or process.poll() is not None)
    status, stdout, stderr = end(process, signal.SIGTERM, group=True)
    assert status == 1 and "bug" not in stderr and "Traceback" not in stderr
    assert "stopped" in stdout + stderr


def test_a_run_whose_jvm_is_killed_reports_every_partition_with_one_sentence_and_changes_none(
    log_dir: Path, sets: list[str], start: Started
) -> None:
    before = tree(log_dir)
    process = start("compact", log_dir, *sets, "--force", "--master=local[1]", "--json", "-v")
    assert process.stderr is not None
    assert any(re.search("Spark .* started", line) for line in iter(process.stderr.readline, ""))
    for jvm in jvms_of(process.pid):
        os.kill(jvm, signal.SIGKILL)
    stdout, stderr = process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 1 and "Traceback" not in stderr, stderr
    partitions = json.loads(stdout)["partitions"] if stdout else []  # there is no report before the first task
    assert {(each["status"], each["reason_code"]) for each in partitions} <= {("failed", "task-lost")}
    reasons = [each["reason"] for each in partitions] or [stderr.splitlines()[-1].removeprefix("sediment: ")]
    assert {reason.partition(",")[0] for reason in reasons} == {"the JVM of Spark has ended during the run"}
    assert tree(log_dir) == before


def test_a_second_signal_ends_the_process_at_once(log_dir: Path, sets: list[str], start: Started) -> None:
    process = start("plan", log_dir, *sets, "--master=local[1]")
    wait_until(lambda: when_workers_start(process) or process.poll() is not None)
    os.kill(process.pid, signal.SIGINT)
    status, stdout, stderr = end(process, signal.SIGINT)
    assert status in (1, -signal.SIGINT)
    assert stdout == "" and "Traceback" not in stderr


_PROGRESS = re.compile(r"\w+ \d+/\d+ partitions: .* in \d+:\d\d")
"""The line that a long run prints every ten seconds."""

_EVERY = {
    "plan": ["plan", "LOGS"],
    "plan-exact": ["plan", "LOGS", "--exact"],
    "compact": ["compact", "LOGS", "--force"],
    "compact-output": ["compact", "LOGS", "--force", "--output=TMP/output"],
    "expire": ["expire", "LOGS"],
    "expire-archive": [
        "expire",
        "LOGS",
        "--set=plain:cleanup.policy=delete",
        "--set=plain:retention.ms=1",
        "--archive=TMP/archive",
    ],
    "recover": ["recover", "LOGS"],
    "verify": ["verify", "LOGS", "TMP/after"],
    "dump": ["dump", "LOGS", "--what=records"],
    "dump-to": ["dump", "LOGS", "--what=records", "--to=TMP/parquet", "--master=local[1]"],
    "history": ["history", "TMP/ledger"],
    "delta-jars": ["setup", "delta-jars"],
    "clone": ["clone", "LOGS", "--to=TMP/clone"],
    "clone-split": ["clone", "LOGS", "--to=TMP/clone", "--strategy=split"],
    "reencode": ["reencode", "LOGS", "--codec=zstd", "--broker-defaults"],
    "erase": ["erase", "LOGS", "--keys-file=TMP/keys", "--action=drop", "--yes", "--broker-defaults"],
}


@pytest.mark.fuzz
@pytest.mark.parametrize("delay_seconds", [0.3, 1, 2, 3.5, 5, 7, 10, 14])
@pytest.mark.parametrize(
    ("number", "group"),
    [(signal.SIGINT, False), (signal.SIGINT, True), (signal.SIGTERM, True)],
    ids=["process", "group", "group and its JVM"],
)
@pytest.mark.parametrize("command", _EVERY)
def test_every_command_ends_with_one_sentence_whenever_the_signal_comes(
    command: str,
    number: signal.Signals,
    group: bool,
    delay_seconds: float,
    log_dir: Path,
    sets: list[str],
    start: Started,
    tmp_path: Path,
) -> None:
    make_log_dir(tmp_path / "after", {f"plain-{number}": log_dir / f"plain-{number}" for number in range(4)})
    assert sediment("expire", log_dir, "--dry-run", f"--ledger={tmp_path}/ledger").status == 0
    (tmp_path / "keys").touch(0o600)
    (tmp_path / "keys").write_text("a\n")
    given = [text.replace("LOGS", str(log_dir)).replace("TMP", str(tmp_path)) for text in _EVERY[command]]
    takes_settings = given[0] in ("plan", "compact", "expire", "verify", "recover")
    process = start(*given, *(sets if takes_settings and "archive" not in command else []))
    time.sleep(delay_seconds)
    if process.poll() is None and not catches_sigterm(process.pid):
        pytest.skip("the interpreter is still starting")
    status, stdout, stderr = end(process, number, group=group)
    assert status in (0, 1), stderr
    assert "Traceback" not in stderr and "Exception" not in stderr and "Abort" not in stderr, stderr
    sentences = [line for line in stderr.splitlines() if not _PROGRESS.match(line)]
    assert len(sentences) <= 1, stderr
    if status == 1:
        assert "stopped" in stdout + stderr
    assert not [path for path in log_dir.rglob("*") if path.suffix in (".part", ".swap", ".cleaned")]
    assert not (tmp_path / "parquet").exists() or list((tmp_path / "parquet").glob("*.parquet"))

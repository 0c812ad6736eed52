"""The daemon that loads the kernels while the JVM starts: Spark's workers come from it, and it ends with the others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from sediment.jobs.spark import early_daemon
from sediment.jobs.spark.early_daemon import VARIABLE, EarlyDaemon
from tests.waiting import LIMIT_SECONDS

_MODULE = "sediment.jobs.spark.worker_daemon"


def _commands() -> dict[int, str]:
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            found[int(process.name)] = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def _wait_for_the_end_of(process: int) -> None:
    ends = time.monotonic() + LIMIT_SECONDS
    while "--early" in _commands().get(process, ""):
        assert time.monotonic() < ends, "the early daemon is still there"
        time.sleep(0.05)


def _run(program: str, **variables: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        env={**os.environ, **variables},
        timeout=LIMIT_SECONDS,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split("\n")


_JOB = """
    import os, sys
    from pathlib import Path
    from sediment.jobs.spark.session import spark_context

    def of_worker(_):
        parent = os.getppid()
        loaded = "sediment.compaction.warm_up" in sys.modules
        yield parent, Path(f"/proc/{parent}/cmdline").read_bytes().decode(), loaded, sorted(os.environ)

    with spark_context("local[2]", "test") as sc:
        parent, command, loaded, variables = sc.parallelize([1], 1).mapPartitions(of_worker).collect()[0]
    print(parent, "--early" in command, loaded, "SEDIMENT_EARLY_DAEMON" in variables, "SPARK_REUSE_WORKER" in variables)
"""


def test_workers_come_from_the_daemon_that_the_driver_started_and_it_ends_with_spark() -> None:
    parent, *found = _run(_JOB)[0].split()
    assert found == ["True", "True", "False", "True"]
    _wait_for_the_end_of(int(parent))


def test_another_python_for_workers_gets_no_early_daemon() -> None:
    folder, name = os.path.split(sys.executable)
    found = _run(_JOB, PYSPARK_PYTHON=f"{folder}/./{name}")[0].split()
    assert found[1:] == ["False", "True", "False", "True"]


def test_it_starts_with_the_variables_that_the_settings_give_to_workers(tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text("spark.executorEnv.NUMBA_OPT 2\n")
    program = """
        import os
        from pathlib import Path
        from sediment.jobs.spark.session import spark_context

        def at_the_start_of_the_parent(_):
            yield Path(f"/proc/{os.getppid()}/environ").read_bytes(), Path(f"/proc/{os.getppid()}/cmdline").read_bytes()

        with spark_context("local[2]", "test") as sc:
            variables, command = sc.parallelize([1], 1).mapPartitions(at_the_start_of_the_parent).collect()[0]
        print(b"--early" in command, b"NUMBA_OPT=2" in variables.split(b"\\0"))
    """
    assert _run(program, SPARK_CONF_DIR=str(tmp_path))[0] == "True True"


@pytest.fixture
def daemon() -> EarlyDaemon:
    return EarlyDaemon(_MODULE, subprocess.DEVNULL, os.environ)


def _process_of(daemon: EarlyDaemon) -> int:
    return daemon._process.pid


def test_it_ends_if_spark_never_needs_it(daemon: EarlyDaemon) -> None:
    daemon.end()
    _wait_for_the_end_of(_process_of(daemon))


def test_it_ends_if_the_driver_is_killed() -> None:
    program = f"""
        import os, subprocess, time
        from sediment.jobs.spark.early_daemon import EarlyDaemon
        print(EarlyDaemon({_MODULE!r}, subprocess.DEVNULL, os.environ)._process.pid, flush=True)
        time.sleep(600)
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True
    ) as driver:
        assert driver.stdout is not None
        early = int(driver.stdout.readline())
        driver.kill()
    _wait_for_the_end_of(early)


def test_a_daemon_of_another_installation_is_refused_and_loads_the_kernels_itself(
    daemon: EarlyDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, daemon.name)
    monkeypatch.setattr(early_daemon, "_identity", lambda: ["another"])
    assert not early_daemon.hand_over()
    assert VARIABLE not in os.environ
    _wait_for_the_end_of(_process_of(daemon))


@pytest.mark.parametrize("kill", [False, True], ids=["gone", "killed while it loads"])
def test_without_an_early_daemon_nothing_is_handed_over(
    daemon: EarlyDaemon, monkeypatch: pytest.MonkeyPatch, kill: bool
) -> None:
    monkeypatch.setenv(VARIABLE, daemon.name)
    if kill:
        os.kill(_process_of(daemon), signal.SIGKILL)
    else:
        monkeypatch.setenv(VARIABLE, "sediment-nobody")
    assert not early_daemon.hand_over()
    daemon.end()

"""Modules that a forked worker has loaded, and precedence of the installed package over Spark's own archives."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import textwrap
import types
from pathlib import Path

import pyspark
import pytest

from sediment.jobs.spark import worker_daemon
from tests.waiting import LIMIT_SECONDS

_LIBRARY = Path(pyspark.__file__).parent / "python" / "lib"
_SITE = str(Path(pyspark.__file__).parent.parent)


def test_archives_of_the_installed_pyspark_come_last_and_all_else_stays_in_order() -> None:
    own = [f"{_SITE}/pyspark/python/lib/pyspark.zip", f"{_SITE}/pyspark/python/lib/py4j-1.0-src.zip"]
    path = ["/job", *own, "/job/more.zip", "/usr/lib/python311.zip", _SITE, "/source"]
    assert worker_daemon.installed_first(path) == [
        *("/job", "/job/more.zip", "/usr/lib/python311.zip", _SITE, "/source"),
        *own,
    ]


def test_archives_of_a_spark_that_is_not_installed_for_python_stay_in_front() -> None:
    path = ["/opt/spark/python/lib/pyspark.zip", "/opt/venv/pyspark/python/lib/pyspark.zip", _SITE]
    assert worker_daemon.installed_first(path) == path


def test_a_warmed_up_process_has_the_worker_from_the_package_and_neither_pandas_nor_arrow() -> None:
    archives = [str(archive) for archive in sorted(_LIBRARY.glob("*.zip"))]
    assert archives
    program = textwrap.dedent(f"""
        import sys
        sys.path[:0] = {archives!r}
        from sediment.jobs.spark import worker_daemon
        sys.path[:] = worker_daemon.installed_first(sys.path)
        worker_daemon.warm_up()
        worker = sys.modules["pyspark.worker"].__file__
        assert ".zip" not in worker, worker
        assert not {{"pandas", "pyarrow"}} & set(sys.modules)
    """)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "")


def test_a_failed_warm_up_is_reported_and_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(worker_daemon, "_KERNELS", "sediment.no_such_module")
    worker_daemon.warm_up()
    told = capsys.readouterr()
    assert "no_such_module" in told.err
    assert told.out == ""


def test_a_worker_whose_jvm_has_gone_ends_without_a_traceback_and_other_errors_are_its_own() -> None:
    def worker(error: BaseException | None) -> int:
        if error is not None:
            raise error
        return 0

    silent = worker_daemon.silent_once_nobody_listens(worker)
    assert (silent(None), silent(BrokenPipeError()), silent(ConnectionResetError())) == (0, 1, 1)
    with pytest.raises(OSError, match="disk"):
        silent(OSError("disk"))


_DAEMON = """
import os
from pyspark import daemon, serializers
from sediment.jobs.spark import worker_daemon

worker_daemon.silence_once_nobody_listens(daemon)
manager = os.getpid()

def write_int(value, stream):
    if os.getpid() != manager:
        raise {error}
    serializers.write_int(value, stream)

daemon.write_int = write_int
daemon.manager()
"""


@pytest.mark.parametrize(("error", "is_told"), [("BrokenPipeError", False), ("ValueError('a fault')", True)])
def test_a_process_whose_jvm_has_gone_before_it_answers_says_nothing(error: str, is_told: bool) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _DAEMON.format(error=error)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHON_UNIX_DOMAIN_ENABLED": "false"},
    ) as running:
        assert running.stdout is not None and running.stderr is not None and running.stdin is not None
        (port,) = struct.unpack("!i", running.stdout.read(4))
        with socket.create_connection(("127.0.0.1", port), timeout=LIMIT_SECONDS) as asking:
            assert asking.recv(4) == b""
        running.stdin.close()
        told = running.stderr.read().decode()
    assert ("ValueError: a fault" in told) == is_told
    assert is_told or told == ""


def test_a_flush_that_fails_after_the_jvm_ended_is_not_reported(capsys: pytest.CaptureFixture[str]) -> None:
    told = types.SimpleNamespace(worker=lambda: 0)
    worker_daemon.silence_once_nobody_listens(told)
    for error in (BrokenPipeError("a pipe"), OSError("a disk")):
        try:
            raise error
        except OSError:
            told.print("failed to flush", told.traceback.format_exc(), file=sys.stderr)
    seen = capsys.readouterr().err
    assert "a disk" in seen and "a pipe" not in seen

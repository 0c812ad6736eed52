"""Sessions, started in separate processes because the tests of this package share one context."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import platformdirs
import pytest
from pyspark import SparkContext

from sediment.jobs.spark import session
from sediment.jobs.spark.session import QUICK_JVM, _launcher_options, _not_started, spark_settings
from sediment.segment_io.compiled.kernel_folder import CACHE_VARIABLE
from tests.segments import batch_bytes, write_segment
from tests.waiting import LIMIT_SECONDS

_TWO_RUNS = """
import signal, threading, time
from sediment.jobs.spark.session import create_session, spark_context

def forever(_):
    time.sleep(600)

handler = signal.signal(signal.SIGINT, lambda *_: None), signal.getsignal(signal.SIGINT)
with spark_context("local[2]", "first") as sc:
    assert signal.getsignal(signal.SIGINT) is handler[1]
    assert sc.parallelize([1, 2, 3], 2).map(abs).sum() == 6
    with spark_context("local[1]", "inner") as inner:
        assert inner is sc
    assert sc.parallelize([4]).collect() == [4]
    threading.Thread(target=lambda: sc.parallelize([1], 1).foreach(forever), daemon=True).start()
    time.sleep(1)
with create_session("local[1]", "second") as session:
    assert session.range(3).count() == 3
    assert session.sparkContext.master == "local[1]"
print("done")
"""


def run(code: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    named = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env=named | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_SECONDS,
    )


SOCKETS = "spark.python.unix.domain.socket.enabled"


def test_what_is_given_is_left_alone() -> None:
    added = spark_settings("local[2]", {"spark.ui.enabled": "true", "spark.driver.host": "here"})
    assert "spark.ui.enabled" not in added and "spark.driver.host" not in added
    assert added[SOCKETS] == "true"
    assert added["spark.python.daemon.module"] == "sediment.jobs.spark.worker_daemon"


@pytest.mark.parametrize(("master", "submits", "is_off"), [("local[2]", False, True), ("local[2]", True, False)])
def test_spark_submit_has_a_ui(monkeypatch: pytest.MonkeyPatch, master: str, submits: bool, is_off: bool) -> None:
    monkeypatch.setattr(session, "under_spark_submit", lambda: submits)
    assert (spark_settings(master, {}).get("spark.ui.enabled") == "false") is is_off
    assert "spark.ui.enabled" not in spark_settings("yarn", {})


def test_a_cluster_gets_nothing_that_only_this_machine_can_have() -> None:
    added = spark_settings("spark://host:7077", {})
    assert not {"spark.driver.host", "spark.driver.bindAddress", "spark.python.daemon.module", SOCKETS} & set(added)


@pytest.fixture
def no_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No archive of classes, whether or not `setup warm-up` was run here; the compiled loops stay where they are."""
    monkeypatch.setenv(CACHE_VARIABLE, os.environ.get(CACHE_VARIABLE) or platformdirs.user_cache_dir("sediment"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.usefixtures("no_archive")
def test_settings_files_agree_with_what_a_local_run_gets() -> None:
    conf = (Path(__file__).parents[3] / "conf" / "spark-defaults.conf").read_text(encoding="ascii")
    lines = [line.split(maxsplit=1) for line in conf.splitlines() if line and not line.startswith("#")]
    wanted = spark_settings("local[*]", {})
    assert wanted.pop(SOCKETS) == "true"  # the file also serves clusters
    assert wanted.pop("spark.ui.enabled") == "false"  # and it is for spark-submit
    assert dict(lines) == wanted


def test_a_context_starts_and_ends_quietly_and_leaves_signals_and_files_as_they_were(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as sockets:  # Spark wants a short path
        (tmp_path / "spark-defaults.conf").write_text(f"spark.python.unix.domain.socket.dir {sockets}\n")
        done = run(_TWO_RUNS, SPARK_CONF_DIR=str(tmp_path))
        assert list(Path(sockets).iterdir()) == []
    assert (done.stdout, done.returncode) == ("done\n", 0), done.stderr
    assert "WARN" not in done.stderr and "incubator" not in done.stderr


@pytest.mark.usefixtures("no_archive")
def test_a_session_reads_kafka_logs_as_it_is_and_lets_the_jvm_optimise(tmp_path: Path) -> None:
    write_segment(tmp_path / "t-0", 0, [batch_bytes(0, "abc")])
    done = run(
        """
import sys
from sediment.jobs.datasource import register
from sediment.jobs.spark.session import create_session
with create_session("local[1]", "test") as session:
    register(session)
    log = session.read.format("kafka-log").load(sys.argv[1])
    assert [row.offset for row in log.filter("offset > 0").collect()] == [1, 2]
    print(session.sparkContext.getConf().get("spark.driver.extraJavaOptions"))
""",
        tmp_path / "t-0",
    )
    assert done.stdout.endswith(" -XX:+UseParallelGC\n"), done.stderr
    assert "TieredStopAtLevel" not in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("script", "environment", "sentence"),
    [
        (None, {"JAVA_HOME": "/no/such/java"}, "JAVA_HOME names none; install Java"),
        ("echo 'openjdk version \"11.0.2\" 2019-01-15' >&2; exit 1", {}, "Java 17 or newer, but this is Java 11"),
        ("echo 'openjdk version \"1.8.0_292\"' >&2; exit 1", {}, "Java 17 or newer, but this is Java 8"),
    ],
)
def test_a_missing_or_old_java_is_one_sentence(
    tmp_path: Path, script: str | None, environment: dict[str, str], sentence: str
) -> None:
    if script is not None:
        java = tmp_path / "bin" / "java"
        java.parent.mkdir()
        java.write_text(f"#!/bin/sh\n{script}\n")
        java.chmod(0o755)
        environment = {"JAVA_HOME": str(tmp_path)}
    done = run(
        """
import sys
from sediment.jobs.spark.session import spark_context
from sediment.segment_io.errors import UsageError
try:
    with spark_context("local[1]", "test"):
        pass
except UsageError as error:
    sys.exit(str(error))
""",
        **environment,
    )
    assert done.returncode == 1
    assert sentence in done.stderr and done.stderr.count("\n") == 1
    assert done.stdout == ""


_STARTS = """
import resource, sys
from sediment.jobs.spark.session import spark_context
from sediment.segment_io.errors import UsageError
{before}
try:
    with spark_context("local[1]", "test"):
        pass
except UsageError as error:
    sys.exit(str(error))
"""


@pytest.mark.parametrize(
    ("before", "environment", "sentence"),
    [
        ("resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))", {}, "ulimit -n 65536"),
        ("", {"PYSPARK_PYTHON": "/no/such/python"}, "/no/such/python; correct PYSPARK_PYTHON"),
        ("", {"SPARK_CONF_DIR": "{conf}"}, "Java cannot allocate its memory; free some memory"),
        ("", {"JAVA_HOME": "{java}"}, "Spark does not start: nothing works; correct JAVA_HOME"),
    ],
    ids=["descriptors", "python", "memory", "java"],
)
def test_what_spark_lacks_is_one_sentence_that_names_it(
    tmp_path: Path, before: str, environment: dict[str, str], sentence: str
) -> None:
    (tmp_path / "spark-defaults.conf").write_text("spark.driver.memory 900000g\n")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").write_text("#!/bin/sh\necho nothing works >&2; exit 3\n")
    (tmp_path / "bin" / "java").chmod(0o755)
    named = {name: value.format(conf=tmp_path, java=tmp_path) for name, value in environment.items()}
    done = run(_STARTS.format(before=before), **named)
    assert done.returncode == 1
    assert sentence in done.stderr and done.stderr.count("\n") == 1, done.stderr
    assert done.stdout == ""


def test_where_spark_does_not_know_the_user_the_sentence_names_the_variables() -> None:
    error = _not_started(RuntimeError(": java.io.IOException: Invalid UID, could not determine effective user"), "")
    assert "the user id of this process has no name" in error.what
    assert error.advice is not None and "HADOOP_USER_NAME" in error.advice


def test_a_soft_limit_of_open_files_is_raised_as_far_as_the_hard_one_allows() -> None:
    code = """
import resource
from sediment.jobs.spark.session import _check_open_files
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 2048))
_check_open_files()
print(resource.getrlimit(resource.RLIMIT_NOFILE))
"""
    assert run(code).stdout == "(2048, 2048)\n"


def test_a_master_that_spark_does_not_know_is_one_sentence() -> None:
    done = run(
        """
import sys
from sediment.jobs.spark.session import spark_context
from sediment.segment_io.errors import UsageError
try:
    with spark_context("nowhere", "test"):
        pass
except UsageError as error:
    sys.exit(str(error))
"""
    )
    assert "Spark does not start: " in done.stderr and done.stderr.count("\n") == 1


def test_spark_submit_decides_the_master(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(
        "from sediment.jobs.spark.session import spark_context\n"
        "with spark_context(None, 'test') as sc:\n"
        "    print(sc.master, sc.getConf().get('spark.ui.enabled'), sc.parallelize([1, 2]).sum())\n"
    )
    submit = Path(sys.executable).parent / "spark-submit"
    done = subprocess.run(
        [submit, "--master", "local[1]", "--conf", "spark.ui.enabled=false", script],
        env=os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_SECONDS,
    )
    assert "local[1] false 3" in done.stdout, done.stderr


_LOGS = """
import logging
from sediment.jobs.process.stderr_log import TEXT, log_to_stderr
from sediment.jobs.spark.session import spark_context

logger = logging.getLogger("sediment.jobs.test")
with log_to_stderr(TEXT, quiet=False):
    logger.warning("one")
    with spark_context(None, "test") as sc:
        for _ in range(2):
            logger.warning("two at s3://me:secret@host/ {}")
        logger.info("not a warning")
        logging.getLogger("other").warning("three")
        print(sc.uiWebUrl is not None)
    logger.warning("four")
"""


def test_on_a_cluster_under_spark_submit_warnings_are_in_the_log_of_the_driver_and_the_ui_is_on(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(_LOGS)
    submit = Path(sys.executable).parent / "spark-submit"
    done = subprocess.run(
        [submit, "--master", "local-cluster[1,1,1024]", script],
        env=os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_SECONDS,
    )
    # spark-submit sends both streams of Python to stdout, and the log of the JVM to stderr.
    assert done.stdout.splitlines() == ["one", "three", "True", "four"], done.stderr
    (said,) = (line for line in done.stderr.splitlines() if " test: " in line)
    assert " WARN " in said and said.endswith(" two at s3://host/ {}")


def test_runs_in_several_threads_share_one_context_until_the_last_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    started, stopped = [], []

    class Context:
        master = "yarn"

    def start(*_: object) -> Context:
        time.sleep(0.2)  # so that the other threads arrive in the meantime
        context = Context()
        started.append(context)
        monkeypatch.setattr(SparkContext, "_active_spark_context", context)
        return context

    def stop(context: Context) -> None:
        stopped.append(context)
        monkeypatch.setattr(SparkContext, "_active_spark_context", None)

    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    monkeypatch.setattr(session, "_start", start)
    monkeypatch.setattr(session, "_stop", stop)
    together = threading.Barrier(3, timeout=30)

    def run() -> None:
        with session.spark_context(None, "test") as context:
            assert not stopped and started == [context]
            together.wait()

    with ThreadPoolExecutor(3) as pool:
        for each in [pool.submit(run) for _ in range(3)]:
            each.result()
    assert stopped == started and len(started) == 1


def test_the_launcher_of_spark_is_found_first_unless_the_shell_would_change_its_path(tmp_path: Path):
    plain, odd = tmp_path / "jars", tmp_path / "my jars"
    for jars in (plain, odd):
        jars.mkdir()
        assert _launcher_options(jars) == QUICK_JVM
        (jars / "spark-launcher_2.13-4.2.0.jar").touch()
    assert _launcher_options(plain) == f"{QUICK_JVM} -Xbootclasspath/a:{plain}/spark-launcher_2.13-4.2.0.jar"
    assert _launcher_options(odd) == QUICK_JVM


def test_before_spark_starts_a_run_loads_nothing_that_it_can_load_meanwhile():
    slow = ("numpy", "numba", "pandas", "pyarrow", "pyspark")
    code = f"import sys, sediment.jobs.compact; print([name for name in {slow!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"

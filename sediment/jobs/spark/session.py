"""SparkContext and SparkSession of a command, which start only when needed, with few services and few messages.

A run needs only a SparkContext; a SparkSession takes a second longer to start and is created only for DataFrames.
Settings given to spark-submit or in `spark-defaults.conf` override the settings made here.

Invariants: an active context is used unchanged and stays running.  A context made here is stopped, with all of its
tasks, at the end of the `with` block.  Messages that Spark prints while it starts are shown only if the start fails;
none are shown after a signal has ended the run.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sediment.jobs.process.cancellation import (
    end_on_signals,
    ended_if_killed,
    interruptible,
    is_stopping,
    stop_on_signals,
)
from sediment.jobs.process.stderr_log import as_line, is_verbose, log_elsewhere
from sediment.jobs.process.unnamed_user import variables_for_spark
from sediment.jobs.spark.cds_options import archive_options, make_archive_in_background
from sediment.jobs.spark.driver_log import driver_log
from sediment.jobs.spark.early_daemon import VARIABLE, EarlyDaemon
from sediment.jobs.spark.java import INSTALL_JAVA, MIN_JAVA, check_java, java_version
from sediment.jobs.spark.live_slots import is_local
from sediment.jobs.spark.release import check_spark, has_spark
from sediment.jobs.spark.task_figures import start_counting, stop_counting
from sediment.jobs.spark.worker_python import check_worker_python, safe_path_variables
from sediment.segment_io.errors import UsageError
from sediment.segment_io.extras import install_command

if TYPE_CHECKING:
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

DEFAULT_MASTER = "local[*]"

_LOGGER = logging.getLogger(__name__)

MoreSettings = Callable[[Mapping[str, str]], Mapping[str, str]]

_UNDER_SPARK_SUBMIT = "PYSPARK_GATEWAY_PORT"
_STDERR = 2
NO_START, CHECK_SETTINGS = "Spark does not start: ", "correct the --master or Spark's settings"
"""The beginning of an error with a cause that Spark gives, and the advice if that cause is not known."""

LEAST_FILES, ENOUGH_FILES = 512, 65536
"""Limits of open files: Spark does not start below LEAST_FILES; ENOUGH_FILES is enough for every run."""

_WANTED_BY_CONVERTERS = "pyspark.testing.utils"  # imported by the first call to the JVM; loads pandas and pyarrow
_PLAIN_PATH = re.compile(r"[\w./@+-]+")
_CAUSE = re.compile(r"(?:Exception|Error): (.+)")
_JAVA_GONE = re.compile("JAVA_GATEWAY_EXITED")
_KNOWN_CAUSES = (
    (
        re.compile("Too many open files"),
        "too many open files",
        "raise the limit, for example: ulimit -n 65536",
    ),
    (
        re.compile(
            "Could not reserve enough space|insufficient memory|Cannot allocate memory|unable to create native thread|"
            "Initial heap size|Too small (?:initial|maximum) heap|Could not allocate"
        ),
        "Java cannot allocate its memory",
        "free some memory, lower spark.driver.memory, or raise ulimit -v",
    ),
    (
        re.compile(r"Invalid UID|invalid null input: name|basedir must be absolute: \?"),
        "the user id of this process has no name",
        "add it to /etc/passwd, or set SPARK_USER and HADOOP_USER_NAME to a name, and SPARK_SUBMIT_OPTS to "
        "-Duser.home=DIR",
    ),
)

# The driver's JVM is short-lived and mostly waits for Python; an optimising compiler and a parallel collector would
# only slow it down.
QUICK_JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"

_EVERYWHERE = {
    "spark.log.level": "ERROR",
    "spark.python.worker.faulthandler.enabled": "true",
    "spark.python.worker.reuse": "true",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(64 * 1024 * 1024),
    "spark.ui.showConsoleProgress": "false",
}

# For millions of rows, the optimising compiler is worth its cost: with only the quick compiler, a scan takes more than
# twice as long. With Unix domain sockets, the Python processes that planned a query print a traceback on stderr when
# Spark stops.
_FOR_ROWS = {
    "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",
    "spark.python.unix.domain.socket.enabled": "false",
}

_WITHOUT_ARCHIVE = (QUICK_JVM, _FOR_ROWS["spark.driver.extraJavaOptions"])
"""Driver options that end in one of these texts show that the JVM ran without an archive because none existed."""

_FILE_ENCRYPTION = "spark.io.encryption.enabled"
_DAEMON = "spark.python.daemon.module"
_WORKER_VARIABLE = "spark.executorEnv."

# On a cluster, executors may get this package only with the application's files, after the daemon has started.  A Unix
# domain socket connects a task to its worker in 20 ms instead of 53 ms, but on YARN it would lie in the folder of the
# container, whose path is longer than the 107 bytes that a socket's name may have.
_LOCALLY = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": QUICK_JVM,
    "spark.driver.host": "127.0.0.1",
    _DAEMON: "sediment.jobs.spark.worker_daemon",
    "spark.python.unix.domain.socket.enabled": "true",
}

_QUICK_START = {"spark.ui.enabled": "false"}
"""For a local run of the command `sediment`, which ends before anybody could open the UI."""

_sharing = threading.Lock()
_users: dict[SparkContext, int] = {}
"""The context that this module has started, and the number of runs, in different threads, that use it."""


@contextmanager
def spark_context(master: str | None, app_name: str, more: MoreSettings | None = None) -> Iterator[SparkContext]:
    """Yield the active SparkContext, or a new one on `master`.

    If `master` is None, the master is that of spark-submit, the configured master, or else local[*].  `more` gets the
    user's settings and returns the settings that this use of Spark needs.  The returned settings override the user's
    settings.

    Raises:
        RunStopped: a signal arrived before Spark had started.
    """
    require_spark()
    from pyspark import SparkContext

    with _sharing:
        finish_stopping()
        active = SparkContext._active_spark_context
        if active is None:
            with interruptible():
                active = _start(master, app_name, more)
            _users[active] = 0
        elif str(active.master).startswith("local"):
            check_worker_python(active)
        if active in _users:
            _users[active] += 1
    try:
        yield active
    finally:
        with _sharing:
            if active in _users:
                _users[active] -= 1
                if not _users[active]:
                    del _users[active]
                    _stop(active)


@contextmanager
def create_session(master: str | None, app_name: str, given: SparkSession | None = None) -> Iterator[SparkSession]:
    """Yield a SparkSession on the context of `spark_context`; the errors are those of `spark_context`.

    The settings of `given` and of an active session stay unchanged, because the new session is a separate session of
    the same context.  A caller that reads `kafka-log` registers the format (`datasource.register`).
    """
    require_spark()
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    finish_stopping()
    is_shared = SparkContext._active_spark_context is not None
    with spark_context(master, app_name, _for_rows):
        yield own_session(given) if is_shared else SparkSession.builder.getOrCreate()


def require_spark() -> None:
    if not has_spark():
        raise UsageError(
            "this command needs Spark, but the Python package pyspark is missing", advice=install_command("spark")
        )
    check_spark()


def own_session(given: SparkSession | None) -> SparkSession:
    """Return a session with its own settings and views, on the context of `given` or else on the active context."""
    from pyspark.sql import SparkSession

    return (given or SparkSession.builder.getOrCreate()).newSession()


def check_session(given: SparkSession) -> None:
    from pyspark.sql import SparkSession

    if not isinstance(given, SparkSession):
        raise UsageError(
            "spark is not a session with a SparkContext", advice="give a session that is not a Spark Connect session"
        )
    if given.sparkContext._jsc is None:
        raise UsageError("spark was stopped", advice="give a running session, or none")


def under_spark_submit() -> bool:
    return _UNDER_SPARK_SUBMIT in os.environ


def spark_settings(master: str, given: Mapping[str, str]) -> dict[str, str]:
    wanted = dict(_EVERYWHERE)
    if master.startswith("local"):
        wanted |= _LOCALLY if under_spark_submit() else _LOCALLY | _QUICK_START
    if is_verbose():
        wanted["spark.log.level"] = "WARN"
    if "spark.driver.extraJavaOptions" in wanted:
        wanted["spark.driver.extraJavaOptions"] = f"{QUICK_JVM} {archive_options()}".strip()
    return {key: value for key, value in wanted.items() if key not in given}


def encrypting_files(given: Mapping[str, str]) -> dict[str, str]:
    """Return the settings with which Spark encrypts all that it writes to its local directories; for `spark_context`.

    A function with much data, such as keys to search for, reaches the tasks through a file, which is left if Spark is
    killed.  The key of the encryption is only in memory.
    """
    return {} if _FILE_ENCRYPTION in given else {_FILE_ENCRYPTION: "true"}


def encrypts_files(sc: SparkContext) -> bool:
    return sc.getConf().get(_FILE_ENCRYPTION, "false") == "true"


def _for_rows(given: Mapping[str, str]) -> dict[str, str]:
    wanted = {key: given.get(key, value) for key, value in _FOR_ROWS.items()}
    if "spark.driver.extraJavaOptions" not in given:
        wanted["spark.driver.extraJavaOptions"] = (
            f"{_FOR_ROWS['spark.driver.extraJavaOptions']} {archive_options()}".strip()
        )
    return wanted


# ------------------------------------------------------------------------------------------------ starting and stopping
def _start(master: str | None, app_name: str, more: MoreSettings | None) -> SparkContext:
    from py4j.protocol import Py4JError
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkException

    for name in _LOGGERS_OF_PY4J:
        logging.getLogger(name).addFilter(_is_news)
    interrupt = signal.getsignal(signal.SIGINT)
    chatter = _Chatter()
    started = time.monotonic()
    try:
        if SparkContext._gateway is not None or under_spark_submit():
            gateway = SparkContext._gateway or _launch_gateway()
            conf = SparkConf(_jvm=gateway.jvm)
            _complete(conf, master, app_name, dict(conf.getAll()), more)
        else:
            check_java()
            _check_open_files()
            defaults = spark_defaults()
            conf = SparkConf(loadDefaults=False)
            _complete(conf, master, app_name, defaults, more)
            _complete_environment(conf.get("spark.master", defaults.get("spark.master", "")), defaults)
            _check_python(conf.get("spark.master", defaults.get("spark.master", "")), defaults)
            outputs = {"stdout": chatter.pipe, "stderr": chatter.pipe}
            _meanwhile(lambda: importlib.import_module(_WANTED_BY_CONVERTERS))
            if conf.get("spark.master", "").startswith("local"):
                _meanwhile(_check_kernel_cache)
            _start_early_daemon(conf, defaults, chatter.pipe)
            gateway = _launch_gateway(conf, outputs)
        chatter.close_pipe()
        sc = SparkContext(conf=conf, gateway=gateway)
    except BaseException as error:
        chatter.close_pipe()
        _end_early_daemon()
        if not isinstance(error, PySparkException | Py4JError):
            raise
        raise _not_started(error, chatter.heard()) from error
    # No task uses an accumulator of PySpark, and without this line a JVM that ends by itself would leave a traceback on
    # stderr.
    accumulators: Any = sc._accumulatorServer
    accumulators.handle_error = lambda *_request: None
    chatter.pass_on()
    start_counting(sc)
    if under_spark_submit() and not is_local(sc):
        log_elsewhere(driver_log(sc))
    _LOGGER.debug("Spark %s started on %s in %.1f s", sc.version, sc.master, time.monotonic() - started)
    if threading.current_thread() is threading.main_thread():
        # SparkContext installs its own signal handler, which would end a run before the work in progress is finished.
        signal.signal(signal.SIGINT, interrupt)
    return sc


class _Launched(subprocess.Popen[bytes]):
    """Launch of a JVM; a signal during the launch raises `RunStopped` only after the JVM's process is known."""

    def __init__(self, *given: Any, **more: Any) -> None:
        with end_on_signals(), stop_on_signals():
            super().__init__(*given, **more)
            _launched.append(self)
            with interruptible():
                pass  # if a signal arrived during the launch, this raises `RunStopped`


_launched: list[_Launched] = []


def _launch_gateway(*given: Any) -> Any:
    """Call PySpark's `launch_gateway`; if it is interrupted, end the JVM."""
    java_gateway: Any = importlib.import_module("pyspark.java_gateway")
    popen, java_gateway.Popen = java_gateway.Popen, _Launched
    with ended_if_killed(_end_launched):
        try:
            return java_gateway.launch_gateway(*given)
        except BaseException:
            # PySpark then removes the directory to which the JVM writes its port.  Without this directory, the JVM's
            # main thread fails before it waits for the end of its stdin, but the gateway's thread would keep the JVM
            # running forever.
            _end_launched()
            raise
        finally:
            java_gateway.Popen = popen
            _launched.clear()


def _end_launched() -> None:
    for process in _launched:
        process.terminate()


# A logger's filters do not apply to the records of its children.
_LOGGERS_OF_PY4J = (None, "py4j.clientserver", "py4j.java_gateway")


def _is_news(record: logging.LogRecord) -> bool:
    """Drop what Py4J logs after an interruption, and the tracebacks of a lost JVM, whose error Py4J also raises."""
    error = record.exc_info[1] if record.exc_info else None
    is_of_connection = isinstance(error, ConnectionError | EOFError) or type(error).__module__.startswith("py4j.")
    return not (is_stopping() or is_of_connection)


def _meanwhile(work: Callable[[], object]) -> None:
    """Import modules in the background while the JVM starts; an error is raised again at the first use of a module."""

    def load() -> None:
        with contextlib.suppress(Exception):
            work()

    threading.Thread(target=load, name="sediment-import", daemon=True).start()


def _start_early_daemon(conf: SparkConf, defaults: Mapping[str, str], output: int) -> None:
    """Load the kernels in the background if this module chose the daemon and the Python of Spark's workers."""
    python = defaults.get("spark.pyspark.python") or os.environ["PYSPARK_PYTHON"]
    if conf.get(_DAEMON) == _LOCALLY[_DAEMON] and python == sys.executable:
        settings = {**defaults, **dict(conf.getAll())}
        # numba and others read their variables when they are imported, which the early daemon does before Spark's own.
        of_workers = {
            key.removeprefix(_WORKER_VARIABLE): value
            for key, value in settings.items()
            if key.startswith(_WORKER_VARIABLE)
        }
        with contextlib.suppress(OSError):  # the daemon of Spark then loads the kernels itself
            early = EarlyDaemon(_LOCALLY[_DAEMON], output, {**os.environ, **of_workers})
            _early.append(early)
            conf.set(f"{_WORKER_VARIABLE}{VARIABLE}", early.name)


def _end_early_daemon() -> None:
    while _early:
        _early.pop().end()


def _check_kernel_cache() -> None:
    """Log that the workers on this machine compile their kernels, now or in every run; they say nothing."""
    from sediment.segment_io.compiled.kernel_folder import warn_if_uncompiled

    warn_if_uncompiled("sweep.")  # `plan` compiles others without Spark


def _complete(
    conf: SparkConf, master: str | None, app_name: str, given: Mapping[str, str], more: MoreSettings | None
) -> None:
    conf.setAppName(app_name)
    if master is not None:
        conf.setMaster(master)
    elif "spark.master" not in given:
        conf.setMaster(DEFAULT_MASTER)
    effective = master or given.get("spark.master", DEFAULT_MASTER)
    conf.setAll(list(spark_settings(effective, given).items()))
    workers = {f"{_WORKER_VARIABLE}{name}": value for name, value in safe_path_variables().items()}
    conf.setAll([(key, value) for key, value in workers.items() if key not in given])
    if more is not None:
        conf.setAll(list(more(given).items()))


def _complete_environment(master: str, given: Mapping[str, str]) -> None:
    if "spark.pyspark.python" not in given:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        os.environ.update(variables_for_spark(os.environ))
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", _launcher_options(_spark_home() / "jars"))


def _spark_home() -> Path:
    from pyspark.find_spark_home import _find_spark_home

    return Path(_find_spark_home())


def _launcher_options(jars: Path) -> str:
    """Return the options of the JVM that prints the command of Spark's JVM.

    It uses only Spark's launcher, a library that needs no other.  If Java finds it first, it does not have to open 200
    JARs, which would take 0.1 s.
    """
    found = [*jars.glob("spark-launcher_*.jar")]
    # `spark-class` splits the options at white space, and expands patterns.
    if len(found) != 1 or not _PLAIN_PATH.fullmatch(str(found[0])):
        return QUICK_JVM
    return f"{QUICK_JVM} -Xbootclasspath/a:{found[0]}"


def spark_defaults() -> dict[str, str]:
    """Return the settings in the user's `spark-defaults.conf`; settings on a command line silently override them."""
    import javaproperties

    folder = Path(os.environ.get("SPARK_CONF_DIR") or _spark_home() / "conf")
    try:
        with (folder / "spark-defaults.conf").open("rb") as source:
            found: dict[str, str] = javaproperties.load(source)
    except FileNotFoundError:
        return {}
    return found


_stopping: list[threading.Thread] = []
_early: list[EarlyDaemon] = []


def _stop(sc: SparkContext) -> None:
    """Stop Spark in the JVM now, and PySpark's context in the background, where it waits a second for accumulators."""
    from py4j.protocol import Py4JError

    log_elsewhere(None)
    stop_counting(sc)
    _end_early_daemon()
    address = sc._accumulatorServer.server_address
    with contextlib.suppress(Py4JError, OSError):  # a JVM that has ended counts as stopped
        if is_stopping():
            sc.setLogLevel("OFF")  # otherwise tasks that are still running would log errors
        elif sc.getConf().get("spark.driver.extraJavaOptions", "").endswith(_WITHOUT_ARCHIVE):
            make_archive_in_background()
        sc._jsc.stop()
    if isinstance(address, str):
        Path(address).unlink(missing_ok=True)  # the process may end before the background thread reaches this point
    thread = threading.Thread(target=_stop_in_background, args=(sc,), name="sediment-spark-stop", daemon=True)
    thread.start()
    _stopping.append(thread)


def _stop_in_background(sc: SparkContext) -> None:
    # The JVM's context is stopped; PySpark would stop it again, and print a warning if the JVM has ended since.
    sc._jsc = None
    with contextlib.suppress(Exception):
        sc.stop()


def finish_stopping() -> None:
    while _stopping:
        _stopping.pop().join()


class _Chatter:
    """Output of the JVM and its launcher, which is stored while Spark starts and later written to stderr."""

    def __init__(self) -> None:
        self._source, self.pipe = os.pipe()
        self._lines: list[bytes] = []
        self._passing_on = False
        self._thread = threading.Thread(target=self._listen, name="sediment-spark-stderr", daemon=True)
        self._thread.start()

    def close_pipe(self) -> None:
        """Close this process's end of the pipe, so that only the JVM can write to it."""
        if self.pipe >= 0:
            os.close(self.pipe)
            self.pipe = -1

    def pass_on(self) -> None:
        self._passing_on = True

    def heard(self) -> str:
        self._thread.join(timeout=2)
        return b"".join(self._lines).decode(errors="replace")

    def _listen(self) -> None:
        with os.fdopen(self._source, "rb") as source:
            for line in source:
                if is_stopping():
                    continue
                if self._passing_on:
                    # Do not write through sys.stderr, because this thread might hold the lock of sys.stderr when the
                    # interpreter ends.
                    with contextlib.suppress(OSError):
                        os.write(_STDERR, as_line(line))
                else:
                    self._lines.append(line)


# ---------------------------------------------------------------------------------------------------------- the machine
def _check_open_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH_FILES if hard == resource.RLIM_INFINITY else min(hard, ENOUGH_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    if wanted < LEAST_FILES:
        raise UsageError(
            f"Spark needs about {LEAST_FILES} open files, but this process may open only {wanted}",
            advice=f"raise the limit, for example: ulimit -n {ENOUGH_FILES}",
        )


def _check_python(master: str, given: Mapping[str, str]) -> None:
    python = given.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON") or sys.executable
    if master.startswith("local") and shutil.which(python) is None:
        raise UsageError(
            f"the Python for Spark's workers cannot be run: {python}", advice="correct PYSPARK_PYTHON or leave it out"
        )


def _not_started(error: Exception, heard: str) -> UsageError:
    version = java_version()
    if version is not None and version < MIN_JAVA:
        return UsageError(f"Spark needs Java {MIN_JAVA} or newer, but this is Java {version}", advice=INSTALL_JAVA)
    for said, what, advice in _KNOWN_CAUSES:
        if said.search(f"{error}\n{heard}"):
            return UsageError(f"{NO_START}{what}", advice=advice)
    cause = _CAUSE.search(f"{error}\n{heard}")
    if cause and not _JAVA_GONE.search(cause[1]):
        return UsageError(f"{NO_START}{cause[1]}", advice=CHECK_SETTINGS)
    lines = [line.strip() for line in heard.splitlines() if line.strip() and not line.startswith("WARN")]
    if lines:
        return UsageError(f"{NO_START}{lines[0]}", advice="correct JAVA_HOME or Spark's settings")
    return UsageError(f"{NO_START}Java ended at once", advice="check JAVA_HOME and the free memory")

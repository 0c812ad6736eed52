"""Figures of tasks, in Spark's UI and event log: bytes and records that were read, kept and dropped.

Spark shows accumulators with a name, and a Python task cannot update them: PySpark's own have no names.  Therefore, a
task writes the figures in front of each of its results, and a function in the executor's JVM (`TaskFigures.java`) takes
them off and adds them up.  The compiler inside Spark compiles this function for the first job of an application, and
executors fetch it like any JAR of the application.

Invariant: figures are only for the operator; a run gives the same results without them, also if executors cannot fetch
the JAR.
"""

from __future__ import annotations

import importlib
import logging
import pickle
import struct
import threading
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

Result = TypeVar("Result")

_LOGGER = logging.getLogger(__name__)

_SHOWN_IN = (("spark.ui.enabled", "true"), ("spark.eventLog.enabled", "false"))  # with Spark's defaults
_SOURCE = Path(__file__).with_name("TaskFigures.java")
_CLASS = "sediment.TaskFigures"
_JAR = "sediment-task-figures.jar"
_NOT_FETCHED = (_JAR, f"ClassNotFoundException: {_CLASS}")


class Figures(NamedTuple):
    """What a task did for one result; `TaskFigures.java` reads these fields in this order."""

    bytes_read: int = 0
    bytes_written: int = 0
    records_read: int = 0
    records_kept: int = 0
    records_dropped: int = 0


NAMES = tuple(field.replace("_", " ") for field in Figures._fields)
_FIGURES = struct.Struct(f">{len(NAMES)}q")

_counters: dict[Any, _Counter] = {}
"""By the SparkContext whose tasks are counted."""


def with_figures(figures: Figures, result: object) -> bytes:
    return _FIGURES.pack(*figures) + pickle.dumps(result, pickle.HIGHEST_PROTOCOL)


@dataclass(frozen=True, slots=True)
class Counted(Generic[Result]):
    """`perform`, a function of a Spark task, and the figures of each result that it yields."""

    perform: Callable[..., Iterable[Result]]
    figures: Callable[[Result], Figures]

    def __call__(self, *given: Any) -> Iterator[bytes]:
        for result in self.perform(*given):
            yield with_figures(self.figures(result), result)


def collect(
    sc: Any, over: Callable[[Any], Any], perform: Callable[..., Iterable[Result]], counted: Callable[..., Any] | None
) -> list[Result]:
    """Return the results of a job in which `over`, such as `rdd.mapPartitions`, applies `perform` in each task.

    `counted` yields the same results, each as `with_figures` returns it; it is used if the tasks of `sc` are counted.
    """
    counter = _counters.get(sc)
    function = None if counter is None or counted is None else counter.function()
    if counter is not None and function is not None and counted is not None:
        try:
            return _collect_counted(sc, over(counted), function)
        except Exception as error:
            if not _is_not_fetched(error):
                raise
            counter.give_up()  # no task has begun, so all of them can run without it
    return list(over(perform).collect())


def _collect_counted(sc: Any, rdd: Any, function: Any) -> list[Any]:
    pyspark: Any = importlib.import_module("pyspark")
    serializers: Any = importlib.import_module("pyspark.serializers")
    plain = serializers.NoOpSerializer()
    rdd._jrdd_deserializer = plain  # otherwise, PySpark would pickle several elements together
    results = pyspark.RDD(rdd._jrdd.mapPartitions(function), sc, plain).collect()
    return [pickle.loads(result) for result in results]


def _is_not_fetched(error: Exception) -> bool:
    """Return True if an executor could not load the function, so that none of its tasks could begin."""
    text = str(error)
    return any(said in text for said in _NOT_FETCHED)


def start_counting(sc: Any) -> None:
    """Count the tasks of `sc`, a context of this package, if anybody can see their figures."""
    settings = sc.getConf()
    if not any(settings.get(key, default) == "true" for key, default in _SHOWN_IN):
        return
    _counters[sc] = _Counter(sc)


def stop_counting(sc: Any) -> None:
    _counters.pop(sc, None)


class _Counter:
    """The function in the JVM that counts the tasks of a context; it is compiled for the first job."""

    def __init__(self, sc: Any) -> None:
        self._sc = sc
        self._lock = threading.Lock()
        self._make: Callable[[], Any] | None = None
        self._is_given_up = False

    def function(self) -> Any:
        """Return the function for one job, or None if the tasks cannot be counted."""
        with self._lock:
            if self._make is None and not self._is_given_up:
                try:
                    self._make = _function_maker(self._sc)
                except Exception as error:
                    self._is_given_up = True
                    _LOGGER.debug("the tasks cannot be counted: %s", type(error).__name__)
            return None if self._is_given_up or self._make is None else self._make()

    def give_up(self) -> None:
        """Count no more tasks, because executors cannot fetch the JAR; later tasks do not ask for it."""
        with self._lock:
            if self._is_given_up:
                return
            self._is_given_up = True
            _remove_jar(self._sc, _JAR)
        _LOGGER.warning(
            "executors cannot fetch %s from the driver, so Spark shows no figures; the results are complete",
            _JAR,
        )


def _function_maker(sc: Any) -> Callable[[], Any]:
    jvm = sc._jvm
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(jvm.java.lang.Thread.currentThread().getContextClassLoader())
    compiler.cook(_SOURCE.read_text(encoding="ascii"))
    jar = Path(sc._temp_dir) / _JAR
    with zipfile.ZipFile(jar, "w") as packed:
        # Without a time, because Spark refuses a JAR that differs from the one of the same name that it has.
        entry = zipfile.ZipInfo(f"{_CLASS.replace('.', '/')}.class")
        packed.writestr(entry, bytes(compiler.getBytecodes().get(_CLASS)))
    add_jar(sc, jar)
    names = sc._gateway.new_array(jvm.java.lang.String, len(NAMES))
    for number, name in enumerate(NAMES):
        names[number] = name
    return partial(jvm.sediment.TaskFigures, sc._jsc.sc(), names)


def add_jar(sc: Any, jar: Path) -> None:
    """Load the classes of `jar` into the driver and the executors of a context that is running."""
    loader = sc._jvm.java.lang.Thread.currentThread().getContextClassLoader()
    loader.addURL(sc._jvm.java.io.File(str(jar)).toURI().toURL())
    sc._jsc.addJar(str(jar))


def _remove_jar(sc: Any, name: str) -> None:
    """Let later jobs of a context run without a JAR that was added to it."""
    jars_of_sessions = sc._jsc.sc().addedJars().valuesIterator()
    while jars_of_sessions.hasNext():
        jars = jars_of_sessions.next()
        urls = str(jars.keys().mkString("\n")).split("\n")
        for url in urls:
            if url.endswith(f"/{name}"):
                jars.remove(url)

"""Figures of tasks, in Spark's UI and event log: bytes and records that were read, kept and dropped.

Spark shows accumulators with a name, and a Python task cannot update them: PySpark's own have no names.  Therefore, a
task writes the figures in front of each of its results, and a function in the executor's JVM (`TaskFigures.java`) takes
them off and adds them up.  The compiler inside Spark compiles this function once for an application, and executors
fetch it like any JAR of the application.

Invariant: figures are only for the operator; a run gives the same results without them.
"""

from __future__ import annotations

import importlib
import logging
import pickle
import struct
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


class Figures(NamedTuple):
    """What a task did for one result; `TaskFigures.java` reads these fields in this order."""

    bytes_read: int = 0
    bytes_written: int = 0
    records_read: int = 0
    records_kept: int = 0
    records_dropped: int = 0


NAMES = tuple(field.replace("_", " ") for field in Figures._fields)
_FIGURES = struct.Struct(f">{len(NAMES)}q")

_functions: dict[Any, Callable[[], Any]] = {}
"""By the SparkContext whose tasks are counted: what makes the function in the JVM that counts the tasks of one job."""


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
    make_function = _functions.get(sc)
    if make_function is None or counted is None:
        return list(over(perform).collect())
    pyspark: Any = importlib.import_module("pyspark")
    serializers: Any = importlib.import_module("pyspark.serializers")
    plain = serializers.NoOpSerializer()
    rdd = over(counted)
    rdd._jrdd_deserializer = plain  # otherwise, PySpark would pickle several elements together
    results = pyspark.RDD(rdd._jrdd.mapPartitions(make_function()), sc, plain).collect()
    return [pickle.loads(result) for result in results]


def start_counting(sc: Any) -> None:
    """Count the tasks of `sc`, a context of this package, if anybody can see their figures."""
    settings = sc.getConf()
    if not any(settings.get(key, default) == "true" for key, default in _SHOWN_IN):
        return
    try:
        _functions[sc] = _function_maker(sc)
    except Exception as error:
        _LOGGER.debug("the tasks cannot be counted: %s", type(error).__name__)


def stop_counting(sc: Any) -> None:
    _functions.pop(sc, None)


def _function_maker(sc: Any) -> Callable[[], Any]:
    jvm = sc._jvm
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(jvm.java.lang.Thread.currentThread().getContextClassLoader())
    compiler.cook(_SOURCE.read_text(encoding="ascii"))
    jar = Path(sc._temp_dir) / "sediment-task-figures.jar"
    with zipfile.ZipFile(jar, "w") as packed:
        packed.writestr(f"{_CLASS.replace('.', '/')}.class", bytes(compiler.getBytecodes().get(_CLASS)))
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

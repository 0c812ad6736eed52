"""A SparkContext whose tasks run in this process, one after the other, so that a test can inject faults.

It has only the RDD operations that `jobs` uses; the commands, their tasks and their files are the real ones.  A task
that raises ExecutorLostError is tried again under the name of another attempt; with `speculates` every task runs twice,
and the first attempt to end wins.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

from pyspark import TaskContext

from sediment.jobs.expiring import archive
from sediment.jobs.rewriting import run as rewriting_run

Partitions = list[list[Any]]


class ExecutorLostError(Exception):
    """The process of a task is gone; its later file operations do nothing."""


@dataclass(slots=True)
class Attempts:
    """The attempts of tasks so far; `runs` is True during one, `is_lost` after its process was lost."""

    speculates: bool = False
    number: int = 0
    runs: bool = False
    is_lost: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)  # several threads of the driver submit tasks

    def perform(self, work: Callable[[], Iterable[Any]]) -> list[Any]:
        """Run a task and return its rows."""
        results: list[list[Any]] = []
        with self._lock:
            while len(results) < (2 if self.speculates else 1):
                self.number += 1
                self.runs, self.is_lost = True, False
                with suppress(ExecutorLostError):
                    results.append(list(work()))
                self.runs = False
        return results[0]


ATTEMPTS = Attempts()


class _Context:
    """The part of TaskContext that a task uses."""

    def stageId(self) -> int:
        return 0

    def attemptNumber(self) -> int:
        return 0

    def taskAttemptId(self) -> int:
        return ATTEMPTS.number


def _over(work: Callable[[Iterator[Any]], Iterable[Any]], rows: list[Any]) -> Iterable[Any]:
    return work(iter(rows))


class InlineRdd:
    """An RDD of computed partitions."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions

    def mapPartitions(self, work: Callable[[Iterator[Any]], Iterable[Any]]) -> InlineRdd:
        return InlineRdd([ATTEMPTS.perform(partial(_over, work, rows)) for rows in self._partitions])

    def mapPartitionsWithIndex(self, work: Callable[[int, Iterator[Any]], Iterable[Any]]) -> InlineRdd:
        return InlineRdd(
            [
                ATTEMPTS.perform(partial(_over, partial(work, index), rows))
                for index, rows in enumerate(self._partitions)
            ]
        )

    def partitionBy(self, count: int, partitionFunc: Callable[[Any], int]) -> InlineRdd:  # noqa: N803
        shuffled: Partitions = [[] for _ in range(count)]
        for row in self.collect():
            shuffled[partitionFunc(row[0]) % count].append(row)
        return InlineRdd(shuffled)

    def repartitionAndSortWithinPartitions(
        self,
        count: int,
        partitionFunc: Callable[[Any], int],  # noqa: N803
    ) -> InlineRdd:
        shuffled = self.partitionBy(count, partitionFunc)
        return InlineRdd([sorted(rows, key=lambda row: row[0]) for rows in shuffled._partitions])

    def collect(self) -> list[Any]:
        return [row for rows in self._partitions for row in rows]


class InlineContext:
    """A SparkContext with the calls that commands use."""

    defaultParallelism = 1  # noqa: N815
    master = "local[1]"
    _jsc = SimpleNamespace(setCallSite=lambda _name: None, clearJobGroup=lambda: None)

    def getConf(self) -> dict[str, str]:
        return {}

    def setJobGroup(self, group: str, description: str) -> None:
        pass

    def setLocalProperty(self, key: str, value: str | None) -> None:
        pass

    def getLocalProperty(self, key: str) -> str | None:
        return None

    def cancelJobGroup(self, group: str) -> None:
        pass

    def parallelize(self, rows: Sequence[Any], count: int) -> InlineRdd:
        size = -(-len(rows) // count)
        return InlineRdd([list(rows[index * size : (index + 1) * size]) for index in range(count)])


@contextmanager
def inline_spark(*, speculates: bool = False) -> Iterator[None]:
    """Give commands inside an InlineContext."""
    ATTEMPTS.speculates = speculates

    @contextmanager
    def context(_master: str | None, _name: str, _more: Any = None) -> Iterator[InlineContext]:
        yield InlineContext()

    with ExitStack() as patches:
        for module in (archive, rewriting_run):
            patches.enter_context(mock.patch.object(module, "spark_context", context))
        patches.enter_context(mock.patch.object(TaskContext, "get", lambda: _Context() if ATTEMPTS.runs else None))
        yield

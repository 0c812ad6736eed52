"""Names and tags of Spark jobs, for the UI and the event log: what a job does, and to which partitions."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

Item = TypeVar("Item")

_STAGE_NAME = "callSite.short"  # Spark's local property; without it, a stage is named by a line of this package
_STAGE_DETAILS = "callSite.long"  # likewise; without it, the details of a stage are a Java stack trace
_TAGS = "spark.job.tags"  # the property of `SparkContext.addJobTag`, which sets one tag at a time
_OF_JOB = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel", _TAGS, _STAGE_DETAILS)
_MOST_TAGGED = 8  # partitions; the event log repeats the tags for each stage
_MOST_LISTED = 128  # partitions in the details of a stage, which the event log repeats too; a task has no more
_SHOWN_CHARACTERS, _SHOWN_OF_END = 60, 12  # of a name, which may have 255, and whose end is the number of a partition


@dataclass(frozen=True, slots=True)
class JobName:
    """`title` is the description of a job and the name of its stages; the job is about `partitions`."""

    title: str
    partitions: Sequence[str] = ()

    def tags(self, group: str) -> str:
        """Return the tags of a job: the run, and each partition unless there are many."""
        partitions = self.partitions if len(self.partitions) <= _MOST_TAGGED else ()
        return ",".join((group, *(name for name in partitions if name and "," not in name)))

    def details(self) -> str:
        """Return the names of all partitions, a line each; the title of a job without partitions."""
        left = len(self.partitions) - _MOST_LISTED
        more = (f"and {left} more",) if left > 0 else ()
        return "\n".join((*self.partitions[:_MOST_LISTED], *more)) or self.title


def titled(verb: str, name: Callable[[Item], object]) -> Callable[[Sequence[Item]], JobName]:
    """Return a function that names the job of some items, such as "clean orders-3 and 15 more"."""

    def job_name(items: Sequence[Item]) -> JobName:
        partitions = tuple(dict.fromkeys(str(name(item)) for item in items))
        more = f" and {len(partitions) - 1} more" if len(partitions) > 1 else ""
        return JobName(f"{verb} {shown(partitions[0])}{more}", partitions)

    return job_name


def shown(name: str) -> str:
    if len(name) <= _SHOWN_CHARACTERS:
        return name
    return f"{name[: _SHOWN_CHARACTERS - _SHOWN_OF_END - 1]}…{name[-_SHOWN_OF_END:]}"


@contextmanager
def named_job(sc: Any, group: str, name: JobName) -> Iterator[None]:
    """Name the Spark jobs of this thread inside the `with` block, and their stages, by the title of `name`.

    The partitions are the details of the stages.  Afterwards, the jobs of this thread are named as before, because a
    caller may have named them.
    """
    traceback_utils: Any = importlib.import_module("pyspark.traceback_utils")
    before = {key: sc.getLocalProperty(key) for key in _OF_JOB}
    sc.setJobGroup(group, name.title)
    sc.setLocalProperty(_TAGS, name.tags(group))
    sc.setLocalProperty(_STAGE_DETAILS, name.details())
    try:
        # Inside, the actions of PySpark do not name their stages themselves.
        with traceback_utils.SCCallSiteSync(sc):
            name_stage(sc, name.title)
            yield
    finally:
        with suppress(Exception):  # the JVM may have ended, which is then the error of the job
            for key, value in before.items():
                sc.setLocalProperty(key, value)


def name_stage(sc: Any, name: str) -> None:
    """Name the next stage of a job inside `named_job`."""
    sc.setLocalProperty(_STAGE_NAME, name)

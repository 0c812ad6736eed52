"""Names of Spark jobs and stages, for the UI and the event log: what a job does, and to which partitions."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

Item = TypeVar("Item")

_STAGE_NAME = "callSite.short"  # Spark's local property; without it, a stage is named by a line of this package


def titled(verb: str, name: Callable[[Item], object]) -> Callable[[Sequence[Item]], str]:
    """Return a function that names the job of some items, such as "clean orders-3 and 15 more"."""

    def title(items: Sequence[Item]) -> str:
        more = f" and {len(items) - 1} more" if len(items) > 1 else ""
        return f"{verb} {name(items[0])}{more}"

    return title


@contextmanager
def named_job(sc: Any, group: str, title: str) -> Iterator[None]:
    """Name the Spark jobs of this thread inside the `with` block, and their stages, by `title`."""
    traceback_utils: Any = importlib.import_module("pyspark.traceback_utils")
    sc.setJobGroup(group, title)
    # Inside, the actions of PySpark do not name their stages themselves.
    with traceback_utils.SCCallSiteSync(sc):
        name_stage(sc, title)
        yield


def name_stage(sc: Any, name: str) -> None:
    """Name the next stage of a job inside `named_job`."""
    sc.setLocalProperty(_STAGE_NAME, name)

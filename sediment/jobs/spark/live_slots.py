"""Task slots and executors of a SparkContext at one moment; both change while a run goes on.

On a cluster, executors register after the context has started.  They leave when a host is lost, and come and go with
dynamic allocation.  `defaultParallelism` is no measure of them: it is at least 2, and a setting can override it.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from sediment.jobs.spark.job_names import JobName, named_job

_LOGGER = logging.getLogger(__name__)

FEWEST_IN_FLIGHT = 16
"""Tasks that wait or run on a cluster, even if it has fewer slots, because Spark adds executors only for tasks that
wait."""

_POLL_SECONDS = 0.2
_PATIENCE_SECONDS = 30
_IN_THIS_PROCESS = re.compile(r"local(\[|$)")


@dataclass(frozen=True, slots=True)
class LiveSlots:
    """`tasks` is the number of tasks that can run at the same time, on all `executors` together.

    `is_elastic` is True with dynamic allocation.  `executors_on_host` counts the executors of the host that has most.
    """

    tasks: int
    executors: int = 1
    is_local: bool = False
    is_elastic: bool = False
    executors_on_host: int = 1

    @property
    def to_plan_for(self) -> int:
        """Task slots for which to cut work that is cut once; more than there are now, because a cluster may grow."""
        return self.tasks if self.is_local else max(FEWEST_IN_FLIGHT, self.tasks)

    @property
    def of_executor(self) -> int:
        """Task slots of one executor, rounded up."""
        return max(1, -(-self.tasks // max(1, self.executors)))


def is_local(sc: Any) -> bool:
    """Return True if tasks run in the driver's process; `local-cluster` is a cluster."""
    return _IN_THIS_PROCESS.match(str(sc.master)) is not None


def read_slots(sc: Any) -> LiveSlots:
    """Return the slots of `sc` now; a cluster has none until an executor has registered."""
    if is_local(sc):
        return LiveSlots(max(1, sc.defaultParallelism), is_local=True)
    scala = sc._jsc.sc()
    settings = scala.conf()
    # Names "host:port" of the block managers, including the driver's.
    addresses = str(scala.getExecutorMemoryStatus().keys().mkString(" ")).split()
    hosts = Counter(address.rpartition(":")[0] for address in addresses)
    hosts[str(settings.get("spark.driver.host"))] -= 1
    return LiveSlots(
        tasks=int(scala.maxNumConcurrentTasks(scala.resourceProfileManager().defaultResourceProfile())),
        executors=int(scala.getExecutorIds().size()),
        is_elastic=bool(settings.getBoolean("spark.dynamicAllocation.enabled", False)),
        executors_on_host=max(1, *hosts.values()),
    )


class Shortage:
    """Warns, once, that tasks have waited for a long time and there is no executor."""

    def __init__(self, patience_seconds: float = _PATIENCE_SECONDS) -> None:
        self._patience_seconds = patience_seconds
        self._since: float | None = None
        self._is_told = False

    def warn(self, sc: Any, *, is_waiting: bool) -> None:
        """Take note that tasks wait for an executor now, or do not."""
        if not is_waiting:
            self._since = None
            return
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        if not self._is_told and now - self._since >= self._patience_seconds:
            self._is_told = True
            settings = sc.getConf()
            wanted = f"{settings.get('spark.executor.memory', '1g')} of memory"
            cores = settings.get("spark.executor.cores")
            _LOGGER.warning(
                "no executor has been there for %d s, and tasks wait for one; check that %s has room for executors "
                "with %s",
                now - self._since,
                sc.master,
                wanted if cores is None else f"{wanted} and {cores} cores",
            )


def await_slots(sc: Any, group: str) -> LiveSlots:
    """Return the slots of `sc` as soon as there is one; meanwhile, a job of the group `group` waits for executors.

    The job makes dynamic allocation start the first executors.  If the job is cancelled, there may be no slot yet.
    """
    slots = read_slots(sc)
    if slots.tasks:
        return slots
    # The first task with work depends on the cores and the number of the executors, so this job has no work.
    waiting = threading.Thread(target=_wait, args=(sc, group), name="sediment-wait", daemon=True)
    waiting.start()
    shortage = Shortage()
    while not slots.tasks and waiting.is_alive():
        shortage.warn(sc, is_waiting=True)
        waiting.join(_POLL_SECONDS)
        slots = read_slots(sc)
    return slots


def _wait(sc: Any, group: str) -> None:
    with suppress(Exception), named_job(sc, group, JobName("wait for executors")):
        sc.parallelize(range(FEWEST_IN_FLIGHT), FEWEST_IN_FLIGHT)._jrdd.count()

"""Progress of a run: the finished share of the selected partitions and bytes, and of Spark's tasks."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
)
from rich.progress import Progress as Bars
from rich.table import Column
from rich.text import Text

from sediment.jobs.process.standard_output import LogConsole
from sediment.jobs.reporting.figures import counted, human_bytes

_POLL_SECONDS = 0.5
_LINE_SECONDS = 10.0
_BYTES = "B"


class _Bar(ABC):
    @abstractmethod
    def start(self) -> None: ...

    def is_due(self) -> bool:
        return True

    @abstractmethod
    def update(self, completed: float, total: float, label: str) -> None: ...

    @abstractmethod
    def stop(self) -> None: ...


@dataclass(slots=True)
class _WorkStart:
    """Time and completed bytes when the work began, after the start of Spark and the choice of partitions."""

    seconds: float
    completed: float = 0.0

    def speed(self, now_seconds: float, completed: float) -> float:
        passed = now_seconds - self.seconds
        return max(completed - self.completed, 0.0) / passed if passed > 0 else 0.0


class _WorkColumn(ProgressColumn):
    def __init__(self, work: _WorkStart) -> None:
        super().__init__(Column(no_wrap=True))
        self._work = work

    def render(self, task: Task) -> Text:
        return self.render_at(self._work.speed(task.get_time(), task.completed), task)

    @abstractmethod
    def render_at(self, speed: float, task: Task) -> Text:
        """Return the text at `speed`, in bytes per second; 0 if nothing is done yet."""


class _Speed(_WorkColumn):
    """The average speed; rich's own column jumps when two partitions end at the same time."""

    def render_at(self, speed: float, task: Task) -> Text:
        return Text(f"{human_bytes(int(speed))}/s" if speed else "", style="progress.data.speed")


class _TimeLeft(_WorkColumn):
    def render_at(self, speed: float, task: Task) -> Text:
        left = _minutes(_seconds_left(task.completed, task.total or 0, speed)) if speed else "-:--"
        return Text(left, style="progress.remaining")


class _TerminalBar(_Bar):
    def __init__(
        self,
        console: Console,
        counts: Iterable[ProgressColumn],
        total: float,
        label: str,
        clock: Callable[[], float],
        work: _WorkStart,
    ) -> None:
        bar, times = BarColumn(bar_width=None), (TimeElapsedColumn(), _TimeLeft(work))
        columns = (TextColumn("{task.description}"), bar, *counts, *times)
        self._bars = Bars(*columns, console=console, transient=True, get_time=clock)
        self._task = self._bars.add_task(label, total=total)

    def start(self) -> None:
        self._bars.start()

    def update(self, completed: float, total: float, label: str) -> None:
        self._bars.update(self._task, completed=completed, total=total, description=label)

    def stop(self) -> None:
        self._bars.stop()


class _Lines(_Bar):
    """One line every ten seconds, for a file or a pipe; a shorter run prints none."""

    def __init__(self, console: Console, unit: str, clock: Callable[[], float], work: _WorkStart) -> None:
        self._console = console
        self._unit = unit
        self._clock = clock
        self._work = work
        self._started = clock()
        self._next = self._started + _LINE_SECONDS

    def start(self) -> None:
        self._started = self._clock()
        self._next = self._started + _LINE_SECONDS

    def is_due(self) -> bool:
        return self._clock() >= self._next

    def update(self, completed: float, total: float, label: str) -> None:
        now = self._clock()
        if now >= self._next:
            self._next = now + _LINE_SECONDS
            speed = self._work.speed(now, completed)
            line = progress_line(label, completed, total, now - self._started, unit=self._unit, speed=speed)
            self._console.print(line, soft_wrap=True, highlight=False)

    def stop(self) -> None:
        pass


def progress_line(label: str, completed: float, total: float, seconds: float, *, unit: str, speed: float) -> str:
    """`speed` is in bytes per second; 0 if it is not known."""
    if unit != _BYTES:
        return f"{label}: {completed:,.0f} of {total:,.0f}{unit} in {_minutes(seconds)}"
    done = f"{label}: {human_bytes(int(completed))} of {human_bytes(int(total))} in {_minutes(seconds)}"
    if not speed:
        return done
    left = _seconds_left(completed, total, speed)
    return f"{done}, {human_bytes(int(speed))}/s, about {_minutes(left)} left"


def _seconds_left(completed: float, total: float, speed: float) -> float:
    return max(total - completed, 0) / speed


def _minutes(seconds: float) -> str:
    whole = round(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


class _NotebookBar(_Bar):
    def __init__(self, make_bar: Callable[..., Any], unit: str, total: float, label: str) -> None:
        self._make_bar = make_bar
        self._given = {"unit": unit, "unit_scale": unit == _BYTES, "total": total, "desc": label, "leave": False}
        self._bar: Any = None

    def start(self) -> None:
        self._bar = self._make_bar(**self._given)

    def update(self, completed: float, total: float, label: str) -> None:
        self._bar.total, self._bar.n = total, completed
        self._bar.set_description_str(label, refresh=False)
        self._bar.refresh()

    def stop(self) -> None:
        self._bar.close()


def _bar(
    console: Console,
    counts: Iterable[ProgressColumn],
    unit: str,
    total: float,
    label: str,
    clock: Callable[[], float],
    work: _WorkStart,
) -> _Bar | None:
    if console.quiet:
        return None
    if console.is_terminal:
        return _TerminalBar(console, counts, total, label, clock, work)
    make_bar = _bars_of_notebook()
    if make_bar is not None:
        return _NotebookBar(make_bar, unit, total, label)
    return None if isinstance(console, LogConsole) else _Lines(console, unit, clock, work)


def _bars_of_notebook() -> Callable[..., Any] | None:
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if "IPKernelApp" not in getattr(shell, "config", {}):
        return None
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return None
    make_bar: Callable[..., Any] = tqdm
    return make_bar


class Progress:
    """A context manager that shows progress; call `advance` with the bytes of each finished partition.

    `clock` returns seconds.
    """

    def __init__(
        self,
        console: Console,
        partitions: int,
        total_bytes: int,
        *,
        phase: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._phase = f"{phase} " if phase else ""
        self._partitions = partitions
        self._total_bytes = total_bytes
        self._done = 0
        self._done_bytes = 0
        self._under_way: Callable[[], int] | None = None
        self._over = threading.Event()
        self._poller: threading.Thread | None = None
        self._clock = clock
        self._work = _WorkStart(clock())
        counts = (DownloadColumn(table_column=Column(no_wrap=True)), _Speed(self._work))
        self._bar = _bar(console, counts, _BYTES, total_bytes, self._label(), clock, self._work) if partitions else None

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    @contextmanager
    def starting_spark(self) -> Iterator[None]:
        """Say during the block that Spark starts, so that a bar that stands still is explained."""
        phase, self._phase = self._phase, "starting Spark, "
        self._show()
        try:
            yield
        finally:
            self._phase = phase
            self._show()

    def watch(self, under_way: Callable[[], int]) -> None:
        """While the bar is shown, poll `under_way` for the number of bytes that are done in unfinished partitions.

        The work begins with this call, so the speed is the average since then.
        """
        self._work.seconds, self._work.completed = self._clock(), self._done_bytes
        if self._bar is not None:
            self._under_way = under_way
            self._poller = threading.Thread(target=self._poll, name="sediment-progress", daemon=True)
            self._poller.start()

    def _poll(self) -> None:
        while not self._over.wait(_POLL_SECONDS):
            self._show()

    def _show(self) -> None:
        if self._bar is not None and self._bar.is_due():
            under_way = self._under_way() if self._under_way is not None else 0
            self._bar.update(self._done_bytes + under_way, self._total_bytes, self._label())

    def _label(self) -> str:
        return f"{self._phase}{self._done}/{counted(self._partitions, 'partition')}"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._poller is not None:
            self._poller.join()
        if self._bar is not None:
            self._bar.stop()

    def advance(self, size_bytes: int, *, partitions: int = 1) -> None:
        self._done += partitions
        self._done_bytes += size_bytes
        self._show()


@contextmanager
def stages_of(sc: Any, console: Console) -> Iterator[None]:
    counts = (TextColumn("{task.completed:.0f}/{task.total:.0f} tasks"),)
    bar = _bar(console, counts, " tasks", 1, "Spark", time.monotonic, _WorkStart(time.monotonic()))
    if bar is None:
        yield
        return
    over = threading.Event()

    def poll() -> None:
        tracker = sc.statusTracker()
        while not over.wait(_POLL_SECONDS):
            with contextlib.suppress(Exception):
                running = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
                stages = [stage for stage in running if stage is not None]
                if stages:
                    done, total = (sum(getattr(s, name) for s in stages) for name in ("numCompletedTasks", "numTasks"))
                    bar.update(done, total, "Spark")

    thread = threading.Thread(target=poll, name="sediment-progress", daemon=True)
    bar.start()
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        bar.stop()

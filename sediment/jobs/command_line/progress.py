"""Progress on stderr: how many of the selected partitions and bytes are done; a bar if stderr is a terminal."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

_POLL_SECONDS = 0.5


class Progress:
    """A context manager that shows progress; call `advance` with the bytes of each finished partition."""

    def __init__(self, console: Console, partitions: int, total_bytes: int) -> None:
        self._bars = Bars(
            TextColumn("{task.fields[done]}/{task.fields[partitions]} partitions"),
            BarColumn(),
            DownloadColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal or console.quiet or partitions == 0,
        )
        self._done = 0
        self._done_bytes = 0
        self._under_way: Callable[[], int] | None = None
        self._over = threading.Event()
        self._task = self._bars.add_task("", total=total_bytes, done=0, partitions=partitions)

    def __enter__(self) -> Progress:
        self._bars.start()
        return self

    def watch(self, under_way: Callable[[], int]) -> None:
        """While the bar is shown, poll `under_way` for the bytes that are already done of unfinished partitions."""
        if not self._bars.disable:
            self._under_way = under_way
            threading.Thread(target=self._poll, name="sediment-progress", daemon=True).start()

    def _poll(self) -> None:
        while not self._over.wait(_POLL_SECONDS):
            self._show()

    def _show(self) -> None:
        under_way = self._under_way() if self._under_way is not None else 0
        self._bars.update(self._task, completed=self._done_bytes + under_way, done=self._done)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._bars.stop()

    def advance(self, size_bytes: int, *, partitions: int = 1) -> None:
        """Count `partitions` with a total of `size_bytes` as done."""
        self._done += partitions
        self._done_bytes += size_bytes
        self._show()


@contextmanager
def stages_of(sc: Any, console: Console) -> Iterator[None]:
    """Show a bar of the tasks in the stages that the SparkContext `sc` runs in the block."""
    if not console.is_terminal or console.quiet:
        yield
        return
    over = threading.Event()
    bars = Bars(
        TextColumn("Spark"),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f} tasks"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    )
    shown = bars.add_task("", total=1)

    def poll() -> None:
        tracker = sc.statusTracker()
        while not over.wait(_POLL_SECONDS):
            with contextlib.suppress(Exception):
                running = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
                stages = [stage for stage in running if stage is not None]
                if stages:
                    done, total = (sum(getattr(s, name) for s in stages) for name in ("numCompletedTasks", "numTasks"))
                    bars.update(shown, completed=done, total=total)

    thread = threading.Thread(target=poll, name="sediment-progress", daemon=True)
    with bars:
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

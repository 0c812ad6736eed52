"""Progress on stderr: partitions and bytes done of those selected, with a bar where stderr is a terminal."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars


class Progress:
    """A context manager; `advance` is called once per partition with its bytes."""

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
        self._task = self._bars.add_task("", total=total_bytes, done=0, partitions=partitions)

    def __enter__(self) -> Progress:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def advance(self, size_bytes: int) -> None:
        """One partition of `size_bytes` is done."""
        self._done += 1
        self._bars.update(self._task, advance=size_bytes, done=self._done)

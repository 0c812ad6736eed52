"""stdout and stderr of a command: either may be full, or a pipe whose reader has left.

Invariants: a result that cannot be printed is one error with a sentence, and nothing of it comes up again when the
process ends; a message that stderr does not take is lost, and the run goes on; no text commands the terminal.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any, cast

import click
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from sediment.segment_io.errors import SedimentError
from sediment.segment_io.printable import printable


class OutputError(SedimentError):
    """stdout cannot be written; `reader_left` if it is a pipe that nothing reads any more."""

    def __init__(self, why: str, *, reader_left: bool) -> None:
        super().__init__(f"stdout cannot be written: {why}")
        self.reader_left = reader_left


class SafeConsole(Console):
    """A console that shows characters with which a text could command the terminal as escapes.

    A string is one line, in which nothing is markup or the name of an emoji.
    """

    def __init__(self, **given: Any) -> None:
        super().__init__(**{"markup": False, "emoji": False, **given})

    def render_str(self, text: str, **given: Any) -> Text:
        """Return a string as it is shown."""
        return super().render_str(printable(text), **given)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments of a renderable."""
        for segment in super().render(renderable, options):
            if segment.control is None:
                lines = segment.text.split("\n")
                segment = Segment("\n".join(map(printable, lines)), segment.style)
            yield segment

    def on_broken_pipe(self) -> None:
        """Leave it to the caller; rich would end the process."""
        raise BrokenPipeError


def error_console(**given: Any) -> Console:
    """Return a console on stderr whose messages are lost where stderr does not take them."""
    return SafeConsole(file=cast(IO[str], _Stderr()), **given)


def occupy_standard_descriptors() -> None:
    """Open /dev/null on each of stdin, stdout and stderr that is closed.

    Otherwise the next file gets the number, such as the lock of a log directory, and messages of Spark go into it.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one


@contextlib.contextmanager
def help_in_one_sentence_if_not_printed() -> Iterator[None]:
    """Say in one sentence that stdout did not take what click printed by itself, and exit with 1."""
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            raise
        _drop_what_is_buffered()
        with contextlib.suppress(OSError):
            click.echo(f"sediment: stdout cannot be written: {error.strerror or error}", err=True)
        raise SystemExit(1) from error


def write_result(text: str) -> None:
    """Write `text` to stdout at once; what its encoding cannot say is escaped.

    Raises:
        OutputError: stdout is full or closed, or nothing reads it.
    """
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        click.echo(text.encode(encoding, "backslashreplace").decode(encoding), nl=False)
    except OSError as error:
        _drop_what_is_buffered()
        raise OutputError(error.strerror or str(error), reader_left=isinstance(error, BrokenPipeError)) from error


def as_text(show: Callable[[Console], object], console: Console) -> str:
    """Return what `show` prints on `console`, with the styles that the console's stream can show."""
    text = _Text(is_terminal=console.is_terminal)
    console.file = text
    show(console)
    return text.getvalue()


def _drop_what_is_buffered() -> None:
    """Keep the interpreter from trying again, and from telling of it, when the process ends."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


class _Text(io.StringIO):
    """A text that counts as a terminal if what it is for is one."""

    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


class _Stderr:
    """sys.stderr as it is at the moment, without its errors."""

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            self._stream().write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            self._stream().flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream(), name)

    @staticmethod
    def _stream() -> Any:
        # While bars are shown rich puts a stream of its own in place, which would write here again.
        return getattr(sys.stderr, "rich_proxied_file", sys.stderr)

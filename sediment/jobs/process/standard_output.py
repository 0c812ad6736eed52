"""stdout and stderr of a command; each of them can be a full file, or a pipe whose reader has closed it.

Invariants:
- If a result cannot be printed, one line reports the error; the interpreter does not report the error again at exit.
- A message that cannot be written to stderr is lost, and the run continues.
- No text from data reaches the terminal as a control sequence.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import select
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any, cast

import click
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from sediment.segment_io.errors import SedimentError
from sediment.segment_io.printable import printable

_BLOCK_CHARACTERS = 1 << 20


class OutputError(SedimentError):
    """stdout cannot be written; `reader_left` is True if stdout is a pipe without a reader."""

    def __init__(self, why: str, *, reader_left: bool) -> None:
        super().__init__(f"stdout cannot be written: {why}")
        self.reader_left = reader_left


class SafeConsole(Console):
    """A console that escapes the characters that a terminal would interpret.

    A string is printed as one line; markup and emoji names in it are not interpreted, and numbers have no colour.
    """

    def __init__(self, **given: Any) -> None:
        super().__init__(**{"markup": False, "emoji": False, "highlight": False, **given})

    def render_str(self, text: str, **given: Any) -> Text:
        return super().render_str(printable(text), **given)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control is None:
                lines = segment.text.split("\n")
                segment = Segment("\n".join(map(printable, lines)), segment.style)
            yield segment

    def on_broken_pipe(self) -> None:
        """Raise BrokenPipeError, because rich would by default end the process."""
        raise BrokenPipeError


class LogConsole(Console):
    """A console whose lines go to the log; no progress is shown there."""

    def __init__(self, stream: IO[str], *, quiet: bool) -> None:
        # Notebooks set $FORCE_COLOR, which makes rich treat every stream as a terminal.
        super().__init__(file=stream, quiet=quiet, soft_wrap=True, force_terminal=False, force_jupyter=False)


def error_console(**given: Any) -> Console:
    return SafeConsole(file=cast(IO[str], _Stderr()), **given)


def occupy_standard_descriptors() -> None:
    """Open /dev/null on each of stdin, stdout and stderr that is closed.

    Otherwise the next opened file, such as the lock of a log directory, gets the number of the closed stream, and Spark
    writes its messages into that file.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # open returns the lowest free number: `descriptor`


@contextlib.contextmanager
def help_in_one_sentence_if_not_printed() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            raise
        _drop_what_is_buffered()
        with contextlib.suppress(OSError):
            click.echo(f"sediment: stdout cannot be written: {error.strerror or error}", err=True)
        raise SystemExit(1) from error


def write_result(result: str | bytes) -> None:
    """Write text or bytes to stdout and flush it; escape characters that the encoding of stdout lacks."""
    if sys.stdout is None:  # otherwise, click would silently print nothing
        raise OutputError(os.strerror(errno.EBADF), reader_left=False)
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        if isinstance(result, str):
            result = result.encode(encoding, "backslashreplace").decode(encoding)
        click.echo(result, nl=False)
    except OSError as error:
        _drop_what_is_buffered()
        raise OutputError(error.strerror or str(error), reader_left=isinstance(error, BrokenPipeError)) from error


def in_blocks(texts: Iterable[str]) -> Iterator[str]:
    """Join texts into longer ones, each of which is worth a call of `write_result`."""
    block: list[str] = []
    size = 0
    for text in texts:
        block.append(text)
        size += len(text)
        if size >= _BLOCK_CHARACTERS:
            yield "".join(block)
            block, size = [], 0
    if block:
        yield "".join(block)


def stdout_is_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()


def check_stdout_has_reader() -> None:
    """Check that a process still reads stdout; a waiting command writes nothing, so it would not notice a closed pipe.

    Raises:
        OutputError: stdout is a pipe without a reader.
    """
    try:
        descriptor = sys.stdout.fileno()
    except (AttributeError, OSError, ValueError):  # stdout is closed or is not a file
        return
    poll = select.poll()
    poll.register(descriptor, 0)  # poll always reports hang-ups and errors
    if any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0)):
        raise OutputError(os.strerror(errno.EPIPE), reader_left=True)


def as_text(show: Callable[[Console], object], console: Console) -> str:
    text = _Text(is_terminal=console.file.isatty())
    console.file = text
    show(console)
    return text.getvalue()


def _drop_what_is_buffered() -> None:
    """Discard buffered output; otherwise, the interpreter would write it at exit and might report an error."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


class _Text(io.StringIO):
    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


class _Stderr:
    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            self._stream().write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            self._stream().flush()

    def isatty(self) -> bool:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            return bool(self._stream().isatty())
        return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream(), name)

    @staticmethod
    def _stream() -> Any:
        # While bars are shown, rich replaces sys.stderr with a stream that writes to this one.
        return getattr(sys.stderr, "rich_proxied_file", sys.stderr)

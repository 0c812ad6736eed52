"""Log of a command on stderr: plain text for people, or one JSON object per line for programs.

A line of JSON has `time`, `level`, `logger`, `message` and, if they are known, further fields: `command`, `run_id`,
`partition`, `log_dir`, `status`, `reason_code`, …

Invariants: with JSON every line on stderr is such an object, and no line shows the credentials of a URI.  This includes
lines of this package, Python's warnings, unexpected errors and Spark's JVM.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import logging
import os
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

import click

from sediment.jobs.process.state_files import save_for_user
from sediment.segment_io.printable import error_line
from sediment.segment_io.safe_paths import waiting_warnings
from sediment.segment_io.uris import without_credentials

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

TEXT, JSON = "text", "json"

_LOGGER = logging.getLogger(__name__)
_OURS = logging.getLogger("sediment")
_EXIT_FAILED = 1
_TRACES = "traces"

_json_is_on = False
_is_verbose = False
_elsewhere: Callable[[logging.LogRecord, str], bool] | None = None


def be_verbose() -> Callable[[], None]:
    """Include this package's details in the log until the returned function is called."""
    global _is_verbose
    before = _OURS.level
    _is_verbose = True
    _OURS.setLevel(logging.DEBUG)

    def end() -> None:
        global _is_verbose
        _is_verbose = False
        _OURS.setLevel(before)

    return end


def is_verbose() -> bool:
    return _is_verbose


def log_elsewhere(take: Callable[[logging.LogRecord, str], bool] | None) -> None:
    """Give each message of a text log, with its text, to `take`; only what `take` refuses goes to stderr."""
    global _elsewhere
    _elsewhere = take


@contextmanager
def log_to_stderr(log_format: str, *, quiet: bool, repeats: bool = False) -> Iterator[None]:
    """Send warnings and errors to stderr during the block.

    With JSON, messages of level INFO are also sent; with `quiet`, only errors are sent.  Each message is shown once.
    `repeats` is for commands that run too long to remember all messages; a message may then be shown again.
    """
    if log_format == JSON:
        with _json_lines(quiet=quiet, repeats=repeats):
            _log_waiting_warnings()
            yield
    else:
        _sentences(quiet=quiet, repeats=repeats)
        _log_waiting_warnings()
        yield


def _log_waiting_warnings() -> None:
    for sentence in waiting_warnings():
        _LOGGER.warning(sentence)


def show_waiting_warnings() -> None:
    """Show the warnings about caches that are not used, in a command whose log leaves warnings out."""
    for sentence in waiting_warnings():
        with contextlib.suppress(OSError):
            click.echo(error_line(sentence), err=True)


def log_ready(sentence: str) -> None:
    """Log that a server is ready, as text or as a JSON line, even with `quiet`."""
    known = {"time": _now(), "level": "INFO", "logger": _LOGGER.name, "message": without_credentials(sentence)}
    with contextlib.suppress(OSError):
        click.echo(json.dumps(known) if _json_is_on else known["message"], err=True)


def log_error(sentence: str, **known: Any) -> None:
    if _json_is_on:
        _LOGGER.error(sentence, extra=known)
    else:
        with contextlib.suppress(OSError):
            click.echo(f"sediment: {without_credentials(sentence)}", err=True)


def log_fault(sentence: str, error: BaseException, **known: Any) -> None:
    if _json_is_on:
        _LOGGER.critical(sentence, exc_info=error, extra=known)
        return
    file = _saved_trace(error)
    where = f"the trace is in {file}" if file else "set SEDIMENT_TRACEBACK=1 to see the traceback"
    log_error(f"{sentence}; this is a bug in Sediment or Spark: report it ({where})")


def _saved_trace(error: BaseException) -> Path | None:
    trace = without_credentials("".join(traceback.format_exception(error)))
    return save_for_user(_TRACES, f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{os.getpid()}.txt", trace)


def log_partition(run_id: str, command: str, report: DataclassInstance) -> None:
    if not _json_is_on:
        return
    fields_ = {field.name: getattr(report, field.name) for field in dataclasses.fields(report)}
    known = {name: value for name, value in fields_.items() if isinstance(value, str | int | float)}
    failed = known["status"] in ("failed", "quarantined", "wrong")
    level = logging.ERROR if failed else logging.INFO
    message = f"{known['partition']} in {known.get('log_dir', '?')}: {known['status']}"
    _OURS.log(level, message, extra={"run_id": run_id, "command": command, **known})


def log_run(json_lines: Callable[[], Iterator[str]]) -> None:
    """Log the end of a run; the first line is its JSON report without partitions, and each other line a partition."""
    if not _json_is_on:
        return
    lines = json_lines()
    run = json.loads(next(lines))
    statuses = Counter(json.loads(line)["status"] for line in lines)
    said = ", ".join(f"{count} {status}" for status, count in statuses.items()) or "no partitions"
    _OURS.info(f"{run['command']} done: {said}", extra={**run, "statuses": dict(statuses)})


def as_line(said: bytes) -> bytes:
    """Return a line of another program, without credentials, in the format of this log; "" if the line is empty."""
    if not _json_is_on:
        return without_credentials(said.decode(errors="surrogateescape")).encode(errors="surrogateescape")
    text = without_credentials(said.decode(errors="replace").rstrip())
    fields = {"time": _now(), "level": "WARNING", "logger": "spark", "message": text}
    return json.dumps(fields).encode() + b"\n" if text else b""


def stream_of_lines() -> IO[str] | None:
    """If the log is JSON, return the stream that consoles write to instead of stderr; otherwise return None."""
    return stream_of_log() if _json_is_on else None


def stream_of_log() -> IO[str]:
    return cast(IO[str], _LineWriter())


def _sentences(*, quiet: bool, repeats: bool) -> None:
    handler = _TextHandler(sys.stderr)
    handler.setLevel(logging.ERROR if quiet else logging.NOTSET)
    if not repeats:
        handler.addFilter(_each_once())
    handler.setFormatter(_PrintableFormatter())
    logging.basicConfig(handlers=[handler], level=logging.ERROR if quiet else logging.WARNING)


class _TextHandler(logging.StreamHandler[Any]):
    def emit(self, record: logging.LogRecord) -> None:
        if _elsewhere is None or not _elsewhere(record, self.format(record)):
            super().emit(record)


class _PrintableFormatter(logging.Formatter):
    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the library's name
        return error_line(record.message)

    def formatException(self, ei: Any) -> str:  # noqa: N802 - the library's name
        return without_credentials(super().formatException(ei))


def _each_once() -> Callable[[logging.LogRecord], bool]:
    said: set[str] = set()

    def is_new(record: logging.LogRecord) -> bool:
        message = record.getMessage()
        fresh = message not in said
        said.add(message)
        return fresh

    return is_new


@contextmanager
def _json_lines(*, quiet: bool, repeats: bool) -> Iterator[None]:
    global _json_is_on
    from pythonjsonlogger.json import JsonFormatter

    class PublicFormatter(JsonFormatter):
        def process_log_record(self, log_data: dict[str, Any]) -> dict[str, Any]:
            return {name: _public(value) for name, value in log_data.items()}

    handler = logging.StreamHandler(sys.stderr)
    handler.setLevel(logging.ERROR if quiet else logging.DEBUG)
    if not repeats:
        handler.addFilter(_each_once())
    handler.setFormatter(
        PublicFormatter(
            ["levelname", "name", "message"],
            rename_fields={"levelname": "level", "name": "logger", "timestamp": "time"},
            timestamp=True,
        )
    )
    root = logging.getLogger()
    level = _OURS.level
    root.addHandler(handler)
    _OURS.setLevel(logging.DEBUG if _is_verbose else logging.INFO)
    logging.captureWarnings(True)
    _json_is_on = True
    try:
        yield
    except click.ClickException as error:
        _LOGGER.error(error.format_message())
        raise SystemExit(error.exit_code) from error
    except Exception as error:
        _LOGGER.critical("unexpected error: %s", error, exc_info=True)
        raise SystemExit(_EXIT_FAILED) from error
    finally:
        _json_is_on = False
        logging.captureWarnings(False)
        _OURS.setLevel(level)
        root.removeHandler(handler)


def _public(value: Any) -> Any:
    if isinstance(value, str):
        return without_credentials(value)
    if isinstance(value, Mapping):
        return {name: _public(each) for name, each in value.items()}
    return [_public(each) for each in value] if isinstance(value, list | tuple) else value


class _LineWriter(io.TextIOBase):
    def __init__(self) -> None:
        self._rest = ""

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            if line.strip():
                with contextlib.suppress(ValueError):
                    _LOGGER.warning(line.strip())
        return len(text)

    def writable(self) -> bool:
        return True


def _now() -> str:
    return datetime.now(UTC).isoformat()

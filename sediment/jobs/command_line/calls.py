"""Calls of commands from Python: keywords become options, and Ctrl-C ends a run as it does on the command line.

The click parameters of a command are the only list of its options, so keywords have the same types, ranges and choices.

Invariants: nothing is printed, messages go to the log, and no signal handler changes.  A run that changes log
directories works in its own thread.  Therefore, Ctrl-C interrupts the caller, but the run still finishes the group in
progress and releases its locks.
"""

from __future__ import annotations

import contextvars
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

import click

from sediment.jobs.command_line.options import CHECK, CommonOptions, GivenOptions, shown_option
from sediment.jobs.process.cancellation import RunStopped
from sediment.jobs.reporting.run_report import RunReport
from sediment.jobs.spark.session import check_session, finish_stopping
from sediment.segment_io.errors import UsageError

TERMINAL_OPTIONS = frozenset(
    {
        *("json", "json_lines", "quiet", "log_format", "yes", "changed", "sort", "by_topic", "bytes"),
        *("format", "csv", "arrow", "follow"),
    }
)
"""Options of the terminal, which Python functions do not have."""

_RENAMED = {
    "partition": "partitions",
    "set": "settings",
    "topic": "topics",
    "rename": "renames",
    "until_offset": "until_offsets",
    "from": "originals",
    "with": "parts",  # `with`, like `from`, is a reserved word of Python
}

_Report = TypeVar("_Report", bound=RunReport[Any])
_Outcome = TypeVar("_Outcome")


def keyword_of(parameter: click.Parameter) -> str:
    """Return the Python keyword of an option or argument; an option's keyword is its long name with underscores."""
    name = max(parameter.opts, key=len).removeprefix("--").replace("-", "_")
    return _RENAMED.get(name, name)


def option_values(
    command: click.Command, keywords: Mapping[str, Any]
) -> tuple[dict[str, Any], tuple[tuple[str, str], ...]]:
    """Return two things: the option values of `command`, by parameter name, and the given options as (name, text).

    Raises:
        UsageError: a value is of the wrong kind, out of range or not a choice.
    """
    context = click.Context(command)
    values: dict[str, Any] = {}
    given: list[tuple[str, str]] = []
    for parameter in command.params:
        keyword = keyword_of(parameter)
        if keyword in TERMINAL_OPTIONS or parameter.name is None:
            continue
        value = _plain(keywords[keyword], is_many=parameter.multiple or parameter.nargs != 1)
        if value is None and parameter.required:
            raise UsageError(f"{keyword} is missing", advice=f"give {keyword}=…")
        try:
            value = value if value is None else parameter.type_cast_value(context, value)
        except click.BadParameter as error:
            raise UsageError(f"{keyword}: {error.message.rstrip('.')}", advice="correct the argument") from None
        values[parameter.name] = value
        is_absent_flag = value is False and not parameter.secondary_opts
        if isinstance(parameter, click.Option) and not is_absent_flag and value not in (None, (), parameter.default):
            given += shown_option(parameter, value)
    return values, tuple(given)


def _plain(value: Any, *, is_many: bool) -> Any:
    """Return `value` in the form of the command line: paths and settings as texts, and several values as a tuple."""
    if not is_many:
        value = ",".join(map(str, value)) if isinstance(value, list | tuple) else value
        return os.fspath(value) if isinstance(value, os.PathLike) else value
    if value is None:
        return ()
    if isinstance(value, Mapping):
        return tuple(f"{name}={_setting(each)}" for name, each in value.items())
    if isinstance(value, str | os.PathLike | int):
        return (_plain(value, is_many=False),)
    return tuple(_plain(each, is_many=False) for each in value)


def _setting(value: object) -> str:
    """Return the value of a setting in the form that a properties file requires."""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def call(command: click.Command, perform: Callable[..., _Report], keywords: Mapping[str, Any]) -> _Report:
    """Return the report of `perform(options, **own)` for a command that changes no log directory.

    Raises:
        UsageError: an option is wrong, or `spark` cannot be used.
        SedimentError: as in `perform`.
    """
    common, own, caller = _options(command, keywords)

    def work(options: CommonOptions) -> _Report:
        return options.recorded(perform(options, **own))

    try:
        return common.perform(command.name or "", work, **caller)
    finally:
        finish_stopping()


def call_until_stopped(command: click.Command, perform: Callable[..., _Report], keywords: Mapping[str, Any]) -> _Report:
    """Return the report of `perform(options, stop=…, **own)`; on Ctrl-C, `perform` ends after the group in progress.

    Raises:
        RunStopped: Ctrl-C ended the run; the exception contains the report.
        UsageError: an option is wrong, or `spark` cannot be used.
        SedimentError: as in `perform`.
    """
    common, own, caller = _options(command, keywords)
    stop = threading.Event()

    def work(options: CommonOptions) -> _Report:
        return options.recorded(finish_on_interrupt(lambda: perform(options, stop=stop, **own), stop))

    try:
        report = common.perform(command.name or "", work, **caller)
    except Exception as error:
        if stop.is_set():
            raise RunStopped from error
        raise
    finally:
        finish_stopping()
    if stop.is_set():
        raise RunStopped(report)
    return report


def call_plainly(command: click.Command, perform: Callable[..., _Outcome], keywords: Mapping[str, Any]) -> _Outcome:
    """Return the result of `perform(**own)` for a command without the common options.

    Raises:
        UsageError: an option is wrong, or `spark` cannot be used.
        SedimentError: as in `perform`.
    """
    values, _ = option_values(command, keywords)
    if "spark" in keywords:
        values["spark"] = _checked(keywords["spark"])
    try:
        return perform(**values)
    finally:
        finish_stopping()


def _options(
    command: click.Command, keywords: Mapping[str, Any]
) -> tuple[GivenOptions, dict[str, Any], dict[str, Any]]:
    values, given = option_values(command, keywords)
    common, own = GivenOptions.split(values)
    caller = {"spark": _checked(keywords["spark"]), "from_python": True, "given": given}
    return common, own, {"needs_log_dir": not own.get(CHECK), **caller}


def _checked(spark: Any) -> Any:
    if spark is not None:
        check_session(spark)
    return spark


def finish_on_interrupt(work: Callable[[], _Outcome], stop: threading.Event) -> _Outcome:
    """Run `work` in its own thread and return its result; on Ctrl-C, set `stop` and wait until `work` ends by itself.

    Raises:
        KeyboardInterrupt: a second Ctrl-C; `work` still ends by itself, in the background.
    """
    future: Future[_Outcome] = Future()
    context = contextvars.copy_context()

    def run() -> None:
        try:
            future.set_result(context.run(work))
        except BaseException as error:
            future.set_exception(error)

    thread = threading.Thread(target=run, name="sediment-run")
    try:
        thread.start()
        return future.result()
    except KeyboardInterrupt:
        stop.set()
        return future.result()

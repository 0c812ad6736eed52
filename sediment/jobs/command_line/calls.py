"""Calls of commands from Python: keywords become options, and Ctrl-C ends a run as it does on the command line.

Keywords are converted as on the command line, so they have the same types, ranges and choices.

Invariants: nothing is printed, messages go to the log, and no signal handler changes.
"""

from __future__ import annotations

import contextvars
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

import click

from sediment.jobs.command_line.click_options import CommandArgument, CommandOption, parameters_of
from sediment.jobs.command_line.declaration import filled
from sediment.jobs.command_line.options import CommonOptions, run_on_logs, shown_option
from sediment.jobs.command_line.python_terms import errors_in_python
from sediment.jobs.command_line.shared_options import GivenOptions
from sediment.jobs.process.cancellation import RunStopped
from sediment.jobs.reporting.error_text import first_line
from sediment.jobs.reporting.run_report import RunReport
from sediment.jobs.settings.run_settings import load_run_settings
from sediment.jobs.spark.session import check_session, finish_stopping
from sediment.segment_io.errors import UsageError

_Own = TypeVar("_Own")
_Report = TypeVar("_Report", bound=RunReport[Any])
_Outcome = TypeVar("_Outcome")


def option_values(
    declared: Sequence[type], keywords: Mapping[str, Any]
) -> tuple[dict[str, Any], tuple[tuple[str, str], ...]]:
    context = click.Context(click.Command("call"))
    values: dict[str, Any] = {}
    given: list[tuple[str, str]] = []
    for parameter in (parameter for each in declared for parameter in parameters_of(each)):
        assert isinstance(parameter, CommandArgument | CommandOption) and parameter.name is not None
        keyword, option = parameter.keyword, parameter.declared
        if keyword not in keywords or option.of_terminal:
            continue
        is_many = parameter.multiple or parameter.nargs != 1
        is_flag = isinstance(parameter, CommandOption) and parameter.is_flag
        value = _plain(keyword, keywords[keyword], is_many=is_many, is_flag=is_flag, joined=option.joined)
        if isinstance(parameter.type, click.Path):
            _check_no_number(keyword, value if is_many else (value,))
        if isinstance(parameter.type, click.types.IntParamType) and isinstance(value, float):
            raise UsageError(f"{keyword} is {value!r}", advice=f"give {keyword} a whole number")
        if value is None and parameter.required:
            raise UsageError(f"{keyword} is missing", advice=f"give {keyword}=…")
        try:
            value = value if value is None else parameter.type_cast_value(context, value)
        except click.BadParameter as error:
            raise UsageError(f"{keyword}: {error.message.rstrip('.')}", advice="correct the argument") from None
        values[parameter.name] = value
        is_absent_flag = value is False and not parameter.secondary_opts
        if isinstance(parameter, CommandOption) and not is_absent_flag and value not in (None, (), parameter.default):
            given += shown_option(parameter, value)
    return values, tuple(given)


def _plain(keyword: str, value: Any, *, is_many: bool, is_flag: bool, joined: bool) -> Any:
    if is_flag:
        if not isinstance(value, bool):
            raise UsageError(f"{keyword} is {value!r}", advice="give True or False")
        return value
    if is_many:
        if value is None:
            return ()
        if isinstance(value, Mapping):
            return tuple(f"{name}={_setting(each)}" for name, each in value.items())
        several = (
            value if isinstance(value, Iterable) and not isinstance(value, str | bytes | os.PathLike) else (value,)
        )
        return tuple(_text(keyword, each) for each in several)
    if joined and isinstance(value, Iterable) and not isinstance(value, str):
        return ",".join(_text(keyword, each) for each in value)
    return None if value is None else _text(keyword, value)


def _text(keyword: str, value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, str | os.PathLike | int | float):
        kind = "a list" if isinstance(value, list | tuple) else repr(value)
        raise UsageError(f"{keyword} is {kind}", advice=f"give {keyword} one text, number or path")
    try:
        text = os.fspath(value) if isinstance(value, os.PathLike) else value
    except Exception as error:
        raise UsageError(f"{keyword} is no path: {first_line(error)}", advice=f"give {keyword} as text") from error
    if isinstance(text, bytes):
        raise UsageError(f"{keyword} is a path of bytes", advice=f"give {keyword} as text: os.fsdecode(path)")
    if isinstance(text, str) and "\0" in text:
        raise UsageError(f"{keyword} contains a NUL character", advice="correct the argument")
    return text


def _check_no_number(keyword: str, paths: Iterable[Any]) -> None:
    """Refuse a number in place of a path, which Python would take for an open file."""
    for path in paths:
        if isinstance(path, int | float):
            raise UsageError(f"{keyword} is {path!r}", advice=f"give {keyword} a path")


def _setting(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def call(
    command: str,
    own: type[_Own],
    run: Callable[[CommonOptions, _Own], _Report],
    keywords: Mapping[str, Any],
    *,
    needs_log_dir: bool = True,
) -> _Report:
    def work(options: CommonOptions, own_options: _Own) -> _Report:
        return options.recorded(run(options, own_options))

    return _on_logs(command, own, work, keywords, needs_log_dir=needs_log_dir)


def call_until_stopped(
    command: str, own: type[Any], run: Callable[..., _Report], keywords: Mapping[str, Any]
) -> _Report:
    """Return the report of `run(options, own, stop=…)`; on Ctrl-C, `run` ends after the group in progress.

    Raises:
        RunStopped: Ctrl-C ended the run; the exception contains the report.
    """
    stop = threading.Event()

    def work(options: CommonOptions, own_options: Any) -> _Report:
        return options.recorded(finish_on_interrupt(lambda: run(options, own_options, stop=stop), stop))

    try:
        report = _on_logs(command, own, work, keywords)
    except Exception as error:
        if stop.is_set():
            raise RunStopped from error
        raise
    if stop.is_set():
        raise RunStopped(report)
    return report


def call_plainly(own: type[_Own], run: Callable[[_Own], _Outcome], keywords: Mapping[str, Any]) -> _Outcome:
    try:
        with errors_in_python((own,)):
            values, _ = option_values((own,), keywords)
            return run(filled(own, values))
    finally:
        finish_stopping()


def _on_logs(
    command: str,
    own: type[_Own],
    work: Callable[[CommonOptions, _Own], _Report],
    keywords: Mapping[str, Any],
    *,
    needs_log_dir: bool = True,
) -> _Report:
    declared = (GivenOptions, own)
    try:
        with errors_in_python(declared):
            values, given = option_values(declared, keywords)
            return run_on_logs(
                filled(GivenOptions, values),
                command,
                lambda options: work(options, filled(own, values)),
                needs_log_dir=needs_log_dir,
                spark=checked_session(keywords.get("spark")),
                from_python=True,
                given=given,
            )
    finally:
        finish_stopping()


def checked_session(spark: Any) -> Any:
    if spark is not None:
        check_session(spark)
    return spark


def log_dirs_of(config: Any) -> tuple[str, ...]:
    with errors_in_python((GivenOptions,)):
        values, _ = option_values((GivenOptions,), {"config": config})
        return tuple(map(str, load_run_settings(values["configs"], ()).log_dirs()))


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

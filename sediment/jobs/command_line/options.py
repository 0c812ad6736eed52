"""The common options of a run, and the first and last steps of every command on log directories.

Invariant: a run is recorded in the ledger, the HTML report and the metrics before its result is printed on stdout.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click
from rich.console import Console

from sediment.jobs.command_line.click_options import CommandOption, parameters_of
from sediment.jobs.command_line.configured_command import ConfiguredCommand, is_given, is_on_command_line
from sediment.jobs.command_line.declaration import ONE_COMMAND, Option, filled
from sediment.jobs.command_line.exit_status import CLICK_EXITS, EXIT_DONE, EXIT_FAILED, errors_as_exit_status
from sediment.jobs.command_line.shared_options import GivenOptions
from sediment.jobs.delta_lake.paths import local_directory
from sediment.jobs.process import stderr_log
from sediment.jobs.process.cancellation import stop_on_signals
from sediment.jobs.process.standard_output import LogConsole, OutputError, error_console, in_blocks, write_result
from sediment.jobs.reporting import run_outputs
from sediment.jobs.reporting.columns import TableColumn
from sediment.jobs.reporting.error_text import error_text_of
from sediment.jobs.reporting.figures import show_plain_bytes
from sediment.jobs.reporting.run_report import RunReport
from sediment.jobs.reporting.screen import Screen, View, screen_text
from sediment.jobs.settings.cluster_settings import open_directories
from sediment.jobs.settings.directories import SelectedDirectory
from sediment.jobs.settings.node_ids import with_node_ids
from sediment.jobs.settings.resolve import Settings
from sediment.jobs.settings.run_settings import RunSettings, load_run_settings
from sediment.jobs.settings.selection import Selection
from sediment.jobs.spark.session import under_spark_submit
from sediment.segment_io.errors import SedimentError, UsageError
from sediment.segment_io.format.names import METADATA_PARTITION
from sediment.segment_io.fs import Fs
from sediment.segment_io.uris import HIDDEN, without_secret

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHECK = "checked"
"""Field of the option with which a command only checks the result of an earlier run; this check needs no LOG_DIR."""

_Own = TypeVar("_Own")
_Report = TypeVar("_Report", bound=RunReport[Any])
_Outcome = TypeVar("_Outcome")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonOptions(GivenOptions):
    """The common options of a run, with what was read for them; `now_ms` is the one current time of the whole run."""

    log_dirs: tuple[Path, ...]
    selection: Selection = Selection()
    settings: Settings = field(default_factory=Settings)

    other_nodes: tuple[Settings, ...] = ()

    now_ms: int
    now_is_given: bool = False

    spark: SparkSession | None = None
    """The caller's Spark session; the run uses this session and never stops it."""

    from_python: bool = False
    """True if the caller is a Python function: messages go to the log, and nothing is printed."""

    view: View = field(default_factory=View)

    given: tuple[tuple[str, str], ...] = ()

    def named_log_dirs(self) -> tuple[str, ...]:
        return self.given_log_dirs or tuple(map(str, self.log_dirs))

    @property
    def run_settings(self) -> RunSettings:
        return RunSettings((self.settings, *self.other_nodes))

    def local_log_dirs(self) -> tuple[Path, ...]:
        return tuple(Path(path) for each in self.named_log_dirs() if (path := local_directory(each)) is not None)

    def open_directories(
        self, fs: Fs, *, paths: Sequence[Path] | None = None, in_place: bool = False
    ) -> list[SelectedDirectory]:
        return open_directories(
            self.log_dirs if paths is None else paths,
            self.selection,
            self.run_settings,
            fs,
            names=self.given_log_dirs,
            allow_empty=self.allow_empty_selection,
            in_place=in_place,
        )

    def with_settings(self, settings: RunSettings) -> CommonOptions:
        first, *others = settings.nodes
        options = replace(self, settings=first, other_nodes=tuple(others))
        if self.log_dirs:
            return options
        found = settings.log_dirs()
        return replace(
            options, log_dirs=tuple(path.absolute() for path in found), given_log_dirs=tuple(map(str, found))
        )

    def messages(self) -> Console:
        return self._console(quiet=self.quiet, plain=self.as_json)

    def _console(self, *, quiet: bool, plain: bool = False) -> Console:
        if self.from_python:
            return LogConsole(stderr_log.stream_of_log(), quiet=quiet)
        return message_console(quiet=quiet, plain=plain)

    def conclude(self, run: _Report, show: Callable[[_Report, Screen], None]) -> NoReturn:
        """The exit status stays the same if the reader of stdout has closed the pipe; it is 1 if stdout is full."""
        run = self.recorded(run)
        status = EXIT_FAILED if run.failed else EXIT_DONE
        why = None
        try:
            for text in self._texts_of(run, show):
                write_result(text)
        except OutputError as error:
            why = error.what
            status = status if error.reader_left else EXIT_FAILED
        except KeyboardInterrupt:
            why, status = "a signal interrupted it", EXIT_FAILED
        if why is not None:
            stderr_log.log_error(f"the result could not be printed: {why}; the run itself is finished")
        raise SystemExit(status)

    def _texts_of(self, run: _Report, show: Callable[[_Report, Screen], None]) -> Iterator[str]:
        if not self.as_json:
            yield screen_text(partial(show, run), self.view)
        elif self.json_lines:
            yield from in_blocks(f"{line}\n" for line in run.json_lines())
        else:
            yield from in_blocks(chain(run.json_parts(), "\n"))

    @property
    def asks_for_spark(self) -> bool:
        return self.master is not None or self.spark is not None or under_spark_submit()

    def recorded(self, run: _Report) -> _Report:
        """Record a run: append it to the ledger, and write the requested HTML report and metrics.

        An error is printed, even with --quiet; it is never raised.  A signal does not interrupt the writing.

        Returns:
            The run; with --fail-on-unknown, the run counts as failed if a result depends on a setting without a stated
            value.
        """
        rows = with_node_ids(run.partitions, self.run_settings, Fs(), log_dirs=self.given_log_dirs)
        run = replace(run, fails_on_unknown=self.fail_on_unknown, partitions=rows)
        report = cache(run.to_json)
        # spark-submit sends stderr to stdout, where --json promises only the object.
        messages = self._console(quiet=self.as_json and under_spark_submit())
        with stop_on_signals():
            if self.ledger is not None:
                from sediment.jobs.delta_lake import ledger

                ledger.record(report(), self.ledger, messages)
            self._write_files(report, messages)
            stderr_log.log_run(run.json_lines)
        return run

    def record_error(self, command: str, error: BaseException) -> None:
        report = run_outputs.error_document(command, self.now_ms, error, error_text_of(error).sentence)
        with stop_on_signals():
            self._write_files(lambda: report, self._console(quiet=self.as_json and under_spark_submit()))

    def _write_files(self, report: Callable[[], str], messages: Console) -> None:
        if self.report_file is not None:
            run_outputs.write_page(
                report(),
                self.report_file,
                messages,
                settings=self._settings_by_directory,
                given=self.given,
                log_dirs=self.given_log_dirs,
            )
        if self.metrics_file is not None:
            run_outputs.write_metrics(report(), self.metrics_file, messages)

    def _settings_by_directory(self) -> dict[str, Settings]:
        """Return the settings of each log directory, with its cluster's configs; the key "" has the run's settings."""
        found = {"": self.settings}
        with contextlib.suppress(SedimentError, OSError):
            for directory in self.open_directories(Fs()):
                found[str(directory.path)] = directory.settings
        return found

    def check_outputs(self) -> None:
        log_dirs = self.local_log_dirs()
        if self.ledger is not None:
            from sediment.jobs.delta_lake import ledger

            ledger.check(self.ledger, log_dirs)
        for option, file in (("--report", self.report_file), ("--metrics", self.metrics_file)):
            if file is not None:
                run_outputs.check_output_file(file, option, log_dirs)


def message_console(*, quiet: bool, plain: bool = False) -> Console:
    """Only a terminal wraps a message; in a file or a pipe, each message is one line."""
    stream = stderr_log.stream_of_lines()
    if stream is not None:
        return LogConsole(stream, quiet=quiet)
    console = error_console(quiet=quiet, force_terminal=False if plain else None)
    console.soft_wrap = not console.file.isatty()
    return console


def run_on_logs(
    common: GivenOptions,
    command: str,
    work: Callable[[CommonOptions], _Outcome],
    *,
    needs_log_dir: bool = True,
    config_names_log_dirs: bool = True,
    **caller: Any,
) -> _Outcome:
    """Call `work` with the `CommonOptions` for a run of `command`; `caller` gives further fields of these options.

    If `work` or the reading of the settings raises an error, the requested HTML report and metrics show the error.
    """
    options = _without_settings(common, **caller)
    options.check_outputs()
    try:
        settings = load_run_settings(
            common.configs,
            common.sets,
            broker_defaults=common.broker_defaults,
            metadata_dir=_log_dir_of_metadata(common.metadata_dir),
            topic_configs=common.topic_configs,
            broker_configs=common.broker_configs,
        )
        if needs_log_dir and not common.given_log_dirs and common.configs and not config_names_log_dirs:
            named = " ".join(f"--config {config}" for config in common.configs)
            raise UsageError(
                "no LOG_DIR is given, and --config is not on the command line",
                advice=f"name a log directory, or give {named} to use all of its log.dirs",
            )
        if needs_log_dir or common.given_log_dirs:
            options = options.with_settings(settings)
        if not common.given_log_dirs:
            options.check_outputs()
        return work(options)
    except CLICK_EXITS:
        raise
    except (Exception, KeyboardInterrupt) as error:
        options.record_error(command, error)
        raise


def _without_settings(common: GivenOptions, **caller: Any) -> CommonOptions:
    values: dict[str, Any] = {each.name: getattr(common, each.name) for each in fields(GivenOptions)}
    values["as_json"] = common.as_json or common.json_lines
    values["now_ms"] = time.time_ns() // 1_000_000 if common.now_ms is None else common.now_ms
    return CommonOptions(
        **values,
        log_dirs=tuple(map(_absolute, common.given_log_dirs)),
        selection=Selection(common.partitions, common.topics),
        now_is_given=common.now_ms is not None,
        **caller,
    )


def _show_plain_bytes(context: click.Context, _option: click.Parameter, is_wanted: bool) -> None:
    if is_wanted and not context.resilient_parsing:
        context.call_on_close(show_plain_bytes())


def _screen_option(name: str, **more: Any) -> CommandOption:
    declared = Option("", is_shared=True, from_settings=ONE_COMMAND, of_terminal=True)
    return CommandOption([name], declared=declared, keyword="", **more)


BYTES_OPTION = _screen_option(
    "--bytes",
    is_flag=True,
    expose_value=False,
    callback=_show_plain_bytes,
    help="Show sizes in bytes, without units such as kB or MB.",
)


def _screen_options(columns: Sequence[TableColumn[Any]]) -> list[click.Parameter]:
    keys = [column.key for column in columns]
    return [
        _screen_option("--changed", is_flag=True, help="Show only partitions that changed or would change."),
        _screen_option(
            "--sort",
            type=click.Choice(keys),
            metavar="COLUMN",
            help=f"Sort the table by this column, largest numbers first.  Columns: {', '.join(keys)}.",
        ),
        _screen_option("--by-topic", is_flag=True, help="Show one row for each topic, with totals."),
        BYTES_OPTION,
    ]


def log_command(
    name: str, own: type[_Own], columns: Sequence[TableColumn[Any]], *, two_directories: bool = False
) -> Callable[[Callable[[CommonOptions, _Own], None]], ConfiguredCommand]:
    """With `two_directories`, BEFORE and AFTER become the two `log_dirs`."""

    def decorate(run: Callable[[CommonOptions, _Own], None]) -> ConfiguredCommand:
        def callback(**values: Any) -> None:
            context = click.get_current_context()
            common = filled(GivenOptions, values)
            # spark-submit sends a Python driver's stderr to stdout, where --json promises only the object.
            quiet = common.quiet or ((common.as_json or common.json_lines) and under_spark_submit())
            with stderr_log.log_to_stderr(common.log_format, quiet=quiet), errors_as_exit_status():
                run_on_logs(
                    replace(common, quiet=quiet),
                    name,
                    lambda options: run(options, filled(own, values)),
                    needs_log_dir=not values.get(CHECK),
                    config_names_log_dirs=is_on_command_line(context, "configs"),
                    view=View(values["changed"], values["sort"], values["by_topic"], common.fail_on_unknown),
                    given=_given_options(context),
                )

        parameters = [*parameters_of(GivenOptions), *_screen_options(columns), *parameters_of(own)]
        if two_directories:
            parameters[0].metavar, parameters[0].callback = "BEFORE AFTER", _two_directories
        return ConfiguredCommand(name, callback=callback, params=parameters, help=run.__doc__, own=own)

    return decorate


def _two_directories(context: click.Context, _parameter: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    if len(given) != 2:
        context.fail(f"give two directories, BEFORE and AFTER; {len(given)} given")
    return given


def _given_options(context: click.Context) -> tuple[tuple[str, str], ...]:
    given = []
    for parameter in context.command.params:
        if isinstance(parameter, click.Option) and is_given(context, parameter.name or ""):
            given += shown_option(parameter, context.params.get(parameter.name or ""))
    return tuple(given)


def shown_option(option: click.Option, value: Any) -> list[tuple[str, str]]:
    """Return the pairs (name, value) with which a report shows a given option, without secrets.

    A flag has an empty value; if the flag is off, its name is the option that turns it off.  If another option was
    given an empty value, its name ends with `=`.
    """
    name = max(option.opts, key=len)
    if option.is_flag:
        return [(max(option.secondary_opts, key=len) if option.secondary_opts and not value else name, "")]
    if isinstance(option, CommandOption) and option.declared.is_secret:
        return [(name, HIDDEN)]
    values = map(str, value if isinstance(value, tuple) else (value,))
    return [(name, without_secret(each)) if each else (f"{name}=", "") for each in values]


def _log_dir_of_metadata(given: Path | None) -> Path | None:
    if given is None:
        return None
    path = given.absolute()
    return path.parent if path.name == str(METADATA_PARTITION) else path


def _absolute(log_dir: str) -> Path:
    """Return an absolute path, because an executor has its own working directory; return a URI unchanged."""
    return Path(log_dir) if "://" in log_dir else Path(log_dir).absolute()

"""Options that commands share, and the last steps of every command.

Invariant: a run is recorded in the ledger, the HTML report and the metrics before its result is printed on stdout.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click
from rich.console import Console

from sediment.compaction.strategy import KeyEquality
from sediment.jobs.command_line.configured_command import is_given, is_on_command_line
from sediment.jobs.command_line.exit_status import CLICK_EXITS, EXIT_DONE, EXIT_FAILED, errors_as_exit_status
from sediment.jobs.command_line.partition_completion import complete_partition
from sediment.jobs.command_line.settings_options import broker_configs_option, config_option, topic_configs_option
from sediment.jobs.command_line.shown_values import without_secret
from sediment.jobs.delta_lake.paths import local_directory
from sediment.jobs.process import stderr_log
from sediment.jobs.process.cancellation import stop_on_signals
from sediment.jobs.process.standard_output import LogConsole, OutputError, error_console, write_result
from sediment.jobs.reporting import run_outputs
from sediment.jobs.reporting.columns import TableColumn
from sediment.jobs.reporting.error_text import error_text_of
from sediment.jobs.reporting.figures import show_plain_bytes
from sediment.jobs.reporting.run_report import RunReport, report_lines
from sediment.jobs.reporting.screen import Screen, View, screen_text
from sediment.jobs.settings.cluster_settings import open_directories
from sediment.jobs.settings.directories import SelectedDirectory
from sediment.jobs.settings.node_ids import with_node_ids
from sediment.jobs.settings.resolve import Settings
from sediment.jobs.settings.run_settings import RunSettings, load_run_settings
from sediment.jobs.settings.selection import Selection
from sediment.jobs.spark.session import under_spark_submit
from sediment.segment_io.errors import SedimentError, UsageError
from sediment.segment_io.format.layout import INT64_MAX
from sediment.segment_io.format.names import METADATA_PARTITION
from sediment.segment_io.fs import Fs
from sediment.segment_io.uris import HIDDEN

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHECK = "checked"
"""Parameter with which a command only checks the result of an earlier run; this check needs no log directory."""

_Command = TypeVar("_Command", bound=Callable[..., Any])
_Report = TypeVar("_Report", bound=RunReport[Any])
_Outcome = TypeVar("_Outcome")


@dataclass(frozen=True, slots=True)
class CommonOptions:
    """Options of every command; `now_ms` is the one current time of the whole run.

    Source: docs/reference/commands.md, Options of all commands on log directories.
    """

    log_dirs: tuple[Path, ...]
    selection: Selection
    settings: Settings
    """The settings of the node; if there are several nodes, those of the first one."""

    now_ms: int
    as_json: bool
    master: str | None
    quiet: bool
    ledger: str | None = None
    report_file: Path | None = None
    metrics_file: Path | None = None
    given_log_dirs: tuple[str, ...] = ()
    """`log_dirs` as the user gave them, because a `Path` does not preserve a URI."""

    fail_on_unknown: bool = False
    """Exit with 1 if a partition's result depends on a setting without a stated value (docs/reference/commands.md)."""

    allow_empty_selection: bool = False
    """Accept a `--partition` or `--topic` that matches nothing."""

    json_lines: bool = False
    """Print the JSON as lines: the run, then each partition.  This option implies `as_json`."""

    now_is_given: bool = False
    """True if the caller gave `now_ms`."""

    spark: SparkSession | None = None
    """The caller's Spark session; the run uses this session and never stops it."""

    from_python: bool = False
    """True if the caller is a Python function: messages go to the log, and nothing is printed."""

    view: View = field(default_factory=View)
    """The caller's options for the screen."""

    other_nodes: tuple[Settings, ...] = ()
    """The settings of the other nodes, if several --config are given."""

    given: tuple[tuple[str, str], ...] = ()
    """Options that the caller gave, as (name, value); the value of a flag is empty."""

    def named_log_dirs(self) -> tuple[str, ...]:
        """Return the log directories as paths and URIs; if the caller set only `log_dirs`, return these."""
        return self.given_log_dirs or tuple(map(str, self.log_dirs))

    @property
    def run_settings(self) -> RunSettings:
        """The settings of all nodes."""
        return RunSettings((self.settings, *self.other_nodes))

    def local_log_dirs(self) -> tuple[Path, ...]:
        """Return the log directories that are on this machine, given as paths or as `file://` URIs."""
        return tuple(Path(path) for each in self.named_log_dirs() if (path := local_directory(each)) is not None)

    def open_directories(
        self, fs: Fs, *, paths: Sequence[Path] | None = None, in_place: bool = False
    ) -> list[SelectedDirectory]:
        """Open the log directories of this run, or `paths` if given (`cluster_settings.open_directories`).

        Raises:
            UsageError, CorruptCheckpointError, CorruptBatchError, UnsupportedDataError, SourceChangedError: as in
                `cluster_settings.open_directories`.
        """
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
        """Return the options with `settings`, and with the `log.dirs` of the `--config` files if no LOG_DIR was given.

        Raises:
            UsageError: no LOG_DIR was given, and a file has no `log.dirs`.
        """
        first, *others = settings.nodes
        options = replace(self, settings=first, other_nodes=tuple(others))
        if self.log_dirs:
            return options
        found = settings.log_dirs()
        return replace(
            options, log_dirs=tuple(path.absolute() for path in found), given_log_dirs=tuple(map(str, found))
        )

    def messages(self) -> Console:
        """Return the console for messages: stderr, or the log for a caller in Python.

        The console is silent with --quiet, and draws no progress with --json.
        """
        return self._console(quiet=self.quiet, plain=self.as_json)

    def _console(self, *, quiet: bool, plain: bool = False) -> Console:
        if self.from_python:
            return LogConsole(stderr_log.stream_of_log(), quiet=quiet)
        return message_console(quiet=quiet, plain=plain)

    def conclude(self, run: _Report, show: Callable[[_Report, Screen], None]) -> NoReturn:
        """End a command: record its `run`, print it and exit with its status.

        The exit status stays the same if the reader of stdout has closed the pipe; it is 1 if stdout is full.
        """
        run, report = self._recorded(run)
        status = EXIT_FAILED if run.failed else EXIT_DONE
        why = None
        try:
            write_result(self._text_of(run, report, show))
        except OutputError as error:
            why = error.what
            status = status if error.reader_left else EXIT_FAILED
        except KeyboardInterrupt:
            why, status = "a signal interrupted it", EXIT_FAILED
        if why is not None:
            stderr_log.log_error(f"the result could not be printed: {why}; the run itself is finished")
        raise SystemExit(status)

    def _text_of(self, run: _Report, report: str, show: Callable[[_Report, Screen], None]) -> str:
        if not self.as_json:
            return screen_text(partial(show, run), self.view)
        return "".join(f"{line}\n" for line in (report_lines(report) if self.json_lines else (report,)))

    @property
    def asks_for_spark(self) -> bool:
        """True if the caller chose a Spark master or session; if not, a small run may work without Spark."""
        return self.master is not None or self.spark is not None or under_spark_submit()

    def recorded(self, run: _Report) -> _Report:
        """Record a run: append it to the ledger, and write the requested HTML report and metrics.

        An error is printed, even with --quiet; it is never raised.  A signal does not interrupt the writing.

        Returns:
            The run; with --fail-on-unknown, the run counts as failed if a result depends on a setting without a stated
            value.
        """
        return self._recorded(run)[0]

    def _recorded(self, run: _Report) -> tuple[_Report, str]:
        """Record a run as in `recorded`; return the run and its JSON."""
        rows = with_node_ids(run.partitions, self.run_settings, Fs(), log_dirs=self.given_log_dirs)
        run = replace(run, fails_on_unknown=self.fail_on_unknown, partitions=rows)
        report = run.to_json()
        # spark-submit sends stderr to stdout, where --json promises only the object.
        messages = self._console(quiet=self.as_json and under_spark_submit())
        with stop_on_signals():
            if self.ledger is not None:
                from sediment.jobs.delta_lake import ledger

                ledger.record(report, self.ledger, messages)
            self._write_files(report, messages)
            stderr_log.log_run(report)
        return run, report

    def record_error(self, command: str, error: BaseException) -> None:
        """Record a run of `command` that ended without a result: write the requested HTML report and metrics."""
        report = run_outputs.error_document(command, self.now_ms, error, error_text_of(error).sentence)
        with stop_on_signals():
            self._write_files(report, self._console(quiet=self.as_json and under_spark_submit()))

    def _write_files(self, report: str, messages: Console) -> None:
        if self.report_file is not None:
            run_outputs.write_page(
                report,
                self.report_file,
                messages,
                settings=self._settings_by_directory,
                given=self.given,
                log_dirs=self.given_log_dirs,
            )
        if self.metrics_file is not None:
            run_outputs.write_metrics(report, self.metrics_file, messages)

    def _settings_by_directory(self) -> dict[str, Settings]:
        """Return the settings of each log directory, with its cluster's configs; the key "" has the run's settings."""
        found = {"": self.settings}
        with contextlib.suppress(SedimentError, OSError):
            for directory in self.open_directories(Fs()):
                found[str(directory.path)] = directory.settings
        return found

    def check_outputs(self) -> None:
        """Check that the requested outputs of the run can be written.

        Raises:
            UsageError: an output cannot be written, or is inside a log directory.
        """
        log_dirs = self.local_log_dirs()
        if self.ledger is not None:
            from sediment.jobs.delta_lake import ledger

            ledger.check(self.ledger, log_dirs)
        for option, file in (("--report", self.report_file), ("--metrics", self.metrics_file)):
            if file is not None:
                run_outputs.check_output_file(file, option, log_dirs)


def message_console(*, quiet: bool, plain: bool = False) -> Console:
    """Return the console on stderr for messages; with `plain` it draws no progress.

    Only a terminal wraps a message; in a file or a pipe, each message is one line.
    """
    stream = stderr_log.stream_of_lines()
    if stream is not None:
        return LogConsole(stream, quiet=quiet)
    console = error_console(quiet=quiet, force_terminal=False if plain else None)
    console.soft_wrap = not console.file.isatty()
    return console


@dataclass(frozen=True, slots=True)
class GivenOptions:
    """Common options as the caller gave them, before any file is read."""

    log_dirs: Sequence[str]
    partitions: Sequence[str]
    topics: Sequence[str]
    sets: Sequence[str]
    configs: Sequence[Path]
    now_ms: int | None
    master: str | None
    ledger_path: str | None
    report_file: Path | None
    metrics_file: Path | None
    metadata_dir: Path | None
    topic_configs: Sequence[Path]
    broker_configs: Sequence[Path]
    broker_defaults: bool
    fail_on_unknown: bool
    allow_empty_selection: bool

    @staticmethod
    def split(values: Mapping[str, Any]) -> tuple[GivenOptions, dict[str, Any]]:
        """Split `values`, keyed by parameter name, into the common options and the others."""
        names = [each.name for each in fields(GivenOptions)]
        own = {name: value for name, value in values.items() if name not in names}
        return GivenOptions(**{name: values[name] for name in names}), own

    def perform(
        self,
        command: str,
        work: Callable[[CommonOptions], _Outcome],
        *,
        needs_log_dir: bool = True,
        config_names_log_dirs: bool = True,
        **caller: Any,
    ) -> _Outcome:
        """Call `work` with the `CommonOptions` for a run of `command`; `caller` gives further fields of these options.

        A log directory is required only if the run `needs_log_dir`.  With `config_names_log_dirs`, a run that names no
        log directory uses the `log.dirs` of the `--config` file.

        If `work` or the reading of the settings raises an error, the requested HTML report and metrics show the error.

        Raises:
            UsageError: an option or a setting is wrong; nothing was changed.
        """
        options = self._without_settings(**caller)
        options.check_outputs()
        try:
            settings = load_run_settings(
                self.configs,
                self.sets,
                broker_defaults=self.broker_defaults,
                metadata_dir=_log_dir_of_metadata(self.metadata_dir),
                topic_configs=self.topic_configs,
                broker_configs=self.broker_configs,
            )
            if needs_log_dir and not self.log_dirs and self.configs and not config_names_log_dirs:
                named = " ".join(f"--config {config}" for config in self.configs)
                raise UsageError(
                    "no LOG_DIR is given, and --config is not on the command line",
                    advice=f"name a log directory, or give {named} to use all of its log.dirs",
                )
            if needs_log_dir or self.log_dirs:
                options = options.with_settings(settings)
            if not self.log_dirs:
                options.check_outputs()
            return work(options)
        except CLICK_EXITS:
            raise
        except (Exception, KeyboardInterrupt) as error:
            options.record_error(command, error)
            raise

    def _without_settings(
        self, *, as_json: bool = False, json_lines: bool = False, quiet: bool = False, **caller: Any
    ) -> CommonOptions:
        return CommonOptions(
            log_dirs=tuple(map(_absolute, self.log_dirs)),
            selection=Selection(tuple(self.partitions), tuple(self.topics)),
            settings=Settings(),
            now_ms=time.time_ns() // 1_000_000 if self.now_ms is None else self.now_ms,
            as_json=as_json or json_lines,
            json_lines=json_lines,
            master=self.master,
            quiet=quiet,
            ledger=self.ledger_path,
            report_file=self.report_file,
            metrics_file=self.metrics_file,
            given_log_dirs=tuple(self.log_dirs),
            fail_on_unknown=self.fail_on_unknown,
            allow_empty_selection=self.allow_empty_selection,
            now_is_given=self.now_ms is not None,
            **caller,
        )


def _show_plain_bytes(context: click.Context, _option: click.Parameter, is_wanted: bool) -> None:
    if is_wanted and not context.resilient_parsing:
        context.call_on_close(show_plain_bytes())


BYTES_OPTION = click.option(
    "--bytes",
    is_flag=True,
    expose_value=False,
    callback=_show_plain_bytes,
    help="Show sizes in bytes, without units such as kB or MB.",
)

lineage_option = click.option(
    "--lineage",
    metavar="URL_OR_FILE",
    help="Send OpenLineage events about the Delta table to this server, or through the `transport` that this YAML "
    "file configures.  Requires the pip extra `lineage`.  If an event cannot be sent, a warning is printed.",
)

key_equality_option = click.option(
    "--key-equality",
    type=click.Choice([equality.value for equality in KeyEquality]),
    default=KeyEquality.HASH.value,
    show_default=True,
    help="Choose how to compare two keys.  hash: by their 128-bit hashes.  exact: by their bytes, in one task that "
    "keeps all keys of a partition in memory.",
)


def common_options(command: _Command) -> _Command:
    """Add LOG_DIR... and the common options; the command gets them as one `CommonOptions` named `options`."""
    return _with_common_options(command, metavar="LOG_DIR...")


def screen_options(columns: Sequence[TableColumn[Any]]) -> Callable[[_Command], _Command]:
    """Return a decorator that adds the options of the screen to a command whose report has these `columns`.

    These options change only the text for people.
    """

    def decorate(command: _Command) -> _Command:
        for option in reversed(
            (
                click.option("--changed", is_flag=True, help="Show only partitions that changed or would change."),
                click.option(
                    "--sort",
                    type=click.Choice([column.key for column in columns]),
                    metavar="COLUMN",
                    help="Sort the table by this column, largest numbers first.  Columns: "
                    f"{', '.join(column.key for column in columns)}.",
                ),
                click.option("--by-topic", is_flag=True, help="Show one row for each topic, with totals."),
                BYTES_OPTION,
            )
        ):
            command = option(command)
        return command

    return decorate


def options_of_two_directories(command: _Command) -> _Command:
    """Add BEFORE and AFTER, which become the two `log_dirs` of `CommonOptions`, and the common options."""
    return _with_common_options(command, metavar="BEFORE AFTER", callback=_two_directories)


def _two_directories(context: click.Context, _parameter: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    if len(given) != 2:
        context.fail(f"give two directories, BEFORE and AFTER; {len(given)} given")
    return given


def _with_common_options(
    command: _Command,
    *,
    metavar: str,
    callback: Callable[[click.Context, click.Parameter, tuple[str, ...]], tuple[str, ...]] | None = None,
) -> _Command:

    @functools.wraps(command)  # wraps also copies the command's own options
    def wrapped(as_json: bool, json_lines: bool, quiet: bool, log_format: str, **values: Any) -> Any:
        own_view = {each.name: values.pop(each.name) for each in fields(View) if each.name in values}
        view = View(fails_on_unknown=values["fail_on_unknown"], **own_view)
        # spark-submit sends a Python driver's stderr to stdout, where --json promises only the object.
        quiet = quiet or ((as_json or json_lines) and under_spark_submit())
        with stderr_log.log_to_stderr(log_format, quiet=quiet), errors_as_exit_status():
            common, own = GivenOptions.split(values)
            context = click.get_current_context()
            return common.perform(
                context.command.name or "",
                lambda options: command(options=options, **own),
                needs_log_dir=not own.get(CHECK),
                config_names_log_dirs=is_on_command_line(context, "configs"),
                as_json=as_json,
                json_lines=json_lines,
                quiet=quiet,
                view=view,
                given=_given_options(context),
            )

    decorated: Any = wrapped
    for option in reversed(
        (
            click.argument("log_dirs", metavar=metavar, nargs=-1, callback=callback, type=click.Path()),
            click.option(
                "--partition",
                "partitions",
                multiple=True,
                metavar="TOPIC-N",
                shell_complete=complete_partition,
                help="Select partitions by name or glob.  A pattern that matches nothing is an error.",
            ),
            click.option(
                "--topic",
                "topics",
                multiple=True,
                metavar="GLOB",
                help="Select topics by name or glob.  If --partition is also given, a partition must match both "
                "options.",
            ),
            click.option(
                "--allow-empty-selection",
                is_flag=True,
                help="Do not fail if a --partition or --topic matches nothing; meant for scheduled jobs.",
            ),
            click.option(
                "--set",
                "sets",
                multiple=True,
                metavar="[TOPIC:]KEY=VALUE",
                help="Override a topic or broker configuration for this run.",
            ),
            config_option(
                "Read settings from FILE, the broker's server.properties.  If no LOG_DIR is given, work on every "
                "directory in its log.dirs.  Give the option once for each broker."
            ),
            click.option(
                "--metadata",
                "metadata_dir",
                type=click.Path(path_type=Path, file_okay=False),
                metavar="DIR",
                help="Read topic configs from __cluster_metadata-0 in DIR, another log directory of the same node.",
            ),
            topic_configs_option,
            broker_configs_option,
            click.option(
                "--broker-defaults",
                is_flag=True,
                help="Use Kafka's default for every setting that neither --set nor --config nor the cluster metadata "
                "gives, even if this default deletes data.",
            ),
            click.option(
                "--fail-on-unknown",
                is_flag=True,
                help="Exit with status 1 if a result depends on a setting that neither --set nor --config nor the "
                "cluster metadata gives.",
            ),
            click.option(
                "--now-ms",
                type=click.IntRange(0, INT64_MAX),
                help="Use this time, in ms since the epoch, instead of the clock.",
            ),
            click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table."),
            click.option(
                "--json-lines",
                is_flag=True,
                help="Like --json, but print one line for the run, then one line for each partition; each line is a "
                "JSON object.",
            ),
            click.option(
                "--master",
                metavar="URL",
                help="Use this Spark master (default: the master of spark-submit, or local[*]).",
            ),
            click.option("--quiet", is_flag=True, help="Print no progress and no warnings."),
            click.option(
                "--ledger",
                "ledger_path",
                metavar="PATH",
                help="Record this run in the ledger at PATH, which consists of two Delta tables; create them if "
                "necessary.",
            ),
            click.option(
                "--report",
                "report_file",
                metavar="FILE",
                type=click.Path(path_type=Path),
                help="Write an HTML report of this run to FILE.",
            ),
            click.option(
                "--metrics",
                "metrics_file",
                metavar="FILE",
                type=click.Path(path_type=Path),
                help="Write Prometheus metrics of this run to FILE, for the node exporter's textfile collector.",
            ),
            click.option(
                "--log-format",
                type=click.Choice([stderr_log.TEXT, stderr_log.JSON]),
                default=stderr_log.TEXT,
                show_default=True,
                help="Print messages on stderr as plain text, or as one JSON object per line.",
            ),
        )
    ):
        decorated = option(decorated)
    result: _Command = decorated
    return result


def _given_options(context: click.Context) -> tuple[tuple[str, str], ...]:
    """Return the given options, from any source, as (name, value); the value of a flag is empty."""
    given = []
    for parameter in context.command.params:
        if isinstance(parameter, click.Option) and is_given(context, parameter.name or ""):
            given += shown_option(parameter, context.params.get(parameter.name or ""))
    return tuple(given)


class HiddenValueOption(click.Option):
    """Option with a value that no report, page or catalogue may show."""


def shown_option(option: click.Option, value: Any) -> list[tuple[str, str]]:
    """Return the pairs (name, value) with which a report shows a given option, without secrets.

    A flag has an empty value; if the flag is off, its name is the option that turns it off.  If another option was
    given an empty value, its name ends with `=`.
    """
    name = max(option.opts, key=len)
    if option.is_flag:
        return [(max(option.secondary_opts, key=len) if option.secondary_opts and not value else name, "")]
    if isinstance(option, HiddenValueOption):
        return [(name, HIDDEN)]
    values = map(str, value if isinstance(value, tuple) else (value,))
    return [(name, without_secret(each)) if each else (f"{name}=", "") for each in values]


def _log_dir_of_metadata(given: Path | None) -> Path | None:
    """Return the log directory of `--metadata`; the option may also name the folder `__cluster_metadata-0` itself."""
    if given is None:
        return None
    path = given.absolute()
    return path.parent if path.name == str(METADATA_PARTITION) else path


def _absolute(log_dir: str) -> Path:
    """Return an absolute path, because an executor has its own working directory; return a URI unchanged."""
    return Path(log_dir) if "://" in log_dir else Path(log_dir).absolute()

"""The class of every command; it reads default values of options from a settings file and from the environment.

Sources, strongest first:

    the command line            --report run.html
    SEDIMENT_COMPACT_REPORT     one command
    SEDIMENT_REPORT             every command with this option, if it is declared `ALL_COMMANDS`
    [compact] report = "…"      one command, in the settings file
    report = "…"                every command with this option, if it is declared `ALL_COMMANDS`
    the default of the option

Invariants: only options that are declared so (`Option.from_settings`) have sources other than the command line.
"""

from __future__ import annotations

import difflib
import importlib
import logging
import os
import pkgutil
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
import platformdirs
from click.core import ParameterSource

from sediment import jobs
from sediment.jobs.command_line.click_options import CommandOption, parameters_of
from sediment.jobs.command_line.declaration import NoOptions, filled
from sediment.jobs.command_line.shared_options import FOR_ALL_COMMANDS
from sediment.jobs.process import stderr_log
from sediment.jobs.process.input_files import MOST_TEXT_BYTES, read_input_file
from sediment.segment_io.errors import UsageError
from sediment.segment_io.safe_paths import UnsafePathError, check_path

_OTHER_NAMES = {
    **dict.fromkeys(("address", "bind", "bootstrap-server", "host", "port"), "listen"),
    **dict.fromkeys(("command-config", "properties", "server-config"), "config"),
    **dict.fromkeys(("partitions", "topic", "topics"), "partition"),
    **dict.fromkeys(("new", "init", "create"), "format"),
}
"""Names that other programs give to options, with the name here."""

SETTINGS_VARIABLE = "SEDIMENT_SETTINGS"
_PREFIX = "SEDIMENT_"
_FILE_NAME = "sediment.toml"
# Kubernetes sets such variables for every service whose name begins with "sediment".
_OF_KUBERNETES = re.compile(r"\w+_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?)")
_SIMILAR = 0.75
_Named = TypeVar("_Named")
_Own = TypeVar("_Own")

_LOGGER = logging.getLogger(__name__)


class ConfiguredCommand(click.Command):
    def __init__(self, *given: Any, own: type = NoOptions, **more: Any) -> None:
        super().__init__(*given, **more)
        self.own = own

        for option in self._options().values():
            if is_settable(option):
                option.envvar = self._variables(long_name(option))

    def get_params(self, context: click.Context) -> list[click.Parameter]:
        return [*super().get_params(context), _SETTINGS_OPTION, VERBOSE_OPTION]

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        own: list[tuple[str, str]] = []
        common: list[tuple[str, str]] = []
        for parameter in self.get_params(context):
            line = parameter.get_help_record(context)
            if isinstance(parameter, click.Option) and line is not None:
                (common if _is_listed_last(parameter) else own).append(line)
        for title, lines in (("Options", own), ("Common options", common)):
            if lines:
                with formatter.section(title):
                    formatter.write_dl(lines)

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        """Parse the command line; if a value from another source is wrong, the error names this source."""
        try:
            self._check_given(context, args)
            return super().parse_args(context, args)
        except click.BadParameter as error:
            where = self._source(context, error.param)
            if where is None:
                raise
            text = f"{error.message.rstrip('.')} (from {where})"
            raise click.BadParameter(text, ctx=error.ctx, param=error.param) from error
        except click.NoSuchOption as error:
            same = _OTHER_NAMES.get(error.option_name.removeprefix("--"))
            if same not in self._options():
                raise
            text = f"No such option {error.option_name!r}; use --{same}."
            raise click.NoSuchOption(error.option_name, text, ctx=error.ctx) from error
        finally:
            for option in self._options().values():
                where = self._source(context, option)
                if where is not None:
                    _LOGGER.debug("--%s is from %s", long_name(option), where)

    def take_settings(self, context: click.Context, file: Path | None) -> None:
        self._check_environment(context)
        path = file or platformdirs.user_config_path("sediment") / _FILE_NAME
        content = _read(path, context, must_exist=file is not None)
        context.meta[SETTINGS_VARIABLE] = path
        names = {name: option.name or "" for name, option in self._options().items()}
        context.default_map = {
            names[key]: self._listed(key, value)
            for key, value in self._values(content, path, context).items()
            if key in names
        }

    def _listed(self, key: str, value: Any) -> Any:
        return [value] if self._options()[key].multiple and not isinstance(value, list) else value

    def _check_given(self, context: click.Context, args: Sequence[str]) -> None:
        """A flag that has no opposite may be repeated."""
        if context.resilient_parsing:
            return
        values, _, given = self.make_parser(context).parse_args(list(args))
        names = {name for each in self.get_params(context) for name in (*each.opts, *each.secondary_opts)}
        for parameter, count in Counter(given).items():
            if not isinstance(parameter, click.Option):
                continue
            found = values.get(parameter.name or "")
            for value in found if isinstance(found, list) else [found]:
                if value in names and str(value).startswith("--"):
                    context.fail(f"--{long_name(parameter)} needs a value, but is followed by {value}; give its value")
            if count == 1 or parameter.multiple or parameter.count:
                continue
            # An option that has one value must not be on the command line twice, because its first
            # value would be lost without a word.
            if not parameter.is_flag or parameter.secondary_opts:
                context.fail(f"--{long_name(parameter)} is given {count} times, but takes one value; give it once")

    # ------------------------------------------------------------------------------------------------------- the names
    def _options(self) -> dict[str, click.Option]:
        return {long_name(each): each for each in self.params if isinstance(each, click.Option)}

    def _variables(self, name: str) -> list[str]:
        own = [_variable(f"{self.name}-{name}")]
        return [*own, _variable(name)] if name in FOR_ALL_COMMANDS else own

    def _values(self, content: Mapping[str, Any], path: Path, context: click.Context) -> dict[str, Any]:
        shared = {key: value for key, value in content.items() if not isinstance(value, dict)}
        own = content.get(self.name or "", {})
        for key in content.keys() - shared.keys():
            if key not in command_names():
                context.fail(f"{path}: {key!r} is not a command{_nearest(key, command_names())}")
        for key in shared:
            if key not in FOR_ALL_COMMANDS:
                context.fail(f"{path}: {self._why_not(key, FOR_ALL_COMMANDS)}")
        for key in own:
            if key not in self._allowed():
                context.fail(f"{path}: in [{self.name}] {self._why_not(key, self._allowed())}")
        return {**shared, **own}

    def _allowed(self) -> list[str]:
        return sorted(name for name, option in self._options().items() if is_settable(option))

    def _why_not(self, key: str, known: Iterable[str]) -> str:
        if key in self._options() and key not in self._allowed():
            return f"{key!r} is not allowed in a settings file; give --{key} on the command line"
        if key in self._options() or key in _settable_names():
            return f"{key!r} is not an option of all commands; move it into the table of a command, such as [compact]"
        return f"{key!r} is unknown{_nearest(key, known)}"

    def _check_environment(self, context: click.Context) -> None:
        known = {variable for name in self._allowed() for variable in self._variables(name)}
        known |= {_variable(name) for name in FOR_ALL_COMMANDS} | {SETTINGS_VARIABLE}
        own = _variable(f"{self.name}-")
        of_others = tuple(_variable(f"{name}-") for name in command_names() if name != self.name)
        # An unknown variable SEDIMENT_… is an error in three cases: the rest of its name begins with the name of this
        # command, is one of the command's options, or resembles a known variable.  Other unknown variables are ignored,
        # because other programs may use the same prefix.
        for name in sorted(os.environ.keys() - known):
            if not name.startswith(_PREFIX) or name.startswith(of_others) or _OF_KUBERNETES.fullmatch(name):
                continue
            option = name.removeprefix(own).removeprefix(_PREFIX).lower().replace("_", "-")
            if option in self._options() and option not in self._allowed():
                context.fail(f"the variable {name} is not allowed; give --{option} on the command line")
            if option in self._options():
                context.fail(
                    f"the variable {name} is not an option of all commands; set {own}{name.removeprefix(_PREFIX)}"
                )
            # An unknown name is an error, because a misspelt `dry-run` must not change data.
            nearest = _nearest(name, known)
            if name.startswith(own) or nearest:
                context.fail(f"the variable {name} is unknown{nearest}")

    def _source(self, context: click.Context, parameter: click.Parameter | None) -> str | None:
        """Return the source of a value; None if it is the command line."""
        if parameter is None or parameter.name is None:
            return None
        source = context.get_parameter_source(parameter.name)
        if source is ParameterSource.DEFAULT_MAP:
            return str(context.meta.get(SETTINGS_VARIABLE))
        if source is ParameterSource.ENVIRONMENT and isinstance(parameter.envvar, list):
            return next((name for name in parameter.envvar if os.environ.get(name)), None)
        return None


def plain_command(name: str, own: type[_Own]) -> Callable[[Callable[[_Own], None]], ConfiguredCommand]:
    def decorate(run: Callable[[_Own], None]) -> ConfiguredCommand:
        def callback(**values: Any) -> None:
            # Imported late, because a completion after a Tab does not need this module.
            from sediment.jobs.command_line.exit_status import errors_as_exit_status

            with errors_as_exit_status():
                run(filled(own, values))

        return ConfiguredCommand(name, callback=callback, params=parameters_of(own), help=run.__doc__, own=own)

    return decorate


def command_names() -> list[str]:
    return [each.name.replace("_", "-") for each in pkgutil.iter_modules(jobs.__path__) if not each.ispkg]


def is_settable(option: click.Parameter) -> bool:
    return isinstance(option, CommandOption) and option.declared.from_settings is not None


def _settable_names() -> set[str]:
    """Return the options of all commands that a settings file may set; this loads every command."""
    commands = (importlib.import_module(f"{jobs.__name__}.{name.replace('-', '_')}") for name in command_names())
    found = (vars(module).get("command") for module in commands)
    return {name for each in found if isinstance(each, ConfiguredCommand) for name in each._allowed()}


def _is_listed_last(option: click.Option) -> bool:
    return option.is_listed_last if isinstance(option, CommandOption) else True  # --help, --settings and --verbose


def long_name(option: click.Parameter) -> str:
    return max(option.opts, key=len).removeprefix("--")


def is_given(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) in (
        ParameterSource.COMMANDLINE,
        ParameterSource.ENVIRONMENT,
        ParameterSource.DEFAULT_MAP,
    )


def is_on_command_line(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) is ParameterSource.COMMANDLINE


def _variable(name: str) -> str:
    return _PREFIX + name.replace("-", "_").upper()


def _nearest(name: str, known: Iterable[str]) -> str:
    nearest = nearest_name(name.removeprefix(_PREFIX), {each.removeprefix(_PREFIX): each for each in known})
    return f"; did you mean {nearest}?" if nearest else ""


def nearest_name(name: str, known: Mapping[str, _Named]) -> _Named | None:
    found = difflib.get_close_matches(name, known, n=1, cutoff=_SIMILAR)
    return known[found[0]] if found else None


def _read(path: Path, context: click.Context, *, must_exist: bool) -> dict[str, Any]:
    try:
        if must_exist:
            path.stat()
        else:
            # The working directory is never searched, because other people may have put files into it.  For the same
            # reason, the default file is refused if anybody but this user and root can change it.
            path.lstat()
            check_path(path)
        if str(path) == os.devnull:
            return {}
        return tomllib.loads(read_input_file(path, MOST_TEXT_BYTES, f"the settings file {path}").decode())
    except UnsafePathError as error:
        context.fail(
            f"the settings file {path} is not read, because others can change it: {error}; name the file with "
            f"--settings or in {SETTINGS_VARIABLE}"
        )
    except FileNotFoundError:
        if not must_exist:
            return {}
        context.fail(f"the settings file {path} does not exist")
    except UsageError as error:
        context.fail(error.what)
    except OSError as error:
        context.fail(f"the settings file {path} cannot be read: {error.strerror}")
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        context.fail(f"the settings file {path} is not TOML: {error}")


# --------------------------------------------------------------------------------------------- options of every command
def _take_settings(context: click.Context, _option: click.Parameter, file: Path | None) -> None:
    if not context.resilient_parsing and isinstance(context.command, ConfiguredCommand):
        context.command.take_settings(context, file)


def _be_verbose(context: click.Context, _option: click.Parameter, is_verbose: bool) -> None:
    if is_verbose and not context.resilient_parsing:
        context.call_on_close(stderr_log.be_verbose())


_SETTINGS_OPTION = click.Option(
    ["--settings", "settings_file"],
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar=SETTINGS_VARIABLE,
    is_eager=True,
    expose_value=False,
    callback=_take_settings,
    help="Read default values of options from FILE (default: ~/.config/sediment/sediment.toml, if it exists).",
)
VERBOSE_OPTION = click.Option(
    ["-v", "--verbose"],
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_be_verbose,
    help="Show details on stderr: the source of each option's value, Spark's warnings, and the traceback of an error.",
)

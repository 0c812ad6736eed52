"""The command line of declared options: a click parameter for each field of a dataclass of options."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from sediment.jobs.command_line.declaration import ALL_COMMANDS, DeclaredOption, Option, declared_options
from sediment.jobs.command_line.partition_completion import complete_partition, complete_path
from sediment.jobs.command_line.units import ByteSize, Seconds

_MOST_NAME_BYTES, _MOST_PATH_BYTES = 255, 4095  # of Linux; macOS allows fewer in a path
_UNITS: dict[str, click.ParamType[Any]] = {"bytes": ByteSize(), "seconds": Seconds()}
_COMPLETIONS = {"paths": complete_path, "partitions": complete_partition}


class _PathType(click.Path):
    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        path = os.fspath(value)
        if "://" not in path:
            name_bytes = max(len(os.fsencode(name)) for name in path.split("/"))
            if name_bytes > _MOST_NAME_BYTES or len(os.fsencode(path)) > _MOST_PATH_BYTES:
                self.fail(
                    f"this path has {len(os.fsencode(path))} bytes; a path has at most {_MOST_PATH_BYTES}, and a name "
                    f"in it at most {_MOST_NAME_BYTES}",
                    param,
                    ctx,
                )
        return super().convert(value, param, ctx)


class CommandOption(click.Option):
    def __init__(self, *given: Any, declared: Option, keyword: str, **more: Any) -> None:
        super().__init__(*given, **more)
        self.declared = declared
        self.keyword = keyword

    @property
    def is_listed_last(self) -> bool:
        return self.declared.is_shared or self.declared.from_settings == ALL_COMMANDS


class CommandArgument(click.Argument):
    def __init__(self, *given: Any, declared: Option, keyword: str, **more: Any) -> None:
        super().__init__(*given, **more)
        self.declared = declared
        self.keyword = keyword


def parameters_of(declared: type) -> list[click.Parameter]:
    return [_argument(each) if each.option.is_argument else _option(each) for each in declared_options(declared)]


def _argument(declared: DeclaredOption) -> click.Parameter:
    return CommandArgument(
        [declared.field],
        declared=declared.option,
        keyword=declared.keyword,
        type=_type(declared),
        nargs=-1 if declared.is_many else 1,
        required=declared.option.is_required,
        metavar=declared.option.metavar,
        shell_complete=None if declared.option.completes is None else _COMPLETIONS[declared.option.completes],
    )


def _option(declared: DeclaredOption) -> click.Parameter:
    own = declared.option
    names = [f"--{declared.name}/--{own.off}" if own.off else f"--{declared.name}"]
    more: dict[str, Any] = {}
    if own.short:
        names.insert(0, f"-{own.short}")
    if declared.type is bool:
        more["is_flag"] = True
    else:
        more |= {"type": _type(declared), "multiple": declared.is_many}
    if own.bare is not None:
        more |= {"is_flag": False, "flag_value": own.bare}
    if own.completes is not None:
        more["shell_complete"] = _COMPLETIONS[own.completes]
    if not own.is_required and not declared.is_many:
        more["default"] = declared.default_text
    return CommandOption(
        [*names, declared.field],
        declared=own,
        keyword=declared.keyword,
        help=own.text,
        metavar=own.metavar or declared.values.metavar,
        required=own.is_required,
        show_default=own.shows_default,
        **more,
    )


def _type(declared: DeclaredOption) -> click.ParamType[Any]:
    values, kind = declared.values, declared.type
    if declared.choices:
        return click.Choice(declared.choices)
    if values.unit is not None:
        return _UNITS[values.unit]
    if kind is Path or values.is_path:
        return _PathType(
            path_type=None if values.is_path else Path,
            file_okay=values.is_file,
            dir_okay=values.is_directory,
            exists=values.exists,
        )
    if kind is int and (values.least, values.most) != (None, None):
        return click.IntRange(values.least, values.most)
    return click.INT if kind is int else click.FLOAT if kind is float else click.STRING

"""Declaration of options: each option of a command is one field of a frozen dataclass.

    @dataclass(frozen=True, slots=True)
    class ExampleOptions:
        dry_run: bool = option(False, "Change nothing; report what a run would change.", from_settings=ONE_COMMAND)
        max_bytes: ByteSize | None = option(None, "Clean at most N bytes of log, such as 10GB.")

The field gives the option its name, type and default, on the command line (`--max-bytes 10GB`, by `click_options`) and
in Python (`max_bytes=10 << 30`, by `calls`); `filled` makes the dataclass of the values of either.  A type says which
values are possible: an `Enum` lists choices, and `Annotated` adds what Python's types cannot say, such as `ByteSize`.

The module imports no click, because tasks on executors import the classes of options.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar

from sediment.segment_io.format.layout import INT32_MAX, INT64_MAX

_T = TypeVar("_T")

ONE_COMMAND, ALL_COMMANDS = "one", "all"
_KEY = "option"


# ------------------------------------------------------------------------------------------------------------ the types
@dataclass(frozen=True, slots=True)
class Values:
    """What a type annotation cannot say about the values of an option; `metavar` stands for a value in the help."""

    metavar: str | None = None
    unit: str | None = None
    """`bytes` or `seconds`: a number may have a unit, as in 10GB or 90m."""

    least: int | None = None
    most: int | None = None
    choices: tuple[str, ...] = ()
    is_file: bool = True
    is_directory: bool = True
    """A path may name an existing file, or an existing directory."""

    exists: bool = False
    is_path: bool = False


ByteSize = Annotated[int, Values("N", unit="bytes")]
Seconds = Annotated[float, Values("N", unit="seconds")]
TimeMs = Annotated[int, Values(least=0, most=INT64_MAX)]
Count = Annotated[int, Values(least=1)]
NodeId = Annotated[int, Values(least=0, most=INT32_MAX)]
File = Annotated[Path, Values("FILE", is_directory=False)]
Directory = Annotated[Path, Values("DIR", is_file=False)]
PathOrUri = Annotated[str, Values(is_path=True)]
ExistingDirectory = Annotated[Path, Values("DIR", is_file=False, exists=True)]


# ----------------------------------------------------------------------------------------------------- the declarations
@dataclass(frozen=True, slots=True)
class Option:
    """What the field does not say about an option, apart from the field's name, type and default."""

    text: str

    name: str | None = None
    """Long name, without dashes; default: the name of the field."""

    keyword: str | None = None
    """Keyword in Python; default: the name of the field."""

    short: str | None = None
    metavar: str | None = None
    off: str | None = None
    """Long name of the opposite of a flag."""

    none: str | None = None
    """Choice that stands for None."""

    bare: str | None = None
    """Value of the option if it is given without one."""

    joined: bool = False
    """The value is a list, with commas between its items."""

    parse: Callable[[Any], Any] | None = None
    """Makes the value of the field from the text; raises `UsageError`."""

    shows_default: bool = False
    is_argument: bool = False
    is_required: bool = False
    is_shared: bool = False
    """Several commands have it with the same meaning, so their help lists it last, as those for `ALL_COMMANDS`."""

    from_settings: str | None = None
    """A settings file and the environment may set it: for `ONE_COMMAND` at a time, or at once for `ALL_COMMANDS` that
    have it.

    No option that disables a safety check, names a secret, selects partitions or records, or decides which records are
    deleted may come from there.
    """

    of_terminal: bool = False
    """The option is for a terminal; Python does not have it."""

    is_secret: bool = False
    """No report, page or catalogue may show the value."""

    completes: str | None = None
    """What the shell completes: `paths`, or names of `partitions`."""


def option(default: _T, text: str, **more: Any) -> _T:
    """Return the field of an option with this default and help; `more` are fields of `Option`."""
    declared: Any = field(default=default, metadata={_KEY: Option(text, **more)})
    return typing.cast(_T, declared)


def required_option(text: str, **more: Any) -> Any:
    return field(metadata={_KEY: Option(text, is_required=True, **more)})


def argument(metavar: str, text: str = "", *, required: bool = False, **more: Any) -> Any:
    """Return the field of a positional argument; only `help()` in Python shows its text."""
    declared = Option(text, metavar=metavar, is_argument=True, is_required=required, **more)
    return field(metadata={_KEY: declared}) if required else field(default=(), metadata={_KEY: declared})


@dataclass(frozen=True, slots=True)
class NoOptions:
    pass


@dataclass(frozen=True, slots=True)
class Together:
    options: type


def together(options: type) -> Any:
    """Return the field whose value is `options(…).value()`; None without them."""
    return field(default=None, metadata={_KEY: Together(options)})


@dataclass(frozen=True, slots=True)
class DeclaredOption:
    field: str
    type: type
    values: Values
    is_many: bool
    default: Any
    option: Option

    @property
    def name(self) -> str:
        return self.option.name or self.field.replace("_", "-")

    @property
    def keyword(self) -> str:
        return self.option.keyword or self.field

    @property
    def choices(self) -> tuple[str, ...]:
        if issubclass(self.type, Enum):
            return (*([self.option.none] if self.option.none else []), *(str(each.value) for each in self.type))
        return self.values.choices

    @property
    def default_text(self) -> Any:
        if self.default is None:
            return self.option.none
        if self.option.joined:
            return ",".join(sorted(map(str, self.default)))
        return self.default.value if isinstance(self.default, Enum) else self.default

    def value(self, given: Any) -> Any:
        if given is None or (given == self.option.none is not None):
            return None
        if self.option.parse is not None:
            return self.option.parse(given)
        return self.type(given) if issubclass(self.type, Enum) else given


def declared_options(declared: type) -> tuple[DeclaredOption, ...]:
    """Return the options of a dataclass: first its own, in their order, then those of its base class."""
    return tuple(_flat(declared))


def filled(declared: type[_T], given: Mapping[str, Any]) -> _T:
    values: dict[str, Any] = {}
    for name, each in _declarations(typing.cast(Any, declared)):
        if isinstance(each, Together):
            values[name] = filled(each.options, given).value()
        elif name in given:
            values[name] = each.value(given[name])
    return declared(**values)


def _flat(declared: type) -> Iterator[DeclaredOption]:
    for _, each in _declarations(declared):
        if isinstance(each, Together):
            yield from _flat(each.options)
        else:
            yield each


@cache
def _declarations(declared: Any) -> tuple[tuple[str, DeclaredOption | Together], ...]:
    hints = typing.get_type_hints(declared, include_extras=True)
    own = inspect.get_annotations(declared)
    found: list[tuple[str, DeclaredOption | Together]] = []
    for each in sorted(fields(declared), key=lambda each: each.name not in own):
        option = each.metadata.get(_KEY)
        if isinstance(option, Together):
            found.append((each.name, option))
        elif option is not None:
            kind, values, is_many = _resolved(hints[each.name])
            if option.parse is not None and kind is not Path:
                kind = str
            default = None if each.default is MISSING else each.default
            found.append((each.name, DeclaredOption(each.name, kind, values, is_many, default, option)))
    return tuple(found)


def _resolved(hint: Any) -> tuple[type, Values, bool]:
    values, is_many = Values(), False
    while True:
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if origin is Annotated:
            hint, values = arguments[0], arguments[1]
        elif origin in (typing.Union, types.UnionType):
            (hint,) = (each for each in arguments if each is not types.NoneType)
        elif origin is tuple:
            hint, is_many = arguments[0], True
        elif origin is typing.Literal:
            hint, values = str, Values(choices=arguments)
        else:
            return (hint if isinstance(hint, type) else str), values, is_many

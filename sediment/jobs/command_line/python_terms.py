"""What a caller in Python reads: names of options become keywords, in errors and in help.

    --keep-originals DIR            keep_originals=DIR
    --strategy split                strategy='split'
    --set orders:retention.ms=1     settings={'orders:retention.ms': '1'}
    `compact --force`               `compact(force=…)`
    no LOG_DIR, LOG_DIR             no log directory, the log directory
    Exit with status 1 if           `failed` is True if

Options of Kafka's own tools stay as they are.
"""

from __future__ import annotations

import difflib
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sediment.jobs.command_line.declaration import DeclaredOption, declared_options
from sediment.segment_io.errors import SedimentError, UsageError

_SET = re.compile(r"--set ([^\s=;,]+)=([^\s;,]+)")
_COMMAND = re.compile(r"`(\w+) --([a-z][a-z0-9-]*)`")
_OPTION = re.compile(r"(?<![\w-])--([a-z][a-z0-9-]*)(?: ('[^']*'|[A-Z][A-Z_:-]*\b(?!')|[a-z_]+(?=[\s,;.]|$)))?")
_OF_KAFKA = re.compile(r"(kafka-[\w-]+\.sh(?: --[\w-]+(?: [a-z]+)?)*)")
_PHRASES = (
    (re.compile(r"`verify DIR LOG_DIR`"), "`verify(DIR)`"),
    (re.compile(r"\b(no|one|each) LOG_DIR\b"), r"\1 log directory"),
    (re.compile(r"\bLOG_DIR\.\.\."), "the log directories"),
    (re.compile(r"\bLOG_DIR\b"), "the log directory"),
    (re.compile(r"Exit with status 1 if\b"), "`failed` is True if"),
)
_ARGUMENT = re.compile(r"'[^']*'|[A-Z][A-Z_:-]*")
_WIDTH = 116
_SIMILAR = 0.7


def in_python(text: str, options: Mapping[str, DeclaredOption]) -> str:
    def keyword(name: str) -> str:
        return options[name].keyword if name in options else name.replace("-", "_")

    def replaced(found: re.Match[str]) -> str:
        name, value = found[1], found[2]
        declared = options.get(name)
        if declared is not None and declared.option.of_terminal:
            return found[0]
        if value is None:
            return keyword(name)
        if _ARGUMENT.fullmatch(value):
            return f"{keyword(name)}={value}"
        is_choice = declared is not None and value in declared.choices
        return f"{keyword(name)}={value!r}" if is_choice else f"{keyword(name)} {value}"

    def translated(part: str) -> str:
        part = _SET.sub(r"settings={'\1': '\2'}", part)
        part = _COMMAND.sub(lambda found: f"`{found[1]}({keyword(found[2])}=…)`", part)
        part = _OPTION.sub(replaced, part)
        for pattern, phrase in _PHRASES:
            part = pattern.sub(phrase, part)
        return part

    parts = _OF_KAFKA.split(text)
    return "".join(part if place % 2 else translated(part) for place, part in enumerate(parts))


def options_by_name(declared: Iterable[type]) -> dict[str, DeclaredOption]:
    return {each.name: each for kind in declared for each in declared_options(kind)}


@contextmanager
def errors_in_python(declared: Iterable[type]) -> Iterator[None]:
    try:
        yield
    except SedimentError as error:
        options = options_by_name(declared)
        error.what = in_python(error.what, options)
        error.args = (error.what, *error.args[1:])
        error.advice = None if error.advice is None else in_python(error.advice, options)
        raise


def with_option_help(text: str | None, keywords: Iterable[str], declared: Iterable[type]) -> str:
    """Return a docstring with the help of these keywords after its first paragraphs, before `Raises:`."""
    options = options_by_name(declared)
    by_keyword = {each.keyword: each for each in options.values()}
    lines = ["Options:"]
    for name in keywords:
        if name in by_keyword:
            help_text = in_python(by_keyword[name].option.text, options)
            lines += textwrap.wrap(f"{name}: {help_text}", _WIDTH, initial_indent="    ", subsequent_indent="        ")
    if len(lines) == 1:
        return inspect.cleandoc(text or "")
    before, raises, after = inspect.cleandoc(text or "").partition("\nRaises:")
    return "\n".join([before.rstrip(), "", *lines, *([raises + after] if raises else [])])


def check_call(
    function: Callable[..., Any], given: tuple[Any, ...], keywords: Mapping[str, Any], elsewhere: Mapping[str, str]
) -> None:
    """Check that a call has the arguments of the function; `elsewhere` says what to do for keywords of other calls."""
    name, parameters = f"{function.__name__}()", inspect.signature(function).parameters
    if function.__name__ == "__init__":
        name = f"{function.__qualname__.partition('.')[0]}()"
    for keyword in keywords:
        if keyword not in parameters:
            advice = elsewhere.get(keyword) or nearest_advice(keyword, parameters)
            raise UsageError(f"{name} has no option {keyword!r}", advice=advice)
    positional = [each for each in parameters.values() if each.kind is not inspect.Parameter.KEYWORD_ONLY]
    if len(given) > len(positional):
        raise UsageError(f"{name} takes its options by name", advice=f"write {name[:-1]}option=value)")
    for place, parameter in enumerate(parameters.values()):
        is_given = parameter.name in keywords or (parameter in positional and place < len(given))
        if parameter.default is inspect.Parameter.empty and not is_given:
            raise UsageError(f"{name} needs {parameter.name!r}", advice=f"give {parameter.name}=…")


def nearest_advice(keyword: str, known: Iterable[str]) -> str:
    names = [name for name in known if name != "self"]
    found = difflib.get_close_matches(keyword.lower(), names, n=1, cutoff=_SIMILAR)
    found = found or [name for name in names if name.startswith(keyword) or keyword.startswith(name)]
    if found:
        return f"did you mean {found[0]!r}?"
    return f"its options are {', '.join(names)}" if names else "it has no options"

"""Errors of a data source, shown as one sentence without a traceback and without the module of the error's class."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from sediment.jobs.reporting.error_text import describe
from sediment.segment_io.errors import SedimentError

if TYPE_CHECKING:
    import pyarrow as pa

_Function = TypeVar("_Function", bound=Callable[..., Any])


def in_one_sentence(function: _Function) -> _Function:
    @functools.wraps(function)
    def wrapped(*arguments: Any, **named: Any) -> Any:
        try:
            return function(*arguments, **named)
        except (SedimentError, OSError) as error:
            # By default, Spark prints the traceback of an error.  If SPARK_HIDE_TRACEBACK is set, Spark prints the
            # error's class with the module of the class; Python leaves out the module only for classes of `builtins`.
            # The wrapper sets SPARK_HIDE_TRACEBACK for the whole process, because the error ends the process.
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
            raise _as_sentence(error) from error

    result: Any = wrapped
    return result  # type: ignore[no-any-return]


def iterator_in_one_sentence(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    following = in_one_sentence(functools.partial(next, batches, None))
    while (batch := following()) is not None:
        yield batch


def _as_sentence(error: SedimentError | OSError) -> Exception:
    kind = type(error)
    shown = type(kind.__name__, (kind,), {"__module__": "builtins", "__str__": lambda _self: describe(error)[1]})
    found: Exception = shown.__new__(shown, *error.args)
    found.__dict__.update(error.__dict__)
    return found

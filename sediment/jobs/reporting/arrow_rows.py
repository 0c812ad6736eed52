"""Conversion of dataclass instances to Arrow tables, and of these tables to pandas frames.

    int, float, bool, str        int64, double, bool, string
    tuple[X, ...], tuple[X, X]   list
    NamedTuple, dataclass        struct
    Mapping[str, X]              map

Invariants: the schema depends only on the class, not on the rows.  A field with `INTERNAL` metadata has no column.
Integers stay exact in pandas, with or without missing values.
"""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin, get_type_hints

from sediment.segment_io.errors import UsageError
from sediment.segment_io.extras import install_command

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

INTERNAL = {"internal": True}
"""Metadata of a dataclass field that appears in no output."""


def arrow_table(row_type: type, rows: Sequence[Any]) -> pa.Table:
    import pyarrow as pa

    return pa.Table.from_pylist([asdict(row) for row in rows], schema=pa.schema(_arrow_fields(row_type)))


def pandas_frame(table: pa.Table) -> pd.DataFrame:
    """Return a frame with nullable columns, and maps as dicts."""
    try:
        import pandas as pd
    except ImportError as error:
        raise UsageError(
            "the Python package pandas is missing", advice=f"{install_command('notebook')}, or use to_arrow()"
        ) from error
    import pyarrow as pa

    nullable = {
        pa.int32(): pd.Int32Dtype(),
        pa.int64(): pd.Int64Dtype(),
        pa.bool_(): pd.BooleanDtype(),
    }
    return table.to_pandas(types_mapper=nullable.get, maps_as_pydicts="strict")


def _arrow_fields(row_type: type) -> list[tuple[str, pa.DataType]]:
    hints = get_type_hints(row_type)
    return [(field.name, _arrow_type(hints[field.name])) for field in fields(row_type) if field.metadata != INTERNAL]


def _arrow_type(annotation: Any) -> pa.DataType:
    import pyarrow as pa

    plain = {int: pa.int64(), float: pa.float64(), bool: pa.bool_(), str: pa.string()}
    if annotation in plain:
        return plain[annotation]
    if isinstance(annotation, type) and is_dataclass(annotation):
        return pa.struct(_arrow_fields(annotation))
    if hasattr(annotation, "_fields"):
        return pa.struct([(name, _arrow_type(hint)) for name, hint in get_type_hints(annotation).items()])
    arguments = get_args(annotation)
    if get_origin(annotation) in (Union, types.UnionType):
        (given,) = (each for each in arguments if each is not type(None))
        return _arrow_type(given)
    if get_origin(annotation) is Mapping:
        return pa.map_(*map(_arrow_type, arguments))
    if get_origin(annotation) is tuple:
        (item,) = set(arguments) - {Ellipsis}
        return pa.list_(_arrow_type(item))
    raise TypeError(f"no Arrow type for {annotation}")

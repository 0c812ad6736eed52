"""Options of a table that SQL creates: `CREATE TABLE … USING `kafka-log` OPTIONS (…)`.

Spark 4.2 gives a Python source the options of a table only when the table is created.  Spark keeps the schema that the
source returned, including the metadata of its columns, and passes the schema to every query.  Therefore, this module
puts the options into the metadata of the first column.  Each column also gets its comment there, which DESCRIBE shows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from pyspark.sql.types import StructField, StructType

_PROVIDER = "provider"
_PATH = "path"
_OPTION_PREFIX = "option."
_OF_SPARK = frozenset({"serialization.format"})
_METADATA_KEY = "kafka-log.options"
_COMMENT = "comment"  # Spark's key


def is_new_table(options: Mapping[str, str]) -> bool:
    return _PROVIDER in options


def given_options(options: Mapping[str, str]) -> dict[str, str]:
    given = {name.lower(): value for name, value in options.items()}
    if not is_new_table(given):
        return {name: value for name, value in given.items() if name not in _OF_SPARK}
    # CREATE TABLE passes each option a second time with the prefix `option.`, except the path, which it turns into a
    # URI.
    stated = {
        name.removeprefix(_OPTION_PREFIX): value for name, value in given.items() if name.startswith(_OPTION_PREFIX)
    }
    return stated | {_PATH: given[_PATH]} if _PATH in given else stated


def table_schema(schema: StructType, comments: Sequence[str], options: Mapping[str, str]) -> StructType:
    metadata: list[dict[str, str]] = [{_COMMENT: comment} for comment in comments]
    metadata[0][_METADATA_KEY] = json.dumps(dict(options))
    return StructType(
        [
            StructField(field.name, field.dataType, field.nullable, carried)
            for field, carried in zip(schema.fields, metadata, strict=True)
        ]
    )


def options_in(schema: StructType) -> dict[str, str]:
    for field in schema.fields:
        if _METADATA_KEY in field.metadata:
            found: dict[str, str] = json.loads(field.metadata[_METADATA_KEY])
            return found
    return {}

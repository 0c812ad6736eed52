"""Messages as JSON, in the format of Kafka's generated JsonConverter classes and Kafka's console tools.

Names are camelCase, bytes are base64, and a uuid has 22 characters.  Tagged fields with their default value are left
out.  A field of records becomes a field with the suffix `SizeInBytes`, which contains only their size.
"""

from __future__ import annotations

import base64
from typing import Any

from sediment.segment_io.format.checkpoints import format_uuid
from sediment.segment_io.protocol.compiler import default_of, has_new_structure, is_structure
from sediment.segment_io.protocol.message import Structure
from sediment.segment_io.protocol.primitives import records_size_bytes
from sediment.segment_io.protocol.schema import FieldSchema


def to_json(structure: Structure, version: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in structure.FIELDS:
        value = getattr(structure, field.attribute)
        if version not in field.versions or (version in field.tagged_versions and _is_default(field, value)):
            continue
        if field.type == "records" and value is not None:
            found[f"{field.name}SizeInBytes"] = records_size_bytes(value)
        elif field.is_array and value is not None:
            found[field.name] = [_to_json(field, element, version) for element in value]
        else:
            found[field.name] = _to_json(field, value, version)
    return found


def _to_json(field: FieldSchema, value: Any, version: int) -> Any:
    if value is None:
        return None
    if is_structure(field):
        return to_json(value, version)
    match field.type:
        case "bytes":
            return base64.b64encode(value).decode("ascii")
        case "uuid":
            return format_uuid(value.bytes)
        case _:
            return value


def _is_default(field: FieldSchema, value: Any) -> bool:
    if has_new_structure(field):
        return value is not None and bool(value == type(value)())
    default = default_of(field)
    return len(value) == 0 if default == () and value is not None else bool(value == default)

"""Conditions on records: their keys and headers, and whether they are application messages.

A record is selected if its key is one of `keys` and it has all of `headers`.  Control records have no application key
or header, so every condition excludes them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

from sediment.jobs.command_line.key_formats import parse_key
from sediment.segment_io.errors import UsageError
from sediment.segment_io.printable import encodable

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class HeaderCondition:
    """A header that a record must have, with any value if `value` is None."""

    name: str
    value: bytes | None

    @classmethod
    def parse(cls, text: str) -> HeaderCondition:
        name, equals, value = text.partition("=")
        if not name:
            raise UsageError(f"--header {text} has no name", advice="write NAME=VALUE, or NAME for any value")
        return cls(encodable(name), os.fsencode(value) if equals else None)


@dataclass(frozen=True, slots=True)
class RecordSelection:
    keys: tuple[bytes, ...] = ()
    headers: tuple[HeaderCondition, ...] = ()
    messages_only: bool = False

    @classmethod
    def parse(
        cls, keys: tuple[str, ...], key_format: str, headers: tuple[str, ...], *, messages_only: bool
    ) -> RecordSelection:
        return cls(
            tuple(parse_key(os.fsencode(key), key_format, "--key") for key in keys),
            tuple(map(HeaderCondition.parse, headers)),
            messages_only or bool(keys or headers),
        )

    def columns(self) -> tuple[str, ...]:
        return (
            *(("key",) if self.keys else ()),
            *(("headers",) if self.headers else ()),
            *(("control",) if self.messages_only else ()),
        )

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        import pyarrow as pa
        import pyarrow.compute as pc

        masks: list[Any] = []
        if self.messages_only:
            masks.append(pc.invert(batch.column("control").fill_null(False)))
        if self.keys:
            masks.append(pc.is_in(batch.column("key"), pa.array(self.keys, pa.binary())))
        masks += [_has_header(batch.column("headers"), each) for each in self.headers]
        return batch.filter(reduce(pc.and_, masks)) if masks else batch


def _has_header(headers: Any, wanted: HeaderCondition) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    pairs, rows = pc.list_flatten(headers), pc.list_parent_indices(headers)
    matches = pc.equal(pc.struct_field(pairs, "key"), wanted.name)
    if wanted.value is not None:
        matches = pc.and_(matches, pc.equal(pc.struct_field(pairs, "value"), pa.scalar(wanted.value, pa.binary())))
    numbers = pa.array(range(len(headers)), rows.type)
    return pc.is_in(numbers, rows.filter(matches.fill_null(False)))

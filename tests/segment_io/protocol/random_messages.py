"""Random messages of every type and version, with every kind of value that a field may hold."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sediment.segment_io.protocol import messages
from sediment.segment_io.protocol.compiler import is_structure
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.segment_io.protocol.schema import FieldSchema, message_lines

INTEGERS = {
    "int8": (-(2**7), 2**7 - 1),
    "int16": (-(2**15), 2**15 - 1),
    "uint16": (0, 2**16 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "uint32": (0, 2**32 - 1),
    "int64": (-(2**63), 2**63 - 1),
}
TEXTS = ("", "a", "orders-7", "zürich", "Ā", "日本", "\U0001f600", "\0", "x" * 126, "y" * 127, "z" * 300)
SIZES_BYTES = (0, 1, 5, 126, 127, 200)


def message_versions() -> list[tuple[str, int]]:
    """Return every message with each of its versions."""
    return [(name, version) for name, line in message_lines().items() for version in line.versions]


def random_messages(chance: random.Random, rounds: int) -> Iterator[tuple[str, int, Any]]:
    """Yield name, version and message, `rounds` times for every message and version."""
    for _ in range(rounds):
        for name, version in message_versions():
            yield name, version, random_message(name, version, chance)


def random_message(
    name: str, version: int, chance: random.Random, *, small: bool = False, plausible: bool = False
) -> Any:
    """Return a message with random values in the fields of `version`.

    `small` keeps texts and arrays short.  `plausible` takes error codes that exist, and small numbers of the others.
    """
    return _Values(getattr(messages, name), version, chance, small, plausible).structure()


@dataclass(frozen=True, slots=True)
class _Values:
    message_class: Any
    version: int
    chance: random.Random
    small: bool
    plausible: bool

    def structure(self, name: str | None = None) -> Any:
        """Return the message, or one of its structures."""
        structure_class = getattr(self.message_class, name) if name else self.message_class
        values = {
            field.attribute: self._value(field)
            for field in structure_class.FIELDS
            if self.version in field.versions
            and not (self.version in field.tagged_versions and self.chance.random() < 0.4)
        }
        return structure_class(**values)

    def _value(self, field: FieldSchema) -> Any:
        if self.version in field.nullable_versions and self.chance.random() < 0.25:
            return None
        if field.is_array:
            counts = (0, 1, 1, 2) if self.small or is_structure(field) else (0, 1, 3, 130)
            return [self._element(field) for _ in range(self.chance.choice(counts))]
        return self._element(field)

    def _element(self, field: FieldSchema) -> Any:
        if is_structure(field):
            return self.structure(field.type)
        chance = self.chance
        match field.type:
            case "bool":
                return chance.random() < 0.5
            case "string":
                return chance.choice(TEXTS[:-3] if self.small else TEXTS)
            case "bytes" | "records":
                return chance.randbytes(chance.choice(SIZES_BYTES[:3] if self.small else SIZES_BYTES))
            case "uuid":
                return UUID(bytes=chance.randbytes(16))
            case "float64":
                return chance.uniform(-1e9, 1e9)
            case _:
                return self._integer(field)

    def _integer(self, field: FieldSchema) -> int:
        lowest, highest = INTEGERS[field.type]
        if self.plausible:
            error_codes = [int(code) for code in ErrorCode]
            return self.chance.choice(error_codes) if field.name == "errorCode" else self.chance.randint(0, 100)
        ends = (lowest, highest, 0, 1)
        return self.chance.choice(ends) if self.chance.random() < 0.5 else self.chance.randint(lowest, highest)

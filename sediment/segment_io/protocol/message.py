"""Message classes that are generated from schemas: one for each message, and one for each structure in a message.

An instance has an attribute for each field that exists in any version.  An array may be any sequence.  Empty arrays are
decoded as `()`.  An empty list takes 72 bytes, and a client may send millions of empty arrays in one frame.  Record
batches are views of the decoded buffer, and are encoded unchanged.  A chunk of a response may be bytes, a view, or a
slice of a file; this module uses only the `size_bytes` of a slice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol, Self, TypeAlias

from sediment.segment_io.errors import ProtocolError
from sediment.segment_io.protocol.compiler import compile_decoder, compile_encoder, default_of, has_new_structure
from sediment.segment_io.protocol.schema import FieldSchema, MessageSchema, VersionRange

_MODULE = "sediment.segment_io.protocol.messages"


class SizedSlice(Protocol):
    @property
    def size_bytes(self) -> int: ...

    def read(self) -> bytes: ...


MessageChunk: TypeAlias = bytes | memoryview | SizedSlice


class Structure:
    __slots__: ClassVar[tuple[str, ...]] = ()
    __hash__ = None  # type: ignore[assignment]

    FIELDS: ClassVar[Sequence[FieldSchema]]

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(_comparable(getattr(self, name)) == _comparable(getattr(other, name)) for name in self.__slots__)

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={_printed(getattr(self, name))}" for name in self.__slots__)
        return f"{type(self).__qualname__}({fields})"


class Message(Structure):
    """`API_KEY` is the number of the message's API or record type, or -1."""

    __slots__ = ()

    API_KEY: ClassVar[int]
    VERSIONS: ClassVar[VersionRange]
    SCHEMA: ClassVar[MessageSchema]
    _CLASSES: ClassVar[Mapping[str, type[Structure]]]
    _DECODERS: ClassVar[dict[int, Callable[[bytes | memoryview], Any]]]
    _ENCODERS: ClassVar[dict[int, Callable[[Any], list[Any]]]]

    @classmethod
    def is_flexible(cls, version: int) -> bool:
        return version in cls.SCHEMA.line.flexible_versions

    @classmethod
    def decode(cls, buffer: bytes | memoryview, version: int) -> Self:
        """Return the message that fills `buffer`.

        Tagged fields that are not in the schema are ignored.
        """
        decoder = cls._DECODERS.get(version)
        if decoder is None:
            cls._check_version(version)
            decoder = cls._DECODERS[version] = compile_decoder(cls.SCHEMA, version, cls._CLASSES)
        message: Self = decoder(buffer)
        return message

    def encode(self, version: int) -> list[MessageChunk]:
        """Return the message as chunks; each field of records becomes a separate chunk, and is not copied."""
        encoder = self._ENCODERS.get(version)
        if encoder is None:
            self._check_version(version)
            encoder = self._ENCODERS[version] = compile_encoder(self.SCHEMA, version, self._CLASSES)
        return encoder(self)

    def to_bytes(self, version: int) -> bytes:
        chunks = self.encode(version)
        return b"".join(chunk if isinstance(chunk, bytes | memoryview) else _read(chunk) for chunk in chunks)

    @classmethod
    def _check_version(cls, version: int) -> None:
        if version not in cls.VERSIONS:
            raise ProtocolError(
                f"{cls.__name__} has no version {version}; it has {cls.VERSIONS}", api=cls.__name__, version=version
            )


def message_class(schema: MessageSchema) -> type[Message]:
    name = schema.line.name
    classes: dict[str, type[Structure]] = {}
    for structure, fields in schema.structures.items():
        classes[structure] = _class(f"{name}.{structure}", Structure, fields, classes, {})
    attributes = {
        "API_KEY": -1 if schema.line.number is None else schema.line.number,
        "VERSIONS": schema.line.versions,
        "SCHEMA": schema,
        "_CLASSES": classes,
        "_DECODERS": {},
        "_ENCODERS": {},
        **classes,
    }
    made: type[Message] = _class(name, Message, schema.fields, classes, attributes)
    classes[name] = made
    return made


def _class(
    name: str,
    base: type[Any],
    fields: Sequence[FieldSchema],
    classes: Mapping[str, type],
    attributes: Mapping[str, Any],
) -> type[Any]:
    slots = tuple(field.attribute for field in fields)
    body = {**attributes, "FIELDS": fields, "__slots__": slots, "__init__": _constructor(fields, classes)}
    return type(name.rpartition(".")[2], (base,), {**body, "__module__": _MODULE, "__qualname__": name})


def _constructor(fields: Sequence[FieldSchema], classes: Mapping[str, type]) -> Callable[..., None]:
    parameters, lines = [], []
    names: dict[str, Any] = {"classes": classes, "NOT_GIVEN": object()}
    for number, field in enumerate(fields):
        attribute = field.attribute
        if has_new_structure(field):
            parameters.append(f"{attribute}=NOT_GIVEN")
            lines.append(f" self.{attribute} = classes['{field.type}']() if {attribute} is NOT_GIVEN else {attribute}")
        else:
            names[f"D{number}"] = default_of(field)
            parameters.append(f"{attribute}=D{number}")
            lines.append(f" self.{attribute} = {attribute}")
    heading = f"def __init__(self, *, {', '.join(parameters)}):" if fields else "def __init__(self):"
    exec("\n".join([heading, *(lines or [" pass"])]), names)
    made: Callable[..., None] = names["__init__"]
    return made


def _comparable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _printed(value: Any) -> str:
    if isinstance(value, bytes | bytearray | memoryview):
        return f"<{len(value)} bytes>"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_printed, value))}]"
    return repr(value)


def _read(chunk: Any) -> bytes:
    content: bytes = bytes(chunk) if isinstance(chunk, bytearray) else chunk.read()
    return content

"""The compiler for message schemas: it generates Python source of a decoder or encoder for one version of a message.

A generated function contains no calls for nested structures, because a call would take longer than the work on a field:

1. adjacent fields of fixed size become one `struct` format, together with a plain length that follows them
2. a structure is created without its constructor, and its attributes are set one by one
3. an array of structures becomes a loop; an array of numbers becomes one `struct` call
4. tagged fields become a loop over the tags in the message; if it has no tags, a single comparison is enough

    decode(buffer) -> message          b: the buffer, p: the position, e: the end
    encode(message) -> list of chunks  out: bytes since the last chunk

Invariants: a decoder checks every length and count against the remaining bytes before it allocates memory of that size.
The decoder of a request also limits the elements of all its arrays, because a handler works on each of them.  A decoder
converts the errors READ_ERRORS to ProtocolError; no other errors occur inside it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from sediment.segment_io.errors import ProtocolError
from sediment.segment_io.protocol import primitives
from sediment.segment_io.protocol.primitives import MAX_STRING_BYTES, ZERO_UUID, MalformedError
from sediment.segment_io.protocol.schema import FieldSchema, MessageSchema

READ_ERRORS = (ValueError, IndexError, struct.error)
WRITE_ERRORS = (ValueError, TypeError, AttributeError, OverflowError, struct.error)

_CODES = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "float64": "d",
}
MAX_REQUEST_ELEMENTS = 100_000
"""The largest number of elements that all arrays of a request may have together, with its tagged fields."""

_UUID_CODE = "16s"
_CONSTANTS = ("0", "-1", "1")  # expressions for absent tags, for null, and for a structure that is present
_SIZES_BYTES = {**{kind: struct.calcsize(f">{code}") for kind, code in _CODES.items()}, "uuid": 16}


def default_of(field: FieldSchema) -> Any:
    text = field.default
    if text == "null":
        return None
    if field.is_array:
        return ()
    match field.type:
        case "bool":
            return text.lower() == "true"
        case "string":
            return text
        case "bytes":
            return b""
        case "records":
            return None
        case "float64":
            return float(text or 0)
        case "uuid":
            return ZERO_UUID
        case _:
            return int(text or "0", 0)


def has_new_structure(field: FieldSchema) -> bool:
    return is_structure(field) and not field.is_array and field.default != "null"


def is_structure(field: FieldSchema) -> bool:
    return field.type[0].isupper()


def has_records(schema: MessageSchema) -> bool:
    return any(field.type == "records" for fields in (schema.fields, *schema.structures.values()) for field in fields)


# -------------------------------------------------------------------------------------------------------------- source
class _Source:
    def __init__(self, schema: MessageSchema, version: int, classes: Mapping[str, type]) -> None:
        self.schema = schema
        self.version = version
        self.flexible = version in schema.line.flexible_versions
        self.names: dict[str, Any] = {f"C_{name}": made for name, made in classes.items()}
        self._lines: list[str] = []
        self._depth = 0
        self._variables = 0

    def line(self, text: str) -> None:
        self._lines.append(" " * self._depth + text)

    @contextmanager
    def block(self, text: str) -> Iterator[None]:
        self.line(text)
        self._depth += 1
        yield
        self._depth -= 1

    def variable(self, prefix: str) -> str:
        self._variables += 1
        return f"{prefix}{self._variables}"

    def constant(self, prefix: str, value: Any) -> str:
        name = self.variable(prefix)
        self.names[name] = value
        return name

    def literal(self, value: Any) -> str:
        return self.constant("D", value) if isinstance(value, UUID | float) else repr(value)

    def present(self, fields: Sequence[FieldSchema]) -> list[FieldSchema]:
        return [field for field in fields if self.version in field.versions]

    def is_tagged(self, field: FieldSchema) -> bool:
        return self.version in field.tagged_versions

    def is_nullable(self, field: FieldSchema) -> bool:
        return self.version in field.nullable_versions

    def is_compact(self, field: FieldSchema) -> bool:
        return self.flexible and not field.never_flexible

    def function(self, name: str) -> Callable[[Any], Any]:
        source = "\n".join(self._lines)
        label = f"<{self.schema.line.name} version {self.version}>"
        exec(compile(source, label, "exec"), self.names)
        made: Callable[[Any], Any] = self.names[name]
        return made


def _failure(schema: MessageSchema, version: int, deed: str) -> Callable[..., ProtocolError]:
    name = schema.line.name

    def failure(error: Exception, position: int | None = None) -> ProtocolError:
        return ProtocolError(
            f"{name} version {version} cannot be {deed}: {error}", api=name, version=version, position=position
        )

    return failure


# ------------------------------------------------------------------------------------------------------------ decoding
def compile_decoder(
    schema: MessageSchema, version: int, classes: Mapping[str, type]
) -> Callable[[bytes | memoryview], Any]:
    source = _DecoderSource(schema, version, classes)
    source.names.update(
        malformed=MalformedError,
        errors=READ_ERRORS,
        failure=_failure(schema, version, "decoded"),
        new=object.__new__,
        unpack=struct.unpack_from,
        varint=primitives.read_unsigned_varint,
        long_length=primitives.read_long_length,
        long_string_length=primitives.read_long_string_length,
        skip_tags=primitives.skip_tagged_fields,
        uuid_of=primitives.uuid_of,
    )
    with source.block("def decode(b):"):
        source.line("p = 0")
        with source.block("try:"):
            # Records are returned as views, so `b` must be a view of the frame. Without records, slices of bytes are
            # faster.
            kind = "memoryview" if source.in_place else "bytes"
            source.line(f"if type(b) is not {kind}: b = {kind}(b)")
            source.line("e = len(b)")
            if source.is_request:
                source.line(f"left = {MAX_REQUEST_ELEMENTS}")
            source.line(f"o = new(C_{schema.line.name})")
            source.structure(schema.fields, "o")
            source.flush()
            if not source.is_request:  # brokers ignore bytes after a request, and librdkafka sends some
                source.line("if p != e: raise malformed(f'{e - p} bytes are left over')")
        with source.block("except errors as error:"):
            source.line("raise failure(error, p) from error")
        source.line("return o")
    return source.function("decode")


class _DecoderSource(_Source):
    """The source of a decoder.

    `run` contains the fixed-size fields for which no line was generated yet: code, target, and the line after the
    field.
    """

    def __init__(self, schema: MessageSchema, version: int, classes: Mapping[str, type]) -> None:
        super().__init__(schema, version, classes)
        self.in_place = has_records(schema)
        self.is_request = schema.line.kind == "request"
        self._run: list[tuple[str, str, str]] = []

    # The parts of a structure --------------------------------------------------------------------------------------
    def structure(self, fields: Sequence[FieldSchema], owner: str) -> None:
        present = self.present(fields)
        for field in present:
            if not self.is_tagged(field):
                self._field(field, f"{owner}.{field.attribute}")
        for field in fields:
            if field not in present or self.is_tagged(field):
                self._default(field, f"{owner}.{field.attribute}")
        if self.flexible:
            self._tagged_fields([field for field in fields if field.tag is not None], owner)

    def _default(self, field: FieldSchema, target: str) -> None:
        if has_new_structure(field):
            self.line(f"{target} = C_{field.type}()")
        else:
            self.line(f"{target} = {self.literal(default_of(field))}")

    def _tagged_fields(self, fields: Sequence[FieldSchema], owner: str) -> None:
        self.flush()
        self.line("n = b[p]; p += 1")
        if not fields:
            with self.block("if n:"):
                self.line("n, p = varint(b, p - 1)")
                self._count_elements()
                self.line("p = skip_tags(b, p, e, n)")
            return
        stop = self.variable("stop")
        with self.block("if n:"):
            self.line("n, p = varint(b, p - 1)")
            self._count_elements()
            with self.block("for _ in range(n):"):
                self.line("tag, p = varint(b, p)")
                self.line("n, p = varint(b, p)")
                self.line(f"{stop} = p + n")
                self.line(f"if {stop} > e: raise malformed('a tagged field is longer than its message')")
                for index, field in enumerate(fields):
                    with self.block(f"{'elif' if index else 'if'} tag == {field.tag}:"):
                        if self.is_tagged(field):
                            self._field(field, f"{owner}.{field.attribute}")
                            self.flush()
                        else:
                            self.line("raise malformed(f'tag {tag} is not valid in this version')")
                self.line(f"else: p = {stop}")
                self.line(f"if p != {stop}: raise malformed(f'tagged field {{tag}} does not have its announced size')")

    # Fields ----------------------------------------------------------------------------------------------------------
    def _field(self, field: FieldSchema, target: str) -> None:
        if field.is_array:
            self._array(field, target)
        elif is_structure(field):
            self._nested(field, target)
        elif field.type in _SIZES_BYTES:
            self._fixed(field, target)
        else:
            self._read_length(field)
            with self._unless_null(field, target):
                self._content(field.type, target)

    def _fixed(self, field: FieldSchema, target: str) -> None:
        if field.type == "uuid":
            raw = self.variable("u")
            self._run.append((_UUID_CODE, raw, f"{target} = uuid_of({raw})"))
        else:
            self._run.append((_CODES[field.type], target, ""))

    def flush(self) -> None:
        if not self._run:
            return
        layout = struct.Struct(">" + "".join(code for code, _, _ in self._run))
        unpack = self.constant("S", layout.unpack_from)
        targets = "".join(f"{target}, " for _, target, _ in self._run)
        self.line(f"{targets}= {unpack}(b, p); p += {layout.size}")
        for _, _, after in self._run:
            if after:
                self.line(after)
        self._run.clear()

    def _read_length(self, field: FieldSchema) -> None:
        """Read into `n` the length of text, bytes or records, or the number of elements; -1 or less means null."""
        self._read_length_of("array" if field.is_array else field.type, field)

    def _read_length_of(self, kind: str, field: FieldSchema) -> None:
        if self.is_compact(field):
            self._read_compact_length("long_string_length" if kind == "string" else "long_length")
        else:
            self._run.append(("h" if kind == "string" else "i", "n", ""))
            self.flush()

    def _read_compact_length(self, reader_of_long: str) -> None:
        self.flush()
        self.line("n = b[p] - 1; p += 1")
        self.line(f"if n > 126: n, p = {reader_of_long}(b, p)")

    @contextmanager
    def _unless_null(self, field: FieldSchema, target: str) -> Iterator[None]:
        if self.is_nullable(field):
            with self.block("if n < 0:"):
                self.line(f"{target} = None")
        else:
            with self.block("if n < 0:"):
                self.line(f"raise malformed('{field.name} is null')")
        with self.block("else:"):
            yield
            self.flush()

    def _content(self, kind: str, target: str) -> None:
        self.line("q = p + n")
        self.line("if q > e: raise malformed(f'{n} bytes are announced, but {e - p} are left')")
        match kind, self.in_place:
            case "string", True:
                self.line(f"{target} = b[p:q].tobytes().decode()")
            case "string", False:
                self.line(f"{target} = b[p:q].decode()")
            case "bytes", True:
                self.line(f"{target} = b[p:q].tobytes()")
            case _:
                self.line(f"{target} = b[p:q]")
        self.line("p = q")

    def _nested(self, field: FieldSchema, target: str) -> None:
        inner = self.variable("o")
        if not self.is_nullable(field):
            self.line(f"{target} = {inner} = new(C_{field.type})")
            self.structure(self.schema.structures[field.type], inner)
            return
        # A structure that may be null is preceded by a number.  A number below 0 means null; for a tagged structure, 0
        # also means null.
        if self.is_tagged(field):
            self._read_compact_length("long_length")
        else:
            self._run.append(("b", "n", ""))
            self.flush()
        with self._unless_null(field, target):
            self.line(f"{target} = {inner} = new(C_{field.type})")
            self.structure(self.schema.structures[field.type], inner)

    def _array(self, field: FieldSchema, target: str) -> None:
        self._read_length(field)
        with self._unless_null(field, target):
            least = self._least_bytes(field)
            left = "e - p" if least == 1 else f"(e - p) // {least}"
            self.line(f"if n > {left}: raise malformed(f'{{n}} elements are announced, but {{e - p}} bytes are left')")
            self._count_elements()
            if is_structure(field):
                self._structures(field, target)
            elif field.type in _CODES:
                code = _CODES[field.type]
                self.line(f"{target} = unpack(f'>{{n}}{code}', b, p); p += {_SIZES_BYTES[field.type]} * n")
            elif field.type == "uuid":
                self.line("q = p + 16 * n")
                self.line(f"{target} = [uuid_of(bytes(b[i:i + 16])) for i in range(p, q, 16)] if n else (); p = q")
            else:
                self._texts(field, target)

    def _count_elements(self) -> None:
        if self.is_request:
            self.line("left -= n")
            self.line(f"if left < 0: raise malformed('it has more than {MAX_REQUEST_ELEMENTS} elements')")

    def _structures(self, field: FieldSchema, target: str) -> None:
        elements, element = self.variable("a"), self.variable("o")
        self.line(f"{elements} = [] if n else ()")
        with self.block("for _ in range(n):"):
            self.line(f"{element} = new(C_{field.type})")
            self.structure(self.schema.structures[field.type], element)
            self.flush()
            self.line(f"{elements}.append({element})")
        self.line(f"{target} = {elements}")

    def _texts(self, field: FieldSchema, target: str) -> None:
        elements = self.variable("a")
        self.line(f"{elements} = [] if n else ()")
        with self.block("for _ in range(n):"):
            self._read_length_of(field.type, field)
            self.line(f"if n < 0: raise malformed('an element of {field.name} is null')")
            self._content(field.type, "x")
            self.line(f"{elements}.append(x)")
        self.line(f"{target} = {elements}")

    # Sizes -----------------------------------------------------------------------------------------------------------
    def _least_bytes(self, field: FieldSchema) -> int:
        if is_structure(field):
            return max(1, self._least_structure_bytes(self.schema.structures[field.type]))
        if field.type in _SIZES_BYTES:
            return _SIZES_BYTES[field.type]
        return self._least_length_bytes(field.type, field)

    def _least_length_bytes(self, kind: str, field: FieldSchema) -> int:
        if self.is_compact(field):
            return 1
        return 2 if kind == "string" else 4

    def _least_structure_bytes(self, fields: Sequence[FieldSchema]) -> int:
        size_bytes = 1 if self.flexible else 0
        for field in self.present(fields):
            if self.is_tagged(field):
                continue
            if field.is_array:
                size_bytes += self._least_length_bytes("array", field)
            elif is_structure(field):
                nullable = self.is_nullable(field)
                size_bytes += 1 if nullable else self._least_structure_bytes(self.schema.structures[field.type])
            elif field.type in _SIZES_BYTES:
                size_bytes += _SIZES_BYTES[field.type]
            else:
                size_bytes += self._least_length_bytes(field.type, field)
        return size_bytes


# ------------------------------------------------------------------------------------------------------------ encoding
def compile_encoder(schema: MessageSchema, version: int, classes: Mapping[str, type]) -> Callable[[Any], list[Any]]:
    source = _EncoderSource(schema, version, classes)
    source.names.update(
        malformed=MalformedError,
        errors=WRITE_ERRORS,
        failure=_failure(schema, version, "encoded"),
        pack=struct.pack,
        varint=primitives.write_unsigned_varint,
        records_size_bytes=primitives.records_size_bytes,
    )
    with source.block("def encode(o):"):
        with source.block("try:"):
            source.line("chunks = []; out = bytearray()")
            source.structure(schema.fields, "o")
            source.flush()
        with source.block("except errors as error:"):
            source.line("raise failure(error) from error")
        source.line("if out or not chunks: chunks.append(bytes(out))")
        source.line("return chunks")
    return source.function("encode")


class _EncoderSource(_Source):
    def __init__(self, schema: MessageSchema, version: int, classes: Mapping[str, type]) -> None:
        super().__init__(schema, version, classes)
        self._out = "out"
        self._run: list[tuple[str, str]] = []

    # The parts of a structure --------------------------------------------------------------------------------------
    def structure(self, fields: Sequence[FieldSchema], owner: str) -> None:
        present = self.present(fields)
        for field in fields:
            if field not in present and not field.ignorable:
                value = f"{owner}.{field.attribute}"
                self.line(
                    f"if {self._differs(field, value)}: raise malformed('{field.name} is not a field of this version')"
                )
        for field in present:
            if not self.is_tagged(field):
                self._field(field, f"{owner}.{field.attribute}")
        if self.flexible:
            tagged = [field for field in present if self.is_tagged(field)]
            self._tagged_fields(sorted(tagged, key=lambda field: field.tag or 0), owner)

    def _differs(self, field: FieldSchema, value: str) -> str:
        if has_new_structure(field):
            inner = self.variable("o")
            fields = self.schema.structures[field.type]
            parts = [self._differs(part, f"{inner}.{part.attribute}") for part in fields]
            return f"(({inner} := {value}) is None or {' or '.join(parts)})"
        default = default_of(field)
        if default == ():
            return f"({value} is None or len({value}) > 0)"
        if default is None:
            return f"{value} is not None"
        return f"{value} != {self.literal(default)}"

    def _tagged_fields(self, tagged: Sequence[FieldSchema], owner: str) -> None:
        if not tagged:
            self._run.append(("B", "0"))
            return
        conditions = [self._differs(field, f"{owner}.{field.attribute}") for field in tagged]
        self.flush()
        with self.block(f"if {' or '.join(conditions)}:"):
            flags = [self.variable("f") for _ in tagged]
            self.line(f"{', '.join(flags)}, = {', '.join(conditions)},")
            self.line(f"{self._out}.append({' + '.join(flags)})")
            for flag, field in zip(flags, tagged, strict=True):
                with self.block(f"if {flag}:"):
                    self._tagged_field(field, f"{owner}.{field.attribute}")
        self.line(f"else: {self._out}.append(0)")

    def _tagged_field(self, field: FieldSchema, value: str) -> None:
        outside, self._out = self._out, self.variable("t")
        self.line(f"{self._out} = bytearray()")
        self._field(field, value)
        self.flush()
        content, self._out = self._out, outside
        tag = self.constant("T", primitives.write_unsigned_varint(field.tag or 0))
        self.line(f"{self._out} += {tag} + varint(len({content})) + {content}")

    # Fields ----------------------------------------------------------------------------------------------------------
    def _field(self, field: FieldSchema, value: str) -> None:
        if field.is_array:
            self._array(field, value)
        elif is_structure(field):
            self._nested(field, value)
        elif field.type == "uuid":
            self._run.append((_UUID_CODE, f"{value}.int.to_bytes(16)"))
        elif field.type in _CODES:
            self._run.append((_CODES[field.type], value))
        elif field.type == "records":
            self._records(field, value)
        else:
            self._content(field, value)

    def flush(self) -> None:
        if not self._run:
            return
        layout = struct.Struct(">" + "".join(code for code, _ in self._run))
        expressions = [expression for _, expression in self._run]
        if all(expression in _CONSTANTS for expression in expressions):
            self.line(f"{self._out} += {layout.pack(*map(int, expressions))!r}")
        else:
            self.line(f"{self._out} += {self.constant('S', layout.pack)}({', '.join(expressions)})")
        self._run.clear()

    def _length(self, field: FieldSchema, length: str, code: str) -> None:
        if not self.is_compact(field):
            self._run.append((code, length))
            self.flush()
            return
        self.flush()
        self.line(f"if {length} < 127: {self._out}.append({length} + 1)")
        self.line(f"else: {self._out} += varint({length} + 1)")

    @contextmanager
    def _unless_null(self, field: FieldSchema, value: str, code: str) -> Iterator[None]:
        """Encode null as a length of -1; for any other value, run the lines that the `with` block adds."""
        if not self.is_nullable(field):
            yield
            return
        self.flush()
        with self.block(f"if {value} is None:"):
            has_length = field.is_array or not is_structure(field)
            is_zero = self.is_compact(field) if has_length else self.is_tagged(field)
            self._run.append(("B", "0") if is_zero else (code, "-1"))
            self.flush()
        with self.block("else:"):
            yield
            self.flush()

    def _content(self, field: FieldSchema, value: str) -> None:
        code = "h" if field.type == "string" else "i"
        with self._unless_null(field, value, code):
            text = self.variable("s")
            if field.type == "string":
                self.line(f"{text} = {value}.encode(); n = len({text})")
                self.line(f"if n > {MAX_STRING_BYTES}: raise malformed('{field.name} is too long')")
            else:
                self.line(f"{text} = {value}; n = len({text})")
            self._length(field, "n", code)
            self.line(f"{self._out} += {text}")

    def _records(self, field: FieldSchema, value: str) -> None:
        with self._unless_null(field, value, "i"):
            self.line(f"r = {value}; n = len(r) if type(r) is bytes else records_size_bytes(r)")
            self._length(field, "n", "i")
            self.line("if n: chunks.append(bytes(out)); chunks.append(r); out = bytearray()")

    def _nested(self, field: FieldSchema, value: str) -> None:
        inner = self.variable("o")
        with self._unless_null(field, value, "b"):
            if self.is_nullable(field):
                self._run.append(("b", "1"))
            self.line(f"{inner} = {value}")
            self.structure(self.schema.structures[field.type], inner)

    def _array(self, field: FieldSchema, value: str) -> None:
        with self._unless_null(field, value, "i"):
            elements = self.variable("a")
            self.line(f"{elements} = {value}; n = len({elements})")
            self._length(field, "n", "i")
            if field.type in _CODES:
                self.line(f"{self._out} += pack(f'>{{n}}{_CODES[field.type]}', *{elements})")
                return
            element = self.variable("o")
            with self.block(f"for {element} in {elements}:"):
                if is_structure(field):
                    self.structure(self.schema.structures[field.type], element)
                elif field.type == "uuid":
                    self.line(f"{self._out} += {element}.int.to_bytes(16)")
                else:
                    self._element(field, element)
                self.flush()

    def _element(self, field: FieldSchema, element: str) -> None:
        if field.type == "string":
            self.line(f"{element} = {element}.encode(); n = len({element})")
            self.line(f"if n > {MAX_STRING_BYTES}: raise malformed('an element of {field.name} is too long')")
        else:
            self.line(f"n = len({element})")
        self._length(field, "n", "h" if field.type == "string" else "i")
        self.line(f"{self._out} += {element}")

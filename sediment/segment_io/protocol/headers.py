"""Headers of requests and responses.

    request     api key i16 | api version i16 | correlation id i32 | client id, nullable string | tagged fields
    response    correlation id i32 | tagged fields

The length of the client id is never compact.  Only flexible versions of an API have tagged fields.  A response to
ApiVersions never has tagged fields, because the client does not know the server's versions yet (KIP-511).
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from sediment.segment_io.errors import ProtocolError
from sediment.segment_io.protocol.api_keys import ApiKey, request_lines
from sediment.segment_io.protocol.primitives import MalformedError, read_unsigned_varint, skip_tagged_fields

_REQUEST = struct.Struct(">hhih")
_RESPONSE = struct.Struct(">i")
_NO_TAGGED_FIELDS = b"\0"
_NULL = -1
_MOST_TAGGED_FIELDS = 1000


class RequestHeader(NamedTuple):
    """`api_version` may be an unsupported version."""

    api_key: ApiKey
    api_version: int
    correlation_id: int
    client_id: str | None
    body: memoryview


def decode_request_header(frame: bytes | bytearray | memoryview) -> RequestHeader:
    buffer = memoryview(frame)
    try:
        number, version, correlation_id, length = _REQUEST.unpack_from(buffer)
    except struct.error as error:
        raise ProtocolError("a request ends inside its header", position=0) from error
    try:
        api_key = ApiKey(number)
    except ValueError as error:
        raise ProtocolError(f"API key {number} is unknown", version=version, position=0) from error
    position = _REQUEST.size
    try:
        client_id = None
        if length != _NULL:
            end = position + length
            if length < 0 or end > len(buffer):
                raise MalformedError(f"a client id of {length} bytes is announced")
            client_id = str(buffer[position:end], "utf-8")
            position = end
        if is_flexible(api_key, version):
            position += 1
            if buffer[position - 1]:
                count, position = read_unsigned_varint(buffer, position - 1)
                if count > _MOST_TAGGED_FIELDS:
                    raise MalformedError(f"{count} tagged fields are announced")
                position = skip_tagged_fields(buffer, position, len(buffer), count)
    except (ValueError, IndexError) as error:
        raise ProtocolError(
            f"the header of a request {api_key.name} version {version} is malformed: {error}",
            api=api_key.name,
            version=version,
            position=position,
        ) from error
    return RequestHeader(api_key, version, correlation_id, client_id, buffer[position:])


def encode_response_header(api_key: int, api_version: int, correlation_id: int) -> bytes:
    has_tagged_fields = api_key != ApiKey.API_VERSIONS and is_flexible(api_key, api_version)
    return _RESPONSE.pack(correlation_id) + (_NO_TAGGED_FIELDS if has_tagged_fields else b"")


def is_flexible(api_key: int, version: int) -> bool:
    return version in request_lines()[api_key].flexible_versions

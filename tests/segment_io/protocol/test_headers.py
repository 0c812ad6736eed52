from __future__ import annotations

import contextlib

import pytest

from sediment.segment_io.errors import ProtocolError
from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.api_keys import (
    ApiKey,
    advertised_versions,
    request_class,
    supported_versions,
)
from sediment.segment_io.protocol.headers import decode_request_header, encode_response_header, is_flexible
from sediment.segment_io.protocol.primitives import write_unsigned_varint
from sediment.segment_io.protocol.schema import VersionRange
from tests.response_classes import response_class


def request(api_key: ApiKey, version: int, client_id: str | None) -> bytes:
    header = m.RequestHeader(
        request_api_key=api_key, request_api_version=version, correlation_id=-7, client_id=client_id
    )
    return header.to_bytes(2 if is_flexible(api_key, version) else 1)


@pytest.mark.parametrize("api_key", ApiKey)
@pytest.mark.parametrize("client_id", [None, "", "zürich"])
def test_a_request_header_is_read_as_its_schema_says_in_every_version(api_key, client_id):
    for version in request_class(api_key).VERSIONS:
        header = decode_request_header(request(api_key, version, client_id) + b"body")
        found = (header.api_key, header.api_version, header.correlation_id, header.client_id, bytes(header.body))
        assert found == (api_key, version, -7, client_id, b"body")


@pytest.mark.parametrize("api_key", ApiKey)
def test_a_response_header_is_written_as_its_schema_says_except_for_api_versions(api_key):
    for version in response_class(api_key).VERSIONS:
        header_version = int(is_flexible(api_key, version) and api_key != ApiKey.API_VERSIONS)
        expected = m.ResponseHeader(correlation_id=9).to_bytes(header_version)
        assert encode_response_header(api_key, version, 9) == expected


def test_unknown_tagged_fields_of_a_header_are_passed_over():
    frame = request(ApiKey.FETCH, 12, "a")[:-1] + b"\2" + b"\0\1x" + b"\x85\1\2yz" + b"body"
    assert bytes(decode_request_header(frame).body) == b"body"


def test_a_header_has_a_limited_number_of_tagged_fields():
    for count, is_refused in ((1000, False), (1001, True)):
        frame = request(ApiKey.FETCH, 12, "a")[:-1] + write_unsigned_varint(count) + b"\0\0" * count + b"body"
        with pytest.raises(ProtocolError, match="1001 tagged fields") if is_refused else contextlib.nullcontext():
            assert bytes(decode_request_header(frame).body) == b"body"


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        request(ApiKey.FETCH, 12, None)[:-1],
        request(ApiKey.FETCH, 12, "abc")[:-2],
        request(ApiKey.FETCH, 4, "abc")[:-1],
        request(ApiKey.METADATA, 1, "abc").replace(b"abc", b"ab\xff"),
        request(ApiKey.METADATA, 1, None).replace(b"\xff\xff", b"\xff\xfe"),
        request(ApiKey.FETCH, 12, "abc")[:-1] + b"\1\0\5abc",
        b"\x7f\xff" + bytes(8),
        b"\0\4" + bytes(8),
    ],
)
def test_a_malformed_header_is_an_error_with_its_position(frame):
    with pytest.raises(ProtocolError) as raised:
        decode_request_header(frame)
    assert raised.value.position is not None


def test_a_version_that_is_not_supported_has_a_header_all_the_same():
    assert decode_request_header(request(ApiKey.API_VERSIONS, 99, "a")).api_version == 99


def test_produce_is_offered_from_version_0_and_unstable_versions_are_not():
    assert advertised_versions(ApiKey.PRODUCE) == VersionRange(0, 13)
    assert supported_versions(ApiKey.PRODUCE) == VersionRange(3, 13)
    assert advertised_versions(ApiKey.INIT_PRODUCER_ID) == VersionRange(0, 5)
    assert advertised_versions(ApiKey.FETCH) == VersionRange(4, 18)

"""Dispatch of requests to their handlers, and the response to ApiVersions (Kafka's KafkaApis).

    1. pass a SASL token to the authenticator of its connection
    2. if the bytes repeat a request that a handler remembers, respond without decoding the request
    3. decode the header; if the API or its version is unknown, close the connection.  Only an unknown version of
       ApiVersions gets a response, with the supported versions
    4. before authentication, accept only ApiVersions and the two SASL requests
    5. decode the body and call the handler

Invariant: `handle` raises nothing. If a handler raises an error, the connection is closed.

Source: Kafka's KafkaApis, ApiVersionManager and SaslServerAuthenticator.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sediment.segment_io.errors import ProtocolError
from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.api_keys import ApiKey, advertised_versions, request_class, supported_versions
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.segment_io.protocol.headers import decode_request_header
from sediment.segment_io.protocol.schema import VersionRange
from sediment.server.network.request_channel import ReceivedFrame
from sediment.server.repeated import RepeatedRequest
from sediment.server.request_metrics import request_name
from sediment.server.requests import Handler, Request, RequestTimes

BEFORE_AUTHENTICATION = frozenset({ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})
"""APIs that are allowed before authentication."""

_FIRST_VERSION_WITH_SOFTWARE = 3
_FIRST_VERSION_WITH_LEVEL_0 = 4  # clients with lower versions reject a range that begins at 0 (KAFKA-17011)
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_SHOWN_CHARACTERS = 100


@dataclass(frozen=True, slots=True)
class Features:
    supported: Mapping[str, tuple[int, int]]
    finalized: Mapping[str, int]
    epoch: int = -1


@dataclass(frozen=True, slots=True)
class _Api:
    decode: Any
    versions: VersionRange
    handler: Handler


class KafkaApis:
    """Handlers of all APIs by key; clients are not told of those in `unadvertised`, but get a response from them."""

    def __init__(
        self, handlers: Mapping[ApiKey, Handler], features: Features, unadvertised: frozenset[ApiKey] = frozenset()
    ) -> None:
        all_handlers = {**handlers, ApiKey.API_VERSIONS: self._handle_api_versions}
        self._apis = {
            key: _Api(request_class(key).decode, supported_versions(key), handler)
            for key, handler in all_handlers.items()
        }
        advertised = sorted(all_handlers.keys() - unadvertised)
        self._api_versions = _api_versions_response(advertised, features)
        from_level_1 = {name: levels for name, levels in features.supported.items() if levels[0]}
        self._older_api_versions = _api_versions_response(advertised, replace(features, supported=from_level_1))

    def handle(self, received: ReceivedFrame) -> None:
        request: Request | None = None
        try:
            connection = received.channel.connection
            authenticator = connection.authenticator
            if authenticator is not None and authenticator.expects_token:
                authenticator.accept_token(bytes(received.frame), received.channel)
                return
            if connection.repeated is not None and self._answer_again(connection.repeated, received):
                return
            request = self._decode(received)
            if request is None:
                return
            response = self._apis[request.api_key].handler(request)
            if response is None:
                request.times.handled_ns = time.monotonic_ns()
                request.release()
            else:
                request.respond(response)
        except Exception as error:
            if request is None:
                received.channel.close(None, error)
            else:
                request.fail(error)

    @staticmethod
    def _answer_again(repeated: RepeatedRequest, received: ReceivedFrame) -> bool:
        """Respond to a frame that repeats the request `repeated`; return False if the frame differs."""
        dequeued_ns = time.monotonic_ns()
        answer = repeated.answer(received.frame)
        if answer is None:
            return False
        correlation_id, chunks = answer
        channel = received.channel
        request = Request(
            api_key=repeated.api_key,
            api_version=repeated.api_version,
            correlation_id=correlation_id,
            client_id=repeated.client_id,
            message=None,
            connection=channel.connection,
            size_bytes=len(received.frame),
            times=RequestTimes(received.received_ns, dequeued_ns),
            channel=channel,
        )
        request.respond_encoded(chunks)
        return True

    def _decode(self, received: ReceivedFrame) -> Request | None:
        """Return the request, or None if it has already been answered."""
        times = RequestTimes(received.received_ns, time.monotonic_ns())
        header = decode_request_header(received.frame)
        connection = received.channel.connection
        if not connection.is_authenticated and header.api_key not in BEFORE_AUTHENTICATION:
            raise ProtocolError(f"{request_name(header.api_key)} came before authentication", api=header.api_key.name)
        api = self._apis.get(header.api_key)
        is_supported = api is not None and header.api_version in api.versions
        if not is_supported and header.api_key is not ApiKey.API_VERSIONS:
            raise ProtocolError(
                f"{request_name(header.api_key)} version {header.api_version} is not offered",
                api=header.api_key.name,
                version=header.api_version,
            )
        message = api.decode(header.body, header.api_version) if api is not None and is_supported else None
        request = Request(
            api_key=header.api_key,
            api_version=header.api_version,
            correlation_id=header.correlation_id,
            client_id=header.client_id,
            message=message,
            connection=connection,
            size_bytes=len(received.frame),
            times=times,
            channel=received.channel,
            frame=received.frame,
        )
        if not is_supported:
            request.respond(_unsupported_api_versions(), version=0)
            return None
        return request

    def _handle_api_versions(self, request: Request) -> Any:
        if request.api_version >= _FIRST_VERSION_WITH_SOFTWARE:
            name, version = request.message.client_software_name, request.message.client_software_version
            if not (_SOFTWARE.fullmatch(name) and _SOFTWARE.fullmatch(version)):
                return m.ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
            request.connection.client_software = f"{name}-{version}"[:_SHOWN_CHARACTERS]
        return self._older_api_versions if request.api_version < _FIRST_VERSION_WITH_LEVEL_0 else self._api_versions


def _api_versions_response(keys: list[ApiKey], features: Features) -> Any:
    response = m.ApiVersionsResponse
    ranges = {key: advertised_versions(key) for key in keys}
    return response(
        api_keys=[
            response.ApiVersion(api_key=key, min_version=versions.lowest_version, max_version=versions.highest_version)
            for key, versions in ranges.items()
        ],
        supported_features=[
            response.SupportedFeatureKey(name=name, min_version=lowest, max_version=highest)
            for name, (lowest, highest) in features.supported.items()
        ],
        finalized_features_epoch=features.epoch,
        finalized_features=[
            response.FinalizedFeatureKey(name=name, min_version_level=level, max_version_level=level)
            for name, level in features.finalized.items()
        ],
    )


def _unsupported_api_versions() -> Any:
    """The response has version 0, and lists only ApiVersions."""
    versions = advertised_versions(ApiKey.API_VERSIONS)
    own = m.ApiVersionsResponse.ApiVersion(
        api_key=ApiKey.API_VERSIONS, min_version=versions.lowest_version, max_version=versions.highest_version
    )
    return m.ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[own])

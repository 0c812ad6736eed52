"""Roles of the socket server over real sockets: order, muting, the queue, and the end."""

from __future__ import annotations

from sediment.segment_io.protocol.api_keys import ApiKey
from tests.server.listeners import api_versions, listener


def test_a_client_gets_the_versions_of_every_api_that_has_a_handler():
    with listener() as running, running.connect() as client:
        response = client.ask(api_versions(), 4)
        ranges = {each.api_key: (each.min_version, each.max_version) for each in response.api_keys}
    assert response.error_code == 0
    assert ranges == {ApiKey.SASL_HANDSHAKE: (0, 1), ApiKey.API_VERSIONS: (0, 4), ApiKey.SASL_AUTHENTICATE: (0, 2)}

"""The rule for addresses that other machines reach."""

from __future__ import annotations

import pytest

from sediment.segment_io.errors import UsageError
from sediment.server.network.endpoints import Endpoint
from sediment.server.security.credentials import Credentials
from sediment.server.security.exposure import choose_credentials, security_protocol
from tests.server.security.test_credentials import credential

LOOPBACK, OTHER, EVERY = Endpoint("127.0.0.1", 1), Endpoint("192.0.2.7", 1), Endpoint("0.0.0.0", 1)
FILE = Credentials({("SCRAM-SHA-256", "alice"): credential("a")})
CLUSTER = Credentials({("SCRAM-SHA-256", "bob"): credential("b")})


@pytest.mark.parametrize(
    ("bound", "from_file", "of_cluster", "has_tls", "insecure", "chosen"),
    [
        (LOOPBACK, None, None, False, False, None),
        (LOOPBACK, None, CLUSTER, False, False, None),
        (LOOPBACK, FILE, CLUSTER, False, False, FILE),
        (LOOPBACK, None, CLUSTER, True, False, None),
        (OTHER, FILE, CLUSTER, True, False, FILE),
        (OTHER, None, CLUSTER, True, False, CLUSTER),
        (EVERY, None, CLUSTER, False, True, None),
        (OTHER, FILE, None, False, True, FILE),
    ],
)
def test_the_credentials_of_a_listener(bound, from_file, of_cluster, has_tls, insecure, chosen):
    assert choose_credentials(bound, from_file, of_cluster, has_tls=has_tls, insecure=insecure) is chosen


@pytest.mark.parametrize(
    ("bound", "from_file", "has_tls", "missing"),
    [
        (OTHER, None, False, "--tls-cert and --tls-key and --users FILE"),
        (OTHER, FILE, False, "--tls-cert and --tls-key, or give --insecure"),
        (EVERY, None, True, "--users FILE"),
    ],
)
def test_other_machines_need_tls_and_sasl(bound, from_file, has_tls, missing):
    with pytest.raises(UsageError) as error:
        choose_credentials(bound, from_file, None, has_tls=has_tls, insecure=False)
    assert missing in str(error.value)


def test_protocols_have_the_names_of_kafka():
    names = {security_protocol(has_tls=tls, has_users=users) for tls in (False, True) for users in (False, True)}
    assert names == {"PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"}

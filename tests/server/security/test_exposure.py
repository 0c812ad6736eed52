"""The rule for addresses that other machines reach."""

from __future__ import annotations

import pytest

from sediment.segment_io.errors import UsageError
from sediment.server.network.endpoints import Endpoint
from sediment.server.security.credentials import Credentials
from sediment.server.security.exposure import check_exposure, choose_credentials, security_protocol
from tests.server.security.scram_users import credential

LOOPBACK, OTHER, EVERY = Endpoint("127.0.0.1", 1), Endpoint("192.0.2.7", 1), Endpoint("0.0.0.0", 1)


def users(**passwords):
    made = Credentials({("SCRAM-SHA-256", name): credential(password) for name, password in passwords.items()})
    return lambda: made


FILE, CLUSTER, NOBODY = users(alice="a"), users(bob="b"), users()


@pytest.mark.parametrize(
    ("bound", "from_file", "of_cluster", "insecure", "chosen"),
    [
        (LOOPBACK, None, NOBODY, False, None),
        (LOOPBACK, None, CLUSTER, False, None),
        (LOOPBACK, FILE, CLUSTER, False, FILE),
        (OTHER, FILE, CLUSTER, False, FILE),
        (OTHER, None, CLUSTER, False, CLUSTER),
        (EVERY, None, CLUSTER, True, None),
        (OTHER, FILE, NOBODY, True, FILE),
    ],
)
def test_the_credentials_of_a_listener(bound, from_file, of_cluster, insecure, chosen):
    assert choose_credentials(bound, from_file, of_cluster, insecure=insecure) is chosen


@pytest.mark.parametrize(
    ("bound", "has_tls", "insecure"), [(LOOPBACK, False, False), (OTHER, True, False), (EVERY, False, True)]
)
def test_the_loopback_tls_and_insecure_are_enough_before_the_users_are_known(bound, has_tls, insecure):
    check_exposure(bound, has_tls=has_tls, has_users=False, insecure=insecure)


@pytest.mark.parametrize(
    ("has_users", "missing"),
    [
        (False, "--tls-cert and --tls-key and --users FILE"),
        (True, "--tls-cert and --tls-key, or give --insecure"),
    ],
)
def test_other_machines_need_tls(has_users, missing):
    with pytest.raises(UsageError) as error:
        check_exposure(OTHER, has_tls=False, has_users=has_users, insecure=False)
    assert missing in str(error.value)


def test_other_machines_need_sasl():
    with pytest.raises(UsageError, match=r"--users FILE \(the cluster has no SCRAM users\)"):
        choose_credentials(EVERY, None, NOBODY, insecure=False)


def test_protocols_have_the_names_of_kafka():
    names = {security_protocol(has_tls=tls, has_users=users) for tls in (False, True) for users in (False, True)}
    assert names == {"PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"}

"""The rule for addresses that other machines can reach: such an address needs TLS and SASL, or `--insecure`.

address            given                                       protocol
loopback           nothing                                     PLAINTEXT
any                a certificate                               SSL, or SASL_SSL with users
loopback           users                                       SASL_PLAINTEXT, or SASL_SSL with a certificate
other              a certificate, and users from the file      SASL_SSL
                   or the cluster
other              `--insecure`                                as for loopback, by certificate and users file
"""

from __future__ import annotations

from sediment.segment_io.errors import UsageError
from sediment.server.network.endpoints import Endpoint
from sediment.server.security.credentials import CredentialSource


def check_exposure(bound: Endpoint, *, has_tls: bool, has_users: bool, insecure: bool) -> None:
    """Check the part of the rule that needs no log directory; `has_users` is True if a users file is given."""
    if not (bound.is_loopback or insecure or has_tls):
        users = "" if has_users else " and --users FILE (not needed if the cluster has SCRAM users)"
        raise _exposed(bound, f"--tls-cert and --tls-key{users}")


def choose_credentials(
    bound: Endpoint, from_file: CredentialSource | None, of_cluster: CredentialSource, *, insecure: bool
) -> CredentialSource | None:
    if bound.is_loopback or insecure:
        return from_file
    if from_file is None and not len(of_cluster()):
        raise _exposed(bound, "--users FILE (the cluster has no SCRAM users)")
    return from_file or of_cluster


def _exposed(bound: Endpoint, missing: str) -> UsageError:
    return UsageError(
        f"other machines can reach --listen {bound}, and could read everything (without --read-only, also delete it)",
        advice=f"give {missing}, or give --insecure",
    )


def security_protocol(*, has_tls: bool, has_users: bool) -> str:
    return f"{'SASL_' if has_users else ''}{'SSL' if has_tls else 'PLAINTEXT'}"

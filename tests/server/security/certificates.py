"""A certificate authority of the tests, and a certificate for `localhost`."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import trustme


@dataclass(frozen=True)
class Certificates:
    certificate: Path
    key: Path
    authority: Path

    def client_context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.authority))


@cache
def _authority() -> tuple[trustme.CA, trustme.LeafCert]:
    authority = trustme.CA()
    return authority, authority.issue_cert("localhost", "127.0.0.1")


def write_certificates(directory: Path) -> Certificates:
    """Write certificate chain, key and authority as PEM files."""
    authority, leaf = _authority()
    files = Certificates(directory / "cert.pem", directory / "key.pem", directory / "ca.pem")
    files.certificate.write_bytes(b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
    files.key.touch(mode=0o600)
    leaf.private_key_pem.write_to_path(str(files.key))
    authority.cert_pem.write_to_path(str(files.authority))
    return files

"""The TLS context of the listener."""

from __future__ import annotations

import logging
import ssl
from datetime import UTC, datetime
from pathlib import Path

from sediment.segment_io.errors import UsageError
from sediment.segment_io.safe_paths import warn_of_readers

_MOST_BYTES = 1 << 20
_DATE = "%Y-%m-%d %H:%M:%S UTC"
_LOGGER = logging.getLogger(__name__)


def server_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """Return a context for TLS 1.2 and 1.3 from two PEM files, `certificate` with the chain and `key` with the key."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_IGNORE_UNEXPECTED_EOF
    for option, file in (("--tls-cert", certificate), ("--tls-key", key)):
        if not file.is_file():
            raise UsageError(f"{option} does not name a file", path=str(file))
        if file.stat().st_size > _MOST_BYTES:
            raise UsageError(f"{option} is larger than {_MOST_BYTES} bytes", path=str(file))
    warn_of_readers(key, "--tls-key")
    try:
        context.load_cert_chain(certificate, key, password=_refuse_password)
    except OSError as error:  # ssl.SSLError is a subclass
        # OpenSSL gives no reason for a file without a PEM block.
        what = error.reason or "not in PEM" if isinstance(error, ssl.SSLError) else error.strerror
        raise UsageError(
            f"certificate and key cannot be used: {_words(what or str(error))}",
            path=str(certificate),
            advice="give a certificate chain with --tls-cert and its key with --tls-key, both in PEM",
        ) from error
    _warn_of_dates(certificate)
    return context


def _warn_of_dates(file: Path) -> None:
    """Warn of the first certificate of the chain that clients refuse because of its dates."""
    from cryptography.x509 import load_pem_x509_certificates

    try:
        chain = load_pem_x509_certificates(file.read_bytes())
    except ValueError:
        return  # OpenSSL accepts more than this parser
    now = datetime.now(UTC)
    for each in chain:
        first, last = each.not_valid_before_utc, each.not_valid_after_utc
        if first <= now <= last:
            continue
        what = f"expired at {last:{_DATE}}" if last < now else f"is not valid before {first:{_DATE}}"
        _LOGGER.warning("a certificate of --tls-cert %s (%s), so clients refuse it; renew it", what, file)
        return


def _words(reason: str) -> str:
    return reason.replace("_", " ").lower() if reason.isupper() else reason


def _refuse_password() -> str:
    raise UsageError("--tls-key has a password", advice="use a key without a password in a file that only you can read")

"""The signed envelope of evidence: DSSE with an Ed25519 key, a format that other attestation tools can read.

    {"payload": base64, "payloadType": PAYLOAD_TYPE, "signatures": [{"keyid": …, "sig": base64}]}

The signature covers the type and the payload.

Source: the Dead Simple Signing Envelope, version 1.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sediment.jobs.process.input_files import MOST_TEXT_BYTES, read_input_file
from sediment.segment_io.errors import UsageError
from sediment.segment_io.safe_paths import warn_of_readers

if TYPE_CHECKING:
    from securesystemslib.signer import CryptoSigner, SSlibKey

PAYLOAD_TYPE = "application/vnd.sediment.erasure+json"

_MAKE_KEYS = "make a key pair with: openssl genpkey -algorithm ed25519 -out key.pem; openssl pkey -in key.pem -pubout"


class BadEnvelopeError(Exception):
    """The envelope is malformed, has another type, or was not signed with the key."""


def load_signer(file: Path) -> CryptoSigner:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
    from securesystemslib.signer import CryptoSigner

    warn_of_readers(file, "--signing-key")
    content = read_input_file(file, MOST_TEXT_BYTES, "--signing-key", advice=_MAKE_KEYS)
    try:
        key = load_pem_private_key(content, password=None)
    except (ValueError, TypeError):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise UsageError(
            "--signing-key is not a private Ed25519 key in PEM without a password", path=str(file), advice=_MAKE_KEYS
        )
    return CryptoSigner(key)


def load_public_key(file: Path) -> SSlibKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key
    from securesystemslib.signer import SSlibKey

    content = read_input_file(file, MOST_TEXT_BYTES, "--public-key", advice=_MAKE_KEYS)
    try:
        key = load_pem_public_key(content)
    except ValueError:
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise UsageError("--public-key is not a public Ed25519 key in PEM", path=str(file), advice=_MAKE_KEYS)
    return SSlibKey.from_crypto(key)


def signed(document: dict[str, Any], signer: CryptoSigner) -> bytes:
    from securesystemslib.dsse import Envelope

    envelope = Envelope(json.dumps(document, indent=1).encode(), PAYLOAD_TYPE, {})
    envelope.sign(signer)
    return json.dumps(envelope.to_dict(), indent=1).encode() + b"\n"


def verified(content: bytes, key: SSlibKey) -> Any:
    from securesystemslib.dsse import Envelope
    from securesystemslib.exceptions import FormatError, VerificationError

    try:
        envelope = Envelope.from_dict(json.loads(content))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, FormatError) as error:
        raise BadEnvelopeError("the file is not a DSSE envelope") from error
    if envelope.payload_type != PAYLOAD_TYPE:
        raise BadEnvelopeError(f"the payload has another type than {PAYLOAD_TYPE}")
    try:
        envelope.verify([key], threshold=1)
    except VerificationError as error:
        raise BadEnvelopeError(
            "this evidence was not signed with the key pair of --public-key, or it was changed after it was signed"
        ) from error
    try:
        return json.loads(envelope.payload)
    except (ValueError, RecursionError) as error:
        raise BadEnvelopeError("the payload is not JSON") from error

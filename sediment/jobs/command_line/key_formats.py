"""Formats in which options and files give record keys.

text      UTF-8
hex       two hexadecimal digits for each byte
base64    base64 with its padding
"""

from __future__ import annotations

import base64
import binascii

from sediment.segment_io.errors import UsageError

TEXT, HEX, BASE64 = "text", "hex", "base64"
KEY_FORMATS = (TEXT, HEX, BASE64)

KEY_FORMAT_ADVICE = {
    TEXT: "write UTF-8, or use --key-format hex",
    HEX: "write two hexadecimal digits for each byte",
    BASE64: "write base64 with its padding",
}


def decode_key(content: bytes, key_format: str) -> bytes:
    """Decode the key in `content`, whose format is one of KEY_FORMATS.

    Raises:
        ValueError: `content` is not in this format; the text of the error may quote it.
    """
    if key_format == HEX:
        return binascii.unhexlify(content.strip())
    if key_format == BASE64:
        return base64.b64decode(content.strip(), validate=True)
    content.decode()
    return content


def parse_key(content: bytes, key_format: str, option: str) -> bytes:
    """Return the key that an option gives.

    Raises:
        UsageError: `content` is not in `key_format`; the error does not quote it.
    """
    try:
        return decode_key(content, key_format)
    except ValueError:  # no cause, because its text would quote the key
        advice = KEY_FORMAT_ADVICE[key_format]
        raise UsageError(f"a key of {option} is not in format {key_format}", advice=advice) from None

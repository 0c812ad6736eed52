"""URIs of directories without what only their owner may see."""

from __future__ import annotations

import re

# A Path has one slash after the scheme.  A secret may contain a slash that its owner did not escape; a port has digits.
_USER = re.compile(
    r"(?<![\w./+-])([A-Za-z][A-Za-z0-9+.-]+:/{1,2})(?:[^/?\s'\"]*@|[^/?:\[\s'\"]+:(?!\d+(?:[/?]|$))[^?\s'\"]*@)"
)
_QUERY = re.compile(r"(?<![\w./+-])([A-Za-z][A-Za-z0-9+.-]+:/{1,2}[^?#\s'\"]*)[?#][^\s'\"]*")


def without_credentials(text: str) -> str:
    """Return a path, a URI, or a text that contains a URI, without the user, secret and query of the URI."""
    return _QUERY.sub(r"\1", _USER.sub(r"\1", text))

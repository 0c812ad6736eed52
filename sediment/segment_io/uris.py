"""URIs as messages and reports show them: a URI may contain a password, which no message may show."""

from __future__ import annotations

import re

_SCHEME = r"([A-Za-z][A-Za-z0-9+.-]+:/{1,2})"  # a Path turns :// into :/
_USER = re.compile(_SCHEME + r"(?:[^\s/?]*|[^\s/?@:]*:(?!\d+(?:[/?\s]|$))[^\s?@]*)@")  # a password may contain a slash
_QUERY = re.compile(_SCHEME + r"([^\s?]*)\?\S*?(?=[)\]}>'\",;.:]*(?:\s|$))")


def without_credentials(text: str) -> str:
    """Return `text` with each URI in it, also one that a `Path` shortened, without its user, password and query."""
    return _QUERY.sub(r"\1\2", _USER.sub(r"\1", text))

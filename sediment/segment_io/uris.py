"""URIs in the form in which messages and reports show them, without the passwords that URIs may contain.

`public_uri` is for a value that is one URI.  `without_credentials` is for text that may contain URIs; it can only guess
where a URI ends.  So before you insert a URI into a text, pass the URI through `public_uri`.

Secrets often contain characters that a URI should encode: `/`, `?`, `#`, `@` and blanks.  If such a character may
belong to a secret, the functions hide too much rather than too little.
"""

from __future__ import annotations

import re

HIDDEN = "(hidden)"

_REMOTE = r"(?:s3a?|gs|gcs|abfss?|hdfs|viewfs|wasbs?|https?)"
_STARTS_WORD = r"(?:(?<![A-Za-z0-9])|(?<=\\[nrt]))"  # printable text has line ends as \n
_START = rf"(?:{_REMOTE}://|{_STARTS_WORD}{_REMOTE}:/)"  # a Path turns :// into :/
_IN_TEXT = re.compile(
    rf"""(?P<quote>['"])(?P<quoted>{_REMOTE}://?[^'"\n]*)(?P=quote)|(?P<bare>{_START}[^\s'"`{{}}<>,]*)""", re.IGNORECASE
)
_AFTER_URI = ")];.:"

_URI = re.compile(rf"((?:[A-Za-z][A-Za-z0-9+.-]+://|{_REMOTE}:/))(.*)", re.IGNORECASE | re.DOTALL)
_QUERY = re.compile(r"[?#]")
_HOST = r"(?:\[[0-9A-Fa-f:.]*\]|[\w.-]*)(?::\d*)?"
_HOSTS = re.compile(rf"{_HOST}(?:,{_HOST})*")
_CONTAINER = re.compile(r"\$?[A-Za-z0-9-]+")
_WITHOUT_PASSWORD = ("hdfs:", "viewfs:")
_SECRET = re.compile(r"pass|secret|credential|token|jaas|sasl|private|keystore|access.?key", re.IGNORECASE)
_WITH_CONTAINER = ("abfs:", "abfss:", "wasb:", "wasbs:")


def public_uri(uri: str) -> str:
    """Return a URI without user, password, query and fragment; the URI may have been shortened by `Path`.

    A local path and a `file:` URI are returned unchanged.  The container of an Azure URI is kept, because it looks like
    a user but is a part of the path.
    """
    found = _URI.fullmatch(uri)
    if found is None or uri.lower().startswith("file:"):
        return uri
    start, rest = found.groups()
    scheme = start.lower().rstrip("/")
    query = _QUERY.search(rest)
    place, options = (rest[: query.start()], rest[query.end() :]) if query else (rest, "")
    if scheme in _WITHOUT_PASSWORD and _HOSTS.fullmatch(place.partition("/")[0]):
        return start + place
    if "@" in options and ":" in place:  # either a password that contains a ?, or a query that contains an @
        return start + HIDDEN
    return start + _without_user(place, has_container=scheme in _WITH_CONTAINER)


def _without_user(place: str, *, has_container: bool) -> str:
    user, mark, public = place.rpartition("@")
    name, has_password, _ = user.partition(":")
    if not mark or (not has_password and "/" in name and "@" not in name.partition("/")[0]):
        return place
    container, is_in_path, _ = name.partition("@")
    if not has_container or not _CONTAINER.fullmatch(container):
        return public
    return f"{container}@{public}" if has_password or not is_in_path else place


def without_credentials(text: str) -> str:
    """Return `text` with `public_uri` applied to each URI of a remote filesystem, in linear time.

    A URI in quotes ends at the second quote; any other URI ends at a blank, a quote, a brace or a comma.
    """
    return _IN_TEXT.sub(_public, text)


def _public(match: re.Match[str]) -> str:
    if match["quote"]:
        return f"{match['quote']}{public_uri(match['quoted'])}{match['quote']}"
    uri = match["bare"].rstrip(_AFTER_URI)
    return public_uri(uri) + match["bare"][len(uri) :]


def without_secret(value: str) -> str:
    """Return an option's value without secrets; also remove the user, the query and the fragment of a URI."""
    public = without_credentials(public_uri(value))
    key, is_pair, _ = public.partition("=")
    return f"{key}={HIDDEN}" if is_pair and _SECRET.search(key) else public

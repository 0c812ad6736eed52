"""Values of options in the form in which reports, HTML pages and catalogues may show them."""

from __future__ import annotations

import re

from sediment.segment_io.uris import HIDDEN, public_uri, without_credentials

_SECRET = re.compile(r"pass|secret|credential|token|jaas|sasl|private|keystore|access.?key", re.IGNORECASE)


def without_secret(value: str) -> str:
    """Return an option's value without secrets; also remove the user, the query and the fragment of a URI."""
    public = without_credentials(public_uri(value))
    key, is_pair, _ = public.partition("=")
    return f"{key}={HIDDEN}" if is_pair and _SECRET.search(key) else public

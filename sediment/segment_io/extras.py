"""How to install what an extra of this package needs; the package itself is on no index."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires

DISTRIBUTION = "kafka-sediment"

_OF_EXTRA = re.compile(r"""(?P<requirement>[^;]+);\s*extra\s*==\s*['"](?P<extra>[\w-]+)['"]""")
_OWN = re.compile(rf"{DISTRIBUTION}\[(?P<extras>[\w,-]+)\]")


def install_command(extra: str) -> str:
    try:
        packages = sorted(dict.fromkeys(_packages(extra)))
    except PackageNotFoundError:
        packages = []
    if not packages:
        return f"install {DISTRIBUTION} with its extra {extra}"
    return f"pip install {' '.join(map(shlex.quote, packages))}"


def _packages(extra: str) -> Iterator[str]:
    for line in requires(DISTRIBUTION) or ():
        found = _OF_EXTRA.fullmatch(line)
        if found is None or found["extra"] != extra:
            continue
        own = _OWN.fullmatch(found["requirement"].strip())
        if own is None:
            yield found["requirement"].strip()
        else:
            for other in own["extras"].split(","):
                yield from _packages(other)

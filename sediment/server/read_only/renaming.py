"""Topics under other names: `NEW=OLD` and `NEW=DIR:OLD`.

    NEW=OLD        OLD is served as NEW
    NEW=DIR:OLD    DIR's partitions of OLD are served as NEW, and not merged into OLD

A topic that is named so is not served under its own name from there any more.

Invariant: both names are checked before a path is made of one of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sediment.segment_io.errors import UsageError
from sediment.segment_io.format.names import METADATA_TOPIC, is_topic_name


@dataclass(frozen=True, slots=True)
class Renaming:
    """`old` is served as `new`; from `directory` only, unless that is None."""

    new: str
    old: str
    directory: Path | None = None


def parse_renaming(text: str) -> Renaming:
    """Return the renaming that the value of an option names.

    Raises:
        UsageError: it is malformed, or one of the names is not that of a topic.
    """
    new, equals, source = text.partition("=")
    directory, colon, old = source.rpartition(":")
    if not equals or (colon and not directory):
        raise UsageError(f"--as {text!r} is malformed", advice="give NEW=OLD or NEW=DIR:OLD")
    for name in (new, old):
        if not is_topic_name(name) or name == METADATA_TOPIC:
            raise UsageError(
                f"{name!r} in --as {text!r} is not a topic name",
                advice="use 1 to 249 letters, digits, dots, underscores and hyphens, and neither . nor ..",
            )
    return Renaming(new, old, Path(directory) if colon else None)

"""Topics served under other names: `NEW=OLD` and `NEW=DIR:OLD`.

* With NEW=OLD, the topic OLD is served as NEW.
* With NEW=DIR:OLD, DIR's partitions of OLD are served as NEW, separate from OLD in other directories.

In each directory in which a topic is renamed, the topic is served only under its new name.

Invariant: both names are checked before they become part of a path.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sediment.segment_io.errors import UsageError
from sediment.segment_io.format.names import METADATA_TOPIC, is_topic_name


@dataclass(frozen=True, slots=True)
class Renaming:
    """A topic `old` that is served as `new`; if `directory` is set, only partitions in this directory are renamed."""

    new: str
    old: str
    directory: Path | None = None


def parse_renaming(text: str) -> Renaming:
    """Parse the value of an `--as` option.

    Raises:
        UsageError: the value is malformed, or one of the names is not a topic name.
    """
    new, equals, source = text.partition("=")
    directory, colon, old = source.rpartition(":")
    if not equals or (colon and not directory):
        raise UsageError(f"--as {text!r} is malformed", advice="give NEW=OLD or NEW=DIR:OLD")
    for name in (new, old):
        if not is_topic_name(name) or name == METADATA_TOPIC:
            raise UsageError(
                f"{name!r} in --as {text!r} is not a topic name",
                advice="use 1 to 249 letters, digits, dots, underscores and hyphens; . and .. are not allowed",
            )
    return Renaming(new, old, Path(directory) if colon else None)

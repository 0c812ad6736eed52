"""The partition directories of a log directory: names, selection by patterns, and warnings about other names.

`parse_log_folder` leaves out `remote-log-index-cache` and the metadata log.  It refuses any other name that is not a
partition name, as a broker does at its start.

Invariant: a directory with any other name is never treated as a partition.  No file in it is opened, and no checkpoint
file lists it.
"""

from __future__ import annotations

import difflib
import fnmatch
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from sediment.segment_io.errors import UsageError
from sediment.segment_io.format.names import (
    METADATA_TOPIC,
    REMOTE_INDEX_CACHE,
    DirectoryState,
    TopicPartition,
    parse_partition_directory,
)
from sediment.segment_io.printable import printable

_LOGGER = logging.getLogger(__name__)
_MOST_WARNINGS = 10
_NEAREST_NAMES = 3


def parse_log_folder(name: str) -> tuple[TopicPartition, DirectoryState] | None:
    if name == REMOTE_INDEX_CACHE:
        return None
    partition, state = parse_partition_directory(name)
    return None if partition.topic == METADATA_TOPIC else (partition, state)


def find_partitions(log_dir: object, names: Iterable[str]) -> Mapping[str, tuple[TopicPartition, DirectoryState]]:
    """Return the partitions in `log_dir`, by the names of their directories; warn about every other name.

    `names` are the names of sub-directories; `str(log_dir)` appears in warnings.
    """
    found = {}
    refused: list[UsageError] = []
    for name in sorted(names):
        try:
            parsed = parse_log_folder(name)
        except UsageError as error:
            refused.append(error)
            continue
        if parsed is not None:
            found[name] = parsed
    _warn(log_dir, refused)
    return found


def holds_live_partition(names: Iterable[str]) -> bool:
    return any(map(_is_live_partition, names))


def _is_live_partition(name: str) -> bool:
    try:
        found = parse_log_folder(name)
    except UsageError:
        return False
    return found is not None and found[1] is DirectoryState.LIVE


def find_live_partitions(log_dir: object, names: Iterable[str]) -> list[TopicPartition]:
    found = find_partitions(log_dir, names).values()
    return sorted(partition for partition, state in found if state is DirectoryState.LIVE)


def check_patterns(patterns: Sequence[str], names: Iterable[str], *, where: str) -> None:
    _check_patterns(patterns, names, lambda pattern: f"--partition {pattern!r} matches no partition of {where}")


def check_topic_patterns(patterns: Sequence[str], topics: Iterable[str], *, where: str) -> None:
    _check_patterns(patterns, topics, lambda pattern: f"--topic {pattern!r} matches no topic of {where}")


def _check_patterns(patterns: Sequence[str], names: Iterable[str], error: Callable[[str], str]) -> None:
    known = sorted(set(names))
    for pattern in patterns:
        if any(fnmatch.fnmatchcase(name, pattern) for name in known):
            continue
        nearest = difflib.get_close_matches(pattern, known, n=_NEAREST_NAMES, cutoff=0.0)
        found = f"the nearest names are {', '.join(nearest)}" if nearest else "it holds none"
        raise UsageError(error(pattern), advice=f"{found}; give --allow-empty-selection if a pattern may match nothing")


def _warn(log_dir: object, refused: list[UsageError]) -> None:
    path = printable(str(log_dir))
    for error in refused[:_MOST_WARNINGS]:
        _LOGGER.warning("%s: skipped: %s", path, error)
    if len(refused) > _MOST_WARNINGS:
        _LOGGER.warning("%s: skipped: %d more directories", path, len(refused) - _MOST_WARNINGS)

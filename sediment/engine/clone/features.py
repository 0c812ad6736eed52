"""Feature levels: those of Kafka's releases, those of a clone, and those that a server supports.

A clone has the feature levels of its source, limited to the levels of the release that will start the clone.

Source: Kafka's `kafka-storage.sh version-mapping --release-version`, and BrokerFeatures.
"""

from __future__ import annotations

from collections.abc import Mapping

from sediment.engine.metadata.topic_records import METADATA_VERSION
from sediment.segment_io.errors import UsageError
from sediment.segment_io.internal_topics.metadata_log import KRAFT_VERSION

REFERENCE_RELEASE = "4.2"
"""The release of a new node, unless another one is asked for; brokers of later releases start on it, too."""

_LEAST_METADATA_VERSION = 7  # 3.3-IV3, the lowest level on which a broker of Kafka 4 starts
_LEVELS: Mapping[str, Mapping[str, int]] = {
    "4.0": {METADATA_VERSION: 25, "transaction.version": 2, "group.version": 1},
    "4.1": {METADATA_VERSION: 27, "transaction.version": 2, "group.version": 1, "eligible.leader.replicas.version": 1},
    "4.2": {
        METADATA_VERSION: 29,
        "transaction.version": 2,
        "group.version": 1,
        "eligible.leader.replicas.version": 1,
        "share.version": 1,
        "streams.version": 1,
    },
    "4.3": {
        METADATA_VERSION: 30,
        "transaction.version": 2,
        "group.version": 1,
        "eligible.leader.replicas.version": 1,
        "share.version": 1,
        "streams.version": 1,
    },
    "4.4": {
        METADATA_VERSION: 33,
        "transaction.version": 2,
        "group.version": 1,
        "eligible.leader.replicas.version": 1,
        "share.version": 2,
        "streams.version": 1,
    },
}
RELEASES = tuple(_LEVELS)
_NEWEST_KRAFT_VERSION = 1

SUPPORTED_LEVELS: Mapping[str, tuple[int, int]] = {
    METADATA_VERSION: (_LEAST_METADATA_VERSION, _LEVELS[REFERENCE_RELEASE][METADATA_VERSION]),
    KRAFT_VERSION: (0, _NEWEST_KRAFT_VERSION),
    **{name: (0, level) for name, level in _LEVELS[REFERENCE_RELEASE].items() if name != METADATA_VERSION},
}
"""The lowest and the highest level of each feature in the reference release."""


def clone_features(source: Mapping[str, int] | None, release: str) -> dict[str, int]:
    """Return the levels of a clone for `release`, one of RELEASES; `source` is None if its levels are unknown."""
    target = _LEVELS[release]
    if not source or METADATA_VERSION not in source:
        return dict(target)
    if source[METADATA_VERSION] < _LEAST_METADATA_VERSION:
        raise UsageError(
            f"the source has metadata.version {source[METADATA_VERSION]}, which brokers of Kafka 4 do not support",
            advice="clone without its metadata log, or upgrade the cluster's metadata.version first",
        )
    levels = {name: min(level, target.get(name, 0)) for name, level in source.items() if name != KRAFT_VERSION}
    return {name: level for name, level in levels.items() if level}

"""What a broker of any release writes: every policy, codec, format and kind of producer, and the offsets of groups."""

from __future__ import annotations

import time
from dataclasses import dataclass

from tests.versions.node import Node
from tests.versions.releases import Release

COMPACT, DELETE, BOTH = "compact", "delete", "compact,delete"
KEPT_MS = 7 * 24 * 3600 * 1000
DELETE_RETENTION_MS = 5000
"""The dynamic config of all brokers; a topic's default is a day."""

GROUPS = ("readers", "auditors")
_AGO_MS = 6 * 3600 * 1000
# Records are a minute apart, so a segment gets about twenty of them.
_OF_ALL = {"segment.ms": "1200000", "index.interval.bytes": "300"}


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic of the workload; `kind` is a kind of producer of VersionClient.java."""

    name: str
    partitions: int
    kind: str
    codecs: tuple[str, ...]
    configs: dict[str, str]

    @property
    def is_compacted(self) -> bool:
        return COMPACT in self.configs["cleanup.policy"]

    @property
    def expires(self) -> bool:
        return DELETE in self.configs["cleanup.policy"] and self.configs.get("retention.ms") != "-1"

    def names(self) -> list[str]:
        return [f"{self.name}-{number}" for number in range(self.partitions)]


def topics_of(release: Release) -> list[Topic]:
    """Return the topics that a broker of the release can have."""
    none, every = ("none",), release.codecs
    kept = {"retention.ms": str(KEPT_MS)}
    found = [
        Topic("plain", 2, "plain", none, {"cleanup.policy": COMPACT}),
        Topic("codecs", 1, "plain", every, {"cleanup.policy": COMPACT}),
        Topic("unique", 1, "idempotent", ("lz4",), {"cleanup.policy": COMPACT}),
        Topic("payments", 2, "transactional", ("none", "gzip"), {"cleanup.policy": COMPACT}),
        Topic("sessions", 1, "plain", none, {"cleanup.policy": BOTH, **kept}),
        Topic("events", 2, "events", every, {"cleanup.policy": DELETE, **kept}),
        Topic("ledger", 1, "transactional", ("snappy",), {"cleanup.policy": DELETE, **kept}),
        Topic("archive", 1, "events", none, {"cleanup.policy": DELETE, "retention.ms": "-1"}),
    ]
    for name, version in release.old_formats.items():
        # Messages of format 0 have no time, so their segments roll by size.
        old = {"cleanup.policy": COMPACT, "message.format.version": version, "segment.bytes": "4000"}
        found.append(Topic(name, 1, "old", ("none", "gzip", "snappy", "lz4"), old))
    return found


def create_topics(node: Node) -> None:
    """Create them on a running broker, some of their configs and one of the broker's afterwards."""
    topics = topics_of(node.release)
    spelled = (f"{name}={value}" for name, value in _OF_ALL.items())
    shared = ";".join(spelled)
    node.client(
        "create",
        *(
            f"{each.name}|{each.partitions}|" + ";".join((shared, *(f"{k}={v}" for k, v in each.configs.items())))
            for each in topics
        ),
    )
    if node.release.has_dynamic_broker_configs:
        altered = (
            "TOPIC|events|max.message.bytes=2000000",
            f"BROKER||log.cleaner.delete.retention.ms={DELETE_RETENTION_MS}",
        )
        node.client(*altered, main="AlterConfigs")


def write(node: Node, *seeds: int) -> None:
    """Write to every topic with the clients of the release, and commit offsets."""
    topics = topics_of(node.release)
    specs = (f"{each.name}|{each.partitions}|{each.kind}|{','.join(each.codecs)}" for each in topics)
    node.client("write", ",".join(map(str, seeds)), int(time.time() * 1000) - _AGO_MS, *specs, ",".join(GROUPS))

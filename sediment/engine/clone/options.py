"""Options of a clone, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from sediment.compaction.rewrite.suppression import SuppressionList
from sediment.segment_io.format.names import TopicPartition

DEFAULT_NODE_ID = 1


class Part(StrEnum):
    """Parts of a cluster that may come along with its records."""

    GROUPS = "groups"
    TRANSACTIONS = "transactions"
    CONFIGS = "configs"
    ACLS = "acls"
    QUOTAS = "quotas"
    SCRAM = "scram"


DEFAULT_PARTS = frozenset({Part.GROUPS, Part.TRANSACTIONS, Part.CONFIGS})


class LinkMode(StrEnum):
    """Ways in which unchanged files come into a clone."""

    COPY = "copy"
    REFLINK = "reflink"
    """Files of their own that share blocks, if the filesystem can do that; else copies."""

    HARD = "hard"
    """Second names of the closed segments; copies of all other files."""


@dataclass(frozen=True, slots=True)
class CloneOptions:
    """Options of a clone.

    `topics` and `partitions` are globs, empty for all; `renames` are new names by old ones.  `cluster_id` is None for
    a random one.  A held clone neither expires nor cleans anything.  `until_offsets` and `until_ms` cut logs; a
    partition with its own offset is cut there.  `since` is the manifest of an earlier clone, or its directory;
    unchanged closed segments are linked from there.  `compact` cleans the logs of compacted topics on the way.
    Records of `suppressed` keys do not come along.
    """

    topics: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    renames: Mapping[str, str] = field(default_factory=dict)
    parts: frozenset[Part] = DEFAULT_PARTS
    node_id: int = DEFAULT_NODE_ID
    cluster_id: str | None = None
    hold: bool = True
    until_offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    until_ms: int | None = None
    link: LinkMode = LinkMode.COPY
    abort_open_transactions: bool = False
    local_only: bool = False
    since: str | None = None
    compact: bool = False
    suppressed: SuppressionList | None = None

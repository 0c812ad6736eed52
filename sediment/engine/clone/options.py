"""The options of a clone: `CloneOptions` and its enums."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from sediment.compaction.reencode.plan import Encoding
from sediment.compaction.rewrite.suppression import SuppressionList
from sediment.compaction.strategy import Strategy
from sediment.segment_io.format.names import TopicPartition

DEFAULT_NODE_ID = 1


class Part(StrEnum):
    GROUPS = "groups"
    TRANSACTIONS = "transactions"
    CONFIGS = "configs"
    ACLS = "acls"
    QUOTAS = "quotas"
    SCRAM = "scram"


DEFAULT_PARTS = frozenset({Part.GROUPS, Part.TRANSACTIONS, Part.CONFIGS})


class LinkMode(StrEnum):
    COPY = "copy"
    REFLINK = "reflink"
    """Separate files that share disk blocks, if the filesystem supports this; otherwise copies."""

    HARD = "hard"
    """Hard links to closed segments; copies of all other files."""


@dataclass(frozen=True, slots=True)
class CloneOptions:
    """In a held clone, no records expire and no log is cleaned.

    `until_offsets` cuts the logs of the partitions that it names; `until_ms` cuts all other logs. `since` is the
    directory or the manifest of an earlier clone; unchanged closed segments are linked from that clone. With `compact`,
    the logs of compacted topics are cleaned. With an `encoding`, this cleaning also re-encodes their records. Records
    whose keys are `suppressed` are left out. `strategy` says whether several tasks copy each partition (split) or one
    task (whole). If it is None, the size of the partition decides.
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
    encoding: Encoding | None = None
    suppressed: SuppressionList | None = None
    strategy: Strategy | None = None

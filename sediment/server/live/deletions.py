"""The topics to which a live server applies retention and the cleaner, as one line for an operator.

If no source states a policy or a limit, it is missing from the topic's config (`jobs.settings.server_settings`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sediment.engine.log_config import LogConfig
from sediment.segment_io.format.layout import INT32_MAX

_MOST_NAMES = 3
_NOT_STATED = "cleanup.policy is not stated"
_NO_LIMIT = "no retention limit is stated, or it is -1"
_NO_CLEANER = "log.cleaner.enable is false"


def has_retention(config: LogConfig) -> bool:
    retention = config.retention
    return retention.deletes and (retention.retention_ms >= 0 or retention.retention_bytes >= 0)


def describe_deletions(
    configs: Mapping[str, LogConfig],
    *,
    cleans: bool,
    offsets_retention_minutes: int | None,
    transactional_id_expiration_ms: int | None,
) -> str:
    """`cleans` is True if the cleaner is on; the cleaner also applies the retention of compacted topics."""
    groups: dict[str, list[str]] = {}
    for topic, config in sorted(configs.items()):
        for what in _of_topic(config, cleans=cleans):
            groups.setdefault(what, []).append(topic)
    parts = [f"{what}: {_names(groups[what])}" for what in ("retention", "compaction") if what in groups]
    parts += [
        f"no retention or compaction for {_names(topics)} ({why})" for why, topics in groups.items() if why not in _ON
    ]
    parts.append(_expiry("committed offsets", "offsets.retention.minutes", offsets_retention_minutes, "minutes"))
    parts.append(_expiry("transactional ids", "transactional.id.expiration.ms", transactional_id_expiration_ms, "ms"))
    return "; ".join(parts)


_ON = ("retention", "compaction")


def _expiry(what: str, key: str, limit: int | None, unit: str) -> str:
    if limit is None:
        return f"{what} do not expire ({key} is not stated)"
    return f"{what} expire after {limit} {unit}" if limit < INT32_MAX else f"{what} do not expire ({key} is {limit})"


def _of_topic(config: LogConfig, *, cleans: bool) -> Sequence[str]:
    if config.compacts and not cleans:
        return (_NO_CLEANER,)
    found = [what for what, is_on in zip(_ON, (has_retention(config), config.compacts), strict=True) if is_on]
    return found or (_NO_LIMIT if config.retention.deletes else _NOT_STATED,)


def _names(topics: Sequence[str]) -> str:
    more = len(topics) - _MOST_NAMES
    return ", ".join(topics[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")

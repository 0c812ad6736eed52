"""Topics whose cleanup.policy deletes records that their owner needs for ever; they are recognized by their names.

Some owners need the latest record of each key, because they read their state from the topic when they start.  Others
need all records: their records have no keys, and are replayed from the first one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from sediment.engine.log_config import LogConfig
from sediment.segment_io.format.names import INTERNAL_TOPICS


@dataclass(frozen=True, slots=True)
class _Kind:
    names: re.Pattern[str]
    owner: str
    may_expire: bool = False  # with the policy compact,delete, old keys go on purpose


_LATEST_OF_EACH_KEY = (
    _Kind(re.compile("|".join(map(re.escape, sorted(INTERNAL_TOPICS)))), "a topic of a broker's coordinators"),
    _Kind(re.compile(r"(.*[._-])?schemas"), "the topic of a schema registry"),
    _Kind(re.compile(r"(.*[._-])?connect([._-].*)?[._-](configs?|offsets?|status(es)?)"), "a topic of Kafka Connect"),
    _Kind(re.compile(r"(.*[._-])?mm2-(configs|offsets|status)[.].*"), "a topic of MirrorMaker"),
    _Kind(re.compile(r".*-changelog"), "the changelog of a state store", may_expire=True),
)
_ALL_RECORDS = (
    _Kind(re.compile(r"(.*[._-])?(db|database|schema)[._-]?(history|changes)([._-].*)?"), "a history of schemas"),
    _Kind(re.compile(r"_confluent-ksql-.*_command_topic"), "the command topic of ksqlDB"),
)


def policy_warning(topic: str, config: LogConfig, *, expires: bool) -> str | None:
    """Return a sentence if the cleanup.policy in `config` deletes records that `topic`, by its name, needs; else None.

    `expires` is False if `expire` leaves the topic alone, for example because its retention is not stated.
    """
    limit = _limit(config) if expires else None
    if kind := _kind_of(topic, _LATEST_OF_EACH_KEY):
        if limit is None or (kind.may_expire and config.compacts):
            return None
        return (
            f"by its name, {topic} is {kind.owner}, which needs the newest record of every key, but cleanup.policy="
            f"{','.join(config.cleanup_policy)} with {limit} deletes old records; set cleanup.policy=compact"
        )
    if kind := _kind_of(topic, _ALL_RECORDS):
        needed = "set cleanup.policy=delete, retention.ms=-1 and retention.bytes=-1"
        if config.compacts:
            return (
                f"by its name, {topic} is {kind.owner}, whose records have no keys, but cleanup.policy="
                f"{','.join(config.cleanup_policy)} drops records without a key; {needed}"
            )
        if limit is not None:
            what = f"by its name, {topic} is {kind.owner}, which is needed as a whole"
            return f"{what}, but {limit} deletes old records; {needed}"
    return None


def _kind_of(topic: str, kinds: tuple[_Kind, ...]) -> _Kind | None:
    return next((kind for kind in kinds if kind.names.fullmatch(topic)), None)


def _limit(config: LogConfig) -> str | None:
    retention = config.retention
    if not retention.deletes:
        return None
    if retention.retention_ms >= 0:
        return f"retention.ms={retention.retention_ms}"
    return f"retention.bytes={retention.retention_bytes}" if retention.retention_bytes >= 0 else None

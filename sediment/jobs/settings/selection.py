"""Selection of partitions: the globs of `--partition` and `--topic`, which have the same meaning in every command."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable
from dataclasses import dataclass

from sediment.segment_io.errors import UsageError
from sediment.segment_io.format.names import parse_partition_directory
from sediment.segment_io.partition.partition_directories import check_patterns, check_topic_patterns


@dataclass(frozen=True, slots=True)
class Selection:
    """Partitions whose name matches `partitions` and whose topic matches `topics`; an empty tuple matches all."""

    partitions: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()

    @property
    def is_narrowed(self) -> bool:
        return bool(self.partitions or self.topics)

    def includes(self, name: str) -> bool:
        return _matches(name, self.partitions) and (not self.topics or _matches(topic_of(name), self.topics))

    def names_topic(self, topic: str) -> bool:
        return topic in self.topics or any(pattern.startswith(f"{topic}-") for pattern in self.partitions)

    def check(self, names: Iterable[str], *, where: str) -> None:
        known = list(names)
        check_patterns(self.partitions, known, where=where)
        check_topic_patterns(self.topics, map(topic_of, known), where=where)
        if not (self.partitions and self.topics):
            return
        of_partitions = [name for name in known if _matches(name, self.partitions)]
        of_topics = [name for name in known if _matches(topic_of(name), self.topics)]
        check_topic_patterns(
            self.topics, map(topic_of, of_partitions), where=f"the partitions that --partition selects in {where}"
        )
        check_patterns(self.partitions, of_topics, where=f"the topics that --topic selects in {where}")


def topic_of(partition: str) -> str:
    """Return the topic in the name of a partition's directory, including directories of future replicas.

    If the name has another form, return the part before its last dash.
    """
    try:
        return parse_partition_directory(partition)[0].topic
    except UsageError:
        return partition.rpartition("-")[0] or partition


def _matches(name: str, globs: tuple[str, ...]) -> bool:
    return not globs or any(fnmatch.fnmatchcase(name, glob) for glob in globs)

"""ClusterTopics: the topics of a server, in the form that consumer groups use."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from sediment.server.topic_catalog import ServedTopic, TopicCatalog


class NumberedTopic(NamedTuple):
    name: str
    id: UUID
    partition_count: int


class ClusterTopics:
    """The topics of `catalog`; any thread may call the methods."""

    def __init__(self, catalog: TopicCatalog) -> None:
        self._catalog = catalog
        self._metadata = catalog.metadata
        self._version = 0
        self._guard = threading.Lock()

    @property
    def version(self) -> int:
        with self._guard:
            metadata = self._catalog.metadata
            if metadata is not self._metadata:
                self._metadata = metadata
                self._version += 1
            return self._version

    @property
    def metadata_version(self) -> int:
        """The end offset of the metadata log, which some group records contain."""
        metadata = self._catalog.metadata
        return 0 if metadata is None else max(metadata.end_offset, 0)

    def names(self) -> Sequence[str]:
        return [topic.name for topic in self._catalog.topics()]

    def topic(self, name: str) -> NumberedTopic | None:
        return _numbered(self._catalog.topic(name))

    def topic_by_id(self, topic_id: UUID) -> NumberedTopic | None:
        return _numbered(self._catalog.topic_by_id(topic_id))


def _numbered(topic: ServedTopic | None) -> NumberedTopic | None:
    return None if topic is None else NumberedTopic(topic.name, topic.id, len(topic.partitions) + len(topic.missing))

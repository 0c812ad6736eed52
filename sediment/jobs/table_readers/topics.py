"""The table `topics`: the configs of each topic, and the source of each value.

All but BOOTSTRAP_CHECKPOINT and NOT_STATED are Kafka's names (ConfigEntry.ConfigSource).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sediment.engine.config_definitions import TOPIC_KEYS, Key, Value
from sediment.jobs.settings.cluster_settings import find_metadata
from sediment.jobs.settings.directories import readable_meta
from sediment.jobs.settings.resolve import Origin, Settings
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.sources import Source
from sediment.segment_io.tables.places import place_of
from sediment.segment_io.tables.planning import TableTask
from sediment.segment_io.tables.schema import TableRequest, arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa

    from sediment.segment_io.internal_topics.metadata_log import ClusterMetadata

_NOT_STATED = "NOT_STATED"


def read_topics(request: TableRequest, task: TableTask, fs: Fs) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    settings = Settings.load(None if request.config is None else Path(request.config), ())
    topics: dict[tuple[Path, str], Source] = {}
    for source in task.sources:
        topics.setdefault((source.directory.parent, source.partition.topic), source)
    log_dirs = list(dict.fromkeys(log_dir for log_dir, _ in topics))
    found = find_metadata(list(dict.fromkeys((*log_dirs, *task.log_dirs))), settings, fs)
    nodes = {log_dir: _Node(log_dir, found[log_dir], settings, fs) for log_dir in log_dirs}
    schema = arrow_schema(request.selected())
    seen: set[tuple[str, str]] = set()
    rows: list[dict[str, Any]] = []
    for (log_dir, topic), source in sorted(topics.items(), key=lambda each: (each[0][1], log_dirs.index(each[0][0]))):
        # A topic can be in several directories of one cluster; two clusters can have different topics with the same
        # name.
        node = nodes[log_dir]
        identity = (node.cluster_id or str(log_dir), topic)
        if identity not in seen:
            seen.add(identity)
            place = place_of(source, schema.names, fs)
            rows += [{**row, **place} for row in node.rows(topic)]
    if rows:
        arrays = [pa.array([row[field.name] for row in rows], field.type) for field in schema]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


class _Node:
    def __init__(self, log_dir: Path, metadata: ClusterMetadata | None, settings: Settings, fs: Fs) -> None:
        meta, _ = readable_meta(log_dir, fs)
        self.cluster_id = None if meta is None else meta.cluster_id
        self._metadata = metadata
        self._own: Mapping[str, str] = {}
        self._settings = settings
        if metadata is not None:
            node_id = None if meta is None else meta.node_id
            self._own = metadata.broker_configs.get(str(node_id), {})
            self._settings = settings.of_node(metadata, node_id)

    def rows(self, topic: str) -> Iterator[dict[str, Any]]:
        metadata = self._metadata
        partitions = None if metadata is None else metadata.partitions.get(topic)
        common = {
            "topic": topic,
            "topicId": None if metadata is None else metadata.topic_ids.get(topic),
            "partitions": None if partitions is None else len(partitions),
        }
        for name, (value, origin) in self._settings.in_force(topic).items():
            source = self._source(topic, TOPIC_KEYS[name], origin)
            is_stated = source != _NOT_STATED
            yield {**common, "key": name, "value": _text(value) if is_stated else None, "source": source}

    def _source(self, topic: str, key: Key, origin: str) -> str:
        if origin == Origin.FILE:
            return "STATIC_BROKER_CONFIG"
        if origin != Origin.METADATA or self._metadata is None:
            return _NOT_STATED
        if not {key.name, *key.aliases}.isdisjoint(self._metadata.topic_configs.get(topic, {})):
            return "BOOTSTRAP_CHECKPOINT" if self._metadata.is_bootstrap else "DYNAMIC_TOPIC_CONFIG"
        stated = next(each.name for each in key.broker_names if each.name in self._settings.broker_overrides)
        return "DYNAMIC_BROKER_CONFIG" if stated in self._own else "DYNAMIC_DEFAULT_BROKER_CONFIG"


def _text(value: Value | None) -> str | None:
    if isinstance(value, bool):
        return str(value).lower()
    return None if value is None else ",".join(value) if isinstance(value, tuple) else str(value)

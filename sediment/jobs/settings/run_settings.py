"""Settings of every node of a run, and the node of each log directory.

    --config A  --topic-configs T  --broker-configs B  ──> Settings of node A ──┐
    --config C                                         ──> Settings of node C ──┴─> the settings of a directory

A file of `--topic-configs` or `--broker-configs` belongs to the `--config` file in the same place; one file alone
belongs to all of them, because the nodes are of one cluster.

Invariant: with several `--config` files, each is of another node, and every directory belongs to exactly one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from sediment.jobs.settings.described_configs import read_broker_configs, read_topic_configs
from sediment.jobs.settings.directories import check_node, configured_log_dirs, configured_metadata_dirs
from sediment.jobs.settings.resolve import Settings
from sediment.segment_io.errors import UsageError
from sediment.segment_io.format.meta_properties import MetaProperties
from sediment.segment_io.fs import without_links

_Read = TypeVar("_Read")


@dataclass(frozen=True, slots=True)
class RunSettings:
    """The settings of the nodes of a run, in the order of their `--config` files; one without such a file."""

    nodes: tuple[Settings, ...]

    def log_dirs(self, of_node: Callable[[Settings], Iterable[Path]] = configured_log_dirs) -> tuple[Path, ...]:
        found: list[Path] = []
        for node in self.nodes:
            paths = tuple(of_node(node))
            if not paths:
                where = "" if node.node_id is None or len(self.nodes) == 1 else f" for node {node.node_id}"
                raise UsageError(
                    f"no LOG_DIR is given{where}",
                    advice="name a log directory, or give --config FILE, a file that contains log.dirs",
                )
            found += paths
        return tuple(found)

    def of_directory(self, path: Path, meta: MetaProperties | None) -> Settings:
        if len(self.nodes) == 1:
            return self.nodes[0]
        node_id = None if meta is None else meta.node_id
        named = [node for node in self.nodes if without_links(path) in _places(node)]
        found = named or [node for node in self.nodes if node.node_id == node_id is not None]
        if len(found) != 1:
            raise UsageError(
                "none of the --config files names this directory or its node",
                path=str(path),
                advice="give the file of its node with another --config",
            )
        check_node(found[0], path, meta)
        return found[0]


def _places(node: Settings) -> set[Path]:
    return {without_links(path) for path in configured_metadata_dirs(node)}


def load_run_settings(
    configs: Sequence[Path],
    sets: Sequence[str],
    *,
    topic_configs: Sequence[Path] = (),
    broker_configs: Sequence[Path] = (),
    broker_defaults: bool = False,
    metadata_dir: Path | None = None,
) -> RunSettings:
    if broker_configs and not topic_configs:
        raise UsageError("--broker-configs needs the configs of the topics", advice="give --topic-configs FILE as well")
    if topic_configs and metadata_dir is not None:
        raise UsageError("--topic-configs and --metadata exclude each other", advice="give one of them")
    count = max(len(configs), 1)
    topics = _one_for_each("--topic-configs", topic_configs, count, read_topic_configs)
    brokers = _one_for_each("--broker-configs", broker_configs, count, read_broker_configs)
    nodes = tuple(
        Settings.load(
            config,
            sets,
            broker_defaults=broker_defaults,
            metadata_dir=metadata_dir,
            topic_configs=topic,
            broker_configs=broker,
        )
        for config, topic, broker in zip(configs or (None,), topics, brokers, strict=True)
    )
    _check_apart(nodes)
    return RunSettings(nodes)


def _check_apart(nodes: Sequence[Settings]) -> None:
    ids: set[int] = set()
    places: set[Path] = set()
    for node in nodes if len(nodes) > 1 else ():
        if node.node_id in ids:
            raise UsageError(f"two --config files are of node {node.node_id}", advice="give one file for each node")
        own = _places(node)
        if own & places:
            raise UsageError(
                "two --config files name the same log directory",
                path=str(min(own & places)),
                advice="give one file for each node",
            )
        ids |= set() if node.node_id is None else {node.node_id}
        places |= own


def _one_for_each(
    option: str, files: Sequence[Path], count: int, read: Callable[[Path], _Read]
) -> Sequence[_Read | None]:
    if len(files) not in (0, 1, count):
        raise UsageError(
            f"{option} is given {len(files)} times, and --config {count} times"
            if count > 1
            else f"{option} is given {len(files)} times without as many --config",
            advice=f"give {option} once, or once for each --config",
        )
    found: list[_Read | None] = [read(file) for file in files]
    return found * count if len(files) == 1 else found or [None] * count

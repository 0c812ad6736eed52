"""The options of the backend for reads and writes.

An import of this module does not import the backend.  So a read-only server does not load the code of a live node, and
starts about 0.3 s earlier.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from sediment.engine.config_definitions import Value
from sediment.engine.log_config import LogConfig

if TYPE_CHECKING:
    from sediment.segment_io.internal_topics.metadata_log import ClusterMetadata


def _needs_nothing() -> None:
    pass


def _states_nothing(_metadata: ClusterMetadata, _node_id: int) -> Mapping[str, Value]:
    return {}


@dataclass(frozen=True, slots=True)
class LiveOptions:
    """`quorum` contains the `QUORUM_KEYS` from the broker's properties file, or is None.

    With `flush_acks`, records are treated as replicated only when they are on disk. `metadata_apart` is True if the
    broker's `metadata.log.dir` is not an entry of its `log.dirs`. `metadata_log_dir` is the directory in which a broker
    with the properties file looks for its metadata; it is None without the file, or if the file names other
    directories. `broker_values` returns the broker keys that are set in any source, with their values. `static_configs`
    contains the values that are set outside the metadata, as texts. `prepare` is called before the directories are
    opened, when the address is known to be free.
    """

    directories: tuple[Path, ...]
    topic_configs: Callable[[ClusterMetadata, int], Callable[[str], LogConfig]]
    quorum: Mapping[str, str] | None = None
    flush_acks: bool = False
    metadata_apart: bool = False
    metadata_log_dir: Path | None = None
    log_dirs: tuple[Path, ...] = ()
    broker_values: Callable[[ClusterMetadata, int], Mapping[str, Value]] = _states_nothing
    static_configs: Mapping[str, str] = field(default_factory=dict)
    prepare: Callable[[], None] = _needs_nothing

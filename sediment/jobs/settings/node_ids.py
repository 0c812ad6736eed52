"""The node of each row of a report, by the log directory of the row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from sediment.jobs.settings.run_settings import RunSettings
from sediment.segment_io.errors import SedimentError
from sediment.segment_io.format.meta_properties import parse_meta_properties
from sediment.segment_io.format.names import META_PROPERTIES_FILE
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import read_meta_properties
from sediment.segment_io.stores import Store

_Row = TypeVar("_Row")


def with_node_ids(
    rows: Iterable[_Row], settings: RunSettings, fs: Fs, *, log_dirs: Sequence[str] = ()
) -> tuple[_Row, ...]:
    """The id is that of meta.properties in the log directory, or else that of the `--config` file.

    `log_dirs` are the directories as the user gave them: a row shows a URI without its secrets.
    """
    uris = {str(store): store for store in (Store(where) for where in log_dirs if "://" in where)}
    known = cache(lambda log_dir: _node_id(log_dir, uris.get(log_dir), settings, fs))

    def with_node_id(row: Any) -> Any:
        node_id = known(row.log_dir)
        return row if row.node_id == node_id else replace(row, node_id=node_id)

    return tuple(with_node_id(row) if hasattr(row, "node_id") else row for row in rows)


def _node_id(log_dir: str, at_uri: Store | None, settings: RunSettings, fs: Fs) -> int | None:
    if not log_dir:
        return None
    found = node_id_of(Path(log_dir), fs) if at_uri is None else _node_id_at_uri(at_uri)
    if found is not None:
        return found
    try:
        return settings.of_directory(Path(log_dir), None).node_id
    except SedimentError:
        return None


def _node_id_at_uri(store: Store) -> int | None:
    try:
        content = store.read(META_PROPERTIES_FILE)
        return None if content is None else parse_meta_properties(content, path=str(store)).node_id
    except (SedimentError, OSError):
        return None


def node_id_of(log_dir: Path, fs: Fs) -> int | None:
    try:
        meta = read_meta_properties(fs, log_dir / META_PROPERTIES_FILE)
    except (SedimentError, OSError):
        return None  # the run itself reports a damaged file
    return None if meta is None else meta.node_id

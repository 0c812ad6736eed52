"""Columns whose value is the same in all rows of a source: its partition, its log directory, and the node."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from typing import Any

from sediment.segment_io.errors import SedimentError
from sediment.segment_io.format.names import META_PROPERTIES_FILE
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import read_meta_properties
from sediment.segment_io.partition.sources import Source
from sediment.segment_io.printable import encodable


def place_of(source: Source, names: Collection[str], fs: Fs) -> dict[str, Any]:
    log_dir = source.directory.parent
    place: dict[str, Any] = {}
    if "log_dir" in names:
        place["log_dir"] = encodable(str(log_dir))
    if "node_id" in names:
        place["node_id"] = None
        with contextlib.suppress(SedimentError, OSError):
            meta = read_meta_properties(fs, log_dir / META_PROPERTIES_FILE)
            place["node_id"] = None if meta is None else meta.node_id
    return place


def source_values(source: Source, names: Collection[str], fs: Fs) -> dict[str, Any]:
    partition = source.partition
    return {"topic": partition.topic, "partition": partition.partition, **place_of(source, names, fs)}

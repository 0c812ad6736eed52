"""A log directory as `kafka-storage.sh format` leaves it; no broker or server has started on it.

    meta.properties
    bootstrap.checkpoint                                               feature levels and SCRAM users, but no topics
    __cluster_metadata-0/00000000000000000000-0000000000.checkpoint    only in a dynamic quorum: its first voters

The first start of a broker adds further files, such as the segments of the metadata log, and `.lock`.  So the absence
of all other files proves that `bootstrap.checkpoint` is current.

Source: Kafka 4.2.0, Formatter.doFormat.
"""

from __future__ import annotations

from pathlib import Path

from sediment.segment_io.format.names import BOOTSTRAP_FILE, META_PROPERTIES_FILE, METADATA_PARTITION
from sediment.segment_io.fs import Fs

VOTERS_SNAPSHOT = f"{0:020}-{0:010}.checkpoint"
"""The file in `__cluster_metadata-0` that contains the first voters of a dynamic quorum."""

_FILES = frozenset({META_PROPERTIES_FILE, BOOTSTRAP_FILE})


def has_metadata_log(fs: Fs, log_dir: Path) -> bool:
    """Return True if the directory has `__cluster_metadata-0`, even an empty one, unless only a format has written it.

    A broker then does not read `bootstrap.checkpoint`.
    """
    folder = log_dir / str(METADATA_PARTITION)
    return fs.is_directory(folder) and [entry.name for entry in fs.scan(folder)] != [VOTERS_SNAPSHOT]


def is_formatted(fs: Fs, log_dir: Path) -> bool:
    names = {entry.name for entry in fs.scan(log_dir)} - {str(METADATA_PARTITION)}
    return names == _FILES and not has_metadata_log(fs, log_dir)

"""The log directory of a new node, as `kafka-storage.sh format` creates it; the cluster is new and has no topics.

server.properties is written first and meta.properties last.  So if the process is killed between the two, `is_new` is
still True, and a second call writes the files again.
"""

from __future__ import annotations

import uuid
from pathlib import Path

from sediment.engine.clone.clone_directory import StartFiles, start_files
from sediment.engine.clone.cluster_records import CloneNode, cluster_records
from sediment.engine.clone.features import REFERENCE_RELEASE, clone_features
from sediment.engine.clone.server_properties import server_properties
from sediment.engine.directory.lock import DirectoryLock
from sediment.segment_io.errors import UsageError
from sediment.segment_io.format.checkpoints import format_uuid
from sediment.segment_io.format.names import (
    BOOTSTRAP_FILE,
    CLEAN_SHUTDOWN_FILE,
    LOCK_FILE,
    META_PROPERTIES_FILE,
    SERVER_PROPERTIES_FILE,
)
from sediment.segment_io.fs import Fs

DEFAULT_NODE_ID = 1
_HOST, _PORT = "127.0.0.1", 9092  # in server.properties, for a broker that starts on the directory later


_BEFORE_THE_FIRST = frozenset({LOCK_FILE, f"{SERVER_PROPERTIES_FILE}.tmp"})
_BEFORE_THE_LAST = frozenset({SERVER_PROPERTIES_FILE, BOOTSTRAP_FILE, CLEAN_SHUTDOWN_FILE})
_OF_A_NEW_DIRECTORY = (
    _BEFORE_THE_FIRST | _BEFORE_THE_LAST | {f"{name}.tmp" for name in (*_BEFORE_THE_LAST, META_PROPERTIES_FILE)}
)


def is_new(log_dir: Path, fs: Fs, node_id: int = DEFAULT_NODE_ID) -> bool:
    names = {entry.name for entry in fs.scan(log_dir)}
    if SERVER_PROPERTIES_FILE not in names:
        return names <= _BEFORE_THE_FIRST
    # A file that an operator wrote or changed must not be replaced.
    is_ours = fs.read_bytes(log_dir / SERVER_PROPERTIES_FILE) == _properties(log_dir, node_id).encode()
    return is_ours and names <= _OF_A_NEW_DIRECTORY


def format_new_node(log_dir: Path, fs: Fs, *, now_ms: int, node_id: int = DEFAULT_NODE_ID) -> CloneNode:
    """Turn a directory for which `is_new` is True into the log directory of a new node.

    The directory also gets a `server.properties` for a stock broker.
    """
    with DirectoryLock(log_dir):
        return _format(log_dir, fs, now_ms, node_id)


def _format(log_dir: Path, fs: Fs, now_ms: int, node_id: int) -> CloneNode:
    if not is_new(log_dir, fs, node_id):
        raise UsageError("the directory contains files; only an empty directory can be formatted", path=str(log_dir))
    node = CloneNode(node_id, _new_id(), _new_id())
    records = list(cluster_records((), {}, node, clone_features(None, REFERENCE_RELEASE), {}, 0))
    for name, content in start_files(StartFiles(node, records, _properties(log_dir, node_id)), now_ms):
        fs.replace_file(log_dir / name, content, like=log_dir)
    return node


def _properties(log_dir: Path, node_id: int) -> str:
    return server_properties(log_dir, node_id, host=_HOST, port=_PORT, partition_counts={}, is_held=False)


def _new_id() -> str:
    return format_uuid(uuid.uuid4().bytes)

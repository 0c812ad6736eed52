"""The small files of a log directory on which a broker does not start, or starts with less knowledge than it had.

Checkpoints and topic ids of single partitions are judged elsewhere (`topic_ids`); this module names files of the whole
directory, and changes none.

Source: every file was emptied under a broker of Kafka 4.2.0; kafka-log 01 §9 to §12, 05 §1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sediment.jobs.settings.directories import SelectedDirectory
from sediment.segment_io.errors import SedimentError
from sediment.segment_io.format.checkpoints import format_uuid
from sediment.segment_io.format.names import (
    BOOTSTRAP_FILE,
    CLEANER_FILE,
    HIGH_WATERMARK_FILE,
    LOG_START_FILE,
    META_PROPERTIES_FILE,
    METADATA_PARTITION,
    PARTITION_METADATA_FILE,
    QUORUM_STATE_FILE,
    RECOVERY_POINT_FILE,
)
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import read_partition_metadata
from sediment.segment_io.partition.formatted_directory import has_metadata_log

_NO_START = "so a broker does not start"
_EMPTY_CHECKPOINTS = {
    RECOVERY_POINT_FILE: "a start verifies every log from its beginning",
    LOG_START_FILE: "records that DeleteRecords has removed may come back",
    HIGH_WATERMARK_FILE: "no high watermark is known, and nothing is cleaned until the broker has written it again",
    CLEANER_FILE: "the next cleaning begins at the start of each log",
}


@dataclass(frozen=True, slots=True)
class DamagedFile:
    """A damaged file of a log directory; `what` is a clause about the file and its effect, `advice` the next action.

    `prevents_start` is True if a broker does not start before the file is mended or moved away.
    """

    log_dir: str
    file: str
    what: str
    advice: str
    prevents_start: bool

    def __str__(self) -> str:
        return f"{Path(self.log_dir) / self.file} {self.what}; {self.advice}"


def damaged_files(
    directory: SelectedDirectory, directories: Sequence[SelectedDirectory], fs: Fs
) -> tuple[DamagedFile, ...]:
    log_dir = str(directory.path)
    fatal = (*_meta_properties(directory, directories, fs), *_metadata_log(directory, fs), *_bootstrap(directory, fs))
    found = [
        DamagedFile(log_dir, name, f"{fault}, {_NO_START}", advice, prevents_start=True)
        for name, fault, advice in fatal
    ]
    sizes = {name: fs.entry(directory.path / name) for name in _EMPTY_CHECKPOINTS}
    # A broker that is stopped in its first minute leaves them all empty.
    if directory.all_partitions and any(entry is not None and entry.size_bytes for entry in sizes.values()):
        found += [
            DamagedFile(
                log_dir,
                name,
                f"has 0 bytes, so {_EMPTY_CHECKPOINTS[name]}",
                "restore the file if you can",
                prevents_start=False,
            )
            for name, entry in sizes.items()
            if entry is not None and not entry.size_bytes
        ]
    return tuple(found)


_Fault = tuple[str, str, str]
"""Name of a file, clause about its fault, next action."""


def _meta_properties(
    directory: SelectedDirectory, directories: Sequence[SelectedDirectory], fs: Fs
) -> Iterator[_Fault]:
    if directory.meta_fault is not None:
        fault = directory.meta_fault.what.removeprefix(f"{META_PROPERTIES_FILE} ")
    elif directory.meta is not None and directory.meta.node_id is None and has_metadata_log(fs, directory.path):
        fault = "names no node"
    else:
        return
    if directory.metadata is None:
        advice = "restore it, or write version, cluster.id and node.id (with ZooKeeper: broker.id) into it again"
        yield META_PROPERTIES_FILE, fault, advice
        return
    nodes = {(other.meta.node_id, other.meta.cluster_id) for other in directories if other.meta is not None}
    node_id, cluster_id = next(iter(nodes)) if len(nodes) == 1 else (directory.settings.node_id, None)
    if directory.settings.node_id not in (None, node_id):
        node_id, cluster_id = directory.settings.node_id, None
    directory_id = _directory_id(directory, node_id)
    lines = {
        "version": "1",
        "node.id": "… (of the broker's server.properties)" if node_id is None else str(node_id),
        "cluster.id": cluster_id or "… (of another meta.properties of the cluster, or of the broker's log)",
        "directory.id": directory_id,
    }
    written = ", ".join(f"{key}={value}" for key, value in lines.items() if value is not None)
    yield META_PROPERTIES_FILE, fault, f"write these lines into it: {written}"


def _directory_id(directory: SelectedDirectory, node_id: int | None) -> str | None:
    """Return the id that the cluster's metadata gives the directory of these partitions; None if it is not certain."""
    if directory.metadata is None:
        return None
    found = set()
    for partition in directory.all_partitions:
        nodes = directory.metadata.replicas.get(partition.topic, {}).get(partition.partition, ())
        ids = directory.metadata.directory_ids.get(partition.topic, {}).get(partition.partition, ())
        if len(nodes) == len(ids) and (node_id in nodes or (node_id is None and len(nodes) == 1)):
            found.add(ids[nodes.index(node_id) if node_id in nodes else 0])
    return format_uuid(next(iter(found)).bytes) if len(found) == 1 else None


def _metadata_log(directory: SelectedDirectory, fs: Fs) -> Iterator[_Fault]:
    if not has_metadata_log(fs, directory.path):
        return
    from sediment.segment_io.internal_topics.quorum_state import read_quorum_state

    folder = directory.path / str(METADATA_PARTITION)
    for name, read, advice in (
        (
            PARTITION_METADATA_FILE,
            lambda: read_partition_metadata(fs, folder / PARTITION_METADATA_FILE),
            "move it away, and the broker writes it again",
        ),
        (
            QUORUM_STATE_FILE,
            lambda: read_quorum_state(folder, fs),
            "if this node is the only controller, or no controller, move it away, and the node writes it again. "
            "Otherwise restore it, because a controller that forgets its vote may vote twice",
        ),
    ):
        try:
            read()
        except SedimentError as error:
            yield f"{METADATA_PARTITION}/{name}", error.what.removeprefix(f"{name} "), advice
    snapshot = None if directory.metadata is None else directory.metadata.unreadable_snapshot
    if snapshot is not None and fs.entry(folder / snapshot) is not None:
        advice = "move it away, because the log, or an older snapshot and the log, have all its records"
        yield f"{METADATA_PARTITION}/{snapshot}", "cannot be read", advice


def _bootstrap(directory: SelectedDirectory, fs: Fs) -> Iterator[_Fault]:
    entry = fs.entry(directory.path / BOOTSTRAP_FILE)
    if entry is None or entry.size_bytes:
        return
    advice = "restore it, because until a first start it is the only file with the metadata of the node"
    if has_metadata_log(fs, directory.path):
        advice = "move it away, because the metadata log has replaced it"
    yield BOOTSTRAP_FILE, "has 0 bytes", advice

"""Future replicas of a node's directories, and what a broker's start makes of each of them.

A future replica is the copy of a log that AlterReplicaLogDirs fills in another directory.  A start of Kafka 4.2.0:

    the log itself is         the metadata names             the start
    in the same directory     this directory                 fails: the copy cannot take the name of the log
                              another directory              leaves the copy alone
    in another directory      the directory of the copy      makes the copy the log, however short, and deletes the log
                              another directory              truncates the copy to the log, and goes on copying
    in no directory           the directory of the copy      makes the copy the log
                              another directory              creates an empty log, and truncates the copy to it

Source: each case was started; LogManager.recoverAbandonedFutureLogs, ReplicaAlterLogDirsThread (kafka-log 05 §1).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sediment.jobs.settings.directories import SelectedDirectory
from sediment.segment_io.errors import SedimentError, UsageError
from sediment.segment_io.format.checkpoints import format_uuid
from sediment.segment_io.format.names import DirectoryState, TopicPartition, parse_partition_directory
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.segment_end import find_log_end

FUTURE_REPLICA = "future-replica"


@dataclass(frozen=True, slots=True)
class FutureReplica:
    """A future replica; `what` is a clause about it and the next start of a broker, and `advice` the next action.

    `is_dangerous` is True if a start loses records or fails because of it.
    """

    name: str
    partition: TopicPartition
    log_dir: Path
    what: str
    advice: str
    is_dangerous: bool

    def __str__(self) -> str:
        return f"{self.name} {self.what}; {self.advice}"


def future_replicas(directories: Sequence[SelectedDirectory], fs: Fs) -> Mapping[Path, tuple[FutureReplica, ...]]:
    return {directory.path: tuple(_in_directory(directory, directories, fs)) for directory in directories}


def _in_directory(
    directory: SelectedDirectory, directories: Sequence[SelectedDirectory], fs: Fs
) -> Iterator[FutureReplica]:
    names = [entry.name for entry in fs.scan(directory.path) if entry.is_directory]
    own = [other for other in directories if other is directory or _is_same_node(other, directory)]
    for name in names:
        partition = _partition_of_future(name)
        if partition is not None:
            try:
                what, advice, is_dangerous = _judged(partition, name, directory, own, fs)
            except (SedimentError, OSError) as error:
                what, advice, is_dangerous = f"cannot be read: {error}", "look at it before a start", False
            yield FutureReplica(name, partition, directory.path, what, advice, is_dangerous)


def _partition_of_future(name: str) -> TopicPartition | None:
    if not name.endswith(DirectoryState.FUTURE):
        return None
    try:
        return parse_partition_directory(name)[0]
    except UsageError:
        return None


def _is_same_node(one: SelectedDirectory, other: SelectedDirectory) -> bool:
    if one.meta is None or other.meta is None:
        return one.meta is other.meta
    return (one.meta.cluster_id, one.meta.node_id) == (other.meta.cluster_id, other.meta.node_id)


def _judged(
    partition: TopicPartition, name: str, directory: SelectedDirectory, own: Sequence[SelectedDirectory], fs: Fs
) -> tuple[str, str, bool]:
    copy = find_log_end(partition, directory.path / name, fs)
    torn = ", and its last batch is torn" if copy.is_torn else ""
    assigned = _assigned_directory(partition, directory)
    is_assigned = None if assigned is None or directory.meta is None else assigned == directory.meta.directory_id
    if partition in directory.all_partitions:
        if is_assigned:
            return (
                f"is a copy of {partition}, which is in the same directory, so a broker does not start{torn}",
                "move the copy away",
                True,
            )
        what = f"is a copy of {partition}, which is in the same directory, so it serves nothing{torn}"
        return what, f"remove it after a broker has served {partition}", False
    place = next((other for other in own if partition in other.all_partitions), None)
    if place is None:
        is_lost = assigned is not None and not is_assigned
        what = f"is a copy of {partition}, and no directory of this run has the log itself{torn}"
        if is_lost:
            what += "; a broker would create an empty log, and truncate this copy to it"
        advice = (
            f"name all directories of the node; if none of them has the log, rename this folder to {partition} before "
            "a broker starts"
        )
        return what, advice, is_lost
    end = find_log_end(partition, place.path / str(partition), fs)
    if is_assigned:
        if copy.next_offset < end.next_offset:
            what = (
                f"ends at offset {copy.next_offset}, and the log in {place.path} ends at {end.next_offset}; the "
                "metadata names the directory of the copy, so a broker makes the copy the log, and deletes the other"
                f"{torn}"
            )
            return what, "move the copy away before a broker starts, which then goes on with the log", True
        what = f"replaces the log in {place.path} at the next start of a broker, as the metadata says{torn}"
        return what, "nothing is to be done", False
    what = f"is a copy of the log in {place.path}, which a broker completes after its start{torn}"
    return what, "nothing is to be done, because the log has all its records", False


def _assigned_directory(partition: TopicPartition, directory: SelectedDirectory) -> str | None:
    metadata, meta = directory.metadata, directory.meta
    if metadata is None or meta is None:
        return None
    nodes = metadata.replicas.get(partition.topic, {}).get(partition.partition, ())
    ids = metadata.directory_ids.get(partition.topic, {}).get(partition.partition, ())
    if meta.node_id not in nodes or len(nodes) != len(ids):
        return None
    found = ids[nodes.index(meta.node_id)]
    # Ids below 100 stand for states, such as "no directory yet" (Kafka's DirectoryId).
    return format_uuid(found.bytes) if found.int >= 100 else None

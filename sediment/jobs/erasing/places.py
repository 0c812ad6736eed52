"""Places outside the log's segments that may still contain erased records, and replicas that a run did not erase from.

    found           entries that a broker or a run left in a log directory; the directory of --keep-originals;
                    replicas that the metadata log names; the source of a run with --output
    not visible     tables, backups, filesystem snapshots and free blocks: they are always listed

Invariant: only names, checkpoints and the metadata log are read here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sediment.engine.directory.originals.kept_in import KEPT_BEFORE_CUTS
from sediment.jobs.delta_lake.paths import local_directory
from sediment.jobs.settings.directories import SelectedDirectory
from sediment.segment_io.errors import UsageError
from sediment.segment_io.format.names import DirectoryState, TopicPartition, parse_partition_directory
from sediment.segment_io.fs import FileEntry, Fs
from sediment.segment_io.partition.listing import list_log


@dataclass(frozen=True, slots=True)
class Place:
    """`path` is None for places that cannot be seen from this process.

    `advice` is the next action, with its command if there is one.
    """

    kind: str
    path: str | None
    advice: str


SOURCE = "source"
OTHER_REPLICAS = "other-replicas"
REPLICAS_UNKNOWN = "replicas-unknown"

_STATES = {
    DirectoryState.DELETE: (
        "deleted-partition",
        "the next start of the broker removes this entry; or remove it yourself",
    ),
    DirectoryState.STRAY: ("stray-partition", "remove this entry; or rename it, and then erase records from it"),
    DirectoryState.FUTURE: ("future-replica", "finish or cancel the move between log directories, then erase again"),
}

NOT_VISIBLE = (
    Place(
        "tables",
        None,
        "in tables of `expire --archive` and `snapshot`, and in other tables made from the topic: DELETE FROM t WHERE "
        "…; REORG TABLE t APPLY (PURGE); VACUUM t",
    ),
    Place("earlier-originals", None, "for each --keep-originals directory of an earlier run: sediment vacuum DIR"),
    Place(
        "consumers",
        None,
        "consumers that have already read past a new tombstone: produce a tombstone for each key "
        "in the --tombstones-out file",
    ),
    Place("backups", None, "erase from each copy of the directory, or delete the copy"),
    Place("filesystem-snapshots", None, "delete the snapshots of the filesystem or volume made before the run"),
    Place("free-blocks", None, "the filesystem overwrites freed blocks eventually; use discard or an encrypted volume"),
)


SPARK_FILES = Place(
    "spark-files",
    None,
    "keys and values were in files of Spark that are not encrypted, and stay there if Spark is killed: remove the "
    "folders spark-* and blockmgr-* of ended runs in spark.local.dir, and set spark.io.encryption.enabled",
)


@dataclass(frozen=True, slots=True)
class Replicas:
    """Node ids of a partition's replicas, ascending.

    `nodes` is None if no metadata log names the replicas.  `read` are the nodes whose directories the run reads;
    `covered` are the nodes in `read` from which the run erased records.
    """

    nodes: tuple[int, ...] | None
    read: tuple[int, ...]
    covered: tuple[int, ...]

    @property
    def others(self) -> tuple[int, ...] | None:
        return None if self.nodes is None else tuple(sorted(set(self.nodes) - set(self.read)))


def places_of(
    directories: Iterable[SelectedDirectory],
    replicas: Mapping[TopicPartition, Replicas],
    originals: Collection[Path],
    tiered: Collection[TopicPartition],
    fs: Fs,
) -> tuple[Place, ...]:
    found: list[Place] = []
    for directory in directories:
        found += _in_directory(directory, fs)
        kept = KEPT_BEFORE_CUTS.of(directory.path)
        if kept not in originals and fs.is_directory(kept) and any(map(_is_catalogue, fs.scan(kept))):
            advice = f"`recover` kept the files of logs that it cut: sediment vacuum {kept}"
            found.append(Place("earlier-originals", str(kept), advice))
    found += [
        Place("kept-originals", str(path), f"this run kept the replaced files: sediment vacuum {path}")
        for path in originals
    ]
    if tiered:
        names = ", ".join(map(str, sorted(tiered)))
        advice = f"remote storage contains segments of {names}: delete them there, as with kafka-delete-records"
        found.append(Place("tiered-segments", None, advice))
    for nodes, partitions in _by_other_nodes(replicas).items():
        named = ", ".join(map(str, partitions))
        if nodes is None:
            advice = (
                f"no metadata log names the replicas of {named}; erase on every broker, or name the directory of a "
                "KRaft node that has the log with --metadata DIR"
            )
            found.append(Place(REPLICAS_UNKNOWN, None, advice))
        else:
            brokers = ", ".join(map(str, nodes))
            have = f"broker {brokers} has" if len(nodes) == 1 else f"brokers {brokers} have"
            advice = f"{have} replicas of {named}; erase there too, with the broker stopped"
            found.append(Place(OTHER_REPLICAS, None, advice))
    return tuple(found)


def _is_catalogue(entry: FileEntry) -> bool:
    return entry.name.startswith("catalogue-") and entry.name.endswith(".json")


def unchanged_sources(log_dirs: Iterable[str]) -> tuple[Place, ...]:
    advice = "the run with --output did not change this directory: erase the records in it too, or delete it"
    unlisted = "; deleted, stray and left-over files inside it were not listed"
    return tuple(
        Place(SOURCE, log_dir, advice + unlisted if local_directory(log_dir) is None else advice)
        for log_dir in log_dirs
    )


def _by_other_nodes(
    replicas: Mapping[TopicPartition, Replicas],
) -> Mapping[tuple[int, ...] | None, Sequence[TopicPartition]]:
    found: dict[tuple[int, ...] | None, list[TopicPartition]] = {}
    for partition, each in sorted(replicas.items()):
        if each.others != ():
            found.setdefault(each.others, []).append(partition)
    return found


def _in_directory(directory: SelectedDirectory, fs: Fs) -> Iterator[Place]:
    topics = {partition.topic for partition in directory.partitions}
    for entry in sorted(fs.scan(directory.path), key=lambda entry: entry.name):
        if not entry.is_directory:
            continue
        try:
            partition, state = parse_partition_directory(entry.name)
        except UsageError:
            continue
        if partition.topic not in topics:
            continue
        path = directory.path / entry.name
        if state in _STATES:
            kind, advice = _STATES[state]
            yield Place(kind, str(path), advice)
        elif partition in directory.partitions:
            for leftover in list_log(partition, path, fs).leftovers:
                advice = "the next start of the broker, or `sediment recover`, removes it"
                yield Place("leftover", str(path / leftover.name), advice)

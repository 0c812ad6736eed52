"""The logs of a directory that a broker would load, as far as they are selected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from sediment.engine.directory.missing_records import KnownOfLog, orphans_of
from sediment.engine.directory.partition_metadata import TopicIdFault, TopicIds
from sediment.engine.directory.repair import Repair
from sediment.engine.log_config import LogConfig
from sediment.jobs.command_line.options import CommonOptions
from sediment.jobs.reporting.error_text import describe
from sediment.jobs.settings.directories import SelectedDirectory
from sediment.jobs.settings.future_replicas import FutureReplica
from sediment.jobs.settings.known_logs import known_of_log
from sediment.jobs.settings.topic_ids import NO_TOPIC_ID
from sediment.segment_io.format.names import DirectoryState, TopicPartition, parse_segment_file
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import PartitionCheckpoints
from sediment.segment_io.partition.partition_directories import find_partitions

_NOT_LOADED = frozenset({DirectoryState.DELETE, DirectoryState.STRAY})


@dataclass(frozen=True, slots=True)
class LogToLoad:
    """Log to load; `name` is the name of its directory: `TOPIC-N`, or the name of a future replica's directory."""

    name: str
    partition: TopicPartition
    state: DirectoryState
    directory: SelectedDirectory
    checkpoints: PartitionCheckpoints
    config: LogConfig
    log_bytes: int
    finished: tuple[Repair, ...] = ()
    """Repairs made before the originals were linked."""

    failure: tuple[str, str] | None = None
    """Reason code and text if the log must not be loaded."""

    topic_id_fault: TopicIdFault | None = None
    """A fault of partition.metadata that is repaired, or that is reported as a warning."""

    keeps_producers: bool = False
    """True if a copy without producer snapshots must not lose its open transactions, as it would in a broker."""

    known: KnownOfLog | None = None
    """What is known besides the files; None for a future replica, which is only a copy."""

    orphans: Mapping[int, str] = field(default_factory=dict)
    """Indexes without a log, by base offset."""

    future: FutureReplica | None = None
    """What a start makes of the log if it is a future replica."""

    @property
    def path(self) -> Path:
        return self.directory.path / self.name


def open_with_future_replicas(options: CommonOptions, fs: Fs) -> list[SelectedDirectory]:
    """Open the directories; a `--partition` may also select a future replica by the name of its directory."""
    directories = replace(options, allow_empty_selection=True).open_directories(fs)
    if not options.allow_empty_selection:
        names = [name for directory in directories for name, _, _ in _logs(directory, fs)]
        options.selection.check(names, where=", ".join(map(str, options.log_dirs)))
    return directories


def _logs(directory: SelectedDirectory, fs: Fs) -> list[tuple[str, TopicPartition, DirectoryState]]:
    """Return the logs that a broker would load: directory name, partition and state."""
    names = [entry.name for entry in fs.scan(directory.path) if entry.is_directory]
    found = find_partitions(directory.path, names).items()
    return [(name, partition, state) for name, (partition, state) in found if state not in _NOT_LOADED]


def logs_to_load(
    directory: SelectedDirectory,
    topic_ids: TopicIds,
    future: Sequence[FutureReplica],
    options: CommonOptions,
    fs: Fs,
) -> tuple[list[LogToLoad], bool]:
    """Return the selected logs of a directory, and True if they are all the logs that a broker would load."""
    logs = _logs(directory, fs)
    by_name = {replica.name: replica for replica in future}
    selected = [
        replace(_log_to_load(directory, *log, topic_ids, fs), future=by_name.get(log[0]))
        for log in logs
        if options.selection.includes(log[0])
    ]
    return selected, len(selected) == len(logs)


def _log_to_load(
    directory: SelectedDirectory,
    name: str,
    partition: TopicPartition,
    state: DirectoryState,
    topic_ids: TopicIds,
    fs: Fs,
) -> LogToLoad:
    files = fs.scan(directory.path / name)
    settings = directory.settings
    failure: tuple[str, str] | None = None
    fault: TopicIdFault | None = None
    try:
        fault = topic_ids.fault(partition, directory.path / name)
    except OSError as error:
        failure = describe(error)
    if fault is not None and fault.is_lost and fault.topic_id is None:
        failure = NO_TOPIC_ID, str(fault)
    # If an id is lost, the log belongs to the cluster's topic of its name, or it is not loaded.
    if failure is None and (fault is None or not fault.is_lost):
        settings = directory.settings_of(partition, fs, name=name)
    return LogToLoad(
        name=name,
        partition=partition,
        state=state,
        directory=directory,
        checkpoints=directory.checkpoints.of(partition),
        config=settings.for_topic(partition.topic),
        log_bytes=sum(file.size_bytes for file in files if parse_segment_file(file.name)),
        failure=failure,
        topic_id_fault=fault,
        known=known_of_log(directory, partition, settings) if state is DirectoryState.LIVE else None,
        orphans=orphans_of(file.name for file in files),
    )


LogsOfDirectories = list[tuple[SelectedDirectory, list[LogToLoad], bool]]

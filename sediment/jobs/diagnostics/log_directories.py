"""Checks of log directories: format, permissions, lock, clean stop, space, topic ids, records, settings, policies."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from sediment.engine.directory.lock import lock_holder
from sediment.engine.directory.missing_records import losses_in_files
from sediment.engine.directory.partition_metadata import TopicIds
from sediment.jobs.diagnostics.check import Check, failed, passed, warned
from sediment.jobs.diagnostics.topic_policies import policy_check
from sediment.jobs.reporting.error_text import describe
from sediment.jobs.reporting.figures import counted, human_bytes
from sediment.jobs.settings.cluster_settings import open_directories
from sediment.jobs.settings.damaged_files import damaged_files
from sediment.jobs.settings.directories import SelectedDirectory, open_directory
from sediment.jobs.settings.future_replicas import future_replicas
from sediment.jobs.settings.known_logs import known_of_log
from sediment.jobs.settings.resolve import Settings
from sediment.jobs.settings.run_settings import RunSettings
from sediment.jobs.settings.selection import Selection
from sediment.jobs.settings.topic_ids import topic_ids_of
from sediment.jobs.settings.unstated_settings import why_not_compacted
from sediment.segment_io.errors import CorruptCheckpointError, SedimentError, SettingsError
from sediment.segment_io.format.layout import INT64_MAX
from sediment.segment_io.format.names import LOCK_FILE, PARTITION_METADATA_FILE, TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.mounts import filesystem_type, network_filesystem
from sediment.segment_io.partition.hanging_transactions import hanging_warning
from sediment.segment_io.partition.listing import list_log
from sediment.segment_io.partition.producer_snapshots import load_producer_state

_MOST_NAMED = 3
_MOST_UNREADABLE = 20


def directory_checks(log_dirs: Sequence[Path], settings: RunSettings, fs: Fs) -> Iterator[Check]:
    opened = []
    in_use = set()
    for log_dir in log_dirs:
        try:
            directory = open_directory(log_dir, Selection(), fs)
        except (SedimentError, OSError) as error:
            yield failed("log-directory", describe(error)[1], None, log_dir=str(log_dir))
            continue
        opened.append(directory)
        yield passed(
            "log-directory", counted(len(directory.partitions), "partition") + _owner(directory), log_dir=str(log_dir)
        )
        yield _permissions(directory)
        yield _filesystem(log_dir)
        is_locked = _lock(log_dir)
        yield is_locked
        if is_locked.status != "ok":
            in_use.add(log_dir)
        yield _clean_shutdown(directory, is_used=log_dir in in_use)
        yield _space(directory, fs)
    if opened:
        paths = [directory.path for directory in opened]
        yield from _partitions(paths, settings, fs, in_use=in_use)
        yield _settings(paths, settings, fs)
        yield from _policies(paths, settings, fs)


def _owner(directory: SelectedDirectory) -> str:
    meta = directory.meta
    if meta is None:
        return ", without meta.properties"
    return f" of node {meta.node_id}" if meta.node_id is not None else ""


def _permissions(directory: SelectedDirectory) -> Check:
    name, log_dir = "permissions", str(directory.path)
    folders = [directory.path, *(directory.path / str(partition) for partition in directory.partitions)]
    unreadable = [folder for folder in folders if not os.access(folder, os.R_OK | os.X_OK) or _hides_a_file(folder)]
    advice = "run as the broker's user or as root"
    if unreadable:
        more = f" and {len(unreadable) - 1} more" if len(unreadable) > 1 else ""
        return failed(name, f"no permission to read {unreadable[0].name}{more}", advice, log_dir=log_dir)
    owner = directory.path.stat().st_uid
    if not all(os.access(folder, os.W_OK) for folder in folders):
        return warned(name, "it can be read but not written", advice, log_dir=log_dir)
    if os.geteuid() not in (0, owner):
        return warned(
            name,
            f"it belongs to user {owner}, and the current user cannot create files with that owner",
            advice,
            log_dir=log_dir,
        )
    return passed(name, "it can be read and written, and new files get the same owner", log_dir=log_dir)


def _hides_a_file(folder: Path) -> bool:
    if os.geteuid() == 0:
        return False
    with os.scandir(folder) as entries:
        return any(stat.S_ISREG(each.stat().st_mode) and not os.access(each.path, os.R_OK) for each in entries)


def _filesystem(log_dir: Path) -> Check:
    kind = network_filesystem(log_dir)
    if kind is not None:
        text = f"it is on a network filesystem ({kind}), so another host may use it at the same time"
        advice = "make sure that no other host uses it, then give --allow-network-fs"
        return warned("filesystem", text, advice, log_dir=str(log_dir))
    return passed("filesystem", filesystem_type(log_dir) or "unknown", log_dir=str(log_dir))


def _lock(log_dir: Path) -> Check:
    try:
        holder = lock_holder(log_dir)
    except OSError as error:
        return failed("lock", describe(error)[1], "run as the broker's user or as root", log_dir=str(log_dir))
    if holder is None:
        return passed("lock", f"free ({LOCK_FILE})", log_dir=str(log_dir))
    process = f"process {holder}" if holder else "another process"
    text = f"{process} holds {LOCK_FILE}, so commands that write here are refused"
    return warned("lock", text, "stop the broker or wait for the other run to end", log_dir=str(log_dir))


def _clean_shutdown(directory: SelectedDirectory, *, is_used: bool) -> Check:
    name, log_dir = "clean-shutdown", str(directory.path)
    if directory.checkpoints.clean_shutdown:
        return passed(name, "the broker stopped cleanly", log_dir=log_dir)
    if not directory.is_unclean:
        return passed(name, "a copy that has no checkpoint files of a broker", log_dir=log_dir)
    if is_used:
        return passed(name, "the directory is in use", log_dir=log_dir)
    text = "the broker did not stop cleanly, so offsets at and above the recovery point are not cleaned"
    advice = f"start and stop the broker, or repair the logs: sediment recover {directory.path} --dry-run"
    return warned(name, text, advice, log_dir=log_dir)


def _space(directory: SelectedDirectory, fs: Fs) -> Check:
    name, log_dir = "free-space", str(directory.path)
    free = fs.free_bytes(directory.path)
    sizes = {str(partition): _log_bytes(directory.path / str(partition), fs) for partition in directory.partitions}
    largest = max(sizes, key=lambda each: sizes[each], default=None)
    if largest is not None and free < sizes[largest]:
        text = (
            f"{human_bytes(free)} free, and the largest partition, {largest}, has {human_bytes(sizes[largest])}; a run "
            "writes new segments before it removes old ones"
        )
        return warned(
            name,
            text,
            "free some space, for example with `sediment expire`, or write to another disk with compact --output",
            log_dir=log_dir,
        )
    return passed(name, f"{human_bytes(free)} free", log_dir=log_dir)


def _log_bytes(folder: Path, fs: Fs) -> int:
    try:
        return sum(entry.size_bytes for entry in fs.scan(folder) if entry.name.endswith(".log"))
    except OSError:
        return 0


def _partitions(paths: Sequence[Path], settings: RunSettings, fs: Fs, *, in_use: Collection[Path]) -> Iterator[Check]:
    """Check the partitions of each directory that is not in use, because a broker changes its files."""
    try:
        directories = open_directories(paths, Selection(), settings, fs)
    except (SedimentError, OSError):
        return  # the check of the settings reports this error
    topic_ids = topic_ids_of(directories, fs)
    for directory in directories:
        if directory.path not in in_use:
            yield from _future_replicas(directory, directories, fs)
            yield from _small_files(directory, directories, fs)
            yield _topic_ids(directory, topic_ids[directory.path])
            yield _records(directory, fs)
            yield _transactions(directory, fs)


def _small_files(directory: SelectedDirectory, directories: Sequence[SelectedDirectory], fs: Fs) -> Iterator[Check]:
    name, log_dir = "small-files", str(directory.path)
    damaged = damaged_files(directory, directories, fs)
    for file in damaged:
        yield (failed if file.prevents_start else warned)(
            name, f"{file.file} {file.what}", file.advice, log_dir=log_dir
        )
    if not damaged:
        yield passed(name, "no file of the directory has lost its content", log_dir=log_dir)


def _future_replicas(directory: SelectedDirectory, directories: Sequence[SelectedDirectory], fs: Fs) -> Iterator[Check]:
    for replica in future_replicas(directories, fs)[directory.path]:
        check = failed if replica.is_dangerous else warned
        said = f"{replica.name} {replica.what}"
        yield check("future-replicas", said, replica.advice, log_dir=str(directory.path))


def _records(directory: SelectedDirectory, fs: Fs) -> Check:
    name, log_dir = "records", str(directory.path)
    lost, doubtful, unreadable = [], [], {}
    for partition in directory.partitions:
        try:
            listing = list_log(partition, directory.path / str(partition), fs)
            known = known_of_log(directory, partition, directory.settings_of(partition, fs))
            found = losses_in_files(listing, known, fs, most_bytes_read=0)
        except CorruptCheckpointError:
            continue  # the check of the topic ids reports this error
        except (SedimentError, OSError) as error:
            unreadable[partition] = describe(error)[1]
            continue
        lost += [(f"{partition}: {missing.what}", missing.advice) for missing in found.missing]
        doubtful += [f"{partition}: {warning}" for warning in found.warnings]
    if unreadable:
        also = f"; and {lost[0][0]}" if lost else ""
        return failed(name, _unreadable(unreadable) + also, lost[0][1] if lost else None, log_dir=log_dir)
    if not lost and not doubtful:
        return passed(name, "no log is shorter than its checkpoints say, and no segment is missing", log_dir=log_dir)
    what, advice = lost[0] if lost else (doubtful[0], f"look at it with: sediment recover {directory.path} --dry-run")
    others = len(lost or doubtful) - 1
    more = f"; and {others} more, which plan names" if others else ""
    return (failed if lost else warned)(name, what + more, advice, log_dir=log_dir)


def _transactions(directory: SelectedDirectory, fs: Fs) -> Check:
    """Check after a clean stop, when producer snapshots are complete, that no transaction hangs."""
    name, log_dir = "transactions", str(directory.path)
    if not directory.checkpoints.clean_shutdown:
        return passed(name, "transactions are not checked, because the last stop was not clean", log_dir=log_dir)
    hanging, now_ms = [], time.time_ns() // 1_000_000
    for partition in directory.partitions:
        path = directory.path / str(partition)
        try:
            snapshots = list_log(partition, path, fs).snapshots
            loaded = load_producer_state(
                fs, path, snapshots, log_start_offset=0, log_end_offset=INT64_MAX, now_ms=now_ms, expiration_ms=None
            )
        except (SedimentError, OSError):
            continue  # the check of the records reports this error
        if warning := hanging_warning(partition, directory.path, loaded.state.entries.values(), now_ms):
            hanging.append(f"{partition}: {warning}")
    if not hanging:
        return passed(name, "no transaction hangs", log_dir=log_dir)
    what, _, advice = hanging[0].partition("; ")
    more = f"; {counted(len(hanging) - 1, 'more partition')} like this" if len(hanging) > 1 else ""
    return warned(name, what + more, advice, log_dir=log_dir)


def _unreadable(partitions: Mapping[TopicPartition, str]) -> str:
    first, *others = partitions
    text = f"{first} cannot be checked: {partitions[first]}"
    if not others:
        return text
    more = f" and {len(others) - _MOST_UNREADABLE} more" if others[_MOST_UNREADABLE:] else ""
    return f"{text}; nor can {', '.join(map(str, others[:_MOST_UNREADABLE]))}{more}"


def _topic_ids(directory: SelectedDirectory, topic_ids: TopicIds) -> Check:
    name, log_dir = "topic-ids", str(directory.path)
    faults, unreadable = {}, {}
    for partition in directory.partitions:
        try:
            fault = topic_ids.fault(partition, directory.path / str(partition))
        except OSError as error:
            unreadable[partition] = describe(error)[1]
            continue
        if fault is not None:
            faults[partition] = fault
    if unreadable:
        return failed(name, _unreadable(unreadable), None, log_dir=log_dir)
    if not faults:
        text = "every folder has the id of its topic in the cluster's metadata"
        if directory.metadata is None:
            text = f"no {PARTITION_METADATA_FILE} is damaged; there is no metadata to compare their ids with"
        return passed(name, text, log_dir=log_dir)
    partition, fault = min(faults.items(), key=lambda item: (not item[1].is_lost, item[0]))
    more = f"; {counted(len(faults) - 1, 'more partition')} like this" if len(faults) > 1 else ""
    text = f"{partition}: {PARTITION_METADATA_FILE} {fault.fault}, so {fault.effect}{more}"
    return (failed if fault.is_lost else warned)(name, text, fault.advice, log_dir=log_dir)


def _policies(paths: Sequence[Path], settings: RunSettings, fs: Fs) -> Iterator[Check]:
    try:
        yield policy_check(open_directories(paths, Selection(), settings, fs), fs)
    except (SedimentError, OSError):
        return  # the check of the settings reports this error


def _settings(paths: Sequence[Path], settings: RunSettings, fs: Fs) -> Check:
    name = "settings"
    try:
        directories = open_directories(paths, Selection(), settings, fs, in_place=True)
        unstated = _unstated_topics(directories, fs)
    except SettingsError as error:
        is_stated = settings != RunSettings((Settings(),))
        return (failed if is_stated else warned)(name, error.what, error.advice or "correct the settings")
    except (SedimentError, OSError) as error:
        return failed(name, describe(error)[1], None)
    if unstated:
        topics = sorted(unstated)
        more = f" and {len(topics) - _MOST_NAMED} more" if topics[_MOST_NAMED:] else ""
        named = ", ".join(topics[:_MOST_NAMED]) + more
        text = f"cleanup.policy is not stated for {named}; compact and expire leave them alone"
        return warned(name, text, unstated[topics[0]].how_to_state(topics[0], "cleanup.policy"))
    return passed(name, "the cleanup.policy of every topic is stated")


def _unstated_topics(directories: Sequence[SelectedDirectory], fs: Fs) -> dict[str, Settings]:
    found = {}
    for directory in directories:
        topics = {partition.topic: partition for partition in directory.partitions}
        for topic, partition in topics.items():
            try:
                settings = directory.settings_of(partition, fs)
            except CorruptCheckpointError:
                continue  # the check of the topic ids reports this error
            reason = why_not_compacted(partition, settings, settings.for_topic(topic))
            if reason is not None and reason[0] == "policy-unknown":
                found[topic] = settings
    return found

"""The check whether a topic's cleanup.policy deletes records that the topic, by its name or its content, needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from sediment.jobs.diagnostics.check import Check, passed, warned
from sediment.jobs.settings.directories import SelectedDirectory
from sediment.jobs.settings.policy_warnings import policy_warning
from sediment.jobs.settings.unstated_settings import why_not_expired
from sediment.segment_io.errors import CorruptCheckpointError, CorruptDataError
from sediment.segment_io.format.names import INTERNAL_TOPICS, TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.listing import LogListing, list_log

_SAMPLE_BYTES = 256 << 10
_MOST_NAMED = 3


def policy_check(directories: Sequence[SelectedDirectory], fs: Fs) -> Check:
    name = "policies"
    found: dict[str, str] = {}
    for directory in directories:
        for partition, listing in _largest_of_each_topic(directory, fs).items():
            try:
                warning = _warning(directory, partition, listing, fs)
            except (CorruptDataError, CorruptCheckpointError):
                continue  # other checks and commands report damage
            if warning is not None:
                found.setdefault(partition.topic, warning)
    if not found:
        return passed(name, "no cleanup.policy is known to delete records that its topic needs")
    topics = sorted(found)
    more = f"; and {len(topics) - _MOST_NAMED} more topics like these" if topics[_MOST_NAMED:] else ""
    text = "; ".join(found[topic] for topic in topics[:_MOST_NAMED]) + more
    return warned(name, text, "correct the policies before a broker, compact or expire deletes these records")


def _largest_of_each_topic(directory: SelectedDirectory, fs: Fs) -> Mapping[TopicPartition, LogListing]:
    largest: dict[str, LogListing] = {}
    for partition in directory.partitions:
        listing = list_log(partition, Path(directory.path, str(partition)), fs)
        kept = largest.get(partition.topic)
        if kept is None or listing.log_bytes() > kept.log_bytes():
            largest[partition.topic] = listing
    return {listing.partition: listing for listing in largest.values()}


def _warning(directory: SelectedDirectory, partition: TopicPartition, listing: LogListing, fs: Fs) -> str | None:
    # Imported late, because this module compiles kernels.
    from sediment.compaction.estimate import estimate_uncleaned

    settings = directory.settings_of(partition, fs)
    config = settings.for_topic(partition.topic)
    expires = why_not_expired(partition, directory.checkpoints.of(partition), settings, config) is None
    warning = policy_warning(partition.topic, config, expires=expires)
    if warning is not None or not config.compacts or partition.topic in INTERNAL_TOPICS:
        return warning
    if not estimate_uncleaned(listing.path, listing.segments, fs, sample_bytes=_SAMPLE_BYTES).records_without_key:
        return None
    return f"{partition} has records without a key, which cleanup.policy={','.join(config.cleanup_policy)} drops"

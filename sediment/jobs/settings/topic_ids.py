"""The topic ids in the partition.metadata files of a run's directories, compared with the metadata of their cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from sediment.engine.directory.partition_metadata import TopicIds
from sediment.jobs.settings.directories import SelectedDirectory
from sediment.segment_io.format.meta_properties import KRAFT_META_VERSION
from sediment.segment_io.fs import Fs

NO_TOPIC_ID = "no-topic-id"


def topic_ids_of(directories: Sequence[SelectedDirectory], fs: Fs) -> Mapping[Path, TopicIds]:
    """Return the checks of topic ids for each directory; folders of one node are compared with each other."""
    return {
        directory.path: TopicIds(
            directory.metadata,
            (
                (partition, other.path / str(partition))
                for other in directories
                if other is directory or (other.metadata is directory.metadata and other.metadata is not None)
                for partition in other.all_partitions
            ),
            fs,
            node_id=None if directory.meta is None else directory.meta.node_id,
            is_kraft=directory.meta is not None and directory.meta.version == KRAFT_META_VERSION,
        )
        for directory in directories
    }

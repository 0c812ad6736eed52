"""Directories of a log directory that count as partitions, and the warning about the others."""

from __future__ import annotations

import logging

import pytest

from sediment.segment_io.errors import UsageError
from sediment.segment_io.format.names import DirectoryState, TopicPartition
from sediment.segment_io.partition.partition_directories import (
    find_live_partitions,
    find_partitions,
    parse_log_folder,
)

FUTURE = "t-1.0123456789abcdef0123456789abcdef-future"
DELETED = "t-2.0123456789abcdef0123456789abcdef-delete"


def test_the_metadata_log_and_the_cache_of_tiered_storage_are_no_partitions():
    assert parse_log_folder(DELETED) == (TopicPartition("t", 2), DirectoryState.DELETE)
    assert parse_log_folder("remote-log-index-cache") is None
    assert parse_log_folder("__cluster_metadata-0") is None


def test_a_name_that_no_broker_starts_on_is_an_error():
    with pytest.raises(UsageError, match="'lost\\+found' is not named topic-partition"):
        parse_log_folder("lost+found")


def test_partitions_are_found_by_name_and_what_a_broker_passes_over_is_passed_over_in_silence(caplog):
    names = ["t-10", "t-9", FUTURE, DELETED, "remote-log-index-cache", "__cluster_metadata-0"]
    assert find_partitions("/logs", names) == {
        "t-10": (TopicPartition("t", 10), DirectoryState.LIVE),
        "t-9": (TopicPartition("t", 9), DirectoryState.LIVE),
        FUTURE: (TopicPartition("t", 1), DirectoryState.FUTURE),
        DELETED: (TopicPartition("t", 2), DirectoryState.DELETE),
    }
    assert find_live_partitions("/logs", names) == [TopicPartition("t", 9), TopicPartition("t", 10)]
    assert not caplog.records


def test_two_spellings_of_a_partition_are_one_partition_and_a_warning(caplog):
    assert find_live_partitions("/l\x1bgs", ["t-00", "t-0"]) == [TopicPartition("t", 0)]
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == (
        r"/l\x1bgs: skipped: directory 't-00' is not named topic-partition: the name of that partition is t-0; a "
        "broker treats it as t-0, and refuses to start if a directory t-0 exists too; move it out of the log directory"
    )


def test_many_strange_names_are_counted_rather_than_listed(caplog):
    assert find_live_partitions("/logs", [f"backup {n}" for n in range(4000)]) == []
    assert len(caplog.records) == 11
    assert caplog.records[-1].getMessage() == "/logs: skipped: 3990 more directories"

"""Checkpoint files of a log directory: which logs they list."""

from __future__ import annotations

from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.partition.log_dir_checkpoints import LogDirCheckpoints, log_start_entries

AT, INSIDE, BELOW = (TopicPartition("t", number) for number in range(3))


def test_lm_06_only_logs_that_start_above_their_first_segments_base_are_in_the_log_start_checkpoint() -> None:
    assert log_start_entries([(AT, 4, 4), (INSIDE, 5, 4), (BELOW, 3, 4)]) == {INSIDE: 5}


def test_the_entries_of_one_partition_leave_absent_files_absent() -> None:
    every = {AT: 1, INSIDE: 2}
    found = LogDirCheckpoints(every, None, every, {INSIDE: 3}, clean_shutdown=True)
    assert found.only(AT) == LogDirCheckpoints({AT: 1}, None, {AT: 1}, {}, clean_shutdown=True)
    assert found.only(AT).of(AT) == found.of(AT)

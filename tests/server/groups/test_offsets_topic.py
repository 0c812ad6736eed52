"""Records of groups in `__consumer_offsets`: their partitions, and deletions of any size."""

from __future__ import annotations

from pathlib import Path

import pytest

from sediment.segment_io.errors import RecordTooLargeError, StorageError
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.coordinator_log import coordinator_partition
from sediment.server.groups.group_offsets import CommittedOffset
from sediment.server.groups.group_requests import StableGroup
from tests.server.groups.offsets_logs import Coordinated, OffsetsLogs

PARTITIONS = 100
MAX_BYTES = 1000
COMMIT = ("t", 0, CommittedOffset(5))


def group_in(number: int, count: int) -> str:
    """Return the id of a group whose partition is `number` of `count`."""
    return next(name for name in (f"g{each}" for each in range(100)) if coordinator_partition(name, count) == number)


def test_a_group_whose_partition_has_no_log_is_refused_and_the_others_are_stored(tmp_path: Path) -> None:
    logs = OffsetsLogs(tmp_path, 3)
    logs.partitions[2] = None
    lost, kept = group_in(2, 3), group_in(1, 3)
    logs.topic.append(kept, [COMMIT])
    assert [len(log.batches()) for log in logs.logs] == [0, 1, 0]
    with pytest.raises(StorageError, match="could not be created"):
        logs.topic.append(lost, [COMMIT])
    groups = Coordinated(logs)
    groups.load()
    assert groups.commit(lost) == ErrorCode.NOT_COORDINATOR
    assert groups.commit(kept, 6) == ErrorCode.NONE


@pytest.mark.parametrize("count", [1, 2, PARTITIONS])
def test_a_deletion_that_is_too_large_for_one_batch_is_split(tmp_path: Path, count: int) -> None:
    logs = OffsetsLogs(tmp_path, max_message_bytes=MAX_BYTES)
    partitions = [("t", number) for number in range(count)]
    for partition in partitions:
        logs.topic.append("g", [(*partition, CommittedOffset(5))])
    assert len(logs.replay()["g"].offsets.partitions()) == count
    before = logs.batches
    logs.topic.delete_group("g", partitions)
    assert logs.replay() == {}
    assert (logs.batches - before == 1) == (count < PARTITIONS)
    last = logs.logs[0].batches()[-1].records()[-1]
    assert last.key == bytes.fromhex("0002000167")  # the group


def test_offsets_of_several_groups_are_deleted_together(tmp_path: Path) -> None:
    logs = OffsetsLogs(tmp_path)
    for group in ("a", "b", "c"):
        logs.topic.append(group, [COMMIT, ("u", 1, CommittedOffset(7))])
    logs.topic.delete_offsets({"a": [("t", 0)], "b": [("t", 0), ("u", 1)]})
    assert {name: group.offsets.partitions() for name, group in logs.replay().items()} == {
        "a": [("u", 1)],
        "b": [],
        "c": [("t", 0), ("u", 1)],
    }


def test_a_record_that_is_too_large_is_refused(tmp_path: Path) -> None:
    logs = OffsetsLogs(tmp_path, max_message_bytes=MAX_BYTES)
    with pytest.raises(RecordTooLargeError):
        logs.topic.delete_group("g" * 2 * MAX_BYTES, [])
    with pytest.raises(RecordTooLargeError):
        logs.topic.store_group("g", StableGroup(1, "c" * 2 * MAX_BYTES, None, None, ()))
    assert logs.batches == 0

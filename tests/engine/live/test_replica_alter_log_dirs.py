"""Moves of logs to other log directories by a manager, step by step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sediment.engine.live.log.partition_log import PartitionLog
from sediment.engine.live.log_directory import LogDirectory
from sediment.engine.live.log_manager import LogManager
from sediment.engine.live.replica_alter_log_dirs import BACKOFF_MS, ReplicaAlterLogDirs
from sediment.segment_io.errors import CommitStateUnknownError, StorageError
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import read_offset_checkpoint
from tests.engine.live_logs import batch
from tests.engine.managed import (
    COMPACTED,
    DELETED,
    T0,
    FailingFs,
    advance,
    append,
    clock_of,
    dirty_log,
    records_of,
    running,
)

TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
DELAY_MS = 60_000
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
CHECKPOINTS = (RECOVERY_POINTS, "log-start-offset-checkpoint", "replication-offset-checkpoint")


class Moving:
    """Two directories with a log in the first one, and moves whose assignments `assign` makes."""

    def __init__(self, manager: LogManager, log: PartitionLog | None = None) -> None:
        self.manager = manager
        self.a, self.b = (directory.path for directory in manager.directories())
        self.log = log or manager.create_log(T0, log_dir=self.a, topic_id=TOPIC_ID)
        self.assigned: list[Path] = []
        self.replaced: list[PartitionLog] = []
        self.assign: Callable[[LogDirectory], None] = lambda directory: self.assigned.append(directory.path)
        self.moves = ReplicaAlterLogDirs(manager, self._replace)

    def _replace(self, partition: TopicPartition) -> None:
        self.manager.replace_current_with_future_log(partition, self.assign, self.replaced.append)

    def begin(self) -> PartitionLog:
        future = self.manager.create_future_log(T0, self.b)
        self.moves.add(future)
        return future

    def current(self) -> PartitionLog:
        log = self.manager.get_log(T0)
        assert log is not None
        return log


def moving(tmp_path: Path, **options: Any) -> Any:
    return running(tmp_path / "a", tmp_path / "b", **{"topic": DELETED, **options})


def names(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir() if entry.is_dir())


def checkpoint(path: Path, name: str) -> dict[TopicPartition, int]:
    found = read_offset_checkpoint(Fs(), path / name)
    assert found is not None
    return dict(found)


def test_a_moved_log_has_the_same_records_and_takes_appends(tmp_path: Path) -> None:
    with moving(tmp_path) as manager:
        moved = Moving(manager)
        append(moved.log, *((str(number), "v") for number in range(7)))
        before = records_of(moved.log)
        future = moved.begin()
        assert names(moved.b)[0].endswith("-future")
        manager.run_due()
        assert moved.current() is future
        assert moved.replaced == [future]
        assert moved.assigned == [moved.b]
        assert records_of(future) == before
        assert append(future, ("k", "v")) == 7
        assert names(moved.b) == ["t-0"]
        with pytest.raises(StorageError):
            append(moved.log, ("k", "v"))
    with moving(tmp_path) as manager:
        log = manager.get_log(T0)
        assert log is not None and log.directory == tmp_path / "b" / "t-0"
        assert all(repair.is_routine for repair in log.loaded.repairs)
        assert len(records_of(log)) == 8


def test_the_guard_of_a_transaction_stays_valid_and_producers_continue(tmp_path: Path) -> None:
    with moving(tmp_path) as manager:
        moved = Moving(manager)
        first = batch(pid=1, seq=0)
        moved.log.append_as_leader(first, 0)
        guard = moved.log.maybe_start_transaction_verification(2, 0, 0)
        moved.begin()
        manager.run_due()
        log = moved.current()
        assert log is not moved.log
        assert log.append_as_leader(first, 0).is_duplicate
        assert log.append_as_leader(batch(pid=1, seq=1), 0).first_offset == 1
        assert log.append_as_leader(batch(pid=2, seq=0, tx=True), 0, verification_guard=guard).first_offset == 2
        assert log.first_unstable_offset == 2


def test_the_leader_epochs_of_a_log_move_with_it_even_those_without_records(tmp_path: Path) -> None:
    with moving(tmp_path) as manager:
        moved = Moving(manager)
        append(moved.log, ("k", "v"))
        moved.log.assign_leader_epoch(3, 1)
        before = moved.log.leader_epochs
        moved.begin()
        manager.run_due()
        assert moved.current().leader_epochs == before
    with moving(tmp_path) as manager:
        log = manager.get_log(T0)
        assert log is not None and log.leader_epochs[0] == before[0]


def test_the_checkpoints_of_both_directories_follow_a_move(tmp_path: Path) -> None:
    with moving(tmp_path) as manager:
        moved = Moving(manager)
        moved.log.append_as_leader(batch(*((str(number), "v") for number in range(4))), 0)
        moved.log.maybe_increment_high_watermark()
        moved.log.delete_records(1)
        manager.checkpoint_all()
        moved.begin()
        manager.run_due()
        assert [checkpoint(moved.b, name) for name in CHECKPOINTS] == [{T0: 4}, {T0: 1}, {T0: 4}]
        assert [checkpoint(moved.a, name) for name in CHECKPOINTS] == [{}, {}, {}]


def test_the_checkpoints_are_written_before_the_assignment(tmp_path: Path) -> None:
    with moving(tmp_path) as manager:
        moved = Moving(manager)
        moved.log.append_as_leader(batch(*((str(number), "v") for number in range(4))), 0)
        moved.log.maybe_increment_high_watermark()
        moved.log.delete_records(1)
        found: list[Any] = []
        moved.assign = lambda directory: found.extend(checkpoint(directory.path, name) for name in CHECKPOINTS)
        moved.begin()
        manager.run_due()
        assert found == [{T0: 4}, {T0: 1}, {T0: 4}]


def test_the_folder_that_was_left_is_removed_after_the_delay(tmp_path: Path) -> None:
    with moving(tmp_path, log_initial_task_delay_ms=0) as manager:
        moved = Moving(manager)
        append(moved.log, ("k", "v"))
        moved.begin()
        manager.run_due()
        (left,) = names(moved.a)
        assert left.endswith("-delete")
        advance(manager, 2 * DELAY_MS)
        assert names(moved.a) == []
        assert len(records_of(moved.current())) == 1


def test_cleaning_pauses_during_a_move_and_its_checkpoint_moves(tmp_path: Path) -> None:
    with moving(tmp_path, topic=COMPACTED, log_cleaner_enable=False) as manager:
        manager.create_log(TopicPartition("other", 0), log_dir=manager.directories()[1].path)
        moved = Moving(manager, dirty_log(manager))
        assert moved.log.directory.parent == moved.a
        manager.cleaner.manager.checkpoints.update(manager.directories()[0], T0, 3)
        moved.begin()
        states: list[bool] = []
        moved.assign = lambda _: states.append(manager.cleaner.manager.grab_filthiest() is None)
        manager.run_due()
        assert states == [True]
        assert checkpoint(moved.b, "cleaner-offset-checkpoint") == {T0: 3}
        assert checkpoint(moved.a, "cleaner-offset-checkpoint") == {}
        chosen = manager.cleaner.manager.grab_filthiest()
        assert chosen is not None and chosen.range.first_dirty_offset == 3


def test_a_move_copies_at_most_the_configured_bytes_per_second(tmp_path: Path) -> None:
    with moving(tmp_path, replica_alter_log_dirs_io_max_bytes_per_second=71) as manager:
        moved = Moving(manager)
        for _ in range(5):
            moved.log.append_as_leader(batch(), 0)  # 71 bytes each
        future = moved.begin()
        seconds = 0
        while moved.current() is not future:
            advance(manager, 1000)
            seconds += 1
            assert future.size_bytes <= 71 * (seconds + 1)
        assert 4 <= seconds <= 7


def test_a_limit_of_zero_stops_moves_until_it_is_raised(tmp_path: Path) -> None:
    with moving(tmp_path, replica_alter_log_dirs_io_max_bytes_per_second=0) as manager:
        moved = Moving(manager)
        append(moved.log, ("k", "v"))
        future = moved.begin()
        for _ in range(3):
            advance(manager, 1000)
        assert future.size_bytes == 0


def test_a_cancelled_move_leaves_the_log_where_it_is(tmp_path: Path) -> None:
    options = {"log_cleaner_enable": False, "replica_alter_log_dirs_io_max_bytes_per_second": 1}
    with moving(tmp_path, topic=COMPACTED, **options) as manager:
        moved = Moving(manager, dirty_log(manager))
        moved.begin()
        manager.run_due()
        manager.delete_future_log(T0)
        assert manager.get_future_log(T0) is None
        assert [name.endswith("-delete") for name in names(moved.b)] == [True]
        advance(manager, 10 * BACKOFF_MS)
        assert moved.current() is moved.log
        assert checkpoint(moved.b, RECOVERY_POINTS) == {}
        assert manager.cleaner.manager.grab_filthiest() is not None
        moved.begin()
        assert manager.get_future_log(T0) is not None


def test_a_deletion_removes_the_log_and_its_future_log(tmp_path: Path) -> None:
    with moving(tmp_path, log_initial_task_delay_ms=0) as manager:
        moved = Moving(manager)
        moved.begin()
        manager.delete_log(T0)
        assert [[name.endswith("-delete") for name in names(path)] for path in (moved.a, moved.b)] == [[True], [True]]
        advance(manager, 2 * DELAY_MS)
        assert names(moved.a) == names(moved.b) == []
        assert manager.cleaner.manager.states.of(T0) is None


def test_a_move_whose_assignment_is_refused_is_tried_again(tmp_path: Path) -> None:
    with moving(tmp_path) as manager:
        moved = Moving(manager)
        append(moved.log, ("k", "v"))
        refusals = iter([True, False])

        def assign(directory: LogDirectory) -> None:
            if next(refusals):
                raise StorageError("not now")
            moved.assigned.append(directory.path)

        moved.assign = assign
        future = moved.begin()
        manager.run_due()
        assert moved.current() is moved.log
        producer = batch(("p", "v"), pid=1, seq=0)
        assert moved.log.append_as_leader(producer, 0).last_offset == 1
        advance(manager, BACKOFF_MS)
        assert moved.current() is future
        assert future.append_as_leader(producer, 0).is_duplicate


def test_an_assignment_that_may_be_durable_leaves_no_future_log(tmp_path: Path) -> None:
    with moving(tmp_path) as manager:
        moved = Moving(manager)
        append(moved.log, ("k", "v"))

        def assign(_: LogDirectory) -> None:
            raise CommitStateUnknownError("perhaps")

        moved.assign = assign
        moved.begin()
        for _ in range(3):
            advance(manager, BACKOFF_MS)
        assert moved.current() is moved.log
        assert append(moved.log, ("k", "v")) == 1
        assert not any(name.endswith("-future") for name in names(moved.b))


def test_a_move_ends_if_its_target_fails(tmp_path: Path) -> None:
    fs = FailingFs()
    with moving(tmp_path, fs=fs) as manager:
        moved = Moving(manager)
        append(moved.log, ("k", "v"))
        moved.begin()
        fs.broken.add(moved.b)
        for _ in range(3):
            advance(manager, BACKOFF_MS)
        assert append(moved.log, ("k", "v")) == 1
        assert manager.get_future_log(T0) is None
        assert [directory.is_offline for directory in manager.directories()] == [False, True]
        with pytest.raises(StorageError, match="offline"):
            manager.create_future_log(T0, moved.b)


@pytest.mark.parametrize("broken", ["a", "b"])
def test_a_partition_is_offline_if_a_disk_fails_after_the_assignment(tmp_path: Path, broken: str) -> None:
    fs = FailingFs()
    with moving(tmp_path, fs=fs) as manager:
        moved = Moving(manager)
        append(moved.log, ("k", "v"))
        moved.assign = lambda _: fs.broken.add(tmp_path / broken)
        moved.begin()
        manager.run_due()
        assert manager.get_log(T0) is None
        with pytest.raises(StorageError):
            append(moved.log, ("k", "v"))
        advance(manager, 2 * DELAY_MS)
    # The metadata names the second directory, so its log replaces the other after the repair.
    with moving(tmp_path) as manager:
        if manager.get_future_log(T0) is not None:
            assert manager.promote_future_logs([T0]) == {T0}
        log = manager.get_log(T0)
        assert log is not None and log.directory == tmp_path / "b" / "t-0"
        assert len(records_of(log)) == 1


def test_a_future_log_that_lacks_records_replaces_nothing(tmp_path: Path) -> None:
    with moving(tmp_path) as manager:
        moved = Moving(manager)
        append(moved.log, ("k", "v"))
        manager.create_future_log(T0, moved.b)
        assert manager.promote_future_logs([T0]) == set()
        assert moved.current() is moved.log


def test_the_clock_of_a_stopped_manager_moves_nothing(tmp_path: Path) -> None:
    with moving(tmp_path) as manager:
        moved = Moving(manager)
        append(moved.log, ("k", "v"))
        moved.begin()
        clock = clock_of(manager)
    clock.advance(BACKOFF_MS)
    assert moved.assigned == []
    assert names(tmp_path / "a") == ["t-0"]
    with moving(tmp_path) as manager:
        assert manager.get_future_log(T0) is not None

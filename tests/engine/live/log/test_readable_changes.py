"""The listener of a log hears of every change of the range that may be read, and never under the log's lock."""

from __future__ import annotations

import threading
from pathlib import Path

from sediment.engine.live.log.partition_log import PartitionLog
from tests.engine.live_logs import LiveLog, batch
from tests.twin.batches import ControlType


class Listener:
    """Notes (log start, high watermark, last stable offset, closed) at each call; another thread takes the lock."""

    def __init__(self) -> None:
        self.heard: list[tuple[int, int, int, bool]] = []

    def __call__(self, log: PartitionLog) -> None:
        other = threading.Thread(target=lambda: self.heard.append(self._state(log)))
        other.start()
        other.join(60)
        assert not other.is_alive(), "the lock is held"

    @staticmethod
    def _state(log: PartitionLog) -> tuple[int, int, int, bool]:
        with log.lock:
            return log.log_start_offset, log.high_watermark, log.last_stable_offset, log.is_closed


def test_an_append_alone_changes_nothing_and_the_high_watermark_does(tmp_path: Path) -> None:
    listener = Listener()
    live = LiveLog(tmp_path, on_readable_change=listener)
    live.lead(batch(), high_watermark=False)
    assert listener.heard == []
    assert live.log.maybe_increment_high_watermark()
    assert listener.heard == [(0, 1, 1, False)]
    assert not live.log.maybe_increment_high_watermark()
    live.log.update_high_watermark(1)
    assert len(listener.heard) == 1
    live.log.update_high_watermark(0)
    assert listener.heard[1:] == [(0, 0, 0, False)]


def test_the_last_stable_offset_moves_only_with_the_high_watermark(tmp_path: Path) -> None:
    listener = Listener()
    live = LiveLog(tmp_path, on_readable_change=listener)
    live.lead(batch(pid=7, tx=True))
    live.lead(batch())
    assert [heard[2] for heard in listener.heard] == [0, 0]
    live.mark_quietly(7, ControlType.COMMIT)
    assert (len(listener.heard), live.log.last_stable_offset) == (2, 0)
    live.log.maybe_increment_high_watermark()
    assert listener.heard[-1] == (0, 3, 3, False)


def test_deleted_records_truncations_and_the_end_are_announced(tmp_path: Path) -> None:
    listener = Listener()
    live = LiveLog(tmp_path, cleanup_policy=("delete",), on_readable_change=listener)
    for _ in range(5):
        live.lead(batch())
    del listener.heard[:]
    live.log.delete_records(2)
    live.log.maybe_increment_log_start_offset(2)
    live.log.truncate_to(4)
    live.log.truncate_fully_and_start_at(9)
    live.stop()
    assert listener.heard == [(2, 5, 5, False), (2, 4, 4, False), (9, 9, 9, False), (9, 9, 9, True)]
    live.log.close_handlers()
    assert len(listener.heard) == 4

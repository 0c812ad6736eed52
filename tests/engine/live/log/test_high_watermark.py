"""The high watermark of a log that several threads append to."""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sediment.engine.live.log.partition_log import AppendInfo, PartitionLog
from tests.engine.live_logs import LiveLog, batch
from tests.waiting import LIMIT_SECONDS

_ACTIONS = st.lists(st.sampled_from(["append", "torn", "duplicate"]), min_size=1, max_size=12)


class Appender(threading.Thread):
    """Appends as one producer, raises the high watermark after each append, and notes whether it ever fell."""

    def __init__(self, log: PartitionLog, producer_id: int, actions: list[str], begin: threading.Barrier) -> None:
        super().__init__()
        self.log, self.producer_id, self.actions, self.begin = log, producer_id, actions, begin
        self.infos: list[tuple[str, AppendInfo]] = []
        self.fell = False
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.begin.wait(LIMIT_SECONDS)
            sequence = 0
            for action in self.actions:
                before = self.log.high_watermark
                if action == "duplicate" and sequence:
                    data = batch(pid=self.producer_id, seq=sequence - 1)
                else:
                    data = batch(pid=self.producer_id, seq=sequence)
                    data = data[:-1] if action == "torn" else data
                    sequence += action != "torn"
                info = self.log.append_as_leader(data, 0)
                self.infos.append((action, info))
                self.log.maybe_increment_high_watermark(info.last_offset + 1)
                self.fell |= self.log.high_watermark < max(before, info.last_offset + 1)
        except BaseException as error:
            self.error = error


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.tuples(_ACTIONS, _ACTIONS, _ACTIONS))
def test_three_appenders_with_torn_batches_and_duplicates_never_lower_it_and_it_ends_at_the_log_end(
    actions: tuple[list[str], list[str], list[str]],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        log = LiveLog(Path(folder)).log
        begin = threading.Barrier(3)
        appenders = [Appender(log, number, of_one, begin) for number, of_one in enumerate(actions)]
        for appender in appenders:
            appender.start()
        for appender in appenders:
            appender.join(LIMIT_SECONDS)
        assert [appender.error for appender in appenders] == [None] * 3
        assert not any(appender.fell for appender in appenders)
        infos = [info for appender in appenders for _, info in appender.infos]
        assert log.high_watermark == log.log_end_offset == sum(info.appended_bytes > 0 for info in infos)
        log.close()


def test_a_torn_batch_and_a_duplicate_leave_it_where_it_is(tmp_path: Path) -> None:
    log = LiveLog(tmp_path).log
    for sequence in range(3):
        log.append_as_leader(batch(pid=1, seq=sequence), 0)
    assert log.maybe_increment_high_watermark() and log.high_watermark == 3
    torn = log.append_as_leader(batch(pid=1, seq=3)[:-1], 0)
    assert (torn.first_offset, torn.last_offset, torn.appended_bytes) == (-1, -1, 0)
    duplicate = log.append_as_leader(batch(pid=1, seq=0), 0)
    assert duplicate.is_duplicate and duplicate.last_offset == 0
    for info in (torn, duplicate):
        assert not log.maybe_increment_high_watermark(info.last_offset + 1)
    assert not log.maybe_increment_high_watermark()
    assert log.high_watermark == 3
    log.close()

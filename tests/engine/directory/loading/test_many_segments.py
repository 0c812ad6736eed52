"""The recovery of a log with many segments costs the same for each segment."""

from __future__ import annotations

from pathlib import Path

import pytest

from sediment.engine.directory.loading.load_state import LoadState
from tests.engine.live_logs import LiveLog, batch

SEGMENTS = 120


@pytest.mark.parametrize("producer_id", [-1, 7])
def test_a_recovery_prepares_few_segments_for_each_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, producer_id: int
) -> None:
    live = LiveLog(tmp_path, segment_bytes=100)
    for number in range(SEGMENTS):
        live.lead(batch(pid=producer_id, seq=number if producer_id >= 0 else -1))
    assert len(live.bases()) == SEGMENTS
    prepared = []
    replayed = LoadState.replayed
    monkeypatch.setattr(LoadState, "replayed", lambda *arguments: prepared.append(1) or replayed(*arguments))
    log = live.restart(clean=False, recovery_point=0)
    assert log.log_end_offset == SEGMENTS
    assert len(prepared) <= 4 * SEGMENTS
    live.stop()

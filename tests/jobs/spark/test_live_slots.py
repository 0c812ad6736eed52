"""The warning of a run that waits for executors."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from sediment.jobs.spark.live_slots import Shortage

CLUSTER = SimpleNamespace(master="spark://host:7077", getConf=lambda: {"spark.executor.memory": "64g"})


def test_a_run_that_waits_long_for_an_executor_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    shortage = Shortage(patience_seconds=0)
    for _ in range(3):
        shortage.warn(CLUSTER, is_waiting=True)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == (
        "no executor has been there for 0 s, and tasks wait for one; check that spark://host:7077 has room for "
        "executors with 64g of memory"
    )


def test_only_the_time_since_the_last_executor_counts(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    shortage = Shortage()
    for now, is_waiting in ((0, True), (29, True), (30, False), (31, True), (60, True)):
        monkeypatch.setattr("time.monotonic", lambda now=now: float(now))
        shortage.warn(CLUSTER, is_waiting=is_waiting)
    assert caplog.records == []
    monkeypatch.setattr("time.monotonic", lambda: 61.0)
    shortage.warn(CLUSTER, is_waiting=True)
    assert len(caplog.records) == 1

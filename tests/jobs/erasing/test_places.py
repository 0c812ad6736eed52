"""The places of copies that an erasure does not reach."""

from __future__ import annotations

import pytest

from sediment.jobs.erasing.places import Replicas, places_of
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.fs import Fs

PARTITION = TopicPartition("t", 0)


@pytest.mark.parametrize(
    ("replicas", "advice"),
    [
        (Replicas(nodes=(1,), read=(1,), covered=(1,)), None),
        (Replicas(nodes=(1,), read=(1,), covered=()), None),
        (Replicas(nodes=(1, 2), read=(1,), covered=()), "broker 2 has replicas of t-0"),
        (Replicas(nodes=(1, 2, 3), read=(2,), covered=(2,)), "brokers 1, 3 have replicas of t-0"),
        (Replicas(nodes=None, read=(1,), covered=(1,)), "no metadata log names the replicas of t-0"),
    ],
)
def test_only_replicas_that_the_run_does_not_read_are_named(replicas: Replicas, advice: str | None) -> None:
    """A partition that the run read and skipped has its reason in the report, and its own broker is not another one."""
    found = places_of([], {PARTITION: replicas}, (), (), Fs())
    assert [place.advice.partition(";")[0] for place in found] == ([] if advice is None else [advice])

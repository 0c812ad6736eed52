"""The places of copies that an erasure does not reach."""

from __future__ import annotations

from pathlib import Path

import pytest

from sediment.jobs.erasing.places import Replicas, places_of
from sediment.jobs.settings.directories import SelectedDirectory
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import LogDirCheckpoints

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


def test_originals_that_recover_kept_beside_the_log_directory_are_named(tmp_path: Path) -> None:
    kept = tmp_path / "logs-originals"
    kept.mkdir()
    directory = SelectedDirectory(
        tmp_path / "logs", None, (), LogDirCheckpoints(None, None, None, None, clean_shutdown=True)
    )
    directory.path.mkdir()
    assert places_of([directory], {}, (), (), Fs()) == ()
    (kept / "catalogue-abc.json").touch()
    (place,) = places_of([directory], {}, (), (), Fs())
    assert (place.kind, place.path) == ("earlier-originals", str(kept))
    assert [place.kind for place in places_of([directory], {}, (kept,), (), Fs())] == ["kept-originals"]

"""`sediment clone --strategy`: several tasks copy a partition, and the clone is the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sediment.compaction.strategy import SPLIT_FROM_BYTES, Strategy
from sediment.engine.clone.options import LinkMode
from sediment.engine.clone.partition_clone import CloneTask
from sediment.engine.clone.plan import ClonedPartition
from sediment.engine.copying import partition_copy, replica_copy
from sediment.engine.log_config import LogConfig
from sediment.jobs.cloning.split_copies import is_split
from sediment.segment_io.format.names import TopicPartition
from tests.faults.inline_spark import ATTEMPTS, inline_spark
from tests.jobs.cloning.clones import append_a_byte, clone, damaged_copy, logs_of, roll
from tests.jobs.cloning.test_clone_uri import upload
from tests.jobs.log_dirs import make_log_dir, sediment, tree, write_log
from tests.object_server import running_server
from tests.segments import NOW_MS
from tests.served import unpacked

SPLIT = "--strategy=split"
KEPT = ("--abort-open-transactions", "--with", "groups,transactions,configs")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked(tmp_path_factory.mktemp("served") / "source")


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make each file of a segment a piece."""
    monkeypatch.setattr(partition_copy, "_PIECE_BYTES", 1)


@pytest.mark.parametrize("speculates", [False, True], ids=["one attempt", "two attempts of each task"])
@pytest.mark.parametrize("more", [(), KEPT, ("--link=hard",), ("--compact", "--broker-defaults")], ids=" ".join)
def test_a_split_copy_gives_the_clone_of_a_whole_one(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...], speculates: bool
) -> None:
    monkeypatch.setattr(ATTEMPTS, "speculates", speculates)
    with inline_spark():
        rows = clone(source, tmp_path / "split", SPLIT, *more).partitions()
        assert rows == clone(source, tmp_path / "whole", "--strategy=whole", *more).partitions()
    assert logs_of(tmp_path / "split") == logs_of(tmp_path / "whole")
    assert tree(tmp_path / "split").keys() == tree(tmp_path / "whole").keys()
    assert sediment("clone", "--check", tmp_path / "split").status == 0


def test_a_partition_of_a_bucket_is_copied_in_pieces(source: Path, tmp_path: Path) -> None:
    with running_server() as server, inline_spark():
        clone(upload(source, server), tmp_path / "split", SPLIT)
        clone(source, tmp_path / "whole")
    assert logs_of(tmp_path / "split") == logs_of(tmp_path / "whole")


def test_a_damaged_replica_that_was_copied_in_pieces_is_replaced_by_another(source: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    damaged_copy(source, damaged)
    with inline_spark():
        both = sediment("clone", damaged, source, "--to", tmp_path / "both", "--topic", "orders", "--json", SPLIT)
    assert both.status == 0
    assert both.partitions()["orders-0"]["from"] == str(source / "orders-0")


@pytest.mark.parametrize("change", [append_a_byte, roll])
def test_a_source_that_changes_between_two_pieces_fails_its_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], None]
) -> None:
    source = make_log_dir(tmp_path / "logs", {f"{topic}-0": write_log(tmp_path / topic) for topic in ("t", "u")})
    copy = replica_copy.copy_partition

    def disturbed(work: Any, *arguments: Any, **options: Any) -> Any:
        if work.folder == "t-0" and f"{20:020d}.log" in work.files:
            change(source / work.folder)
        return copy(work, *arguments, **options)

    monkeypatch.setattr(replica_copy, "copy_partition", disturbed)
    with inline_spark():
        outcome = clone(source, tmp_path / "clone", SPLIT, status=1)
    rows = outcome.partitions()
    assert (rows["t-0"]["status"], rows["t-0"]["reason_code"]) == ("failed", "source-changed")
    assert rows["u-0"]["status"] == "cloned" and not outcome.report["is_complete"]


def _task(log_bytes: int, link: LinkMode = LinkMode.COPY) -> CloneTask:
    partition = ClonedPartition(TopicPartition("t", 0), TopicPartition("t", 0), ())
    return CloneTask(partition, "id", Path("/clone"), "run", LogConfig(), NOW_MS, link, log_bytes)


@pytest.mark.parametrize(
    ("task", "asked", "slots", "others_bytes", "expected"),
    [
        (_task(SPLIT_FROM_BYTES), None, 2, 0, True),
        (_task(SPLIT_FROM_BYTES - 1), None, 2, 0, False),
        (_task(SPLIT_FROM_BYTES), None, 1, 0, False),
        (_task(SPLIT_FROM_BYTES), None, 2, SPLIT_FROM_BYTES, False),
        (_task(SPLIT_FROM_BYTES), None, 3, SPLIT_FROM_BYTES, True),
        (_task(SPLIT_FROM_BYTES, LinkMode.HARD), None, 2, 0, False),
        (_task(1), Strategy.SPLIT, 1, 0, True),
        (_task(SPLIT_FROM_BYTES), Strategy.WHOLE, 2, 0, False),
    ],
)
def test_a_large_partition_is_split_if_other_slots_would_be_idle(
    task: CloneTask, asked: Strategy | None, slots: int, others_bytes: int, expected: bool
) -> None:
    assert is_split(task, asked, slots=slots, all_bytes=task.log_bytes + others_bytes) is expected

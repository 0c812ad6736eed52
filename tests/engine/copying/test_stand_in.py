"""The stand-in of a log directory at a URI: only small files that describe it are fetched."""

from __future__ import annotations

from pathlib import Path

import pytest

from sediment.engine.copying.stand_in import errors_naming, make_stand_in, placeholder_files
from sediment.segment_io.errors import UsageError
from sediment.segment_io.stores import Store
from tests.jobs.log_dirs import tree

FOLDERS = frozenset({"t-0", "__cluster_metadata-0"})


def test_only_files_that_describe_a_log_directory_are_fetched() -> None:
    taken = ["meta.properties", "__cluster_metadata-0/00000000000000000000.log", "t-0/partition.metadata"]
    hostile = ["..", "", "__cluster_metadata-0/..", "__cluster_metadata-0/../../x", "../partition.metadata", "t-0"]
    others = ["t-0/00000000000000000000.log", "t-00/partition.metadata", "t-0/deeper/partition.metadata"]
    assert placeholder_files([*hostile, *taken, *others], FOLDERS) == taken


def test_topic_ids_are_fetched_with_a_metadata_log_or_on_request() -> None:
    names = ["t-0/partition.metadata", "meta.properties"]
    assert placeholder_files(names, {"t-0"}) == ["meta.properties"]
    assert placeholder_files(names, {"t-0"}, topic_ids=True) == names


def test_a_stand_in_has_the_folders_and_no_segment(tmp_path: Path) -> None:
    given = tmp_path / "given"
    for name in ("t-0/00000000000000000000.log", "t-0/partition.metadata", "meta.properties", "not a partition/x"):
        (given / name).parent.mkdir(parents=True, exist_ok=True)
        (given / name).write_text(name)
    store = Store(f"file://{given}")
    made = tmp_path / "made"
    made.mkdir()
    make_stand_in(store, store.files(), made, topic_ids=True)
    assert tree(made).keys() == {"t-0/partition.metadata", "meta.properties"}
    assert [path.name for path in made.iterdir() if path.is_dir()] == ["t-0"]


def test_errors_name_the_source_in_place_of_the_stand_in(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refused, errors_naming("s3://bucket/logs", tmp_path):
        raise UsageError("it is wrong", path=str(tmp_path / "t-0"))
    assert refused.value.path == "s3://bucket/logs/t-0"
    with pytest.raises(OSError, match="s3://bucket/logs/x"), errors_naming("s3://bucket/logs", tmp_path):
        (tmp_path / "x").read_bytes()


def test_topic_ids_come_along_with_a_checkpoint_that_may_name_topics() -> None:
    names = ["bootstrap.checkpoint", "t-0/partition.metadata"]
    assert placeholder_files(names, {"t-0"}) == names

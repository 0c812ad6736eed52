"""The question of `adopt`: before any change, it names everything that the run writes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from sediment.jobs.adopt import PlannedAdoption, adopt
from sediment.jobs.adopting.options import AdoptOptions
from sediment.jobs.adopting.report import AdoptionRunReport
from sediment.jobs.command_line.options import CommonOptions
from sediment.jobs.settings.resolve import Settings
from sediment.segment_io.errors import DeclinedError
from tests.jobs.log_dirs import tree
from tests.segments import NOW_MS, batch_bytes, write_segment
from tests.served import unpacked

METADATA = "__cluster_metadata-0"


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """Return the directory of a stopped node with one folder that it does not know."""
    found = unpacked(tmp_path / "data")
    write_segment(found / "foreign-0", 0, [batch_bytes(0, "abc")])
    return found


def run(log_dir: Path, confirm: Callable[[PlannedAdoption], bool]) -> AdoptionRunReport:
    options = CommonOptions(
        log_dirs=(log_dir,), settings=Settings.load(None, ()), now_ms=NOW_MS, as_json=True, quiet=True
    )
    return adopt(options, AdoptOptions(), confirm=confirm)


def check_every_change_is_named(log_dir: Path, *sentences: str) -> None:
    before = tree(log_dir)
    with pytest.raises(DeclinedError):
        run(log_dir, lambda _: False)
    assert tree(log_dir) == before
    questions: list[PlannedAdoption] = []
    report = run(log_dir, lambda planned: not questions.append(planned))
    [planned] = questions
    text, count = "\n".join(planned.changes), planned.partitions
    adopted = [each.partition for each in report.partitions if each.status == "adopted"]
    assert report.is_complete and count == len(adopted)
    for sentence in (f"in the folders of {count} partition", *sentences):
        assert sentence in text
    after = tree(log_dir)
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    kept = f".{report.run_id}.kept"
    for name in changed:
        folder, _, file = name.rpartition("/")
        if file.endswith(kept):
            assert f"a copy of each as NAME{kept}" in text and file.removesuffix(kept) in text
        elif folder not in adopted:
            assert (folder or file) in text, name


def test_a_directory_with_a_metadata_log_has_records_appended_to_it(node: Path) -> None:
    check_every_change_is_named(node, f"records of 1 topic, appended to {METADATA}, the metadata log of node 1 ")


def test_a_directory_without_a_metadata_log_gets_the_files_of_a_new_node(node: Path) -> None:
    shutil.rmtree(node / METADATA)
    check_every_change_is_named(
        node, " in bootstrap.checkpoint; at its first start, node ", f"puts them into a new metadata log, {METADATA}"
    )


def test_a_bare_folder_gets_them_too(node: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    shutil.move(node / "foreign-0", bare)
    check_every_change_is_named(bare, "new files: ", "meta.properties")

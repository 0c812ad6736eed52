"""Names alone show if a directory has to change before it can be read."""

import pytest

from sediment.engine.directory.loading.interrupted_swaps import finish_interrupted, is_interrupted
from sediment.segment_io.fs import Fs

LOG, INDEX = f"{0:020d}.log", f"{0:020d}.index"


@pytest.mark.parametrize(
    ("names", "changes"),
    [
        ([], False),
        ([LOG, INDEX, "leader-epoch-checkpoint", "partition.metadata", f"{0:020d}.snapshot"], False),
        ([LOG, f"{INDEX}.swap"], True),
        ([LOG, f"{5:020d}.log.cleaned"], True),
        ([LOG, f"{LOG}.deleted"], True),
        ([LOG, f"{LOG}.run-1.part"], True),
        ([LOG, f"{5:020d}.timeindex"], True),
    ],
)
def test_a_directory_is_interrupted_if_finishing_it_changes_something(names, changes, tmp_path):
    for name in names:
        (tmp_path / name).touch()
    assert is_interrupted(names) == changes
    assert bool(finish_interrupted(tmp_path, Fs())) == changes
    assert not is_interrupted([path.name for path in tmp_path.iterdir()])


def test_a_new_name_and_an_old_one_for_the_same_file_become_one(tmp_path):
    """A rename between two links to one file does nothing, and leaves both names."""
    (tmp_path / LOG).touch()
    (tmp_path / f"{LOG}.swap").hardlink_to(tmp_path / LOG)
    (tmp_path / INDEX).touch()
    (tmp_path / f"{INDEX}.swap").hardlink_to(tmp_path / INDEX)
    finish_interrupted(tmp_path, Fs())
    assert sorted(path.name for path in tmp_path.iterdir()) == [INDEX, LOG]
    assert not is_interrupted([path.name for path in tmp_path.iterdir()])

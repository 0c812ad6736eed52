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

"""The folder that several tasks share: one attempt takes it over, without what unfinished attempts left in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from sediment.engine.copying import partition_copy, replica_copy
from sediment.engine.copying.partition_copy import CopyRules
from sediment.engine.copying.replica_copy import CopiedPieces, ReplicaCopy
from sediment.engine.directory.output import Publisher
from sediment.engine.replicas import Replica, open_cluster_directory
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.stores import Store
from tests.jobs.log_dirs import make_log_dir, tree, write_log

PARTITION = TopicPartition("t", 0)


@pytest.fixture
def copy(tmp_path: Path) -> ReplicaCopy:
    source = make_log_dir(tmp_path / "logs", {str(PARTITION): write_log(tmp_path / "t")})
    directory = open_cluster_directory(source, Fs(), advice_if_in_use=None, on_unreadable=_unexpected)
    to = tmp_path / "clone"
    Publisher(Store(str(to)), "run").begin()
    return replica_copy.replica_copy(
        Replica(directory, PARTITION), Fs(), to=to, folder="shared", run_id="run", earlier=None, rules=CopyRules()
    )


def _unexpected(path: Path, error: Exception) -> None:
    raise AssertionError(path) from error


def test_pieces_are_whole_files_and_together_the_copy(copy: ReplicaCopy, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [piece.files for piece in copy.pieces()] == [copy.files]
    largest = max(file.size_bytes for file in copy.files.values())
    for size in (1, largest, largest + 1):
        monkeypatch.setattr(partition_copy, "_PIECE_BYTES", size)
        pieces = copy.pieces()
        assert len(pieces) > 1
        assert {name: file for piece in pieces for name, file in piece.files.items()} == copy.files
        assert all(len(piece.files) == 1 or piece.weight() <= size for piece in pieces)


def test_one_attempt_takes_the_shared_folder_over_without_what_others_left(copy: ReplicaCopy) -> None:
    copied = CopiedPieces(copy, copy.copied("1"))
    expected = tree(copy.to / "shared")
    (copy.to / "shared" / "00000000000000000000.log.run-2.part").write_bytes(b"unfinished")
    assert copied.taken_over("t-0.run-3.part", Fs())
    assert tree(copy.to / "t-0.run-3.part") == expected
    assert not copied.taken_over("t-0.run-4.part", Fs())
    assert not (copy.to / "t-0.run-4.part").exists()


def test_a_shared_folder_that_lacks_a_file_is_not_taken_over(
    copy: ReplicaCopy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_copy, "_PIECE_BYTES", 1)
    pieces = copy.pieces()
    copied = CopiedPieces(copy, tuple(file for piece in pieces for file in piece.copied("1")))
    assert copied.taken_over("t-0.run-3.part", Fs())
    pieces[0].copied("9")  # a late attempt makes the folder again
    assert not copied.taken_over("t-0.run-4.part", Fs())
    assert not (copy.to / "t-0.run-4.part").exists() and not (copy.to / "shared").exists()

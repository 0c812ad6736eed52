"""`quorum-state` of static and dynamic quorums, and files that are not one."""

from __future__ import annotations

from pathlib import Path

import pytest

from sediment.segment_io.errors import CorruptCheckpointError
from sediment.segment_io.fs import Fs
from sediment.segment_io.internal_topics.quorum_state import QuorumState, read_quorum_state

STATIC = (
    '{"clusterId":"","leaderId":7,"leaderEpoch":2,"votedId":-1,"appliedOffset":0,'
    '"currentVoters":[{"voterId":7},{"voterId":8}],"data_version":0}'
)
DYNAMIC = '{"leaderId":1,"leaderEpoch":5,"votedId":-1,"votedDirectoryId":"AAAAAAAAAAAAAAAAAAAAAA","data_version":1}'


def read(directory: Path, text: str) -> QuorumState | None:
    (directory / "quorum-state").write_text(text)
    return read_quorum_state(directory, Fs())


def test_a_static_quorum_has_its_voters_in_the_file_and_a_dynamic_one_has_not(tmp_path: Path) -> None:
    assert read_quorum_state(tmp_path, Fs()) is None
    assert read(tmp_path, STATIC) == QuorumState(2, frozenset({7, 8}))
    assert read(tmp_path, DYNAMIC) == QuorumState(5, None)


DEEP = "[" * 100_000
ENDLESS = STATIC.replace('"leaderEpoch":2', '"leaderEpoch":1e400')


@pytest.mark.parametrize(
    "text", ["", "[]", "7", "{}", STATIC[:60], STATIC.replace('"voterId":7', '"id":7'), "\0" * 99, DEEP, ENDLESS]
)
def test_a_malformed_file_is_an_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(CorruptCheckpointError, match="malformed"):
        read(tmp_path, text)

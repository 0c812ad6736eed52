"""`quorum-state`, a JSON file next to the metadata log, with the last election that a KRaft node has recorded.

    leaderEpoch      epoch of the election
    currentVoters    node ids of a static quorum (data_version 0); the metadata log has the ids of a dynamic quorum

Source: Kafka 4.2.0, FileQuorumStateStore and QuorumStateData; KIP-595, KIP-853.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from sediment.segment_io.errors import CorruptCheckpointError
from sediment.segment_io.format.names import QUORUM_STATE_FILE
from sediment.segment_io.fs import Fs

_STATIC_QUORUM = 0  # data_version of a file that lists the voters


@dataclass(frozen=True, slots=True)
class QuorumState:
    """The last election; `voters` is None if the file does not list the voters."""

    leader_epoch: int
    voters: frozenset[int] | None


def read_quorum_state(metadata_dir: Path, fs: Fs) -> QuorumState | None:
    path = metadata_dir / QUORUM_STATE_FILE
    try:
        content = fs.read_bytes(path)
    except FileNotFoundError:
        return None
    try:
        found = json.loads(content)
        voters = None
        if found["data_version"] == _STATIC_QUORUM:
            voters = frozenset(int(voter["voterId"]) for voter in found["currentVoters"])
        return QuorumState(int(found["leaderEpoch"]), voters)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise CorruptCheckpointError(
            "quorum-state is malformed",
            path=str(path),
            advice="restore the file from a backup, or move it away and start the node once",
        ) from error

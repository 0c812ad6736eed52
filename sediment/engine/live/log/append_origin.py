"""The origin of an append; it decides who assigns the offsets, and which checks are made.

    origin         offsets are       checks of producers (`producer_appends`)
    CLIENT         assigned          duplicates, verification, sequences, epochs
    COORDINATOR    assigned          verification, epochs
    RAFT_LEADER    kept              epochs
    REPLICATION    kept              none, because a leader has made these checks

A client's batch must begin at offset 0 (`append_analysis`), and must not be a control batch (`validation`).

Source: Kafka's AppendOrigin; kafka-log 04 §1 to §3.
"""

from __future__ import annotations

from enum import Enum


class AppendOrigin(Enum):
    CLIENT = "client"
    COORDINATOR = "coordinator"
    """An append by the group or transaction coordinator, of its own records or of transaction markers."""
    REPLICATION = "replication"
    """An append by a follower or a recovery; a leader has already checked the batches."""
    RAFT_LEADER = "raft-leader"

    @property
    def assigns_offsets(self) -> bool:
        return self in (AppendOrigin.CLIENT, AppendOrigin.COORDINATOR)

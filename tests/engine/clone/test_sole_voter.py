"""The rule for the sole voter: each source that is there has to agree, and a refusal names the one that does not."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest

from sediment.engine.clone.sole_voter import QuorumSources, sole_voter
from sediment.segment_io.errors import UnsupportedDataError, UsageError
from sediment.segment_io.format.checkpoints import format_uuid
from sediment.segment_io.format.layout import CONTROL_KRAFT_VERSION, CONTROL_KRAFT_VOTERS
from sediment.segment_io.format.meta_properties import MetaProperties
from sediment.segment_io.internal_topics.metadata_log import ClusterMetadata
from sediment.segment_io.internal_topics.quorum_state import QuorumState
from sediment.segment_io.protocol import messages as m

DIRECTORY = uuid.UUID(int=7)
CLUSTER = format_uuid(uuid.UUID(int=9).bytes)
META = MetaProperties(1, CLUSTER, 3, format_uuid(DIRECTORY.bytes))
FILE = {"process.roles": "broker,controller", "node.id": "3", "controller.quorum.voters": "3@localhost:9093"}
ALONE = QuorumState(leader_epoch=4, voters=frozenset({3}))


def metadata(kraft_version: int | None = None, voters: list[tuple[int, uuid.UUID]] | None = None) -> ClusterMetadata:
    records = {}
    if kraft_version is not None:
        records[CONTROL_KRAFT_VERSION] = m.KRaftVersionRecord(k_raft_version=kraft_version).to_bytes(0)
    if voters is not None:
        named = [
            m.VotersRecord.Voter(
                voter_id=number,
                voter_directory_id=directory,
                endpoints=[],
                k_raft_version_feature=m.VotersRecord.KRaftVersionFeature(
                    min_supported_version=0, max_supported_version=1
                ),
            )
            for number, directory in voters
        ]
        records[CONTROL_KRAFT_VOTERS] = m.VotersRecord(voters=named).to_bytes(0)
    return ClusterMetadata({}, {}, {}, 10, quorum_records=records)


STATIC = QuorumSources(META, metadata(), ALONE, FILE, has_broker_files=True)
DYNAMIC = replace(
    STATIC,
    metadata=metadata(1, [(3, DIRECTORY)]),
    state=QuorumState(4, None),
    properties={"process.roles": "broker,controller", "node.id": "3"},
)


@pytest.mark.parametrize(
    "sources",
    [
        STATIC,
        replace(STATIC, properties=None),
        replace(STATIC, state=None),
        replace(STATIC, metadata=metadata(0)),
        DYNAMIC,
        replace(DYNAMIC, state=None, properties=None),
    ],
)
def test_a_node_that_every_source_names_alone_is_the_sole_voter(sources: QuorumSources) -> None:
    node = sole_voter(sources)
    assert (node.node_id, node.cluster_id, node.directory_id) == (3, CLUSTER, META.directory_id)


@pytest.mark.parametrize(
    ("sources", "words"),
    [
        (replace(STATIC, meta=None), "does not name a node"),
        (replace(STATIC, meta=replace(META, directory_id=None)), "does not name a node"),
        (replace(STATIC, properties={**FILE, "node.id": "4"}), "the properties file belongs to node 4"),
        (replace(STATIC, properties={**FILE, "process.roles": "broker"}), "lacks the controller role"),
        (replace(STATIC, properties={**FILE, "process.roles": "controller"}), "lacks the broker role"),
        (replace(STATIC, properties=None, has_broker_files=False), "may be only a controller"),
        (replace(STATIC, state=QuorumState(4, frozenset({1, 2, 3}))), "quorum-state lists nodes 1, 2, 3"),
        (replace(STATIC, state=QuorumState(4, frozenset({1}))), "quorum-state lists nodes 1"),
        (
            replace(STATIC, properties={**FILE, "controller.quorum.voters": "3@a:1,5@b:1"}),
            "controller.quorum.voters lists nodes 3, 5",
        ),
        (replace(STATIC, properties={**FILE, "controller.quorum.voters": "three"}), "is malformed"),
        (replace(STATIC, state=None, properties=None), "no file lists the voters"),
        (replace(DYNAMIC, metadata=metadata(1, [(3, DIRECTORY), (4, DIRECTORY)])), "the metadata log lists nodes 3, 4"),
        (replace(DYNAMIC, metadata=metadata(1, [(3, uuid.UUID(int=8))])), "another directory of node 3"),
        (replace(DYNAMIC, metadata=metadata(1)), "has no VotersRecord"),
    ],
)
def test_a_refusal_says_which_source_disagrees_and_what_to_do(sources: QuorumSources, words: str) -> None:
    with pytest.raises(UsageError, match=words) as refused:
        sole_voter(sources)
    assert refused.value.advice


def test_records_about_the_quorum_that_cannot_be_read_are_not_ignored() -> None:
    sources = replace(DYNAMIC, metadata=ClusterMetadata({}, {}, {}, 10, quorum_records={CONTROL_KRAFT_VERSION: b"\0"}))
    with pytest.raises(UnsupportedDataError):
        sole_voter(sources)

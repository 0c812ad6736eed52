"""The check that a stopped node is the sole voter of its quorum; otherwise an append to its metadata log is not safe.

    source                                     contents
    meta.properties                            the node, the cluster and the id of the directory
    process.roles                              the roles of the node, which must be controller and broker
    controller.quorum.voters                   the voters of a static quorum
    quorum-state                               the voters of a static quorum
    KRaftVersionRecord, VotersRecord           the voters of a dynamic quorum, with their directories

No source may name another node, and at least one source must name the voters. A second voter would lack the appended
records.

Source: Kafka 4.2.0, QuorumConfig, KRaftControlRecordStateMachine; KIP-853.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sediment.engine.clone.cluster_records import CloneNode
from sediment.segment_io.errors import ProtocolError, UnsupportedDataError, UsageError
from sediment.segment_io.format.checkpoints import format_uuid, parse_count
from sediment.segment_io.format.layout import CONTROL_KRAFT_VERSION, CONTROL_KRAFT_VOTERS
from sediment.segment_io.format.meta_properties import MetaProperties
from sediment.segment_io.format.names import METADATA_PARTITION
from sediment.segment_io.internal_topics.metadata_log import ClusterMetadata
from sediment.segment_io.internal_topics.quorum_state import QuorumState
from sediment.segment_io.protocol import messages as m

_CLONE = "clone the folders into a separate directory"
_CONTROLLER = "controller"
_BROKER = "broker"
_RECORD_VERSION = 0


@dataclass(frozen=True, slots=True)
class QuorumSources:
    """`properties` contains the `QUORUM_KEYS` from the broker's properties file.

    `has_broker_files` is True if a broker has used the directory.
    """

    meta: MetaProperties | None
    metadata: ClusterMetadata
    state: QuorumState | None
    properties: Mapping[str, str] | None
    has_broker_files: bool


def sole_voter(sources: QuorumSources) -> CloneNode:
    node = _node(sources.meta)
    _check_roles(node, sources)
    known = list(_voters(node, sources))
    for where, voters in known:
        if voters != {node.node_id}:
            raise UsageError(
                f"node {node.node_id} is not the sole voter of its quorum: {where} lists {_listed(voters)}",
                advice=f"the other voters would not have the appended records; {_CLONE}",
            )
    if not known:
        raise UsageError(
            f"no file lists the voters of node {node.node_id}'s quorum", advice="give the node's own file with --config"
        )
    return node


def _node(meta: MetaProperties | None) -> CloneNode:
    if meta is None or meta.node_id is None or meta.cluster_id is None or meta.directory_id is None:
        raise UsageError(
            f"the directory contains {METADATA_PARTITION}, but its meta.properties does not name a node, a cluster "
            "and a directory.id",
            advice="restore meta.properties and start the node once, or move the metadata log away if its cluster is "
            "lost",
        )
    return CloneNode(meta.node_id, meta.cluster_id, meta.directory_id)


def _check_roles(node: CloneNode, sources: QuorumSources) -> None:
    properties = sources.properties or {}
    file_node = properties.get("node.id", "").strip()
    if file_node and file_node != str(node.node_id):
        raise UsageError(
            f"the properties file belongs to node {file_node}, but the directory to node {node.node_id}",
            advice=f"give the properties file of node {node.node_id} with --config",
        )
    roles = {role.strip() for role in properties.get("process.roles", "").split(",") if role.strip()}
    if not roles:
        if not sources.has_broker_files:
            raise UsageError(
                f"no broker has written checkpoints here, so node {node.node_id} may be only a controller",
                advice="give the node's own file with --config",
            )
        return
    for role, why in (
        (_CONTROLLER, f"its {METADATA_PARTITION} is only a copy of a controller's metadata log"),
        (_BROKER, "it serves no partitions"),
    ):
        if role not in roles:
            raise UsageError(
                f"node {node.node_id} lacks the {role} role (process.roles={','.join(sorted(roles))}), so {why}",
                advice=_CLONE,
            )


def _voters(node: CloneNode, sources: QuorumSources) -> Iterator[tuple[str, frozenset[int]]]:
    if sources.state is not None and sources.state.voters is not None:
        yield "quorum-state", sources.state.voters
    stated = (sources.properties or {}).get("controller.quorum.voters", "").strip()
    if stated:
        yield "controller.quorum.voters", _parsed(stated)
    records = sources.metadata.quorum_records
    if not _is_dynamic(records):
        return
    if CONTROL_KRAFT_VOTERS not in records:
        raise UsageError("the quorum is dynamic, and the metadata log has no VotersRecord", advice=_CLONE)
    voters = _decoded(m.VotersRecord, records[CONTROL_KRAFT_VOTERS]).voters
    for voter in voters:
        directory_id = format_uuid(voter.voter_directory_id.bytes)
        if voter.voter_id == node.node_id and directory_id != node.directory_id:
            raise UsageError(
                f"the voter is another directory of node {node.node_id}: the metadata log names {directory_id}, but "
                f"meta.properties names {node.directory_id}",
                advice=f"adopt the directory that votes, or {_CLONE}",
            )
    yield "the metadata log", frozenset(voter.voter_id for voter in voters)


def _is_dynamic(records: Mapping[int, bytes]) -> bool:
    value = records.get(CONTROL_KRAFT_VERSION)
    return value is not None and bool(_decoded(m.KRaftVersionRecord, value).k_raft_version > 0)


def _decoded(record: Any, value: bytes) -> Any:
    try:
        return record.decode(value, _RECORD_VERSION)
    except ProtocolError as error:
        raise UnsupportedDataError(
            f"a {record.__name__} in the metadata log cannot be read: {error.what}", advice=_CLONE
        ) from error


def _parsed(text: str) -> frozenset[int]:
    ids = [parse_count(voter.partition("@")[0].strip()) for voter in text.split(",")]
    found = frozenset(each for each in ids if each is not None)
    if None in ids:
        raise UsageError("controller.quorum.voters is malformed", advice="give the node's own file with --config")
    return found


def _listed(voters: frozenset[int]) -> str:
    return f"nodes {', '.join(map(str, sorted(voters)))}" if voters else "none"

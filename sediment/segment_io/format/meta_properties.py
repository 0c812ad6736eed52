"""The format of meta.properties, which names the owner of a log directory (kafka-log 01 §11).

version 0     broker.id and cluster.id, each optional      a missing `version` means 0
version 1     node.id and cluster.id, both required        any other version is refused
both          directory.id, optional
"""

from __future__ import annotations

from dataclasses import dataclass

from sediment.segment_io.errors import CorruptCheckpointError
from sediment.segment_io.format.checkpoints import format_uuid, parse_integer, parse_uuid
from sediment.segment_io.format.properties import parse_properties

ZOOKEEPER_META_VERSION = 0
"""The version in every directory of a broker that uses ZooKeeper, or did so before its migration to KRaft."""

KRAFT_META_VERSION = 1
"""The version in every directory that was formatted for KRaft."""

_ADVICE = (
    "restore the file, or write its lines again before a broker starts; `sediment recover --dry-run` names the lines "
    "that it knows"
)
_EMPTY = "meta.properties has 0 bytes"


@dataclass(frozen=True, slots=True)
class MetaProperties:
    """In version 0, `node_id` is `broker.id`; an id that is not in the file is None."""

    version: int
    cluster_id: str | None
    node_id: int | None
    directory_id: str | None


def parse_meta_properties(content: bytes, *, path: str | None = None) -> MetaProperties:
    try:
        properties = parse_properties(content)
        if not properties:
            raise ValueError(f"{len(content)} bytes without a property")
        version = parse_integer(properties.get("version", "0"), 32)
        if version not in (0, 1):
            raise ValueError(f"version {version}")
        if not version and "node.id" in properties and "broker.id" not in properties:
            raise ValueError("node.id without version")
        node_text = properties.get("node.id" if version else "broker.id")
        node_id = None if node_text is None else parse_integer(node_text, 32)
        directory_text = properties.get("directory.id")
        directory_id = None if directory_text is None else format_uuid(parse_uuid(directory_text))
    except ValueError as error:
        raise CorruptCheckpointError(
            f"meta.properties contains a malformed or unknown value: {error}" if content else _EMPTY,
            path=path,
            advice=_ADVICE,
        ) from error
    cluster_id = properties.get("cluster.id")
    if version == 1 and (node_id is None or cluster_id is None):
        raise CorruptCheckpointError(
            "meta.properties of version 1 needs node.id and cluster.id", path=path, advice=_ADVICE
        )
    return MetaProperties(version, cluster_id, node_id, directory_id)


def format_meta_properties(meta: MetaProperties) -> bytes:
    import javaproperties

    values = {
        "version": str(meta.version),
        "node.id" if meta.version else "broker.id": None if meta.node_id is None else str(meta.node_id),
        "cluster.id": meta.cluster_id,
        "directory.id": meta.directory_id,
    }
    given = {key: value for key, value in sorted(values.items()) if value is not None}
    return javaproperties.dumps(given, timestamp=False).encode("latin-1")

"""Keys and files of an erasure with evidence."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sediment.segment_io.internal_topics.metadata_records import encode_metadata_record
from sediment.segment_io.protocol import messages as m
from tests.segments import NOW_MS, write_segment
from tests.twin.batches import Record, encode_batch

SECRET = b"a secret of the operator"


@dataclass(frozen=True, slots=True)
class Keys:
    """Key pair in files."""

    private: Path
    public: Path


def make_keys(folder: Path, name: str) -> Keys:
    private = Ed25519PrivateKey.generate()
    keys = Keys(folder / f"{name}.pem", folder / f"{name}.pub")
    keys.private.write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    keys.public.write_bytes(
        private.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    return keys


def write_metadata(logs: Path, replicas: Sequence[int] = (1,)) -> None:
    """Make the directory one of node 1, whose metadata log names the replicas of both partitions."""
    (logs / "meta.properties").write_text("version=1\ncluster.id=c\nnode.id=1\ndirectory.id=DDDDDDDDDDDDDDDDDDDDDQ\n")
    values = []
    for topic, policy in (("people", "compact"), ("visits", "delete")):
        topic_id = uuid.uuid4()
        values += [
            encode_metadata_record(m.TopicRecord(name=topic, topic_id=topic_id), 0),
            encode_metadata_record(
                m.PartitionRecord(partition_id=0, topic_id=topic_id, replicas=[1], isr=[1], leader=1), 0
            ),
            encode_metadata_record(
                m.PartitionChangeRecord(partition_id=0, topic_id=topic_id, replicas=list(replicas)), 0
            ),
            encode_metadata_record(
                m.ConfigRecord(resource_type=2, resource_name=topic, name="cleanup.policy", value=policy), 0
            ),
        ]
    batch = encode_batch([Record(offset, NOW_MS, None, value) for offset, value in enumerate(values)], base_offset=0)
    write_segment(logs / "__cluster_metadata-0", 0, [batch])


def document(evidence: Path) -> Any:
    return json.loads(base64.b64decode(json.loads(evidence.read_text())["payload"]))

"""`bootstrap.checkpoint`, a file with the first records of a KRaft controller's metadata log.

    header batch    control record of type 3, SnapshotHeaderRecord
    data batches    metadata records without keys, in the order in which a controller applies them
    footer batch    control record of type 4, SnapshotFooterRecord

The file has the format of a metadata snapshot.  A controller with an empty metadata log copies all data records to the
log, so the file may also contain records of topics.

Source: Kafka 4.2.0, BootstrapDirectory, BatchFileReader and ActivationRecordsGenerator; KIP-630.
"""

from __future__ import annotations

from collections.abc import Sequence

from sediment.segment_io.format.batch_builder import BatchHead, NewRecord, build_batch
from sediment.segment_io.format.control_records import control_key
from sediment.segment_io.format.layout import CONTROL_SNAPSHOT_FOOTER, CONTROL_SNAPSHOT_HEADER
from sediment.segment_io.internal_topics.metadata_batches import data_batches
from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.message import Message

_LEADER_EPOCH = 0
_VERSION = 0  # version of the keys and values of control records


def format_bootstrap_checkpoint(values: Sequence[bytes], *, now_ms: int) -> bytes:
    header = m.SnapshotHeaderRecord(version=_VERSION, last_contained_log_timestamp=now_ms)
    parts = [_control_batch(CONTROL_SNAPSHOT_HEADER, header, 0, now_ms)]
    offset = 1
    parts += data_batches(values, base_offset=offset, leader_epoch=_LEADER_EPOCH, now_ms=now_ms)
    footer = m.SnapshotFooterRecord(version=_VERSION)
    parts.append(_control_batch(CONTROL_SNAPSHOT_FOOTER, footer, offset + len(values), now_ms))
    return b"".join(parts)


def _control_batch(kind: int, message: Message, offset: int, now_ms: int) -> bytes:
    record = NewRecord(now_ms, control_key(kind), message.to_bytes(_VERSION))
    return build_batch([record], BatchHead(base_offset=offset, leader_epoch=_LEADER_EPOCH, is_control=True))

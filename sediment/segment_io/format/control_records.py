"""Control records: the key and value of the one record in a control batch (kafka-log 01 §4).

    key                   version i16 = 0 | type i16
    value, types 0 and 1  version i16 = 0 | coordinator epoch i32            a transaction marker: ABORT or COMMIT
    value, other types    a message of KRaft with its version first          `internal_topics` reads them

A key is malformed if it is too short or has a negative version.  A version above 0 and additional bytes are accepted.
The record of a control batch is never compressed.

Source: Kafka's ControlRecordType, EndTransactionMarker.
"""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt

from sediment.segment_io.compiled.jit import kernel
from sediment.segment_io.compiled.memory import load_i16, load_i32
from sediment.segment_io.compiled.status import BAD_CONTROL_RECORD, OK
from sediment.segment_io.format.layout import BATCH_HEADER_BYTES, CONTROL_ABORT, CONTROL_COMMIT
from sediment.segment_io.format.record_decoder import read_varint, read_varlong

_VERSION = 0
_TYPE_NAMES = (  # by type
    "ABORT",
    "COMMIT",
    "LEADER_CHANGE",
    "SNAPSHOT_HEADER",
    "SNAPSHOT_FOOTER",
    "KRAFT_VERSION",
    "KRAFT_VOTERS",
)
CONTROL_KEY_STRUCT = struct.Struct(">hh")  # version, type
END_TXN_MARKER_STRUCT = struct.Struct(">hi")  # version, coordinator epoch


def control_type_name(number: int) -> str:
    return _TYPE_NAMES[number] if 0 <= number < len(_TYPE_NAMES) else "UNKNOWN"


def control_key(control_type: int) -> bytes:
    return CONTROL_KEY_STRUCT.pack(_VERSION, control_type)


def marker_key_value(coordinator_epoch: int, *, is_commit: bool) -> tuple[bytes, bytes]:
    key = control_key(CONTROL_COMMIT if is_commit else CONTROL_ABORT)
    return key, END_TXN_MARKER_STRUCT.pack(_VERSION, coordinator_epoch)


@kernel
def decode_control(base: int, position: int, size_bytes: int, row: npt.NDArray[np.void]) -> int:
    """Fill the control fields of `row` from the single record of an uncompressed control batch."""
    address = base + position + BATCH_HEADER_BYTES
    end = base + position + size_bytes
    length, address = read_varint(address)
    if address == 0 or length < 0 or length > end - address:
        return BAD_CONTROL_RECORD
    end = address + length
    delta, address = read_varlong(address + 1)
    if address == 0 or address >= end:
        return BAD_CONTROL_RECORD
    row["control_timestamp"] = row["base_timestamp"] + delta
    _, address = read_varint(address)
    if address == 0 or address >= end:
        return BAD_CONTROL_RECORD
    length, address = read_varint(address)
    if address == 0 or length < 4 or length > end - address or load_i16(address) < 0:
        return BAD_CONTROL_RECORD
    row["control_type"] = load_i16(address + 2)
    address += length
    if address >= end:
        return BAD_CONTROL_RECORD
    length, address = read_varint(address)
    if address != 0 and length >= 6 and length <= end - address:
        row["coordinator_epoch"] = load_i32(address + 2)
    return OK

"""Layouts of Kafka's log files, as field offsets that readers and writers share.

A record batch of magic 2 (kafka-log 01 §3), integers big-endian:

    +--------+--------+-------+-------+------+------------+-------+
    | base   | length | epoch | magic | crc  | attributes | last  |
    | offset |        |       |  = 2  | 32C  |            | delta |
    | 0      | 8      | 12    | 16    | 17   | 21         | 23    |
    +--------+--------+-------+-------+------+------------+-------+------------------+
    | base      | max       | producer | producer | base     | record | records …    |
    | timestamp | timestamp | id       | epoch    | sequence | count  |              |
    | 27        | 35        | 43       | 51       | 53       | 57     | 61           |
    +-----------+-----------+----------+----------+----------+--------+--------------+
              `crc` covers byte 21 to the end; `length` counts from byte 12.

A message of magic 0 or 1 (§5):

    +--------+--------+-----+-------+------------+------------------+------------+-----+--------------+-------+
    | offset | length | crc | magic | attributes | timestamp        | key length | key | value length | value |
    | 0      | 8      | 12  | 16    | 17         | 18, magic 1 only | 18 or 26   |     |              |       |
    +--------+--------+-----+-------+------------+------------------+------------+-----+--------------+-------+
              `crc` is CRC-32 (IEEE) and covers byte 16 to the end; `length` counts from byte 12.

The constants are byte positions from the start of the structure; `_BYTES` marks a size.  The module contains only
constants, which the compiler copies into kernels.
"""

from __future__ import annotations

import struct

# ---------------------------------------------------------------------------------------------- common batch prefix
BASE_OFFSET = 0
BATCH_LENGTH = 8
MAGIC = 16
LOG_OVERHEAD_BYTES = 12  # the bytes that `length` does not count
MAGIC_PREFIX_BYTES = 17  # the header up to and including magic; a file iterator needs these bytes to continue
LEGACY_MIN_LENGTH = 14  # a smaller `length` is corrupt for every magic

# -------------------------------------------------------------------------------------- message of magic 0 or 1 (§5)
LEGACY_CRC = 12
LEGACY_CRC_START = 16
LEGACY_ATTRIBUTES = 17
LEGACY_TIMESTAMP = 18  # magic 1 only
LEGACY_MIN_ENTRY_BYTES = LOG_OVERHEAD_BYTES + LEGACY_MIN_LENGTH

# ------------------------------------------------------------------------------------------------- batch of magic 2
MAGIC_V2 = 2
LEADER_EPOCH = 12
CRC = 17
ATTRIBUTES = 21
LAST_OFFSET_DELTA = 23
BASE_TIMESTAMP = 27
MAX_TIMESTAMP = 35
PRODUCER_ID = 43
PRODUCER_EPOCH = 51
BASE_SEQUENCE = 53
RECORD_COUNT = 57
BATCH_HEADER_BYTES = 61
BATCH_STRUCT = struct.Struct(">qiibIhiqqqhii")
assert BATCH_STRUCT.size == BATCH_HEADER_BYTES

CODEC_MASK = 0x07
TIMESTAMP_TYPE_BIT = 0x08  # set: LogAppendTime
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
DELETE_HORIZON_BIT = 0x40  # if set, baseTimestamp is the delete horizon

CODEC_NONE, CODEC_GZIP, CODEC_SNAPPY, CODEC_LZ4, CODEC_ZSTD = range(5)

# Streams of snappy as Kafka writes them (kafka-log 01 §6.2)
SNAPPY_HEADER = bytes.fromhex("82534e41505059000000000100000001")
SNAPPY_BLOCK_BYTES = 32 << 10

# Frames of lz4 as Kafka writes them (kafka-log 01 §6.3): version 1, independent blocks, only the header's checksum
LZ4_FRAME_HEADER = bytes.fromhex("04224d18604082")
LZ4_BLOCK_BYTES = 64 << 10
LZ4_STORED = 1 << 31  # bit in a block's length that marks an uncompressed block
CODEC_NAMES = ("none", "gzip", "snappy", "lz4", "zstd")
GZIP_LEVEL = 6  # deflate's default, which is Kafka's level -1
LZ4_LEVEL = 9  # Kafka's level for the fast compressor; other levels select the high compressor
ZSTD_LEVEL = 3
GZIP_LEVELS = range(1, 10)  # the values of Kafka's `compression.gzip.level`, except -1, which means the default
LZ4_LEVELS = range(1, 18)
ZSTD_LEVELS = range(-131_072, 23)

NO_TIMESTAMP = -1
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_LEADER_EPOCH = -1
INT32_MAX = 2147483647
INT64_MAX = 9223372036854775807
INT64_MIN = -INT64_MAX - 1

# A record is: length varint, attributes i8, timestamp delta varlong, offset delta varint, key length varint, key, value
# length varint, value, header count varint, headers (§3.4).  In the smallest record, each of the seven numbers has one
# byte, and all other fields are empty.
MIN_RECORD_BYTES = 7
MAX_VARINT_BYTES = 5
MAX_VARLONG_BYTES = 10

# -------------------------------------------------------------------------------------------- control records (§4)
CONTROL_ABORT = 0
CONTROL_COMMIT = 1
CONTROL_LEADER_CHANGE = 2
CONTROL_SNAPSHOT_HEADER = 3
CONTROL_SNAPSHOT_FOOTER = 4
CONTROL_KRAFT_VERSION = 5
CONTROL_KRAFT_VOTERS = 6
NO_CONTROL_RECORD = -1  # the batch is not a control batch, or was emptied

# ------------------------------------------------------------------------------------------------------ indexes (§7)
OFFSET_ENTRY_STRUCT = struct.Struct(">ii")  # relative offset, position
OFFSET_ENTRY_BYTES = 8
TIME_ENTRY_STRUCT = struct.Struct(">qi")  # timestamp, relative offset
TIME_ENTRY_BYTES = 12
TRANSACTION_ENTRY_STRUCT = struct.Struct(">hqqqq")  # version, producer id, first, last, last stable offset
TRANSACTION_ENTRY_BYTES = 34
assert OFFSET_ENTRY_STRUCT.size == OFFSET_ENTRY_BYTES
assert TIME_ENTRY_STRUCT.size == TIME_ENTRY_BYTES
assert TRANSACTION_ENTRY_STRUCT.size == TRANSACTION_ENTRY_BYTES

# ------------------------------------------------------------------------------------------ producer snapshots (§8)
SNAPSHOT_VERSION = 1
SNAPSHOT_HEADER_STRUCT = struct.Struct(">hIi")  # version, crc, number of entries
SNAPSHOT_CRC_START = 6
# producer id, epoch, last sequence, last offset, offset delta, timestamp, coordinator epoch, transaction first offset
SNAPSHOT_ENTRY_STRUCT = struct.Struct(">qhiqiqiq")
SNAPSHOT_ENTRY_BYTES = 46
assert SNAPSHOT_HEADER_STRUCT.size == 10
assert SNAPSHOT_ENTRY_STRUCT.size == SNAPSHOT_ENTRY_BYTES

MAX_SEGMENT_BYTES = INT32_MAX  # FileRecords refuses to open a larger file
FIRST_MAGIC_WITH_PRODUCERS = MAGIC_V2  # older formats have no producers, transactions or markers

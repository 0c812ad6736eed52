"""Status numbers of all kernels.

Each number has one meaning, so a kernel can return the status of another kernel to its caller:

    0       success
    1-19    results for batches and records of any magic (`format.batch_headers`, `record_decoder`, `legacy`)
    20-29   results for batches inside a segment (`segment.recovery_scan`)
    30-39   results for producer state (`partition.producer_replay`)
    100-    requests: the caller does the requested work, and calls the kernel again
    130-    final results of a sweep or of a comparison of keys

Invariants: numbers are disjoint, and only this file defines them.
"""

from __future__ import annotations

OK = 0

# ------------------------------------------------------------------------------------------------ batches and records
INCOMPLETE = 1  # the batch at the position continues past the end of the buffer
ROWS_FULL = 2
BAD_LENGTH = 3
BAD_MAGIC = 4
LEGACY_MAGIC = 5
BAD_CRC = 6
BAD_CODEC = 7
BAD_RECORD_COUNT = 8
BAD_LAST_OFFSET = 9
RECORD_TOO_LONG = 10
RECORD_ENDS_EARLY = 11
BAD_VARINT = 12
BAD_KEY_LENGTH = 13
BAD_VALUE_LENGTH = 14
BAD_HEADERS = 15
RECORD_LENGTH_MISMATCH = 16
RECORDS_REMAIN = 17
BAD_CONTROL_RECORD = 18
NESTED_COMPRESSION = 19  # a compressed message of magic 0 or 1 contains compressed messages

# -------------------------------------------------------------------------------------------- batches inside a segment
OFFSET_OUTSIDE_SEGMENT = 20
OFFSET_OVERFLOW = 21  # an offset is more than 2^31 - 1 above the segment's base offset
OFFSET_BELOW_BASE = 22
OFFSET_GOES_BACK = 23
OFFSET_IS_LOST = 24  # the disk sector that contains the offset was not written

# ------------------------------------------------------------------------------------------------------ producer state
OUTSIDE_TRANSACTION = 30  # a batch without a transaction while the producer's transaction is open
NO_MARKER = 31  # a control record that is neither COMMIT nor ABORT

# ------------------------------------------------------------------------------------------------------------ requests
NEEDS_PAYLOAD = 100  # decompress the batch at which the kernel stopped, and pass its records
NEEDS_RECORD_ROOM = 101  # enlarge the arrays of records to the requested number of rows
NEEDS_TABLE_ROOM = 102  # make room in the table for the amounts in the registers that begin at NEEDED
NEEDS_COMPRESSION = 103  # compress RAW_BYTES of `raw` and place the batch with `emit_compressed`
NEEDS_MAP_ROOM = 104  # grow the map by NEEDED keys
NEEDS_OUTPUT_ROOM = 105  # NEEDED bytes must be free below OUT_START
NEEDS_RAW_ROOM = 106  # enlarge `raw` to NEEDED bytes
NEEDS_SIGHT_ROOM = 107  # enlarge the columns of the key run to NEEDED rows
NEEDS_ORIGINAL = 108  # copy the original bytes of the batch at CURSOR to the output and move the cursor past it
NEEDS_SLOTS = 109  # make room for NEEDED keys in the hash table
NEEDS_BLOCK = 110  # provide NEEDED bytes from NEXT_ADDRESS to END_ADDRESS
RUN_FULL = 111  # take the complete key run, and start the next run with an empty map
NEEDS_BEFORE = 112  # provide the next records of the log as it was before a compaction
NEEDS_AFTER = 113  # provide the next records of the log as it is after a compaction
NEEDS_EVENT_ROOM = 114  # take the events out, so that their array has room again

# ------------------------------------------------------------------------------------------------------ final results
DONE = 130
OFFSETS_NOT_INCREASING = 131
TRANSACTIONS_MET = 132  # control or transactional batches are present, but the caller passed no batch flags
CUT_MISSED = 133  # the chunk does not end at the end of a batch
MAP_FULL = 134
LEGACY_MET = 135  # messages of magic 0 or 1 are among the batches
BEYOND_SIGHTED = 136  # the split has more records than when its keys were collected
PROVED = 137
KEYS_COLLIDE = 138  # the key at COLLIDING_OFFSET has the same hash as another key
BATCH_TOO_LARGE = 139  # the rewritten batch would not fit into a segment file

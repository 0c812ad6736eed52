"""Registers of the resumable kernels: the progress of a sweep, and its settings.

`state` and `rules` are int64 arrays; the numbers below are their indexes.  The kernel driver owns both.
"""

from __future__ import annotations

# ---------------------------------------------------------------------------------- registers, int64[STATE_REGISTERS]
CURSOR = 0  # number of batches of the chunk that are not processed yet
OUT_START = 1  # first used byte of the output
LAST_BASE_OFFSET = 2  # base offset of the batch that was processed last
HEADROOM = 3  # number of keys that are certain to fit into the map, regardless of their hashes
NEEDED = 4  # the amount that a status requests
RAW_BYTES = 5  # number of bytes of `raw` that are to be compressed
PENDING_KEPT = 6  # PENDING_...: properties of the batch that waits for compression
PENDING_BASE_TIMESTAMP = 7
PENDING_MAX_TIMESTAMP = 8
PENDING_HAS_HORIZON = 9
PENDING_CODEC = 10
MESSAGES_READ = 11
MESSAGES_WRITTEN = 12
CHANGED = 13  # 1 if the output differs from the input
LATEST_OFFSET = 14  # the latest offset of a filled map; records above it survive
MAPPED = 15  # number of keys in the map that is being filled
TOMBSTONES_WAITING = 16  # number of kept tombstones; the next two are the first and last horizon of their batches
FIRST_HORIZON_MS = 17
LAST_HORIZON_MS = 18
WITHOUT_HORIZON = 19  # number of batches that needed a delete horizon but got none
RUN_KEYS = 20  # number of keys in the current run
RECORDS = 21  # number of records that were read so far, from the end of the split
WITHOUT_KEY = 22  # number of records that were dropped because they have no key (Kafka's invalid messages)
STATE_REGISTERS = 23

# ------------------------------------------------------------------------------------ settings, int64[RULE_REGISTERS]
FIRST_MAPPED_OFFSET = 0  # keys below this offset are only looked up
UPPER_BOUND_OFFSET = 1  # first uncleanable offset; the batch before it keeps its header
NOW_MS = 2
NEXT_HORIZON_MS = 3  # now + delete.retention.ms, or NO_HORIZON
FILTER = 4  # BY_OCCURRENCE, BY_OFFSET or BY_BITMAP
MAP_LIMIT = 5  # largest number of keys in a bounded map
RUN_LIMIT = 6  # largest number of keys in a run; only a run of one batch may have more
RULE_REGISTERS = 7

# How records are filtered
BY_OCCURRENCE = 0  # by a set of the keys that occur nearer to the log's end
BY_OFFSET = 1  # by a filled map with offsets
BY_BITMAP = 2  # by a bitmap with a bit for each record of the split; it is computed from the keys of all splits

"""Conversion of file and directory names to offsets, topic partitions and states, and back (kafka-log 01 §1).

    segment file        base offset in 20 digits, kind, then .cleaned, .swap or .deleted   `segment_file_name`
    offset in a name    the number before the first dot                                    `leading_offset`
    live partition      topic-N, parsed from the last dash                                 `parse_partition_directory`
    deleted or stray    topic-N.<UUID>-delete or -stray, shortened to 255 characters       `aside_directory_name`
    future log          topic-N.<UUID>-future, not shortened                               `future_directory_name`

Invariant: names with a state suffix (`.cleaned`, `.swap`, `.deleted`) and Sediment's `.part` names are never mistaken
for live segment files.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache, total_ordering

from sediment.segment_io.errors import UsageError
from sediment.segment_io.format.layout import INT32_MAX, INT64_MAX

LOCK_FILE = ".lock"
CLEAN_SHUTDOWN_FILE = ".kafka_cleanshutdown"
META_PROPERTIES_FILE = "meta.properties"
SERVER_PROPERTIES_FILE = "server.properties"
BOOTSTRAP_FILE = "bootstrap.checkpoint"
RECOVERY_POINT_FILE = "recovery-point-offset-checkpoint"
LOG_START_FILE = "log-start-offset-checkpoint"
CLEANER_FILE = "cleaner-offset-checkpoint"
HIGH_WATERMARK_FILE = "replication-offset-checkpoint"
LEADER_EPOCH_FILE = "leader-epoch-checkpoint"
PARTITION_METADATA_FILE = "partition.metadata"
QUORUM_STATE_FILE = "quorum-state"
RUN_TOKEN_FILE = ".sediment-run"
UNCLEANABLE_FILE = ".sediment-uncleanable"

METADATA_TOPIC = "__cluster_metadata"
REMOTE_INDEX_CACHE = "remote-log-index-cache"
INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})

CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"
DELETED_SUFFIX = ".deleted"
PART_SUFFIX = ".part"

MOST_IMPLIED_PARTITIONS = 200_000
"""How many partitions the highest number of a topic's folders may imply; as many as Kafka recommends for a cluster."""

LONGEST_FILE_NAME = 255
"""The largest length of a file name in bytes."""

SHORTENED = "~"
"""The character before the hash in a name that was shortened to this length."""


class SegmentFileKind(StrEnum):
    """The files of one segment, in the order in which Kafka renames them."""

    LOG = ".log"
    OFFSET_INDEX = ".index"
    TIME_INDEX = ".timeindex"
    TRANSACTION_INDEX = ".txnindex"
    SNAPSHOT = ".snapshot"


INDEX_KINDS = (SegmentFileKind.OFFSET_INDEX, SegmentFileKind.TIME_INDEX, SegmentFileKind.TRANSACTION_INDEX)


class DirectoryState(StrEnum):
    LIVE = ""
    DELETE = "-delete"
    STRAY = "-stray"
    FUTURE = "-future"


@total_ordering
@dataclass(frozen=True, slots=True)
class TopicPartition:
    """A topic and a partition number; `str()` is the directory name of the live log."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    def __lt__(self, other: TopicPartition) -> bool:
        return (self.topic, self.partition) < (other.topic, other.partition)


def by_number(name: str) -> tuple[tuple[str | int, ...], int, str]:
    """Return a sort key that reads digits as numbers: `t-2` before `t-10`, and `g2` before `g10`."""
    topic, _, number = name.rpartition("-")
    # A name that ends in `-` and digits is a partition name.  So `t-10` comes before `t-2-0`, because topic `t` comes
    # before topic `t-2`.
    is_partition = number.isascii() and number.isdigit()
    words = _DIGITS.split(topic if is_partition else name)
    # The words alternate: text, digits, text, …  So elements at the same index of two keys have the same type.
    parts = tuple(_leading_digits(word) if place % 2 else word for place, word in enumerate(words))
    return (parts, _leading_digits(number) if is_partition else -1, name)


def _leading_digits(number: str) -> int:
    return int(number[:_MOST_DIGITS])


METADATA_PARTITION = TopicPartition(METADATA_TOPIC, 0)

_MOST_DIGITS = 20  # Python refuses to convert thousands of digits
_DIGITS = re.compile(r"([0-9]+)")
_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_STATE_DIRECTORY = re.compile(r"(.+)\.[0-9A-Za-z_-]+-(?:delete|future|stray)", re.DOTALL)
_NUMBER = re.compile(r"\+?[0-9]{1,255}")


def is_topic_name(name: str) -> bool:
    """Return True if Kafka allows a topic of this name (Topic.isValid)."""
    return _TOPIC_NAME.fullmatch(name) is not None and name not in (".", "..")


def parse_partition_directory(name: str) -> tuple[TopicPartition, DirectoryState]:
    """Return the topic partition and the state of a directory name.

    Two kinds of names are refused although a broker loads their directories.

    Raises:
        UsageError: the name is not a partition name (`lost+found`, `topic`, `topic-x`, `t-00`, `a b-1`,
            `t-2147483648`).

    Source: kafka-log 01 §1.2; Kafka's UnifiedLog.parseTopicPartitionName and Topic.isValid.
    """
    state = next((s for s in DirectoryState if s and name.endswith(s)), DirectoryState.LIVE)
    match = _STATE_DIRECTORY.fullmatch(name) if state else None
    if state and match is None:
        raise _not_a_partition(name)
    topic, dash, number = (match[1] if match else name).rpartition("-")
    if not dash or not topic or not _NUMBER.fullmatch(number) or int(number) > INT32_MAX:
        raise _not_a_partition(name)
    # A broker also loads topics whose names Kafka does not allow, but its checkpoint files cannot contain some of these
    # names.
    if not is_topic_name(topic):
        raise UsageError(
            f"directory {name!r} is not named topic-partition: Kafka allows no topic of that name",
            advice="a broker sets the directory aside, or writes checkpoint files that it cannot read back; move the "
            "directory out of the log directory",
        )
    partition = TopicPartition(topic, int(number))
    # A broker reads `t-00` and `t-+0` as t-0, but the only live name of a partition is its `str()`.
    if number != str(partition.partition):
        raise UsageError(
            f"directory {name!r} is not named topic-partition: the name of that partition is {partition}",
            advice=f"a broker treats it as {partition}, and refuses to start if a directory {partition} exists too; "
            "move it out of the log directory",
        )
    return partition, state


def with_suffix(name: str, suffix: str) -> str:
    """Return `name` + `suffix` if it is short enough for a file; otherwise shorten `name` and mark it with a hash.

    The result is as unique as `name`.  Only the shortened form contains `~`, which no topic name contains.
    """
    whole = name + suffix
    if len(whole.encode(errors="surrogateescape")) <= LONGEST_FILE_NAME:
        return whole
    mark = SHORTENED + hashlib.sha256(name.encode(errors="surrogateescape")).hexdigest()[:16]
    left = LONGEST_FILE_NAME - len((mark + suffix).encode())
    return name.encode(errors="surrogateescape")[:left].decode(errors="ignore") + mark + suffix


def aside_directory_name(partition: TopicPartition, state: DirectoryState, unique: str) -> str:
    """Return the name of a directory that is deleted or stray: `topic-N.<unique>-delete` or `topic-N.<unique>-stray`.

    `unique` is a UUID without dashes, 32 hexadecimal digits.

    Source: kafka-log 01 §1.2; Kafka's UnifiedLog.logDeleteDirName and logStrayDirName.
    """
    suffix = f"-{partition.partition}.{unique}{state}"
    return partition.topic[: LONGEST_FILE_NAME - len(suffix)] + suffix


def future_directory_name(partition: TopicPartition, unique: str) -> str:
    """Return the name of the directory of a future log: `topic-N.<unique>-future`; it may be too long for a file name.

    Source: Kafka's UnifiedLog.logFutureDirName.
    """
    return f"{partition}.{unique}{DirectoryState.FUTURE}"


def _not_a_partition(name: str) -> UsageError:
    return UsageError(
        f"directory {name!r} is not named topic-partition",
        advice="a broker refuses to start on this directory; move it out of the log directory",
    )


def segment_file_name(base_offset: int, kind: SegmentFileKind) -> str:
    return f"{base_offset:020d}{kind}"


def new_run_id() -> str:
    return uuid.uuid4().hex[:12]


def no_progress(_size_bytes: int) -> None:
    return None


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt at a task of a run; no other attempt of the run has its name.

    `progress` is called with the size of each chunk, before the chunk is used; an exception from it ends the attempt.
    """

    run_id: str
    name: str
    progress: Callable[[int], None] = no_progress


def part_file_name(base_offset: int, kind: SegmentFileKind, attempt: Attempt) -> str:
    """Return the name of a file that an attempt writes; the name is unique, and loaders ignore such files."""
    return f"{segment_file_name(base_offset, kind)}.{attempt.run_id}-{attempt.name}{PART_SUFFIX}"


@dataclass(frozen=True, slots=True)
class SegmentFileName:
    """A parsed file name; `state` is '' for a live file, and otherwise a state suffix or `.part`."""

    base_offset: int
    kind: SegmentFileKind
    state: str


_LEADING_OFFSET = re.compile(r"([0-9]+)\.")
_SEGMENT_FILE = re.compile(
    r"([0-9]{20})(\.log|\.index|\.timeindex|\.txnindex|\.snapshot)"
    r"(?:(\.cleaned|\.swap|\.deleted)|\.[0-9A-Za-z_.-]+(\.part))?"
)


@lru_cache(maxsize=4096)
def parse_segment_file(name: str) -> SegmentFileName | None:
    """Parse the name of a segment file, or return None for any other file; an offset is at most 2^63 - 1.

    A broker opens a segment only by the name that `segment_file_name` returns.  It does not open a file whose name has
    more or fewer digits.
    """
    match = _SEGMENT_FILE.fullmatch(name)
    if match is None or int(match[1]) > INT64_MAX:
        return None
    base, kind, state, part = match.groups()
    return SegmentFileName(int(base), SegmentFileKind(kind), state or part or "")


def leading_offset(name: str) -> int:
    """Return the number before the first dot of a name, as Kafka parses it; -1 if there is none."""
    match = _LEADING_OFFSET.match(name)
    offset = int(match[1]) if match else -1
    return offset if offset <= INT64_MAX else -1


@dataclass(frozen=True, slots=True)
class PartFile:
    """A synced file; its `part_name` is unique to the attempt, and the commit renames it to `final_name`."""

    part_name: str
    final_name: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class PartSegment:
    """One new segment; its files are in Kafka's renaming order (log, index, timeindex, txnindex if one exists)."""

    base_offset: int
    files: tuple[PartFile, ...]

"""Formats of checkpoint files and of partition.metadata (kafka-log 01 §9, §10).

A checkpoint is a text file with offsets or leader epochs.  It has a version line, a line with the number of entries,
and one line for each entry.

    empty file, or no count                     the file has no entries
    wrong version, count or line                CorruptCheckpointError is raised
    partition.metadata                          it has a version and a topic id; the all-zero id is refused

Invariants: every file that a broker accepts can be parsed.  An entry that a broker could not read back is refused.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from sediment.segment_io.errors import CorruptCheckpointError, UsageError
from sediment.segment_io.format.layout import INT32_MAX, INT64_MAX
from sediment.segment_io.format.names import TopicPartition

CHECKPOINT_VERSION = 0

_Entry = TypeVar("_Entry")

_INTEGER = re.compile(r"[+-]?[0-9]+", re.ASCII)
_WHITE_SPACE = re.compile(r"[ \t\n\x0b\f\r]+")
_COLON = re.compile(r":[ \t\n\x0b\f\r]+")
_LINE_END = re.compile(r"\r\n|\r|\n")


def _corrupt(what: str, path: str | None, advice: str) -> CorruptCheckpointError:
    return CorruptCheckpointError(what, path=path, advice=advice)


def _lines(content: bytes, path: str | None, advice: str) -> list[str]:
    """Split text into lines like Java's BufferedReader: a line end at the end of the text begins no further line."""
    try:
        lines = _LINE_END.split(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise _corrupt("file is not UTF-8 text", path, advice) from error
    return lines[:-1] if lines[-1] == "" else lines


def parse_integer(text: str, bits: int) -> int:
    """Return a decimal number of `bits` signed bits, as Java parses it.  int() alone would accept `1_0` and ` 1`.

    Raises:
        ValueError: `text` is not such a number.
    """
    if not _INTEGER.fullmatch(text):
        raise ValueError(text)
    value = int(text)
    if not -(1 << bits - 1) <= value < 1 << bits - 1:
        raise ValueError(text)
    return value


def parse_count(text: str) -> int | None:
    """Return the int64 that ASCII digits write; None for any other text, however many digits it has."""
    if not text.isascii() or not text.isdigit():
        return None
    try:
        return parse_integer(text, 64)
    except ValueError:
        return None


# ---------------------------------------------------------------------------------------- checkpoints of entries (§9)

_CHECKPOINT_ADVICE = "restore the file, or delete it; a broker then creates a new one"


def _parse_checkpoint(content: bytes, parse_entry: Callable[[list[str]], _Entry], path: str | None) -> list[_Entry]:
    lines = _lines(content, path, _CHECKPOINT_ADVICE)
    if not lines:
        return []
    _expect_version(lines[0], path)
    if len(lines) == 1:
        return []
    expected = _line_integer(lines[1], path)
    entries = []
    for line in lines[2:]:
        try:
            entries.append(parse_entry(_WHITE_SPACE.split(line.rstrip(" \t\x0b\f"))))
        except ValueError as error:
            raise _corrupt(f"checkpoint line {line!r} is malformed", path, _CHECKPOINT_ADVICE) from error
    if len(entries) != expected:
        raise _corrupt(f"checkpoint announces {expected} entries but contains {len(entries)}", path, _CHECKPOINT_ADVICE)
    return entries


def _expect_version(line: str, path: str | None) -> None:
    version = _line_integer(line, path)
    if version != CHECKPOINT_VERSION:
        raise _corrupt(f"checkpoint has version {version}, not {CHECKPOINT_VERSION}", path, _CHECKPOINT_ADVICE)


def _line_integer(line: str, path: str | None) -> int:
    try:
        return parse_integer(line, 32)
    except ValueError as error:
        raise _corrupt(f"checkpoint line {line!r} is not a number", path, _CHECKPOINT_ADVICE) from error


def _format_checkpoint(entries: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in (str(CHECKPOINT_VERSION), str(len(entries)), *entries)).encode()


def parse_offset_checkpoint(content: bytes, *, path: str | None = None) -> dict[TopicPartition, int]:
    """Return offsets by partition, in file order; if several lines list a partition, the last line is used."""

    def parse_entry(fields: list[str]) -> tuple[TopicPartition, int]:
        topic, partition, offset = fields
        return TopicPartition(topic, parse_integer(partition, 32)), parse_integer(offset, 64)

    return dict(_parse_checkpoint(content, parse_entry, path))


def format_offset_checkpoint(entries: Mapping[TopicPartition, int]) -> bytes:
    """Return the file of `entries`, in their order.

    Raises:
        UsageError: a broker could not read back the entry of a partition, and would reject the whole file.
    """
    for partition, offset in entries.items():
        if not _is_readable(partition, offset):
            raise UsageError(
                f"Kafka cannot read a checkpoint file that lists offset {offset} of the partition {str(partition)!r}",
                advice="move its directory out of the log directory",
            )
    return _format_checkpoint([f"{key.topic} {key.partition} {offset}" for key, offset in entries.items()])


def _is_readable(partition: TopicPartition, offset: int) -> bool:
    try:
        partition.topic.encode()
    except UnicodeEncodeError:
        return False
    fits = -INT32_MAX - 1 <= partition.partition <= INT32_MAX and -INT64_MAX - 1 <= offset <= INT64_MAX
    return fits and _WHITE_SPACE.search(partition.topic) is None


# ------------------------------------------------------------------------------------------------- leader epochs (§9)


@dataclass(frozen=True, slots=True, order=True)
class EpochEntry:
    epoch: int
    start_offset: int


def parse_leader_epochs(content: bytes, *, path: str | None = None) -> tuple[EpochEntry, ...]:
    """Return entries by ascending epoch; if several lines list an epoch, the last line is used."""

    def parse_entry(fields: list[str]) -> tuple[int, int]:
        epoch, start_offset = fields
        return parse_integer(epoch, 32), parse_integer(start_offset, 64)

    starts = dict(_parse_checkpoint(content, parse_entry, path))
    return tuple(EpochEntry(epoch, start) for epoch, start in sorted(starts.items()))


def format_leader_epochs(entries: Iterable[EpochEntry]) -> bytes:
    lines = []
    for entry in entries:
        if not (-INT32_MAX - 1 <= entry.epoch <= INT32_MAX and -INT64_MAX - 1 <= entry.start_offset <= INT64_MAX):
            raise UsageError(
                f"leader epoch {entry.epoch} with start offset {entry.start_offset} does not fit Kafka's types"
            )
        lines.append(f"{entry.epoch} {entry.start_offset}")
    return _format_checkpoint(lines)


# ----------------------------------------------------------------------------------------------------------- uuids

_UUID_TEXT = re.compile(r"[A-Za-z0-9_-]{22}(==)?", re.ASCII)


def format_uuid(raw: bytes) -> str:
    """Format 16 bytes as Kafka writes ids: URL-safe base64, 22 characters, without padding."""
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode("ascii")


def parse_uuid(text: str) -> bytes:
    """Return the 16 bytes of an id.

    Raises:
        ValueError: `text` is not an id.
    """
    if not _UUID_TEXT.fullmatch(text):
        raise ValueError(f"{text!r} is not an id of 22 base64 characters")
    return base64.urlsafe_b64decode(text[:22] + "==")


# ------------------------------------------------------------------------------------------ partition.metadata (§10)

_METADATA_ADVICE = "run `sediment recover`, which writes the file from the metadata log, or says what else to do"


def parse_partition_metadata(content: bytes, *, path: str | None = None) -> str:
    if not content:
        raise _corrupt("partition.metadata has 0 bytes", path, _METADATA_ADVICE)
    fields = [_COLON.split(line) for line in _lines(content, path, _METADATA_ADVICE)[:2]]
    if [len(field) for field in fields] != [2, 2]:
        raise _corrupt("partition.metadata needs the lines `version: 0` and `topic_id: …`", path, _METADATA_ADVICE)
    (_, version), (_, topic_id) = fields
    try:
        if parse_integer(version, 32) < 0:
            raise ValueError(version)
        raw = parse_uuid(topic_id)
    except ValueError as error:
        raise _corrupt(f"partition.metadata contains a malformed value: {error}", path, _METADATA_ADVICE) from error
    if not any(raw):
        raise _corrupt("partition.metadata contains the all-zero topic id", path, _METADATA_ADVICE)
    return format_uuid(raw)


def format_partition_metadata(topic_id: str) -> bytes:
    """Return the content of the file for `topic_id`, 22 characters; the content has no final line end."""
    return f"version: 0\ntopic_id: {topic_id}".encode()

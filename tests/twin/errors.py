"""Errors of the twin, named after Kafka's exceptions."""

from __future__ import annotations


class TwinError(Exception):
    """Root of the twin's errors."""


class CorruptRecordError(TwinError):
    """Framing of a batch, a checksum or a compressed stream is wrong (CorruptRecordException)."""


class InvalidRecordError(TwinError):
    """A record contradicts its batch or its own length (InvalidRecordException)."""


class UnsupportedCodecError(TwinError):
    """Codec bits 5 to 7 (IllegalArgumentException, "unknown compression type id")."""


class CorruptSnapshotError(TwinError):
    """A producer snapshot is malformed or fails its checksum (CorruptSnapshotException)."""


class CorruptIndexError(TwinError):
    """An index contradicts its format (CorruptIndexException, KafkaException)."""


class IndexFullError(TwinError):
    """An index has no slot left (IllegalArgumentException)."""


class InvalidIndexOffsetError(TwinError):
    """An index entry does not lie behind the last one, or not within 2^31 of its base (InvalidOffsetException)."""


class IllegalStateError(TwinError):
    """Kafka's cleaner gives up on the partition (IllegalStateException)."""

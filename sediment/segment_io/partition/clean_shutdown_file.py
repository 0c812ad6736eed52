"""`.kafka_cleanshutdown`, the marker of a clean stop in a log directory: its format, reading and replacement.

A broker removes the marker when it starts, and writes the marker as its last file when it stops.  A broker that starts
without a marker verifies the segment that contains the recovery point, and all later segments.

    content                  writer
    JSON with an epoch       a broker since Kafka 3.7
    empty                    an older broker, `sediment recover`
    `_OF_A_NEW_DIRECTORY`    `sediment clone`, `sediment adopt`: no broker has started on the directory since
    `_OF_A_SERVED_NODE`      `sediment serve` of several directories: no broker has started on any of them
    `_OF_RAISED_EPOCHS`      `sediment serve`: it raised the leader epochs after an unclean stop or a `recover`

For a broker, the last four contents mean the same: the stop was clean, and the broker epoch is unknown.

Source: kafka-log 01 §12, 05 §1; Kafka's CleanShutdownFileHandler.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from sediment.segment_io.format.names import CLEAN_SHUTDOWN_FILE
from sediment.segment_io.fs import Fs

# These lines are not JSON, so they contain no epoch.
_OF_A_NEW_DIRECTORY = b"written by sediment; no broker has started on this directory since\n"
_OF_A_SERVED_NODE = b"written by sediment serve; no broker has started on the directories of this node\n"
_OF_RAISED_EPOCHS = b"written by sediment serve; it raised the leader epochs after an unclean stop\n"


@dataclass(frozen=True, slots=True)
class CleanShutdown:
    """The marker of a clean stop; `broker_epoch` is None if the file does not contain an epoch.

    `is_without_broker` is True if no broker has started on the directory since it was made.  `is_new` is True if the
    directory also has the folder of every partition that was ever written to: it was never served with others.
    `has_raised_epochs` is True if no log has lost records since a server raised the leader epochs.
    """

    broker_epoch: int | None
    is_new: bool = False
    has_raised_epochs: bool = False
    is_without_broker: bool = False


NEW_DIRECTORY = CleanShutdown(None, is_new=True, is_without_broker=True)
"""The marker of a clone or an adopted directory; another broker wrote the logs, so the broker epoch is unknown."""

SERVED_NODE = CleanShutdown(None, is_without_broker=True)
"""The marker of several directories of a node that only a server has used; partitions may be in any of them."""

RAISED_EPOCHS = CleanShutdown(None, has_raised_epochs=True)
"""The marker of a server that raised the leader epochs when it started, and stopped cleanly."""

_LINES = {
    _OF_A_NEW_DIRECTORY: NEW_DIRECTORY,
    _OF_A_SERVED_NODE: SERVED_NODE,
    _OF_RAISED_EPOCHS: RAISED_EPOCHS,
}


def parse_clean_shutdown(content: bytes) -> CleanShutdown:
    """Parse the content of the marker; a malformed marker also proves a clean stop."""
    if content in _LINES:
        return _LINES[content]
    try:
        epoch = json.loads(content)["brokerEpoch"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return CleanShutdown(None)
    return CleanShutdown(epoch if type(epoch) is int else None)


def format_clean_shutdown(marker: CleanShutdown) -> bytes:
    line = next((line for line, of_line in _LINES.items() if of_line == marker), None)
    if line is not None:
        return line
    if marker.broker_epoch is None:
        return b""
    return json.dumps({"version": 0, "brokerEpoch": marker.broker_epoch}, separators=(",", ":")).encode()


def read_clean_shutdown(fs: Fs, log_dir: Path) -> CleanShutdown | None:
    try:
        return parse_clean_shutdown(fs.read_bytes(log_dir / CLEAN_SHUTDOWN_FILE))
    except FileNotFoundError:
        return None


def is_new_directory(fs: Fs, log_dir: Path) -> bool:
    """A broker removes this marker when it starts.

    Neither the broker's stop nor `sediment recover` writes it again.
    """
    return read_clean_shutdown(fs, log_dir) == NEW_DIRECTORY


def is_without_broker(fs: Fs, log_dir: Path) -> bool:
    """Return True if the marker proves that `bootstrap.checkpoint` is newer than any change by a broker."""
    marker = read_clean_shutdown(fs, log_dir)
    return marker is not None and marker.is_without_broker


def take_clean_shutdown(fs: Fs, log_dir: Path) -> CleanShutdown | None:
    """Return the marker and remove it durably, so that a crash during loading is treated as an unclean stop."""
    marker = read_clean_shutdown(fs, log_dir)
    if marker is not None:
        fs.unlink(log_dir / CLEAN_SHUTDOWN_FILE)
        fs.sync_directory(log_dir)
    return marker


def write_clean_shutdown(fs: Fs, log_dir: Path, marker: CleanShutdown, *, like: Path) -> None:
    """Write the marker durably, as the last write of a clean stop."""
    fs.replace_file(log_dir / CLEAN_SHUTDOWN_FILE, format_clean_shutdown(marker), like=like)

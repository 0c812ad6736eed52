"""`.kafka_cleanshutdown`, the marker of a clean stop in a log directory: its format, reading and replacement.

The marker is the last file that a broker writes when it stops; the broker removes the marker when it starts.  A broker
that starts without a marker verifies the segments from the recovery point on.

Source: kafka-log 01 §12, 05 §1; Kafka's CleanShutdownFileHandler.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from sediment.segment_io.format.names import CLEAN_SHUTDOWN_FILE
from sediment.segment_io.fs import Fs


@dataclass(frozen=True, slots=True)
class CleanShutdown:
    """The marker of a clean stop; `broker_epoch` is None if the file does not hold one."""

    broker_epoch: int | None


def parse_clean_shutdown(content: bytes) -> CleanShutdown:
    """Return the content of the marker; the stop was clean even if the content is malformed."""
    try:
        epoch = json.loads(content)["brokerEpoch"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return CleanShutdown(None)
    return CleanShutdown(epoch if type(epoch) is int else None)


def format_clean_shutdown(marker: CleanShutdown) -> bytes:
    """Return the marker that a broker with this epoch writes; without an epoch, the file is empty."""
    if marker.broker_epoch is None:
        return b""
    return json.dumps({"version": 0, "brokerEpoch": marker.broker_epoch}, separators=(",", ":")).encode()


def read_clean_shutdown(fs: Fs, log_dir: Path) -> CleanShutdown | None:
    """Return the marker of a log directory; None if the last stop was not clean."""
    try:
        return parse_clean_shutdown(fs.read_bytes(log_dir / CLEAN_SHUTDOWN_FILE))
    except FileNotFoundError:
        return None


def take_clean_shutdown(fs: Fs, log_dir: Path) -> CleanShutdown | None:
    """Return the marker and remove it durably, so that a crash during the load counts as an unclean stop."""
    marker = read_clean_shutdown(fs, log_dir)
    if marker is not None:
        fs.unlink(log_dir / CLEAN_SHUTDOWN_FILE)
        fs.sync_directory(log_dir)
    return marker


def write_clean_shutdown(fs: Fs, log_dir: Path, marker: CleanShutdown, *, like: Path) -> None:
    """Write the marker durably, as the last write of a clean stop."""
    fs.replace_file(log_dir / CLEAN_SHUTDOWN_FILE, format_clean_shutdown(marker), like=like)

"""Flushing a live log: make segments durable, then raise the recovery point (kafka-log 04 §7).

    flush.messages   an append flushes the batches that it has written (`should_flush`)
    flush.ms         `log_manager` flushes a log when this time has passed since its last flush
    roll             `log_roll` flushes the old segment
    close            `log_manager` flushes the log before the close

A flush syncs the log, the indexes and the transaction index of each segment at or above the recovery point. It also
syncs the directory if one of these segments is new. An empty active segment is flushed only on request
(`force_last_segment`); a close requests this.

Invariants: the recovery point rises only after the files of every segment below it have been synced. If a truncation
sets the recovery point during a flush, the flush does not change it.
"""

from __future__ import annotations

from collections.abc import Sequence

from sediment.engine.live.log.local_log import LocalLog
from sediment.engine.live.log.log_offsets import LogOffsets
from sediment.engine.log_config import LogConfig
from sediment.segment_io.fs import OpenFile


def should_flush(offsets: LogOffsets, log_end: int, config: LogConfig) -> bool:
    return log_end - offsets.recovery_point >= config.flush_messages


def flush(log: LocalLog, up_to: int | None, *, force_last_segment: bool) -> None:
    """Make batches below `up_to` durable, by default all batches; the files are synced without the lock."""
    with log.locked():
        offset = log.offsets.log_end if up_to is None else up_to
        files, has_new_names = _unflushed_files(log, offset, force_last_segment)
        truncations = log.truncations
    if not files:
        return
    try:
        _sync(log, files, has_new_names)
    except OSError as error:
        log.fail(error)
    with log.lock:
        if truncations == log.truncations:
            _note_flush(log, offset)


def flush_locked(log: LocalLog, offset: int) -> None:
    """Make batches below `offset` durable; the caller holds the lock."""
    files, has_new_names = _unflushed_files(log, offset, force_last_segment=False)
    if files:
        _sync(log, files, has_new_names)
        _note_flush(log, offset)


def _unflushed_files(log: LocalLog, offset: int, force_last_segment: bool) -> tuple[list[OpenFile], bool]:
    recovery_point = log.offsets.recovery_point
    end_offset = offset + 1 if force_last_segment else offset
    if end_offset <= recovery_point:
        return [], False
    segments = log.segments.between(recovery_point, end_offset)
    has_new_names = any(segment.base_offset >= recovery_point for segment in segments)
    return [file for segment in segments for file in segment.files()], has_new_names


def _sync(log: LocalLog, files: Sequence[OpenFile], has_new_names: bool) -> None:
    for file in files:
        file.sync()
    if has_new_names:
        # While the lock is held, the directory is neither renamed nor deleted.
        with log.lock:
            if not log.is_closed:
                log.fs.sync_directory(log.directory)


def _note_flush(log: LocalLog, offset: int) -> None:
    log.offsets = log.offsets.flushed_to(offset)
    log.last_flush_ms = log.clock()


def close_idle_files(log: LocalLog) -> None:
    """Close the files of segments that have not been used since the last call; the next use opens them again."""
    with log.lock:
        if log.is_closed or log.failure is not None:
            return
        end_offset = log.offsets.log_end
        for segment in reversed(log.segments):
            segment.close_idle(is_durable=end_offset <= log.offsets.recovery_point)
            end_offset = segment.base_offset

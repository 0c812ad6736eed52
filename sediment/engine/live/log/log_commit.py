"""The commit of a cleaning of a live log: cleaned segments replace their sources, one group at a time.

If no segment begins at the offset of a producer snapshot any more, the snapshot is removed.

Invariant: the lock is held for one group at a time, so appends and reads continue between two groups.

Source: kafka-log 02 §8.1; Kafka's LocalLog.replaceSegments, which the cleaner calls for each group.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack

from sediment.compaction.prepared_swap import CleanedGroup, PreparedSwap
from sediment.engine.directory.swap import commit
from sediment.engine.live.log.local_log import LocalLog
from sediment.engine.live.open_files import SPARE_DESCRIPTORS
from sediment.segment_io.errors import CommitStateUnknownError, UsageError

_LOCK_YIELD_SECONDS = 0.0005


def replace_segments(log: LocalLog, swap: PreparedSwap, before_group: Callable[[], None] | None) -> None:
    """Commit `swap`; before each group, `before_group` is called without the log's lock."""
    groups = iter([group for group in swap.groups if group.parts])
    replaced: CleanedGroup | None = None
    with ExitStack() as held:

        def next_group() -> None:
            nonlocal replaced
            if replaced is not None:
                _open_replacements(log, replaced)
                held.close()
                # If this thread did not pause, no waiting thread would get the lock.
                time.sleep(_LOCK_YIELD_SECONDS)
            if before_group is not None:
                before_group()
            held.enter_context(log.locked())
            log.fs.require_descriptors(SPARE_DESCRIPTORS)
            replaced = next(groups)

        with log.locked():
            _check_replaceable(log, swap)
        try:
            commit(swap, log.fs, before_group=next_group)
        except CommitStateUnknownError as error:
            log.go_offline(f"a commit did not end: {error}")
            raise
        except OSError as error:
            log.fail(error)
        if replaced is not None:
            _open_replacements(log, replaced)


def _check_replaceable(log: LocalLog, swap: PreparedSwap) -> None:
    active = log.segments.active.base_offset
    if any(source.base_offset >= active for group in swap.groups for source in group.sources):
        raise UsageError("the active segment of an open log cannot be replaced", partition=str(log.partition))


def _open_replacements(log: LocalLog, group: CleanedGroup) -> None:
    sources = {source.base_offset for source in group.sources}
    bases = {part.base_offset for part in group.parts}
    log.segments.replace(
        sources,
        [
            log.segment(part.base_offset, size_bytes=part.files[0].size_bytes, now_ms=log.clock())
            for part in group.parts
        ],
    )
    log.snapshots.difference_update(sources - bases)

"""The order in which dirty logs are cleaned: Kafka's LogCleanerManager.grabFilthiestCompactedLog.

`compaction.cleanable_range` computes the dirty ratio and the maximum lag of each log.  It also compares the ratio with
min.cleanable.dirty.ratio.

Invariant: this module does not import the code of live logs.  So a job that needs only the order starts fast.

Source: kafka-log 02 §2.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from sediment.compaction.cleanable_range import CleanableRange

_Log = TypeVar("_Log")


def filthiest_first(logs: Iterable[tuple[_Log, CleanableRange]]) -> list[_Log]:
    """Return the logs that may be cleaned, largest cleanable ratio first; the maximum lag does not affect the order.

    Source: kafka-log 02 §2, steps 3-5.
    """
    cleanable = [(log, found) for log, found in logs if found.blocked_by is None]
    return [log for log, found in sorted(cleanable, key=lambda pair: -pair[1].cleanable_ratio)]

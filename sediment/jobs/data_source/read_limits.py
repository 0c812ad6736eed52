"""Spark's limits for the batches of a stream; Spark 4.0 and 4.1 have none, and do not say where a batch begins.

There, a batch reads what the log has, and Spark stops a query with the trigger `availableNow` after one batch.
"""

from __future__ import annotations

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
except ImportError:
    from dataclasses import dataclass

    HAS_READ_LIMITS = False

    class ReadLimit:  # type: ignore[no-redef]
        pass

    class ReadAllAvailable(ReadLimit):  # type: ignore[no-redef]
        pass

    @dataclass
    class ReadMaxRows(ReadLimit):  # type: ignore[no-redef]
        max_rows: int

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        pass

else:
    HAS_READ_LIMITS = True

__all__ = ["HAS_READ_LIMITS", "ReadAllAvailable", "ReadLimit", "ReadMaxRows", "SupportsTriggerAvailableNow"]

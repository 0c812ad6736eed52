"""Sediment: Apache Kafka log directories compacted, expired, repaired and explained on Spark.

    import sediment

    report = sediment.compact("/var/lib/kafka-logs", config="server.properties")
    report.raise_for_status().to_pandas()

The names below are the public interface (docs/reference/python.md).  The import of this package is quick, because each
name is loaded when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from sediment.version import __version__

if TYPE_CHECKING:
    from sediment import records
    from sediment.api import clone, compact, dump, expire, history, plan, recover, snapshot, verify
    from sediment.jobs.cloning.report import CloneRunReport
    from sediment.jobs.dump import TableDump
    from sediment.jobs.expire import ExpiryRunReport
    from sediment.jobs.history import HistoryReport
    from sediment.jobs.plan import PlanReport
    from sediment.jobs.recover import RecoveryRunReport
    from sediment.jobs.reporting.run_report import CompactionRunReport, RunReport
    from sediment.jobs.snapshot import SnapshotReport
    from sediment.jobs.spark.cancellation import RunStopped
    from sediment.jobs.verification.report import VerificationReport
    from sediment.segment_io.errors import (
        CorruptDataError,
        DirectoryInUseError,
        OwnershipError,
        PartitionFailure,
        RunFailedError,
        SedimentError,
        SourceChangedError,
        UsageError,
    )

__all__ = [
    "CloneRunReport",
    "CompactionRunReport",
    "CorruptDataError",
    "DirectoryInUseError",
    "ExpiryRunReport",
    "HistoryReport",
    "OwnershipError",
    "PartitionFailure",
    "PlanReport",
    "RecoveryRunReport",
    "RunFailedError",
    "RunReport",
    "RunStopped",
    "SedimentError",
    "SnapshotReport",
    "SourceChangedError",
    "TableDump",
    "UsageError",
    "VerificationReport",
    "__version__",
    "clone",
    "compact",
    "dump",
    "expire",
    "history",
    "plan",
    "records",
    "recover",
    "snapshot",
    "verify",
]

if not TYPE_CHECKING:
    _MODULES = {
        "sediment.api": ("clone", "compact", "dump", "expire", "history", "plan", "recover", "snapshot", "verify"),
        "sediment.jobs.cloning.report": ("CloneRunReport",),
        "sediment.jobs.dump": ("TableDump",),
        "sediment.jobs.expire": ("ExpiryRunReport",),
        "sediment.jobs.history": ("HistoryReport",),
        "sediment.jobs.plan": ("PlanReport",),
        "sediment.jobs.recover": ("RecoveryRunReport",),
        "sediment.jobs.reporting.run_report": ("CompactionRunReport", "RunReport"),
        "sediment.jobs.snapshot": ("SnapshotReport",),
        "sediment.jobs.spark.cancellation": ("RunStopped",),
        "sediment.jobs.verification.report": ("VerificationReport",),
        "sediment.records": ("records",),
        "sediment.segment_io.errors": (
            "CorruptDataError",
            "DirectoryInUseError",
            "OwnershipError",
            "PartitionFailure",
            "RunFailedError",
            "SedimentError",
            "SourceChangedError",
            "UsageError",
        ),
    }
    _LAZY = {name: module for module, names in _MODULES.items() for name in names}

    def __getattr__(name):
        if name not in _LAZY:
            raise AttributeError(f"module 'sediment' has no attribute '{name}'")
        module = importlib.import_module(_LAZY[name])
        # The name of a public module stands for the module itself.
        value = module if module.__name__ == f"sediment.{name}" else getattr(module, name)
        globals()[name] = value
        return value

    def __dir__():
        return sorted({*globals(), *__all__})

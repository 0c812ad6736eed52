"""Sediment: compact, expire, repair and explain Apache Kafka log directories on Spark.

    import sediment

    logs = sediment.LogDirectories("/var/lib/kafka-logs", config="server.properties")
    logs.compact().raise_for_status().to_pandas()

The names below are the public interface (docs/reference/python.md).  Importing this package is fast, because each name
is loaded only when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from sediment.version import __version__

if TYPE_CHECKING:
    from sediment import records
    from sediment.api import LogDirectories, history, originals, vacuum
    from sediment.jobs.adopting.report import AdoptionRunReport
    from sediment.jobs.cloning.check import CopyCheckReport
    from sediment.jobs.cloning.report import CloneRunReport
    from sediment.jobs.doctor import DoctorReport
    from sediment.jobs.dumping.table_dump import TableDump
    from sediment.jobs.erasing.check_evidence import CheckReport
    from sediment.jobs.erasing.report import EraseRunReport
    from sediment.jobs.expiring.report import ExpiryRunReport
    from sediment.jobs.history import HistoryReport
    from sediment.jobs.originals import OriginalsRunReport
    from sediment.jobs.planning.report import PlanReport
    from sediment.jobs.process.cancellation import RunStopped
    from sediment.jobs.recovering.report import RecoveryRunReport
    from sediment.jobs.reencode import ReencodeRunReport
    from sediment.jobs.reporting.run_report import CompactionRunReport, RunReport
    from sediment.jobs.restoring.report import RestoreRunReport
    from sediment.jobs.snapshotting.report import SnapshotReport
    from sediment.jobs.vacuum import VacuumRunReport
    from sediment.jobs.verifying.report import VerificationReport
    from sediment.local_broker import Broker, broker
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
    "AdoptionRunReport",
    "Broker",
    "CheckReport",
    "CloneRunReport",
    "CompactionRunReport",
    "CopyCheckReport",
    "CorruptDataError",
    "DirectoryInUseError",
    "DoctorReport",
    "EraseRunReport",
    "ExpiryRunReport",
    "HistoryReport",
    "LogDirectories",
    "OriginalsRunReport",
    "OwnershipError",
    "PartitionFailure",
    "PlanReport",
    "RecoveryRunReport",
    "ReencodeRunReport",
    "RestoreRunReport",
    "RunFailedError",
    "RunReport",
    "RunStopped",
    "SedimentError",
    "SnapshotReport",
    "SourceChangedError",
    "TableDump",
    "UsageError",
    "VacuumRunReport",
    "VerificationReport",
    "__version__",
    "broker",
    "history",
    "originals",
    "records",
    "vacuum",
]

if not TYPE_CHECKING:
    _MODULES = {
        "sediment.api": ("LogDirectories", "history", "originals", "vacuum"),
        "sediment.jobs.adopting.report": ("AdoptionRunReport",),
        "sediment.jobs.cloning.check": ("CopyCheckReport",),
        "sediment.jobs.cloning.report": ("CloneRunReport",),
        "sediment.jobs.doctor": ("DoctorReport",),
        "sediment.jobs.dumping.table_dump": ("TableDump",),
        "sediment.jobs.erasing.check_evidence": ("CheckReport",),
        "sediment.jobs.erasing.report": ("EraseRunReport",),
        "sediment.jobs.expiring.report": ("ExpiryRunReport",),
        "sediment.jobs.history": ("HistoryReport",),
        "sediment.jobs.originals": ("OriginalsRunReport",),
        "sediment.jobs.planning.report": ("PlanReport",),
        "sediment.jobs.recovering.report": ("RecoveryRunReport",),
        "sediment.jobs.reencode": ("ReencodeRunReport",),
        "sediment.jobs.reporting.run_report": ("CompactionRunReport", "RunReport"),
        "sediment.jobs.restoring.report": ("RestoreRunReport",),
        "sediment.jobs.snapshotting.report": ("SnapshotReport",),
        "sediment.jobs.process.cancellation": ("RunStopped",),
        "sediment.jobs.verifying.report": ("VerificationReport",),
        "sediment.jobs.vacuum": ("VacuumRunReport",),
        "sediment.local_broker": ("Broker", "broker"),
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
        # If `name` is a public module, the value is the module itself.
        value = module if module.__name__ == f"sediment.{name}" else getattr(module, name)
        globals()[name] = value
        return value

    def __dir__():
        return sorted({*globals(), *__all__})

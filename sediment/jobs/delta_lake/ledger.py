"""The ledger: the Delta tables `runs` and `partitions`, which record every run; any Delta reader can query them.

    PATH/partitions     a row per partition of a run      written first
    PATH/runs           a row per run                     written last, so a run in it is complete

The input is the JSON object that a command prints with `--json`.  Therefore, if a run could not be recorded, it can be
recorded later from this output.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from sediment.jobs.delta_lake.paths import check_table_path, is_delta_table, is_uri, outside_log_dirs
from sediment.jobs.process.state_files import save_for_user
from sediment.jobs.reporting.error_text import first_line
from sediment.jobs.reporting.run_report import SCHEMA, read_report
from sediment.segment_io.errors import SedimentError, UsageError
from sediment.segment_io.extras import install_command
from sediment.version import __version__

if TYPE_CHECKING:
    import pyarrow as pa

RUNS = "runs"
PARTITIONS = "partitions"

_ATTEMPTS = 5
_OTHER_PATH = "name a separate directory for the ledger"
_UNRECORDED = "unrecorded-runs"


# ------------------------------------------------------------------------------------------------------------- checking
def check(path: str, log_dirs: Iterable[Path]) -> None:
    """Check that `path`, a directory or a URI, can be a ledger; a run calls this before it changes anything."""
    try:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError
    except ImportError as error:
        raise package_missing() from error
    outside_log_dirs(path, log_dirs)
    check_table_path(path)
    if not is_uri(path) and Path(path).exists() and not Path(path).is_dir():
        raise UsageError("a ledger is a directory, but this path is a file", path=path, advice=_OTHER_PATH)
    if not is_uri(path) and is_delta_table(path):
        raise UsageError(
            "a ledger is a directory of two Delta tables, but this path is one Delta table",
            path=path,
            advice="name another directory",
        )
    for name in (RUNS, PARTITIONS):
        table = f"{path}/{name}"
        if not _holds_something(table):
            continue
        try:
            columns = {field.name for field in DeltaTable(table).schema().fields}
        except (DeltaError, OSError) as error:
            raise UsageError(
                f"this is not a Delta table: {first_line(error)}", path=table, advice=_OTHER_PATH
            ) from error
        if "run_id" not in columns:
            raise UsageError("this Delta table does not belong to a ledger", path=table, advice=_OTHER_PATH)


def package_missing() -> UsageError:
    return UsageError("a ledger needs the Python package deltalake, which is missing", advice=install_command("delta"))


def _holds_something(path: str) -> bool:
    if is_uri(path):
        from deltalake import DeltaTable

        return bool(DeltaTable.is_deltatable(path))
    local = Path(path)
    return local.exists() and not (local.is_dir() and not any(local.iterdir()))


# -------------------------------------------------------------------------------------------------------------- writing
def record(report: str, path: str, messages: Console) -> bool:
    """Append a finished run; on an error, print the error on `messages`, with the command that records the run later.

    Returns:
        True if the ledger contains the run.
    """
    try:
        append(report, path)
        return True
    except (KeyboardInterrupt, SystemExit):
        raise
    # An error of the ledger must not fail a run, so `record` raises no error.
    except BaseException as error:  # a panic in the library's Rust code is not a subclass of Exception
        saved = _save(report)
        kept = f"sediment history {path} --replay {saved}" if saved else f"this report: {report}"
        messages.print(
            f"sediment: the run is done but not in the ledger: {first_line(error)}; when the ledger can be written "
            f"again, replay it: {kept}",
            style="red",
            soft_wrap=True,
            markup=False,
            highlight=False,
        )
        return False


def append(report: str, path: str) -> bool:
    run, partitions = _tables(report)
    run_id = run["run_id"][0].as_py()
    added = _append_once(f"{path}/{PARTITIONS}", partitions, run_id)
    return _append_once(f"{path}/{RUNS}", run, run_id) or added


def _append_once(table_path: str, rows: pa.Table, run_id: str) -> bool:
    try:
        # The tables are written without a JVM and without JARs.  An append takes about ten milliseconds; Spark with
        # Delta takes ten seconds to start.
        from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
        from deltalake.exceptions import CommitFailedError, DeltaError
    except ImportError as error:
        raise package_missing() from error
    # A run is in each table once. The commit of a run's rows has the run's id as its Delta application transaction
    # (`txn`). A second append of the run finds this commit, and a concurrent append conflicts with this commit.
    once = CommitProperties(app_transactions=[Transaction(run_id, 1)])
    attempt = 0
    while True:
        attempt += 1
        try:
            table = DeltaTable.create(table_path, rows.schema, mode="ignore")
            if table.transaction_version(run_id) is not None:
                return False
            write_deltalake(table, rows, mode="append", schema_mode="merge", commit_properties=once)
            return True
        except CommitFailedError as error:
            if attempt == _ATTEMPTS:
                raise _unwritable(table_path, error) from error
        except (DeltaError, OSError) as error:
            raise _unwritable(table_path, error) from error


def _unwritable(table_path: str, error: Exception) -> SedimentError:
    return SedimentError(f"the ledger cannot be written: {first_line(error)}", path=table_path)


def _save(report: str) -> Path | None:
    return save_for_user(_UNRECORDED, f"{json.loads(report)['run_id']}.json", report + "\n")


# ----------------------------------------------------------------------------------------------------------------- rows
def run_schema() -> pa.Schema:
    import pyarrow as pa

    return pa.schema(
        [
            ("run_id", pa.string()),
            ("command", pa.string()),
            ("now_ms", pa.int64()),
            ("recorded_ms", pa.int64()),
            ("seconds", pa.float64()),
            ("dry_run", pa.bool_()),
            ("log_dirs", pa.list_(pa.string())),
            ("statuses", pa.map_(pa.string(), pa.int64())),
            ("messages_read", pa.int64()),
            ("messages_written", pa.int64()),
            ("bytes_before", pa.int64()),
            ("bytes_after", pa.int64()),
            ("host", pa.string()),
            ("version", pa.string()),
            ("other", pa.string()),
        ]
    )


def partition_schema() -> pa.Schema:
    import pyarrow as pa

    return pa.schema(
        [
            ("run_id", pa.string()),
            ("command", pa.string()),
            ("now_ms", pa.int64()),
            ("dry_run", pa.bool_()),
            ("partition", pa.string()),
            ("log_dir", pa.string()),
            ("status", pa.string()),
            ("reason_code", pa.string()),
            ("reason", pa.string()),
            ("strategy", pa.string()),
            ("first_dirty_offset", pa.int64()),
            ("first_uncleanable_offset", pa.int64()),
            ("next_dirty_offset", pa.int64()),
            ("messages_read", pa.int64()),
            ("messages_written", pa.int64()),
            ("bytes_before", pa.int64()),
            ("bytes_after", pa.int64()),
            ("segments_before", pa.int64()),
            ("segments", pa.list_(pa.int64())),
            ("groups_rewritten", pa.int64()),
            ("groups_skipped", pa.int64()),
            ("corrupt_batches", pa.int64()),
            ("records_without_key", pa.int64()),
            ("other", pa.string()),
        ]
    )


def _tables(report: str) -> tuple[pa.Table, pa.Table]:
    import pyarrow as pa

    try:
        document = read_report(report)
        run_id, partitions = document.pop("run_id"), document.pop("partitions")
        if document.pop("schema") != SCHEMA or not isinstance(run_id, str) or not run_id:
            raise ValueError("of another schema")
        if not isinstance(document["now_ms"], int):
            raise ValueError("without a time")
        shared = {"run_id": run_id, "command": document["command"], "now_ms": document["now_ms"]}
        shared["dry_run"] = document.pop("dry_run", False)
        rows = [_row(partition_schema(), {**_by_base_offsets(partition), **shared}) for partition in partitions]
        run = _row(run_schema(), {**document, **shared, **_totals(partitions), **_here()})
        return (
            pa.Table.from_pylist([run], schema=run_schema()),
            pa.Table.from_pylist(rows, schema=partition_schema()),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            "this is not the JSON report of a run", advice="give the output of a command with --json"
        ) from error


def _by_base_offsets(partition: Mapping[str, Any]) -> dict[str, Any]:
    segments = partition.get("segments") or []
    if not any(isinstance(segment, dict) for segment in segments):
        return dict(partition)
    bases = [segment["base_offset"] for segment in segments]
    return {**partition, "segments": bases, "segment_details": segments}


def _row(schema: pa.Schema, fields: Mapping[str, Any]) -> dict[str, Any]:
    columns = set(schema.names)
    other = {name: value for name, value in fields.items() if name not in columns}
    return {**fields, "other": json.dumps(other) if other else None}


def _totals(partitions: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    partitions = list(partitions)
    statuses: dict[str, int] = {}
    for partition in partitions:
        statuses[partition["status"]] = statuses.get(partition["status"], 0) + 1
    sums = {
        name: sum(partition.get(name) or 0 for partition in partitions)
        for name in ("messages_read", "messages_written", "bytes_before", "bytes_after")
    }
    log_dirs = sorted({partition["log_dir"] for partition in partitions if partition.get("log_dir")})
    return {"statuses": list(statuses.items()), "log_dirs": log_dirs, **sums}


def _here() -> dict[str, Any]:
    return {"recorded_ms": time.time_ns() // 1_000_000, "host": socket.gethostname(), "version": __version__}

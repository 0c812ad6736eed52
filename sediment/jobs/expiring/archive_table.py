"""The Delta table of an archive: its check, its commits, and what it has of a partition."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sediment.jobs.delta_lake.paths import check_table_path, is_uri, local_directory, outside_log_dirs, read_table_rows
from sediment.jobs.reporting.error_text import first_line
from sediment.segment_io.errors import SedimentError, UsageError
from sediment.segment_io.extras import install_command
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.tables.schema import TABLES, arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa

PARTITION_COLUMNS = ("topic", "day")
_COMMIT_ATTEMPTS = 5
_CONSTRAINT = "delta.constraints."
_OTHER_PATH = "name another path for the archive"


def check_archive(path: str, log_dirs: Iterable[Path]) -> None:
    """Check that `path`, a directory or a URI, can be an archive; a run calls this before it changes anything."""
    try:
        from deltalake import DeltaTable, Schema
        from deltalake.exceptions import DeltaError
    except ImportError as error:
        raise UsageError(
            "an archive needs the Python package deltalake, which is missing", advice=install_command("delta")
        ) from error
    outside_log_dirs(path, log_dirs)
    check_table_path(path)
    try:
        if not DeltaTable.is_deltatable(path):
            local = Path(path)
            if not is_uri(path) and local.exists() and not (local.is_dir() and not any(local.iterdir())):
                raise UsageError("this is not a Delta table", path=path, advice=_OTHER_PATH)
            return
        table = DeltaTable(path)
        fields = {field.name: field for field in table.schema().fields}
        partitions = tuple(table.metadata().partition_columns)
        settings = table.metadata().configuration
    except (DeltaError, OSError) as error:
        if (torn := _torn_commit(path)) is not None:
            raise UsageError(
                "the last commit file of the archive is incomplete, for example after a power failure",
                path=str(torn),
                advice="remove this file and run again; no segment of this commit was deleted",
            ) from error
        raise UsageError(f"the archive cannot be opened: {first_line(error)}", path=path, advice=_OTHER_PATH) from error
    ours = {field.name: field for field in Schema.from_arrow(archive_schema()).fields}
    if any(name not in fields or fields[name].type != ours[name].type for name in ours) or (
        partitions != PARTITION_COLUMNS
    ):
        raise UsageError("this Delta table is not an archive of segments", path=path, advice=_OTHER_PATH)
    # The commit names files that are already written, so Delta would not compare their rows with these rules.
    required = [f"column {name} is NOT NULL" for name, field in fields.items() if not field.nullable]
    constraints = [f"constraint {name}" for name in settings if name.startswith(_CONSTRAINT)]
    if rules := [*required, *constraints]:
        raise UsageError(
            f"records would break a rule of this table: {rules[0].replace(_CONSTRAINT, '')}",
            path=path,
            advice="remove the rule, or name another path for the archive",
        )


def _torn_commit(path: str) -> Path | None:
    """Return the newest commit file of a local table if this file is incomplete; nothing depends on such a commit."""
    if is_uri(path):
        return None
    fs, log = Fs(), Path(path) / "_delta_log"
    commits = [log / entry.name for entry in fs.scan(log) if entry.name.endswith(".json")]
    if not commits:
        return None
    try:
        lines = [json.loads(line) for line in fs.read_bytes(commits[-1]).decode().splitlines()]
    except ValueError:
        return commits[-1]
    return None if lines else commits[-1]


def archive_schema() -> pa.Schema:
    import pyarrow as pa

    records = arrow_schema(TABLES["records"])
    return pa.schema([*records, ("segment", pa.int64()), ("digest", pa.string()), ("day", pa.date32())])


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """Parquet file at `path`, relative to the table; `day` is None for records without a timestamp.

    `lowest` and `highest` are the smallest and largest values by column, for the statistics of the commit.
    """

    path: str
    size_bytes: int
    topic: str
    day: str | None
    rows: int
    lowest: Mapping[str, int]
    highest: Mapping[str, int]


class ArchiveTable:
    def __init__(self, path: str) -> None:
        from deltalake import DeltaTable

        self.path = path if is_uri(path) else str(Path(path).absolute())
        self._table = DeltaTable.create(
            self.path, archive_schema(), mode="ignore", partition_by=list(PARTITION_COLUMNS), name="sediment archive"
        )
        self._make_durable()

    def has(self, transaction: str) -> bool:
        return self._table.transaction_version(transaction) is not None

    def commit(self, files: Sequence[WrittenFile], transactions: Sequence[str], run_id: str) -> None:
        from deltalake import CommitProperties, Transaction
        from deltalake.exceptions import DeltaError

        once = CommitProperties(
            app_transactions=[Transaction(name, 1) for name in transactions],
            custom_metadata={"sediment.run_id": run_id},
            max_commit_retries=_COMMIT_ATTEMPTS,
        )
        try:
            # Tasks write Parquet files themselves, and the driver commits with the deltalake library.  Therefore,
            # values of any size go directly from the log to the table, no JARs are needed, and a single commit adds all
            # files.
            self._table.create_write_transaction(
                [_add_action(file) for file in files],
                "append",
                archive_schema(),
                list(PARTITION_COLUMNS),
                commit_properties=once,
            )
            self._table.update_incremental()
        except (DeltaError, OSError) as error:
            raise SedimentError(
                f"the archive cannot be written: {first_line(error)}",
                path=self.path,
                advice="nothing was deleted; run again",
            ) from error
        self._make_durable()

    @property
    def version(self) -> int:
        return self._table.version()

    def counts(self, partition: TopicPartition, bases: Sequence[int]) -> Counter[tuple[int, str]]:
        import pyarrow as pa
        from pyarrow.compute import field

        found: Counter[tuple[int, str]] = Counter()
        within = (field("segment") >= min(bases)) & (field("segment") <= max(bases))
        wanted = (field("topic") == partition.topic) & (field("partition") == partition.partition) & within
        columns = ["topic", "partition", "segment", "digest"]
        for batch in read_table_rows(self._table, self.path, wanted, columns):
            grouped = pa.Table.from_batches([batch]).group_by(["segment", "digest"]).aggregate([([], "count_all")])
            for row in grouped.to_pylist():
                found[row["segment"], row["digest"]] += row["count_all"]
        return found

    def digests(self, partition: TopicPartition, start: int, end: int) -> set[str]:
        import pyarrow.compute as pc
        from pyarrow.compute import field

        wanted = (field("topic") == partition.topic) & (field("partition") == partition.partition)
        wanted &= (field("offset") >= start) & (field("offset") < end)
        columns = ["topic", "partition", "offset", "digest"]
        found: set[str] = set()
        for batch in read_table_rows(self._table, self.path, wanted, columns):
            found.update(pc.unique(batch.column("digest")).to_pylist())
        return found

    def _make_durable(self) -> None:
        """Sync the transaction log of a local table to disk, because the library does not."""
        local = local_directory(self.path)
        if local is None:
            return
        fs, log = Fs(), Path(local) / "_delta_log"
        newest = [entry.name for entry in fs.scan(log) if entry.name.endswith(".json")][-_COMMIT_ATTEMPTS:]
        for name in newest:
            fs.sync_file(log / name)
        for folder in (log, log.parent, log.parent.parent):
            fs.sync_directory(folder)


def _add_action(file: WrittenFile) -> Any:
    from deltalake.transaction import AddAction

    statistics = {
        "numRecords": file.rows,
        "minValues": dict(file.lowest),
        "maxValues": dict(file.highest),
        "nullCount": dict.fromkeys(file.lowest, 0),
    }
    now_ms = time.time_ns() // 1_000_000
    values = {"topic": file.topic, "day": file.day}
    return AddAction(file.path, file.size_bytes, values, now_ms, True, json.dumps(statistics))

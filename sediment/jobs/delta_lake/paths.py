"""Paths of Delta tables: URIs, paths that deltalake cannot use, and the filesystem of a table's data files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from sediment.segment_io.errors import UsageError
from sediment.segment_io.fs import without_links

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

_NO_TABLE_PATH = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff\[\]^|\\]|%[0-9A-Fa-f]{2}")


def is_uri(path: str) -> bool:
    return "://" in path


def local_directory(path: str) -> str | None:
    if not is_uri(path):
        return path
    uri = urlsplit(path)
    return unquote(uri.path) if uri.scheme == "file" else None


def is_delta_table(path: str) -> bool:
    return (Path(path) / "_delta_log").is_dir()


def outside_log_dirs(path: str, log_dirs: Iterable[Path]) -> None:
    local = local_directory(path)
    if local is None:
        return
    resolved = without_links(Path(local))
    for log_dir in log_dirs:
        if resolved.is_relative_to(without_links(log_dir)):
            raise UsageError(
                "a broker does not start on a log directory that contains a directory of another kind",
                path=path,
                advice=f"name a path outside {log_dir}",
            )


def check_table_path(path: str) -> None:
    """Refuse a local path if the Python package deltalake would panic on it or would write to another path."""
    if not is_uri(path) and _NO_TABLE_PATH.search(path):
        raise UsageError(
            "no Delta table can have this path",
            path=path,
            advice="use a UTF-8 path without control characters, backslashes, [, ], ^, | and escapes such as %41",
        )


def table_filesystem(path: str) -> Any:
    """Return the pyarrow filesystem for the data files of the table at `path`.

    For a table on this machine, this is Arrow's own filesystem.
    """
    from pyarrow.fs import LocalFileSystem, PyFileSystem, SubTreeFileSystem

    local = local_directory(path)
    if local is not None:
        # The filesystem of deltalake is written in Python, so Arrow may use it only in the caller's thread.  Otherwise
        # a thread of Arrow may still have a file open when the interpreter ends; CPython then unwinds that thread, and
        # C++ aborts the process.
        return SubTreeFileSystem(local, LocalFileSystem())
    from deltalake.fs import DeltaStorageHandler

    return PyFileSystem(DeltaStorageHandler(path))


def read_table_rows(
    table: DeltaTable, path: str, condition: Any = None, columns: list[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield, in batches, the rows of `table` (at `path`) that satisfy the Arrow expression `condition`.

    `columns` (all if None) must include the columns in the condition. A table at a URI is read in the caller's thread;
    `table_filesystem` explains why.
    """
    filesystem = table_filesystem(path)
    dataset = table.to_pyarrow_dataset(filesystem=filesystem)
    if local_directory(path) is not None:
        yield from dataset.to_batches(columns=columns, filter=condition, batch_readahead=2, fragment_readahead=1)
        return
    for fragment in dataset.get_fragments(filter=condition):
        yield from _file_rows(fragment, filesystem, dataset.schema, condition, columns)


def _file_rows(
    fragment: Any, filesystem: Any, schema: pa.Schema, condition: Any, columns: list[str] | None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one data file; a column that the file lacks gets the file's partition value, or nulls."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyarrow.dataset import get_partition_keys

    keys = get_partition_keys(fragment.partition_expression)
    fields = [field for field in schema if columns is None or field.name in columns]
    with filesystem.open_input_file(fragment.path) as file, pq.ParquetFile(file, pre_buffer=False) as parquet:
        stored = {field.name for field in fields}.intersection(parquet.schema_arrow.names)
        for batch in parquet.iter_batches(columns=sorted(stored), use_threads=False):
            arrays = [
                batch.column(field.name).cast(field.type)
                if field.name in stored
                else pa.repeat(pa.scalar(keys.get(field.name), field.type), batch.num_rows)
                for field in fields
            ]
            rows = pa.Table.from_arrays(arrays, schema=pa.schema(fields))
            yield from (rows if condition is None else rows.filter(condition)).to_batches()

"""Data source that hands over prepared Arrow batches: the limit of a scan of the same rows under Spark.

`prepare` reads the tasks of a scan once and stores the batches of each in an Arrow file.  A task of this source maps
its file into memory and yields the batches, so its only cost is what Spark does with them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from sediment.jobs.datasource import spark_schema
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.sources import find_sources
from sediment.segment_io.tables.planning import plan_table
from sediment.segment_io.tables.readers import read_table
from sediment.segment_io.tables.schema import TableRequest, arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT = "prepared-batches"


def prepare(log_dir: Path, request: TableRequest, folder: Path) -> None:
    """Write the batches of each task of a scan to a file in `folder`."""
    import pyarrow as pa

    folder.mkdir(parents=True)
    fs = Fs()
    for number, task in enumerate(plan_table(request, find_sources([log_dir], fs), fs)):
        with (
            pa.OSFile(f"{folder}/{number}.arrow", "wb") as sink,
            pa.ipc.new_file(sink, arrow_schema(request.selected())) as writer,
        ):
            for batch in read_table(request, task, fs):
                writer.write_batch(batch)


class PreparedSource(DataSource):
    """Source of the files in the folder `path`; the option `columns` names their columns."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return FORMAT

    def schema(self) -> StructType:
        """Return the schema of the files."""
        return spark_schema(TableRequest(columns=_columns(self.options["columns"])).selected())

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query."""
        return _Reader([str(file) for file in sorted(Path(self.options["path"]).glob("*.arrow"))])


def _columns(text: str) -> tuple[str, ...] | None:
    return tuple(text.split(",")) if text else None


class _Reader(DataSourceReader):
    def __init__(self, files: Sequence[str]) -> None:
        self._files = files

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(file) for file in self._files]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        with pa.memory_map(partition.value) as file:
            reader = pa.ipc.open_file(file)
            for number in range(reader.num_record_batches):
                yield reader.get_batch(number)

"""The source that Spark finds as `kafka-log` if its release cannot have the real one."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource

from sediment.jobs.data_source.one_sentence import in_one_sentence
from sediment.jobs.data_source.options import FORMAT
from sediment.segment_io.errors import UsageError


def refusing_source(error: UsageError) -> type[DataSource]:
    """Return a source that raises `error` wherever it is named; without one, Spark would say that it finds none."""

    class RefusingSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return FORMAT

        @in_one_sentence
        def __init__(self, options: dict[str, str]) -> None:
            raise error

    return RefusingSource

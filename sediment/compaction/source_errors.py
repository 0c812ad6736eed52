"""The errors of reading segments: they name the partition, and report a missing file as a changed segment."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sediment.segment_io.errors import SedimentError, SourceChangedError
from sediment.segment_io.format.names import TopicPartition


@contextmanager
def errors_of_partition(partition: TopicPartition) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise SourceChangedError(
            "a segment was removed while it was being cleaned",
            partition=str(partition),
            path=str(error.filename),
            advice="another process deletes files of this directory; stop it and run again",
        ) from error
    except SedimentError as error:
        if error.partition is None:
            error.partition = str(partition)
        raise

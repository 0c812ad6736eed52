"""The sources of a query in the order of its rows, without the replicas that it leaves out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sediment.segment_io.format.names import by_number
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.sources import Source
from sediment.segment_io.tables.schema import TableRequest


def selected_replicas(
    request: TableRequest, sources: Sequence[Source], fs: Fs, on_left_out: Callable[[str], None], *, option: str
) -> list[Source]:
    """Return the sources to read, sorted by partition if no path names a file.

    If replicas are left out, `on_left_out` is called with a sentence; `option` is the option that reads all of them.
    """
    in_order = list(sources)
    if all(source.named is None for source in sources):
        in_order.sort(key=lambda source: by_number(str(source.partition)))
    if request.reads_all_replicas() or len(in_order) == len({source.partition for source in in_order}):
        return in_order
    from sediment.engine.source_replicas import best_sources  # loads compiled code, which other queries do not need

    best = best_sources(in_order, fs)
    left_out = len(in_order) - len(best)
    if left_out:
        replicas = "replica was" if left_out == 1 else "replicas were"
        on_left_out(
            f"{left_out} {replicas} left out: of each partition, the replica with the highest leader epoch and log end "
            f"is read; {option} reads every replica"
        )
    return best

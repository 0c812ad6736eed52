"""Random verdicts on a log, carried out by the rewrite and by its twin, and what readers of a log see."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from sediment.compaction.config import CompactionConfig
from sediment.compaction.rewrite.plan import Rewrite, plan_rewrite
from sediment.compaction.rewrite.segment_rewrite import rewrite_log
from sediment.compaction.rewrite.verdicts import Action, Verdict, Verdicts
from sediment.engine.directory.loading.log_loader import LoadedLog, load_log
from sediment.engine.directory.swap import commit
from sediment.engine.log_config import LogConfig
from sediment.segment_io.format.names import Attempt, TopicPartition
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import PartitionCheckpoints
from sediment.segment_io.partition.listing import list_log
from sediment.segment_io.partition.log_view import LogView, open_view
from tests.faults.faulty_fs import FaultyFs, Kill, Killed
from tests.segments import NOW_MS, batch_bytes, write_segment, write_snapshot
from tests.twin import rewrite as twin
from tests.twin.batches import Record
from tests.twin.indexes import parse_transaction_index
from tests.twin.segments import TRANSACTION_INDEX, list_segments
from tests.twin.snapshots import ProducerEntry

PARTITION = TopicPartition("t", 0)
_ACTIONS = {
    twin.Change.DROP: Action.DROP,
    twin.Change.TOMBSTONE: Action.TOMBSTONE,
    twin.Change.VALUE: Action.REPLACE_VALUE,
    twin.Change.KEY: Action.REPLACE_KEY,
}


def verdicts_of(table: twin.Table) -> Verdicts:
    """Return the twin's table as columns."""
    return Verdicts.of(Verdict(offset, _ACTIONS[given.change], given.content) for offset, given in table.items())


def random_table(directory: Path, seed: int) -> dict[int, twin.Verdict]:
    """Return verdicts for a random share of the records of a log: of none, some or whole batches, and of gaps."""
    pick = random.Random(f"verdicts of {seed}")
    share = pick.choice((0.02, 0.3, 0.8, 1.0))
    whole_batches = pick.choice((0.0, 0.3, 0.9))
    changes = pick.choice(([twin.Change.DROP], [twin.Change.TOMBSTONE], list(twin.Change)))
    table: dict[int, twin.Verdict] = {}
    for segment in list_segments(directory):
        for _, batch in segment.batches():
            all_go = pick.random() < share * whole_batches
            for offset in {batch.last_offset + pick.randint(0, 2), *(record.offset for record in batch.records())}:
                if all_go:
                    table[offset] = twin.Verdict(twin.Change.DROP)
                elif pick.random() < share:
                    change = pick.choice(changes)
                    has_content = change in (twin.Change.VALUE, twin.Change.KEY)
                    content = bytes(pick.choices(b"abc", k=pick.choice((0, 1, 70, 9000)))) if has_content else b""
                    table[offset] = twin.Verdict(change, content)
    return table


def view_of(directory: Path, checkpoints: PartitionCheckpoints | None = None) -> LogView:
    """Return the view of a partition of which no producer expires."""
    fs = Fs()
    return open_view(
        list_log(PARTITION, directory, fs),
        checkpoints or PartitionCheckpoints(clean_shutdown=True),
        fs,
        now_ms=0,
        producer_id_expiration_ms=None,
    )


@dataclass(frozen=True, slots=True)
class BothRewrites:
    """The result in place, that of the twin in another directory, and the bound."""

    done: Rewrite
    expected: Path
    bound: int


def rewrite_both(
    directory: Path,
    table: twin.Table,
    *,
    interval_bytes: int = 300,
    index_bytes: int = 10 << 20,
    checkpoints: PartitionCheckpoints | None = None,
) -> BothRewrites:
    """Carry out `table` in `directory`, and with the twin in a copy beside it."""
    expected = directory.with_name(f"{directory.name}-twin")
    shutil.copytree(directory, expected)
    view = view_of(directory, checkpoints)
    twin.rewrite_directory(
        expected, table, bound=view.last_stable_offset, interval_bytes=interval_bytes, max_index_bytes=index_bytes
    )
    config = CompactionConfig(index_interval_bytes=interval_bytes, segment_index_bytes=index_bytes)
    done = rewrite_log(plan_rewrite(view, verdicts_of(table), config), Fs(), Attempt("r", "0"))
    commit(done.swap, Fs())
    return BothRewrites(done, expected, view.last_stable_offset)


def visible_records(directory: Path, *, committed: bool) -> dict[int, Record]:
    """Return the data records that a consumer reads, by offset; `committed`: at isolation level read_committed."""
    segments = list_segments(directory)
    aborted = [entry for segment in segments for entry in parse_transaction_index(segment.read(TRANSACTION_INDEX))]
    found = {}
    for segment in segments:
        for _, batch in segment.batches():
            is_aborted = batch.is_transactional and any(
                entry.producer_id == batch.producer_id and entry.first_offset <= batch.last_offset < entry.last_offset
                for entry in aborted
            )
            if not batch.is_control and not (committed and is_aborted):
                found.update((record.offset, record) for record in batch.records())
    return found


def load(directory: Path, end: int, *, clean: bool) -> LoadedLog:
    """Load a partition as a start does, after a clean stop or without one."""
    config = LogConfig(compaction=CompactionConfig(index_interval_bytes=300, producer_id_expiration_ms=None))
    checkpoints = PartitionCheckpoints(recovery_point=end if clean else 0, clean_shutdown=clean)
    return load_log(PARTITION, directory, config, checkpoints, Fs(), now_ms=NOW_MS)


def producers_of(loaded: LoadedLog) -> dict[int, tuple[object, ...]]:
    """Return each producer's state without timestamps, which are those of the records that stay."""
    return {
        key: (
            replace(entry, timestamp_ms=0),
            tuple(batch._replace(timestamp_ms=0) for batch in loaded.producers.batches(key)),
        )
        for key, entry in loaded.producers.entries.items()
    }


# ------------------------------------------------------------------------------------------------------ killed commits
@dataclass(frozen=True, slots=True)
class KilledRewrite:
    """A directory whose rewrite was killed, and the records that a start may find: no, one or both segments are new."""

    directory: Path
    allowed: tuple[dict[int, Record], ...]


def killed_rewrites(work: Path, name: str = "t-0") -> Iterator[KilledRewrite]:
    """Yield a log of a closed and an active segment after a kill at each step of the commit of both."""
    table = {1: twin.Verdict(twin.Change.DROP), 3: twin.Verdict(twin.Change.DROP), 5: twin.Verdict(twin.Change.DROP)}
    for number in count(1):
        directory = work / str(number) / name
        for base in (0, 3):
            batches = [batch_bytes(n, producer_id=9, sequence=n) for n in range(base, base + 3)]
            write_segment(directory, base, batches)
        write_snapshot(directory, 3, [ProducerEntry(9, 0, 2, 2, timestamp=NOW_MS)])
        write_snapshot(directory, 6, [ProducerEntry(9, 0, 5, 5, timestamp=NOW_MS)])
        old = visible_records(directory, committed=False)
        first = {offset: record for offset, record in old.items() if offset != 1}
        both = {offset: record for offset, record in old.items() if offset not in table}
        done = rewrite_log(
            plan_rewrite(view_of(directory), verdicts_of(table), CompactionConfig()), Fs(), Attempt("r", "0")
        )
        try:
            commit(done.swap, FaultyFs(Kill(number)))
        except Killed:
            yield KilledRewrite(directory, (old, first, both))
        else:
            return

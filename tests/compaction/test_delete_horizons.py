"""Delete horizons if delete.retention.ms is not stated, or is as large as Kafka accepts."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from sediment.compaction.clean_log import CleaningMode, clean_log
from sediment.compaction.kernels.delete_horizon import next_horizon_ms
from sediment.compaction.prepared_swap import CleanedGroup, CleanStats, PreparedSwap
from sediment.segment_io.format.layout import INT64_MAX
from sediment.segment_io.format.names import Attempt
from sediment.segment_io.fs import DryRunFs, Fs
from tests.compaction.cleanings import PARTITION, Round, batch_of, clean_both, prepare, put_in_place, write_log
from tests.compaction.splittings import Splitting, clean_in_splits, plan_of
from tests.compaction.test_legacy_cleaning import legacy_log
from tests.logs import START_MS
from tests.segments import ABORT, COMMIT, batch_bytes, marker_bytes
from tests.twin.batches import Record, encode_batch
from tests.twin.legacy import encode_legacy
from tests.twin.segments import AnyBatch, file_batches

NOW_MS = START_MS + 1_000_000
UNSTATED = Round(NOW_MS, delete_retention_ms=None, producer_expiration_ms=None)
NEVER = 10 * 365 * 86_400_000


def tombstone(offset: int, key: bytes, horizon_ms: int | None = None, codec: int = 0) -> bytes:
    return encode_batch(
        [Record(offset, START_MS, key, None)],
        base_offset=offset,
        leader_epoch=0,
        delete_horizon_ms=horizon_ms,
        codec=codec,
    )


def groups_of(directory: Path, given: Round, kind: str) -> tuple[CleanedGroup, ...]:
    if kind == "filled":
        given = replace(given, map_bytes=24 * 100)
    plan = plan_of(directory, given)
    assert plan is not None
    if kind == "split":
        return clean_in_splits(plan, Splitting(scanned=True))
    return clean_log(plan, Fs(), Attempt("r", "0"), CleaningMode(exact_keys=kind == "exact")).groups


def stats_of(groups: tuple[CleanedGroup, ...]) -> CleanStats:
    return sum((group.stats for group in groups), CleanStats())


def batches_of(directory: Path, base_offset: int = 0) -> list[AnyBatch]:
    return [batch for _, batch in file_batches((directory / f"{base_offset:020d}.log").read_bytes())]


PASSES = pytest.mark.parametrize("kind", ["whole", "filled", "split", "exact"])


@PASSES
@pytest.mark.parametrize("codec", [0, 4])
def test_without_a_stated_retention_tombstones_stay_as_they_are_and_are_counted(tmp_path, kind, codec):
    batches = [tombstone(0, b"a", codec=codec), tombstone(1, b"b", codec=codec), batch_of(2, b"c")]
    directory = write_log(tmp_path / "t-0", {0: batches})
    groups = groups_of(directory, UNSTATED, kind)
    assert [group.parts for group in groups] == [()]
    stats = stats_of(groups)
    assert (stats.tombstones_waiting, stats.batches_without_horizon) == (2, 2)
    assert stats.first_horizon_ms > stats.last_horizon_ms


@PASSES
def test_without_a_stated_retention_horizons_that_have_passed_are_obeyed(tmp_path, kind):
    batches = [tombstone(0, b"a", NOW_MS), tombstone(1, b"b", NOW_MS + 1), tombstone(2, b"c"), batch_of(3, b"d")]
    directory = write_log(tmp_path / "t-0", {0: batches})
    groups = groups_of(directory, UNSTATED, kind)
    (part,) = groups[0].parts
    assert (directory / part.files[0].part_name).read_bytes() == b"".join(batches[1:])
    stats = stats_of(groups)
    assert (stats.tombstones_waiting, stats.batches_without_horizon) == (2, 1)
    assert (stats.first_horizon_ms, stats.last_horizon_ms) == (NOW_MS + 1, NOW_MS + 1)


@PASSES
def test_with_a_stated_retention_no_batch_is_without_a_horizon(tmp_path, kind):
    directory = write_log(tmp_path / "t-0", {0: [tombstone(0, b"a"), batch_of(1, b"b")]})
    stats = stats_of(groups_of(directory, replace(UNSTATED, delete_retention_ms=5), kind))
    assert (stats.tombstones_waiting, stats.batches_without_horizon) == (1, 0)
    assert (stats.first_horizon_ms, stats.last_horizon_ms) == (NOW_MS + 5, NOW_MS + 5)


@PASSES
def test_without_a_stated_retention_markers_with_nothing_to_mark_stay_as_they_are(tmp_path, kind):
    batches = [
        marker_bytes(1, COMMIT, producer_id=5, timestamp=START_MS),
        batch_bytes(2, "a"),
        marker_bytes(3, ABORT, producer_id=6, timestamp=START_MS),
        batch_bytes(4, "b"),
    ]
    directory = write_log(tmp_path / "t-0", {0: batches})
    groups = groups_of(directory, UNSTATED, kind)
    assert [group.parts for group in groups] == [()]
    assert (stats_of(groups).batches_without_horizon, stats_of(groups).tombstones_waiting) == (2, 0)


@pytest.mark.parametrize("magic", [0, 1])
def test_without_a_stated_retention_old_tombstones_do_not_go_by_the_modification_time(tmp_path, magic):
    entries = [encode_legacy([Record(n, START_MS, b"%d" % n, None)], magic=magic) for n in range(2)]
    directory = legacy_log(tmp_path / "t-0", *entries, end=9)
    for path in directory.glob(f"{0:020d}.*"):
        os.utime(path, ns=(0, 0))
    for path in directory.glob(f"{9:020d}.*"):
        os.utime(path, ns=(START_MS * 10**6, START_MS * 10**6))
    (directory / f"{20:020d}.log").touch()
    given = replace(UNSTATED, segment_bytes=1, dirty=15)
    stated = prepare(directory, replace(given, delete_retention_ms=1000), DryRunFs())
    unstated = prepare(directory, given, DryRunFs())
    assert stated is not None
    assert unstated is not None
    assert [swap.groups[0].stats.messages_written for swap in (stated, unstated)] == [0, 2]
    assert unstated.groups[0].stats.batches_without_horizon == 2


def test_without_a_stated_expiration_the_last_batch_of_a_producer_leaves_its_header(tmp_path):
    batches = [batch_bytes(0, "a", producer_id=5, timestamp=START_MS), batch_bytes(1, "a"), batch_bytes(2, "b")]
    late = replace(UNSTATED, now_ms=START_MS + NEVER)
    headers = []
    for expiration_ms in (86_400_000, None):
        directory = write_log(tmp_path / f"t-{expiration_ms}", {0: batches})
        clean_both(directory, replace(late, producer_expiration_ms=expiration_ms), compressed=False)
        headers.append([batch.producer_id for batch in batches_of(directory)])
    assert headers == [[-1, -1], [5, -1, -1]]


@pytest.mark.parametrize("retention_ms", [INT64_MAX - NOW_MS, INT64_MAX - NOW_MS - 1])
def test_a_horizon_at_the_last_moment_is_written(tmp_path, retention_ms):
    expected_ms = NOW_MS + retention_ms
    for kind in ("whole", "filled", "split", "exact"):
        directory = write_log(
            tmp_path / kind, {0: [tombstone(0, b"a"), tombstone(1, b"b", codec=4), batch_of(2, b"c")]}
        )
        groups = groups_of(directory, Round(NOW_MS, delete_retention_ms=retention_ms), kind)
        put_in_place(PreparedSwap(PARTITION, str(directory), groups, 0))
        kept = batches_of(directory)
        assert [batch.delete_horizon_ms for batch in kept] == [expected_ms, expected_ms, None]
        assert [record.timestamp for batch in kept[:2] for record in batch.records()] == [START_MS, START_MS]
        assert (stats_of(groups).first_horizon_ms, stats_of(groups).last_horizon_ms) == (expected_ms, expected_ms)


@PASSES
@pytest.mark.parametrize(
    ("now_ms", "retention_ms"),
    [(NOW_MS, INT64_MAX - NOW_MS + 1), (NOW_MS, INT64_MAX), (INT64_MAX, 1), (INT64_MAX, INT64_MAX)],
)
def test_a_horizon_beyond_the_last_moment_is_not_written_and_the_batch_stays_as_it_is(
    tmp_path, kind, now_ms, retention_ms
):
    directory = write_log(tmp_path / "t-0", {0: [tombstone(0, b"a"), tombstone(1, b"b", codec=4), batch_of(2, b"c")]})
    groups = groups_of(directory, Round(now_ms, delete_retention_ms=retention_ms), kind)
    assert [group.parts for group in groups] == [()]
    assert (stats_of(groups).tombstones_waiting, stats_of(groups).batches_without_horizon) == (2, 0)


@pytest.mark.parametrize(
    ("retention_ms", "now_ms", "horizon_ms"),
    [(None, 5, None), (0, 5, 5), (7, 5, 12), (INT64_MAX - 5, 5, INT64_MAX), (INT64_MAX - 4, 5, None), (1, -2, None)],
)
def test_the_next_horizon(retention_ms, now_ms, horizon_ms):
    assert next_horizon_ms(retention_ms, now_ms) == horizon_ms

"""`verify --reencoded`: accepts what `compact --codec --batch-bytes` leaves, and finds every way to cheat under it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sediment.compaction.clean_log import CleaningMode, clean_log
from sediment.compaction.cleanable_range import cleanable_range
from sediment.compaction.config import CompactionConfig
from sediment.compaction.grouping import plan_cleaning
from sediment.compaction.prepared_swap import CleanStats
from sediment.compaction.reencode.plan import Encoding
from sediment.engine.directory.swap import commit
from sediment.segment_io.format.layout import CODEC_ZSTD
from sediment.segment_io.format.names import Attempt
from sediment.segment_io.fs import Fs
from sediment.verification import rules as r
from sediment.verification.reencoded import join_originals, window_end
from tests.jobs.broken_logs import Edited
from tests.jobs.log_dirs import make_log_dir, sediment, write_checkpoint
from tests.logs import LogShape, write_random_log
from tests.reencodes import random_encoding
from tests.rewrites import view_of
from tests.segments import COMMIT, marker_bytes, write_segment
from tests.twin.batches import (
    Batch,
    Record,
    RecordHeader,
    assemble_batch,
    encode_batch,
    encode_record,
)
from tests.twin.framing import compress
from tests.twin.segments import list_segments
from tests.verification.divided import several_threads

START_MS = 1_700_000_000_000
NOW_MS = START_MS + 3_600_000
RETENTION_MS = 86_400_000
NAME = "t-0"
END = 60
ENCODING = Encoding(CODEC_ZSTD, batch_bytes=64 << 10)
IDEMPOTENT, TRANSACTIONAL = 7, 9


def record(offset: int, key: bytes | None = None, value: bytes | None = b"value" * 40) -> Record:
    headers = (RecordHeader(b"h", b"header %d" % offset),)
    return Record(offset, START_MS + offset, key or b"key-%d" % offset, value, headers)


def data(first: int, last: int, *, epoch: int = 1, **fields: object) -> bytes:
    records = [record(offset) for offset in range(first, last + 1)]
    if "append_time" in fields:
        records = [replace(each, timestamp=fields["append_time"]) for each in records]
    return encode_batch(records, base_offset=first, leader_epoch=epoch, **fields)


def produced(first: int, last: int, producer_id: int, sequence: int, *, transactional: bool = False) -> bytes:
    return data(
        first, last, producer_id=producer_id, producer_epoch=0, base_sequence=sequence, transactional=transactional
    )


def tombstones(first: int, last: int, horizon_ms: int | None) -> bytes:
    records = [record(offset, b"tombstone" * 20 + b"%d" % offset, None) for offset in range(first, last + 1)]
    return encode_batch(records, base_offset=first, leader_epoch=1, delete_horizon_ms=horizon_ms)


def write_log(directory: Path) -> None:
    """Write a closed segment with every kind of neighbours, and an active one."""
    batches = [
        *(data(first, first + 1, epoch=0) for first in range(0, 10, 2)),
        data(10, 11),
        data(12, 13),
        data(14, 15, append_time=START_MS + 15),
        data(16, 17, append_time=START_MS + 15),
        data(18, 18, append_time=START_MS + 16),
        data(19, 20),
        data(22, 23),  # 21 is missing
        *(produced(24 + 2 * n, 25 + 2 * n, IDEMPOTENT, 2 * n) for n in range(8)),
        *(produced(40 + n, 40 + n, TRANSACTIONAL, n, transactional=True) for n in range(7)),
        marker_bytes(47, COMMIT, producer_id=TRANSACTIONAL),
        tombstones(48, 49, NOW_MS + 1),
        tombstones(50, 51, None),
        encode_batch([record(n, b"a" if n in (53, 55) else None) for n in range(52, 56)], base_offset=52),
    ]
    write_segment(directory, 0, batches)
    write_segment(directory, END, [data(END, END + 1)])


def compacted(directory: Path, encoding: Encoding) -> int:
    """Clean the log in place with another encoding; return the number of batches encoded."""
    config = CompactionConfig(cleanup_policy=("compact",), segment_bytes=1 << 20)
    view = view_of(directory)
    cleanable = cleanable_range(view, config, now_ms=NOW_MS, force=True)
    assert cleanable.blocked_by is None
    plan = plan_cleaning(view, cleanable, config, now_ms=NOW_MS)
    swap = clean_log(plan, Fs(), Attempt("r", "0"), CleaningMode(encoding=encoding))
    commit(swap, Fs())
    return sum((group.stats for group in swap.groups), CleanStats()).batches_encoded


def at(log: Edited, base_offset: int) -> Batch:
    return next(batch for batch in log.batches() if batch.base_offset == base_offset)


def again(batch: Batch, records: Sequence[Record] | None = None, **changes: object) -> bytes:
    """Return a batch encoded again, with other records or fields."""
    fields = {
        "base_offset": batch.base_offset,
        "last_offset": batch.last_offset,
        "leader_epoch": batch.leader_epoch,
        "codec": batch.codec,
        "append_time": batch.max_timestamp if batch.timestamp_type == "LogAppendTime" else None,
        "delete_horizon_ms": batch.delete_horizon_ms,
        "producer_id": batch.producer_id,
        "producer_epoch": batch.producer_epoch,
        "base_sequence": batch.base_sequence,
        "transactional": batch.is_transactional,
        "control": batch.is_control,
    }
    return encode_batch(batch.records() if records is None else records, **{**fields, **changes})


def edit(base_offset: int, **changes: object) -> Callable[[Edited], None]:
    def do(log: Edited) -> None:
        batch = at(log, base_offset)
        log.replace(batch, again(batch, **changes))

    return do


def edit_records(base_offset: int, change: Callable[[list[Record]], list[Record]]) -> Callable[[Edited], None]:
    def do(log: Edited) -> None:
        batch = at(log, base_offset)
        log.replace(batch, again(batch, change(list(batch.records()))))

    return do


def second(**changes: object) -> Callable[[list[Record]], list[Record]]:
    return lambda records: [records[0], replace(records[1], **changes), *records[2:]]


def merge(one: int, other: int, *, with_records: bool = True, **changes: object) -> Callable[[Edited], None]:
    """Return an edit that makes the batch at `other` a part of the batch at `one`."""

    def do(log: Edited) -> None:
        first, following = at(log, one), at(log, other)
        records = [*first.records(), *(following.records() if with_records else ())]
        log.replace(following)
        log.replace(first, again(first, records, last_offset=following.last_offset, **changes))

    return do


def move_base_timestamp(log: Edited) -> None:
    batch = at(log, 0)
    base_ms = batch.base_timestamp - 5
    payload = b"".join(encode_record(each, batch.base_offset, base_ms) for each in batch.records())
    log.replace(
        batch,
        assemble_batch(
            compress(batch.codec, payload),
            base_offset=batch.base_offset,
            last_offset=batch.last_offset,
            leader_epoch=batch.leader_epoch,
            attributes=batch.attributes,
            base_timestamp=base_ms,
            max_timestamp=batch.max_timestamp,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
            count=batch.count,
        ),
    )


CHEATS: dict[str, tuple[str, Callable[[Edited], None]]] = {
    "a header of a record": ("records", edit_records(0, second(headers=()))),
    "the value of a record": ("records", edit_records(0, second(value=b"other"))),
    "the key of a record": ("records", edit_records(0, second(key=b"other"))),
    "the time of a record": ("records", edit_records(0, second(timestamp=START_MS + 2))),
    "a lost record": ("lost", edit_records(0, lambda records: [records[0], *records[2:]])),
    "a record at another offset": ("records", edit_records(52, second(offset=53))),
    "the timestamp type": ("records", edit(0, append_time=START_MS + 9)),
    "the log append time": ("records", merge(14, 18)),
    "the base timestamp": ("batches", move_base_timestamp),
    "the base sequence": ("batches", edit(24, base_sequence=1)),
    "the producer epoch": ("batches", edit(24, producer_epoch=1)),
    "the transactional bit": ("batches", edit(40, transactional=False)),
    "the last offset": ("batches", edit(52, last_offset=57)),
    "the codec of a marker": ("crc", edit(47, codec=1)),
    "a marker merged without its record": ("markers", merge(46, 47, with_records=False)),
    "a marker merged as data": ("markers", merge(46, 47)),
    "merged leader epochs": ("batches", merge(0, 10)),
    "merged producers": ("batches", merge(22, 24)),
    "merged over missing offsets": ("batches", merge(19, 22)),
    "merged delete horizons": ("horizons", merge(48, 50)),
    "merged last batches of a producer": ("producers", merge(30, 32)),
    "merged last batch of a producer": ("producers", merge(36, 38)),
    "merged transactional batches that a client may send again": ("producers", merge(44, 45)),
    "an encoded active segment": ("untouched", edit(END, codec=CODEC_ZSTD)),
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory):
    """(batches encoded, report of the right result, report of it without the option, cheat -> report)."""
    scratch = tmp_path_factory.mktemp("reencoded")
    directory = scratch / NAME
    write_log(directory)
    names = {what: f"t-{number}" for number, what in enumerate(CHEATS, 1)}
    before = make_log_dir(scratch / "before", dict.fromkeys([NAME, *names.values()], directory))
    encoded = compacted(directory, ENCODING)
    after = make_log_dir(scratch / "after", dict.fromkeys([NAME, *names.values()], directory))
    write_checkpoint(after / "cleaner-offset-checkpoint", dict.fromkeys([NAME, *names.values()], END))
    for what, name in names.items():
        CHEATS[what][1](Edited(before, after, name, RETENTION_MS))
    options = ("--json", "--broker-defaults", f"--now-ms={NOW_MS}")
    found = sediment("verify", before, after, "--reencoded", *options)
    assert found.status == 1, found.stderr
    reports = found.partitions()
    with several_threads():
        assert sediment("verify", before, after, "--reencoded", *options).partitions() == reports
    strict = sediment("verify", before, after, f"--partition={NAME}", *options).partitions()[NAME]
    return encoded, reports[NAME], strict, {what: reports[name] for what, name in names.items()}


def test_batches_in_another_encoding_are_named_and_correct(results):
    encoded, right, _, _ = results
    assert (right["status"], right["differences"]) == ("correct", [])
    assert right["batches_reencoded"] == encoded > 10
    assert right["reencoded"][:3] == [
        {"base_offset": 0, "last_offset": 9, "originals": 5},
        {"base_offset": 10, "last_offset": 13, "originals": 2},
        {"base_offset": 14, "last_offset": 17, "originals": 2},
    ]


def test_without_the_option_they_are_differences(results):
    _, right, strict, _ = results
    assert {check for check, count in strict["checks"].items() if count} == {"batches"}
    assert (strict["status"], strict["batches_reencoded"]) == ("wrong", 0)
    assert right["checks"].keys() == strict["checks"].keys()


@pytest.mark.parametrize("what", CHEATS)
def test_every_way_to_cheat_is_found(results, what: str):
    report = results[-1][what]
    check, _ = CHEATS[what]
    assert report["status"] == "wrong"
    assert report["checks"][check], report["differences"]


SHAPES = {
    "plain": LogShape(transactional=0.0, gaps=0.03),
    "codecs": LogShape(codecs=(0, 1, 2, 3, 4), transactional=0.0, idempotent=0.0, horizons=0.3),
    "append time": LogShape(append_time=0.9, headers=0.8, gaps=0.02, transactional=0.0),
    "legacy": LogShape(codecs=(0, 1, 2, 3), magics=(0, 1, 2), transactional=0.0),
}


def test_results_on_random_logs_are_correct(tmp_path: Path):
    befores, afters, ends, encoded = {}, {}, {}, 0
    for number, shape in enumerate(SHAPES):
        for seed in range(3):
            name = f"t-{3 * number + seed}"
            directory = tmp_path / "logs" / name
            write_random_log(directory, seed, SHAPES[shape])
            befores[name] = shutil.copytree(directory, tmp_path / "copies" / name)
            encoded += compacted(directory, random_encoding(seed))
            afters[name], ends[name] = directory, list_segments(directory)[-1].base_offset
    before = make_log_dir(tmp_path / "before", befores)
    after = make_log_dir(tmp_path / "after", afters, dirty=ends)
    found = sediment("verify", before, after, "--reencoded", "--json", "--broker-defaults", f"--now-ms={NOW_MS}")
    reports = found.partitions()
    wrong = {name: report["differences"] for name, report in reports.items() if report["status"] != "correct"}
    assert wrong == {}
    # A batch of the same codec that also lost records looks like one that only lost records.
    assert 0 < sum(report["batches_reencoded"] for report in reports.values()) <= encoded


def rows(*ranges: tuple[int, int]) -> r.BatchRows:
    batches = np.zeros(len(ranges), dtype=r.BATCH)
    batches["base"], batches["last"] = np.array(ranges).T
    batches["records"], batches["size"], batches["magic"] = 1, 100, 2
    return batches


def test_the_originals_of_a_merged_batch_become_one_row():
    before, after = rows((0, 1), (2, 3), (4, 5), (6, 7)), rows((0, 3), (4, 5), (6, 7))
    joined, inside = join_originals(before, after)
    assert joined[["base", "last", "records", "size"]].tolist() == [
        (0, 3, 2, r.NO_SIZE),
        (4, 5, 1, 100),
        (6, 7, 1, 100),
    ]
    assert (inside.originals["base"].tolist(), inside.merged["base"].tolist()) == ([2], [0])
    assert join_originals(before, before)[0].tolist() == before.tolist()


@pytest.mark.parametrize(("end", "expected"), [(None, None), (3, 0), (4, 4), (5, 4), (6, 6), (9, 9)])
def test_logs_are_cut_where_no_merged_batch_is(end: int | None, expected: int | None):
    assert window_end(rows((0, 3), (4, 5), (6, 7)), end) == expected

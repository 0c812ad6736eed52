"""`compact --on-corruption keep`: corrupt regions stay and are reported, other data is compacted; `verify` agrees."""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.corpus import load_case
from tests.jobs.log_dirs import make_log_dir, read_checkpoint, sediment, tree
from tests.logs import START_MS, LogShape, write_random_log
from tests.segments import NOW_MS, batch_bytes, write_segment
from tests.twin.batches import ControlType
from tests.twin.indexes import encode_transaction_index, parse_transaction_index
from tests.twin.segments import list_segments

SETTINGS = ["--set=t:cleanup.policy=compact", "--set=t:delete.retention.ms=20000"]
LOG = f"{10:020d}.log"


def compact(log_dir: Path, *options: object, now_ms: int = NOW_MS + 10**8):
    return sediment("compact", log_dir, "--json", "--force", "--now-ms", now_ms, *SETTINGS, *options)


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 0x21
    path.write_bytes(bytes(content))


@pytest.fixture
def log_dir(tmp_path):
    """Four segments of ten batches of one record, the last of them active; keys repeat."""
    partition = tmp_path / "written" / "t-0"
    for base in range(0, 40, 10):
        write_segment(partition, base, [batch_bytes(base + n, "abc"[n % 3]) for n in range(10)])
    return make_log_dir(tmp_path / "logs", {"t-0": partition})


SIZE = len(batch_bytes(0, "a"))


@pytest.mark.parametrize("strategy", ["whole", "split"])
def test_a_batch_that_cannot_be_read_is_kept_byte_for_byte_and_named(log_dir, strategy):
    path = log_dir / "t-0" / LOG
    flip(path, 3 * SIZE + 66)
    bad = path.read_bytes()[3 * SIZE : 4 * SIZE]
    report = compact(log_dir, "--on-corruption", "keep", "--strategy", strategy).partitions()["t-0"]
    assert (report["status"], report["reason_code"], report["corrupt_batches"]) == ("compacted", "unreadable-kept", 1)
    assert f"offset 13 at position {3 * SIZE} of {LOG}" in report["reason"]
    assert "CRC" in report["reason"]
    assert report["segments"] == [0, 10, 20, 30]
    assert path.read_bytes().startswith(bad)
    assert [batch.last_offset for batch in list_segments(log_dir / "t-0")[1].batches()[0][1:]] == [13]
    assert report["next_dirty_offset"] == 10
    assert read_checkpoint(log_dir / "cleaner-offset-checkpoint") == {"t-0": 10}


def test_the_kept_corrupt_regions_are_printed(log_dir):
    flip(log_dir / "t-0" / LOG, 3 * SIZE + 66)
    outcome = sediment("compact", log_dir, "--force", "--now-ms", NOW_MS + 10**8, *SETTINGS, "--on-corruption=keep")
    assert outcome.status == 0
    assert f"1 batch could not be read and stayed unchanged (offset 13 at position {3 * SIZE}" in outcome.stdout


def test_kept_damage_does_not_hide_tombstones_that_stay_for_an_unstated_retention(log_dir):
    write_segment(log_dir / "t-0", 0, [batch_bytes(n, "xyz"[n % 3], value=None) for n in range(10)])
    flip(log_dir / "t-0" / LOG, 3 * SIZE + 66)
    options = ("--force", "--dry-run", "--now-ms", NOW_MS, "--set=t:cleanup.policy=compact", "--on-corruption=keep")
    done = sediment("compact", log_dir, "--json", *options)
    (report,) = done.report["partitions"]
    assert (done.status, report["reason_code"]) == (0, "unreadable-kept")
    assert "1 batch could not be read" in report["reason"] and "delete.retention.ms is not stated" in report["reason"]
    assert sediment("compact", log_dir, "--json", *options, "--fail-on-unknown").status == 1
    assert sediment("compact", log_dir, "--json", *options, "--fail-on-unknown", "--broker-defaults").status == 0
    assert sediment("compact", log_dir, *options).stdout.count("delete.retention.ms is not stated") == 1


def test_a_segment_without_readable_batch_boundaries_stays_unchanged_and_is_never_merged(log_dir):
    path = log_dir / "t-0" / LOG
    flip(path, 3 * SIZE + 8)
    content = path.read_bytes()
    report = compact(log_dir, "--on-corruption", "keep").partitions()["t-0"]
    assert report["status"] == "compacted"
    assert report["corrupt_batches"] == 1
    assert path.read_bytes() == content
    assert report["segments"] == [0, 10, 20, 30]


def test_without_being_asked_to_keep_it_the_partition_is_left_alone(log_dir):
    flip(log_dir / "t-0" / LOG, 3 * SIZE + 66)
    before = tree(log_dir / "t-0")
    outcome = compact(log_dir)
    assert (outcome.status, outcome.partitions()["t-0"]["status"]) == (1, "quarantined")
    assert tree(log_dir / "t-0") == before


def test_keep_looks_at_what_was_quarantined_and_remembers_until_it_is_mended(log_dir):
    path = log_dir / "t-0" / LOG
    good = path.read_bytes()
    flip(path, 3 * SIZE + 8)
    assert compact(log_dir).status == 1
    assert compact(log_dir, "--on-corruption", "keep").partitions()["t-0"]["status"] == "compacted"
    assert compact(log_dir).partitions()["t-0"]["status"] == "quarantined"
    path.write_bytes(good)
    mended = compact(log_dir).partitions()["t-0"]
    assert (mended["status"], mended["corrupt_batches"], mended["next_dirty_offset"]) == ("compacted", 0, 30)
    assert not (log_dir / ".sediment-uncleanable").exists()


def test_a_second_run_over_the_same_damage_changes_nothing(log_dir):
    flip(log_dir / "t-0" / LOG, 3 * SIZE + 66)
    compact(log_dir, "--on-corruption", "keep")
    before = tree(log_dir / "t-0")
    again = compact(log_dir, "--on-corruption", "keep").partitions()["t-0"]
    assert (again["status"], again["corrupt_batches"], again["groups_rewritten"]) == ("compacted", 1, 0)
    assert tree(log_dir / "t-0") == before


def test_verify_accepts_what_keep_leaves_of_random_damaged_logs(tmp_path):
    before, after = tmp_path / "before", tmp_path / "after"
    for seed in range(16):
        chooser = random.Random(seed)
        partition = before / f"t-{seed}"
        shape = LogShape(batches=80, transactional=0.4 * (seed % 2), codecs=chooser.choice([(0,), (0, 1, 2, 3, 4)]))
        write_random_log(partition, 700 + seed, shape)
        segments = [segment for segment in list_segments(partition)[:-1] if segment.log_bytes()]
        for segment in chooser.sample(segments, 2):
            position, batch = chooser.choice(segment.batches())
            flip(segment.path(".log"), position + chooser.randrange(21, len(batch.data)))
    (before / ".kafka_cleanshutdown").touch()
    shutil.copytree(before, after)
    options = [*SETTINGS, "--now-ms", START_MS + 90_000, "--json"]
    compacted = sediment("compact", after, "--force", "--on-corruption=keep", *options)
    assert compacted.status == 0, compacted.stdout
    reports = compacted.partitions().values()
    assert sum(report["corrupt_batches"] > 0 for report in reports) > 8
    outcome = sediment("verify", before, after, *options)
    wrong = {name: report["differences"] for name, report in outcome.partitions().items() if report["differences"]}
    assert wrong == {}, json.dumps(wrong, indent=1)
    assert outcome.status == 0


TRANSACTIONS_MS = 1700001000000


def lose(index: Path) -> None:
    index.unlink()


def cut(index: Path) -> None:
    index.write_bytes(index.read_bytes()[:34])


def call_a_commit_aborted(index: Path) -> None:
    """Let an entry begin in the transaction before, which was committed."""
    segment = next(one for one in list_segments(index.parent) if one.base_offset == int(index.stem))
    entries = parse_transaction_index(index.read_bytes())
    markers = [batch for _, batch in segment.batches() if batch.is_control]
    for place, entry in enumerate(entries):
        below = [m for m in markers if m.producer_id == entry.producer_id and m.last_offset < entry.first_offset]
        if below and below[-1].control_type() is ControlType.COMMIT:
            entries[place] = replace(entry, first_offset=segment.base_offset)
    index.write_bytes(encode_transaction_index(entries))


@pytest.mark.parametrize(
    ("spoil", "options"),
    [
        (lose, ()),
        (lose, ("--on-corruption=keep",)),
        (lose, ("--strategy=split",)),
        (cut, ()),
        (call_a_commit_aborted, ()),
    ],
)
def test_a_log_whose_markers_contradict_its_transaction_index_is_left_alone_until_it_is_mended(
    tmp_path, spoil, options
):
    """Aborted records would supersede committed ones, or committed ones be dropped as aborted."""
    log_dir = make_log_dir(tmp_path / "logs", {"t-0": load_case("transactions", tmp_path).rounds[0].before})
    partition = log_dir / "t-0"
    index = partition / f"{910:020d}.txnindex"
    whole = index.read_bytes()
    spoil(index)
    before = tree(partition)
    outcome = compact(log_dir, *options, now_ms=TRANSACTIONS_MS)
    report = outcome.partitions()["t-0"]
    assert (outcome.status, report["status"], report["reason_code"]) == (1, "quarantined", "corrupt-index")
    assert "contradicts the transaction index" in report["reason"]
    assert tree(partition) == before
    (partition / f"{910:020d}.index").unlink()
    assert sediment("recover", log_dir, "--now-ms", TRANSACTIONS_MS, *SETTINGS).status == 0
    assert index.read_bytes() == whole
    mended = compact(log_dir, *options, now_ms=TRANSACTIONS_MS)
    assert mended.partitions()["t-0"]["status"] == "compacted"


def test_a_corrupt_batch_is_reported_before_the_contradiction_that_it_causes(tmp_path):
    """The walk reads headers before checksums: the header of a damaged batch can contradict the transaction index."""
    log_dir = tmp_path / "logs"
    write_random_log(log_dir / "t-0", 703, LogShape(batches=80, transactional=0.4))
    (log_dir / ".kafka_cleanshutdown").touch()
    options = [*SETTINGS, "--now-ms", START_MS + 90_000, "--json", "--force", "--from-start", "--dry-run"]
    positions = [(s, p) for s in list_segments(log_dir / "t-0")[:-1] if s.log_bytes() for p, _ in s.batches()]
    codes = []
    for segment, position in positions[::3]:
        path = segment.path(".log")
        whole = path.read_bytes()
        flip(path, position + 22)  # the attributes: a transactional batch becomes another one
        codes.append(sediment("compact", log_dir, *options).partitions()["t-0"]["reason_code"])
        path.write_bytes(whole)
    # What lies from an open transaction on is not read.
    assert set(codes) <= {"corrupt-batch", None} and codes.count("corrupt-batch") > 10, codes

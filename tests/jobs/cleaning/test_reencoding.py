"""`sediment compact --codec --level --batch-bytes`: cleaned segments get another encoding on the way."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.corpus import CleaningCase, load_case
from tests.jobs.log_dirs import make_log_dir, sediment, topic_sets, tree
from tests.rewrites import visible_records
from tests.twin.segments import list_segments

NOW_MS = 1_700_001_000_000
SMALLER = ("--codec=zstd", "--batch-bytes=64k")


@pytest.fixture
def plain(tmp_path: Path) -> CleaningCase:
    return load_case("plain", tmp_path / "corpus")


def logs_of(path: Path, case: CleaningCase) -> Path:
    return make_log_dir(path, {case.partition: case.before})


def compact(log_dir: Path, case: CleaningCase, *options: object):
    return sediment("compact", log_dir, "--json", "--now-ms", NOW_MS, *topic_sets("plain", case.configs), *options)


def test_every_way_to_compact_gives_the_same_encoding_and_verify_accepts_it(plain: CleaningCase, tmp_path: Path):
    name = plain.partition
    before, whole, split = (logs_of(tmp_path / each, plain) for each in ("before", "whole", "split"))
    (planned,) = compact(whole, plain, *SMALLER, "--dry-run").report["partitions"]
    assert tree(whole) == tree(before)
    (done,) = compact(whole, plain, *SMALLER).report["partitions"]
    same = ("batches_encoded", "bytes_after", "messages_written", "segments")
    assert [done[key] for key in same] == [planned[key] for key in same]
    (plainly,) = compact(split, plain, "--strategy=split", *SMALLER).report["partitions"]
    assert (plainly["strategy"], plainly["batches_encoded"]) == ("split", done["batches_encoded"])
    output = tmp_path / "output"
    assert compact(before, plain, *SMALLER, f"--output={output}").status == 0
    for other in (split, output):
        assert tree(other / name) == tree(whole / name)

    encoded = [batch for segment in list_segments(whole / name)[:-1] for _, batch in segment.batches()]
    assert done["batches_encoded"] == sum(batch.codec == 4 for batch in encoded) > 0
    unchanged = logs_of(tmp_path / "unchanged", plain)
    compact(unchanged, plain)
    assert visible_records(whole / name, committed=True) == visible_records(unchanged / name, committed=True)
    smaller, larger = (sum(f.stat().st_size for f in (each / name).glob("*.log")) for each in (whole, unchanged))
    assert done["bytes_after"] == smaller < larger

    options = ("--json", "--now-ms", NOW_MS, *topic_sets("plain", plain.configs))
    (found,) = sediment("verify", before, whole, "--reencoded", *options).report["partitions"]
    assert (found["status"], found["differences"]) == ("correct", [])
    assert found["batches_reencoded"] > 0
    shown = sediment("verify", before, whole, "--reencoded", *options[1:])
    assert f"{name}: {found['batches_reencoded']} batch" in shown.stdout


@pytest.mark.parametrize("option", ["--level=3", "--batch-bytes=10"])
def test_options_that_make_no_sense_are_refused(option: str, plain: CleaningCase, tmp_path: Path):
    log_dir = logs_of(tmp_path / "logs", plain)
    before = tree(log_dir)
    assert compact(log_dir, plain, option).status == 2
    assert tree(log_dir) == before

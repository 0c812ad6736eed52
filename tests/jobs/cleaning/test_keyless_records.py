"""Records without a key in a compacted topic: they are counted, and a partition that would mostly lose them stays."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.faults.inline_spark import inline_spark
from tests.jobs.cloning.clones import clone
from tests.jobs.log_dirs import make_log_dir, read_checkpoint, sediment, tree
from tests.segments import NOW_MS, write_segment
from tests.twin.batches import Record, encode_batch

OPTIONS = ("--broker-defaults", "--set=t:cleanup.policy=compact", "--now-ms", NOW_MS)


def batch(base: int, keys: list[bytes | None]) -> bytes:
    records = [Record(base + delta, NOW_MS, key, b"value") for delta, key in enumerate(keys)]
    return encode_batch(records, base_offset=base, leader_epoch=0)


def log_dir_of(path: Path, keys: list[bytes | None], *, segments: int = 2, topic: str = "t") -> Path:
    """Return a log directory with one partition: `segments` segments with records of `keys`, and an active one."""
    source = path.with_name(path.name + "-source")
    size = len(keys) // segments
    for number in range(segments):
        first = number * size
        batches = [batch(base, keys[base : base + 10]) for base in range(first, first + size, 10)]
        write_segment(source, first, batches)
    write_segment(source, segments * size, [batch(segments * size, [b"z"])])
    return make_log_dir(path, {f"{topic}-0": source}, dirty={f"{topic}-0": 0})


KEYLESS: list[bytes | None] = [None] * 100
# Ten keys occur ten times each, so 90 records are superseded.
HALF: list[bytes | None] = [None if n % 20 < 9 and n < 180 else b"k%d" % (n % 10) for n in range(200)]


@pytest.fixture
def log_dir(tmp_path):
    return log_dir_of(tmp_path / "logs", KEYLESS)


@pytest.fixture(autouse=True)
def _in_this_process():
    with inline_spark():
        yield


@pytest.mark.parametrize("strategy", ["whole", "split"])
def test_a_partition_that_would_mostly_lose_records_without_a_key_stays_as_it_is(log_dir, strategy):
    before = tree(log_dir)
    for dry_run in ((), ("--dry-run",)):
        outcome = sediment("compact", log_dir, "--json", f"--strategy={strategy}", *OPTIONS, *dry_run)
        assert outcome.status == 0
        found = outcome.partitions()["t-0"]
        assert (found["status"], found["reason_code"]) == ("skipped", "keyless-records")
        assert found["records_without_key"] == 100
        assert (found["messages_written"], found["bytes_after"]) == (0, found["bytes_before"])
        assert "100 of the 100 records" in found["reason"]
        assert tree(log_dir) == before
    assert "--drop-keyless" in sediment("compact", log_dir, *OPTIONS).stdout


@pytest.mark.parametrize("strategy", ["whole", "split"])
def test_drop_keyless_drops_them_and_says_how_many(tmp_path, log_dir, strategy):
    shown = sediment("compact", log_dir, "--dry-run", "--drop-keyless", *OPTIONS).stdout
    assert "t-0: 100 records without a key would be dropped" in shown
    outcome = sediment("compact", log_dir, "--json", "--drop-keyless", f"--strategy={strategy}", *OPTIONS)
    found = outcome.partitions()["t-0"]
    assert (found["status"], found["reason_code"], found["records_without_key"]) == ("compacted", None, 100)
    assert (found["messages_read"], found["messages_written"]) == (100, 0)
    assert read_checkpoint(log_dir / "cleaner-offset-checkpoint") == {"t-0": 100}


def test_up_to_half_of_what_is_dropped_may_lack_a_key_and_the_screen_counts_it(tmp_path):
    log_dir = log_dir_of(tmp_path / "logs", HALF)
    keyless = HALF.count(None)
    planned = sediment("plan", log_dir, "--json", *OPTIONS).partitions()["t-0"]
    exact = sediment("plan", log_dir, "--json", "--exact", *OPTIONS).partitions()["t-0"]
    shown = sediment("compact", log_dir, *OPTIONS)
    assert shown.status == 0
    assert f"t-0: {keyless} records without a key were dropped" in shown.stdout
    for found in (planned, exact):
        assert (found["status"], found["records_without_key"]) == ("cleanable", keyless)


def test_an_output_has_such_a_partition_unchanged(tmp_path, log_dir):
    before = tree(log_dir / "t-0")
    for name, options in {"whole": (), "split": ("--strategy=split",), "rolled": ("--roll-active",)}.items():
        output = tmp_path / name
        outcome = sediment("compact", log_dir, "--json", "--output", output, *OPTIONS, *options)
        assert outcome.status == 0, outcome.stderr
        assert outcome.partitions()["t-0"]["reason_code"] == "keyless-records"
        listed = {file["name"] for file in json.loads((output / "sediment-manifest.json").read_text())["files"]}
        assert all((output / file).is_file() for file in listed)
        if name != "rolled":
            assert tree(output / "t-0") == before
        kept = b"".join(content for file, content in sorted(tree(output / "t-0").items()) if file.endswith(".log"))
        assert kept.startswith(b"".join(content for file, content in sorted(before.items()) if file.endswith(".log")))


def test_a_clone_with_compaction_has_such_a_partition_unchanged(tmp_path, log_dir):
    outcome = clone(log_dir, tmp_path / "clone", "--compact", *OPTIONS)
    found = outcome.partitions()["t-0"]
    assert (found["compacted"], found["reason_code"], found["records_without_key"]) == (False, "keyless-records", 100)
    assert "compact --drop-keyless" in found["reason"]
    names = [f"{base:020d}.log" for base in (0, 50)]
    copied, before = tree(tmp_path / "clone" / "t-0"), tree(log_dir / "t-0")
    assert [copied[name] for name in names] == [before[name] for name in names]
    assert not any(name.endswith(".part") for name in copied)


def test_a_plan_says_that_such_a_partition_stays_also_in_an_exact_one(log_dir):
    for options in ((), ("--exact",)):
        found = sediment("plan", log_dir, "--json", *OPTIONS, *options).partitions()["t-0"]
        assert (found["status"], found["reason_code"]) == ("blocked", "keyless-records")
        assert (found["records_without_key"], found["bytes_back"], found["strategy"]) == (100, 0, None)
        dropping = sediment("plan", log_dir, "--json", "--drop-keyless", *OPTIONS, *options).partitions()["t-0"]
        assert (dropping["status"], dropping["messages_written"]) == ("cleanable", 0)


def test_a_blocked_plan_counts_the_records_of_the_active_segment_too(tmp_path):
    source = tmp_path / "source"
    write_segment(source, 0, [batch(0, [None] * 7 + [b"a"] * 3)])
    with (source / f"{0:020d}.log").open("ab") as active:
        active.write(batch(10, [None])[:-5])  # a broker has begun to append
    log_dir = make_log_dir(tmp_path / "logs", {"t-0": source})
    found = sediment("plan", log_dir, "--json", *OPTIONS).partitions()["t-0"]
    assert (found["status"], found["reason_code"]) == ("blocked", "active-segment")
    assert found["records_without_key"] == 7


def test_a_mark_of_quarantine_outlives_a_refused_cleaning(tmp_path):
    log_dir = log_dir_of(tmp_path / "logs", KEYLESS)
    segment = log_dir / "t-0" / f"{0:020d}.log"
    whole = segment.read_bytes()
    segment.write_bytes(whole[:80] + bytes([whole[80] ^ 1]) + whole[81:])  # in the first of ten batches
    assert sediment("compact", log_dir, "--json", *OPTIONS).partitions()["t-0"]["status"] == "quarantined"
    kept = sediment("compact", log_dir, "--json", "--on-corruption=keep", *OPTIONS).partitions()["t-0"]
    assert (kept["status"], kept["reason_code"], kept["records_without_key"]) == ("skipped", "keyless-records", 90)
    assert (log_dir / ".sediment-uncleanable").is_file()


def test_a_plan_warns_of_records_without_a_key_that_a_cleaning_would_drop(tmp_path):
    log_dir = log_dir_of(tmp_path / "logs", HALF)
    keyless = HALF.count(None)
    sentence = f"{keyless} records have no key, and the next cleaning drops every such record, also in a broker"
    for options in ((), ("--exact",), ("--set=t:min.compaction.lag.ms=999999999",)):
        planned = sediment("plan", log_dir, "--json", *OPTIONS, *options).partitions()["t-0"]
        assert (planned["records_without_key"], planned["warnings"]) == (keyless, [sentence])
    assert f"t-0: {sentence}" in sediment("plan", log_dir, *OPTIONS).stdout

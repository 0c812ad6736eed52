"""Logs with offsets that a leader wrote twice (KAFKA-19407): Kafka's cleaner, Sediment's, and `verify` of both."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.conformance.oracle import KafkaOracle
from tests.jobs.log_dirs import sediment
from tests.segments import NOW_MS, write_segment, write_snapshot
from tests.twin.batches import Batch, Record, encode_batch
from tests.twin.segments import file_batches
from tests.twin.verification import Found, Rules, record_differences

SETTINGS = ("--set=t:cleanup.policy=compact", "--broker-defaults", "--now-ms", NOW_MS, "--json")


def batch(base_offset: int, count: int, tag: str, keys: int) -> bytes:
    """Return a batch whose keys are its offsets modulo `keys`; `tag` tells the copies apart."""
    offsets = range(base_offset, base_offset + count)
    records = [Record(n, NOW_MS - 10_000 + n, b"k%d" % (n % keys), f"{tag}-{n}".encode()) for n in offsets]
    return encode_batch(records, base_offset=base_offset)


def write_log(log_dir: Path, keys: int, *, in_two_segments: bool) -> Path:
    """Write a log with the offsets 100 to 119 twice, in one segment or at the border of two."""
    first = [batch(0, 50, "a", keys), batch(50, 50, "a", keys)]
    copies = [batch(100, 20, "first", keys), batch(100, 20, "second", keys)]
    later = batch(120, 30, "a", keys)
    if in_two_segments:
        write_segment(log_dir / "t-0", 0, [*first, copies[0]])
        write_segment(log_dir / "t-0", 100, [copies[1], later])
    else:
        write_segment(log_dir / "t-0", 0, first)
        write_segment(log_dir / "t-0", 100, [*copies, later])
    write_segment(log_dir / "t-0", 150, [batch(150, 10, "a", keys)])
    for offset in (100, 150, 160):
        write_snapshot(log_dir / "t-0", offset)
    (log_dir / ".kafka_cleanshutdown").touch()
    return log_dir / "t-0"


def logs(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.glob("*.log"))}


def twin_differences(before: Path, after: Path) -> list[Found]:
    def batches(directory: Path) -> list[Batch]:
        return [each for path in sorted(directory.glob("*.log")) for _, each in file_batches(path.read_bytes())]

    rules = Rules(0, 150, 150, True, 160, 160, NOW_MS)
    return list(record_differences(batches(before), batches(after), rules))


@pytest.mark.conformance
@pytest.mark.parametrize("keys", [7, 1000], ids=["superseded later", "the last of their keys"])
@pytest.mark.parametrize("in_two_segments", [False, True])
def test_verify_and_its_twin_accept_what_kafkas_cleaner_makes_of_them(
    oracle: KafkaOracle, tmp_path: Path, keys: int, in_two_segments: bool
) -> None:
    before = write_log(tmp_path / "before", keys, in_two_segments=in_two_segments)
    kafkas, ours = tmp_path / "kafka", tmp_path / "ours"
    for copy in (kafkas, ours):
        shutil.copytree(before.parent, copy)
    oracle.clean(kafkas / "t-0", now_ms=NOW_MS, configs={"cleanup.policy": "compact"})
    assert logs(kafkas / "t-0") != logs(before)
    verified = sediment("verify", before.parent, kafkas, *SETTINGS).partitions()["t-0"]
    assert verified["differences"] == []
    assert verified["status"] == "correct"
    assert twin_differences(before, kafkas / "t-0") == []

    compacted = sediment("compact", ours, "--force", *SETTINGS).partitions()["t-0"]
    if in_two_segments:
        assert compacted["reason_code"] == "corrupt-batch"
        assert logs(ours / "t-0") == logs(before)
    else:
        assert compacted["status"] == "compacted"
        assert logs(ours / "t-0") == logs(kafkas / "t-0")

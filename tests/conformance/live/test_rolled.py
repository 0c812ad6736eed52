"""Kafka's log manager on a directory in which Sediment rolled the last segments and marked a corrupt partition."""

from pathlib import Path

import pytest

from tests.conformance.oracle import KafkaOracle
from tests.jobs.log_dirs import make_log_dir, sediment
from tests.logs import LogShape, write_random_log
from tests.segments import NOW_MS, batch_bytes, write_segment, write_snapshot

COMPACT = {"cleanup.policy": "compact"}


@pytest.mark.conformance
@pytest.mark.parametrize("clean", [True, False])
def test_a_broker_finds_the_after_as_one_of_its_own_and_ignores_the_file_of_marks(
    clean: bool, oracle: KafkaOracle, tmp_path: Path
):
    path = tmp_path / "t-0"
    write_segment(path, 0, [batch_bytes(n, "ab"[n % 2], producer_id=9, sequence=n) for n in range(30)])
    write_snapshot(path, 0)
    bad = tmp_path / "bad-0"
    write_segment(bad, 0, [batch_bytes(n) for n in range(30)])
    damaged = bytearray((bad / f"{0:020d}.log").read_bytes())
    damaged[100] ^= 1
    (bad / f"{0:020d}.log").write_bytes(bytes(damaged))
    write_segment(bad, 30)
    log_dir = make_log_dir(tmp_path / "logs", {"t-0": path, "bad-0": bad})
    sets = ("--set=t:cleanup.policy=compact", "--set=bad:cleanup.policy=compact")
    outcome = sediment("compact", log_dir, "--json", "--now-ms", NOW_MS, "--roll-active", *sets)
    assert {name: p["status"] for name, p in outcome.partitions().items()} == {
        "t-0": "compacted",
        "bad-0": "quarantined",
    }
    if not clean:
        (log_dir / ".kafka_cleanshutdown").unlink()
    assert (log_dir / ".sediment-uncleanable").is_file()
    mark = (log_dir / ".sediment-uncleanable").read_bytes()
    run = oracle.broker(log_dir, now_ms=NOW_MS, topics={"t": COMPACT, "bad": COMPACT})
    state = run.partitions["t-0"]
    assert (state.log_end_offset, state.base_offsets) == (30, (0, 30))
    assert [producer_id for producer_id, _ in state.producers] == [9]
    assert (log_dir / ".sediment-uncleanable").read_bytes() == mark


@pytest.mark.conformance
@pytest.mark.parametrize("seed", range(8))
def test_rolling_by_us_and_appending_nothing_is_what_kafka_has_after_its_own_load(
    seed: int, oracle: KafkaOracle, tmp_path: Path
):
    """Producers, aborted transactions and ends of a random log are the same before and after the roll."""
    write_random_log(tmp_path / "t-0", seed, LogShape(batches=30))
    before = make_log_dir(tmp_path / "before", {"t-0": tmp_path / "t-0"})
    rolled = make_log_dir(tmp_path / "rolled", {"t-0": tmp_path / "t-0"})
    kafka = oracle.broker(before, now_ms=NOW_MS, topics={"t": COMPACT}).partitions["t-0"]
    outcome = sediment(
        "compact", rolled, "--json", "--now-ms", NOW_MS, "--roll-active", "--force", "--set=t:cleanup.policy=compact"
    )
    assert outcome.status == 0, outcome.stderr
    after = oracle.broker(rolled, now_ms=NOW_MS, topics={"t": COMPACT}).partitions["t-0"]
    assert (after.log_end_offset, after.last_stable_offset) == (kafka.log_end_offset, kafka.last_stable_offset)
    assert after.producers == kafka.producers

"""Names of partition directories and entries of checkpoints, compared with Kafka's own classes."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from sediment.segment_io.errors import CorruptCheckpointError, UsageError
from sediment.segment_io.format.checkpoints import parse_offset_checkpoint
from sediment.segment_io.format.names import TopicPartition, parse_partition_directory
from sediment.segment_io.fs import Fs
from sediment.segment_io.partition.checkpoint_files import write_offset_checkpoint
from tests.conformance.oracle import KafkaFailedError, KafkaOracle
from tests.segments import batch_bytes, write_segment

pytestmark = [pytest.mark.conformance, pytest.mark.timeout(0)]

UUID = "0123456789abcdef0123456789abcdef"
PIECES = ["t", "a.b", "_", "-", "--", ".", "..", "0", "7", "00", "+1", "2147483647", "2147483648", " ", "\n", "\t"]
PIECES += ["\x1b[31m", "ö", "\u0663", "x" * 249, "x" * 250, f".{UUID}-delete", f".{UUID}-future", f".{UUID}-stray"]
PIECES += ["-delete", "-stray", ".x", "lost+found", ":", ",", "[a]"]


def random_names(count: int) -> list[str]:
    chance = random.Random(7)
    names = {"".join(chance.choices(PIECES, k=chance.randrange(1, 6))) for _ in range(count)}
    return sorted(name for name in names | {f"{a}-{b}" for a in PIECES for b in PIECES} if "/" not in name)


def test_a_partition_of_ours_is_the_same_one_to_kafka_and_of_a_topic_that_it_allows(oracle: KafkaOracle) -> None:
    names = random_names(3000)
    ours = refused = other_spelling = 0
    for name, kafka in zip(names, oracle.names(names), strict=True):
        try:
            partition, state = parse_partition_directory(name)
        except UsageError as error:
            refused += 1
            starts = "a broker refuses to start on this directory" not in str(error)
            # A broker also reads digits of other scripts and other suffixes; both are refused here as no partition's.
            is_plain = name.isascii() and not name.endswith(("-delete", "-future", "-stray"))
            assert (kafka is not None) == starts or not is_plain, (name, kafka)
            if kafka is not None and kafka[2] and is_plain:
                assert str(TopicPartition(kafka[0], kafka[1])) != name, name
                other_spelling += 1
            continue
        ours += 1
        assert kafka == (partition.topic, partition.partition, True), name
        assert state or str(partition) == name
    assert min(ours, refused, other_spelling) > 20


def test_every_checkpoint_that_is_written_is_read_by_kafka_as_it_was_meant(oracle: KafkaOracle, tmp_path: Path) -> None:
    chance = random.Random(8)
    path = tmp_path / "log-start-offset-checkpoint"
    written = refused = 0
    for _ in range(300):
        partition = TopicPartition("".join(chance.choices(PIECES, k=2)), chance.choice([0, 7, 2**31 - 1, 2**31, -1]))
        offset = chance.choice([0, 9, 2**63 - 1, 2**63])
        try:
            write_offset_checkpoint(Fs(), path, {TopicPartition("good", 0): 1, partition: offset})
        except UsageError:
            refused += 1
            continue
        written += 1
        assert oracle.read_checkpoint(path) == {("good", 0): 1, (partition.topic, partition.partition): offset}
    assert min(written, refused) > 20


@pytest.mark.parametrize(
    "line", ["old backup 1 9", "a\nb 0 9", "t 9999999999 9", "t 0 9223372036854775808", "t\u00a0x 0 9", "t\u2028x 0 9"]
)
def test_a_line_that_cannot_be_read_here_costs_kafka_the_whole_file(
    oracle: KafkaOracle, tmp_path: Path, line: str
) -> None:
    path = tmp_path / "log-start-offset-checkpoint"
    path.write_text(f"0\n2\ngood 0 1\n{line}\n", encoding="utf-8")
    try:
        ours = parse_offset_checkpoint(path.read_bytes())
    except CorruptCheckpointError:
        with pytest.raises(KafkaFailedError):
            oracle.read_checkpoint(path)
    else:
        assert oracle.read_checkpoint(path) == {(p.topic, p.partition): offset for p, offset in ours.items()}


def test_a_broker_does_not_start_on_two_spellings_of_a_partition(oracle: KafkaOracle, tmp_path: Path) -> None:
    for name in ("t-0", "t-00"):
        write_segment(tmp_path / "logs" / name, 0, [batch_bytes(0)])
    with pytest.raises(KafkaFailedError, match="Duplicate log directories for t-0"):
        oracle.broker(tmp_path / "logs", now_ms=1_700_000_000_000, topics={"t": {}})


def test_a_broker_writes_a_checkpoint_that_it_cannot_read_for_a_topic_that_is_not_allowed(
    oracle: KafkaOracle, tmp_path: Path
) -> None:
    write_segment(tmp_path / "logs" / "old backup-1", 0, [batch_bytes(0)])
    oracle.broker(tmp_path / "logs", now_ms=1_700_000_000_000, topics={})
    path = tmp_path / "logs" / "recovery-point-offset-checkpoint"
    assert "old backup 1 " in path.read_text()
    with pytest.raises(KafkaFailedError):
        oracle.read_checkpoint(path)

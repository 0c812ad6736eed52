"""Sediment on the data directory of a broker that stopped, and the same broker on the result."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import confluent_kafka as confluent
import pytest

from tests.e2e.clients import (
    COMMITTED,
    TOPICS,
    UNCOMMITTED,
    View,
    Workload,
    create_topics,
    look,
    produce_in_transaction,
    producing,
    shrink_internal_topics,
    transactional,
)
from tests.e2e.kraft import KafkaNode, running
from tests.jobs.log_dirs import Outcome, read_checkpoint, sediment_process

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

# Only Sediment cleans, until a test lets Kafka.
CLEANER_OFF = {"log.cleaner.enable": "false"}
CLEANER_ON = {
    "log.cleaner.enable": "true",
    "log.cleaner.backoff.ms": "100",
    "log.cleaner.min.cleanable.ratio": "0.01",
    "log.initial.task.delay.ms": "500",
}
COMPACTED_TOPICS = {*TOPICS, "__consumer_offsets", "__transaction_state"}

# What a start says after the cleanest of stops too: every start, or one on a busy machine, whose controller registers
# before it is active.
USUAL = (
    "Unexpected error handling request RequestHeader(apiKey=CONTROLLER_REGISTRATION",
    "Performing controller activation",
    "The config `log.cleaner.enable` is deprecated",
    "Recovering unflushed segment 0. 0 recovered for __cluster_metadata-0.",
)
TROUBLE = re.compile(r"corrupt|rebuilding index|unflushed|interrupted|truncat|resetting first dirty|uncleanable", re.I)


@pytest.fixture
def node(tmp_path: Path) -> KafkaNode:
    return KafkaNode(tmp_path / "node", CLEANER_OFF)


def fill(node: KafkaNode, workload: Workload) -> confluent.Producer:
    """Run two rounds of work, and keep a producer with an open transaction."""
    create_topics(node)
    workload.produce()
    shrink_internal_topics(node)
    workload.produce()
    left_open = transactional(node, "left-open")
    left_open.begin_transaction()
    produce_in_transaction(left_open, ["open 1", "open 2"])
    return left_open


def compact(node: KafkaNode, *more: str) -> Outcome:
    """Compact what the broker's own file leads to."""
    return sediment_process("compact", "--config", node.config_file(), "--force", "--json", *more, timeout=300)


def assert_compacted(*outcomes: Outcome) -> None:
    """Assert that these runs made a partition of every compacted topic smaller, and that none failed."""
    smaller: set[str] = set()
    for outcome in outcomes:
        assert outcome.status == 0, outcome.stderr
        smaller |= {
            name.rpartition("-")[0]
            for name, report in outcome.partitions().items()
            if report["status"] == "compacted" and report["bytes_after"] < report["bytes_before"]
        }
    assert smaller == COMPACTED_TOPICS


def reasons(outcome: Outcome) -> set[str]:
    return {report["reason_code"] for report in outcome.partitions().values() if report["reason_code"]}


def assert_same_to_consumers(before: View, after: View) -> None:
    assert after.ends == before.ends
    assert after.offsets == before.offsets
    assert after.latest(COMMITTED) == before.latest(COMMITTED)
    assert after.latest(UNCOMMITTED, without_aborted=True) == before.latest(UNCOMMITTED, without_aborted=True)
    for isolation, partitions in after.records.items():
        for name, records in partitions.items():
            assert set(records) <= set(before.records[isolation][name])


def assert_no_trouble(node: KafkaNode) -> None:
    """Assert that the broker logged no errors, corruption or repairs since its last start."""
    bad = [
        line
        for line in node.said()
        if (line.startswith(("WARN", "ERROR", "FATAL")) or TROUBLE.search(line))
        and not any(usual in line for usual in USUAL)
    ]
    assert not bad


def sealed_files(data: Path) -> dict[str, bytes]:
    """Contents of the segment files of all topics but for the active segments'."""
    found = {}
    for directory in data.glob("*-*/"):
        if directory.name.startswith("__cluster_metadata"):
            continue
        active = max(path.stem for path in directory.glob("*.log"))
        for path in directory.glob("0*.*"):
            if path.suffix in (".log", ".index", ".timeindex", ".txnindex") and path.stem < active:
                found[str(path.relative_to(data))] = path.read_bytes()
    return found


def wait_for_kafkas_cleaner(node: KafkaNode, least: Mapping[str, int]) -> None:
    """Until Kafka's cleaner has come to each of these offsets, by partition."""
    path = node.data / "cleaner-offset-checkpoint"
    deadline = time.monotonic() + 90
    while not all(read_checkpoint(path).get(name, 0) >= offset for name, offset in least.items()):
        assert time.monotonic() < deadline, (least, read_checkpoint(path), node.said()[-20:])
        time.sleep(0.2)


def active_segments(data: Path) -> list[Path]:
    """Return the `.log` of every partition's active segment, without the metadata log's."""
    directories = (path for path in data.glob("*-*/") if not path.name.startswith("__cluster_metadata"))
    return [max(directory.glob("*.log")) for directory in directories]


def active_bases(data: Path) -> dict[str, int]:
    names = [f"{topic}-{partition}" for topic in TOPICS for partition in range(2)]
    return {name: max(int(path.stem) for path in (data / name).glob("*.log")) for name in names}


def test_a_stopped_brokers_directory_is_compacted_and_the_broker_goes_on_with_it(
    node: KafkaNode, tmp_path: Path
) -> None:
    workload = Workload(node, seed=1)
    with running(node):
        left_open = fill(node, workload)
        before = look(node)
    shutil.copytree(node.data, tmp_path / "before")
    first = compact(node)
    assert_compacted(first)
    assert reasons(first) <= {"nothing-dirty"}
    verified = sediment_process("verify", tmp_path / "before", node.data, "--config", node.config_file(), timeout=300)
    assert verified.status == 0, verified.stdout + verified.stderr
    sealed = sealed_files(node.data)

    with running(node):
        after = look(node)
        assert_same_to_consumers(before, after)
        for name in after.ends:
            assert all(offset >= first.partitions()[name]["next_dirty_offset"] for offset in after.aborted(name))
        produce_in_transaction(left_open, ["open 3"])
        left_open.commit_transaction(60)
        assert all(record.value == b"open 3" for record in latest_of(look(node), b"key-of-open"))
        workload.produce(batches=20)
        known = transactional(node, "writer-0")
        known.begin_transaction()
        produce_in_transaction(known, ["by a known writer"])
        known.commit_transaction(60)
        grown = look(node)
        assert sealed_files(node.data).items() >= sealed.items()
    assert_no_trouble(node)

    node.configure(CLEANER_ON)
    with running(node):
        wait_for_kafkas_cleaner(node, below_open_transactions(grown, active_bases(node.data)))
        cleaned = look(node)
        assert_same_to_consumers(grown, cleaned)
        assert sum(map(len, cleaned.records[UNCOMMITTED].values())) < sum(map(len, grown.records[UNCOMMITTED].values()))
    assert_no_trouble(node)

    node.configure(CLEANER_OFF)
    again = compact(node)
    assert again.status == 0, again.stderr
    with running(node):
        assert_same_to_consumers(cleaned, look(node))
    assert_no_trouble(node)


def latest_of(view: View, key: bytes) -> list[Any]:
    found = [record for (_, of), record in view.latest(COMMITTED).items() if of == key]
    assert len(found) == 2
    return found


def below_open_transactions(view: View, bases: Mapping[str, int]) -> dict[str, int]:
    """Return the bases of active segments that a cleaner must reach: no open transaction stops it before them."""
    return {name: base for name, base in bases.items() if view.ends[name][2] >= base}


def test_after_kill_9_the_directory_is_left_alone_until_it_is_recovered(node: KafkaNode) -> None:
    workload = Workload(node, seed=2)
    with running(node):
        left_open = fill(node, workload)
    with running(node):
        workload.produce(batches=30)
        before = look(node)
        node.kill()
    first = compact(node)
    assert first.status == 0 and "was not clean" in first.stderr and "sediment recover" in first.stderr
    tails = {path: path.read_bytes() for path in active_segments(node.data)}

    recovered = sediment_process("recover", "--config", node.config_file(), "--json", timeout=300)
    assert recovered.status == 0, recovered.stderr
    assert {path: path.read_bytes() for path in active_segments(node.data)} == tails
    second = compact(node)
    assert "was not clean" not in second.stderr
    assert_compacted(first, second)

    with running(node):
        assert_same_to_consumers(before, look(node))
        produce_in_transaction(left_open, ["open 3"])
        left_open.commit_transaction(60)
        workload.produce(batches=10)
        grown = look(node)
    assert_no_trouble(node)
    node.configure(CLEANER_ON)
    with running(node):
        wait_for_kafkas_cleaner(node, below_open_transactions(grown, active_bases(node.data)))
        assert_same_to_consumers(grown, look(node))
    assert_no_trouble(node)


def test_killed_while_it_writes_the_directory_is_recovered_as_the_broker_itself_does(
    node: KafkaNode, tmp_path: Path
) -> None:
    workload = Workload(node, seed=3)
    with running(node):
        create_topics(node)
        workload.produce(batches=20)
        with producing(node):
            time.sleep(3)
            node.kill()
    kept = tmp_path / "kept"
    shutil.copytree(node.data, kept)
    with running(node):
        before = look(node)
    shutil.rmtree(node.data)
    kept.rename(node.data)

    recovered = sediment_process("recover", "--config", node.config_file(), "--json", timeout=300)
    assert recovered.status == 0, recovered.stderr
    ends = {name: report["log_end_offset"] for name, report in recovered.partitions().items()}
    assert {name: ends[name] for name in before.ends} == {name: end for name, (_, end, _) in before.ends.items()}
    again = compact(node)
    assert again.status == 0, again.stderr
    with running(node):
        assert_same_to_consumers(before, look(node))
        workload.produce(batches=5)
    assert_no_trouble(node)

"""Kafka's clients on directories that Kafka wrote: they see through `serve` what they saw of Kafka.

The expectations were recorded from a broker of Kafka 4.2.0 (tests/data/served), and from the dumps of Kafka's own
classes (tests/data/corpus).
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import confluent_kafka as confluent
import pytest
from kafka import KafkaConsumer
from kafka import TopicPartition as Partition

from tests.consumers import (
    COMMITTED,
    UNCOMMITTED,
    WAIT_SECONDS,
    Seen,
    confluent_consumer,
    confluent_records,
    differing,
    ends,
    kafka_python_records,
    split,
)
from tests.corpus import CleaningCase, DumpedBatch, cleaning_cases, load_case
from tests.served import Served, answers_of, as_json, contents, expected, partitions, serving, unpacked
from tests.twin.batches import ControlType, parse_control_key


# -------------------------------------------------------------------------------------------- a directory of one node
@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked(tmp_path_factory.mktemp("served") / "data")


@pytest.fixture(scope="module")
def served(directory: Path) -> Iterator[Served]:
    before = contents(directory)
    with serving(directory, "--read-only") as server:
        yield server
    assert contents(directory) == before


def test_clients_see_what_they_saw_of_the_broker(served: Served) -> None:
    found, recorded = answers_of(served.bootstrap), expected()
    for what in recorded:
        assert found[what] == recorded[what], what


@pytest.mark.parametrize("isolation", [COMMITTED, UNCOMMITTED])
def test_both_clients_go_on_at_any_offset_with_the_record_that_the_broker_gave(served: Served, isolation: str) -> None:
    chance = random.Random(isolation)
    records = {name: seen for name, seen in expected()["records"][isolation].items() if seen}
    with (
        confluent_consumer(served.bootstrap, isolation_level=isolation, fetch_wait_max_ms=1) as librdkafka,
        closing(
            KafkaConsumer(bootstrap_servers=served.bootstrap, isolation_level=isolation, fetch_max_wait_ms=1)
        ) as kafka_python,
    ):
        for _ in range(50):
            name, seen = chance.choice(list(records.items()))
            start = chance.randint(0, seen[-1][0])
            wanted = next(offset for offset, *_ in seen if offset >= start)
            librdkafka.assign([confluent.TopicPartition(*split(name), start)])
            message = librdkafka.poll(WAIT_SECONDS)
            assert message is not None and message.error() is None
            partition = Partition(*split(name))
            kafka_python.assign([partition])
            kafka_python.seek(partition, start)
            found = kafka_python.poll(timeout_ms=WAIT_SECONDS * 1000, max_records=1)
            assert (message.offset(), found[partition][0].offset) == (wanted, wanted), (name, start)


def test_librdkafka_lists_all_topics(served: Served) -> None:
    with confluent_consumer(served.bootstrap, group_id="lister") as consumer:
        topics = consumer.list_topics(timeout=60).topics
    assert {name.rpartition("-")[0] for name in expected()["records"][UNCOMMITTED]} <= topics.keys()


def test_a_group_goes_on_at_the_offsets_of_the_directory(served: Served) -> None:
    recorded = expected()["records"][UNCOMMITTED]
    wanted = {(name, offset) for name in ("orders-0", "orders-1") for offset in range(5, len(recorded[name]))}
    with confluent_consumer(served.bootstrap, group_id="billing", auto_offset_reset="error") as consumer:
        consumer.subscribe(["orders"])
        found = set()
        while found != wanted:
            message = consumer.poll(30)
            assert message is not None, wanted - found
            if message.error() is None:
                found.add((f"{message.topic()}-{message.partition()}", message.offset()))
        consumer.commit(asynchronous=False)
    with confluent_consumer(served.bootstrap, group_id="billing") as consumer:
        positions = consumer.committed([confluent.TopicPartition(*split("orders-0"))], 30)
        assert positions[0].offset == len(recorded["orders-0"])


@pytest.mark.parametrize(
    ("kept", "elsewhere", "without"),
    [("payments-0", "payments-1", None), ("payments-1", "payments-0", "__cluster_metadata-0")],
)
def test_consumers_read_the_partitions_of_one_of_several_brokers(
    kept: str, elsewhere: str, without: str | None, tmp_path: Path
) -> None:
    directory = unpacked(tmp_path / "data")
    for folder in filter(None, (elsewhere, without)):
        shutil.rmtree(directory / folder)
    wanted = {seen[0] for seen in expected()["records"][UNCOMMITTED][kept]}
    with serving(directory, "--read-only") as server:
        with confluent_consumer(
            server.bootstrap, auto_offset_reset="earliest", isolation_level=UNCOMMITTED
        ) as consumer:
            states = consumer.list_topics("payments", timeout=60).topics["payments"].partitions
            assert {number: each.leader == -1 for number, each in states.items()} == {
                split(kept)[1]: False,
                split(elsewhere)[1]: True,
            }
            consumer.subscribe(["payments"])
            found: set[int] = set()
            while found != wanted:
                message = consumer.poll(30)
                assert message is not None, wanted - found
                if message.error() is None:
                    assert message.partition() == split(kept)[1]
                    found.add(message.offset())
        with closing(
            KafkaConsumer("payments", bootstrap_servers=server.bootstrap, auto_offset_reset="earliest", group_id="k")
        ) as other:
            found = set()
            while found != wanted:
                records = other.poll(timeout_ms=30_000)
                assert list(records) == [Partition(*split(kept))]
                found |= {record.offset for record in records[Partition(*split(kept))]}
            assert len(other.assignment()) == 2


def test_a_producer_is_refused_at_once(served: Served) -> None:
    reports = []
    producer = confluent.Producer({"bootstrap.servers": served.bootstrap, "message.timeout.ms": "30000"})
    producer.produce("orders", b"value", on_delivery=lambda error, _: reports.append(error))
    assert producer.flush(20) == 0
    [error] = reports
    assert error is not None and error.code() != confluent.KafkaError._MSG_TIMED_OUT


# ------------------------------------------------------------------------------------------------- a read-only mount
MOUNT_READ_ONLY = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'


def test_a_read_only_mount_is_served(tmp_path: Path) -> None:
    directory = unpacked(tmp_path / "data")
    (directory / ".lock").touch()
    before = contents(directory)
    own_users = [] if os.geteuid() == 0 else ["--map-root-user"]
    mounted = ["unshare", *own_users, "--mount", "sh", "-c", MOUNT_READ_ONLY, str(directory)]
    if shutil.which("unshare") is None or subprocess.run([*mounted, "true"], capture_output=True).returncode:
        pytest.skip("this user may not mount a directory in a namespace of its own")
    touched = subprocess.run([*mounted, "touch", str(directory / "file")], capture_output=True, text=True)
    assert "Read-only file system" in touched.stderr
    with serving(directory, "--read-only", under=mounted) as server:
        found = confluent_records(server.bootstrap, partitions(), UNCOMMITTED)
    assert as_json(found) == expected()["records"][UNCOMMITTED]
    assert contents(directory) == before


# -------------------------------------------------------------------------------------------- folders of partitions
@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, CleaningCase]:
    folder = tmp_path_factory.mktemp("corpus")
    return {name: load_case(name, folder / name) for name in cleaning_cases(magic2_only=False)}


@pytest.fixture(scope="module")
def folders(cases: dict[str, CleaningCase], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with the partitions of the corpus before and after their first cleaning, and nothing else."""
    target = tmp_path_factory.mktemp("folders")
    for name, case in cases.items():
        for stage in ("before", "after-1"):
            shutil.copytree(case.directory / stage, target / f"{name}.{stage}-0")
    return target


def test_clients_read_the_partitions_of_the_corpus_as_kafka_read_them(
    cases: dict[str, CleaningCase], folders: Path
) -> None:
    dumped = {
        f"{name}.{stage}-0": [batch for segment in case.dump(stage) for batch in segment.batches]
        for name, case in cases.items()
        for stage in ("before", "after-1")
    }
    before = contents(folders)
    with serving(folders, "--read-only") as server:
        found_ends = ends(server.bootstrap, list(dumped))
        for isolation, end in ((UNCOMMITTED, 1), (COMMITTED, 2)):
            wanted = {name: consumed(batches, isolation) for name, batches in dumped.items()}
            assert differing(confluent_records(server.bootstrap, list(dumped), isolation), wanted) == []
            until = {name: found[end] for name, found in found_ends.items()}
            assert differing(kafka_python_records(server.bootstrap, list(dumped), isolation, until), wanted) == []
    assert contents(folders) == before


def consumed(batches: list[DumpedBatch], isolation: str) -> tuple[Seen, ...]:
    """Return the records that a consumer gets, by the transaction markers among the batches."""
    aborted, still_open = fates(batches) if isolation == COMMITTED else (set(), {})
    end = min(still_open.values(), default=2**63 - 1)
    return tuple(
        Seen(r.offset, r.key, r.value, tuple((h.key.decode(), h.value) for h in r.headers), r.timestamp)
        for batch in batches
        if not batch.is_control
        for r in batch.records
        if r.offset < end and r.offset not in aborted
    )


def fates(batches: list[DumpedBatch]) -> tuple[set[int], dict[int, int]]:
    """Return the offsets of aborted records, and the first offset of each producer's open transaction."""
    aborted: set[int] = set()
    sent: dict[int, list[int]] = {}
    for batch in batches:
        if batch.is_control:
            offsets = sent.pop(batch.producer_id, [])
            if batch.records and parse_control_key(batch.records[0].key) is ControlType.ABORT:
                aborted.update(offsets)
        elif batch.is_transactional:
            sent.setdefault(batch.producer_id, []).extend(range(batch.base_offset, batch.last_offset + 1))
    return aborted, {producer: offsets[0] for producer, offsets in sent.items()}


def test_before_and_after_of_a_compaction_are_read_side_by_side(cases: dict[str, CleaningCase], tmp_path: Path) -> None:
    case = cases["plain"]
    for stage in ("before", "after-1"):
        shutil.copytree(case.directory / stage, tmp_path / stage / "plain-0")
    names = ["plain.before-0", "plain.after-0"]
    with serving(
        *(tmp_path / "before", tmp_path / "after-1", "--read-only"),
        *("--as", f"plain.before={tmp_path / 'before'}:plain"),
        *("--as", f"plain.after={tmp_path / 'after-1'}:plain"),
    ) as server:
        found = confluent_records(server.bootstrap, names, UNCOMMITTED)
    for name, stage in zip(names, ("before", "after-1"), strict=True):
        batches = [batch for segment in case.dump(stage) for batch in segment.batches]
        assert found[name] == consumed(batches, UNCOMMITTED)


def test_partitions_of_the_fixture_are_those_of_its_topics(directory: Path) -> None:
    assert all((directory / name).is_dir() for name in partitions())

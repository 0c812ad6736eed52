"""`sediment serve` on the directory of a stopped broker, beside that broker on a copy: clients see the same.

The directory has the topics of a workload (five codecs, idempotent and transactional producers, one of them with an
open transaction, tombstones, groups with offsets), and each partition of the corpus before and after cleaning, among
them those of message formats 0 and 1.
"""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import confluent_kafka as confluent
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.consumers import (
    COMMITTED,
    ISOLATIONS,
    UNCOMMITTED,
    WAIT_SECONDS,
    Records,
    commit_offsets,
    committed_offsets,
    confluent_consumer,
    confluent_records,
    differing,
    ends,
    kafka_python_offsets_of_times,
    kafka_python_records,
    offsets_of_times,
    split,
)
from tests.corpus import unpack_logs
from tests.e2e import console_tools as tools
from tests.e2e.aiokafka_client import aiokafka_offsets_of_times, aiokafka_records, aiokafka_seeks
from tests.e2e.clients import (
    GROUPS,
    LOST_BY_KAFKA_PYTHON,
    PROPERTIES,
    TOPICS,
    Workload,
    create_one_partition_topics,
    create_topics,
    produce_in_transaction,
    take_over,
    transactional,
)
from tests.e2e.clients import partitions as workload_partitions
from tests.e2e.kraft import KafkaNode, running
from tests.served import contents, serving

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

RANDOM_CHOICES = 50  # of an offset, or a time
RECORDS_OF_A_CHOICE = 3
UNREADABLE_FOR_AIOKAFKA = "legacy-v0-codecs."  # lz4 in messages of magic 0
# Values of the broker's file, which is not in its log directory.
STATIC = re.compile(r" STATIC_BROKER_CONFIG:[^ ]+|,?(?:retention\.ms=-1|segment\.index\.bytes=65536)")


@dataclass(frozen=True, slots=True)
class Sides:
    """A broker and `serve` on the same files, `names` the partitions of the topics."""

    kafka: str
    sediment: str
    names: list[str]

    def both(self) -> tuple[str, str]:
        return self.kafka, self.sediment


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sides]:
    home = tmp_path_factory.mktemp("serve")
    node = KafkaNode(home / "node", PROPERTIES)
    corpus = unpack_logs(home)
    with running(node):
        create_topics(node)
        create_one_partition_topics(node, list(corpus))
        Workload(node, seed=18).produce(batches=15)
        left_open = transactional(node, "left-open")
        left_open.begin_transaction()
        produce_in_transaction(left_open, ["open 1", "open 2"])
    take_over(node.data, corpus)
    with running(node):
        ends(node.bootstrap, [f"{topic}-0" for topic in corpus])  # until each has a leader
    served = home / "served"
    shutil.copytree(node.data, served)
    before = contents(served)
    with running(node), serving(served, "--read-only") as server:
        yield Sides(node.bootstrap, server.bootstrap, [*workload_partitions(), *(f"{topic}-0" for topic in corpus)])
    left_open.purge()
    assert contents(served) == before


# -------------------------------------------------------------------------------------------------------------- records
@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_four_clients_read_the_same_records_of_every_partition(sides: Sides, isolation: str) -> None:
    wanted = confluent_records(sides.kafka, sides.names, isolation)
    assert sum(map(len, wanted.values())) > 10_000
    assert differing(confluent_records(sides.sediment, sides.names, isolation), wanted) == []
    end = 2 if isolation == COMMITTED else 1
    until = {name: found[end] for name, found in ends(sides.sediment, sides.names).items()}
    for read, left_out in ((kafka_python_records, LOST_BY_KAFKA_PYTHON), (aiokafka_records, UNREADABLE_FOR_AIOKAFKA)):
        names = [name for name in sides.names if not name.startswith(left_out)]
        found = read(sides.sediment, names, isolation, until)
        assert differing(found, {name: wanted[name] for name in names}) == []


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_kcat_prints_the_same(sides: Sides, isolation: str) -> None:
    kcat = tools.kcat_path()
    if kcat is None:
        pytest.skip("kcat is not installed")
    for name in [*workload_partitions(), *sides.names[::4]]:
        kafka, sediment = (tools.kcat_records(kcat, side, *split(name), isolation) for side in sides.both())
        assert sediment == kafka, name


@pytest.mark.parametrize(
    ("name", "isolation"),
    [
        ("transactions-0", COMMITTED),
        ("transactions-0", UNCOMMITTED),
        ("codecs-1", COMMITTED),
        ("legacy-v1-codecs.before-0", UNCOMMITTED),
        ("everything.after-1-0", COMMITTED),
    ],
)
def test_the_console_consumer_prints_the_same(sides: Sides, name: str, isolation: str) -> None:
    count = len(confluent_records(sides.kafka, [name], isolation)[name])
    kafka, sediment = (console_records(side, name, isolation, "earliest", count) for side in sides.both())
    assert kafka.count("\n") >= count
    assert sediment == kafka


def console_records(bootstrap: str, name: str, isolation: str, offset: str, count: int) -> str:
    """Return what the console consumer prints of `count` records from an offset on."""
    topic, partition = split(name)
    shown = ("offset", "partition", "timestamp", "key", "headers", "value")
    return tools.tool(
        *(bootstrap, tools.CONSOLE_CONSUMER, "--topic", topic, "--partition", str(partition), "--offset", offset),
        *("--max-messages", str(count), "--isolation-level", isolation, "--timeout-ms", "60000"),
        *(argument for what in shown for argument in ("--formatter-property", f"print.{what}=true")),
    )


# ---------------------------------------------------------------------------------------------------- offsets and times
def test_log_starts_high_watermarks_and_last_stable_offsets_are_the_same(sides: Sides) -> None:
    found = ends(sides.sediment, sides.names)
    assert found == ends(sides.kafka, sides.names)
    assert any(stable < high for _, high, stable in found.values())


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_reading_from_random_offsets_gives_the_same(sides: Sides, isolation: str) -> None:
    chance = random.Random(18)
    end = 2 if isolation == COMMITTED else 1
    found = ends(sides.kafka, sides.names)
    readers = [partial(records_from, side, sides.names, isolation) for side in sides.both()]
    starts = [
        {name: chance.randint(found[name][0], found[name][end]) for name in sides.names} for _ in range(RANDOM_CHOICES)
    ]
    with ThreadPoolExecutor(len(readers)) as pool:
        kafka, sediment = pool.map(lambda read: read(starts), readers)
    for number, (wanted, got) in enumerate(zip(kafka, sediment, strict=True)):
        assert differing(got, wanted) == [], starts[number]


def records_from(bootstrap: str, names: list[str], isolation: str, starts: list[dict[str, int]]) -> list[Records]:
    """Return the first records of each partition from each of `starts` on."""
    return [confluent_records(bootstrap, names, isolation, starts=each, count=3) for each in starts]


def test_random_times_lead_to_the_same_offsets(sides: Sides) -> None:
    chance = random.Random(19)
    records = confluent_records(sides.kafka, sides.names, UNCOMMITTED)
    spans = {name: [each.timestamp_ms for each in found] or [0] for name, found in records.items()}
    for _ in range(RANDOM_CHOICES):
        times = {
            name: chance.choice([chance.choice(span), chance.randint(min(span), max(span) + 1), 0])
            for name, span in spans.items()
        }
        times = {name: max(time_ms, 0) for name, time_ms in times.items()}
        kafka, sediment = (offsets_of_times(side, times) for side in sides.both())
        assert sediment == kafka
        kafka_answers, sediment_answers = (kafka_python_offsets_of_times(side, times) for side in sides.both())
        assert sediment_answers == kafka_answers


@pytest.fixture(scope="module")
def timestamps(sides: Sides) -> dict[str, list[int]]:
    """Return the times of the records of each partition, [0] without records."""
    records = confluent_records(sides.kafka, sides.names, UNCOMMITTED)
    return {name: [each.timestamp_ms for each in found] or [0] for name, found in records.items()}


def random_offsets(sides: Sides, isolation: str, seed: int) -> list[tuple[str, int]]:
    """Choose partitions, and an offset of each."""
    chance, end = random.Random(seed), 2 if isolation == COMMITTED else 1
    found = ends(sides.kafka, sides.names)
    names = chance.choices(sides.names, k=RANDOM_CHOICES)
    return [(name, chance.randint(found[name][0], found[name][end])) for name in names]


def random_times(timestamps: dict[str, list[int]], seed: int) -> list[tuple[str, int]]:
    """Choose partitions, and a time of each: that of a record, or one between the first and just after the last."""
    chance = random.Random(seed)
    names = chance.choices(sorted(timestamps), k=RANDOM_CHOICES)
    spans = [timestamps[name] for name in names]
    times = [chance.choice([chance.choice(span), chance.randint(min(span), max(span) + 1)]) for span in spans]
    return [(name, max(time_ms, 0)) for name, time_ms in zip(names, times, strict=True)]


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_kcat_prints_the_same_from_random_offsets_and_times(
    sides: Sides, timestamps: dict[str, list[int]], isolation: str
) -> None:
    kcat = tools.kcat_path()
    if kcat is None:
        pytest.skip("kcat is not installed")
    starts = [(name, str(offset)) for name, offset in random_offsets(sides, isolation, 20)]
    starts += [(name, f"s@{time_ms}") for name, time_ms in random_times(timestamps, 21)]
    printed = 0
    for name, start in starts:
        kafka, sediment = (
            tools.kcat_records(kcat, side, *split(name), isolation, start, RECORDS_OF_A_CHOICE) for side in sides.both()
        )
        assert sediment == kafka, (name, start)
        printed += kafka.count(b"\n")
    assert printed > len(starts)


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_aiokafka_reads_the_same_from_random_offsets(sides: Sides, isolation: str) -> None:
    choices = [
        choice for choice in random_offsets(sides, isolation, 22) if not choice[0].startswith(UNREADABLE_FOR_AIOKAFKA)
    ]
    end = 2 if isolation == COMMITTED else 1
    until = {name: found[end] for name, found in ends(sides.kafka, sides.names).items()}
    kafka, sediment = (aiokafka_seeks(side, isolation, choices, until, RECORDS_OF_A_CHOICE) for side in sides.both())
    assert sum(map(len, kafka)) > RANDOM_CHOICES
    assert [choice for choice, *found in zip(choices, kafka, sediment, strict=True) if found[0] != found[1]] == []


def test_aiokafka_finds_the_same_offsets_of_random_times(sides: Sides, timestamps: dict[str, list[int]]) -> None:
    choices = random_times(timestamps, 23)
    kafka, sediment = (aiokafka_offsets_of_times(side, choices) for side in sides.both())
    assert any(kafka)
    assert [choice for choice, *found in zip(choices, kafka, sediment, strict=True) if found[0] != found[1]] == []


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_kafkas_own_consumer_reads_the_same_from_random_offsets_and_times(
    sides: Sides, timestamps: dict[str, list[int]], isolation: str
) -> None:
    choices = [(*split(name), "offset", offset) for name, offset in random_offsets(sides, isolation, 24)]
    choices += [(*split(name), "time", time_ms) for name, time_ms in random_times(timestamps, 25)]
    lines = [" ".join(map(str, choice)) for choice in choices]
    kafka, sediment = (tools.seeks(side, isolation, RECORDS_OF_A_CHOICE, lines) for side in sides.both())
    assert len(kafka) > len(lines)
    assert [pair for pair in zip(sediment, kafka, strict=True) if pair[0] != pair[1]] == []


def test_the_console_consumer_prints_the_same_from_random_offsets(sides: Sides) -> None:
    found = confluent_records(sides.kafka, sides.names, UNCOMMITTED)
    chance = random.Random(26)
    for name in chance.sample([name for name in sides.names if len(found[name]) >= RECORDS_OF_A_CHOICE], 2):
        offset = chance.choice(found[name][: 1 - RECORDS_OF_A_CHOICE]).offset
        kafka, sediment = (
            console_records(side, name, UNCOMMITTED, str(offset), RECORDS_OF_A_CHOICE) for side in sides.both()
        )
        assert kafka.count("\n") >= RECORDS_OF_A_CHOICE
        assert sediment == kafka


# --------------------------------------------------------------------------------------------------------------- groups
def test_groups_have_the_offsets_of_the_directory(sides: Sides) -> None:
    for group in GROUPS:
        kafka, sediment = (committed_offsets(side, group, workload_partitions()) for side in sides.both())
        assert sediment == kafka
        assert all(offset >= 0 for offset, _ in sediment.values())


def test_a_group_resumes_where_it_would_on_the_broker(sides: Sides) -> None:
    topic = next(iter(TOPICS))
    wanted = {
        f"{topic}-{n}": committed_offsets(sides.kafka, GROUPS[0], [f"{topic}-{n}"])[f"{topic}-{n}"] for n in (0, 1)
    }
    first: dict[str, int] = {}
    with confluent_consumer(sides.sediment, group_id=GROUPS[0], auto_offset_reset="error") as consumer:
        consumer.subscribe([topic])
        while len(first) < len(wanted):
            message = consumer.poll(WAIT_SECONDS)
            assert message is not None
            if message.error() is None:
                first.setdefault(f"{message.topic()}-{message.partition()}", message.offset())
    assert all(first[name] >= offset for name, (offset, _) in wanted.items())


# ---------------------------------------------------------------------------------------------------------------- tools
def outputs(sides: Sides, name: str, *arguments: str) -> tuple[list[str], list[str]]:
    kafka, sediment = (tools.tool(side, name, *arguments).replace(side, "HOST") for side in sides.both())
    return tools.table(STATIC.sub("", kafka)), tools.table(STATIC.sub("", sediment))


def test_kafka_consumer_groups_shows_offsets_and_lag(sides: Sides) -> None:
    kafka, sediment = outputs(sides, tools.CONSUMER_GROUPS, "--describe", "--all-groups")
    assert sum(line.startswith(GROUPS) for line in kafka) == len(GROUPS) * len(workload_partitions())
    assert sediment == kafka


@pytest.mark.parametrize("time", ["earliest", "latest", "max-timestamp"])
def test_kafka_get_offsets_prints_the_same(sides: Sides, time: str) -> None:
    kafka, sediment = outputs(sides, tools.GET_OFFSETS, "--time", time, "--exclude-internal-topics")
    assert len(kafka) >= len(sides.names) - 2
    assert sediment == kafka


def test_kafka_topics_describes_the_same(sides: Sides) -> None:
    kafka, sediment = outputs(sides, tools.TOPICS, "--describe")
    assert len(kafka) > len(sides.names)
    assert sediment == kafka


def test_kafka_configs_describes_the_same_topics(sides: Sides) -> None:
    kafka, sediment = outputs(sides, tools.CONFIGS, "--describe", "--entity-type", "topics")
    assert any("internal.segment.bytes" in line for line in kafka)
    assert sediment == kafka


def test_kafka_log_dirs_finds_the_same_sizes(sides: Sides) -> None:
    def sizes(text: str) -> dict[str, Any]:
        [found] = [line for line in text.splitlines() if line.startswith("{")]
        return {
            partition["partition"]: (partition["size"], partition["offsetLag"], partition["isFuture"])
            for broker in json.loads(found)["brokers"]
            for directory in broker["logDirs"]
            for partition in directory["partitions"]
        }

    kafka, sediment = (sizes(tools.tool(side, tools.LOG_DIRS, "--describe")) for side in sides.both())
    assert {name: kafka[name] for name in sides.names} == {name: sediment[name] for name in sides.names}


def test_kafka_transactions_lists_the_same(sides: Sides) -> None:
    def listed(text: str) -> list[str]:
        return [re.sub(r" \d+ (\w+)$", r" \1", line) for line in tools.table(text)]

    kafka, sediment = (listed(tools.tool(side, tools.TRANSACTIONS, "list")) for side in sides.both())
    assert any("left-open" in line for line in kafka)
    assert sediment == kafka
    arguments = ("describe-producers", "--topic", "transactions", "--partition", "0")
    kafka, sediment = outputs(sides, tools.TRANSACTIONS, *arguments)
    assert len(kafka) > 3
    assert sediment == kafka


# ---------------------------------------------------------------------------------------------------------- three nodes
def test_directories_of_three_brokers_are_served_as_one(tmp_path: Path) -> None:
    replicated = {"offsets.topic.replication.factor": "3", "offsets.topic.num.partitions": "3", **PROPERTIES}
    first = KafkaNode(tmp_path / "1", {"node.id": "1", **replicated})
    others = [KafkaNode(tmp_path / str(n), {"node.id": str(n), **replicated}, joins=first) for n in (2, 3)]
    names = [f"spread-{n}" for n in range(6)] + [f"single-{n}" for n in range(6)]
    with running(first), running(others[0]):
        with running(others[1]):
            create_on_three(first)
            produce(first, names, 40)
            commit_offsets(first.bootstrap, "readers", dict.fromkeys(names, 7))
        # The third broker's replicas fall behind.
        produce(first, names[:6], 25)
        records = {isolation: confluent_records(first.bootstrap, names[:6], isolation) for isolation in ISOLATIONS}
    with serving(*(tmp_path / str(n) / "data" for n in (1, 2, 3)), "--read-only") as server:
        for isolation in ISOLATIONS:
            assert confluent_records(server.bootstrap, names[:6], isolation) == records[isolation]
        assert sum(map(len, confluent_records(server.bootstrap, names[6:], UNCOMMITTED).values())) == 6 * 40
        found = committed_offsets(server.bootstrap, "readers", names)
        assert {name: offset for name, (offset, _) in found.items()} == dict.fromkeys(names, 7)


def create_on_three(node: KafkaNode) -> None:
    client = AdminClient({"bootstrap.servers": node.bootstrap})
    topics = [NewTopic("spread", 6, 3), NewTopic("single", 6, 1)]
    for future in client.create_topics(topics).values():
        future.result(WAIT_SECONDS)


def produce(node: KafkaNode, names: list[str], count: int) -> None:
    producer = confluent.Producer({"bootstrap.servers": node.bootstrap, "linger.ms": "0"})
    for number in range(count):
        for name in names:
            topic, partition = split(name)
            producer.produce(topic, b"value %d" % number, b"key", partition)
    assert producer.flush(WAIT_SECONDS) == 0

"""Speed of `sediment.records` compared with two Python clients, on the same records, in one process.

kafka-python builds and reads the bytes of a batch in Python.  confluent-kafka offers neither to its caller, so it
produces to librdkafka's mock broker and consumes from it.  librdkafka's threads work beside the measured thread.  The
figures are the CPU time of the calling thread, which for confluent-kafka is only the cost of the calls.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import confluent_kafka as confluent
from kafka.record import MemoryRecords, MemoryRecordsBuilder

from benchmarks.reporting.pages import fill_page, markdown_table
from sediment.records import NewRecord, build_batch, read_records

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "records.md"
NOW_MS = 1_700_000_000_000
RECORDS_PER_BATCH = 132
BATCHES = 60
ROUNDS = 15
MOCK_BROKER = {"test.mock.num.brokers": 1, "log_level": 0}


@dataclass(frozen=True, slots=True)
class Rates:
    """Records per second of CPU time of the calling thread."""

    build: float
    read: float


def new_records() -> list[NewRecord]:
    """Return the records of a batch: keys of 12 bytes, values of 100 random bytes."""
    return [NewRecord(NOW_MS + n, b"key-%08d" % n, os.urandom(100)) for n in range(RECORDS_PER_BATCH)]


def sediment_rates(new: Sequence[NewRecord]) -> Rates:
    """Measure `build_batch` and `read_records`."""
    fetched = b"".join(build_batch(new, base_offset=n * len(new)) for n in range(BATCHES))
    return Rates(
        _rate(lambda: [build_batch(new) for _ in range(BATCHES)]),
        _rate(lambda: sum(1 for _ in read_records(fetched))),
    )


def kafka_python_rates(new: Sequence[NewRecord]) -> Rates:
    """Measure kafka-python's builder, and its reader with checksum verification."""

    def build() -> bytes:
        builder = MemoryRecordsBuilder(magic=2, compression_type=0, batch_size=1 << 20)
        for record in new:
            builder.append(record.timestamp_ms, record.key, record.value, [])
        builder.close()
        return bytes(builder.buffer())

    fetched = build() * BATCHES

    def read() -> int:
        found = 0
        records = MemoryRecords(fetched)
        while (batch := records.next_batch()) is not None:
            assert batch.validate_crc()
            found += sum(1 for _ in batch)
        return found

    return Rates(_rate(lambda: [build() for _ in range(BATCHES)]), _rate(read))


def confluent_rates(new: Sequence[NewRecord]) -> Rates:
    """Measure confluent-kafka's `produce` and `consume`, the latter on messages that have arrived."""
    producer = confluent.Producer({**MOCK_BROKER, "queue.buffering.max.messages": 10_000_000})
    metadata = producer.list_topics(timeout=20)
    (broker,) = metadata.brokers.values()

    def produce() -> None:
        for _ in range(BATCHES):
            for record in new:
                producer.produce("records", record.value, record.key, 0, timestamp=record.timestamp_ms)

    def produce_all() -> float:
        seconds = _cpu_seconds(produce)
        assert producer.flush(60) == 0
        return seconds

    build = RECORDS_PER_BATCH * BATCHES / median(produce_all() for _ in range(ROUNDS))
    consumer = confluent.Consumer(
        {
            "bootstrap.servers": f"{broker.host}:{broker.port}",
            "group.id": "records",
            "check.crcs": "true",
            "queued.min.messages": 1_000_000,
            "enable.partition.eof": "true",
        }
    )
    consumer.assign([confluent.TopicPartition("records", 0, confluent.OFFSET_BEGINNING)])
    (first,) = consumer.consume(1, 20)
    assert first.error() is None
    time.sleep(3)  # until the messages that the mock broker has kept have arrived
    got = 0

    def consume() -> None:
        nonlocal got
        while True:
            messages = consumer.consume(10_000, 5)
            got += len([(m.offset(), m.timestamp(), m.key(), m.value()) for m in messages if m.error() is None])
            if messages[-1].error() is not None:
                return

    seconds = _cpu_seconds(consume)
    consumer.close()
    return Rates(build, got / seconds)


def _rate(call: Callable[[], object]) -> float:
    call()
    return RECORDS_PER_BATCH * BATCHES / median(_cpu_seconds(call) for _ in range(ROUNDS))


def _cpu_seconds(call: Callable[[], object]) -> float:
    before = time.thread_time()
    call()
    return time.thread_time() - before


def main() -> None:
    """Print the table, or write it into the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--docs", action="store_true", help=f"write the table into {PAGE.name}")
    given = parser.parse_args()
    new = new_records()
    found = {
        "sediment.records": sediment_rates(new),
        f"kafka-python {version('kafka-python')}": kafka_python_rates(new),
        f"confluent-kafka {version('confluent-kafka')}, calling thread only": confluent_rates(new),
    }
    table = markdown_table(
        ["million records per second", "build", "read"],
        [[side, f"{rates.build / 1e6:.2f}", f"{rates.read / 1e6:.2f}"] for side, rates in found.items()],
    )
    if given.docs:
        fill_page(PAGE, "records", table)
    print(table)


if __name__ == "__main__":
    main()

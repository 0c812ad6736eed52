"""Clients that write to a server while it is killed, and what they know of it.

An `Idempotent` producer numbers its records.  A `Transactional` one numbers its transactions; each writes its number to
two partitions.  Every request is repeated by the client until it is answered.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import confluent_kafka as confluent

from tests.consumers import Records
from tests.waiting import LIMIT_SECONDS

_CLIENT = {
    "linger.ms": 1,
    "reconnect.backoff.ms": 10,
    "reconnect.backoff.max.ms": 50,
    "retry.backoff.ms": 10,
    "retry.backoff.max.ms": 50,
    "message.timeout.ms": int(LIMIT_SECONDS * 1000),
    "log_level": 0,
}
_BATCH = 5
_CALL_SECONDS = 5.0
PARTITIONS = ("t-0", "t-1")


class Worker:
    """A thread that repeats `_work` while it is not paused; `count` is how often it has done so."""

    def __init__(self) -> None:
        self.count = 0
        self._may_work = threading.Event()
        self._is_idle = threading.Event()
        self._is_ended = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def resume(self) -> None:
        self._is_idle.clear()
        self._may_work.set()

    def pause(self) -> None:
        """Wait until the work in progress is done."""
        self._may_work.clear()
        assert self._is_idle.wait(LIMIT_SECONDS), "a client got no answer"
        self.check()

    def check(self) -> None:
        """Raise the error that ended the thread."""
        if self._error is not None:
            raise self._error

    def end(self) -> None:
        self._is_ended = True
        self._may_work.set()
        self._thread.join(LIMIT_SECONDS)

    def _run(self) -> None:
        try:
            while not self._is_ended:
                if not self._may_work.is_set():
                    self._is_idle.set()
                    self._may_work.wait()
                else:
                    self._work()
                    self.count += 1
        except BaseException as error:
            self._error = error
        finally:
            self._is_idle.set()

    def _work(self) -> None:
        raise NotImplementedError


class Idempotent(Worker):
    """An idempotent producer of one partition."""

    def __init__(self, bootstrap: str, partition: int) -> None:
        self.values: list[str] = []
        self.offsets: dict[int, str] = {}
        self._partition = partition
        self._producer = confluent.Producer(
            {**_CLIENT, "bootstrap.servers": bootstrap, "enable.idempotence": True, "acks": "all"}
        )
        super().__init__()

    def _work(self) -> None:
        for _ in range(_BATCH):
            value = str(len(self.values))
            self.values.append(value)
            self._producer.produce("plain", value, partition=self._partition, on_delivery=self._delivered)
        assert self._producer.flush(LIMIT_SECONDS) == 0

    def _delivered(self, error: Any, message: Any) -> None:
        assert error is None, error
        self.offsets[message.offset()] = message.value().decode()

    def check_records(self, records: Records) -> None:
        """Check that every record is there once, in order, and at the offset that was acknowledged."""
        found = {each.offset: (each.value or b"").decode() for each in records[f"plain-{self._partition}"]}
        assert list(found.values()) == self.values
        assert self.offsets == found


@dataclass
class Outcomes:
    """What a transactional producer knows of its transactions."""

    committed: list[int] = field(default_factory=list)
    unknown: set[int] = field(default_factory=set)
    """Those whose end was neither confirmed nor refused."""


class Transactional(Worker):
    """A transactional producer."""

    def __init__(self, bootstrap: str, name: str, seed: int) -> None:
        self.outcomes = Outcomes()
        self._bootstrap = bootstrap
        self.name = name
        self._number = 0
        self._chance = random.Random(seed)
        self._producer: Any = None
        super().__init__()

    def _work(self) -> None:
        number, self._number = self._number, self._number + 1
        if self._producer is None:
            self._producer = producer_of(self._bootstrap, self.name)
        try:
            self._transact(number)
        except confluent.KafkaException as error:
            if not error.args[0].fatal():
                raise
            self._producer = None
            self.outcomes.unknown.add(number)

    def _transact(self, number: int) -> None:
        producer = self._producer
        try:
            producer.begin_transaction()
            for partition in range(len(PARTITIONS)):
                producer.produce("t", f"{self.name} {number}", partition=partition)
            if self._chance.random() < 0.3:
                assert producer.flush(LIMIT_SECONDS) == 0
                repeated(producer.abort_transaction)
                return
            repeated(producer.commit_transaction)
        except confluent.KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            repeated(producer.abort_transaction)
            return
        self.outcomes.committed.append(number)

    def check_records(self, records: Records) -> None:
        """Check that committed transactions are whole, and that no other one has a record."""
        found = [
            [int(each.value.split()[1]) for each in records[name] if each.value and each.value.startswith(self._begin)]
            for name in PARTITIONS
        ]
        assert found[0] == found[1]
        unknown = set(found[0]) - set(self.outcomes.committed)
        assert unknown <= self.outcomes.unknown
        assert [number for number in found[0] if number not in unknown] == self.outcomes.committed

    @property
    def _begin(self) -> bytes:
        return f"{self.name} ".encode()


def producer_of(bootstrap: str, name: str, timeout_ms: int = 600_000) -> confluent.Producer:
    """Return a transactional producer."""
    made = confluent.Producer(
        {
            **_CLIENT,
            "bootstrap.servers": bootstrap,
            "transactional.id": name,
            "transaction.timeout.ms": timeout_ms,
            "message.timeout.ms": min(timeout_ms, int(_CLIENT["message.timeout.ms"])),
        }
    )
    repeated(made.init_transactions)
    return made


def repeated(call: Callable[[float], Any]) -> None:
    """Call until it does not fail with an error for which the client asks to call again."""
    while True:
        try:
            call(_CALL_SECONDS)
            return
        except confluent.KafkaException as error:
            if not error.args[0].retriable():
                raise


def leave_open(bootstrap: str, timeout_ms: int) -> None:
    """Begin a transaction, write to it, and never end it."""
    producer = producer_of(bootstrap, "left", timeout_ms)
    producer.begin_transaction()
    for partition in range(len(PARTITIONS)):
        producer.produce("t", "left 0", partition=partition)
    producer.flush(LIMIT_SECONDS)

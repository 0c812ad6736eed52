"""A coordinator of one transactional id, step by step: the test decides when appends and markers are written.

A step is an object with the key `op`; a request also has a name, which its answer repeats.

    init, add, verify, end    a request, with the producer that it states
    time_out                  transactions that are open for too long are aborted
    wait                      time passes
    hold, release             from hold on, appends do not end; release ends the one that waits, with a code
    markers                   the markers of the decided transaction are written, or those in `codes` are not
    crash                     the coordinator starts again, with the last stored record
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sediment.segment_io.format.batch_builder import NewRecord
from sediment.segment_io.format.names import TopicPartition
from sediment.segment_io.internal_topics.coordinator_records import TRANSACTION_STATE, decode_coordinator_record
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.live.delayed_append import Codes
from sediment.server.server_config import ServerConfig
from sediment.server.transactions.stored_transactions import decode_transaction
from sediment.server.transactions.transaction import STATES, Transaction
from sediment.server.transactions.transaction_coordinator import TransactionCoordinator
from sediment.server.transactions.transitions import ProducerOf
from tests.clocks import ManualClock

RECORDED = Path(__file__).parents[2] / "data" / "transactions.json.xz"
"""Random sequences of steps, with the answers and states of Kafka 4.2.0, compressed."""

NAME = "x"
FIRST_PRODUCER_ID = 1000


class CoordinatorSteps:
    """A coordinator in a cluster of `begin["version"]`, with the transaction `begin["stored"]` if there is one."""

    def __init__(self, begin: Mapping[str, Any]) -> None:
        self._clock = ManualClock(begin["now_ms"])
        self._version = begin["version"]
        self._ids = _ProducerIds()
        self._answers: list[list[Any]] = []
        self._deeds = {
            "init": self._init,
            "add": self._add,
            "verify": self._verify,
            "end": self._end,
            "time_out": self._time_out,
            "wait": self._wait,
            "hold": self._hold,
            "release": self._release,
            "markers": self._finish_markers,
            "crash": self._crash,
        }
        self._start(stored_transaction(begin["stored"]) if "stored" in begin else None)

    def _start(self, stored: Transaction | None) -> None:
        self._log, self._markers, self._tasks = _Log(), _Markers(), _Tasks(self._clock)
        self._coordinator = TransactionCoordinator(
            ServerConfig(), self._version, self._log, self._markers, self._ids, self._tasks, self._clock
        )
        self._coordinator.load({} if stored is None else {NAME: stored})
        self._tasks.run()

    def take(self, step: Mapping[str, Any]) -> dict[str, Any]:
        """Take a step; return the answers that it caused, and the state that it left."""
        self._answers = []
        self._deeds[step["op"]](step)
        self._tasks.run()
        return {"answers": self._answers, "state": self._state()}

    def _init(self, step: Mapping[str, Any]) -> None:
        expected = _producer(step) if "producer_id" in step else None
        self._coordinator.initialize(NAME, step["timeout_ms"], expected, self._answer(step))

    def _add(self, step: Mapping[str, Any]) -> None:
        answer = self._answer(step)
        self._coordinator.add_partitions(
            NAME, _producer(step), _partitions(step), step["version"], lambda code: answer(code, ProducerOf(-1, -1))
        )

    def _verify(self, step: Mapping[str, Any]) -> None:
        codes = self._coordinator.verify(NAME, _producer(step), _partitions(step))
        self._answers += [[step["request"], code.name, each.partition, -1] for each, code in codes.items()]

    def _end(self, step: Mapping[str, Any]) -> None:
        self._coordinator.end(NAME, _producer(step), step["version"], self._answer(step), is_commit=step["commit"])

    def _answer(self, step: Mapping[str, Any]) -> Callable[[ErrorCode, ProducerOf], None]:
        def answer(code: ErrorCode, producer: ProducerOf) -> None:
            self._answers.append([step["request"], code.name, producer.producer_id, producer.epoch])

        return answer

    def _time_out(self, _step: Mapping[str, Any]) -> None:
        self._coordinator.abort_timed_out()

    def _wait(self, step: Mapping[str, Any]) -> None:
        self._clock.advance(step["ms"])

    def _hold(self, _step: Mapping[str, Any]) -> None:
        self._log.holds = True

    def _release(self, step: Mapping[str, Any]) -> None:
        self._log.release(ErrorCode[step["code"]])

    def _finish_markers(self, step: Mapping[str, Any]) -> None:
        codes = step.get("codes", {})
        self._markers.finish({TopicPartition("t", number): ErrorCode[code] for number, code in codes.items()})

    def _crash(self, _step: Mapping[str, Any]) -> None:
        stored = self._log.stored
        self._start(None if stored is None else _decoded(stored))
        self._log.stored = stored

    @property
    def waiting_markers(self) -> list[int]:
        """The partitions whose markers are being written, for the decision that waits first."""
        return self._markers.waiting_partitions

    def _state(self) -> list[Any] | None:
        found = self._coordinator.find(NAME)
        if found is None:
            return None
        return [
            found.state.title,
            found.producer_id,
            found.producer_epoch,
            found.last_producer_epoch,
            found.previous_producer_id,
            found.next_producer_id,
            found.timeout_ms,
            sorted(each.partition for each in found.partitions),
            found.start_timestamp_ms,
            found.last_update_ms,
            found.client_version,
        ]


def stored_transaction(stored: Mapping[str, Any]) -> Transaction:
    """Return the transaction that a sequence begins with."""
    return Transaction(
        NAME,
        stored["producer_id"],
        stored["epoch"],
        stored["timeout_ms"],
        stored["start_ms"],
        STATES[stored["state"]],
        _partitions(stored),
        stored["update_ms"],
        stored["version"],
    )


def _decoded(record: NewRecord) -> Transaction:
    decoded = decode_coordinator_record(TRANSACTION_STATE, record.key, record.value)
    assert decoded is not None
    found = decode_transaction(NAME, decoded.value)
    assert found is not None
    return found


def _producer(step: Mapping[str, Any]) -> ProducerOf:
    return ProducerOf(step["producer_id"], step["epoch"])


def _partitions(step: Mapping[str, Any]) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition("t", number) for number in step["partitions"])


class _ProducerIds:
    """Producer ids in ascending order."""

    def __init__(self) -> None:
        self._next_id = FIRST_PRODUCER_ID

    def reserve(self, next_id: int) -> None:
        self._next_id = max(self._next_id, next_id)

    def generate(self) -> int:
        self._next_id += 1
        return self._next_id - 1


class _Log:
    """A log whose appends end at once, or when they are released."""

    def __init__(self) -> None:
        self.holds = False
        self.stored: NewRecord | None = None
        self._held: deque[tuple[NewRecord, Callable[[ErrorCode], object]]] = deque()

    def partition_number(self, _transactional_id: str) -> int:
        return 0

    def coordinator_epoch(self, _transactional_id: str) -> int:
        return 0

    def append(self, _number: int, records: Sequence[NewRecord], then: Callable[[ErrorCode], object]) -> None:
        (record,) = records
        self._held.append((record, then))
        if not self.holds:
            self.release(ErrorCode.NONE)

    def release(self, code: ErrorCode) -> None:
        self.holds = False
        if self._held:
            record, then = self._held.popleft()
            if code is ErrorCode.NONE:
                self.stored = record
            then(code)


class _Markers:
    """Markers that are written when `finish` is called."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[list[TopicPartition], Callable[[Codes], object]]] = deque()

    @property
    def waiting_partitions(self) -> list[int]:
        return [each.partition for each in self._waiting[0][0]] if self._waiting else []

    def write(self, _marker: object, partitions: Iterable[TopicPartition], then: Callable[[Codes], object]) -> None:
        self._waiting.append((list(partitions), then))

    def finish(self, codes: Codes) -> None:
        if self._waiting:
            partitions, then = self._waiting.popleft()
            then({each: codes.get(each, ErrorCode.NONE) for each in partitions})


class _Tasks:
    """Tasks that run between two steps, when their time has come."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._tasks: list[tuple[int, Callable[[], object]]] = []

    def schedule_once(self, _name: str, task: Callable[[], object], *, delay_ms: int = 0) -> None:
        self._tasks.append((self._clock.now_ms() + delay_ms, task))

    def schedule_periodically(self, _name: str, _task: Callable[[], object], *, period_ms: int, delay_ms: int) -> None:
        assert period_ms == delay_ms

    def run(self) -> None:
        while due := [each for each in self._tasks if each[0] <= self._clock.now_ms()]:
            self._tasks.remove(due[0])
            due[0][1]()


def first_difference(sequence: Mapping[str, Any]) -> tuple[Any, Any, Any] | None:
    """Return the first step after which an answer or the state differs from Kafka's, with both results."""
    coordinator = CoordinatorSteps(sequence["begin"])
    for number, (step, kafka) in enumerate(zip(sequence["steps"], sequence["results"], strict=True)):
        found = coordinator.take(step)
        found["answers"].sort()
        state = None if kafka["state"] is None else kafka["state"][:-1]  # without the flag of a pending change
        if found != {"answers": kafka["answers"], "state": state}:
            return (number, step), kafka, found
    return None

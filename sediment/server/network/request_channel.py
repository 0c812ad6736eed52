"""The bounded queue of received requests, with at most `queued.max.requests`, and the threads that handle these.

If the queue is full, a processor waits and does not read from its connections.

Source: Kafka's RequestChannel and KafkaRequestHandlerPool.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sediment.server.network.kafka_channel import KafkaChannel


@dataclass(slots=True, eq=False)
class ReceivedFrame:
    channel: KafkaChannel
    frame: memoryview
    received_ns: int


class RequestChannel:
    def __init__(self, max_requests: int) -> None:
        self._queue: SimpleQueue[ReceivedFrame | None] = SimpleQueue()
        self._max_requests = max_requests
        self._putting = threading.Lock()
        self._has_room = threading.Event()
        self._is_closed = False

    def __len__(self) -> int:
        return self._queue.qsize()

    @property
    def is_empty(self) -> bool:
        return self._queue.empty()

    def put(self, received: ReceivedFrame) -> bool:
        with self._putting:
            while self._queue.qsize() >= self._max_requests and not self._is_closed:
                self._has_room.clear()
                if self._queue.qsize() >= self._max_requests and not self._is_closed:
                    self._has_room.wait()
            if self._is_closed:
                return False
            self._queue.put(received)
            return True

    def get(self) -> ReceivedFrame | None:
        received = self._queue.get()
        if not self._has_room.is_set():
            self._has_room.set()
        return received

    def close(self, handlers: int) -> None:
        """Accept no further request.

        `get` still returns the waiting requests, and then None to each of the `handlers` threads.
        """
        self._is_closed = True
        self._has_room.set()
        for _ in range(handlers):
            self._queue.put(None)


class RequestHandlerPool:
    """A pool of `num.io.threads` threads, each of which handles one request at a time; `handle` raises nothing."""

    def __init__(self, channel: RequestChannel, handle: Callable[[ReceivedFrame], None], threads: int) -> None:
        self._channel = channel
        self._handle = handle
        self._threads = [
            threading.Thread(target=self._run, name=f"data-plane-kafka-request-handler-{number}", daemon=True)
            for number in range(threads)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self, timeout_seconds: float) -> None:
        self._channel.close(len(self._threads))
        deadline = time.monotonic() + timeout_seconds
        for thread in filter(threading.Thread.is_alive, self._threads):
            thread.join(max(deadline - time.monotonic(), 0))

    def _run(self) -> None:
        while (received := self._channel.get()) is not None:
            self._handle(received)
            del received  # an idle thread must not keep the memory of a frame

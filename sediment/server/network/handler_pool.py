"""Threads that handle the requests of a request channel (Kafka's KafkaRequestHandlerPool)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from sediment.server.network.request_channel import ReceivedFrame, RequestChannel


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
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def stop(self, timeout_seconds: float) -> None:
        """Close the channel, and wait at most `timeout_seconds` until its requests are handled."""
        self._channel.close(len(self._threads))
        deadline = time.monotonic() + timeout_seconds
        for thread in filter(threading.Thread.is_alive, self._threads):
            thread.join(max(deadline - time.monotonic(), 0))

    def _run(self) -> None:
        while (received := self._channel.get()) is not None:
            self._handle(received)
            del received  # an idle thread must not keep the memory of a frame

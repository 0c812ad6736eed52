"""Threads that handle requests."""

from __future__ import annotations

import weakref

from sediment.server.network.request_channel import ReceivedFrame, RequestChannel, RequestHandlerPool
from tests.waiting import wait_until


def test_an_idle_thread_keeps_no_frame() -> None:
    frames: list[weakref.ref[memoryview]] = []
    channel = RequestChannel(10)
    pool = RequestHandlerPool(channel, lambda received: frames.append(weakref.ref(received.frame)), 2)
    pool.start()
    for _ in range(4):
        channel.put(ReceivedFrame(None, memoryview(bytearray(100)), 0))  # type: ignore[arg-type]
    wait_until(lambda: len(frames) == 4 and not any(frame() for frame in frames))
    pool.stop(10)

"""Processor: one thread that owns the sockets of its connections (Kafka's Processor and Selector).

A small frame skips the request channel if the channel is empty and the API is one of `handled_at_once`. The processor
then handles the request itself, because passing it to another thread would cost more than handling it. If such requests
take long on average, for example on a slow disk, all frames go through the channel for a while. A single slow request
does not have this effect, because on a busy machine any thread is sometimes delayed. A large frame goes to the threads
for long work (`long_work`).

The processor checks these deadlines at intervals of at most a quarter of the shortest one:

* An authentication may take `sediment.request.receive.timeout.ms`.  For each MiB, a frame may take one more second.
* While other frames wait for memory, a frame that has memory must arrive with one MiB each second, after _SHORT_NS.
* A connection may be idle for `connections.max.idle.ms`.  A peer that reads no bytes has the same deadline.

Invariant: a connection is muted from the end of a request to the end of its response. So responses are sent in the
order of their requests.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import ssl
import threading
import time
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from sediment.segment_io.errors import SedimentError
from sediment.segment_io.protocol.api_keys import ApiKey
from sediment.segment_io.units import NS_PER_MS, NS_PER_SECOND
from sediment.server.limited_log import LimitedLog
from sediment.server.network.connection_quotas import ConnectionQuotas
from sediment.server.network.frames import (
    FRAME_SIZE_BYTES,
    FrameLimits,
    FrameMemory,
    FrameReader,
    PeerClosedError,
    ResponseMemory,
    ResponseSend,
)
from sediment.server.network.kafka_channel import KafkaChannel
from sediment.server.network.long_work import LongWork
from sediment.server.network.request_channel import ReceivedFrame, RequestChannel
from sediment.server.network.transport_layer import PlaintextTransportLayer, SslTransportLayer
from sediment.server.open_files_limit import ReservedDescriptors
from sediment.server.repeated import ReceiveBuffer, RepeatedRequest
from sediment.server.request_metrics import RequestMetrics
from sediment.server.requests import Connection, Request, RequestTimes
from sediment.server.server_config import ServerConfig

_LOGGER = logging.getLogger(__name__)

_SCRATCH_BYTES = 64 * 1024
_RUN_BYTES = 128 * 1024
"""Sufficient for most producers, which have at most five batches of 16 kB in flight."""

_SEND_BUDGET_BYTES = 1024 * 1024
"""The number of response bytes that are sent before it is other connections' turn; slices without TLS have no limit."""

_LONGEST_WAIT_MS = 20
"""The longest time of one send, including its waits; after this time, epoll watches the socket again."""

_FRAMES_IN_A_ROW = 16
_AT_ONCE_BYTES = 64 * 1024
"""The largest frame that a processor handles itself; a larger frame may contain thousands of partitions."""

_HANDLER_BYTES = 16 * 1024
"""The largest frame, except of a Produce, that a handler handles; some APIs take 0.1 ms for each of its elements."""

_SHORT_NS = 3000 * NS_PER_MS
"""While requests wait for memory, the time that a request may take to arrive, apart from one second for each MiB."""

_SLOW_NS = 5 * NS_PER_MS
_MEAN_SHIFT = 4
"""In the moving average, the last request has the weight 1 / 2**_MEAN_SHIFT."""

_BACK_TO_CHANNEL_NS = 1000 * NS_PER_MS
_IDLE = "the peer was idle for connections.max.idle.ms"
_JOIN_SECONDS = 1.0
_MIB_BITS = 20
_LONGEST_SCAN_NS = NS_PER_SECOND
_SCANS_PER_TIMEOUT = 4
_READ, _WRITE = select.EPOLLIN, select.EPOLLOUT
_GONE = select.EPOLLERR | select.EPOLLHUP


@dataclass(frozen=True, slots=True)
class Listener:
    protocol: str
    """PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL."""

    address: str
    """The host and port, in the form that thread names and connection ids contain."""

    tls: ssl.SSLContext | None = None
    new_authenticator: Callable[[], Any] | None = None
    """The function that creates the SASL state of a new connection; None without authentication."""


@dataclass(frozen=True, slots=True)
class Shared:
    config: ServerConfig
    listener: Listener
    request_channel: RequestChannel
    long_work: LongWork
    memory: FrameMemory
    response_memory: ResponseMemory[KafkaChannel]
    quotas: ConnectionQuotas
    reserved: ReservedDescriptors
    log: LimitedLog
    handle: Callable[[ReceivedFrame], None]
    """The function that handles a frame; it never raises."""

    handled_at_once: frozenset[int]
    """The keys of APIs whose requests a processor may handle itself."""

    metrics: RequestMetrics


class Processor:
    """A thread with an epoll descriptor, its connections, and an inbox for calls from other threads."""

    def __init__(self, number: int, shared: Shared) -> None:
        self._number = number
        self._shared = shared
        self._limits = FrameLimits(shared.config.socket_request_max_bytes)
        self._idle_ns = shared.config.connections_max_idle_ms * NS_PER_MS
        self._receive_ns = shared.config.request_receive_timeout_ms * NS_PER_MS
        self._scan_ns = min(_LONGEST_SCAN_NS, min(self._idle_ns, self._receive_ns) // _SCANS_PER_TIMEOUT)
        self._channels: dict[int, KafkaChannel] = {}
        self._starved: dict[KafkaChannel, None] = {}
        """Connections whose next frame waits for memory."""

        self._unfinished: OrderedDict[KafkaChannel, None] = OrderedDict()
        """Connections, oldest first, whose next frame may have arrived although their sockets report no event."""

        self._inbox: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._received = ReceiveBuffer(_RUN_BYTES)
        self._scratch = self._received.memory[:_SCRATCH_BYTES]
        self._run_frame_bytes = min(_AT_ONCE_BYTES, self._limits.any_max_bytes)
        self._epoll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # The thread does not close this descriptor.  Otherwise the system could reuse the number for a file, and
        # another thread that wakes this one would write to the file.
        weakref.finalize(self, os.close, self._wake)
        self._epoll.register(self._wake, _READ)
        self._is_awake = False
        self._is_stopping = False
        self._stop_at_ns = 0
        """Time at which the thread ends even if peers have not read all responses; 0 before a stop."""

        self._current: KafkaChannel | None = None
        """The connection whose request this thread is handling."""

        self._wait_until_ns = 0
        """Time at which the current send stops waiting for its socket."""

        self._writing_ns = 0
        """Time for writing responses so far."""

        self._mean_handling_ns = 0
        """Moving average of the handling time (without sending) of the requests that this thread handled itself."""

        self._handles_from_ns = 0
        """Time from which this thread may handle requests itself again."""

        self._connections = 0
        self._next_scan_ns = 0
        protocol = shared.listener.protocol
        name = f"data-plane-kafka-network-thread-{shared.config.node_id}-ListenerName({protocol})-{protocol}-{number}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.log = shared.log
        self.count_errors = shared.metrics.count_errors

    def start(self) -> None:
        self._thread.start()

    # ------------------------------------------------------------------------------------------------- from any thread
    def accept(self, connected: socket.socket, address: str) -> None:
        self._post(self._open, connected, address)

    def deliver(self, channel: KafkaChannel, response: ResponseSend | None, request: Request | None) -> None:
        if self._current is channel and threading.get_ident() == self._thread.ident:
            self._guarded(channel, self._respond, channel, response, request)
        else:
            self._post(self._respond_and_read, channel, response, request)

    def run_long(self, task: Callable[[], None]) -> None:
        self._shared.long_work.put(task)

    def disconnect(self, channel: KafkaChannel) -> None:
        self._post(self._disconnect, channel)

    def free_frame(self, channel: KafkaChannel) -> None:
        """Give back the memory of a frame whose request waits; the response must be passed to this thread later."""
        self._post(channel.reader.free)

    def give_up(self, channel: KafkaChannel) -> None:
        self._post(self._give_up, channel)

    def stop_reading(self) -> None:
        self._post(self._stop_reading)

    def stop(self, timeout_seconds: float) -> None:
        self._post(self._stop, time.monotonic_ns() + int(timeout_seconds * NS_PER_SECOND))
        if self._thread.is_alive():
            self._thread.join(timeout_seconds + _JOIN_SECONDS)

    def _post(self, call: Callable[..., None], *arguments: Any) -> None:
        self._inbox.append((call, arguments))
        self._wake_up()

    def _wake_up(self) -> None:
        if not self._is_awake and threading.get_ident() != self._thread.ident:
            self._is_awake = True
            os.eventfd_write(self._wake, 1)

    # ------------------------------------------------------------------------------------------------------- the loop
    def _run(self) -> None:
        try:
            while not (self._stop_at_ns and self._is_done()):
                self._poll()
        finally:
            self._is_stopping = True
            self._empty_inbox()
            for channel in tuple(self._channels.values()):
                self._close(channel)
            self._epoll.close()

    def _is_done(self) -> bool:
        is_idle = not self._inbox and not any(channel.response for channel in self._channels.values())
        return is_idle or time.monotonic_ns() > self._stop_at_ns

    def _poll(self) -> None:
        is_busy = self._inbox or self._unfinished
        for descriptor, events in self._epoll.poll(0 if is_busy else self._scan_ns / NS_PER_SECOND):
            if descriptor == self._wake:
                os.eventfd_read(self._wake)
                # The flag is cleared before the inbox is checked or emptied.  So a later post wakes this thread again,
                # even from a wait for one socket.
                self._is_awake = False
                continue
            channel = self._channels.get(descriptor)
            if channel is not None:
                self._guarded(channel, self._on_events, channel, events)
        if self._inbox:
            self._empty_inbox()
        if self._unfinished:
            self._read_on()
        now_ns = time.monotonic_ns()
        if now_ns >= self._next_scan_ns:
            self._next_scan_ns = now_ns + self._scan_ns
            self._close_overdue(now_ns)

    def _empty_inbox(self) -> None:
        for _ in range(len(self._inbox)):
            call, arguments = self._inbox.popleft()
            try:
                call(*arguments)
            except Exception:
                _LOGGER.exception("a processor failed to %s", call.__name__.strip("_"))

    def _read_on(self) -> None:
        # A send does not wait for its socket while unfinished connections wait for their turn.
        for _ in range(len(self._unfinished)):
            channel, _ = self._unfinished.popitem(last=False)
            if not channel.is_muted:
                self._guarded(channel, self._read, channel)

    def _guarded(self, channel: KafkaChannel, call: Callable[..., None], *arguments: Any) -> None:
        try:
            call(*arguments)
        except (PeerClosedError, ConnectionError, TimeoutError) as error:
            _LOGGER.debug("%s: %s", channel.connection.peer, error)
            self._close(channel)
        except (SedimentError, OSError) as error:
            self.log.warning(f"{channel.connection.peer}: {error}; the connection was closed")
            self._close(channel)
        except Exception:
            _LOGGER.exception("%s: the connection failed and was closed", channel.connection.peer)
            self._close(channel)

    # ------------------------------------------------------------------------------------------------ one connection
    def _open(self, connected: socket.socket, address: str) -> None:
        listener = self._shared.listener
        try:
            host, port = connected.getpeername()[:2]
            transport = (
                PlaintextTransportLayer(connected)
                if listener.tls is None
                else SslTransportLayer(connected, listener.tls)
            )
        except OSError:
            connected.close()
            self._shared.quotas.give_back(address)
            return
        self._connections += 1
        peer = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        connection = Connection(
            id=f"{listener.address}-{peer}-{self._number}-{self._connections}",
            peer=peer,
            listener=listener.protocol,
            authenticator=None if listener.new_authenticator is None else listener.new_authenticator(),
        )
        reader = FrameReader(self._limits, lambda: connection.is_authenticated, self._shared.memory)
        wait = self._waiting_for(transport.descriptor)
        channel = KafkaChannel(self, transport, address, reader, connection, wait, time.monotonic_ns())
        channel.is_ready = listener.tls is None
        self._channels[channel.descriptor] = channel
        channel.interest = _READ
        self._epoll.register(channel.descriptor, _READ)
        if self._is_stopping:
            self._close(channel)

    def _on_events(self, channel: KafkaChannel, events: int) -> None:
        if channel.response is not None and events & (_WRITE | _GONE):
            self._write(channel)
            if not channel.is_muted:
                self._read_or_wait(channel)
        elif channel.is_muted:
            # A peer may close a connection that waits for a response. The connection is then closed, unless further
            # requests have arrived.
            if events & _GONE or (not channel.reader.has_ahead and channel.transport.is_at_end()):
                self._close(channel)
            else:
                self._set_interest(channel, 0)
        elif events & _GONE and channel.reader.is_starved:
            self._close(channel)  # otherwise epoll would report this event again and again until memory is freed
        elif not channel.is_ready:
            self._handshake(channel)
        else:
            self._read(channel)

    def _handshake(self, channel: KafkaChannel) -> None:
        channel.is_ready = channel.transport.handshake()
        if channel.is_ready:
            self._read(channel)
        else:
            self._set_interest(channel, _WRITE if channel.transport.wants_write else _READ)

    def _read(self, channel: KafkaChannel) -> None:
        for _ in range(_FRAMES_IN_A_ROW):
            repeated = channel.connection.repeated
            if repeated is not None and repeated.has_runs and not self._read_run(channel, repeated):
                return
            frame = channel.reader.read(channel.transport, self._scratch, self._retry_starved)
            if frame is None:
                self._wait_for_bytes(channel)
                return
            self._dispatch(channel, frame)
            if channel.is_muted:
                return
            if not (channel.reader.has_ahead or channel.transport.has_buffered):
                self._set_interest(channel, _READ)  # a peer rarely sends a request before this response
                return
        self._unfinished[channel] = None

    def _read_run(self, channel: KafkaChannel, repeated: RepeatedRequest) -> bool:
        """The requests use no memory of `FrameMemory`, because their frames are not stored."""
        reader, connection, shared = channel.reader, channel.connection, self._shared
        received_ns = time.monotonic_ns()
        authenticator = connection.authenticator
        if (
            received_ns < self._handles_from_ns
            or shared.metrics.has_log
            or not shared.request_channel.is_empty
            or repeated.api_key not in shared.handled_at_once
            or (authenticator is not None and authenticator.expects_token)
        ):
            return True
        received = self._received
        start = reader.take_ahead(received.memory)
        if start is None:
            return True
        end = start
        if end < len(received.memory):
            count = channel.transport.receive_into(received.memory[end:])
            if count == 0:
                raise PeerClosedError(in_frame=start > 0)
            end += count or 0
        taken = self._answer_runs(channel, repeated, received_ns, end)
        if taken < end:
            reader.keep_ahead(received.memory[taken:end])
        if channel.is_muted:
            return False
        if self._is_stopping:
            self._close(channel)
            return False
        if channel.transport.has_buffered:
            return True
        if taken == end:
            self._set_interest(channel, _READ)
            return False
        if not taken or reader.has_frame_ahead(self._run_frame_bytes):
            return True
        self._wait_for_bytes(channel)
        return False

    def _answer_runs(self, channel: KafkaChannel, repeated: RepeatedRequest, received_ns: int, end: int) -> int:
        taken = 0
        times = RequestTimes(received_ns, received_ns)
        while taken < end:
            run = repeated.answer_run(self._received, taken, end, self._run_frame_bytes)
            if run is None:
                break
            taken += run.size_bytes
            times.responded_ns = times.sending_ns = time.monotonic_ns()
            responses = run.responses
            sent = channel.transport.send(memoryview(responses), more=False)
            times.sent_ns = channel.last_active_ns = time.monotonic_ns()
            channel.frame_started_ns = 0
            self._note_handling((times.responded_ns - times.dequeued_ns) // run.requests, times.sent_ns)
            frame_bytes = run.size_bytes - FRAME_SIZE_BYTES * run.requests
            self._shared.metrics.sent_run(
                self._number,
                repeated.api_key,
                repeated.api_version,
                times,
                run.requests,
                frame_bytes,
                len(responses),
            )
            times.dequeued_ns = times.sent_ns
            if sent < len(responses):
                channel.response = ResponseSend.rest_of(memoryview(responses)[sent:])
                self._set_interest(channel, _WRITE)
                break
        return taken

    def _wait_for_bytes(self, channel: KafkaChannel) -> None:
        reader = channel.reader
        if reader.is_starved:
            self._starved[channel] = None
            channel.frame_started_ns = 0  # the peer is not slow; the time counts from when there is memory
            self._set_interest(channel, 0)
            return
        if reader.is_in_frame and not channel.frame_started_ns:
            channel.frame_started_ns = time.monotonic_ns()
        self._set_interest(channel, _WRITE if channel.transport.wants_write else _READ)

    def _dispatch(self, channel: KafkaChannel, frame: memoryview) -> None:
        now_ns = time.monotonic_ns()
        channel.last_active_ns = now_ns
        channel.frame_started_ns = 0
        channel.is_request_out = True
        received = ReceivedFrame(channel, frame, now_ns)
        shared = self._shared
        api_key = int.from_bytes(frame[:2], "big")
        if len(frame) > _HANDLER_BYTES and api_key != ApiKey.PRODUCE:
            shared.long_work.put(partial(shared.handle, received))
            return
        is_quick = len(frame) <= _AT_ONCE_BYTES and api_key in shared.handled_at_once
        is_at_once = is_quick and now_ns >= self._handles_from_ns
        if not is_at_once or not shared.request_channel.is_empty:
            shared.request_channel.put(received)
            return
        self._current = channel
        writing_ns = self._writing_ns
        try:
            shared.handle(received)
        finally:
            self._current = None
        ended_ns = time.monotonic_ns()
        self._note_handling(ended_ns - now_ns - (self._writing_ns - writing_ns), ended_ns)

    def _note_handling(self, took_ns: int, ended_ns: int) -> None:
        mean_ns = self._mean_handling_ns
        mean_ns += (took_ns - mean_ns) >> _MEAN_SHIFT
        if mean_ns > _SLOW_NS:
            mean_ns = _SLOW_NS
            self._handles_from_ns = ended_ns + _BACK_TO_CHANNEL_NS
        self._mean_handling_ns = mean_ns

    def _respond_and_read(self, channel: KafkaChannel, response: ResponseSend | None, request: Request | None) -> None:
        self._guarded(channel, self._respond, channel, response, request)
        if not channel.is_muted:
            self._guarded(channel, self._read_or_wait, channel)

    def _respond(self, channel: KafkaChannel, response: ResponseSend | None, request: Request | None) -> None:
        channel.reader.free()
        if channel.is_closed:
            if response is not None:
                response.close()
            return
        channel.is_request_out = False
        channel.last_active_ns = time.monotonic_ns()
        if response is None:
            return
        channel.response, channel.request = response, request
        if request is not None:
            request.times.sending_ns = channel.last_active_ns
        self._write(channel)

    def _write(self, channel: KafkaChannel) -> None:
        response, request = channel.response, channel.request
        assert response is not None
        sent_before = response.sent_bytes
        started_ns = time.monotonic_ns()
        self._wait_until_ns = min(started_ns + _LONGEST_WAIT_MS * NS_PER_MS, self._next_scan_ns)
        try:
            is_sent = response.write_to(channel.transport, _SEND_BUDGET_BYTES, channel.wait_until_writable)
        finally:
            ended_ns = time.monotonic_ns()
            self._writing_ns += ended_ns - started_ns
        if response.sent_bytes > sent_before:
            channel.last_active_ns = ended_ns
        if not is_sent:
            if response.memory_bytes > _AT_ONCE_BYTES:
                self._hold_memory(channel, response.memory_bytes)
            self._set_interest(channel, _WRITE)
            return
        if response.memory_bytes > _AT_ONCE_BYTES:
            self._shared.response_memory.release(channel)
        channel.response = channel.request = None
        if request is not None:
            request.times.sent_ns = ended_ns
            self._shared.metrics.sent(self._number, request, response.size_bytes)
        authenticator = channel.connection.authenticator
        if self._is_stopping or (authenticator is not None and authenticator.has_failed):
            self._close(channel)

    def _hold_memory(self, channel: KafkaChannel, size_bytes: int) -> None:
        for overdue in self._shared.response_memory.hold(channel, size_bytes):
            overdue.processor.give_up(overdue)

    def _give_up(self, channel: KafkaChannel) -> None:
        if channel.response is not None and not channel.is_closed:
            self.log.warning(
                f"{channel.connection.peer}: the peer does not read a response of {channel.response.size_bytes} bytes, "
                "and the memory for responses is used up; the connection was closed"
            )
            self._close(channel)

    def _waiting_for(self, descriptor: int) -> Callable[[], bool]:
        """Return a function that waits until this socket accepts bytes, or returns False if there is other work.

        Any event of the epoll descriptor also ends the wait, so no other connection is delayed. If epoll already
        watches this socket for writing, every wait would end at once, so the function returns False without a wait. All
        waits of one send share one time limit.
        """
        watched = select.poll()
        watched.register(descriptor, select.POLLOUT)
        watched.register(self._epoll, select.POLLIN)
        channels, poll, now_ns = self._channels, watched.poll, time.monotonic_ns
        only_writable = [(descriptor, select.POLLOUT)]

        def wait() -> bool:
            if self._inbox or self._unfinished or channels[descriptor].interest & _WRITE:
                return False
            left_ns = self._wait_until_ns - now_ns()
            return left_ns > 0 and poll(left_ns / NS_PER_MS) == only_writable

        return wait

    def _read_or_wait(self, channel: KafkaChannel) -> None:
        """Read immediately if received bytes are buffered, because the socket does not report these bytes."""
        if channel.reader.has_ahead or channel.transport.has_buffered:
            self._read(channel)
        else:
            self._set_interest(channel, _READ)

    def _set_interest(self, channel: KafkaChannel, interest: int) -> None:
        if channel.interest != interest and not channel.is_closed:
            channel.interest = interest
            self._epoll.modify(channel.descriptor, interest)

    def _disconnect(self, channel: KafkaChannel) -> None:
        channel.is_request_out = False
        channel.reader.free()
        self._close(channel)

    def _close(self, channel: KafkaChannel) -> None:
        if channel.is_closed:
            return
        channel.is_closed = True
        del self._channels[channel.descriptor]
        self._starved.pop(channel, None)
        self._epoll.unregister(channel.descriptor)
        channel.transport.close()
        if channel.response is not None:
            channel.response.close()
            self._shared.response_memory.release(channel)
            channel.response = channel.request = None  # a cycle of references would keep their memory for a while
        if not channel.is_request_out:
            channel.reader.close()
        self._shared.quotas.give_back(channel.address)
        self._shared.reserved.refill()

    # --------------------------------------------------------------------------------------------- memory and deadlines
    def _retry_starved(self) -> None:
        """Resume the reads of connections that wait for memory; any thread may call this method."""
        self._post(self._read_starved)

    def _read_starved(self) -> None:
        self._unfinished.update(self._starved)
        self._starved.clear()

    def _close_overdue(self, now_ns: int) -> None:
        for channel in tuple(self._channels.values()):
            reason = self._overdue(channel, now_ns)
            if reason is None:
                continue
            if reason is _IDLE:
                _LOGGER.debug("%s: %s", channel.connection.peer, reason)
            else:
                self.log.warning(f"{channel.connection.peer}: {reason}; the connection was closed")
            self._close(channel)

    def _overdue(self, channel: KafkaChannel, now_ns: int) -> str | None:
        if channel.is_request_out:
            return None
        if channel.response is not None:
            # A consumer may leave a response in its socket while it processes the previous response.
            is_late = now_ns - channel.last_active_ns > self._idle_ns
            return "the peer read no byte of a response for connections.max.idle.ms" if is_late else None
        if channel.frame_started_ns:
            took_ns, reader = now_ns - channel.frame_started_ns, channel.reader
            if reader.taken_bytes and self._shared.memory.is_short:
                arrived_bytes = reader.frame_bytes - reader.missing_bytes
                if took_ns > _SHORT_NS + (arrived_bytes >> _MIB_BITS) * NS_PER_SECOND:
                    return "a request arrives slowly, and others wait for its memory"
            if took_ns > self._receive_ns + (reader.frame_bytes >> _MIB_BITS) * NS_PER_SECOND:
                return "a request did not end in time"
            return None
        if not (channel.is_ready and channel.connection.is_authenticated):
            is_late = now_ns - channel.opened_ns > self._receive_ns
            return "the peer did not authenticate in time" if is_late else None
        return _IDLE if now_ns - channel.last_active_ns > self._idle_ns else None

    # ------------------------------------------------------------------------------------------------------------ stop
    def _stop_reading(self) -> None:
        self._is_stopping = True
        for channel in tuple(self._channels.values()):
            if not channel.is_request_out and channel.response is None:
                self._close(channel)

    def _stop(self, stop_at_ns: int) -> None:
        self._stop_reading()
        self._stop_at_ns = stop_at_ns

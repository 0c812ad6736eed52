"""Metrics of requests, named after Kafka's MBeans (kafka.network:type=RequestMetrics and RequestChannel).

* RequestQueueTimeMs is the time from the last byte of the request to the start of its handler.
* LocalTimeMs is the time in the handler, including the encoding of the response that the handler returns.
* If the request waited for an event, RemoteTimeMs is the time from the end of the handler to the encoded response.
* ResponseQueueTimeMs is the time from the end of the encoding to the first byte of the response.
* ResponseSendTimeMs is the time from the first byte of the response to the last byte.

Invariant: a processor writes only its own counters, so counting needs no lock.

Source: Kafka's RequestMetrics and its documentation, monitoring.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from operator import add
from typing import Any

from sediment.segment_io.protocol.api_keys import ApiKey, request_lines
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.segment_io.protocol.schema import message_schema
from sediment.segment_io.units import NS_PER_MS
from sediment.server.requests import Request, RequestTimes

STAGES = ("RequestQueueTimeMs", "LocalTimeMs", "RemoteTimeMs", "ResponseQueueTimeMs", "ResponseSendTimeMs")
TOTAL_TIME_BUCKETS_MS = (0.1, 0.5, 1.0, 5.0, 10.0, 50.0, 100.0, 500.0, 1000.0, 5000.0)

_BUCKETS_NS = tuple(int(ms * NS_PER_MS) for ms in TOTAL_TIME_BUCKETS_MS)
_NONE = int(ErrorCode.NONE)
_CODE = "error_code"


def request_name(api_key: ApiKey) -> str:
    return request_lines()[api_key].name.removesuffix("Request")


def stage_durations_ns(times: RequestTimes) -> Sequence[int]:
    # `respond` may be called before the handler returns.
    handled_ns = min(times.handled_ns, times.responded_ns) if times.handled_ns else times.responded_ns
    return (
        times.dequeued_ns - times.received_ns,
        handled_ns - times.dequeued_ns,
        times.responded_ns - handled_ns,
        times.sending_ns - times.responded_ns,
        times.sent_ns - times.sending_ns,
    )


@dataclass(slots=True)
class RequestCounters:
    requests: int = 0
    request_bytes: int = 0
    response_bytes: int = 0
    stages_ns: list[int] = field(default_factory=lambda: [0] * len(STAGES))
    total_ns: int = 0
    total_by_bucket: list[int] = field(default_factory=lambda: [0] * (len(_BUCKETS_NS) + 1))

    def add(self, times: RequestTimes, request_bytes: int, response_bytes: int, requests: int = 1) -> None:
        self.requests += requests
        self.request_bytes += request_bytes
        self.response_bytes += response_bytes
        durations_ns = stage_durations_ns(times)
        total_ns = times.sent_ns - times.received_ns
        self.total_by_bucket[bisect_left(_BUCKETS_NS, total_ns)] += requests
        if requests != 1:
            durations_ns = [duration_ns * requests for duration_ns in durations_ns]
            total_ns *= requests
        self.stages_ns = list(map(add, self.stages_ns, durations_ns))
        self.total_ns += total_ns

    def merge(self, other: RequestCounters) -> None:
        self.requests += other.requests
        self.request_bytes += other.request_bytes
        self.response_bytes += other.response_bytes
        self.total_ns += other.total_ns
        self.stages_ns = [mine + theirs for mine, theirs in zip(self.stages_ns, other.stages_ns, strict=True)]
        self.total_by_bucket = [
            mine + theirs for mine, theirs in zip(self.total_by_bucket, other.total_by_bucket, strict=True)
        ]


class RequestMetrics:
    def __init__(self, processors: int, *, log: Callable[[Request, int], None] | None = None) -> None:
        """Create counters at zero; `log` is called with each finished request and the size of its response."""
        self._by_processor: list[dict[tuple[ApiKey, int], RequestCounters]] = [{} for _ in range(processors)]
        self._errors: Counter[tuple[ApiKey, int]] = Counter()
        self._connections_refused = 0
        self._log = log
        self._guard = threading.Lock()

    @property
    def has_log(self) -> bool:
        return self._log is not None

    @property
    def connections_refused(self) -> int:
        return self._connections_refused

    def sent(self, processor: int, request: Request, response_bytes: int) -> None:
        found = self._counters(processor, request.api_key, request.api_version)
        found.add(request.times, request.size_bytes, response_bytes)
        if self._log is not None:
            self._log(request, response_bytes)

    def sent_run(
        self,
        processor: int,
        api_key: ApiKey,
        api_version: int,
        times: RequestTimes,
        requests: int,
        request_bytes: int,
        response_bytes: int,
    ) -> None:
        """Count several requests that were answered together; the caller must not call this if there is a `log`."""
        self._counters(processor, api_key, api_version).add(times, request_bytes, response_bytes, requests)

    def _counters(self, processor: int, api_key: ApiKey, api_version: int) -> RequestCounters:
        counters = self._by_processor[processor]
        key = api_key, api_version
        found = counters.get(key)
        if found is None:
            found = counters[key] = RequestCounters()
        return found

    def count_errors(self, api_key: ApiKey, response: Any) -> None:
        found = list(_error_codes(response, _code_plan(type(response).__name__)))
        if found:
            with self._guard:
                self._errors.update((api_key, code) for code in found)

    def connection_refused(self) -> None:
        self._connections_refused += 1

    def by_request(self) -> dict[tuple[ApiKey, int], RequestCounters]:
        merged: dict[tuple[ApiKey, int], RequestCounters] = {}
        for counters in self._by_processor:
            for key, found in tuple(counters.items()):
                merged.setdefault(key, RequestCounters()).merge(found)
        return merged

    def errors(self) -> dict[tuple[ApiKey, int], int]:
        with self._guard:
            return dict(self._errors)


@dataclass(frozen=True, slots=True)
class _CodePlan:
    has_own: bool
    nested: tuple[tuple[str, bool, _CodePlan], ...]


@cache
def _code_plan(message_name: str) -> _CodePlan:
    schema = message_schema(message_name)

    def plan(fields: Iterable[Any]) -> _CodePlan:
        nested = [
            (each.attribute, each.is_array, plan(schema.structures[each.type]))
            for each in fields
            if each.type in schema.structures
        ]
        has_own = any(each.attribute == _CODE for each in fields)
        return _CodePlan(has_own, tuple(each for each in nested if each[2].has_own or each[2].nested))

    return plan(schema.fields)


def _error_codes(structure: Any, plan: _CodePlan) -> Iterator[int]:
    if plan.has_own and structure.error_code != _NONE:
        yield structure.error_code
    for attribute, is_array, inner in plan.nested:
        value = getattr(structure, attribute)
        if value is not None:
            for each in value if is_array else (value,):
                yield from _error_codes(each, inner)

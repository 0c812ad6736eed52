"""Metrics of the server as Prometheus text.

Names are Kafka's MBean names in lower case: kafka.network:type=RequestMetrics,name=TotalTimeMs becomes
`kafka_network_request_metrics_total_time_ms`.  Times are in milliseconds, as in Kafka.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.segment_io.units import NS_PER_MS
from sediment.server.request_metrics import STAGES, TOTAL_TIME_BUCKETS_MS, RequestMetrics, request_name

if TYPE_CHECKING:
    from prometheus_client import Metric

    from sediment.server.network.socket_server import SocketServer

_REQUESTS = "kafka_network_request_metrics"
_LABELS = ("request", "version")
_CAPITAL = re.compile(r"(?<!^)(?=[A-Z])")


def metrics_text(metrics: RequestMetrics, sockets: SocketServer) -> bytes:
    """Return the current metrics.

    Source: Prometheus' exposition format 0.0.4; Kafka's documentation, monitoring.
    """
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.registry import Collector

    class Current(Collector):
        def collect(self) -> Iterator[Metric]:
            yield from _request_metrics(metrics)
            yield from _socket_metrics(metrics, sockets)

    registry = CollectorRegistry()
    registry.register(Current())
    text: bytes = generate_latest(registry)
    return text


def _request_metrics(metrics: RequestMetrics) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, SummaryMetricFamily

    by_request = {
        (request_name(key), str(version)): found for (key, version), found in sorted(metrics.by_request().items())
    }
    requests = CounterMetricFamily(f"{_REQUESTS}_requests", "Requests (RequestsPerSec).", labels=_LABELS)
    received = CounterMetricFamily(f"{_REQUESTS}_request_bytes", "Bytes of requests.", labels=_LABELS)
    sent = CounterMetricFamily(f"{_REQUESTS}_response_bytes", "Bytes of responses.", labels=_LABELS)
    total = HistogramMetricFamily(
        f"{_REQUESTS}_total_time_ms", "Time from the request to the end of its response.", labels=_LABELS
    )
    stages = [
        SummaryMetricFamily(f"{_REQUESTS}_{_CAPITAL.sub('_', stage).lower()}", f"{stage} of Kafka.", labels=_LABELS)
        for stage in STAGES
    ]
    for labels, found in by_request.items():
        requests.add_metric(labels, found.requests)
        received.add_metric(labels, found.request_bytes)
        sent.add_metric(labels, found.response_bytes)
        reached, buckets = 0, []
        for bound, count in zip((*TOTAL_TIME_BUCKETS_MS, "+Inf"), found.total_by_bucket, strict=True):
            reached += count
            buckets.append((str(bound), float(reached)))
        total.add_metric(labels, buckets, sum_value=found.total_ns / NS_PER_MS)
        for stage, stage_ns in zip(stages, found.stages_ns, strict=True):
            stage.add_metric(labels, count_value=found.requests, sum_value=stage_ns / NS_PER_MS)
    errors = CounterMetricFamily(
        f"{_REQUESTS}_errors", "Error codes in responses (ErrorsPerSec).", labels=("request", "error")
    )
    for (key, code), count in sorted(metrics.errors().items()):
        errors.add_metric((request_name(key), ErrorCode(code).name), count)
    yield from (requests, errors, received, sent, total, *stages)


def _socket_metrics(metrics: RequestMetrics, sockets: SocketServer) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    yield GaugeMetricFamily(
        "kafka_network_request_channel_request_queue_size",
        "Requests that wait for a handler.",
        value=len(sockets.request_channel),
    )
    yield GaugeMetricFamily(
        "kafka_network_socket_server_memory_pool_available",
        "Free bytes of queued.max.request.bytes.",
        value=sockets.memory.free_bytes,
    )
    yield GaugeMetricFamily(
        "kafka_network_socket_server_connection_count", "Open connections.", value=sockets.quotas.total
    )
    yield CounterMetricFamily(
        "kafka_network_socket_server_connections_refused",
        "Connections above max.connections or max.connections.per.ip.",
        value=metrics.connections_refused,
    )

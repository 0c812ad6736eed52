"""Metrics of the server as Prometheus text.

The names are Kafka's MBean names in lower case. For example, kafka.network:type=RequestMetrics,name=TotalTimeMs becomes
`kafka_network_request_metrics_total_time_ms`.
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

    from sediment.server.log_metrics import LogMetrics
    from sediment.server.network.socket_server import SocketServer

_REQUESTS = "kafka_network_request_metrics"
_LABELS = ("request", "version")
_CAPITAL = re.compile(r"(?<!^)(?=[A-Z])")


def server_metrics_text(metrics: RequestMetrics, sockets: SocketServer, logs: LogMetrics | None = None) -> bytes:
    """Source: Prometheus' exposition format 0.0.4; Kafka's documentation, monitoring."""
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.registry import Collector

    class Current(Collector):
        def collect(self) -> Iterator[Metric]:
            yield from _request_metrics(metrics)
            yield from _socket_metrics(metrics, sockets)
            if logs is not None:
                yield from _cleaner_metrics(logs)
                yield from _log_metrics(logs)

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


def _cleaner_metrics(logs: LogMetrics) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    for name, text, value in (
        ("cleaner_manager_max_dirty_percent", "Dirty ratio of the filthiest log.", logs.max_dirty_percent),
        (
            "cleaner_manager_time_since_last_run_ms",
            "Time since the cleaner last searched for a log to clean.",
            logs.time_since_last_run_ms,
        ),
        ("cleaner_recopy_percent", "Percentage of bytes that the last cleaning kept.", logs.recopy_percent),
        ("cleaner_max_clean_time_secs", "Duration of the last cleaning.", logs.clean_time_seconds),
    ):
        yield GaugeMetricFamily(f"kafka_log_{name}", text, value=value)
    label = ("log_dir",)
    partitions = GaugeMetricFamily(
        "kafka_log_cleaner_manager_uncleanable_partitions_count",
        "Partitions that the cleaner skips after an error.",
        labels=label,
    )
    size = GaugeMetricFamily(
        "kafka_log_cleaner_manager_uncleanable_bytes",
        "Bytes of the partitions that the cleaner skips after an error.",
        labels=label,
    )
    offline = GaugeMetricFamily(
        "kafka_log_manager_log_directory_offline", "1 for a log directory that has failed.", labels=label
    )
    for directory in logs.directories:
        labels = (str(directory.path),)
        partitions.add_metric(labels, directory.uncleanable_partitions)
        size.add_metric(labels, directory.uncleanable_bytes)
        offline.add_metric(labels, directory.is_offline)
    yield from (partitions, size, offline)


def _log_metrics(logs: LogMetrics) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    for name, text, field in (
        ("size", "Bytes of the segments.", "size_bytes"),
        ("num_log_segments", "Number of segments.", "segments"),
        ("log_start_offset", "First offset; retention raises it.", "start_offset"),
        ("log_end_offset", "Next offset.", "end_offset"),
    ):
        family = GaugeMetricFamily(f"kafka_log_{name}", text, labels=("topic", "partition"))
        for each in logs.partitions:
            family.add_metric((each.partition.topic, str(each.partition.partition)), getattr(each, field))
        yield family

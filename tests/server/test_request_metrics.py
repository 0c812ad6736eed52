"""Metrics and the request log of a listener, from real requests."""

from __future__ import annotations

import json
import time

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.api_keys import ApiKey
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.metrics_text import server_metrics_text
from sediment.server.request_metrics import stage_durations_ns
from sediment.server.requests import Request, RequestTimes
from tests.server.network.listeners import Running, api_versions, listener
from tests.waiting import wait_until

MS = 1_000_000
SLOW_MS = 30


def slow(request: Request) -> m.HeartbeatResponse:
    time.sleep(SLOW_MS / 1000)
    return m.HeartbeatResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID)


def heartbeat(client, count: int = 1) -> None:
    for _ in range(count):
        client.ask(m.HeartbeatRequest(group_id="secret-group", member_id="secret-member"), 4)


def samples(running: Running) -> dict[tuple[str, ...], float]:
    """Return the value of each sample by its name and the values of its labels, in the order of the labels' names."""
    found = {}
    for family in text_string_to_metric_families(server_metrics_text(running.metrics, running.server).decode()):
        for sample in family.samples:
            found[(sample.name, *(sample.labels[label] for label in sorted(sample.labels)))] = sample.value
    return found


def test_requests_are_counted_by_api_and_version_with_their_bytes():
    with listener({ApiKey.HEARTBEAT: slow}) as running, running.connect() as client:
        for version in (0, 3, 3, 4):
            client.ask(api_versions(), version)
        heartbeat(client)
        wait_until(lambda: (ApiKey.HEARTBEAT, 4) in running.metrics.by_request())
        found = samples(running)
    name = "kafka_network_request_metrics"
    assert found[f"{name}_requests_total", "ApiVersions", "3"] == 2
    assert found[f"{name}_requests_total", "ApiVersions", "0"] == 1
    assert found[f"{name}_requests_total", "Heartbeat", "4"] == 1
    assert found[f"{name}_request_bytes_total", "ApiVersions", "0"] == 14
    assert found[f"{name}_response_bytes_total", "Heartbeat", "4"] == 4 + 5 + 4 + 2 + 1
    assert found["kafka_network_socket_server_connection_count",] == 1
    assert found["kafka_network_socket_server_memory_pool_available",] == 268_435_456
    assert found["kafka_network_request_channel_request_queue_size",] == 0


def test_times_are_counted_by_stage_and_in_a_histogram():
    with listener({ApiKey.HEARTBEAT: slow}) as running, running.connect() as client:
        heartbeat(client, 3)
        wait_until(lambda: running.metrics.by_request()[ApiKey.HEARTBEAT, 4].requests == 3)
        found = samples(running)
    name, labels = "kafka_network_request_metrics", ("Heartbeat", "4")
    assert found[f"{name}_local_time_ms_sum", *labels] >= 3 * SLOW_MS
    assert found[f"{name}_local_time_ms_count", *labels] == 3
    stages = ("request_queue", "local", "remote", "response_queue", "response_send")
    total_ms = sum(found[f"{name}_{stage}_time_ms_sum", *labels] for stage in stages)
    assert total_ms == pytest.approx(found[f"{name}_total_time_ms_sum", *labels])
    assert found[f"{name}_total_time_ms_bucket", "10.0", *labels] == 0
    assert found[f"{name}_total_time_ms_bucket", "+Inf", *labels] == 3
    assert found[f"{name}_total_time_ms_count", *labels] == 3


@pytest.mark.parametrize(
    ("times", "stages"),
    [
        (RequestTimes(0, 1, 3, 3, 5, 8), (1, 2, 0, 2, 3)),
        (RequestTimes(0, 1, 3, 100, 101, 102), (1, 2, 97, 1, 1)),  # answered later, by an event
        (RequestTimes(0, 1, 0, 3, 4, 5), (1, 2, 0, 1, 1)),  # answered by the handler before it returned
        (RequestTimes(0, 1, 9, 3, 4, 5), (1, 2, 0, 1, 1)),
    ],
)
def test_the_stages_of_a_request_add_up(times, stages):
    assert stage_durations_ns(times) == stages
    assert sum(stages) == times.sent_ns


def test_error_codes_are_counted_at_any_depth_of_a_response():
    response = m.FetchResponse
    partitions = [
        response.PartitionData(partition_index=0, error_code=ErrorCode.OFFSET_OUT_OF_RANGE),
        response.PartitionData(partition_index=1),
        response.PartitionData(partition_index=2, error_code=ErrorCode.OFFSET_OUT_OF_RANGE),
    ]
    answer = response(
        error_code=ErrorCode.UNKNOWN_TOPIC_ID,
        responses=[response.FetchableTopicResponse(topic="t", partitions=partitions)],
    )
    handlers = {ApiKey.FETCH: lambda _: answer, ApiKey.HEARTBEAT: slow}
    with listener(handlers) as running, running.connect() as client:
        client.ask(m.FetchRequest(), 12)
        heartbeat(client)
        found = samples(running)
    name = "kafka_network_request_metrics_errors_total"
    assert {key: value for key, value in found.items() if key[0] == name} == {
        (name, "OFFSET_OUT_OF_RANGE", "Fetch"): 2,
        (name, "UNKNOWN_TOPIC_ID", "Fetch"): 1,
        (name, "UNKNOWN_MEMBER_ID", "Heartbeat"): 1,
    }


def test_the_request_log_has_a_line_for_each_request_and_none_of_its_content(tmp_path):
    file = tmp_path / "requests.json"
    with listener({ApiKey.HEARTBEAT: slow}, request_log=file) as running, running.connect() as client:
        client.ask(api_versions(), 3)
        heartbeat(client)
        peer = f"127.0.0.1:{client.socket.getsockname()[1]}"
        wait_until(lambda: len(file.read_text().splitlines()) == 2)
        file.rename(tmp_path / "requests.1")
        heartbeat(client)
        wait_until(lambda: file.exists() and len(file.read_text().splitlines()) == 1)
    text = (tmp_path / "requests.1").read_text()
    first, second = map(json.loads, text.splitlines())
    assert (first["request"], first["version"], first["correlation_id"]) == ("ApiVersions", 3, 0)
    assert (second["request"], second["client_id"], second["client_software"]) == ("Heartbeat", "test", "test-1")
    assert second["local_ms"] >= SLOW_MS and second["total_ms"] >= second["local_ms"]
    assert f"-{peer}-" in second["connection"]
    assert second["principal"] == "User:ANONYMOUS"
    assert "secret" not in text


def test_a_request_log_on_a_full_disk_loses_lines_and_nothing_else(caplog):
    from pathlib import Path

    with listener(request_log=Path("/dev/full")) as running, running.connect() as client:
        for _ in range(3):
            assert client.ask(api_versions(), 3).error_code == 0
    assert "the request log cannot be written: " in caplog.text

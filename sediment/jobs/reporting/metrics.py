"""Metrics of a run, from its JSON report, as Prometheus text for the textfile collector of the node exporter.

If Kafka has the same metric, the name follows Kafka's MBeans (kafka.log:type=LogCleaner and LogCleanerManager); other
names begin with `sediment_run_`.  A metrics file is written once, but scraped for hours.  Therefore, the file contains
points in time, from which a query computes ages.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sediment.jobs.reporting.statuses import BAD_STATUSES

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

LAST_SUCCESS = "sediment_run_last_success_timestamp_seconds"

_CLEANER = "kafka_log_cleaner"
_MANAGER = "kafka_log_cleaner_manager"
_RUN = "sediment_run"


def metrics_text(document: Mapping[str, Any], *, finished_s: float, last_success_s: float | None) -> bytes:
    """Return the metrics of the run whose JSON report is `document`; if it has an `error`, the run gave no result.

    `finished_s` and `last_success_s` are seconds since the epoch.  `last_success_s` is the end of the last successful
    run before this run; it is None if this time is unknown.

    Source: Kafka's documentation, monitoring (LogCleaner, LogCleanerManager); the format is Prometheus'
    exposition format 0.0.4.
    """
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry()
    gauges = _Gauges(registry, str(document["command"]))
    partitions: Sequence[Mapping[str, Any]] = document.get("partitions", ())
    _run_gauges(gauges, document, partitions, finished_s, last_success_s)
    _cleaner_gauges(gauges, partitions)
    text: bytes = generate_latest(registry)
    return text


def last_success(path: Path, command: str) -> float | None:
    from prometheus_client.parser import text_string_to_metric_families

    with contextlib.suppress(OSError, ValueError):
        if not path.is_file():
            return None
        for family in text_string_to_metric_families(path.read_text(encoding="utf-8")):
            for sample in family.samples:
                if sample.name == LAST_SUCCESS and sample.labels.get("command") == command:
                    return float(sample.value)
    return None


class _Gauges:
    def __init__(self, registry: CollectorRegistry, command: str) -> None:
        self._registry = registry
        self._command = command

    def set(self, name: str, text: str, value: float) -> None:
        self.set_each(name, text, (), {(): value})

    def set_each(self, name: str, text: str, labels: Sequence[str], values: Mapping[tuple[str, ...], float]) -> None:
        from prometheus_client import Gauge

        if values:
            gauge = Gauge(name, text, ["command", *labels], registry=self._registry)
            for combination, value in values.items():
                gauge.labels(self._command, *combination).set(value)


def _run_gauges(
    gauges: _Gauges,
    document: Mapping[str, Any],
    partitions: Sequence[Mapping[str, Any]],
    finished_s: float,
    last_success_s: float | None,
) -> None:
    failed = "error" in document or any(partition["status"] in BAD_STATUSES for partition in partitions)
    success_s = last_success_s if failed else finished_s
    gauges.set(f"{_RUN}_last_timestamp_seconds", "End of the run.", finished_s)
    if success_s is not None:
        gauges.set(LAST_SUCCESS, "End of the last run without a failed or quarantined partition.", success_s)
    gauges.set(f"{_RUN}_success", "1 if the run ended without a failed or quarantined partition.", int(not failed))
    gauges.set(f"{_RUN}_dry_run", "1 for a dry run, which changes nothing.", int(bool(document.get("dry_run"))))
    if "seconds" in document:
        gauges.set(f"{_RUN}_seconds", "Wall time of the run.", document["seconds"])
    stages: dict[tuple[str, ...], float] = {
        (str(stage),): float(seconds) for stage, seconds in document.get("seconds_by_stage", {}).items()
    }
    gauges.set_each(f"{_RUN}_stage_seconds", "Time by stage; stages of tasks are summed over tasks.", ["stage"], stages)
    counts: dict[tuple[str, ...], float] = {}
    for partition in partitions:
        key = (_directory(partition), str(partition["status"]))
        counts[key] = counts.get(key, 0) + 1
    gauges.set_each(f"{_RUN}_partitions", "Partitions by status.", ["log_dir", "status"], counts)
    reasoned = [partition for partition in partitions if partition.get("reason_code")]
    numbers: dict[tuple[str, ...], float] = {}
    sizes: dict[tuple[str, ...], float] = {}
    for partition in reasoned:
        reason = (_directory(partition), str(partition["status"]), str(partition["reason_code"]))
        numbers[reason] = numbers.get(reason, 0) + 1
        sizes[reason] = sizes.get(reason, 0) + (partition.get("bytes_before") or 0)
    labels = ["log_dir", "status", "reason"]
    gauges.set_each(f"{_RUN}_partitions_by_reason", "Partitions with a reason code.", labels, numbers)
    gauges.set_each(f"{_RUN}_bytes_by_reason", "Bytes of the partitions before the run.", labels, sizes)
    for name, text in (
        ("bytes_before", "Bytes of segments before the run."),
        ("bytes_after", "Bytes of segments after the run, or after the run that a dry run plans."),
        ("messages_read", "Records read."),
        ("messages_written", "Records written."),
        ("records_scanned", "Records searched for records to erase."),
        ("records_erased", "Records erased."),
        ("records_without_key", "Records without a key that were dropped, or that kept a partition from cleaning."),
    ):
        gauges.set_each(f"{_RUN}_{name}", text, ["log_dir"], _sums(partitions, name))
    gauges.set_each(f"{_RUN}_messages_dropped", "Records read, but not written.", ["log_dir"], _dropped(partitions))


def _cleaner_gauges(gauges: _Gauges, partitions: Sequence[Mapping[str, Any]]) -> None:
    ratios = [100 * partition["dirty_ratio"] for partition in partitions if partition.get("dirty_ratio") is not None]
    if not any("dirty_ratio" in partition for partition in partitions):
        return
    gauges.set(
        f"{_MANAGER}_max_dirty_percent", "The dirty ratio of the filthiest log before the run.", max(ratios, default=0)
    )
    directories = {(_directory(partition),) for partition in partitions}
    bad = [partition for partition in partitions if partition["status"] in BAD_STATUSES]
    none = dict.fromkeys(sorted(directories), 0.0)
    counts: dict[tuple[str, ...], float] = {
        key: float(sum(_directory(partition) == key[0] for partition in bad)) for key in none
    }
    gauges.set_each(
        f"{_MANAGER}_uncleanable_partitions_count", "Partitions that failed or are quarantined.", ["log_dir"], counts
    )
    gauges.set_each(
        f"{_MANAGER}_uncleanable_bytes", "Bytes of these partitions.", ["log_dir"], none | _sums(bad, "bytes_before")
    )
    done = [partition for partition in partitions if partition["status"] == "compacted"]
    before = sum(partition["bytes_before"] for partition in done)
    if before:
        after = sum(partition["bytes_after"] for partition in done)
        gauges.set(
            f"{_CLEANER}_recopy_percent",
            "Bytes of the compacted logs after the run, in percent of their bytes before the run.",
            100 * after / before,
        )
    times = [partition.get("seconds_by_stage", {}).get("clean", 0.0) for partition in done]
    gauges.set(f"{_CLEANER}_max_clean_time_secs", "The longest cleaning of one partition.", max(times, default=0.0))
    gauges.set_each(
        f"{_CLEANER}_tombstones_waiting",
        "Tombstones in the cleaned part that wait for their delete horizon.",
        ["log_dir"],
        _sums(done, "tombstones_waiting"),
    )
    horizons = [p["first_delete_horizon_ms"] for p in done if p.get("first_delete_horizon_ms") is not None]
    if horizons:
        gauges.set(
            f"{_CLEANER}_next_tombstones_timestamp_seconds",
            "Earliest time at which cleaning drops waiting tombstones.",
            min(horizons) / 1000,
        )


def _dropped(partitions: Iterable[Mapping[str, Any]]) -> dict[tuple[str, ...], float]:
    counted = (
        {**partition, "dropped": partition["messages_read"] - partition["messages_written"]}
        for partition in partitions
        if isinstance(partition.get("messages_read"), int) and isinstance(partition.get("messages_written"), int)
    )
    return _sums(counted, "dropped")


def _directory(partition: Mapping[str, Any]) -> str:
    return str(partition.get("log_dir") or "")


def _sums(partitions: Iterable[Mapping[str, Any]], name: str) -> dict[tuple[str, ...], float]:
    sums: dict[tuple[str, ...], float] = {}
    for partition in partitions:
        value = partition.get(name)
        if isinstance(value, int):
            key = (_directory(partition),)
            sums[key] = sums.get(key, 0.0) + value
    return sums

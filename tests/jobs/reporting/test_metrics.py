"""The metrics of a run, read back by Prometheus' own parser."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from sediment.jobs.reporting.metrics import last_success, metrics_text

NOW_MS = 1_700_000_000_000


def partition(name="a-0", **fields):
    return {
        "partition": name,
        "log_dir": "/logs",
        "status": "compacted",
        "bytes_before": 1000,
        "bytes_after": 400,
        **fields,
    }


def document(*partitions, **fields):
    return {"command": "compact", "now_ms": NOW_MS, "seconds": 2.5, "partitions": list(partitions), **fields}


def samples(report, finished_s=100.0, last_success_s=None):
    text = metrics_text(report, finished_s=finished_s, last_success_s=last_success_s).decode()
    return {
        (sample.name, *sorted(value for key, value in sample.labels.items() if key != "command")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_run_says_what_it_did_in_numbers():
    found = samples(
        document(
            partition(
                dirty_ratio=0.75,
                messages_read=50,
                messages_written=20,
                records_without_key=10,
                tombstones_waiting=3,
                first_delete_horizon_ms=NOW_MS,
                seconds_by_stage={"clean": 1.25, "view": 0.5},
            ),
            partition("b-0", dirty_ratio=0.5, seconds_by_stage={"clean": 0.5}),
            partition("c-0", status="quarantined", dirty_ratio=None),
            partition("d-0", status="skipped", log_dir='/other "dir"\\n', bytes_after=1000),
            seconds_by_stage={"list": 0.1, "clean": 1.75},
        )
    )
    assert found[("kafka_log_cleaner_manager_max_dirty_percent",)] == 75
    assert found[("kafka_log_cleaner_manager_uncleanable_partitions_count", "/logs")] == 1
    assert found[("kafka_log_cleaner_manager_uncleanable_partitions_count", '/other "dir"\\n')] == 0
    assert found[("kafka_log_cleaner_manager_uncleanable_bytes", "/logs")] == 1000
    assert found[("kafka_log_cleaner_recopy_percent",)] == 40
    assert found[("kafka_log_cleaner_max_clean_time_secs",)] == 1.25
    assert found[("kafka_log_cleaner_tombstones_waiting", "/logs")] == 3
    assert found[("kafka_log_cleaner_next_tombstones_timestamp_seconds",)] == NOW_MS / 1000
    assert found[("sediment_run_records_without_key", "/logs")] == 10
    assert found[("sediment_run_messages_dropped", "/logs")] == 30
    assert found[("sediment_run_bytes_before", "/logs")] == 3000
    assert found[("sediment_run_bytes_after", "/logs")] == 1200
    assert found[("sediment_run_partitions", "/logs", "compacted")] == 2
    assert found[("sediment_run_stage_seconds", "clean")] == 1.75
    assert found[("sediment_run_seconds",)] == 2.5
    assert found[("sediment_run_success",)] == 0


def test_a_run_without_failures_is_the_last_success():
    found = samples(document(partition()), finished_s=123.0, last_success_s=7.0)
    assert found[("sediment_run_success",)] == 1
    assert found[("sediment_run_last_success_timestamp_seconds",)] == 123.0


def test_a_failed_run_keeps_the_moment_of_the_last_success():
    found = samples(document(partition(status="failed")), finished_s=123.0, last_success_s=7.0)
    assert found[("sediment_run_last_success_timestamp_seconds",)] == 7.0
    assert found[("sediment_run_last_timestamp_seconds",)] == 123.0


def test_a_run_that_ended_without_a_result_has_no_success():
    found = samples({"command": "compact", "now_ms": NOW_MS, "error": "the directory is in use"})
    assert found[("sediment_run_success",)] == 0
    assert ("sediment_run_last_success_timestamp_seconds",) not in found


def test_the_last_success_is_read_from_the_file_of_the_same_command(tmp_path):
    file = tmp_path / "sediment.prom"
    assert last_success(file, "compact") is None
    file.write_bytes(metrics_text(document(partition()), finished_s=55.0, last_success_s=None))
    assert last_success(file, "compact") == 55.0
    assert last_success(file, "expire") is None
    file.write_text("this { is no\nmetric 1 1 1 1")
    assert last_success(file, "compact") is None


def test_an_erasure_tells_the_records_that_it_searched_and_erased():
    found = samples(document({"partition": "t-0", "status": "erased", "records_scanned": 9, "records_erased": 2}))
    assert found[("sediment_run_records_scanned", "")] == 9
    assert found[("sediment_run_records_erased", "")] == 2
    assert ("sediment_run_messages_dropped", "") not in found


def test_commands_that_clean_nothing_have_no_cleaner_metrics():
    found = samples(document({"partition": "t-0", "status": "correct", "bytes_before": 1, "bytes_after": 1}))
    assert not [name for name, *_ in found if name.startswith("kafka_log_cleaner")]
    assert found[("sediment_run_partitions", "", "correct")] == 1

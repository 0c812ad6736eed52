"""The table for people if stdout is not a terminal."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from sediment.jobs.compact import print_report
from sediment.jobs.reporting.run_report import (
    COMPACTED,
    FAILED,
    SKIPPED,
    TOMBSTONES_KEPT,
    CompactionRunReport,
    PartitionReport,
    StripSegment,
    result_console,
)
from sediment.jobs.reporting.screen import Screen, reason_lines
from sediment.jobs.verifying.report import VerificationReport

LONG = "a_topic_whose_name_is_about_as_long_as_kafka_lets_anybody_make_one_without_being_asked_why_and_then_some-0"


def _print_one() -> None:
    _print(PartitionReport(LONG, "/logs", COMPACTED, None, None))


def _print(*partitions: PartitionReport) -> None:
    report = CompactionRunReport(
        run_id="run", command="compact", now_ms=0, seconds=0.0, dry_run=False, partitions=partitions
    )
    print_report(report, Screen(result_console()))


def _skipped(number: int, code: str, reason: str) -> PartitionReport:
    return PartitionReport(f"t-{number}", "/logs", SKIPPED, code, reason)


def test_names_are_not_folded_if_stdout_is_not_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    _print_one()
    lines = capsys.readouterr().out.splitlines()
    assert sum(LONG in line for line in lines) == 1
    assert max(map(len, lines)) < 2 * len(LONG)


def test_each_reason_for_skipped_partitions_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    policies = [_skipped(number, "not-compacted", "cleanup.policy is delete") for number in range(14)]
    _print(*policies, _skipped(20, "dirty-ratio", "the dirty ratio 0.300 is not above 0.5"))
    assert capsys.readouterr().out.splitlines()[-3:-1] == [
        "not-compacted: 14 partitions with 0 B; for example t-0: cleanup.policy is delete",
        "t-20: the dirty ratio 0.300 is not above 0.5",
    ]


def test_many_reasons_do_not_hide_what_failed(capsys: pytest.CaptureFixture[str]) -> None:
    lagging = [_skipped(number, "min-compaction-lag", f"until {number}") for number in range(40)]
    _print(*lagging, PartitionReport("u-0", "/logs", FAILED, "no-space", "the disk is full"))
    assert capsys.readouterr().out.splitlines()[-3:] == [
        "u-0: the disk is full",
        "min-compaction-lag: 40 partitions with 0 B; for example t-0: until 0",
        "40 skipped, 1 failed in 0.0 s (run run)",
    ]


def test_partitions_that_a_limit_left_are_named_once(capsys: pytest.CaptureFixture[str]) -> None:
    _print(*(_skipped(number, "max-bytes", f"cleaning it reads {number} bytes") for number in range(3)))
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2] == "not done because of --max-bytes: t-0, t-1, t-2"


def test_partitions_that_keep_tombstones_for_an_unstated_retention_are_named_in_one_sentence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    kept = [
        PartitionReport(f"t-{number}", "/logs", COMPACTED, TOMBSTONES_KEPT, "one batch", keeps_tombstones=True)
        for number in range(12)
    ]
    _print(*kept, PartitionReport("u-0", "/logs", COMPACTED, None, None))
    (sentence,) = [line for line in capsys.readouterr().out.splitlines() if "delete.retention.ms" in line]
    assert sentence.startswith(", ".join(f"t-{number}" for number in range(10)) + " and 2 more (12 partitions): ")


def test_skipped_partitions_are_counted_by_reason_with_the_sentence_of_the_largest() -> None:
    def skipped(partition: str, code: str, reason: str, size_bytes: int) -> PartitionReport:
        return PartitionReport(partition, "/logs", SKIPPED, code, reason, bytes_before=size_bytes)

    partitions = [
        skipped("a-0", "nothing-to-delete", "segment 0 stays", 10),
        skipped("b-0", "policy-unknown", "cleanup.policy is not stated; give --set b:cleanup.policy=…", 1000),
        skipped("c-0", "policy-unknown", "cleanup.policy is not stated; give --set c:cleanup.policy=…", 2000),
        replace(skipped("d-0", "failed", "", 5), status="failed"),
    ]
    assert reason_lines(partition for partition in partitions if partition.status == SKIPPED) == [
        "policy-unknown: 2 partitions with 3.0 kB; for example c-0: cleanup.policy is not stated; give "
        "--set c:cleanup.policy=…",
        "a-0: segment 0 stays",
    ]


@pytest.mark.parametrize("columns", ["0", "1", "-3", "19"])
def test_a_width_that_shows_nothing_counts_as_not_given(monkeypatch, capsys, columns):
    monkeypatch.setenv("COLUMNS", columns)
    _print(_skipped(0, "not-compacted", "cleanup.policy is delete"))
    assert "skipped: not-compacted" in capsys.readouterr().out


def test_the_report_is_written_partition_by_partition_as_one_object() -> None:
    partitions = tuple(
        replace(_skipped(number, "x", 'a "reason" with ü'), strip_before=(StripSegment(0, 5, "clean"),))
        for number in range(3)
    )
    for some in (partitions, partitions[:1], ()):
        report = CompactionRunReport(
            run_id="run", command="compact", now_ms=1, seconds=0.12345, dry_run=False, partitions=some, before="/b"
        )
        text = report.to_json()
        document = json.loads(text)
        assert text == json.dumps(document)
        assert len(list(report.json_parts())) == len(some) + 2
        assert [*document][:6] == ["schema", "run_id", "command", "now_ms", "seconds", "dry_run"]
        assert [*document][6:] == ["partitions", "originals", "catalogue", "before", "seconds_by_stage"]
        assert (document["seconds"], document["before"], len(document["partitions"])) == (0.123, "/b", len(some))
        head, *rows = map(json.loads, report.json_lines())
        assert (head, rows) == (
            {name: document[name] for name in document if name != "partitions"},
            document["partitions"],
        )


def test_a_report_without_later_fields_ends_with_its_partitions() -> None:
    report = VerificationReport(run_id="r", command="verify", now_ms=1, seconds=1.0, partitions=())
    assert report.to_json() == json.dumps(json.loads(report.to_json()))
    assert report.to_json().endswith('"partitions": []}')

"""Outcome of a command: its JSON report, converted to a summary for XCom and to an error text.

Under spark-submit the report and the log lines arrive in one stream.  With `--json --log-format json` the report and
each log line are JSON objects on separate lines.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

BAD_STATUSES = frozenset({"failed", "quarantined", "wrong", "refused"})
"""Statuses of a partition that make a command fail."""

UNSTATED_CODES = frozenset({"policy-unknown", "retention-unknown", "tombstones-kept"})
"""Reason codes of partitions whose result depends on a setting that is not stated."""

MAX_FAILURES = 20
"""Largest number of failures in a summary; it is limited because Airflow keeps XCom values in its database."""

_UNTOUCHED = frozenset({"skipped", "blocked", "unchanged", "kept"})
_ERRORS = frozenset({"ERROR", "CRITICAL"})


class OutputReader:
    """Reader of the output of a command: it extracts the JSON report, and collects the errors in the log lines."""

    def __init__(self) -> None:
        self.report: dict[str, Any] | None = None
        self.report_text = ""
        self.errors: list[str] = []

    def other_lines(self, output: Iterable[str]) -> Iterator[str]:
        """Yield the lines of the output without the report, which is too long for the log of a task."""
        for line in output:
            found = _json_object(line)
            if "schema" in found and "command" in found:
                self.report, self.report_text = found, line.strip()
                continue
            if found.get("level") in _ERRORS:
                self.errors.append(str(found.get("message")))
            yield line


def _json_object(line: str) -> dict[str, Any]:
    if not line.startswith("{"):
        return {}
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def failures(report: Mapping[str, Any], *, fail_on_unknown: bool) -> list[Mapping[str, Any]]:
    return [
        partition
        for partition in report["partitions"]
        if partition["status"] in BAD_STATUSES or (fail_on_unknown and partition["reason_code"] in UNSTATED_CODES)
    ]


def summary(report: Mapping[str, Any], *, fail_on_unknown: bool, outputs: Mapping[str, object]) -> dict[str, Any]:
    """Return the figures of a report, but not its partitions; `outputs` are the paths of the run's other outputs.

    `partitions` contains the number of partitions with each status.  `unknown` is about the partitions whose result
    depends on a setting that is not stated.  It contains the number and the bytes of these partitions for each reason
    code.  `bytes_*` are sums over the partitions whose sizes before and after the run are both known.  `failures`
    contains the first MAX_FAILURES of the partitions that made the command fail.
    """
    partitions = report["partitions"]
    failed = failures(report, fail_on_unknown=fail_on_unknown)
    sized = [each for each in partitions if None not in (each.get("bytes_before"), each.get("bytes_after"))]
    unknown: dict[str, dict[str, int]] = {}
    for each in partitions:
        if each["reason_code"] in UNSTATED_CODES:
            sums = unknown.setdefault(each["reason_code"], {"partitions": 0, "bytes": 0})
            sums["partitions"] += 1
            sums["bytes"] += each.get("bytes_before") or 0
    return {
        "command": report["command"],
        "run_id": report["run_id"],
        "now_ms": report["now_ms"],
        "seconds": report["seconds"],
        "dry_run": bool(report.get("dry_run")),
        "partitions": dict(Counter(each["status"] for each in partitions)),
        "bytes_before": sum(each["bytes_before"] for each in sized),
        "bytes_after": sum(each["bytes_after"] for each in sized),
        "segments_deleted": sum(len(each.get("deleted_segments") or ()) for each in partitions),
        "unknown": dict(sorted(unknown.items())),
        "failed": len(failed),
        "failures": [
            {name: each.get(name) for name in ("partition", "log_dir", "status", "reason_code", "reason")}
            for each in failed[:MAX_FAILURES]
        ],
        **{name: str(path) for name, path in outputs.items() if path},
    }


def failure_text(summed: Mapping[str, Any] | None, errors: Sequence[str], code: int | None) -> str:
    if summed is not None and summed["failed"]:
        count = sum(summed["partitions"].values())
        listed = [_sentence(each) for each in summed["failures"]]
        more = summed["failed"] - len(listed)
        listed += [f"and {more} more"] if more else []
        return f"{summed['failed']} of {count} partitions failed in {summed['command']}: {'; '.join(listed)}"
    if errors:
        return "; ".join(errors)
    return f"the command ended with exit status {code}; read its output above"


def lines(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each partition that changed, failed or would change, and one line with the counts."""
    for each in report["partitions"]:
        if each["status"] not in _UNTOUCHED:
            yield _sentence(each)
    counts = Counter(each["status"] for each in report["partitions"])
    counted = ", ".join(f"{count} {status}" for status, count in counts.items()) or "no partitions"
    yield f"{report['command']} done in {report['seconds']} s: {counted}"


def _sentence(partition: Mapping[str, Any]) -> str:
    place = f" in {partition['log_dir']}" if partition.get("log_dir") else ""
    sizes = [partition.get("bytes_before"), partition.get("bytes_after")]
    change = "" if None in sizes or sizes[0] == sizes[1] else f", {sizes[0]:,} → {sizes[1]:,} bytes"
    reason = f": {partition['reason']}" if partition.get("reason") else ""
    return f"{partition['partition']}{place} {partition['status']}{change}{reason}"

"""Alert rules and dashboard: every metric and label in them is one that a command or the server writes.

`promtool`, if it is installed, checks the expressions and plays the alerts over time.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from sediment.jobs.reporting.metrics import metrics_text
from sediment.segment_io.protocol import messages as m
from sediment.segment_io.protocol.api_keys import ApiKey
from sediment.segment_io.protocol.error_codes import ErrorCode
from sediment.server.metrics_text import server_metrics_text as server_metrics_text
from tests.server.network.listeners import listener
from tests.waiting import wait_until

MONITORING = Path(__file__).parents[2] / "conf" / "monitoring"
ALERTS = MONITORING / "alerts.yml"
DASHBOARD = MONITORING / "grafana-dashboard.json"

OF_THE_SCRAPE = {"instance", "directory"}
"""Labels of Prometheus, and the label that the nightly DAG adds."""

_METRIC = re.compile(r"\b(?:sediment|kafka)_\w+")
_SELECTOR = re.compile(r"\b((?:sediment|kafka)_\w+)(?:\{([^}]*)\})?")
_GROUPED = re.compile(r"\b(?:by|without) \(([^)]*)\)")
_VARIABLES = {"$instance": ".*", "$__rate_interval": "5m"}

needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool of Prometheus is not installed")


def parsed(text: bytes) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def compacted() -> dict[str, Any]:
    """Return the report of a run in which every metric has a value."""
    partition = {
        "log_dir": "/logs",
        "status": "compacted",
        "bytes_before": 2,
        "bytes_after": 1,
        "messages_read": 2,
        "messages_written": 1,
        "dirty_ratio": 0.5,
        "tombstones_waiting": 1,
        "first_delete_horizon_ms": 1,
        "seconds_by_stage": {"clean": 1.0},
    }
    left = {"partition": "b-0", "log_dir": "/logs", "status": "skipped", "reason_code": "policy-unknown"}
    return {
        "command": "compact",
        "seconds": 1.0,
        "seconds_by_stage": {"clean": 1.0},
        "partitions": [{"partition": "a-0", **partition}, left],
    }


@pytest.fixture(scope="module")
def written() -> dict[str, set[str]]:
    """Labels of each metric that the commands and the server write."""
    answer = m.HeartbeatResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID)
    with listener({ApiKey.HEARTBEAT: lambda _request: answer}) as running, running.connect() as client:
        client.ask(m.HeartbeatRequest(group_id="g", member_id="m"), 4)
        wait_until(lambda: (ApiKey.HEARTBEAT, 4) in running.metrics.by_request())
        of_the_server = parsed(server_metrics_text(running.metrics, running.server))
    return parsed(metrics_text(compacted(), finished_s=2.0, last_success_s=None)) | of_the_server


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def targets() -> Iterator[tuple[str, str]]:
    """Yield the expression and the legend of each target of the dashboard."""
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"], target["legendFormat"]


def expressions() -> list[str]:
    return [rule["expr"] for rule in rules()] + [expr for expr, _ in targets()]


def test_every_metric_of_the_alerts_and_the_dashboard_is_written(written: dict[str, set[str]]) -> None:
    used = {name for expr in expressions() for name in _METRIC.findall(expr)}
    assert used <= written.keys()


def test_every_label_of_the_expressions_is_one_of_their_metrics(written: dict[str, set[str]]) -> None:
    for expr in expressions():
        known = set(OF_THE_SCRAPE)
        for name, _ in _SELECTOR.findall(expr):
            known |= written[name]
        selected = {label for _, labels in _SELECTOR.findall(expr) for label in re.findall(r"(\w+)(?:=|!)", labels)}
        grouped = {label.strip() for labels in _GROUPED.findall(expr) for label in labels.split(",")}
        assert selected | grouped <= known, expr


def test_every_label_of_a_text_is_one_of_its_metric(written: dict[str, set[str]]) -> None:
    texts = [(rule["expr"], f"{rule['annotations']}") for rule in rules()] + list(targets())
    for expr, text in texts:
        known = OF_THE_SCRAPE.union(*(written[name] for name in _METRIC.findall(expr)))
        shown = re.findall(r"\{\{ ?(?:\$labels\.)?(\w+) ?\}\}", text)
        assert set(shown) <= known, expr


def test_the_dashboard_shows_every_metric_of_a_run(written: dict[str, set[str]]) -> None:
    shown = {name for expr, _ in targets() for name in _METRIC.findall(expr)}
    of_runs = {name for name in written if name.startswith(("sediment_", "kafka_log_"))}
    assert of_runs - shown == {"sediment_run_last_timestamp_seconds", "sediment_run_dry_run"}, "these have alerts"
    assert {"sediment_run_last_timestamp_seconds", "sediment_run_dry_run"} <= {
        name for rule in rules() for name in _METRIC.findall(rule["expr"])
    }


def test_alerts_and_panels_are_complete_and_have_names_of_their_own() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names)
    assert all({"summary", "description"} <= rule["annotations"].keys() for rule in rules())
    assert {rule["labels"]["severity"] for rule in rules()} <= {"info", "warning", "critical"}
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells), "panels overlap"
    assert max(x for x, _ in cells) < 24


def promtool(*arguments: object) -> None:
    done = subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_promtool_accepts_the_rules() -> None:
    promtool("check", "rules", ALERTS)


@needs_promtool
def test_promtool_accepts_the_expressions_of_the_dashboard(tmp_path: Path) -> None:
    recorded = []
    for number, (expr, _) in enumerate(targets()):
        for variable, value in _VARIABLES.items():
            expr = expr.replace(variable, value)
        recorded.append({"record": f"panel:target:{number}", "expr": expr})
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": recorded}]}))
    promtool("check", "rules", tmp_path / "rules.yml")


@needs_promtool
def test_each_alert_fires_when_it_should_and_only_then() -> None:
    played = Path(__file__).with_name("alerts_test.yml")
    fired = {
        case["alertname"]
        for test in yaml.safe_load(played.read_text())["tests"]
        for case in test["alert_rule_test"]
        if case.get("exp_alerts")
    }
    assert fired == {rule["alert"] for rule in rules()}
    promtool("test", "rules", played)

"""Event logs of Spark, as a history server reads them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Event = dict[str, Any]


def settings(folder: Path) -> dict[str, str]:
    """Return the settings with which a run writes its event log into `folder`, which must exist."""
    return {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": folder.as_uri(),
    }


def read_events(folder: Path) -> list[Event]:
    (path,) = (path for path in folder.rglob("*") if path.is_file() and "appstatus" not in path.name)
    return [json.loads(line) for line in path.read_text().splitlines()]


def of_kind(events: Iterable[Event], kind: str) -> list[Event]:
    return [event for event in events if event["Event"] == f"SparkListener{kind}"]


def figures_of_tasks(events: Iterable[Event]) -> dict[str, int]:
    """Return what all tasks together have added to each accumulator with a name."""
    totals: Counter[str] = Counter()
    for event in of_kind(events, "TaskEnd"):
        for accumulator in event["Task Info"]["Accumulables"]:
            if not accumulator["Internal"]:
                totals[accumulator["Name"]] += int(accumulator["Update"])
    return dict(totals)


def figures_of_stages(events: Iterable[Event]) -> dict[str, int]:
    """Return the sum over all stages of each accumulator with a name."""
    totals: Counter[str] = Counter()
    for event in of_kind(events, "StageCompleted"):
        for accumulator in event["Stage Info"]["Accumulables"]:
            if not accumulator["Internal"]:
                totals[accumulator["Name"]] += int(accumulator["Value"])
    return dict(totals)

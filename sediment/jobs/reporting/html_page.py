"""Self-contained HTML page of a run, made from the run's JSON report; charts are labelled bars in inline SVG.

`Page` contains the figures, widths and sentences that this module makes from the JSON report.

Invariants: the page loads no other resource.  The template escapes all text from a disk or a user.  If the report of a
command lacks a key, the page has no part for this key.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from sediment.jobs.reporting import figures
from sediment.jobs.reporting.html_template import render_template
from sediment.jobs.reporting.stage_timer import COMMIT
from sediment.jobs.reporting.statuses import BAD_STATUSES, IDLE_STATUSES, RECOVERED, STOPPED, UNCHANGED
from sediment.segment_io.dates import date_text
from sediment.segment_io.format.names import by_number
from sediment.segment_io.uris import public_uri, without_credentials
from sediment.verification.report import CHECKS
from sediment.version import __version__

if TYPE_CHECKING:
    from sediment.jobs.settings.resolve import Settings

SHOWN_BARS = 20
SHOWN_EMPTY = 10

SHOWN_ROWS = 2_000
"""Maximum number of rows in the table of partitions; failed partitions come first, then the largest.

A browser takes seconds to lay out some thousand rows with their strips, and cannot show a hundred thousand.
"""

STRIP_UNITS = 1000
"""Width of a strip in the units of its drawing; the longer of a partition's two strips has this width."""

_STATES = ("clean", "dirty", "active", "rewritten", "kept", "deleted", "archived")
_DRAWN_SEGMENTS = 40_000
_MOST_SEGMENTS, _LEAST_SEGMENTS = 200, 6
_LEAST_IN_RANGE = 4
_HOUR_MS = 3_600_000
_WAITS = (
    ("expired now", 0),
    ("within an hour", _HOUR_MS),
    ("within a day", 24 * _HOUR_MS),
    ("within a week", 7 * 24 * _HOUR_MS),
)
_REST = "other"
_STAGES = {
    "list": "list the directories",
    "spark": "start Spark",
    "survey": "survey every partition",
    "view": "read indexes, times and producers",
    "plan": "plan the cleaning",
    "clean": "read, filter and write segments",
    "commit": "rename segments and write checkpoints",
    _REST: "waiting for tasks, and work that belongs to no stage",
}
_SHOWN_ELSEWHERE = frozenset(
    {
        "partition",
        "log_dir",
        "status",
        "reason",
        "reason_code",
        "bytes",
        "bytes_before",
        "bytes_after",
        "dirty_ratio",
        "tombstones_waiting",
        "first_delete_horizon_ms",
        "last_delete_horizon_ms",
        "strip_before",
        "strip_after",
        "seconds_by_stage",
        "segments",
        "repairs",
        "damage",
        "before",
        "after",
        "checks",
    }
)
_COMPACTION_KEYS = (
    "cleanup.policy",
    "min.cleanable.dirty.ratio",
    "min.compaction.lag.ms",
    "max.compaction.lag.ms",
    "delete.retention.ms",
    "segment.bytes",
    "retention.ms",
    "retention.bytes",
)


# --------------------------------------------------------------------------------------------------------- page content
@dataclass(frozen=True, slots=True)
class StripPart:
    """Rectangle of a strip, in STRIP_UNITS, for one segment or for several small neighbours with the same state."""

    x: float
    width: float
    state: str
    title: str


@dataclass(frozen=True, slots=True)
class Bar:
    label: str
    width: float
    text: str
    inner: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class PartitionRow:
    """A text that is missing in the report is empty; `sort` contains the numbers for sorting."""

    partition: str
    log_dir: str
    status: str
    tone: str
    reason_code: str
    reason: str
    size_text: str
    saved_text: str
    size_bar: Bar | None
    ratio_text: str
    ratio_percent: float
    tombstones_text: str
    strips: tuple[tuple[str, str, tuple[StripPart, ...]], ...]
    time_text: str
    sentences: tuple[str, ...]
    extras: tuple[tuple[str, str], ...]
    sort: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class ReasonRow:
    status: str
    tone: str
    code: str
    example: str
    example_of: str
    count: int
    names: tuple[str, ...]
    """Names of the partitions; a range of consecutive partitions of a topic is one text."""

    size_text: str


@dataclass(frozen=True, slots=True)
class CheckRow:
    name: str
    rule: str
    passed: int
    failed: tuple[str, ...]
    not_made: int


@dataclass(frozen=True, slots=True)
class SettingsGroup:
    topics: tuple[str, ...]
    values: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True, slots=True)
class Page:
    command: str
    versions: tuple[str, ...]
    run_id: str
    time: str
    seconds: str
    dry_run: bool
    stopped: int
    error: str
    directories: tuple[tuple[str, str], ...]
    has_several_directories: bool
    counts: tuple[tuple[str, str, int], ...]
    tiles: tuple[tuple[str, str, str], ...]
    sizes: tuple[Bar, ...]
    sizes_left_out: int
    stages: tuple[Bar, ...]
    task_stages: tuple[Bar, ...]
    waits: tuple[Bar, ...]
    reasons: tuple[ReasonRow, ...]
    rows: tuple[PartitionRow, ...]
    rows_left_out: int
    empty: tuple[ReasonRow, ...]
    checks: tuple[CheckRow, ...]
    states: tuple[str, ...]
    columns: frozenset[str]
    command_line: str
    settings: tuple[SettingsGroup, ...] = field(default_factory=tuple)


def render_html(
    document: Mapping[str, Any],
    *,
    options: Sequence[tuple[str, str]] = (),
    settings: Mapping[str, Settings] = MappingProxyType({}),
    log_dirs: Sequence[str] = (),
) -> str:
    """Return the page of the run whose JSON report is `document`; if `document` has an `error`, the run gave no result.

    `options` are the given command-line options, as (name, text).  `settings` are keyed by log directory; the key ""
    has the settings for all other directories.
    """
    page = make_page(document, options=options, settings=settings, log_dirs=log_dirs)
    return render_template("report.html", page=page, units=STRIP_UNITS)


# -------------------------------------------------------------------------------------------------------- making a page
def make_page(
    document: Mapping[str, Any],
    *,
    options: Sequence[tuple[str, str]] = (),
    settings: Mapping[str, Settings] = MappingProxyType({}),
    log_dirs: Sequence[str] = (),
) -> Page:
    log_dirs = tuple(without_credentials(public_uri(log_dir)) for log_dir in log_dirs)
    partitions: list[Mapping[str, Any]] = sorted(
        map(_for_people, document.get("partitions", ())),
        key=lambda p: (_tone(str(p["status"])) != "bad", -(_size(p) or 0), by_number(str(p["partition"]))),
    )
    now_ms = int(document["now_ms"])
    largest = max((max(_size(p) or 0, _whole(p, "bytes_after") or 0) for p in partitions), default=0)
    only_would = bool(document.get("dry_run")) or document["command"] == "plan"
    room = max(_LEAST_SEGMENTS, min(_MOST_SEGMENTS, _DRAWN_SEGMENTS // max(min(len(partitions), SHOWN_ROWS), 1)))
    empty = [group for group in _grouped(filter(_is_empty, partitions)).values() if len(group) > SHOWN_EMPTY]
    without_row = {id(partition) for group in empty for partition in group}
    with_row = [partition for partition in partitions if id(partition) not in without_row]
    rows = tuple(_row(partition, now_ms, largest, room) for partition in with_row[:SHOWN_ROWS])
    counts = Counter(str(partition["status"]) for partition in partitions)
    sizes = _sizes(partitions)
    directories = _directories(partitions, log_dirs)
    stages, task_stages = _stages(document, partitions)
    return Page(
        command=str(document["command"]),
        versions=_versions(),
        run_id=str(document.get("run_id") or ""),
        time=utc(now_ms),
        seconds=duration(float(document["seconds"])) if "seconds" in document else "",
        dry_run=bool(document.get("dry_run")),
        stopped=counts[STOPPED],
        error=str(document.get("error") or ""),
        directories=directories,
        has_several_directories=sum(not role for role, _ in directories) > 1,
        counts=tuple((status, _tone(status), counts[status]) for status in sorted(counts, key=_tone_order)),
        tiles=_tiles(document, partitions, now_ms, only_would=only_would),
        sizes=sizes[:SHOWN_BARS],
        sizes_left_out=max(len(sizes) - SHOWN_BARS, 0),
        stages=stages,
        task_stages=task_stages,
        waits=_waits(partitions, now_ms),
        reasons=_reasons(partitions),
        rows=rows,
        rows_left_out=len(with_row) - len(rows),
        empty=tuple(map(_reason, empty)),
        checks=_checks(partitions),
        states=tuple(state for state in _STATES if any(state in _states_of(p) for p in partitions)),
        columns=_columns(rows),
        command_line=_command_line(str(document["command"]), log_dirs, options),
        settings=_settings(settings, partitions),
    )


def _for_people(partition: Mapping[str, Any]) -> Mapping[str, Any]:
    status = str(partition["status"])
    if status in BAD_STATUSES and partition.get("reason_code") == STOPPED:
        return {**partition, "status": STOPPED, "reason_code": None}
    return {**partition, "status": UNCHANGED} if status == RECOVERED and not partition["repairs"] else partition


def _versions() -> tuple[str, ...]:
    versions = [f"Sediment {__version__}", f"Python {platform.python_version()}"]
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        versions.append(f"Spark {importlib.metadata.version('pyspark')}")
    return (*versions, f"host {platform.node()}")


def _command_line(command: str, log_dirs: Sequence[str], options: Sequence[tuple[str, str]]) -> str:
    given = [word for name, text in options for word in ((name, text) if text else (name,))]
    return shlex.join(["sediment", command, *log_dirs, *given]) if log_dirs or given else ""


def _directories(partitions: Sequence[Mapping[str, Any]], log_dirs: Sequence[str]) -> tuple[tuple[str, str], ...]:
    found = {("", str(p["log_dir"])) for p in partitions if p.get("log_dir")}
    for role in ("before", "after"):
        found |= {(role, str(p[role]).rpartition("/")[0]) for p in partitions if isinstance(p.get(role), str)}
    ordered = sorted(found, key=lambda each: (each[0] == "after", each))
    return tuple(ordered) or tuple(("", path) for path in log_dirs)


def _tone_order(status: str) -> tuple[int, str]:
    return ("bad", "good", "neutral").index(_tone(status)), status


def _tone(status: str) -> str:
    return "bad" if status in BAD_STATUSES or status == STOPPED else "neutral" if status in IDLE_STATUSES else "good"


def _tiles(
    document: Mapping[str, Any], partitions: Sequence[Mapping[str, Any]], now_ms: int, *, only_would: bool
) -> tuple[tuple[str, str, str], ...]:
    tiles = [("partitions", f"{len(partitions):,}", "")]
    sized = [p for p in partitions if None not in (_whole(p, "bytes_before"), _whole(p, "bytes_after"))]
    # As on the screen, partitions that the run left alone are not part of the sum.
    changed = [p for p in sized if _tone(str(p["status"])) == "good" or p["bytes_before"] != p["bytes_after"]] or sized
    if changed:
        before, after = (sum(p[key] for p in changed) for key in ("bytes_before", "bytes_after"))
        share = _share(before, after, "would be saved" if only_would else "saved")
        tiles.append(("bytes", f"{unbroken_bytes(before)} → {unbroken_bytes(after)}", share))
    tiles += _record_tiles(document, partitions, only_would=only_would)
    ratios = [p["dirty_ratio"] for p in partitions if p.get("dirty_ratio") is not None]
    if ratios:
        tiles.append(("filthiest log before", f"{max(ratios):.0%}", "of its bytes not cleaned yet"))
    waiting = sum(_whole(p, "tombstones_waiting") or 0 for p in partitions)
    if any("tombstones_waiting" in p for p in partitions):
        firsts = [p["first_delete_horizon_ms"] for p in partitions if p.get("first_delete_horizon_ms") is not None]
        when = f"the first expire {_when(min(firsts), now_ms)}" if firsts else "none in the cleaned part"
        tiles.append(("tombstones waiting", f"{waiting:,}", when))
    repairs = sum(len(p["repairs"]) for p in partitions if p.get("repairs"))
    if any("repairs" in p for p in partitions):
        tiles.append(("repairs", f"{repairs:,}", "would be made" if only_would else "made"))
    return tuple(tiles)


def _record_tiles(
    document: Mapping[str, Any], partitions: Sequence[Mapping[str, Any]], *, only_would: bool
) -> Iterator[tuple[str, str, str]]:
    def total(name: str) -> int | None:
        counts = [count for p in partitions if (count := _whole(p, name)) is not None]
        return sum(counts) if counts else None

    read, written, erased = total("messages_read"), total("messages_written"), total("records_erased")
    if read and written is not None:
        done = [p for p in partitions if p["status"] not in IDLE_STATUSES]
        without_key = sum(_whole(p, "records_without_key") or 0 for p in done)
        why = f"superseded or expired, {without_key:,} without a key" if without_key else "superseded or expired"
        yield "records", f"{read:,} → {written:,}", f"{read - written - without_key:,} {why}"
    elif read:
        yield "records read", f"{read:,}", ""
    rows = [(key, _whole(document, f"rows_{key}")) for key in ("inserted", "updated", "deleted")]
    for key, count in rows:
        if count:
            yield f"rows {key}", f"{count:,}", "in the table"
    if erased is not None:
        matched = f"{total('records_matched') or 0:,} matched"
        yield ("records to erase" if only_would else "records erased"), f"{erased:,}", matched
    if any("deleted_segments" in p for p in partitions):
        segments = sum(len(p.get("deleted_segments") or ()) for p in partitions)
        yield "segments", f"{segments:,}", "would be deleted" if only_would else "deleted"
    archived = total("messages_archived")
    if archived is not None:
        yield "records archived", f"{archived:,}", "of the deleted segments"


def _share(before: int, after: int, saved: str) -> str:
    if not before:
        return ""
    return (
        f"{(after - before) / before:.0%} more"
        if after > before
        else f"{(before - after) / before:.0%} {saved}".strip()
    )


def _sizes(partitions: Sequence[Mapping[str, Any]]) -> tuple[Bar, ...]:
    sized = [p for p in partitions if None not in (_whole(p, "bytes_before"), _whole(p, "bytes_after"))]
    changed = [p for p in sized if p["bytes_after"] != p["bytes_before"]]
    changed.sort(key=lambda p: (-p["bytes_before"], str(p["partition"])))
    largest = max((max(p["bytes_before"], p["bytes_after"]) for p in changed), default=0) or 1
    return tuple(
        Bar(
            label=str(p["partition"]),
            width=100 * p["bytes_before"] / largest,
            inner=100 * p["bytes_after"] / largest,
            text=f"{unbroken_bytes(p['bytes_before'])} → {unbroken_bytes(p['bytes_after'])}",
        )
        for p in changed
    )


def _stages(
    document: Mapping[str, Any], partitions: Sequence[Mapping[str, Any]]
) -> tuple[tuple[Bar, ...], tuple[Bar, ...]]:
    by_stage = {str(stage): float(seconds) for stage, seconds in (document.get("seconds_by_stage") or {}).items()}
    # The stages in the reports of partitions were measured in tasks.  The commit is an exception, because it runs in
    # the driver.
    in_tasks = {stage for p in partitions for stage in p.get("seconds_by_stage") or ()} - {COMMIT}
    driver = {stage: seconds for stage, seconds in by_stage.items() if stage not in in_tasks}
    rest = float(document.get("seconds") or 0) - sum(driver.values())
    if by_stage and rest > 0:
        driver[_REST] = rest
    return _stage_bars(driver), _stage_bars({stage: by_stage[stage] for stage in by_stage if stage in in_tasks})


def _stage_bars(seconds_by_stage: Mapping[str, float]) -> tuple[Bar, ...]:
    longest = max(seconds_by_stage.values(), default=0.0) or 1.0
    order = {stage: position for position, stage in enumerate(_STAGES)}
    return tuple(
        Bar(stage, 100 * seconds / longest, duration(seconds), note=_STAGES.get(stage, ""))
        for stage, seconds in sorted(seconds_by_stage.items(), key=lambda item: order.get(item[0], len(order)))
    )


def _waits(partitions: Sequence[Mapping[str, Any]], now_ms: int) -> tuple[Bar, ...]:
    counts: Counter[str] = Counter()
    for partition in partitions:
        waiting, last = _whole(partition, "tombstones_waiting"), _whole(partition, "last_delete_horizon_ms")
        if waiting and last is not None:
            counts[next((name for name, wait in _WAITS if last <= now_ms + wait), "later")] += waiting
    most = max(counts.values(), default=0) or 1
    names = [name for name, _ in _WAITS] + ["later"]
    return tuple(Bar(name, 100 * counts[name] / most, f"{counts[name]:,}") for name in names if counts[name])


def _reasons(partitions: Sequence[Mapping[str, Any]]) -> tuple[ReasonRow, ...]:
    grouped = _grouped(p for p in partitions if p.get("reason_code") or p["status"] == STOPPED)
    ordered = sorted(grouped.items(), key=lambda item: (_tone(item[0][0]) != "bad", -len(item[1]), item[0]))
    return tuple(_reason(some) for _, some in ordered)


def _grouped(partitions: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], list[Mapping[str, Any]]]:
    grouped: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for partition in partitions:
        grouped.setdefault((str(partition["status"]), str(partition.get("reason_code") or "")), []).append(partition)
    return grouped


def _reason(some: Sequence[Mapping[str, Any]]) -> ReasonRow:
    first = some[0]
    status = str(first["status"])
    return ReasonRow(
        status,
        _tone(status),
        str(first.get("reason_code") or ""),
        str(first.get("reason") or ""),
        str(first["partition"]) if len({p.get("reason") for p in some}) > 1 else "",
        len(some),
        name_ranges(str(p["partition"]) for p in some),
        unbroken_bytes(sum(_size(p) or 0 for p in some)),
    )


def name_ranges(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names in natural order; four or more consecutive partitions of a topic become `t-0 to t-3`."""
    runs: list[list[str]] = []
    for name in sorted(names, key=by_number):
        topic, _, number = name.rpartition("-")
        if runs and number.isdecimal() and runs[-1][-1] == f"{topic}-{int(number) - 1}":
            runs[-1].append(name)
        else:
            runs.append([name])
    return tuple(text for run in runs for text in ([f"{run[0]} to {run[-1]}"] if len(run) >= _LEAST_IN_RANGE else run))


def _is_empty(partition: Mapping[str, Any]) -> bool:
    return _size(partition) == 0 and _tone(str(partition["status"])) != "bad" and not _sentences(partition)


def _checks(partitions: Sequence[Mapping[str, Any]]) -> tuple[CheckRow, ...]:
    compared = [(str(p["partition"]), p["checks"]) for p in partitions if p.get("checks")]
    return tuple(
        CheckRow(
            name,
            rule,
            passed=sum(checks.get(name) == 0 for _, checks in compared),
            failed=tuple(partition for partition, checks in compared if checks.get(name)),
            not_made=sum(checks.get(name) is None for _, checks in compared),
        )
        for name, rule in CHECKS.items()
        if compared
    )


# -------------------------------------------------------------------------------------------------------- one partition
def _row(partition: Mapping[str, Any], now_ms: int, largest: int, room: int) -> PartitionRow:
    before, after = _whole(partition, "bytes_before"), _whole(partition, "bytes_after")
    if before is None:
        before = after = _size(partition)
    size_text = saved_text = ""
    size_bar = None
    if before is not None:
        after = before if after is None else after
        size_text = unbroken_bytes(before) if after == before else f"{unbroken_bytes(before)} → {unbroken_bytes(after)}"
        saved_text = _share(before, after, "") if after != before else ""
        size_bar = Bar("", 100 * before / (largest or before or 1), "", 100 * after / (largest or before or 1))
    ratio = partition.get("dirty_ratio")
    seconds = sum(map(float, (partition.get("seconds_by_stage") or {}).values()))
    return PartitionRow(
        partition=str(partition["partition"]),
        log_dir=str(partition.get("log_dir") or ""),
        status=str(partition["status"]),
        tone=_tone(str(partition["status"])),
        reason_code=str(partition.get("reason_code") or ""),
        reason=str(partition.get("reason") or ""),
        size_text=size_text,
        saved_text=saved_text,
        size_bar=size_bar,
        ratio_text="" if ratio is None else f"{ratio:.0%}",
        ratio_percent=100 * ratio if ratio is not None else 0.0,
        tombstones_text=_tombstones(partition, now_ms),
        strips=_strips(partition, room),
        time_text=duration(seconds) if seconds else "",
        sentences=tuple(note for note in _sentences(partition) if note not in str(partition.get("reason") or "")),
        extras=tuple(_extras(partition, "")),
        sort={
            "size": float(before or 0),
            "saved": float((before or 0) - (after or 0)),
            "ratio": float(ratio or 0),
            "tombstones": float(_whole(partition, "tombstones_waiting") or 0),
            "time": seconds,
        },
    )


def _sentences(partition: Mapping[str, Any]) -> tuple[str, ...]:
    deleted = (
        f"segment {segment['base_offset']:,} ({unbroken_bytes(segment['bytes'])}) expires by {segment['rule']}"
        for segment in partition.get("deleted_segments") or ()
    )
    different = (f"{one['check']}: {one['what']}" for one in partition.get("differences") or ())
    noted = (str(each) for name in ("repairs", "damage", "warnings") for each in partition.get(name) or ())
    return (*noted, *different, *deleted)


def _extras(fields: Mapping[str, Any], prefix: str) -> Iterable[tuple[str, str]]:
    for name, value in fields.items():
        label = f"{prefix}{name.replace('_', ' ')}"
        if not prefix and name in _SHOWN_ELSEWHERE:
            continue
        if isinstance(value, Mapping):
            yield from _extras(value, f"{label}: ")
        elif isinstance(value, bool):
            yield label, "yes" if value else "no"
        elif isinstance(value, int):
            is_size, is_moment = "bytes" in name.split("_"), name.endswith("_at_ms")
            yield label, unbroken_bytes(value) if is_size else utc(value) if is_moment else f"{value:,}"
        elif isinstance(value, str | float) and value != "":
            yield label, str(value)


def _whole(partition: Mapping[str, Any], name: str) -> int | None:
    value = partition.get(name)
    return value if type(value) is int else None


def _size(partition: Mapping[str, Any]) -> int | None:
    known = (_whole(partition, name) for name in ("bytes_before", "bytes"))
    return next((size for size in known if size is not None), _segment_bytes(partition))


def _segment_bytes(partition: Mapping[str, Any]) -> int | None:
    segments = partition.get("segments") or ()
    sizes = [segment["bytes"] for segment in segments if isinstance(segment, Mapping) and "bytes" in segment]
    return sum(sizes) if sizes else None


def _tombstones(partition: Mapping[str, Any], now_ms: int) -> str:
    waiting = _whole(partition, "tombstones_waiting")
    if not waiting:
        return "" if waiting is None else "0"
    first, last = (_whole(partition, f"{which}_delete_horizon_ms") for which in ("first", "last"))
    if first is None or last is None:
        return f"{waiting:,}"
    until = f" to {_when(last, now_ms)}" if last != first else ""
    return f"{waiting:,}, {_when(first, now_ms)}{until}"


def _states_of(partition: Mapping[str, Any]) -> set[str]:
    return {str(state) for which in ("before", "after") for *_, state in partition.get(f"strip_{which}") or ()}


def _strips(partition: Mapping[str, Any], room: int) -> tuple[tuple[str, str, tuple[StripPart, ...]], ...]:
    found = {which: partition.get(f"strip_{which}") or () for which in ("before", "after")}
    longest = max(sum(size for _, size, _ in strip) for strip in found.values()) or 1
    return tuple((which, _in_words(strip), _pieces(strip, longest, room)) for which, strip in found.items() if strip)


def _in_words(strip: Sequence[Sequence[Any]]) -> str:
    counts = Counter(str(state) for *_, state in strip)
    return ", ".join(f"{count:,} {state}" for state, count in counts.items())


def _pieces(strip: Sequence[Sequence[Any]], longest: int, room: int) -> tuple[StripPart, ...]:
    pieces = []
    x = 0.0
    for run in _merged(strip, room):
        size = sum(size for _, size, _ in run)
        width = STRIP_UNITS * size / longest
        base, _, state = run[0]
        what = f"segment {base:,}" if len(run) == 1 else f"{len(run):,} segments from {base:,}"
        known = state if state in _STATES else "other"
        pieces.append(StripPart(round(x, 2), round(width, 2), known, f"{what}: {state}, {unbroken_bytes(size)}"))
        x += width
    return tuple(pieces)


def _merged(strip: Sequence[Sequence[Any]], room: int) -> Iterable[list[Sequence[Any]]]:
    each = max(1, -(-len(strip) // room))
    run: list[Sequence[Any]] = []
    for segment in strip:
        if run and (len(run) == each or run[0][2] != segment[2]):
            yield run
            run = []
        run.append(segment)
    if run:
        yield run


def _columns(rows: Sequence[PartitionRow]) -> frozenset[str]:
    texts = {
        "size": "size_text",
        "saved": "saved_text",
        "ratio": "ratio_text",
        "tombstones": "tombstones_text",
        "strips": "strips",
        "time": "time_text",
    }
    return frozenset(column for column, name in texts.items() if any(getattr(row, name) for row in rows))


# ------------------------------------------------------------------------------------------------------------- settings
def _settings(settings: Mapping[str, Settings], partitions: Sequence[Mapping[str, Any]]) -> tuple[SettingsGroup, ...]:
    from sediment.segment_io.errors import SettingsError

    grouped: dict[tuple[tuple[str, str, str], ...], list[str]] = {}
    places = {(str(p["partition"]).rpartition("-")[0], str(p.get("log_dir") or "")) for p in partitions}
    for topic, log_dir in sorted(places):
        theirs = settings.get(log_dir, settings.get(""))
        if not topic or theirs is None:
            continue
        try:
            in_force = theirs.in_force(topic)
        except SettingsError as error:
            values: tuple[tuple[str, str, str], ...] = (("", str(error), "error"),)
        else:
            shown = [name for name in in_force if name in _COMPACTION_KEYS or in_force[name][1] != "default"]
            values = tuple((name, _text(in_force[name][0]), in_force[name][1]) for name in sorted(shown))
        grouped.setdefault(values, []).append(topic)
    return tuple(SettingsGroup(tuple(dict.fromkeys(some)), values) for values, some in grouped.items())


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


# ---------------------------------------------------------------------------------------------------------------- texts
def unbroken_bytes(size_bytes: int) -> str:
    return figures.human_bytes(size_bytes).replace(" ", "\N{NO-BREAK SPACE}")


def utc(time_ms: int) -> str:
    return date_text(time_ms).replace(" UTC", "\N{NO-BREAK SPACE}UTC")


def duration(seconds: float) -> str:
    if seconds < 0.001:
        return "<1 ms"
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 90:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def _when(time_ms: int, now_ms: int) -> str:
    text = utc(time_ms)
    return "now" if time_ms <= now_ms else f"in {text}" if text.startswith("the year") else f"on {text}"

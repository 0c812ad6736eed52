"""Cases as plain JSON: random cases from a seed, smaller cases that fail in the same way, and saved cases.

A case is {"spec": …, "rounds": […]} (see logs.py); cases of other commands have other fields.  A case that differs
from Kafka is made as small as possible and saved in `KEPT`; every later run replays it.

Invariant: shrinking ends with a case for which `fails` is true.
"""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from tests.conformance.logs import SPEC, random_rounds, random_spec, writing_steps

Case: TypeAlias = dict[str, Any]
Fails: TypeAlias = Callable[[Case], bool]
_T = TypeVar("_T")

KEPT = Path(os.environ.get("SEDIMENT_CONFORMANCE_KEPT", Path(__file__).parents[1] / "data" / "conformance"))
MOST_ATTEMPTS = 250
_NEEDED_CONFIGS = {"cleanup.policy", "segment.bytes"}


def random_case(seed: int) -> Case:
    """Return the log of `random_spec` and its rounds."""
    return {"spec": {**SPEC, **random_spec(seed)}, "rounds": random_rounds(seed)}


def written_out(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the spec with the steps that it stands for, so that some of them can be left out."""
    return {**spec, "steps": writing_steps(spec)}


# ------------------------------------------------------------------------------------------------------------ shrinking
def shrunk(case: Case, fails: Fails, *, most_attempts: int = MOST_ATTEMPTS) -> Case:
    """Return a smaller case of which `fails` is true, as it is of `case`: fewer rounds, steps, records and settings.

    Source: Zeller and Hildebrandt, Simplifying and Isolating Failure-Inducing Input (2002), the half that simplifies.
    """
    left = most_attempts

    def still(candidate: Case) -> bool:
        nonlocal left
        left -= 1
        return left >= 0 and fails(candidate)

    if "spec" in case and "steps" not in case["spec"]:
        written = {**case, "spec": written_out(case["spec"])}
        case = written if still(written) else case
    before = None
    while case != before and left > 0:
        before = case
        for path, least in _lists(case):
            case = _with_fewer(case, path, least, still)
        for candidate in _simpler(case):
            case = candidate(case) if still(candidate(case)) else case
    return case


def fewer(items: list[_T], still: Callable[[list[_T]], bool], least: int = 0) -> list[_T]:
    """Return the items without those that `still` is true without, in halves, then quarters, down to single ones."""
    size = max(1, len(items) // 2)
    while True:
        at = 0
        while at < len(items):
            rest = items[:at] + items[at + size :]
            if len(rest) >= least and len(rest) < len(items) and still(rest):
                items = rest
            else:
                at += size
        if size == 1:
            return items
        size //= 2


def _lists(case: Case) -> Iterator[tuple[tuple[Any, ...], int]]:
    """Places of lists that may become shorter, the longest-running first, and how short."""
    yield ("rounds",), 1
    yield ("damage",), 0
    yield ("spec", "steps"), 1
    for number in range(len(case.get("rounds", ()))):
        yield ("rounds", number, "more", "steps"), 1
    for number in range(len(case.get("spec", {}).get("steps", ()))):
        yield ("spec", "steps", number, "records"), 1


def _at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def _put(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """Return a copy of `value` with `new` at `path`."""
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = _put(value[path[0]], path[1:], new)
    return copy


def _with_fewer(case: Case, path: tuple[Any, ...], least: int, still: Fails) -> Case:
    items = _at(case, path)
    if not isinstance(items, list) or len(items) <= least:
        return case
    return _put(case, path, fewer(items, lambda rest: still(_put(case, path, rest)), least))


def _simpler(case: Case) -> Iterator[Callable[[Case], Case]]:
    """Simplifications of a spec: nothing written between rounds, default settings, no codec, no headers."""
    for number, given in enumerate(case.get("rounds", ())):
        if given["more"] and "steps" not in given["more"]:
            yield lambda old, at=number: _put(old, ("rounds", at, "more"), written_out(old["rounds"][at]["more"]))
        for name in ("more", "high_watermark_share", "dirty_share", "map_bytes", "producer_id_expiration_ms"):
            if given[name] is not None:
                yield lambda old, at=number, name=name: _put(old, ("rounds", at, name), None)
        for key in given["configs"]:
            yield lambda old, at=number, key=key: _put(
                old, ("rounds", at, "configs"), _without(old["rounds"][at]["configs"], key)
            )
    for key in _at(case, ("spec", "configs")) or ():
        if key not in _NEEDED_CONFIGS:
            yield lambda old, key=key: _put(old, ("spec", "configs"), _without(old["spec"]["configs"], key))
    for number, step in enumerate(_at(case, ("spec", "steps")) or ()):
        if step.get("codec", "none") != "none":
            yield lambda old, at=number: _put(old, ("spec", "steps", at, "codec"), "none")
        if any("h" in record for record in step.get("records", ())):
            yield lambda old, at=number: _put(
                old, ("spec", "steps", at, "records"), [_without(r, "h") for r in old["spec"]["steps"][at]["records"]]
            )


def _without(entries: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in entries.items() if name != key}


# -------------------------------------------------------------------------------------------------------------- keeping
def place_of(error: BaseException) -> tuple[str, int]:
    """Where it was raised: what tells one difference from another."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return frame.filename, frame.lineno or 0


def keep(kind: str, name: str, case: Case, difference: str) -> Path:
    """Write a case to the kept ones."""
    KEPT.mkdir(parents=True, exist_ok=True)
    path = KEPT / f"{kind}-{name}.json"
    path.write_text(json.dumps({"difference": difference, "case": case}, indent=1) + "\n")
    return path


def kept(kind: str) -> list[Path]:
    """Return the kept cases of a kind, by name."""
    return sorted(KEPT.glob(f"{kind}-*.json"))


def read_kept(path: Path) -> Case:
    """Return a kept case."""
    case: Case = json.loads(path.read_text())["case"]
    return case


def shrink_and_keep(
    kind: str,
    name: str,
    case: Case,
    found: BaseException,
    run: Callable[[Case], object],
    *,
    most_attempts: int = MOST_ATTEMPTS,
) -> Path:
    """Make a case smaller as long as `run` raises at the same place, and keep it."""
    place = place_of(found)

    def fails(candidate: Case) -> bool:
        try:
            run(candidate)
        except Exception as error:
            return place_of(error) == place
        return False

    return keep(kind, name, shrunk(case, fails, most_attempts=most_attempts), str(found))

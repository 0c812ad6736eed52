import json

import pytest

from tests.conformance import cases
from tests.conformance.cases import random_case, read_kept, shrink_and_keep, shrunk
from tests.conformance.coverage import OF_LOGS, Coverage
from tests.conformance.logs import SPEC, continued, random_rounds, random_spec, writing_steps


def test_a_seed_always_gives_the_same_log_and_rounds():
    for seed in range(5):
        assert random_spec(seed) == random_spec(seed)
        assert random_rounds(seed) == random_rounds(seed)
        assert writing_steps(random_spec(seed)) == writing_steps(random_spec(seed))


def test_specs_and_rounds_are_plain_json():
    for seed in range(20):
        assert json.loads(json.dumps(random_spec(seed))) == random_spec(seed)
        assert json.loads(json.dumps(random_rounds(seed))) == random_rounds(seed)


def test_a_field_that_no_spec_has_is_refused():
    with pytest.raises(KeyError, match="tombstone'"):
        writing_steps({"tombstone": 0.5})


def test_two_hundred_seeds_meet_every_dimension():
    cases = [random_case(seed) for seed in range(200)]
    for field in SPEC.keys() - {"seed", "start_ms", "start_offset", "first_producer_id", "first_leader_epoch"}:
        assert len({json.dumps(case["spec"][field]) for case in cases}) > 1, field
    rounds = [given for case in cases for given in case["rounds"]]
    for field in rounds[0]:
        assert len({json.dumps(given[field]) for given in rounds}) > 1, field
    coverage = Coverage()
    for case in cases:
        coverage.add_case(case)
    assert not [name for name in OF_LOGS if coverage.counts[name] < 2]


def test_steps_that_are_all_there_keep_their_numbers():
    for seed in range(40):
        steps = writing_steps(random_spec(seed))
        assert writing_steps({"steps": steps}) == steps


def test_a_shrunk_case_has_only_what_makes_it_fail():
    """An aborted transaction whose key a later record of another batch has."""

    def fails(case):
        steps = writing_steps(case["spec"])
        aborts = {step["producer_id"] for step in steps if step["do"] == "end_transaction" and not step["commit"]}
        keys = [
            (at, record["k"])
            for at, step in enumerate(steps)
            if step.get("transactional") and step["producer"][0] in aborts
            for record in step["records"]
        ]
        later = [(at, record["k"]) for at, step in enumerate(steps) for record in step.get("records", ())]
        return len(case["rounds"]) > 0 and any(k == key and at < b for at, k in keys for b, key in later)

    found = next(case for case in map(random_case, range(100)) if fails(case) and len(case["rounds"]) > 2)
    small = shrunk(found, fails, most_attempts=2_000)
    assert fails(small)
    assert len(small["rounds"]) == 1
    assert [step["do"] == "end_transaction" for step in small["spec"]["steps"]].count(True) == 1
    assert len(small["spec"]["steps"]) == 3
    assert [len(step["records"]) for step in small["spec"]["steps"] if "records" in step] == [1, 1]


def test_a_case_that_only_fails_as_it_is_stays_as_it_is():
    case = {"spec": {**SPEC, "steps": writing_steps(random_spec(1))}, "rounds": random_rounds(1)}
    assert shrunk(case, lambda candidate: candidate == case) == case


def test_what_is_kept_is_small_and_still_raises_at_the_same_place(tmp_path, monkeypatch):
    monkeypatch.setattr(cases, "KEPT", tmp_path / "kept")

    def run(case):
        tombstones = sum(r["v"] is None for s in writing_steps(case["spec"]) for r in s.get("records", ()))
        if len(writing_steps(case["spec"])) == 5:
            raise ValueError("another difference")
        assert not tombstones, f"{tombstones} tombstones"

    def raised(case):
        try:
            run(case)
        except AssertionError as error:
            return error
        return None

    case = next(case for case in map(random_case, range(100)) if raised(case))
    path = shrink_and_keep("cleaning", "7", case, raised(case), run)
    assert [path] == cases.kept("cleaning") and not cases.kept("loading")
    small = read_kept(path)
    assert str(raised(small)).startswith("1 tombstones")
    assert json.loads(path.read_text())["difference"] == str(raised(case))


def test_a_transaction_left_open_is_ended_unless_wanted():
    spec = {"seed": 3, "records": 200, "transactional": 0.9, "ends": 0.1}
    steps = writing_steps(spec)
    unended = set()
    for step in steps:
        if step["do"] == "end_transaction":
            unended.discard(step["producer_id"])
        elif step.get("transactional"):
            unended.add(step["producer"][0])
    assert not unended


def test_a_continued_spec_writes_after_the_log_end_with_other_producers():
    spec = {"records": 50, "idempotent": 1.0, "follower": 1.0}
    more = writing_steps(continued(spec, log_end_offset=50, part=1))
    assert more[0]["base_offset"] == 50
    first, second = ({step["producer"][0] for step in steps} for steps in (writing_steps(spec), more))
    assert first.isdisjoint(second)

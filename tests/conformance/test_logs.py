import json

import pytest

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
    specs = [{**SPEC, **random_spec(seed)} for seed in range(200)]
    for field in SPEC.keys() - {"seed", "start_ms", "start_offset", "first_producer_id", "first_leader_epoch"}:
        assert len({json.dumps(spec[field]) for spec in specs}) > 1, field
    rounds = [given for seed in range(200) for given in random_rounds(seed)]
    for field in rounds[0]:
        assert len({json.dumps(given[field]) for given in rounds}) > 1, field


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

"""Leader epochs under assignment and truncation (kafka-log 04 §4)."""

import pytest

from sediment.engine.directory.leader_epochs import (
    assign,
    epoch_for_offset,
    latest_epoch,
    truncate_from_end,
    truncate_from_start,
)
from sediment.segment_io.format.checkpoints import EpochEntry


def epochs(*entries):
    return tuple(EpochEntry(*entry) for entry in entries)


@pytest.mark.parametrize(
    ("epoch", "start", "expected"),
    [
        (2, 20, [(0, 0), (1, 10), (2, 20)]),
        (1, 15, [(0, 0), (1, 10)]),
        (1, 5, [(0, 0), (1, 5)]),
        (3, 10, [(0, 0), (3, 10)]),
        (0, 30, [(0, 30)]),
        (5, 0, [(5, 0)]),
    ],
)
def test_what_contradicts_a_new_epoch_goes(epoch, start, expected):
    assert assign(epochs((0, 0), (1, 10)), epoch, start) == epochs(*expected)


def test_the_first_epoch_is_taken_as_it_is():
    assert assign((), 4, 7) == epochs((4, 7))


def test_the_latest_epoch_is_the_last_entrys():
    assert (latest_epoch(()), latest_epoch(epochs((0, 0), (3, 9)))) == (-1, 3)


@pytest.mark.parametrize(("end", "kept"), [(0, 0), (10, 1), (11, 2), (99, 2)])
def test_epochs_that_begin_at_or_after_the_end_go(end, kept):
    entries = epochs((0, 0), (1, 10))
    assert truncate_from_end(entries, end) == entries[:kept]


@pytest.mark.parametrize(
    ("start", "expected"),
    [(0, [(0, 0), (1, 10)]), (4, [(0, 4), (1, 10)]), (10, [(1, 10)]), (15, [(1, 15)])],
)
def test_the_epoch_in_force_at_the_start_begins_there(start, expected):
    assert truncate_from_start(epochs((0, 0), (1, 10)), start) == epochs(*expected)


def test_a_start_below_all_epochs_changes_nothing():
    assert truncate_from_start(epochs((1, 10)), 5) == epochs((1, 10))


def test_the_leader_epoch_of_an_offset():
    entries = epochs((2, 0), (5, 40))
    assert epoch_for_offset(entries, 39) == 2
    assert epoch_for_offset(entries, 40) == 5
    assert epoch_for_offset(entries, -1) is None
    assert epoch_for_offset((), 40) is None

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sediment.segment_io.packing import pack_by_weight, pack_in_order

WEIGHTS = st.lists(st.integers(0, 1000), max_size=60)


def itself(weight):
    return weight


@given(WEIGHTS, st.integers(1, 12))
def test_lists_by_weight_hold_every_item_and_are_balanced(weights, lists):
    packed = pack_by_weight(weights, itself, lists)
    assert sorted(weight for items in packed for weight in items) == sorted(weights)
    assert len(packed) == min(lists, len(weights))
    totals = [sum(items) for items in packed]
    assert totals == sorted(totals, reverse=True)
    if totals:
        assert max(totals) - min(totals) <= max(weights) + len(weights)


@pytest.mark.parametrize("lists", [1, 3])
def test_the_heaviest_item_goes_first(lists):
    assert pack_by_weight([1, 9, 5, 7], itself, lists)[0][0] == 9


@given(WEIGHTS, st.integers(0, 3000), st.one_of(st.none(), st.integers(1, 9)))
def test_lists_in_order_stay_within_capacity_and_are_closed_no_earlier_than_they_must_be(weights, capacity, most_items):
    packed = pack_in_order(weights, itself, capacity, most_items=most_items)
    assert [weight for items in packed for weight in items] == weights
    assert all(sum(items) <= capacity or len(items) == 1 for items in packed)
    assert most_items is None or all(len(items) <= most_items for items in packed)
    for items, following in pairwise(packed):
        assert sum(items) + following[0] > capacity or len(items) == most_items


@given(WEIGHTS, st.integers(1, 3000))
def test_an_overfilled_list_reaches_its_capacity_with_its_last_item(weights, capacity):
    packed = pack_in_order(weights, itself, capacity, overfill=True)
    assert [weight for items in packed for weight in items] == weights
    assert all(items for items in packed)
    assert all(sum(items[:-1]) < capacity for items in packed)
    assert all(sum(items) >= capacity for items in packed[:-1])

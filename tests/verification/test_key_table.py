"""The table of keys keeps its keys while it grows, and stays below its limit."""

from __future__ import annotations

import numpy as np
import pytest

from sediment.segment_io.compiled.huge_pages import LARGE_PAGE_BYTES
from sediment.verification import record_kernels as k
from sediment.verification.key_table import KeyTable

SLOT_BYTES = 8 * k.SLOT_FIELDS


@pytest.mark.parametrize("expected", [0, 50_000])  # 50,000 keys: the table that replaces it takes several large pages
def test_a_table_keeps_its_keys_when_it_grows(expected):
    table = KeyTable(1 << 30, expected)
    assert not table.slots.any()
    keys = np.random.default_rng(1).integers(1, 1 << 60, size=(500, k.SLOT_FIELDS))
    for low, high, word in keys:
        table.slots[k.find_key(table.slots, low, high)] = low, high, word
    before = table.slots.nbytes
    assert table.grow()
    assert table.slots.nbytes == 2 * before
    assert (expected > 0) == (table.slots.nbytes > LARGE_PAGE_BYTES)
    assert [table.slots[k.find_key(table.slots, low, high), k.WORD] for low, high, _ in keys] == keys[:, 2].tolist()


def test_a_table_beyond_its_limit_does_not_grow():
    table = KeyTable(LARGE_PAGE_BYTES * 4, 1 << 20)
    slots = table.slots
    assert LARGE_PAGE_BYTES < slots.nbytes * 3 // 2 <= LARGE_PAGE_BYTES * 4
    assert not table.grow() and table.slots is slots

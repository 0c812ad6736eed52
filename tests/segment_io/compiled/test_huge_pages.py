"""Anonymous memory in plain and in large pages."""

import mmap

import pytest

from sediment.segment_io.compiled import huge_pages


@pytest.mark.parametrize("in_large_pages", [False, True])
@pytest.mark.parametrize("size_bytes", [0, 1, 5000, huge_pages.LARGE_PAGE_BYTES, 3 * huge_pages.LARGE_PAGE_BYTES + 17])
def test_memory_is_zeroed_writable_and_as_large_as_asked_for(size_bytes, in_large_pages):
    memory = huge_pages.anonymous_memory(size_bytes, in_large_pages=in_large_pages)
    assert memory.size == max(size_bytes, 1)
    assert not memory.any()
    memory[:] = 255
    assert memory.min() == 255


def test_large_pages_begin_where_the_memory_does():
    assert huge_pages.anonymous_memory(10, in_large_pages=True).ctypes.data % huge_pages.LARGE_PAGE_BYTES == 0


def test_a_system_without_large_pages_gives_plain_ones(monkeypatch):
    monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)
    assert huge_pages.anonymous_memory(5000, in_large_pages=True).size == 5000


def test_memory_without_references_is_reused():
    reserve = huge_pages.PageReserve(in_large_pages=True)
    first = reserve.take_any(3 * huge_pages.LARGE_PAGE_BYTES)
    part, address = first[100:200][10:], first.ctypes.data
    del first
    second = reserve.take_any(3 * huge_pages.LARGE_PAGE_BYTES)
    assert second.ctypes.data != address, "a part of it is still looked at"
    del part
    assert reserve.take_any(3 * huge_pages.LARGE_PAGE_BYTES).ctypes.data == address


def test_memory_that_was_used_is_zeroed_where_that_is_asked_for():
    reserve = huge_pages.PageReserve(in_large_pages=True)
    first = reserve.take_zeroed(huge_pages.LARGE_PAGE_BYTES)
    first[:] = 7
    address = first.ctypes.data
    del first
    second = reserve.take_zeroed(huge_pages.LARGE_PAGE_BYTES)
    assert second.ctypes.data == address
    assert not second.any()


def test_less_than_before_is_the_end_of_what_was_touched():
    reserve = huge_pages.PageReserve(in_large_pages=True)
    first = reserve.take_any(4 * huge_pages.LARGE_PAGE_BYTES)
    end = first.ctypes.data + first.size
    del first
    second = reserve.take_any(1000)
    assert (second.size, second.ctypes.data + second.size) == (1000, end)


def test_no_more_is_kept_than_was_in_use_at_one_time():
    reserve = huge_pages.PageReserve(in_large_pages=True)
    for units in range(1, 6):
        reserve.take_zeroed(units * huge_pages.LARGE_PAGE_BYTES)
        assert reserve.kept_bytes() <= units * huge_pages.LARGE_PAGE_BYTES
    held = [reserve.take_zeroed(huge_pages.LARGE_PAGE_BYTES) for _ in range(5)]
    assert reserve.kept_bytes() == 0
    held.clear()
    assert reserve.kept_bytes() == 5 * huge_pages.LARGE_PAGE_BYTES
    reserve.clear()
    assert reserve.kept_bytes() == 0

"""Anonymous memory in plain and in large pages."""

import mmap

import pytest

from sediment.segment_io import pages


@pytest.mark.parametrize("in_large_pages", [False, True])
@pytest.mark.parametrize("size_bytes", [0, 1, 5000, pages.LARGE_PAGE_BYTES, 3 * pages.LARGE_PAGE_BYTES + 17])
def test_memory_is_zeroed_writable_and_as_large_as_asked_for(size_bytes, in_large_pages):
    memory = pages.anonymous_memory(size_bytes, in_large_pages=in_large_pages)
    assert memory.size == max(size_bytes, 1)
    assert not memory.any()
    memory[:] = 255
    assert memory.min() == 255


def test_large_pages_begin_where_the_memory_does():
    assert pages.anonymous_memory(10, in_large_pages=True).ctypes.data % pages.LARGE_PAGE_BYTES == 0


def test_a_system_without_large_pages_gives_plain_ones(monkeypatch):
    monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)
    assert pages.anonymous_memory(5000, in_large_pages=True).size == 5000

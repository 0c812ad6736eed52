from sediment.compaction.config import dedupe_buffer_bytes_per_thread, holds_several_keys, offset_map_keys
from sediment.segment_io.format.layout import INT64_MAX


def test_the_cleaner_threads_share_the_dedupe_buffer() -> None:
    assert dedupe_buffer_bytes_per_thread(128 << 20, 1) == 128 << 20
    assert dedupe_buffer_bytes_per_thread(128 << 20, 4) == 32 << 20
    assert dedupe_buffer_bytes_per_thread(128 << 20, 0) == 128 << 20


def test_an_offset_map_takes_no_more_keys_than_kafkas_whose_size_is_an_int() -> None:
    """Kafka's CleanerThread gives a map at most 2^31 - 1 bytes, at 24 bytes a slot."""
    assert offset_map_keys((1 << 31) - 1, 0.9) == offset_map_keys(1 << 31, 0.9) == 80_530_636
    assert offset_map_keys(INT64_MAX, 1.0) == 89_478_485


def test_slots_and_keys_are_rounded_down_and_a_map_must_hold_more_than_one_key() -> None:
    assert offset_map_keys(24 * 5 - 1, 0.9) == 3
    assert not holds_several_keys(48, 0.5) and holds_several_keys(72, 0.5)


def test_a_map_without_a_size_is_unlimited() -> None:
    assert offset_map_keys(None, 0.9) == INT64_MAX

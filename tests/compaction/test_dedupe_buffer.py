from sediment.compaction.config import dedupe_buffer_bytes_per_thread


def test_the_cleaner_threads_share_the_dedupe_buffer() -> None:
    assert dedupe_buffer_bytes_per_thread(128 << 20, 1) == 128 << 20
    assert dedupe_buffer_bytes_per_thread(128 << 20, 4) == 32 << 20
    assert dedupe_buffer_bytes_per_thread(128 << 20, 0) == 128 << 20

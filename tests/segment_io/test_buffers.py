from sediment.segment_io.buffers import count_bytes


def test_each_piece_is_counted_after_it_was_taken():
    sizes: list[int] = []
    pieces = count_bytes([b"abcde", b"", b"fg"], sizes.append, most_bytes=2)
    assert (bytes(next(pieces)), sizes) == (b"ab", [])
    assert (b"".join(pieces), sizes) == (b"cdefg", [2, 2, 1, 2])

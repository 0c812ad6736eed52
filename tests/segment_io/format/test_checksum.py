import google_crc32c as library
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sediment.segment_io.compiled.jit import kernel
from sediment.segment_io.format.checksum import LONG_STREAM_BYTES, SHORT_STREAM_BYTES, crc32c


@kernel
def checksum_of(data, start):
    return crc32c(data.ctypes.data + start, data.size - start)


def test_the_check_value_of_the_standard():
    assert checksum_of(np.frombuffer(b"123456789", dtype=np.uint8), 0) == 0xE3069283


@given(st.binary(max_size=2000), st.integers(0, 7))
def test_the_checksum_equals_the_library_for_any_bytes_and_alignment(data, start):
    array = np.frombuffer(b"x" * start + data, dtype=np.uint8)
    assert checksum_of(array, start) == library.value(data)


def test_every_boundary_of_the_three_streams_joins():
    data = np.random.default_rng(3).integers(0, 256, 7 * LONG_STREAM_BYTES, dtype=np.uint8)
    for streams in (3 * SHORT_STREAM_BYTES, 3 * LONG_STREAM_BYTES, 6 * LONG_STREAM_BYTES):
        for length in range(streams - 9, streams + 10):
            assert checksum_of(data[:length], 0) == library.value(data[:length].tobytes())

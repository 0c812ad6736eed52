import numpy as np
import pytest
import xxhash

from sediment.segment_io.compiled.jit import kernel
from sediment.segment_io.format.hashing import hash_key, hash_secrets


@kernel
def hash_of(data, seed, secrets):
    return hash_key(data.ctypes.data, data.size, seed, secrets.ctypes.data)


LENGTHS = [*range(0, 300), 511, 512, 513, 1023, 1024, 1025, 1088, 1089, 2048, 2049, 4096, 10_000, 65_537]


@pytest.mark.parametrize("seed", [0, 1, 0x1234_5678_9ABC_DEF0, 2**63 - 1])
def test_the_hash_equals_the_library_for_every_length_class(seed):
    secrets = hash_secrets(seed)
    data = np.random.default_rng(7).integers(0, 256, max(LENGTHS), dtype=np.uint8)
    for length in LENGTHS:
        low, high = hash_of(data[:length], np.uint64(seed), secrets)
        expected = xxhash.xxh3_128_intdigest(data[:length].tobytes(), seed)
        assert (int(high) << 64) | int(low) == expected, f"length {length}"


def test_different_seeds_hash_differently():
    data = np.frombuffer(b"key", dtype=np.uint8)
    assert hash_of(data, np.uint64(1), hash_secrets(1)) != hash_of(data, np.uint64(2), hash_secrets(2))

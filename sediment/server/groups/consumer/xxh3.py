"""XXH3, the 64-bit hash function that computes the metadata hash of a group.

    up to 16 bytes, 128 bytes, 240 bytes    one formula each
    more                                    stripes of 64 bytes, in blocks of 16 stripes

Source: the specification of XXH3 (xxHash, `doc/xxhash_spec.md`), without a seed.
"""

from __future__ import annotations

import struct

_MASK = (1 << 64) - 1
_MASK_32 = (1 << 32) - 1
_SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
    "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
    "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
    "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e"
    "2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
_P32_1, _P32_2, _P32_3 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D
_P64_1, _P64_2, _P64_3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_P64_4, _P64_5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
_MX1, _MX2 = 0x165667919E3779F9, 0x9FB21C651E98DF25
_STRIPE_BYTES = 64
_STRIPES_OF_A_BLOCK = (len(_SECRET) - _STRIPE_BYTES) // 8
_LANES = struct.Struct("<8Q")


def xxh3_64(data: bytes) -> int:
    """Return the hash as an unsigned number."""
    size = len(data)
    if size <= 16:
        return _up_to_16(data, size)
    if size <= 128:
        return _up_to_128(data, size)
    return _up_to_240(data, size) if size <= 240 else _long(data, size)


def _u32(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 4], "little")


def _u64(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 8], "little")


def _folded(left: int, right: int) -> int:
    product = left * right
    return (product & _MASK) ^ (product >> 64)


def _avalanche(value: int) -> int:
    value ^= value >> 37
    value = value * _MX1 & _MASK
    return value ^ value >> 32


def _avalanche_64(value: int) -> int:
    value ^= value >> 33
    value = value * _P64_2 & _MASK
    value ^= value >> 29
    value = value * _P64_3 & _MASK
    return value ^ value >> 32


def _up_to_16(data: bytes, size: int) -> int:
    if size > 8:
        low = _u64(data, 0) ^ _u64(_SECRET, 24) ^ _u64(_SECRET, 32)
        high = _u64(data, size - 8) ^ _u64(_SECRET, 40) ^ _u64(_SECRET, 48)
        swapped = int.from_bytes(low.to_bytes(8, "little"), "big")
        return _avalanche((size + swapped + high + _folded(low, high)) & _MASK)
    if size >= 4:
        value = (_u32(data, size - 4) + (_u32(data, 0) << 32)) ^ _u64(_SECRET, 8) ^ _u64(_SECRET, 16)
        value ^= (value << 49 | value >> 15) & _MASK ^ (value << 24 | value >> 40) & _MASK
        value = value * _MX2 & _MASK
        value ^= (value >> 35) + size
        value = value * _MX2 & _MASK
        return value ^ value >> 28
    if size == 0:
        return _avalanche_64(_u64(_SECRET, 56) ^ _u64(_SECRET, 64))
    combined = data[size - 1] | size << 8 | data[0] << 16 | data[size >> 1] << 24
    return _avalanche_64(combined ^ _u32(_SECRET, 0) ^ _u32(_SECRET, 4))


def _mixed(data: bytes, at: int, secret_at: int) -> int:
    return _folded(_u64(data, at) ^ _u64(_SECRET, secret_at), _u64(data, at + 8) ^ _u64(_SECRET, secret_at + 8))


def _up_to_128(data: bytes, size: int) -> int:
    value = size * _P64_1
    for pair in range((size - 1) // 32, -1, -1):
        value += _mixed(data, 16 * pair, 32 * pair) + _mixed(data, size - 16 * (pair + 1), 32 * pair + 16)
    return _avalanche(value & _MASK)


def _up_to_240(data: bytes, size: int) -> int:
    value = size * _P64_1 + sum(_mixed(data, 16 * each, 16 * each) for each in range(8))
    value = _avalanche(value & _MASK)
    value += sum(_mixed(data, 16 * each, 16 * (each - 8) + 3) for each in range(8, size // 16))
    return _avalanche((value + _mixed(data, size - 16, 136 - 17)) & _MASK)


def _long(data: bytes, size: int) -> int:
    lanes = [_P32_3, _P64_1, _P64_2, _P64_3, _P64_4, _P32_2, _P64_5, _P32_1]
    for stripe in range((size - 1) // _STRIPE_BYTES):
        in_block = stripe % _STRIPES_OF_A_BLOCK
        _accumulate(lanes, data, stripe * _STRIPE_BYTES, 8 * in_block)
        if in_block == _STRIPES_OF_A_BLOCK - 1:
            _scramble(lanes)
    _accumulate(lanes, data, size - _STRIPE_BYTES, len(_SECRET) - _STRIPE_BYTES - 7)
    value = size * _P64_1
    for pair in range(4):
        left = lanes[2 * pair] ^ _u64(_SECRET, 11 + 16 * pair)
        value += _folded(left, lanes[2 * pair + 1] ^ _u64(_SECRET, 19 + 16 * pair))
    return _avalanche(value & _MASK)


def _accumulate(lanes: list[int], data: bytes, at: int, secret_at: int) -> None:
    words = _LANES.unpack_from(data, at)
    for lane, (word, secret) in enumerate(zip(words, _LANES.unpack_from(_SECRET, secret_at), strict=True)):
        key = word ^ secret
        lanes[lane ^ 1] = (lanes[lane ^ 1] + word) & _MASK
        lanes[lane] = (lanes[lane] + (key & _MASK_32) * (key >> 32)) & _MASK


def _scramble(lanes: list[int]) -> None:
    secrets = _LANES.unpack_from(_SECRET, len(_SECRET) - _STRIPE_BYTES)
    for lane, secret in enumerate(secrets):
        value = lanes[lane]
        lanes[lane] = (value ^ value >> 47 ^ secret) * _P32_1 & _MASK

"""XXH3 with 128 bits and a seed, as a compiled loop for record keys, with the same results as the xxhash library.

`secrets`, uint8[384], contains the 192 secret bytes of XXH3.  They are followed by 192 bytes that are derived from the
seed, for inputs above 240 bytes.
"""

from __future__ import annotations

import secrets as entropy

import numpy as np
import numpy.typing as npt

from sediment.segment_io.compiled.jit import kernel
from sediment.segment_io.compiled.memory import load_u8, load_word32, load_word64, multiply_high, swap_word64

_SECRET = np.frombuffer(
    bytes.fromhex(
        "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221"
        "b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8a8"
        "fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb17"
        "0ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
    ),
    dtype=np.uint8,
)
_Lanes = tuple[np.uint64, ...]  # eight

_PRIME32_1 = np.uint64(0x9E3779B1)
_PRIME32_2 = np.uint64(0x85EBCA77)
_PRIME32_3 = np.uint64(0xC2B2AE3D)
_PRIME64_1 = np.uint64(0x9E3779B185EBCA87)
_PRIME64_2 = np.uint64(0xC2B2AE3D27D4EB4F)
_PRIME64_3 = np.uint64(0x165667B19E3779F9)
_PRIME64_4 = np.uint64(0x85EBCA77C2B2AE63)
_PRIME64_5 = np.uint64(0x27D4EB2F165667C5)
_PRIME_MX1 = np.uint64(0x165667919E3779F9)
_PRIME_MX2 = np.uint64(0x9FB21C651E98DF25)
_LOW32 = np.uint64(0xFFFFFFFF)
_SECRET_BYTES = 192
_SHORTEST_SECRET_BYTES = 136
_STRIPE_BYTES = 64
_BLOCK_BYTES = 1024
_LONG_BYTES = 240


def _words(offset: int) -> np.uint64:
    first, second = np.frombuffer(_SECRET.tobytes()[offset : offset + 16], dtype="<u8")
    return np.uint64(first ^ second)


_FLIP_3_LOW = np.uint64(int.from_bytes(_SECRET[0:4], "little") ^ int.from_bytes(_SECRET[4:8], "little"))
_FLIP_3_HIGH = np.uint64(int.from_bytes(_SECRET[8:12], "little") ^ int.from_bytes(_SECRET[12:16], "little"))
_FLIP_8 = _words(16)
_FLIP_16_LOW = _words(32)
_FLIP_16_HIGH = _words(48)
_FLIP_0_LOW = _words(64)
_FLIP_0_HIGH = _words(80)


def draw_seed() -> int:
    """Return a random seed for one run, below 2^63."""
    # Every run draws a new seed, so an attacker cannot prepare colliding keys.  The result of a run does not depend on
    # the seed.
    return entropy.randbits(63)


def hash_secrets(seed: int) -> npt.NDArray[np.uint8]:
    own = np.frombuffer(_SECRET.tobytes(), dtype="<u8").reshape(-1, 2)
    derived = own.copy()
    with np.errstate(over="ignore"):
        derived[:, 0] += np.uint64(seed)
        derived[:, 1] -= np.uint64(seed)
    return np.concatenate([own.reshape(-1), derived.reshape(-1)]).view(np.uint8)


@kernel
def _avalanche(word: np.uint64) -> np.uint64:
    word ^= word >> np.uint64(37)
    word *= _PRIME_MX1
    return word ^ (word >> np.uint64(32))


@kernel
def _avalanche64(word: np.uint64) -> np.uint64:
    word ^= word >> np.uint64(33)
    word *= _PRIME64_2
    word ^= word >> np.uint64(29)
    word *= _PRIME64_3
    return word ^ (word >> np.uint64(32))


@kernel
def _product(left: np.uint64, right: np.uint64) -> tuple[np.uint64, np.uint64]:
    return left * right, multiply_high(left, right)


@kernel
def _fold(left: np.uint64, right: np.uint64) -> np.uint64:
    low, high = _product(left, right)
    return low ^ high


@kernel
def _swap32(word: np.uint64) -> np.uint64:
    return swap_word64(word) >> np.uint64(32)


@kernel
def _hash_1_to_3(address: int, length: int, seed: np.uint64) -> tuple[np.uint64, np.uint64]:
    first = np.uint64(load_u8(address))
    middle = np.uint64(load_u8(address + (length >> 1)))
    last = np.uint64(load_u8(address + length - 1))
    low = (first << np.uint64(16)) | (middle << np.uint64(24)) | last | (np.uint64(length) << np.uint64(8))
    swapped = _swap32(low)
    high: np.uint64 = ((swapped << np.uint64(13)) | (swapped >> np.uint64(19))) & _LOW32
    return _avalanche64(low ^ (_FLIP_3_LOW + seed)), _avalanche64(high ^ (_FLIP_3_HIGH - seed))


@kernel
def _hash_4_to_8(address: int, length: int, seed: np.uint64) -> tuple[np.uint64, np.uint64]:
    seed ^= _swap32(seed & _LOW32) << np.uint64(32)
    keyed = load_word32(address) + (load_word32(address + length - 4) << np.uint64(32))
    keyed ^= _FLIP_8 + seed
    low, high = _product(keyed, _PRIME64_1 + (np.uint64(length) << np.uint64(2)))
    high += low << np.uint64(1)
    low ^= high >> np.uint64(3)
    low ^= low >> np.uint64(35)
    low *= _PRIME_MX2
    low ^= low >> np.uint64(28)
    return low, _avalanche(high)


@kernel
def _hash_9_to_16(address: int, length: int, seed: np.uint64) -> tuple[np.uint64, np.uint64]:
    first = load_word64(address)
    last = load_word64(address + length - 8)
    keyed = first ^ last ^ (_FLIP_16_LOW - seed)
    low, high = _product(keyed, _PRIME64_1)
    low += np.uint64(length - 1) << np.uint64(54)
    last ^= _FLIP_16_HIGH + seed
    high += last + (last & _LOW32) * (_PRIME32_2 - np.uint64(1))
    low ^= swap_word64(high)
    result_low, result_high = _product(low, _PRIME64_2)
    return _avalanche(result_low), _avalanche(result_high + high * _PRIME64_2)


@kernel
def _mix_16(address: int, secret: int, seed: np.uint64) -> np.uint64:
    return _fold(
        load_word64(address) ^ (load_word64(secret) + seed), load_word64(address + 8) ^ (load_word64(secret + 8) - seed)
    )


@kernel
def _mix_32(
    low: np.uint64, high: np.uint64, left: int, right: int, secret: int, seed: np.uint64
) -> tuple[np.uint64, np.uint64]:
    low += _mix_16(left, secret, seed)
    low ^= load_word64(right) + load_word64(right + 8)
    high += _mix_16(right, secret + 16, seed)
    high ^= load_word64(left) + load_word64(left + 8)
    return low, high


@kernel
def _finish_mixed(low: np.uint64, high: np.uint64, length: int, seed: np.uint64) -> tuple[np.uint64, np.uint64]:
    mixed = low * _PRIME64_1 + high * _PRIME64_4 + (np.uint64(length) - seed) * _PRIME64_2
    return _avalanche(low + high), np.uint64(0) - _avalanche(mixed)


@kernel
def _hash_17_to_128(address: int, length: int, seed: np.uint64, secret: int) -> tuple[np.uint64, np.uint64]:
    low = np.uint64(length) * _PRIME64_1
    high = np.uint64(0)
    for step in range((length - 1) // 32, -1, -1):
        low, high = _mix_32(
            low, high, address + 16 * step, address + length - 16 * (step + 1), secret + 32 * step, seed
        )
    return _finish_mixed(low, high, length, seed)


@kernel
def _hash_129_to_240(address: int, length: int, seed: np.uint64, secret: int) -> tuple[np.uint64, np.uint64]:
    low = np.uint64(length) * _PRIME64_1
    high = np.uint64(0)
    for position in range(0, 128, 32):
        low, high = _mix_32(low, high, address + position, address + position + 16, secret + position, seed)
    low = _avalanche(low)
    high = _avalanche(high)
    for position in range(128, length - 31, 32):
        low, high = _mix_32(low, high, address + position, address + position + 16, secret + 3 + position - 128, seed)
    low, high = _mix_32(
        low,
        high,
        address + length - 16,
        address + length - 32,
        secret + _SHORTEST_SECRET_BYTES - 33,
        np.uint64(0) - seed,
    )
    return _finish_mixed(low, high, length, seed)


@kernel
def _accumulated(lane: np.uint64, index: int, address: int, secret: int) -> np.uint64:
    keyed = load_word64(address + 8 * index) ^ load_word64(secret + 8 * index)
    return lane + load_word64(address + 8 * (index ^ 1)) + (keyed & _LOW32) * (keyed >> np.uint64(32))


@kernel
def _accumulate(lanes: _Lanes, address: int, secret: int) -> _Lanes:
    return (
        _accumulated(lanes[0], 0, address, secret),
        _accumulated(lanes[1], 1, address, secret),
        _accumulated(lanes[2], 2, address, secret),
        _accumulated(lanes[3], 3, address, secret),
        _accumulated(lanes[4], 4, address, secret),
        _accumulated(lanes[5], 5, address, secret),
        _accumulated(lanes[6], 6, address, secret),
        _accumulated(lanes[7], 7, address, secret),
    )


@kernel
def _scrambled(lane: np.uint64, secret: int) -> np.uint64:
    return (lane ^ (lane >> np.uint64(47)) ^ load_word64(secret)) * _PRIME32_1


@kernel
def _scramble(lanes: _Lanes, secret: int) -> _Lanes:
    return (
        _scrambled(lanes[0], secret),
        _scrambled(lanes[1], secret + 8),
        _scrambled(lanes[2], secret + 16),
        _scrambled(lanes[3], secret + 24),
        _scrambled(lanes[4], secret + 32),
        _scrambled(lanes[5], secret + 40),
        _scrambled(lanes[6], secret + 48),
        _scrambled(lanes[7], secret + 56),
    )


@kernel
def _merge(lanes: _Lanes, secret: int, start: np.uint64) -> np.uint64:
    start += _fold(lanes[0] ^ load_word64(secret), lanes[1] ^ load_word64(secret + 8))
    start += _fold(lanes[2] ^ load_word64(secret + 16), lanes[3] ^ load_word64(secret + 24))
    start += _fold(lanes[4] ^ load_word64(secret + 32), lanes[5] ^ load_word64(secret + 40))
    start += _fold(lanes[6] ^ load_word64(secret + 48), lanes[7] ^ load_word64(secret + 56))
    return _avalanche(start)


@kernel
def _hash_long(address: int, length: int, secret: int) -> tuple[np.uint64, np.uint64]:
    lanes: _Lanes = (
        _PRIME32_3,
        _PRIME64_1,
        _PRIME64_2,
        _PRIME64_3,
        _PRIME64_4,
        _PRIME32_2,
        _PRIME64_5,
        _PRIME32_1,
    )
    last_secret = secret + _SECRET_BYTES - _STRIPE_BYTES
    stripes = (length - 1) // _STRIPE_BYTES
    for stripe in range(stripes):
        in_block = stripe % (_BLOCK_BYTES // _STRIPE_BYTES)
        lanes = _accumulate(lanes, address + stripe * _STRIPE_BYTES, secret + 8 * in_block)
        if in_block == _BLOCK_BYTES // _STRIPE_BYTES - 1:
            lanes = _scramble(lanes, last_secret)
    lanes = _accumulate(lanes, address + length - _STRIPE_BYTES, last_secret - 7)
    low = _merge(lanes, secret + 11, np.uint64(length) * _PRIME64_1)
    high = _merge(lanes, last_secret - 11, ~(np.uint64(length) * _PRIME64_2))
    return low, high


@kernel
def hash_key(address: int, length: int, seed: np.uint64, secrets: int) -> tuple[np.uint64, np.uint64]:
    """Return the XXH3-128 of `length` bytes as (low, high); `secrets` is the address of `hash_secrets(seed)`."""
    if length <= 16:
        if length > 8:
            return _hash_9_to_16(address, length, seed)
        if length >= 4:
            return _hash_4_to_8(address, length, seed)
        if length > 0:
            return _hash_1_to_3(address, length, seed)
        return _avalanche64(seed ^ _FLIP_0_LOW), _avalanche64(seed ^ _FLIP_0_HIGH)
    if length <= 128:
        return _hash_17_to_128(address, length, seed, secrets)
    if length <= _LONG_BYTES:
        return _hash_129_to_240(address, length, seed, secrets)
    return _hash_long(address, length, secrets + _SECRET_BYTES)

"""Comparison of bytes by address, for compiled loops."""

from __future__ import annotations

from sediment.segment_io.compiled.jit import kernel
from sediment.segment_io.compiled.memory import load_u8, load_word64


@kernel
def equal_bytes(first: int, second: int, count: int) -> bool:
    """Return True if the `count` bytes at both addresses are equal."""
    whole = count & ~7
    for index in range(0, whole, 8):
        if load_word64(first + index) != load_word64(second + index):
            return False
    difference = 0
    for index in range(whole, count):
        difference |= load_u8(first + index) ^ load_u8(second + index)
    return difference == 0

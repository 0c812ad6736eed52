"""Unaligned loads and stores by address, for compiled loops.

Invariants
* An address is an int64, and the caller must have checked the bounds.
* Big-endian fields are loaded sign-extended into an int64; words for hashing are uint64.
* int64 and uint64 are never mixed in one expression, because numba would then compute in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import llvmlite.binding
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from sediment.segment_io.compiled.jit import kernel


def _intrinsic(typed: Callable[..., Any]) -> Any:
    """Return `typed` as a numba intrinsic of type `Any`: callers pass addresses and words, not numba's types."""
    return intrinsic(typed)


_I8, _I16, _I32, _I64, _I128 = (ir.IntType(bits) for bits in (8, 16, 32, 64, 128))


def _pointer(builder: Any, address: Any, kind: ir.IntType) -> Any:
    return builder.inttoptr(address, kind.as_pointer())


def _loader(kind: ir.IntType, *, swap: bool, signed: bool, result: Any) -> Any:
    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        value = builder.load(_pointer(builder, arguments[0], kind), align=1)
        if swap:
            value = builder.bswap(value)
        if kind is _I64:
            return value
        return builder.sext(value, _I64) if signed else builder.zext(value, _I64)

    def typed(_typing: Any, _address: Any) -> Any:
        return result(types.int64), generate

    return _intrinsic(typed)


def _storer(kind: ir.IntType, *, swap: bool = True, value_type: Any = types.int64) -> Any:
    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        value = arguments[1]
        if kind is not _I64:
            value = builder.trunc(value, kind)
        if swap:
            value = builder.bswap(value)
        builder.store(value, _pointer(builder, arguments[0], kind), align=1)
        return ir.Constant(_I64, 0)

    def typed(_typing: Any, _address: Any, _value: Any) -> Any:
        return types.int64(types.int64, value_type), generate

    return _intrinsic(typed)


load_u8 = _loader(_I8, swap=False, signed=False, result=types.int64)
load_i8 = _loader(_I8, swap=False, signed=True, result=types.int64)
load_i16 = _loader(_I16, swap=True, signed=True, result=types.int64)
load_i32 = _loader(_I32, swap=True, signed=True, result=types.int64)
load_u32 = _loader(_I32, swap=True, signed=False, result=types.int64)
load_i64 = _loader(_I64, swap=True, signed=True, result=types.int64)
load_little_u16 = _loader(_I16, swap=False, signed=False, result=types.int64)
load_little_u32 = _loader(_I32, swap=False, signed=False, result=types.int64)
load_little_i64 = _loader(_I64, swap=False, signed=True, result=types.int64)
load_word32 = _loader(_I32, swap=False, signed=False, result=types.uint64)
load_word64 = _loader(_I64, swap=False, signed=False, result=types.uint64)

store_i8 = _storer(_I8, swap=False)
store_i16 = _storer(_I16)
store_i32 = _storer(_I32)
store_i64 = _storer(_I64)
store_little_u16 = _storer(_I16, swap=False)
store_little_u32 = _storer(_I32, swap=False)
store_word64 = _storer(_I64, swap=False, value_type=types.uint64)


@_intrinsic
def copy_bytes(_typing: Any, _target: Any, _source: Any, _count: Any) -> Any:
    """Copy `count` bytes: `copy_bytes(target, source, count)`; the regions must not overlap."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        target, source, count = arguments
        byte = _I8.as_pointer()
        copy = builder.module.declare_intrinsic("llvm.memcpy", [byte, byte, _I64])
        builder.call(
            copy,
            [builder.inttoptr(target, byte), builder.inttoptr(source, byte), count, ir.Constant(ir.IntType(1), 0)],
        )
        return ir.Constant(_I64, 0)

    return types.int64(types.int64, types.int64, types.int64), generate


@_intrinsic
def zero_bytes(_typing: Any, _target: Any, _count: Any) -> Any:
    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        byte = _I8.as_pointer()
        fill = builder.module.declare_intrinsic("llvm.memset", [byte, _I64])
        target, count = arguments
        zero, is_volatile = ir.Constant(_I8, 0), ir.Constant(ir.IntType(1), 0)
        builder.call(fill, [builder.inttoptr(target, byte), zero, count, is_volatile])
        return ir.Constant(_I64, 0)

    return types.int64(types.int64, types.int64), generate


@_intrinsic
def prefetch(_typing: Any, _address: Any) -> Any:
    """Prefetch the cache line at an address; any address is allowed."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        byte = _I8.as_pointer()
        ask = builder.module.declare_intrinsic(
            "llvm.prefetch", [byte], ir.FunctionType(ir.VoidType(), [byte, _I32, _I32, _I32])
        )
        write, near, data = ir.Constant(_I32, 1), ir.Constant(_I32, 3), ir.Constant(_I32, 1)
        builder.call(ask, [builder.inttoptr(arguments[0], byte), write, near, data])
        return ir.Constant(_I64, 0)

    return types.int64(types.int64), generate


@_intrinsic
def swap_word64(_typing: Any, _word: Any) -> Any:
    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.bswap(arguments[0])

    return types.uint64(types.uint64), generate


@_intrinsic
def trailing_zeros(_typing: Any, _word: Any) -> Any:
    """Return the number of zero bits below the lowest set bit of a word that is not zero."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), generate


@_intrinsic
def multiply_high(_typing: Any, _left: Any, _right: Any) -> Any:
    """Return the upper 64 bits of the 128-bit product of two uint64."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        left, right = (builder.zext(argument, _I128) for argument in arguments)
        return builder.trunc(builder.lshr(builder.mul(left, right), ir.Constant(_I128, 64)), _I64)

    return types.uint64(types.uint64, types.uint64), generate


def _call(builder: Any, result: ir.IntType, arguments: Any) -> Any:
    kind = ir.FunctionType(result, [_I64] * (len(arguments) - 1))
    value = builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), arguments[1:])
    return value if result is _I64 else builder.sext(value, _I64)


@_intrinsic
def call_for_int(_typing: Any, _function: Any, _a: Any, _b: Any, _c: Any, _d: Any) -> Any:
    """Call the C function at an address, with four words as arguments; the function returns an int."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return _call(builder, _I32, arguments)

    return types.int64(*[types.int64] * 5), generate


@_intrinsic
def call_for_size(_typing: Any, _function: Any, _a: Any, _b: Any, _c: Any, _d: Any, _e: Any) -> Any:
    """Call the C function at an address, with five words as arguments; return its size_t as an int64."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return _call(builder, _I64, arguments)

    return types.int64(*[types.int64] * 6), generate


@_intrinsic
def call_for_status(_typing: Any, _function: Any, _a: Any, _b: Any, _c: Any, _d: Any, _e: Any, _f: Any, _g: Any) -> Any:
    """Call the C function at an address, with seven words as arguments; the function returns an enum."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return _call(builder, _I32, arguments)

    return types.int64(*[types.int64] * 8), generate


def _crc_instruction() -> str | None:
    """Return the LLVM name of this CPU's CRC-32C instruction for eight bytes; None if the CPU has none."""
    features = llvmlite.binding.get_host_cpu_features()
    machine = llvmlite.binding.get_process_triple().split("-")[0]
    if machine == "x86_64" and features.get("sse4.2"):
        return "llvm.x86.sse42.crc32.64.64"
    if machine in ("aarch64", "arm64") and features.get("crc"):
        return "llvm.aarch64.crc32cx"
    return None


CRC_INSTRUCTION = _crc_instruction()


@_intrinsic
def crc32c_word(_typing: Any, _crc: Any, _word: Any) -> Any:
    """Return the CRC-32C state (uint64) after eight more bytes; this needs a CPU with CRC_INSTRUCTION."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        crc, word = arguments
        if CRC_INSTRUCTION is not None and "x86" in CRC_INSTRUCTION:
            step = builder.module.declare_intrinsic(CRC_INSTRUCTION, (), ir.FunctionType(_I64, [_I64, _I64]))
            return builder.call(step, [crc, word])
        step = builder.module.declare_intrinsic(str(CRC_INSTRUCTION), (), ir.FunctionType(_I32, [_I32, _I64]))
        return builder.zext(builder.call(step, [builder.trunc(crc, _I32), word]), _I64)

    return types.uint64(types.uint64, types.uint64), generate


@kernel
def equal_bytes(first: int, second: int, count: int) -> bool:
    whole = count & ~7
    for index in range(0, whole, 8):
        if load_word64(first + index) != load_word64(second + index):
            return False
    difference = 0
    for index in range(whole, count):
        difference |= load_u8(first + index) ^ load_u8(second + index)
    return difference == 0

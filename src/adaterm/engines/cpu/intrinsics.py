"""What the CPU's loops need and Numba has not: pointers, atomics, half precisions, calls of C functions."""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

UNITS = {
    "float32": np.float32(0),
    "float64": np.float64(0),
    "bfloat16": np.uint16(0),
    "float16": np.int16(0),
}
"""How numbers of a precision are stored, by a zero of the type that Numba knows for it."""


@intrinsic
def pointer(typing: Any, address: Any, like: Any) -> Any:
    """An address as a pointer to elements of the type of `like`."""
    target = types.CPointer(like)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(target))

    return target(address, like), generate


@intrinsic
def cast(typing: Any, value: Any, like: Any) -> Any:
    """A number in the precision of another: a bare one would make everything double."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return context.cast(builder, args[0], signature.args[0], signature.return_type)

    return like(value, like), generate


@intrinsic
def fetch_add(typing: Any, address: Any, value: Any) -> Any:
    """Add to an integer that other threads see and change, and return what it was."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], context.get_value_type(types.CPointer(types.int64)))
        return builder.atomic_rmw("add", pointer, args[1], "seq_cst")

    return types.int64(types.int64, types.int64), generate


@intrinsic
def load(typing: Any, address: Any) -> Any:
    """An integer that other threads change, and with it all that they wrote before."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], context.get_value_type(types.CPointer(types.int64)))
        return builder.load_atomic(pointer, "acquire", 8)

    return types.int64(types.int64), generate


@intrinsic
def call(typing: Any, address: Any) -> Any:
    """Call a C function without arguments that returns an int."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.IntType(32), [])
        return builder.call(builder.inttoptr(args[0], kind.as_pointer()), [])

    return types.int32(types.int64), generate


@intrinsic
def do(typing: Any, address: Any, context: Any, item: Any) -> Any:
    """Call a C function of two addresses that returns nothing."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [ir.IntType(64), ir.IntType(64)])
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), args[1:])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@intrinsic
def wide(typing: Any, stored: Any, like: Any) -> Any:
    """A stored number in the precision of another; half precisions are stored as integers, see UNITS."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if stored not in (types.uint16, types.int16):
            return context.cast(builder, args[0], stored, like)
        if stored == types.uint16:
            bits = builder.shl(builder.zext(args[0], ir.IntType(32)), ir.IntType(32)(16))
            value = builder.bitcast(bits, ir.FloatType())
        else:
            value = builder.fpext(builder.bitcast(args[0], ir.HalfType()), ir.FloatType())
        return context.cast(builder, value, types.float32, like)

    return like(stored, like), generate


@intrinsic
def narrow(typing: Any, value: Any, stored: Any) -> Any:
    """A number as it is stored, rounded to the nearest."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if stored not in (types.uint16, types.int16):
            return context.cast(builder, args[0], value, stored)
        number, short, full = context.cast(builder, args[0], value, types.float32), ir.IntType(16), ir.IntType(32)
        if stored == types.int16:
            return builder.bitcast(builder.fptrunc(number, ir.HalfType()), short)
        bits = builder.bitcast(number, full)
        odd = builder.and_(builder.lshr(bits, full(16)), full(1))  # a tie goes to the even neighbour
        moved = builder.lshr(builder.add(bits, builder.add(odd, full(0x7FFF))), full(16))
        is_nan = builder.fcmp_unordered("uno", number, number)
        return builder.trunc(builder.select(is_nan, full(0x7FC0), moved), short)

    return stored(value, stored), generate


@intrinsic
def noisy(typing: Any, value: Any, bits: Any) -> Any:
    """A float32 that bfloat16 can hold: sixteen random bits decide whether it is the one above or the one below."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        full = ir.IntType(32)
        moved = builder.add(builder.bitcast(args[0], full), builder.trunc(args[1], full))
        return builder.bitcast(builder.and_(moved, full(0xFFFF0000)), ir.FloatType())

    return types.float32(types.float32, types.int64), generate

"""What kernels read and write: the numbers of a table, and a tensor's elements, scalars and rates."""

import triton
import triton.language as tl

from adaterm import rounding
from adaterm.engines import layout
from adaterm.engines.gpu.case import compile_function

INF = tl.constexpr(float("inf"))
PARAMETER, GRADIENT, MEAN, SCALE, STEP, WINDOW, SIZE, WHOLE_SIZE, TRIGAMMA, FIRST_CHUNK, STREAM = (
    tl.constexpr(column) for column in range(layout.SHARED_COLUMNS)
)
FIRST_NUMBER, FIRST_SCALAR = tl.constexpr(layout.SHARED_NUMBERS), tl.constexpr(layout.SHARED_COLUMNS)

noise = compile_function(rounding.noise, {"Any": tl.constexpr(None)})


@triton.jit
def load_wide(pointer):
    return tl.load(pointer).to(tl.float64)


@triton.jit
def load_number(table, column):
    return tl.load(table + column).to(tl.float64, bitcast=True)


@triton.jit
def load_numbers(table, CASE: tl.constexpr, DTYPE: tl.constexpr):
    """The rule's numbers."""
    COUNT: tl.constexpr = CASE.number_count
    values = (load_number(table, FIRST_NUMBER).to(DTYPE),)
    for index in tl.static_range(1, COUNT):
        values = values + (load_number(table, FIRST_NUMBER + index).to(DTYPE),)
    return values


@triton.jit
def find_tensor(row, column, DTYPE: tl.constexpr, ALIGNED: tl.constexpr):
    pointer = tl.load(row + column).to(tl.pointer_type(DTYPE))
    if ALIGNED:
        pointer = tl.multiple_of(pointer, 16)
    return pointer


@triton.jit
def find_tensors(row, CASE: tl.constexpr):
    """Where gradient, mean, scale and parameter begin."""
    return (
        find_tensor(row, GRADIENT, CASE.gradient, CASE.aligned),
        find_tensor(row, MEAN, CASE.state, CASE.aligned),
        find_tensor(row, SCALE, CASE.state, CASE.aligned),
        find_tensor(row, PARAMETER, CASE.parameter, CASE.aligned),
    )


@triton.jit
def load_scalar(row, INDEX: tl.constexpr, CASE: tl.constexpr, DTYPE: tl.constexpr):
    if CASE.present[INDEX]:
        return tl.load(find_tensor(row, FIRST_SCALAR + INDEX, CASE.state, False)).to(DTYPE)
    else:
        return tl.full((), 0.0, DTYPE)


@triton.jit
def load_scalars(row, CASE: tl.constexpr, DTYPE: tl.constexpr):
    """A tensor's scalars; those that the rule does without are 0."""
    COUNT: tl.constexpr = CASE.scalar_count
    values = (load_scalar(row, 0, CASE, DTYPE),)
    for index in tl.static_range(1, COUNT):
        values = values + (load_scalar(row, index, CASE, DTYPE),)
    return values


@triton.jit
def store_scalars(row, scalars, CASE: tl.constexpr):
    COUNT: tl.constexpr = CASE.scalar_count
    for index in tl.static_range(COUNT):
        if CASE.present[index]:
            tl.store(find_tensor(row, FIRST_SCALAR + index, CASE.state, False), scalars[index].to(CASE.state))


@triton.jit
def load_rates(rates, CASE: tl.constexpr):
    """What weighing a tensor has left for moving it."""
    COUNT: tl.constexpr = CASE.rate_count
    values = (tl.load(rates),)
    for index in tl.static_range(1, COUNT):
        values = values + (tl.load(rates + index),)
    return values


@triton.jit
def load_elements(pointer, offsets, size, other, FULL: tl.constexpr, DTYPE: tl.constexpr):
    if FULL:
        return tl.load(pointer + offsets).to(DTYPE)
    else:
        return tl.load(pointer + offsets, mask=offsets < size, other=other).to(DTYPE)


@triton.jit
def store_elements(pointer, offsets, size, values, FULL: tl.constexpr):
    if FULL:
        tl.store(pointer + offsets, values.to(pointer.dtype.element_ty))
    else:
        tl.store(pointer + offsets, values.to(pointer.dtype.element_ty), mask=offsets < size)


@triton.jit
def round_elements(values, offsets, step, stream):
    """Values that bfloat16 can hold, above or below by chance; what is not finite stays."""
    bits = values.to(tl.int32, bitcast=True)
    moved = (bits + noise(offsets, step, stream).to(tl.int32)) & -65536
    return tl.where(tl.abs(values) < INF, moved.to(tl.float32, bitcast=True), values)

"""Initial contents of a nest's arrays: the same numbers in numpy and in emitted C.

Everything comes from one hash of (seed, array, place), the finaliser of SplitMix64 (Steele, Lea,
Flood 2014), so that an array can be filled in any order and on any machine.
"""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.nests.nest import Nest
from embeddb.nests.parts import Array

DTYPE_OF: dict[str, Any] = {"f32": np.float32, "f64": np.float64, "i32": np.int32, "i64": np.int64}
#: Elements computed at once: they stay in the cache.
_CHUNK = 1 << 16
_BELOW = 10
_ROUNDS = 4
_WEIGHT = 1 << 20


def contents(nest: Nest, number: int, seed: int = 0) -> NDArray[Any]:
    """Initial contents of a nest's array `number` (flat, `dtype[elements]`): numbers of the matrix
    named by its fill, else `filled`.

    Raises: NestError for a missing matrix.
    """
    matrix_numbers = nest.matrix_values(number)
    if matrix_numbers is None:
        return filled(nest.arrays[number], number, seed)
    return matrix_numbers.astype(DTYPE_OF[nest.arrays[number].dtype])


def filled(array: Array, number: int, seed: int = 0) -> NDArray[Any]:
    """Initial contents of an array of that number (flat, `dtype[elements]`) by its `fill`; where
    that names a matrix, similar random numbers. `uniform` means odd multiples of 2**-24 in (0, 1),
    and for integers 0 to 9."""
    values = np.zeros(array.elements, DTYPE_OF[array.dtype])
    kind, *parameters = array.fill.split(":")
    key = _key(number, seed)
    if kind == "zero":
        return values
    if kind == "offsets":
        values[:] = _offsets(array.elements, parameters, key)
        return values
    for low in range(0, values.size, _CHUNK):
        at = np.arange(low, min(low + _CHUNK, values.size), dtype=np.uint64)
        if kind == "range":
            part: NDArray[Any] = at
        elif kind == "permutation":
            part = _permuted(at, array.elements, key)
        elif kind == "below" or array.dtype in ("i32", "i64"):
            part = _hash(at, key) % np.uint64(parameters[0] if parameters else _BELOW)
        else:
            part = _real(_hash(at, key))
        values[low : low + _CHUNK] = part
    return values


def _key(number: int, seed: int) -> int:
    return (seed * 64 + number + 1) << 40


def _hash(at: NDArray[np.uint64], key: int) -> NDArray[np.uint64]:
    x = (at + np.uint64(key & (2**64 - 1))) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _real(hashed: NDArray[np.uint64]) -> NDArray[np.float64]:
    odd = (hashed >> np.uint64(41)) * np.uint64(2) + np.uint64(1)
    return odd.astype(np.float64) * 2.0**-24


def _permuted(at: NDArray[np.uint64], count: int, key: int) -> NDArray[np.uint64]:
    """A permutation of 0 to count - 1: a Feistel network on the smallest sufficient even number of
    bits, repeated until it is in range."""
    half = np.uint64(max(1, ((count - 1).bit_length() + 1) // 2))
    mask = (np.uint64(1) << half) - np.uint64(1)
    permuted = at.copy()
    left = np.arange(at.size)
    while left.size:
        x = permuted[left]
        for turn in range(_ROUNDS):
            low, high = x & mask, x >> half
            x = (low << half) | (high ^ (_hash(low, key + (turn << 32)) & mask))
        permuted[left] = x
        left = left[x >= count]
    return permuted


def _offsets(count: int, parameters: list[str], key: int) -> NDArray[np.int64]:
    """Offsets of `count - 1` rows of `total = parameters[0]` entries in all. The variance of random
    rows' lengths equals their mean; these have S * S times that, with S = `parameters[1]`, 1 by
    default."""
    rows = count - 1
    if rows < 1:
        return np.zeros(count, np.int64)
    total, spread, power = _uneven(parameters, rows)
    u = _real(_hash(np.arange(rows, dtype=np.uint64), key))
    weight = 1.0 + spread * (2.0 * u - 1.0)
    if power:
        weight = u.copy()
        for _ in range(power - 1):
            weight *= u
        weight *= power + 1.0
    sums = np.cumsum((weight * _WEIGHT).astype(np.int64) + 1)
    offsets = np.zeros(count, np.int64)
    offsets[1:] = np.floor(sums.astype(np.float64) / float(sums[-1]) * float(total))
    offsets[-1] = total
    return offsets


def _uneven(parameters: list[str], rows: int) -> tuple[int, float, int]:
    """Entries in all, and the weights of rows: uniform around 1 within a spread, or beyond the
    largest one, a power of uniform numbers (else 0)."""
    total, uneven = int(parameters[0]), float(parameters[1]) if len(parameters) > 1 else 1.0
    square = uneven * uneven * rows / max(total, 1)  # the coefficient of variation, squared
    if square <= 1 / 3:
        return total, sqrt(3 * square), 0
    return total, 0.0, max(1, min(64, round(square + sqrt(square * square + square))))


#: The same in C, above `fill_c`.
FILL_FUNCTIONS = """\
static uint64_t hash(uint64_t at, uint64_t key)
{
    uint64_t x = (at + key) * 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

static double real(uint64_t hashed) { return (double)((hashed >> 41) * 2 + 1) * 0x1p-24; }

/* A permutation of 0 to count - 1: a Feistel network, walked on until it is inside. */
static uint64_t permuted(uint64_t at, uint64_t count, uint64_t key)
{
    int half = 1;
    while (half < 32 && (count - 1) >> (2 * half))
        half++;
    const uint64_t mask = ((uint64_t)1 << half) - 1;
    do
        for (uint64_t turn = 0; turn < 4; turn++) {
            const uint64_t low = at & mask, high = at >> half;
            at = (low << half) | (high ^ (hash(low, key + (turn << 32)) & mask));
        }
    while (at >= count);
    return at;
}

/* Offsets of rows of `total` entries in all: weights around 1, or a power of uniform numbers. */
static int64_t weight(uint64_t row, uint64_t key, double spread, int power)
{
    const double u = real(hash(row, key));
    double w = u;
    for (int n = 1; n < power; n++)
        w *= u;
    w = power ? w * (power + 1.0) : 1.0 + spread * (2.0 * u - 1.0);
    return (int64_t)(w * 1048576.0) + 1;
}
"""


def fill_c(array: Array, number: int, name: str, c_type: str) -> list[str]:
    """Lines of C that fill the array at `name` as `filled` does with seed 0, by
    `FILL_FUNCTIONS`."""
    kind, *parameters = array.fill.split(":")
    key, count = f"{_key(number, 0)}u", array.elements
    if kind == "zero":
        return [f"memset({name}, 0, {array.bytes});"]
    if kind == "offsets":
        return _offsets_c(array, name, key, parameters)
    value = {
        "range": "x",
        "permutation": f"permuted(x, {count}, {key})",
        "below": f"hash(x, {key}) % {parameters[0] if parameters else _BELOW}",
        "uniform": f"real(hash(x, {key}))",
    }[kind]
    if kind == "uniform" and array.dtype in ("i32", "i64"):
        value = f"hash(x, {key}) % {_BELOW}"
    return [f"for (uint64_t x = 0; x < {count}; x++)", f"    {name}[x] = ({c_type})({value});"]


def _offsets_c(array: Array, name: str, key: str, parameters: list[str]) -> list[str]:
    rows = array.elements - 1
    total, spread, power = _uneven(parameters, max(rows, 1))
    weigh = f"weight(x, {key}, {spread!r}, {power})"
    return [
        "{",
        "    int64_t all = 0, sum = 0;",
        f"    for (uint64_t x = 0; x < {rows}; x++)",
        f"        all += {weigh};",
        f"    for (uint64_t x = 0; x < {rows}; x++) {{",
        f"        {name}[x] = (int64_t)((double)sum / (double)all * {total}.0);",
        f"        sum += {weigh};",
        "    }",
        f"    {name}[{rows}] = {total if rows else 0};",
        "}",
    ]

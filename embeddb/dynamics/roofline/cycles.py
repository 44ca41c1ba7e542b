"""Cycles that the generated C takes where all operands are in L1: what each stored entry or block,
and each row, column or slice, costs one core.

Two loads, one store and two multiply-adds of vectors a cycle, four cycles until a sum can be added
to again, some 256 operations in flight: cores of both vendors since 2020. What waits for a sum
waits the less, the shorter a row is beside what is in flight, for the next rows do not wait. The
bodies are those of `embeddb.kernels`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from embeddb.core.config import Op
from embeddb.dynamics.execution import Execution

__all__ = ["Cycles", "cycles_of"]

_LOADS, _MULTIPLIES, _LATENCY, _IN_FLIGHT = 2, 2, 4.0, 256.0
#: Vector registers but for those that operands pass through; of 16 where vectors are of 32 bytes.
_REGISTERS = {64: 28}
_FEW_REGISTERS = 12
#: Starting a loop and leaving it, with a branch that is not foreseen now and then.
_LOOP = 8.0
#: Adding up the lanes of a vector; four vectors at a time share most of it.
_SUM, _SUM_OF_FOUR = 8.0, 3.0
#: Vectors of the own row that SDDMM keeps in registers.
_HELD = 8


@dataclass(frozen=True, slots=True)
class Cycles:
    """`each`: of a stored entry or block, for all dense columns; `row`: of a segment besides."""

    each: float
    row: float


def cycles_of(
    op: Op, config: Mapping[str, Any], ex: Execution, *, vector_bytes: int, length: float
) -> Cycles:
    """Of a configuration of the cpu platform; `length`: mean entries or blocks of a segment."""
    lanes = max(1, vector_bytes // (8 if op.dtype == "f64" else 4))
    if op.kernel == "spmv":
        return _spmv(config, ex, lanes, length)
    tile = min(int(config.get("ktile", op.width)), op.width)
    widths = [tile] * (op.width // tile) + ([op.width % tile] if op.width % tile else [])
    parts = [_vectors(width, lanes) for width in widths]
    if config.get("order") == "ijk":
        return _plain(op, parts[0])
    unroll = int(config.get("unroll", 1))
    registers = _REGISTERS.get(vector_bytes, _FEW_REGISTERS)
    if op.kernel == "sddmm":
        found = [_dots(ex, part, unroll, several=len(parts) > 1) for part in parts]
    elif config.get("format") == "csc":
        found = [Cycles(part + 1.5, part / _LOADS + _LOOP) for part in parts]
    else:
        found = [_tile(ex, part, unroll, registers, length) for part in parts]
    return Cycles(sum(f.each for f in found), sum(f.row for f in found))


def _vectors(width: int, lanes: int) -> int:
    """Whole vectors, and what they leave over in halving widths."""
    return width // lanes + (width % lanes).bit_count()


def _plain(op: Op, parts: int) -> Cycles:
    """The compiler's own loop over the dense columns, started for every entry. SpMM stores the row
    of the result each time; the dot products of SDDMM do not wait for one another."""
    if op.kernel == "sddmm":
        return Cycles(max(1.0 * parts, 2.0) + _SUM + _LOOP / 2, _LOOP)
    return Cycles(1.0 * parts + _LOOP, parts + _LOOP)


def _waiting(cycles: float, operations: float, length: float) -> float:
    """Of `cycles` that each of a segment's steps waits for the one before, of so many operations,
    what is not hidden by the segments behind."""
    return cycles * min(1.0, length * operations / _IN_FLIGHT)


def _tile(ex: Execution, parts: int, unroll: int, registers: int, length: float) -> Cycles:
    """SpMM, a tile of dense columns in registers: one sum per row of a block and vector."""
    r, c = ex.block
    sums = r * parts
    sets = unroll if unroll * sums <= registers // 2 + 2 else 1
    loads, multiplies = c * parts + r * c, r * c * parts
    waiting = _waiting(_LATENCY * c / sets, loads + multiplies + 2, length)
    work = max(loads / _LOADS, multiplies / _MULTIPLIES, waiting)
    if sums > registers:
        work += (sums - registers) * c
    return Cycles(work + 2.0 / unroll, _LOOP + 1.5 * sums * sets)


def _dots(ex: Execution, parts: int, unroll: int, *, several: bool) -> Cycles:
    """SDDMM: a sum per value of a block; where tiles are several, results are added to."""
    r, c = ex.block
    held = r * parts <= _HELD
    loads = (c + (0 if held else r)) * parts
    cells = r * c * unroll
    fours = cells // 4 * 4
    sums = (fours * _SUM_OF_FOUR + (cells - fours) * _SUM) / unroll
    work = max(loads / _LOADS, r * c * parts / _MULTIPLIES)
    return Cycles(work + sums + (1.0 * r * c if several else 0.0), _LOOP + r * parts / _LOADS)


def _spmv(config: Mapping[str, Any], ex: Execution, lanes: int, length: float) -> Cycles:
    r, c = ex.block
    if ex.slice:
        # Every lane is loaded by itself, and moved into its place.
        return Cycles(1.6, _LOOP + 1.5 * ex.slice)
    if r * c > 1:
        wide = c if c > 1 else r
        steps = r * c / min(wide, lanes)
        sums = r * _SUM / 2 if c > 1 else 0.0
        waiting = _waiting(_LATENCY, 2 * steps + 3, length)
        return Cycles(max(steps, waiting) + 1.0, _LOOP + sums + r)
    if config.get("format") == "csc":
        return Cycles(2.0, _LOOP)
    side = int(config.get("lanes", 1))
    ways = side * int(config.get("unroll", 1))
    waiting = _waiting(_LATENCY, 4, length)
    each = max(1.6 if side > 1 else 1.5, waiting / ways)
    # What a row leaves over is added one by one, each sum waiting for the last.
    left = min(length, (ways - 1) / 2) * max(waiting - each, 0.0)
    return Cycles(each, _LOOP + (_SUM if side > 1 else 0.0) + left)

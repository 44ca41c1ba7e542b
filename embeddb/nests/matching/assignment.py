"""The assignment problem, solved exactly (the Hungarian method, by shortest augmenting paths).

`scipy.optimize` has it too, but takes a second to load, which a query would wait for; the tables
here have a dozen rows.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

__all__ = ["assign"]


def assign(cost: NDArray[np.float64]) -> list[tuple[int, int]]:
    """Pairs (row, column) of finite cost, as many as there can be, of the least sum; by row.

    Shapes: `cost` float64[r,c], not negative; what is not finite is never paired.
    """
    rows, columns = cost.shape
    if rows > columns:
        return sorted((row, column) for column, row in assign(cost.T))
    allowed = np.isfinite(cost)
    # One pair more is worth any cost of the others.
    forbidden = 1.0 + 2.0 * float(cost[allowed].sum())
    taken_by = _augmented(np.where(allowed, cost, forbidden).tolist(), columns)
    found = sorted((row, column) for column, row in enumerate(taken_by) if row >= 0)
    return [(row, column) for row, column in found if allowed[row, column]]


def _augmented(cost: list[list[float]], columns: int) -> list[int]:
    """By column the row that takes it, -1: none. One row after the other takes its cheapest
    column, along the path on which those before move on at the least cost in all."""
    row_price = [0.0] * len(cost)
    column_price = [0.0] * columns
    taken_by = [-1] * columns
    for row in range(len(cost)):
        least, before = [math.inf] * columns, [-1] * columns
        path: list[int] = []
        last, on = -1, row
        while True:
            open_columns = [c for c in range(columns) if c not in path]
            for column in open_columns:
                over = cost[on][column] - row_price[on] - column_price[column]
                if over < least[column]:
                    least[column], before[column] = over, last
            last = min(open_columns, key=least.__getitem__)
            step = least[last]
            row_price[row] += step
            for column in path:
                row_price[taken_by[column]] += step
                column_price[column] -= step
            for column in open_columns:
                least[column] -= step
            on = taken_by[last]
            if on < 0:
                break
            path.append(last)
        while last >= 0:
            previous = before[last]
            taken_by[last] = row if previous < 0 else taken_by[previous]
            last = previous
    return taken_by

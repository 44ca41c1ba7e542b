"""How often each configuration is the fastest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from embeddb.core.config import Config, Op
from embeddb.core.reports import Progress
from embeddb.index.run_matrix import Extent, MatrixRow, RunMatrix
from embeddb.index.scopes import run_matrix_of
from embeddb.store import Store


class Wins(NamedTuple):
    """How often each configuration was the fastest, each pattern on each machine counting once, and
    the `extent` of those where anything ran."""

    counts: Counter[Config]
    extent: Extent


def wins_of(runs: RunMatrix) -> list[tuple[MatrixRow, Config]]:
    """The fastest configuration of each row of the evidence's own op where anything ran; of equal
    times the first in order of its text."""
    won = []
    for at, row in enumerate(runs.rows):
        column = None if row.op else runs.winner(at)
        if column is not None:
            won.append((row, runs.configs[column]))
    return won


def wins(
    store: Store,
    scopes: Sequence[tuple[Op, str]],
    progress: Progress | None = None,
) -> Wins:
    """Over all scopes."""
    won: list[tuple[MatrixRow, Config]] = []
    for at, (op, scope) in enumerate(scopes):
        if progress is not None:
            progress("read", at, len(scopes))
        won += wins_of(run_matrix_of(store, op, scope))
    return Wins(Counter(config for _, config in won), Extent.of(row for row, _ in won))

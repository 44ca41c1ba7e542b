"""Counts by configuration: how often it was the fastest, how often it failed, and on how many
machines it ran."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config, Op
from embeddb.core.reports import Progress
from embeddb.index.run_matrix import Extent, MatrixRow
from embeddb.index.scopes import run_matrix_of
from embeddb.index.view import ViewInput
from embeddb.platforms.machines import same_machine
from embeddb.store import Store

#: Number of patterns to which the rate of all configurations is equal beside a configuration's own.
_PSEUDO_PATTERNS = 2.0
#: With fewer other machines no configuration is excluded as rarely tried; nor where fewer than this
#: share of the configurations that ran would be left.
_FEW_MACHINES, _LEAST_TRIED = 3, 0.25
#: Patterns of its own on which a configuration ran that a machine has tried.
_FEW_OWN = 3


def wins(
    store: Store, scopes: Sequence[tuple[Op, str]], progress: Progress | None = None
) -> tuple[Counter[Config], Extent]:
    """Number of wins of each configuration over scopes, each at its own op, each pattern on each
    machine counting once, and the extent of the rows where anything ran; of equal times the first
    configuration in order of its text."""
    counts, rows = Counter[Config](), list[MatrixRow]()
    for at, (op, scope) in enumerate(scopes):
        if progress is not None:
            progress("read", at, len(scopes))
        runs = run_matrix_of(store, op, scope)
        for place, row in enumerate(runs.rows):
            column = None if row.op else runs.winner(place)
            if column is not None:
                counts[runs.configs[column]] += 1
                rows.append(row)
    return counts, Extent.of(rows)


@dataclass(frozen=True, slots=True)
class Failures:
    """Number of patterns on which each configuration failed and on which it ran, and the `rate` of
    failures of all together (0: nothing failed)."""

    counts: Mapping[Config, tuple[int, int]] = field(default_factory=dict)
    rate: float = 0.0

    @classmethod
    def of(
        cls,
        configs: Sequence[Config],
        columns: NDArray[np.int64],
        gains: NDArray[np.float64],
        failing: NDArray[np.float64],
    ) -> Failures:
        """Failures of `configs` in `columns` int64[c] of float64[p,x] gains (nan: not run) and the
        share of failed runs behind each."""
        ran = np.isfinite(gains)
        failed = ran & (failing >= 0.5)
        rate = float(failed.sum() / max(int(ran.sum()), 1))
        if not rate:
            return cls()
        each = np.stack([failed.sum(axis=0), ran.sum(axis=0)])[:, columns].tolist()
        return cls(dict(zip(configs, zip(*each, strict=True), strict=True)), rate)

    def chance(self, config: Config) -> float:
        """Probability of a failure on another pattern: the configuration's own share, shrunk to the
        rate of all."""
        failed, tried = self.counts.get(config, (0, 0))
        return (failed + _PSEUDO_PATTERNS * self.rate) / (tried + _PSEUDO_PATTERNS)


def well_tried(inputs: ViewInput, platform: str) -> NDArray[np.bool_] | None:
    """bool[c]: ran on the instance, on three patterns or more at one width, on another build of its
    machine, or on two other machines; None where fewer than three machines ran eight groups or
    more, or where that leaves too few configurations. The gain of a configuration that only one
    other machine ran may be specific to that machine."""
    machines: list[tuple[str, NDArray[np.bool_]]] = []
    for layer in inputs.layers:
        if not (inputs.can_judge(layer) or layer.source.platform == platform):
            continue
        often_enough = _FEW_OWN if layer.source.platform == platform else 1
        ran: NDArray[np.bool_] = np.isfinite(layer.gains).sum(axis=0) >= often_enough
        name = layer.source.platform
        at = next((m for m in machines if same_machine(m[0], name, inputs.facts)), None)
        if at is None:
            machines.append((name, ran))
        else:
            at[1][:] |= ran
    others = [m for m in machines if not same_machine(m[0], platform, inputs.facts)]
    if len(others) < _FEW_MACHINES:
        return None
    often: NDArray[np.bool_] = np.sum([ran for _, ran in machines], axis=0) >= 2
    for name, ran in machines:
        if same_machine(name, platform, inputs.facts):
            often |= ran
    every = np.logical_or.reduce([ran for _, ran in machines])
    return often if often.sum() >= _LEAST_TRIED * every.sum() else None

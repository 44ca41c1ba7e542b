"""A Gaussian process and its samples: what it is fitted to, and its scores with groups left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config
from embeddb.cost_model.encoders.inputs import ConfigColumns
from embeddb.cost_model.gaussian import GaussianProcess, Inputs, Measured, joined
from embeddb.learning.comparison import group_folds
from embeddb.learning.samples import Samples, fastest_and_others

Floats = NDArray[np.float64]

#: Most samples of an op for a process. The time of a query is linear in them, that of learning
#: cubic.
MOST_SAMPLES = 2000
#: Fewest samples of a row.
_EACH = 2
#: Most entries by which a process is judged.
_MOST_JUDGED = 50_000


def measured(samples: Samples, rows: Sequence[int], seed: int) -> Measured:
    """About 2,000 samples of some rows, or of as many of them, drawn at random, as have
    two each."""
    rng = np.random.default_rng(seed)
    each, places = max(_EACH, MOST_SAMPLES // len(rows)), np.arange(len(rows))
    if len(rows) * _EACH > MOST_SAMPLES:
        places = np.sort(rng.choice(places, MOST_SAMPLES // _EACH, replace=False))
    inputs, gains, of, targets = [], [], [], samples.targets
    for place in places.tolist():
        row = rows[place]
        part = samples.part(row)
        chosen = fastest_and_others(targets[part], each, rng)
        configs = [samples.configs[c] for c in samples.column[part][chosen]]
        inputs.append(inputs_of(samples, row, configs))
        gains.append(targets[part][chosen])
        of.append(np.full(len(chosen), place))
    return Measured(joined(inputs), np.concatenate(gains), np.concatenate(of))


def left_out(
    process: GaussianProcess, samples: Samples, rows: Sequence[int]
) -> dict[int, tuple[Floats, Floats]]:
    """Gains and spreads float64[x] of the entries of each row, or of as many random rows as have
    50,000 entries, as `without_group`. Empty with a single group."""
    order = np.random.default_rng(0).permutation(len(rows))
    entries = np.diff(samples.indptr)[list(rows)][order].cumsum()
    judged = {rows[at] for at in order[: np.searchsorted(entries, _MOST_JUDGED) + 1].tolist()}
    predicted = {}
    for row, rest in without_group(process, samples, rows):
        if row in judged:
            on = rest.on(inputs_of(samples, row, samples.ran(row)))
            predicted[row] = on.gain, on.spread(len(on.gain))
    return predicted


def without_group(
    process: GaussianProcess,
    samples: Samples,
    rows: Sequence[int],
    subset: NDArray[np.bool_] | None = None,
) -> Iterator[tuple[int, GaussianProcess]]:
    """Yield each row that a process was trained on with the process without the row's group, and
    with a `subset` bool[n] of its samples only; hyper-parameters are unchanged. Nothing with a
    single group."""
    of = process.tensors["row"]
    for out in group_folds(samples.groups[list(rows)]):
        rest = process.without(out[of] if subset is None else out[of] | ~subset)
        for at in np.flatnonzero(out).tolist():
            yield rows[at], rest


def inputs_of(samples: Samples, row: int, configs: Sequence[Config]) -> Inputs:
    """Inputs of a process for configurations on the matrix of a row; derived quantities are those
    of the machine that ran it."""
    problem = samples.problem(row)
    return ConfigColumns(problem.platform, problem.op, configs).on(problem)

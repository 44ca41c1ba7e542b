"""Parts that a source platform gives to a Gaussian process of few samples (see `sources.py`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from few_samples import Draw, Floats, Score

from embeddb.cost_model import gaussian
from embeddb.cost_model.encoders.inputs import ConfigColumns, nest_inputs
from embeddb.cost_model.gaussian import GaussianProcess, Inputs, Measured
from embeddb.index.vote import plain_metric
from embeddb.learning.samples import Samples

Effects = Callable[[Samples, int], Floats]
#: Matrices of a unit and runs of each that importance and effects are fitted to, and runs in all;
#: nearest matrices, and fewest runs of a matrix, that say something of levels.
_MATRICES, _EACH, _MOST, _NEAREST, _LEAST_RUNS = 40, 8, 800, 7, 5


class Unit(NamedTuple):
    """Runs of one operation on one platform: n runs of r matrices with statistics `vectors`
    float[r,48] and families `groups` str[r]. Of each run `row` int64[n], `gain` float64[n] and
    `config` float64[n,a]; `samples` are the same with loop nests."""

    name: str
    vectors: Floats
    groups: np.ndarray
    row: np.ndarray
    gain: Floats
    config: Floats
    samples: Samples | None = None

    @classmethod
    def of(cls, samples: Samples, platform: str) -> Unit:
        row = np.repeat(np.arange(len(samples.rows)), np.diff(samples.indptr))
        config = ConfigColumns(samples.platform, samples.ops[0], samples.configs).config
        name, columns = f"{platform} {samples.ops[0]}", config[samples.column]
        return cls(name, samples.vectors, samples.groups, row, samples.targets, columns, samples)

    @property
    def kernel(self) -> str:
        return self.name.partition(" ")[2].partition(":")[0]

    def chosen(self, held: set[str], seed: int) -> np.ndarray:
        """Positions of a few runs of a few matrices outside of the held-out families."""
        rng = np.random.default_rng(seed)
        rows = rng.permutation(np.flatnonzero(~np.isin(self.groups, list(held))))[:_MATRICES]
        runs = (rng.permutation(np.flatnonzero(self.row == row))[:_EACH] for row in rows)
        return np.sort(np.concatenate(list(runs)))


class Given(NamedTuple):
    """Parts of a source: weights float64[48] of the statistics, expected gains of the entries of a
    row, and the expected spread of gains by the statistics of matrices."""

    importance: Floats | None = None
    effects: Effects | None = None
    levels: Callable[[Floats], Floats] | None = None


def importance(unit: Unit, held: set[str], seed: int) -> Floats:
    """float64[48]: inverse lengths of the statistics, which are a process's derived quantities."""
    at = unit.chosen(held, seed)
    stats, blank = unit.vectors[unit.row[at]].astype(np.float64), np.zeros((len(at), 1))
    row = np.unique(unit.row[at], return_inverse=True)[1]
    process = GaussianProcess.fit(
        Measured(Inputs(unit.config[at], blank, stats), unit.gain[at], row), seed=seed
    )
    logs: Floats = process.tensors["logs"][-stats.shape[1] :]
    return logs - logs.mean()


def nests(samples: Samples, row: int, entries: np.ndarray | slice) -> Inputs:
    """Loop nests and tiles of entries of a row, as all that a process reads."""
    info = samples.rows[row]
    configs = [samples.configs[c] for c in samples.column[entries]]
    nest = nest_inputs(samples.platform, info.op, configs, info.sizes).astype(np.float64)
    return Inputs(nest, np.zeros((len(nest), 1)), np.zeros((len(nest), 0)))


def parameters(samples: Samples, row: int, entries: np.ndarray | slice) -> Inputs:
    """The platform's own parameters and derived quantities, without statistics."""
    configs = [samples.configs[c] for c in samples.column[entries]]
    problem = samples.problem(row)
    inputs = ConfigColumns(problem.platform, problem.op, configs).on(problem)
    return inputs._replace(matrix=np.zeros((len(configs), 1)))


def main_effects(units: Sequence[Unit], held: set[str], seed: int, inputs: Any) -> Effects:
    """Expected gains of the entries of a row by what `inputs` has of configurations, learned from
    a few runs of all units in equal standard deviations."""
    parts, gains, rows = [], [], []
    for unit in units:
        assert unit.samples is not None
        at = unit.chosen(held, seed)
        gain, of = unit.gain[at], unit.row[at]
        level = np.bincount(of, gain) / np.maximum(np.bincount(of), 1)
        gain = gain / max(float((gain - level[of]).std()), 1e-6)
        most = _MOST // _EACH // len(units)
        for row in np.random.default_rng(seed).permutation(np.unique(of))[:most]:
            parts.append(inputs(unit.samples, row, at[of == row]))
            gains.append(gain[of == row])
            rows.append(np.full(len(gains[-1]), len(rows)))
    measured = Measured(gaussian.joined(parts), np.concatenate(gains), np.concatenate(rows))
    process = GaussianProcess.fit(measured, seed=seed)

    def expected(samples: Samples, row: int) -> Floats:
        mean = process.on(inputs(samples, row, samples.part(row))).gain
        return mean - mean.mean()

    return expected


def levels(units: Sequence[Unit], held: set[str]) -> Callable[[Floats], Floats]:
    """Expected spread float64[r] of gains on matrices by their statistics, over the mean."""
    vectors, spreads = [], []
    for unit in units:
        count = np.bincount(unit.row, minlength=len(unit.groups))
        rows = np.flatnonzero((count >= _LEAST_RUNS) & ~np.isin(unit.groups, list(held)))
        log = np.log([max(unit.gain[unit.row == row].std(), 1e-3) for row in rows])
        vectors.append(unit.vectors[rows])
        spreads.append(log - log.mean())
    metric, spread = plain_metric(np.concatenate(vectors)), np.concatenate(spreads)
    source = metric.apply(np.concatenate(vectors))

    def expected(of: Floats) -> Floats:
        apart = ((metric.apply(of)[:, None] - source) ** 2).sum(axis=2)
        near = np.argsort(apart, axis=1, kind="stable")[:, :_NEAREST]
        return np.exp(spread[near].mean(axis=1))

    return expected


def informed(draw: Draw, seed: int, given: Given) -> Score:
    """The product's process on the samples of a draw, with parts of a source."""
    samples = draw.samples
    weight = 1.0 if given.importance is None else given.importance

    def inputs(of: Samples, row: int) -> Inputs:
        return ConfigColumns(of.platform, of.rows[row].op, of.ran(row)).on(of.problem(row))

    def prior(of: Samples, row: int) -> Floats:
        count = len(of.gain[of.part(row)])
        return given.effects(of, row) if given.effects else np.zeros(count)

    rows = range(len(samples.rows))
    row = np.repeat(np.arange(len(rows)), np.diff(samples.indptr)).astype(np.int64)
    every = gaussian.joined([inputs(samples, at) for at in rows])
    off = Measured(every, samples.gain, row).off
    if given.levels is not None:
        off = off / given.levels(samples.vectors)[row]
    off = off / max(float(off.std()), 1e-6)
    added = np.concatenate([prior(samples, at) for at in rows])
    power = float(added @ added)
    factor = float(np.clip(off @ added / power, 0.0, 1.0)) if power > 0 else 0.0
    tensors = {**gaussian._scales(every), "unit": np.ones(1), "row": row}
    for name, part in every._asdict().items():
        tensors[name] = gaussian._standard(part, tensors, name).astype(np.float32)
    tensors["matrix"] = (tensors["matrix"] * weight).astype(np.float32)
    tensors["target"] = off - factor * added
    tensors["logs"] = gaussian._fitted(tensors, seed)
    process = GaussianProcess(tensors)

    def score(at: int) -> Floats:
        scaled = process._scaled(inputs(draw.whole, at))
        scaled = scaled._replace(matrix=scaled.matrix * weight)
        cross = gaussian._covariance(scaled, process._inputs, process._lengths)
        gain: Floats = cross @ process._factored[1] + factor * prior(draw.whole, at)
        return gain

    return score

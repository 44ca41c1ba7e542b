"""Figures of an answer against the measured times (docs/explanation/evaluation.md)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config, Op
from embeddb.core.records import WorkloadInfo
from embeddb.core.row_lengths import RowLengths
from embeddb.index.run_matrix import RunMatrix
from embeddb.platforms.platform import Platform
from embeddb.ranking.prediction import Scorer


@dataclass(frozen=True, slots=True)
class Truth:
    """The measurements of one matrix: seconds by configuration (inf: failed). `program` is that of
    a tensor kernel."""

    times: Mapping[Config, float]
    default_s: float
    program: str = ""

    @property
    def best_s(self) -> float:
        return min(t for t in self.times.values() if math.isfinite(t))

    def after(self, proposals: Sequence[Config], k: int) -> float:
        """Seconds of the best of the first k; a failed or missing run counts as the default's."""
        costs = [self.times.get(c, math.inf) for c in proposals[:k]]
        return min([c if math.isfinite(c) else self.default_s for c in costs] or [self.default_s])


@dataclass(frozen=True, slots=True)
class Outcome:
    """One method on one matrix; logs of time ratios, so that means are geometric. `best_s` is the
    time of the optimum, `lost_s` that of the first proposal beyond it. `after` is the log share of
    the optimum of a tuner by its number of measurements. `ran_1` and `ran_5` are log shares of the
    optimum of a choice among what ran on the matrix (nan: the same as of the proposals). `program`
    is as in `Truth`."""

    gain_1: float
    gain_5: float
    of_optimum_1: float
    of_optimum_5: float
    slower: float
    ape: float
    lost_s: float
    best_s: float
    opa: float = math.nan
    tau: float = math.nan
    ran_1: float = math.nan
    ran_5: float = math.nan
    illegal: int = 0
    after: Mapping[int, float] = field(default_factory=dict)
    program: str = ""


def judge(truth: Truth, proposals: Sequence[Config], *, illegal: int = 0) -> Outcome:
    """Outcome of proposals, best first."""
    first, five = truth.after(proposals, 1), truth.after(proposals, 5)
    best = truth.best_s
    return Outcome(
        math.log(truth.default_s / first),
        math.log(truth.default_s / five),
        math.log(best / first),
        math.log(best / five),
        float(first > truth.default_s * (1 + 1e-12)),
        100.0 * abs(first - best) / best,
        abs(first - best),
        best,
        illegal=illegal,
        program=truth.program,
    )


def beside(outcome: Outcome, ran: Outcome) -> Outcome:
    """The outcome of proposals, with that of a choice among configurations that ran."""
    return replace(outcome, ran_1=ran.of_optimum_1, ran_5=ran.of_optimum_5)


def ordering(
    predicted: NDArray[np.float64], seconds: NDArray[np.float64], noise: float
) -> tuple[float, float]:
    """Ordered pair accuracy and Kendall's tau-b of scores float64[c] (lower is faster) against
    measured seconds float64[c]; pairs closer than the relative noise are left out of the first.

    COGNATE, Figure 6 (OPA, K-Tau). nan where fewer than two configurations are comparable.
    """
    from scipy.stats import kendalltau

    ok = np.isfinite(seconds) & np.isfinite(predicted)
    p, t = predicted[ok], np.log(seconds[ok])
    if p.size < 2:
        return math.nan, math.nan
    i, j = np.triu_indices(p.size, 1)
    apart = np.abs(t[i] - t[j]) > math.log1p(noise)
    agree = np.sign(p[i] - p[j])[apart] == np.sign(t[i] - t[j])[apart]
    opa = float(agree.mean()) if agree.size else math.nan
    constant = np.ptp(p) == 0 or np.ptp(t) == 0
    return opa, math.nan if constant else float(kendalltau(p, t).statistic)


def with_ordering(
    outcome: Outcome,
    truth: Truth,
    configs: Sequence[Config],
    predicted: NDArray[np.float64],
    noise: float,
) -> Outcome:
    """The outcome with the `ordering` of scores float64[c] of configurations."""
    seconds = np.array([truth.times.get(config, math.nan) for config in configs])
    opa, tau = ordering(predicted, seconds, noise)
    return replace(outcome, opa=opa, tau=tau)


@dataclass(frozen=True, slots=True)
class EvalRow:
    """One line of the table: a method on an op and platform, mean over seeds; `speedups` of the
    first proposal on each matrix, largest first, are those of the first seed. `configs` is the
    median number of configurations that ran on a matrix (0: not counted)."""

    platform: str
    op: str
    method: str
    matrices: int
    figures: Mapping[str, float]
    spread: float
    simulated: bool = False
    speedups: tuple[float, ...] = ()
    configs: int = 0

    @classmethod
    def of(
        cls,
        names: tuple[str, str, str],
        by_seed: Sequence[Sequence[Outcome]],
        *,
        simulated: bool,
        configs: int = 0,
    ) -> EvalRow:
        """The row of outcomes by seed and matrix; `names` are its platform, op and method."""
        figures, spread = summarise(by_seed)
        speedups = sorted((math.exp(one.gain_1) for one in by_seed[0]), reverse=True)
        matrices = len(by_seed[0])
        return cls(*names, matrices, figures, spread, simulated, tuple(speedups), configs)

    def document(self) -> dict[str, Any]:
        """The released JSON form."""
        same = all(self.figures.get(f"of_optimum_ran@{k}") == self.figures[f"of_optimum@{k}"]
                   for k in (1, 5))  # fmt: skip
        left_out = ("of_optimum_ran@1", "of_optimum_ran@5") if same else ()
        figures = {k: v for k, v in self.figures.items() if k not in left_out}
        shown = {k: None if math.isnan(v) else v for k, v in figures.items()}
        head = {"platform": self.platform, "op": self.op, "method": self.method}
        size = {"matrices": self.matrices, "configs_per_matrix": self.configs}
        body = {**head, **size, **shown, "spread": self.spread}
        return {**body, "simulated": self.simulated, "speedups": list(self.speedups)}


def summarise(by_seed: Sequence[Sequence[Outcome]]) -> tuple[dict[str, float], float]:
    """Figures of one method, averaged over seeds, and the spread of of_optimum@1 over them."""
    each = [_figures(outcomes) for outcomes in by_seed]
    mean = {name: _mean([figures[name] for figures in each]) for name in each[0]}
    of_optimum = [figures["of_optimum@1"] for figures in each]
    return mean, float(max(of_optimum) - min(of_optimum))


def averaged(outcomes: Sequence[Outcome]) -> Outcome:
    """The mean outcome of several draws of a method on one matrix, of what every outcome has."""
    means: dict[str, Any] = {
        one.name: float(np.mean([getattr(o, one.name) for o in outcomes]))
        for one in fields(Outcome)
        if one.default is MISSING is one.default_factory
    }
    return replace(outcomes[0], **means)


def _figures(outcomes: Sequence[Outcome]) -> dict[str, float]:
    def column(name: str) -> NDArray[np.float64]:
        return np.array([getattr(o, name) for o in outcomes], dtype=np.float64)

    regret = np.expm1(-column("of_optimum_1"))
    return {
        "speedup@1": float(np.exp(column("gain_1").mean())),
        "speedup@5": float(np.exp(column("gain_5").mean())),
        **_spread_of(np.exp(column("gain_1"))),
        "of_optimum@1": float(np.exp(column("of_optimum_1").mean())),
        "of_optimum@5": float(np.exp(column("of_optimum_5").mean())),
        **_among_ran(outcomes),
        "regret_p95@1": float(np.quantile(regret, 0.95)),
        "slower_than_default": float(column("slower").mean()),
        "ape": float(column("ape").mean()),
        "total_ape": float(100.0 * column("lost_s").sum() / column("best_s").sum()),
        **_by_program(outcomes),
        "opa": _mean(column("opa")),
        "tau": _mean(column("tau")),
        "illegal": float(column("illegal").sum()),
        **{
            f"of_optimum@{k}": float(np.exp(np.mean([o.after[k] for o in outcomes])))
            for k in outcomes[0].after
        },
    }


def _among_ran(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Shares of the optimum of choices among what ran; empty if all proposals ran."""
    shares = np.array([(one.ran_1, one.ran_5) for one in outcomes])
    if np.isnan(shares).any():
        return {}
    at_1, at_5 = np.exp(shares.mean(axis=0)).tolist()
    return {"of_optimum_ran@1": at_1, "of_optimum_ran@5": at_5}


def _by_program(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Mean and median over programs of the `total_ape` of their kernels ("A Learned Performance
    Model for Tensor Processing Units", Equation 2 and Table 2)."""
    lost: dict[str, float] = {}
    best: dict[str, float] = {}
    for one in outcomes:
        if one.program:
            lost[one.program] = lost.get(one.program, 0.0) + one.lost_s
            best[one.program] = best.get(one.program, 0.0) + one.best_s
    each = [100.0 * lost[name] / best[name] for name in lost]
    if not each:
        return {}
    return {"program_ape": float(np.mean(each)), "program_ape_median": float(np.median(each))}


def _spread_of(speedups: NDArray[np.float64]) -> dict[str, float]:
    """Quartiles and maximum over matrices (COGNATE, Figures 5, 13 and 14)."""
    quantiles = np.quantile(speedups, [0.25, 0.5, 0.75, 1.0]).tolist()
    names = ("speedup_q25@1", "speedup_q50@1", "speedup_q75@1", "speedup_max@1")
    return dict(zip(names, quantiles, strict=True))


def _mean(values: Sequence[float] | NDArray[np.float64]) -> float:
    finite = [v for v in values if not math.isnan(v)]
    return float(np.mean(finite)) if finite else math.nan


#: Trains a ranker on the evidence of the training groups, raw vectors by featurizer (one) and
#: pattern id, facts of the patterns, the platform, the op, and row lengths by pattern id.
Fit = Callable[
    [
        RunMatrix,
        Mapping[str, Mapping[str, NDArray[np.float32]]],
        Mapping[str, WorkloadInfo],
        Platform,
        Op,
        Mapping[str, RowLengths | None],
    ],
    Scorer,
]

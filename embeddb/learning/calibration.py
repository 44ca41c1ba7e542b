"""Calibration of a cost model: scores as log gains, with a spread that covers the errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.cost_model.model import CostModel
from embeddb.learning.samples import Samples

#: Fold count: each member holds out another fold of the groups.
FOLDS = 10
#: Fewest groups to hold any out of a member; with fewer, training ends after `few_epochs`.
LEAST_GROUPS = 8
#: Fewest held-out rows; with fewer, additional members are trained for judgement only.
_ENOUGH = 24
#: Standard normal quantile of 90 %, the half width of an 80 % interval.
_Z80 = 1.2815515655446004
#: Spread where the members agree, if no group was held out: a typical error of the judged models.
_UNJUDGED = 0.15
#: Smallest spread, and smallest factor on one.
_LEAST = 1e-3
#: Fewest groups for leave-one-out: with fewer, one matrix is left, without differences.
FEWEST_TO_TRUST = 3
_UNTRIED = 0.5
#: Fewest answers for a guard: with fewer, a single bad one dominates it.
_FEWEST_TO_GUARD = 8

Floats = NDArray[np.float64]


def held_out(groups: NDArray[np.str_], member: int, seed: int) -> NDArray[np.bool_]:
    """Mask bool[r] of the rows that are held out of a member."""
    place, count = _placed(groups, seed)
    if count < LEAST_GROUPS:
        return np.zeros(len(groups), dtype=np.bool_)
    folds = min(FOLDS, count)
    return np.asarray(place % folds == member % folds)


def judged_only(
    groups: NDArray[np.str_], left_out: Sequence[NDArray[np.bool_]], seed: int, parts: int
) -> list[NDArray[np.bool_]]:
    """At most `parts` disjoint masks bool[r] that cover all rows, held out of additional members
    that are only judged. None if the members' own masks, `left_out`, hold out enough rows, or if
    there are too few groups."""
    place, count = _placed(groups, seed)
    if count < FEWEST_TO_TRUST or sum(int(out.sum()) for out in left_out) >= _ENOUGH:
        return []
    parts = min(parts, count)
    return [place % parts == part for part in range(parts)]


def _placed(groups: NDArray[np.str_], seed: int) -> tuple[NDArray[np.int64], int]:
    """Position int64[r] of each row's group in a random order, and the number of groups."""
    names, of = np.unique(groups, return_inverse=True)
    place = np.random.default_rng([seed, 1]).permutation(len(names))
    return place[of], len(names)


def calibrated(
    card: Mapping[str, Any],
    tensors: Mapping[str, NDArray[Any]],
    samples: Samples,
    scores: Sequence[Mapping[int, Floats]],
) -> CostModel:
    """The model with `calibration` in its card, and in `metrics` the share of held-out gains that
    an 80 % interval covers.

    `scores` are each member's scores of its held-out rows, by row. A single member errs more than
    the ensemble, so the interval is cautious. The factor is that of all groups; the coverage is of
    one half by the factor of the other.
    """
    rest = {"slope": 1.0, "floor": _UNJUDGED, "factor": 1.0}
    pairs = [(row, own) for member in scores for row, own in member.items()]
    if not pairs:
        return CostModel({**card, "calibration": rest}, tensors)
    targets = samples.targets
    gains = [centred(targets[samples.part(row)]) for row, _ in pairs]
    owns = [centred(own) for _, own in pairs]
    gain, own = np.concatenate(gains), np.concatenate(owns)
    power = float(own @ own)
    slope = float(gain @ own) / power if power > 0 else 1.0
    slope = slope if slope > 0 else 1.0
    error = np.abs(gain - slope * own)
    # The median error, since members that agree still share errors.
    rest = {"slope": slope, "floor": float(max(np.median(error), _LEAST)), "factor": 1.0}
    model = CostModel({**card, "calibration": rest}, tensors)
    spread = np.concatenate([_predict(model, samples, row)[1] for row, _ in pairs])
    groups = np.unique([samples.rows[row].group for row, _ in pairs])
    half = np.concatenate(
        [
            np.full(len(g), np.searchsorted(groups, samples.rows[row].group) % 2)
            for g, (row, _) in zip(gains, pairs, strict=True)
        ]
    )
    ratio = error / spread
    model.card["calibration"]["factor"] = _factor(ratio)
    model.card["calibration"]["guard"] = _guard(samples, pairs)
    if 0 < half.sum() < len(half):
        bounds = np.where(half == 1, _factor(ratio[half == 0]), _factor(ratio[half == 1]))
        covered = float((ratio <= _Z80 * bounds).mean())
        model.card["metrics"] = {**card["metrics"], "coverage_80": round(covered, 4)}
    return model


def as_predicted(
    card: Mapping[str, Any],
    tensors: Mapping[str, NDArray[Any]],
    samples: Samples,
    predicted: Mapping[int, tuple[Floats, Floats]],
) -> CostModel:
    """The model of a posterior, which says itself how large its errors are: of gains over the
    default on other matrices intervals scaled to the errors on the samples covered 60 % in place of
    80, the posterior's cover 89 (benchmarks/results/predicted_gains.json).

    `predicted` are the gains and spreads of the samples of each row with its group left out.
    `metrics` has the share of gains over the default that an 80 % interval covers.
    """
    scores = [(row, gain) for row, (gain, _) in predicted.items()]
    rest = {"slope": 1.0, "floor": _LEAST, "factor": 1.0, "guard": _guard(samples, scores)}
    covered: list[NDArray[np.bool_]] = []
    for row, (gain, spread) in predicted.items():
        at = _default_at(samples, row)
        if at is not None:
            true = samples.gain[samples.part(row)]
            error = np.abs((true - true[at]) - (gain - gain[at]))
            within = error <= _Z80 * np.hypot(spread, spread[at])
            covered.append(np.delete(within, at))
    metrics = dict(card["metrics"])
    if covered and (each := np.concatenate(covered)).size:
        metrics["coverage_80"] = round(float(each.mean()), 4)
    return CostModel({**card, "calibration": rest, "metrics": metrics}, tensors)


def _default_at(samples: Samples, row: int) -> int | None:
    """Position of the default among the samples of a row."""
    info = samples.rows[row]
    default = samples.platform.default(info.op, info.sizes)
    return next((i for i, config in enumerate(samples.ran(row)) if config == default), None)


def _guard(samples: Samples, pairs: Sequence[tuple[int, Floats]]) -> float:
    """Predicted log gain over the default above which the best replaces it: the mean loss of the
    best against the default on held-out rows, those where it won counting 0.

    0 with too few rows. Where the default is hard to beat, an unbiased model still loses to it:
    small predicted gains are mostly errors.
    """
    lost = []
    for row, own in pairs:
        at = _default_at(samples, row)
        if at is not None:
            gain = samples.gain[samples.part(row)]
            lost.append(max(0.0, float(gain[at] - gain[int(own.argmax())])))
    return float(np.mean(lost)) if len(lost) >= _FEWEST_TO_GUARD else 0.0


def trust(
    samples: Samples,
    learn: Callable[[Samples], tuple[Mapping[str, Any], Mapping[str, NDArray[Any]]]],
) -> dict[str, float]:
    """The factor on the network's contribution beyond the prior (`trust`, 0..1), and the `guard` of
    predictions with it.

    With few groups none can be held out of the model itself, and a network trained on five matrices
    can be worse than the prior. So `learn` (card and tensors) runs once without each group, and the
    factor minimises the squared errors on the left-out gains.
    """
    names = np.unique(samples.groups)
    if names.size < FEWEST_TO_TRUST:
        return {"trust": _UNTRIED}
    seen: list[tuple[int, Floats, Floats]] = []
    for name in names:
        out = samples.groups == name
        trained = learn(samples.take(np.flatnonzero(~out)))
        for row in np.flatnonzero(out).tolist():
            both, prior = (_gain_with_trust(*trained, t, samples, row) for t in (1.0, 0.0))
            seen.append((row, both, prior))
    targets = samples.targets
    missed = [centred(targets[samples.part(row)]) - prior for row, _, prior in seen]
    added = [both - prior for _, both, prior in seen]
    power = sum(float(more @ more) for more in added)
    product = sum(float(gap @ more) for gap, more in zip(missed, added, strict=True))
    believed = float(np.clip(product / power, 0.0, 1.0)) if power > 0 else 0.0
    pairs = [(row, prior + believed * (both - prior)) for row, both, prior in seen]
    return {"trust": believed, "guard": _guard(samples, pairs)}


def _gain_with_trust(
    card: Mapping[str, Any],
    tensors: Mapping[str, NDArray[Any]],
    factor: float,
    samples: Samples,
    row: int,
) -> Floats:
    """Predicted gains float64[x] of the samples of a row, centred."""
    plain = {"slope": 1.0, "floor": 1.0, "factor": 1.0, "trust": factor}
    return _predict(CostModel({**card, "calibration": plain}, tensors), samples, row)[0]


def _factor(ratio: Floats) -> float:
    return float(max(np.quantile(ratio, 0.8) / _Z80, _LEAST))


def centred(values: Floats) -> Floats:
    """Values float64[c] less their mean."""
    return np.asarray(values - values.mean())


def _predict(model: CostModel, samples: Samples, row: int) -> tuple[Floats, Floats]:
    """Predicted gains and spreads float64[x] of the samples of a row."""
    return model.score(samples.problem(row), samples.ran(row))

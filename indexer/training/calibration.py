"""How far a cost model may be believed: its scores in log gains, and a spread that covers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.costmodel import CostModel
from indexer.training.samples import Samples

__all__ = ["FEWEST_TO_TRUST", "calibrated", "centred", "trust"]

#: Standard normal quantile of 90 %: an 80 % interval is so many deviations to either side.
_Z80 = 1.2815515655446004
#: Spread where the members agree, if no group was held out to tell: a common error of the models
#: that could be judged.
_UNJUDGED = 0.15
#: With fewer groups, leaving one out leaves one matrix, which says nothing of differences.
FEWEST_TO_TRUST = 3
_UNTRIED = 0.5

Floats = NDArray[np.float64]


def calibrated(
    card: Mapping[str, Any],
    tensors: Mapping[str, NDArray[Any]],
    samples: Samples,
    scores: Sequence[Mapping[int, Floats]],
) -> CostModel:
    """The model with `calibration` in its card, and in `metrics` the share of held-out gains that
    an 80 % interval covers.

    `scores` are each member's of the rows it did not learn from, by row. A member alone errs more
    than all of them, and the other members have seen the row: the interval is a cautious one.
    The factor is that of all groups; the coverage is of one half by the factor of the other.
    """
    rest = {"slope": 1.0, "floor": _UNJUDGED, "factor": 1.0}
    pairs = [(row, own) for member in scores for row, own in member.items()]
    if not pairs:
        return CostModel({**card, "calibration": rest}, tensors)
    gains = [centred(samples.gain[samples.part(row)]) for row, _ in pairs]
    owns = [centred(own) for _, own in pairs]
    gain, own = np.concatenate(gains), np.concatenate(owns)
    power = float(own @ own)
    slope = float(gain @ own) / power if power > 0 else 1.0
    slope = slope if slope > 0 else 1.0
    error = np.abs(gain - slope * own)
    # The middle of the errors: where the members agree they still err alike.
    rest = {"slope": slope, "floor": float(max(np.median(error), 1e-3)), "factor": 1.0}
    model = CostModel({**card, "calibration": rest}, tensors)
    spread = np.concatenate([_said(model, samples, row)[1] for row, _ in pairs])
    groups = np.unique([samples.rows[row].group for row, _ in pairs])
    half = np.concatenate(
        [
            np.full(len(g), np.searchsorted(groups, samples.rows[row].group) % 2)
            for g, (row, _) in zip(gains, pairs, strict=True)
        ]
    )
    ratio = error / spread
    model.card["calibration"]["factor"] = _factor(ratio)
    if 0 < half.sum() < len(half):
        bounds = np.where(half == 1, _factor(ratio[half == 0]), _factor(ratio[half == 1]))
        covered = float((ratio <= _Z80 * bounds).mean())
        model.card["metrics"] = {**card["metrics"], "coverage_80": round(covered, 4)}
    return model


def trust(
    samples: Samples,
    learn: Callable[[Samples], tuple[Mapping[str, Any], Mapping[str, NDArray[Any]]]],
) -> float:
    """How far to believe what the network adds to the prior, 0..1.

    With few groups none can be held out of the model itself, and a network that learned from five
    matrices can make the prior worse. So each group is left out once of what `learn` makes, card
    and tensors, and the factor is the one of least squares on the left-out gains.
    """
    names = np.unique(samples.groups)
    if names.size < FEWEST_TO_TRUST:
        return _UNTRIED
    product, power = 0.0, 0.0
    for name in names:
        held = samples.groups == name
        card, tensors = learn(samples.take(np.flatnonzero(~held)))
        rows: list[int] = np.flatnonzero(held).tolist()
        both, prior = (_foretold(card, tensors, t, samples, rows) for t in (1.0, 0.0))
        gain = np.concatenate([centred(samples.gain[samples.part(row)]) for row in rows])
        product += float((gain - prior) @ (both - prior))
        power += float((both - prior) @ (both - prior))
    return float(np.clip(product / power, 0.0, 1.0)) if power > 0 else 0.0


def _foretold(
    card: Mapping[str, Any],
    tensors: Mapping[str, NDArray[Any]],
    believed: float,
    samples: Samples,
    rows: Sequence[int],
) -> Floats:
    """float64[x]: gains foretold of the samples of some rows, centred by row."""
    plain = {"slope": 1.0, "floor": 1.0, "factor": 1.0, "trust": believed}
    model = CostModel({**card, "calibration": plain}, tensors)
    return np.concatenate([_said(model, samples, row)[0] for row in rows])


def _factor(ratio: Floats) -> float:
    return float(max(np.quantile(ratio, 0.8) / _Z80, 1e-3))


def centred(values: Floats) -> Floats:
    """float64[c] without their mean."""
    found: Floats = values - values.mean()
    return found


def _said(model: CostModel, samples: Samples, row: int) -> tuple[Floats, Floats]:
    """Gains and spreads float64[x] of what was measured in a row."""
    info, part = samples.rows[row], samples.part(row)
    configs = [samples.configs[c] for c in samples.column[part]]
    return model.score(samples.vectors[row], samples.platform, info.op, configs, info.sizes)

"""How far a cost model may be believed: its scores in log gains, and a spread that covers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.costmodel import CostModel
from indexer.training.samples import Samples

__all__ = ["calibrated"]

#: Standard normal quantile of 90 %: an 80 % interval is so many deviations to either side.
_Z80 = 1.2815515655446004
#: Spread where the members agree, if no group was held out to tell: a common error of the models
#: that could be judged.
_UNJUDGED = 0.15

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
    gains = [_centred(samples.gain[samples.part(row)]) for row, _ in pairs]
    owns = [_centred(own) for _, own in pairs]
    gain, own = np.concatenate(gains), np.concatenate(owns)
    power = float(own @ own)
    slope = float(gain @ own) / power if power > 0 else 1.0
    slope = slope if slope > 0 else 1.0
    error = np.abs(gain - slope * own)
    # The middle of the errors: where the members agree they still err alike.
    rest = {"slope": slope, "floor": float(max(np.median(error), 1e-3)), "factor": 1.0}
    model = CostModel({**card, "calibration": rest}, tensors)
    spread = np.concatenate([_spread(model, samples, row) for row, _ in pairs])
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


def _factor(ratio: Floats) -> float:
    return float(max(np.quantile(ratio, 0.8) / _Z80, 1e-3))


def _centred(values: Floats) -> Floats:
    found: Floats = values - values.mean()
    return found


def _spread(model: CostModel, samples: Samples, row: int) -> Floats:
    info, part = samples.rows[row], samples.part(row)
    configs = [samples.configs[c] for c in samples.column[part]]
    return model.score(samples.vectors[row], samples.platform, info.op, configs, info.sizes)[1]

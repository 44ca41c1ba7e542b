"""How far a cost model may be believed: its scores in log gains, and a spread that covers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.core.sizes import Sizes
from embeddb.cost_model.model import CostModel
from embeddb.learning.samples import Samples

#: One group in so many is held out of a member, another one of each member.
FOLDS = 10
#: With fewer groups none is held out of a member, and training ends after `few_epochs`.
LEAST_GROUPS = 8
#: Rows. Where the members hold out fewer, others are made that are only judged.
_ENOUGH = 24
#: Standard normal quantile of 90 %: an 80 % interval is so many deviations to either side.
_Z80 = 1.2815515655446004
#: Spread where the members agree, if no group was held out to tell: a common error of the models
#: that could be judged.
_UNJUDGED = 0.15
#: With fewer groups, leaving one out leaves one matrix, which says nothing of differences.
FEWEST_TO_TRUST = 3
_UNTRIED = 0.5
#: With fewer answers to judge by, one bad one is most of what is known.
_FEWEST_TO_GUARD = 8

Floats = NDArray[np.float64]


def held_out(groups: NDArray[np.str_], member: int, seed: int) -> NDArray[np.bool_]:
    """bool[r]: the rows a member does not learn from."""
    place, count = _placed(groups, seed)
    if count < LEAST_GROUPS:
        return np.zeros(len(groups), dtype=np.bool_)
    folds = min(FOLDS, count)
    held: NDArray[np.bool_] = place % folds == member % folds
    return held


def judged_only(
    groups: NDArray[np.str_], held: Sequence[NDArray[np.bool_]], seed: int, parts: int
) -> list[NDArray[np.bool_]]:
    """At most `parts` masks bool[r] of which each row is in one: what others leave out that are
    only judged. None where those of the members, `held`, leave enough rows out to judge by, or
    where there are too few groups to judge by at all."""
    place, count = _placed(groups, seed)
    if count < FEWEST_TO_TRUST or sum(int(out.sum()) for out in held) >= _ENOUGH:
        return []
    parts = min(parts, count)
    return [place % parts == part for part in range(parts)]


def _placed(groups: NDArray[np.str_], seed: int) -> tuple[NDArray[np.int64], int]:
    """int64[r], the place of a row's group in an order that is drawn, and how many groups."""
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
    model.card["calibration"]["guard"] = _guard(samples, pairs)
    if 0 < half.sum() < len(half):
        bounds = np.where(half == 1, _factor(ratio[half == 0]), _factor(ratio[half == 1]))
        covered = float((ratio <= _Z80 * bounds).mean())
        model.card["metrics"] = {**card["metrics"], "coverage_80": round(covered, 4)}
    return model


def _guard(samples: Samples, pairs: Sequence[tuple[int, Floats]]) -> float:
    """What the best must promise over the default to be preferred to it: what following it lost on
    the rows that were not learned from, a mean over all of them, those where it won counting 0.

    0 where there are too few to tell. Where the default is hard to beat a model that is right on
    average still loses to it: what it promises little of is mostly its error.
    """
    lost = []
    for row, own in pairs:
        info, part = samples.rows[row], samples.part(row)
        m, n, nnz = info.sizes
        default = samples.platform.default(info.op, Sizes(m, n, nnz))
        at = [i for i, c in enumerate(samples.column[part]) if samples.configs[c] == default]
        if at:
            gain = samples.gain[part]
            lost.append(max(0.0, float(gain[at[0]] - gain[int(own.argmax())])))
    return float(np.mean(lost)) if len(lost) >= _FEWEST_TO_GUARD else 0.0


def trust(
    samples: Samples,
    learn: Callable[[Samples], tuple[Mapping[str, Any], Mapping[str, NDArray[Any]]]],
) -> dict[str, float]:
    """How far to believe what the network adds to the prior (`trust`, 0..1), and the `guard` of
    what both then promise.

    With few groups none can be held out of the model itself, and a network that learned from five
    matrices can make the prior worse. So each group is left out once of what `learn` makes, card
    and tensors, and the factor is the one of least squares on the left-out gains.
    """
    names = np.unique(samples.groups)
    if names.size < FEWEST_TO_TRUST:
        return {"trust": _UNTRIED}
    seen: list[tuple[int, Floats, Floats]] = []
    for name in names:
        held = samples.groups == name
        made = learn(samples.take(np.flatnonzero(~held)))
        for row in np.flatnonzero(held).tolist():
            both, prior = (_foretold(*made, t, samples, row) for t in (1.0, 0.0))
            seen.append((row, both, prior))
    missed = [centred(samples.gain[samples.part(row)]) - prior for row, _, prior in seen]
    added = [both - prior for _, both, prior in seen]
    power = sum(float(more @ more) for more in added)
    product = sum(float(gap @ more) for gap, more in zip(missed, added, strict=True))
    believed = float(np.clip(product / power, 0.0, 1.0)) if power > 0 else 0.0
    pairs = [(row, prior + believed * (both - prior)) for row, both, prior in seen]
    return {"trust": believed, "guard": _guard(samples, pairs)}


def _foretold(
    card: Mapping[str, Any],
    tensors: Mapping[str, NDArray[Any]],
    believed: float,
    samples: Samples,
    row: int,
) -> Floats:
    """float64[x]: gains foretold of the samples of a row, centred."""
    plain = {"slope": 1.0, "floor": 1.0, "factor": 1.0, "trust": believed}
    return _said(CostModel({**card, "calibration": plain}, tensors), samples, row)[0]


def _factor(ratio: Floats) -> float:
    return float(max(np.quantile(ratio, 0.8) / _Z80, 1e-3))


def centred(values: Floats) -> Floats:
    """float64[c] without their mean."""
    found: Floats = values - values.mean()
    return found


def _said(model: CostModel, samples: Samples, row: int) -> tuple[Floats, Floats]:
    """Gains and spreads float64[x] of what was measured in a row."""
    return model.score(samples.problem(row), samples.ran(row))

"""Share of the optimum after few samples of a platform, with whole matrix families held out.

    few_samples.py DB PLATFORM OUT.json [--op OP ...] [--draws 5] [--samples 500 ...]

DB holds many runs of the platform. In each draw two fifths of the families are held out, samples
are drawn from the other matrices (`DESIGNS`), and each method ranks for the held-out matrices the
configurations that nearly all matrices ran (`common`) and all that ran there (`whole`):

- fixed set: the five configurations that are best together among the samples;
- neighbours: mean gain of the 7 nearest of the measured matrices, then the fixed set;
- extra trees: scikit-learn's ExtraTreesRegressor (200 trees, two samples a leaf, half of the
  features a split) on configuration and statistics, and with the derived quantities; of more than
  4,000 samples they learn from the 2,000 that the process reads;
- process: the product's learner (`embeddb.learning.process`), its best by mean, and as a set: five
  that complement each other, as `query` orders them; alone, too, without the trees beside it.

Started again it goes on with what is missing. Times are CPU seconds of learning.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from machine import about
from numpy.typing import NDArray

from embeddb.core.config import Op
from embeddb.cost_model.encoders.inputs import ConfigColumns
from embeddb.cost_model.model import CostModel
from embeddb.database import Database
from embeddb.index.held_out import split_groups
from embeddb.index.vote import effects, greedy_cover, plain_metric
from embeddb.learning.few_samples import process_card
from embeddb.learning.left_out import MOST_SAMPLES
from embeddb.learning.process import learn
from embeddb.learning.samples import Samples, samples_of
from embeddb.ranking.prediction import correlate_of
from embeddb.ranking.rankers.order import order_to_try

Floats = NDArray[np.float64]
Score = Callable[[int], Floats]

#: Samples in all: matrices, and configurations of each (0: all).
DESIGNS = {30: (6, 5), 36: (9, 4), 50: (10, 5), 100: (10, 10), 250: (25, 10), 500: (25, 20),
           1000: (50, 20), 2000: (100, 20), 0: (0, 0)}  # fmt: skip
_PARTS, _HELD_PARTS, _COUNT, _NEAREST = 5, 2, 5, 7
_EVERYWHERE = 0.95
#: More samples make stock trees on derived quantities last minutes.
_MOST_FOR_TREES = 4000


@dataclass(frozen=True)
class Draw:
    """Samples of some matrices, and the rows of the matrices that are held out."""

    whole: Samples
    samples: Samples
    held: list[int]
    common: NDArray[np.bool_]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("db")
    parser.add_argument("platform")
    parser.add_argument("out", type=Path)
    parser.add_argument("--op", nargs="+", default=["spmm:32", "spmm:128", "spmv"])
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--samples", type=int, nargs="+", default=list(DESIGNS))
    asked = parser.parse_args()
    done = json.loads(asked.out.read_text()) if asked.out.is_file() else {}
    done["machine"] = about()
    with Database.open(asked.db, readonly=True) as db:
        for op in asked.op:
            whole = samples_of(db.index, db.index.platform(asked.platform), [Op.parse(op)])
            for count in asked.samples:
                name = f"{op}, {count or 'all'} samples"
                cells = done.setdefault(name, [])
                for draw in range(len(cells), asked.draws):
                    cells.append(dict(figures(drawn(whole, count, draw), draw)))
                    asked.out.write_text(json.dumps(done, indent=1) + "\n")
                print(name, summary(cells), flush=True)


def drawn(whole: Samples, count: int, seed: int) -> Draw:
    fold = split_groups(whole.groups, _PARTS, seed)
    held, rest = np.flatnonzero(fold < _HELD_PARTS), np.flatnonzero(fold >= _HELD_PARTS)
    samples = whole.take(rest)
    if count:
        matrices, each = DESIGNS[count]
        samples = samples.limited(matrices, each, seed)
    ran = np.bincount(whole.column, minlength=len(whole.configs))
    return Draw(whole, samples, held.tolist(), ran >= _EVERYWHERE * len(whole.rows))


def figures(draw: Draw, seed: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Shares of the optimum at 1 and at 5, of each method."""
    for name, learned in methods(draw, seed):
        started = time.process_time()
        score = learned()
        seconds = time.process_time() - started
        judged = shares(draw, score, as_set=name.endswith("as a set"))
        yield name, {"learning_s": round(seconds, 2), **judged}


def shares(draw: Draw, score: Score, *, as_set: bool = False) -> dict[str, list[float]]:
    """Shares of the optimum at 1 and at 5 among `common` and all configurations that ran; of a set,
    which was chosen among all, without the former."""
    lost: dict[str, list[tuple[float, float]]] = {} if as_set else {"common": []}
    lost["whole"] = []
    for row in draw.held:
        part = draw.whole.part(row)
        column, gain, given = draw.whole.column[part], draw.whole.gain[part], score(row)
        among = {"common": draw.common[column], "whole": np.ones(len(gain), bool)}
        for what in lost:
            able = among[what]
            if able.sum() > _COUNT:
                order = np.argsort(-np.where(able, given, -np.inf), kind="stable")[:_COUNT]
                best = gain[able].max()
                lost[what].append((gain[order[0]] - best, gain[order].max() - best))
    return {what: [round(math.exp(v), 4) for v in np.mean(s, axis=0)] for what, s in lost.items()}


def methods(draw: Draw, seed: int) -> Iterator[tuple[str, Callable[[], Score]]]:
    yield "fixed set", lambda: fixed_set(draw)
    yield "neighbours", lambda: neighbours(draw)
    if find_spec("sklearn"):
        some = draw
        if len(draw.samples.gain) > _MOST_FOR_TREES:
            each = MOST_SAMPLES // len(draw.samples.rows)
            some = replace(draw, samples=draw.samples.thinned(each, seed))
        yield "extra trees", lambda: extra_trees(some, seed, derived=False)
        yield "extra trees, derived", lambda: extra_trees(some, seed, derived=True)
    yield "process", lambda: process(draw, seed)
    yield "process, as a set", lambda: process(draw, seed, as_set=True)
    yield "process alone, as a set", lambda: process(draw, seed, as_set=True, trees=False)


def levelled_gains(samples: Samples) -> Floats:
    """Log gains float64[r,c] less the level of each row (nan: not run)."""
    gains = np.full((len(samples.rows), len(samples.configs)), np.nan)
    gains[np.repeat(np.arange(len(samples.rows)), np.diff(samples.indptr)), samples.column] = (
        samples.targets
    )
    found: Floats = gains - effects(gains)[0][:, None]
    return found


def fixed_set(draw: Draw) -> Score:
    gains = levelled_gains(draw.samples)
    ran = np.isfinite(gains)
    mean = np.where(ran, gains, 0.0).sum(axis=0) / (ran.sum(axis=0) + 1.0)
    mean[~ran.any(axis=0)] = -np.inf
    # The set is chosen among what may be proposed.
    able = np.flatnonzero(draw.common & ran.any(axis=0))
    first = able[greedy_cover(gains[:, able], _COUNT)] if able.size else able
    order = np.concatenate([[able[mean[able].argmax()]], first]) if able.size else first
    score = mean - 1e3
    for place, at in enumerate(dict.fromkeys(order.tolist())):
        score[at] = 1e3 - place
    return lambda row: score[draw.whole.column[draw.whole.part(row)]]


def neighbours(draw: Draw) -> Score:
    gains, fixed = levelled_gains(draw.samples), fixed_set(draw)
    metric = plain_metric(draw.samples.vectors)
    known = metric.apply(draw.samples.vectors)

    def score(row: int) -> Floats:
        own = metric.apply(draw.whole.vectors[row : row + 1])
        near = np.argsort(((known - own) ** 2).sum(axis=1), kind="stable")[:_NEAREST]
        ran = np.isfinite(gains[near])
        mean = np.where(ran, gains[near], 0.0).sum(axis=0) / (ran.sum(axis=0) + 1.0)
        column = draw.whole.column[draw.whole.part(row)]
        voted: Floats = np.where(ran.any(axis=0), mean, -1e6)[column]
        return voted + 1e-9 * fixed(row)

    return score


def extra_trees(draw: Draw, seed: int, *, derived: bool) -> Score:
    from sklearn.ensemble import ExtraTreesRegressor

    samples = draw.samples

    def table(of: Samples, row: int) -> Floats:
        inputs = ConfigColumns(of.platform, of.rows[row].op, of.ran(row)).on(of.problem(row))
        return np.hstack(inputs if derived else inputs[:2])

    trees = ExtraTreesRegressor(200, min_samples_leaf=2, max_features=0.5, random_state=seed)
    gains = levelled_gains(samples)
    rows = range(len(samples.rows))
    levelled = [gains[row, samples.column[samples.part(row)]] for row in rows]
    trees.fit(np.concatenate([table(samples, row) for row in rows]), np.concatenate(levelled))
    return lambda row: trees.predict(table(draw.whole, row))


def process(draw: Draw, seed: int, *, as_set: bool = False, trees: bool = True) -> Score:
    model, whole = learn(draw.samples, process_card(draw.samples), seed=seed), draw.whole
    if not trees:
        settings = {**model.card["settings"], "trees": 0.0}
        model = CostModel({**model.card, "settings": settings}, model.tensors)
    if as_set:
        return tried(model, whole)
    return lambda row: model.score(whole.problem(row), whole.ran(row))[0]


def tried(model: CostModel, whole: Samples) -> Score:
    """Scores by the place in the order in which a query proposes the configurations of a row."""

    def score(row: int) -> Floats:
        configs, problem = whole.ran(row), whole.problem(row)
        order = order_to_try(configs, *model.score(problem, configs), correlate_of(model, problem))
        return -np.argsort(order).astype(np.float64)

    return score


def summary(cells: list[dict[str, Any]]) -> str:
    """Mean of the draws at 1 and at 5 among all configurations that ran, by method."""
    mean = {n: np.mean([cell[n]["whole"] for cell in cells], axis=0) for n in cells[0]}
    return "; ".join(f"{name} {at_1:.3f} / {at_5:.3f}" for name, (at_1, at_5) in mean.items())


if __name__ == "__main__":
    main()

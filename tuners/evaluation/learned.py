"""Learned rankers under the judge: what they are, and how much each counts against the vote.

A ranker is a function that learns from what was measured on some groups of matrices and gives a
scorer; the harness lets it learn anew in every fold, from the training groups alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config
from embeddb.core.errors import EmbeddbError, MissingDependency, NothingFound
from embeddb.cost_model import Problem
from embeddb.index.held_out import split_groups
from embeddb.index.vote import surely_positive
from embeddb.ranking.prediction import Scorer
from embeddb.ranking.query import Query
from embeddb.ranking.rankers.base import NINETIETH
from embeddb.ranking.rankers.joint import guard_of, joined
from embeddb.ranking.rankers.neighbour_vote import NeighbourVote, scores
from embeddb.ranking.rankers.order import behind_default, order_to_try, settled
from tuners.evaluation.bench import Bench
from tuners.evaluation.figures import Fit, Outcome, Truth, beside, judge, ordering

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]

#: What the name of a ranker's second row ends with.
JOINED = "+transfer"
#: How far the model counts against the neighbours' vote; which one is chosen by what was measured.
WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0)
#: Where nothing can be held out of the training groups.
_UNPROVEN = 0.5
#: One part of this many is held out of the training groups to choose the weight by.
_INNER_PARTS = 4
_K = 5
#: Share of matrices whose gain an interval holds, the fewest errors that say how wide that is, and
#: the bounds of the factor.
_INTERVAL, _FEWEST_ERRORS, _WIDTHS = 0.8, 10, (0.1, 10.0)


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """A held-out matrix, and what was measured on it; the query holds what the ranker predicts of
    the very configurations that its neighbours are asked about."""

    query: Query
    truth: Truth

    def score(self, weight: float) -> Floats:
        """float64[c] with the model at `weight`, as the product joins them; higher is faster. 0 is
        the vote alone."""
        if weight == 0.0:
            return scores(self.query)[0]
        return joined(
            replace(self.query, prediction=replace(self.query.prediction, weight=weight))
        ).score


def outcome_of(seen: Seen, weight: float) -> Outcome:
    """The first five that ran by the joined score, judged, with how well it orders what was
    measured."""
    query, score = seen.query, seen.score(weight)
    outcome = judge(seen.truth, _first(seen, score, weight))
    seconds = np.array([seen.truth.times.get(c, math.nan) for c in query.vote.configs])
    opa, tau = ordering(-score, seconds, query.vote.noise)
    return replace(outcome, opa=opa, tau=tau)


def _first(seen: Seen, score: Floats, weight: float) -> list[Config]:
    """The first five of those that ran, as the tuners propose them: votes one by one, where a model
    counts as a set."""
    query = seen.query
    spread = query.prediction.spread if weight else np.zeros(len(score))
    if weight == 1.0 and query.prediction.plain:
        spread = np.full(len(score), math.nan)
    order = settled(
        query, query.vote.configs, order_to_try(query.vote.configs, score, spread), score
    )
    if weight and query.default in query.vote.configs:
        at = query.vote.configs.index(query.default)
        order = behind_default(
            order,
            score,
            at,
            guard_of(replace(query, prediction=replace(query.prediction, weight=weight))),
        )
    proposed = (query.vote.configs[i] for i in order)
    return list(islice((config for config in proposed if config in seen.truth.times), _K))


def best_weight(seen: Sequence[Seen]) -> float:
    """The weight with the least mean log loss to the optimum, of the first and of the best of five
    together; of equally good ones that which believes the vote more."""
    if not seen:
        return _UNPROVEN
    losses = [np.mean([_loss(s, weight) for s in seen]) for weight in WEIGHTS]
    return WEIGHTS[int(np.argmin(losses))]


def _loss(seen: Seen, weight: float) -> float:
    found = judge(seen.truth, _first(seen, seen.score(weight), weight))
    return -(found.of_optimum_1 + found.of_optimum_5)


class Learned:
    """The rankers of one fold: what they learned of its training rows, and the weight at which
    each joins the vote, chosen within these rows."""

    def __init__(
        self,
        bench: Bench,
        rankers: Mapping[str, Fit],
        train: Rows,
        tick: Callable[[], None],
    ) -> None:
        self._bench = bench
        self._scorers: dict[str, Scorer] = {}
        self._weights: dict[str, float] = {}
        self.refused: dict[str, str] = {}
        if not rankers:
            return
        inner, held = _inner(bench, train)
        asked = list(bench.queries_of(inner, held)) if held.size else []
        for name, fit in rankers.items():
            try:
                seen = _seen(bench, bench.learned(fit, inner), asked) if asked else []
                tick()
                self._weights[name] = best_weight(seen)
                self._scorers[name] = bench.learned(fit, train)
                tick()
            except MissingDependency:
                raise
            except EmbeddbError as error:
                self.refused[name] = str(error)

    def judged(self, row: int, question: Query) -> Iterator[tuple[str, Outcome]]:
        """Each ranker by itself and joined with the vote; nothing for a matrix without features."""
        among = self._bench.judgeable(row, question)
        for name, scorer in self._scorers.items():
            ran = see(self._bench, scorer, row, among)
            same = len(among.vote.configs) == len(question.vote.configs)
            asked = ran if same else see(self._bench, scorer, row, question)
            if asked is not None and ran is not None:
                weight = self._weights[name]
                yield name, beside(outcome_of(asked, 1.0), outcome_of(ran, 1.0))
                both = outcome_of(asked, weight), outcome_of(ran, weight)
                yield f"{name}{JOINED}", beside(*both)


def see(bench: Bench, scorer: Scorer, row: int, query: Query) -> Seen | None:
    """None where the matrix has no features the rankers learn from, or nothing was run."""
    vector = bench.raw(row)
    if vector is None or not query.vote.configs:
        return None
    info = query.pattern
    problem = Problem(vector, query.platform, query.op, info.sizes, bench.lengths(row))
    gain, spread = scorer.score(problem, query.vote.configs)
    asked = replace(
        query,
        prediction=replace(
            query.prediction,
            configs=query.vote.configs,
            gain=gain,
            spread=spread,
            guard=getattr(scorer, "guard", 0.0),
            plain=getattr(scorer, "plain", False),
        ),
    )
    return Seen(asked, bench.truth(row))


def _seen(bench: Bench, scorer: Scorer, asked: Iterable[tuple[int, Query]]) -> list[Seen]:
    return [s for row, query in asked if (s := see(bench, scorer, row, query)) is not None]


def _inner(bench: Bench, train: Rows) -> tuple[Rows, Rows]:
    """Training rows without a part of their groups, and the counted rows of that part."""
    counted = np.intersect1d(train, bench.counted)
    names = np.unique(bench.evidence.groups[counted])
    if names.size < 2:
        return train, np.zeros(0, dtype=np.int64)
    fold = split_groups(bench.evidence.groups[train], min(_INNER_PARTS, names.size), 0)
    held = np.intersect1d(train[fold == 0], counted)
    rest = train[fold != 0]
    return (rest, held) if rest.size else (train, np.zeros(0, dtype=np.int64))


def seen_by(bench: Bench, scorer: Scorer, train: Rows, test: Rows) -> list[Seen]:
    """The test rows as they look to neighbours among the training rows and to the scorer."""
    return _seen(bench, scorer, bench.queries_of(train, test))


def held_out(
    by_fold: Sequence[Sequence[Seen]], *, weight: float | None = None
) -> dict[str, dict[str, float]]:
    """The figures of a model's card: `of_optimum@1` and `@5` of `transfer`, `rank` (the model
    alone) and `transfer+rank`, with a given `weight` or the best on all folds, and the number of
    `groups` that each was judged on; of the last the `width` of intervals, too. `by_fold` has what
    `seen_by` gave for each fold and the scorer that learned without it.

    Where no weight is given, the figures of `transfer+rank` are made with the one that is best on
    the other folds, so that they do not flatter it.

    Raises: NothingFound if nothing was held out.
    """
    everything = [s for part in by_fold for s in part]
    if not everything:
        raise NothingFound(
            "nothing to judge the model by",
            hint="measure matrices of at least two groups, the default among the configurations",
        )
    both: list[Outcome] = []
    for at, part in enumerate(by_fold):
        others = [s for n, other in enumerate(by_fold) if n != at for s in other]
        counts = best_weight(others) if weight is None else weight
        both += [outcome_of(s, counts) for s in part]
    voted = [judge(s.truth, _voted(s.query)) for s in everything]
    alone = [outcome_of(s, 1.0) for s in everything]
    groups = {s.query.pattern.group or s.query.pattern.id for s in everything}
    judged_on = {"groups": float(len(groups))}
    used = best_weight(everything) if weight is None else weight
    return {
        "transfer": {**_shares(voted), **judged_on},
        "rank": {**_shares(alone), **judged_on},
        "transfer+rank": {
            **_shares(both),
            **judged_on,
            "weight": used,
            "width": _width(everything, used),
        },
    }


def _width(seen: Sequence[Seen], weight: float) -> float:
    """Factor on the model's spread with which intervals of joined first answers contain the gain
    over the default on four of five matrices; 1 with fewer than ten errors."""
    off = [error for one in seen if (error := _error(one, weight)) is not None]
    if len(off) < _FEWEST_ERRORS:
        return 1.0
    return float(np.clip(np.quantile(off, _INTERVAL) / NINETIETH, *_WIDTHS))


def _error(seen: Seen, weight: float) -> float | None:
    """Error of the first answer's predicted log gain over the default, in standard deviations of
    the model; None if either did not run, or if they are the same."""
    query, times = seen.query, seen.truth.times
    both = joined(replace(query, prediction=replace(query.prediction, weight=weight)))
    first = next(iter(_first(seen, both.score, weight)), query.default)
    ran = math.isfinite(times.get(first, math.inf)) and query.default in times
    if first == query.default or not ran or query.default not in both.configs:
        return None
    at, base = both.configs.index(first), both.configs.index(query.default)
    got = math.log(times[query.default] / times[first])
    promised, spread = float(both.score[at] - both.score[base]), float(both.spread[at])
    return abs(got - promised) / spread if spread > 0 and math.isfinite(promised) else None


def _voted(query: Query) -> list[Config]:
    return [Config(c.config) for c in islice(NeighbourVote(query).candidates(), _K)]


def _shares(outcomes: Sequence[Outcome]) -> dict[str, float]:
    return {
        "of_optimum@1": math.exp(float(np.mean([o.of_optimum_1 for o in outcomes]))),
        "of_optimum@5": math.exp(float(np.mean([o.of_optimum_5 for o in outcomes]))),
    }


def hidden_figures(
    parts: Sequence[tuple[Sequence[Seen], Collection[Config]]],
) -> dict[str, float | bool]:
    """Mean shares of the optimum of the model's first choice, with configurations hidden from it:
    among those that ran (`known`) and among all (`all`); `unrun_first` if the latter is surely
    better, by a standard error over groups. `parts` are matrices and what was hidden there.

    A matrix counts where it ran something hidden, and something else.
    """
    known: list[float] = []
    both: list[float] = []
    groups: list[str] = []
    for seen, hidden in parts:
        for one in seen:
            query = one.query
            ran = np.array([c in one.truth.times for c in query.vote.configs], dtype=np.bool_)
            unseen = np.array([c in hidden for c in query.vote.configs], dtype=np.bool_)
            if not (ran & unseen).any() or not (ran & ~unseen).any():
                continue
            score = one.score(1.0)
            for among, found in ((ran & ~unseen, known), (ran, both)):
                first = query.vote.configs[int(np.where(among, score, -np.inf).argmax())]
                found.append(judge(one.truth, [first]).of_optimum_1)
            groups.append(query.pattern.group or query.pattern.id)
    if not known:
        return {"unrun_first": False}
    gain = np.array(both) - np.array(known)
    group = np.unique(groups, return_inverse=True)[1]
    return {
        "known": math.exp(float(np.mean(known))),
        "all": math.exp(float(np.mean(both))),
        "unrun_first": surely_positive(gain, group),
    }

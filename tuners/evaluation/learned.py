"""Evaluation of learned rankers on held-out groups: figures, and the weight beside the vote.

A ranker is a function that trains a scorer on the measurements of some groups of matrices; it is
trained in every fold on the training groups alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config
from embeddb.core.errors import EmbeddbError, MissingDependency, NothingFound
from embeddb.core.reports import Progress
from embeddb.cost_model import Problem
from embeddb.index.held_out import split_groups
from embeddb.index.lookup import Lookup
from embeddb.index.vote import surely_positive
from embeddb.platforms.platform import Platform
from embeddb.ranking.prediction import Scorer, correlate_of
from embeddb.ranking.query import Query
from embeddb.ranking.rankers.base import NINETIETH
from embeddb.ranking.rankers.joint import JointRanker, guard_of
from embeddb.ranking.rankers.neighbour_vote import NeighbourVote, scores
from embeddb.ranking.rankers.order import behind_default, order_to_try, settled
from tuners.evaluation.bench import Bench, Rows
from tuners.evaluation.figures import Fit, Outcome, Truth, beside, judge, with_ordering

if TYPE_CHECKING:
    from indexer.training.cost_model.machines import LeftOut

Floats = NDArray[np.float64]

#: Suffix of the name of a ranker's second row.
JOINED = "+transfer"
#: The ranker without one: `query` ranks by its process alone.
ALONE = "process"
#: Candidates for the weight of the model beside the neighbours' vote.
WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0)
#: The weight if nothing can be held out of the training groups.
_UNPROVEN = 0.5
#: One part of this many is held out of the training groups to choose the weight.
_INNER_PARTS = 4
_K = 5
#: The weight of a model of every machine. The best one differs by operation and machine, by less
#: than noise (docs/results/machines.md).
MACHINES_WEIGHT = 0.5
#: Most queries per machine: one that ran many more matrices would outweigh the others.
_MOST_QUERIES = 60
#: Coverage of an interval, the fewest errors to estimate its width, and the bounds of the factor.
_INTERVAL, _FEWEST_ERRORS, _WIDTHS = 0.8, 10, (0.1, 10.0)


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """A held-out matrix: its query, with the ranker's predictions for the configurations of the
    vote, and its measurements."""

    query: Query
    truth: Truth

    def score(self, weight: float) -> Floats:
        """float64[c] of vote and model at `weight`, joined as in a query; higher is faster. 0 is
        the vote alone."""
        return scores(self.query)[0] if weight == 0.0 else JointRanker(self.weighted(weight)).score

    def weighted(self, weight: float) -> Query:
        """The query with another weight of the model."""
        return replace(self.query, prediction=replace(self.query.prediction, weight=weight))


def outcome_of(seen: Seen, weight: float) -> Outcome:
    """The outcome of the first five that ran by the joined score, and its rank agreement."""
    vote, score = seen.query.vote, seen.score(weight)
    outcome = judge(seen.truth, _first(seen, score, weight))
    return with_ordering(outcome, seen.truth, vote.configs, -score, vote.noise)


def _first(seen: Seen, score: Floats, weight: float) -> list[Config]:
    """The first five of those that ran, in the order of the tuners: by score for the vote, as a set
    with a model."""
    query = seen.query
    spread = query.prediction.spread if weight else np.zeros(len(score))
    if weight == 1.0 and query.prediction.plain:
        spread = np.full(len(score), math.nan)
    configs = query.vote.configs
    order = order_to_try(configs, score, spread, query.prediction.correlate)
    order = settled(query, configs, order, score)
    if weight and query.default in configs:
        at = configs.index(query.default)
        order = behind_default(order, score, at, guard_of(seen.weighted(weight)))
    proposed = (configs[i] for i in order)
    return list(islice((config for config in proposed if config in seen.truth.times), _K))


def best_weight(seen: Sequence[Seen]) -> float:
    """The weight with the least mean log loss to the optimum, of the first plus the best of five;
    the smallest of equal ones."""
    if not seen:
        return _UNPROVEN
    losses = [np.mean([_loss(s, weight) for s in seen]) for weight in WEIGHTS]
    return WEIGHTS[int(np.argmin(losses))]


def _loss(seen: Seen, weight: float) -> float:
    outcome = judge(seen.truth, _first(seen, seen.score(weight), weight))
    return -(outcome.of_optimum_1 + outcome.of_optimum_5)


class Learned:
    """The rankers of one fold, trained on its training rows, with weights beside the vote that are
    chosen within these rows."""

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
        inner, test = _inner(bench, train)
        joins = test.size and rankers.keys() - {ALONE}
        queries = list(bench.queries_of(inner, test)) if joins else []
        for name, fit in rankers.items():
            try:
                if name != ALONE:
                    seen = _seen(bench, bench.learned(fit, inner), queries) if queries else []
                    self._weights[name] = best_weight(seen)
                tick()
                self._scorers[name] = bench.learned(fit, train)
                tick()
            except MissingDependency:
                raise
            except EmbeddbError as error:
                self.refused[name] = str(error)

    def judged(self, row: int, question: Query) -> Iterator[tuple[str, Outcome]]:
        """Each ranker by itself and, where it has a weight, joined with the vote; nothing for a
        matrix without features."""
        among = self._bench.judgeable(row, question)
        for name, scorer in self._scorers.items():
            ran = see(self._bench, scorer, row, among)
            same = len(among.vote.configs) == len(question.vote.configs)
            whole = ran if same else see(self._bench, scorer, row, question)
            if whole is not None and ran is not None:
                weights = {name: 1.0}
                if name in self._weights:
                    weights[f"{name}{JOINED}"] = self._weights[name]
                for label, weight in weights.items():
                    yield label, beside(outcome_of(whole, weight), outcome_of(ran, weight))


def see(bench: Bench, scorer: Scorer, row: int, query: Query) -> Seen | None:
    """A row with the predictions of a scorer; None without features or without runs."""
    vector = bench.raw(row)
    if vector is None or not query.vote.configs:
        return None
    info = query.pattern
    problem = Problem(vector, query.platform, query.op, info.sizes, bench.lengths(row))
    gain, spread = scorer.score(problem, query.vote.configs)
    prediction = replace(
        query.prediction,
        configs=query.vote.configs,
        gain=gain,
        spread=spread,
        guard=getattr(scorer, "guard", 0.0),
        plain=getattr(scorer, "plain", False),
        correlate=correlate_of(scorer, problem),
    )
    return Seen(replace(query, prediction=prediction), bench.truth(row))


def _seen(bench: Bench, scorer: Scorer, queries: Iterable[tuple[int, Query]]) -> list[Seen]:
    return [s for row, query in queries if (s := see(bench, scorer, row, query)) is not None]


def _inner(bench: Bench, train: Rows) -> tuple[Rows, Rows]:
    """Training rows without a part of their groups, and the counted rows of that part."""
    counted = np.intersect1d(train, bench.counted)
    names = np.unique(bench.evidence.groups[counted])
    if names.size < 2:
        return train, np.zeros(0, dtype=np.int64)
    fold = split_groups(bench.evidence.groups[train], min(_INNER_PARTS, names.size), 0)
    test = np.intersect1d(train[fold == 0], counted)
    rest = train[fold != 0]
    return (rest, test) if rest.size else (train, np.zeros(0, dtype=np.int64))


def seen_by(bench: Bench, scorer: Scorer, train: Rows, test: Rows) -> list[Seen]:
    """The test rows with the votes of the training rows and the predictions of a scorer."""
    return _seen(bench, scorer, bench.queries_of(train, test))


def held_out(
    by_fold: Sequence[Sequence[Seen]], *, weight: float | None = None
) -> dict[str, dict[str, float]]:
    """The figures of a model's card: `of_optimum@1` and `@5` of `transfer`, `rank` (the model
    alone) and `transfer+rank`, the number of `groups`, and for the last its `weight`, by default
    the best on all folds, and the `width` of intervals. `by_fold` has the rows of each fold with
    the predictions of a scorer trained without it (`seen_by`).

    The figures of `transfer+rank` use the `weight` or, for each fold, the best one of the other
    folds, so that they are not biased by the choice.

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
        own = best_weight(others) if weight is None else weight
        both += [outcome_of(s, own) for s in part]
    votes = ((s.truth, islice(NeighbourVote(s.query).candidates(), _K)) for s in everything)
    voted = [judge(truth, [Config(c.config) for c in first]) for truth, first in votes]
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
    """The factor on the model's spread with which the intervals of joined first answers contain the
    gain over the default on four of five matrices; 1 with fewer than ten errors."""
    off = [error for one in seen if (error := _error(one, weight)) is not None]
    if len(off) < _FEWEST_ERRORS:
        return 1.0
    return float(np.clip(np.quantile(off, _INTERVAL) / NINETIETH, *_WIDTHS))


def _error(seen: Seen, weight: float) -> float | None:
    """The error of the first answer's predicted log gain over the default, in standard deviations
    of the model; None if either did not run, or if they are the same."""
    query, times = seen.query, seen.truth.times
    both = JointRanker(seen.weighted(weight))
    first = next(iter(_first(seen, both.score, weight)), query.default)
    ran = math.isfinite(times.get(first, math.inf)) and query.default in times
    if first == query.default or not ran or query.default not in both.configs:
        return None
    at, base = both.configs.index(first), both.configs.index(query.default)
    gain = math.log(times[query.default] / times[first])
    predicted, spread = float(both.score[at] - both.score[base]), float(both.spread[at])
    return abs(gain - predicted) / spread if spread > 0 and math.isfinite(predicted) else None


def _shares(outcomes: Sequence[Outcome]) -> dict[str, float]:
    return share_figures([(one.of_optimum_1, one.of_optimum_5) for one in outcomes])


def share_figures(shares: Sequence[tuple[float, float]]) -> dict[str, float]:
    """Means of log shares of the optimum at 1 and at 5, as in cards."""
    at_1, at_5 = np.array(shares).T
    return {
        "of_optimum@1": math.exp(float(at_1.mean())),
        "of_optimum@5": math.exp(float(at_5.mean())),
    }


def hidden_figures(
    parts: Sequence[tuple[Sequence[Seen], Collection[Config]]],
) -> dict[str, float | bool]:
    """Mean shares of the optimum of the choices of a model trained without some configurations:
    among the others (`known`) and among all (`all`); `unrun_first` if the latter is better by a
    standard error over groups. `parts` are rows with the hidden configurations; rows that ran both
    kinds count."""
    others: list[float] = []
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
            for among, shares in ((ran & ~unseen, others), (ran, both)):
                first = query.vote.configs[int(np.where(among, score, -np.inf).argmax())]
                shares.append(judge(one.truth, [first]).of_optimum_1)
            groups.append(query.pattern.group or query.pattern.id)
    if not others:
        return {"unrun_first": False}
    return hidden_document(np.array(others), np.array(both), groups)


def hidden_document(others: Floats, both: Floats, groups: Sequence[str]) -> dict[str, float | bool]:
    """A card's `hidden` from log shares of the optimum float64[r]: of choices among configurations
    that measured matrices ran, and among all."""
    group = np.unique(groups, return_inverse=True)[1]
    return {
        "known": math.exp(float(others.mean())),
        "all": math.exp(float(both.mean())),
        "unrun_first": bool(surely_positive(both - others, group)),
    }


def judge_machines(
    db: Lookup, platform: Platform, parts: Sequence[LeftOut], progress: Progress
) -> dict[str, dict[str, dict[str, float]]]:
    """The card's `held_out` of a model of every machine, by op: shares of the optimum of the vote,
    the model and both joined, each without the runs of the querying machine and without the groups
    of the judged matrices. Ops that only one machine ran are left out."""
    ops = parts[0].model.ops if parts else ()
    figures = {}
    for at, op in enumerate(ops):
        bench = Bench(db, op, platform.name)
        by_machine: dict[frozenset[str], list[Seen]] = {}
        for done, part in enumerate(parts):
            progress(f"judge {op}", done + at * len(parts), len(ops) * len(parts))
            rows = [(row.platform in part.machines, row.group in part.groups)
                    for row in bench.evidence.rows]  # fmt: skip
            there, group = np.array(rows, dtype=np.bool_).reshape(-1, 2).T
            train = np.flatnonzero(~there & ~group)
            test = bench.counted[(there & group)[bench.counted]]
            most = _MOST_QUERIES // sum(other.machines == part.machines for other in parts)
            test = np.sort(np.random.default_rng(done).permutation(test)[:most])
            if train.size and test.size:
                seen = seen_by(bench, part.model, train, test)
                by_machine.setdefault(part.machines, []).extend(seen)
        if by_machine:
            try:
                figures[str(op)] = held_out(list(by_machine.values()), weight=MACHINES_WEIGHT)
            except NothingFound:
                figures[str(op)] = {}
    return figures

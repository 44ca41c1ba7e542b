"""Training of a rule on a database's measurements, evaluated on held-out groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, product

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config, Op
from embeddb.core.errors import NothingFound, UsageError
from embeddb.core.reports import Progress
from embeddb.core.wording import plural
from embeddb.core.workload import matrices_only
from embeddb.index.held_out import split_groups
from embeddb.index.lookup import Lookup
from embeddb.index.run_matrix import Extent
from embeddb.index.scopes import scope_of
from embeddb.platforms.platform import Platform
from embeddb.ranking.fallback import answer
from tuners.evaluation.bench import Bench
from tuners.evaluation.figures import Outcome, judge, summarise
from tuners.rule.features import NAMES, features_of, recorded_features
from tuners.rule.rule import HeldOutRow, Rule, greedy_portfolio
from tuners.rule.trees import Forest, Shape, grow_trees

_INNER_FOLDS = 3


#: Simplest first; chosen on held-out groups of the training part.
_SHAPES = (Shape(1, 2, 8, 1.0), Shape(1, 4, 8, 1.0), Shape(8, 6, 3, 0.6), Shape(10, 8, 2, 0.8))
_DOUBTS = (0.0, 1.0)
#: Least improvement by a less simple setting, in mean log gain.
_WORTH = 1e-3


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """Shapes, for r patterns and c configurations of which the first is the default: `features`
    float64[r,d]; `gains` float64[r,c], log gains over the default, nan where not run; `groups`
    int64[r]."""

    features: NDArray[np.float64]
    gains: NDArray[np.float64]
    groups: NDArray[np.int64]

    def take(self, rows: NDArray[np.int64] | NDArray[np.bool_]) -> Measured:
        """Some of the patterns."""
        return Measured(self.features[rows], self.gains[rows], self.groups[rows])


@dataclass(frozen=True, slots=True, eq=False)
class Fitted:
    """`portfolio` are positions of configurations, the default's first; the forest's choice is a
    position in it."""

    portfolio: tuple[int, ...]
    forest: Forest

    def choose(self, features: NDArray[np.float64]) -> NDArray[np.int64]:
        """int64[q] positions of configurations for features float64[q,d]."""
        return np.array(self.portfolio, dtype=np.int64)[self.forest.choose(features)]


def fit(data: Measured, most: int, *, seed: int) -> Fitted:
    """A rule among at most `most` configurations; the shape of its trees, and the uncertainty
    penalty of a leaf, are chosen on groups held out of `data`."""
    shape, doubt = _best_setting(data, most, seed)
    return _fits(data, most, shape, [doubt], seed)[0]


def _fits(
    data: Measured, most: int, shape: Shape, doubts: Sequence[float], seed: int
) -> list[Fitted]:
    """One rule per penalty, with the same trees."""
    portfolio = greedy_portfolio(data.gains, 0, most)
    gains = np.nan_to_num(data.gains[:, portfolio], nan=0.0)
    rng = np.random.default_rng(seed)
    trees = grow_trees(data.features, gains, data.groups, shape, rng=rng)
    forests = (Forest.of(trees, gains, data.groups, doubt=doubt) for doubt in doubts)
    return [Fitted(tuple(portfolio), forest) for forest in forests]


def _best_setting(data: Measured, most: int, seed: int) -> tuple[Shape, float]:
    settings = list(product(_SHAPES, _DOUBTS))
    folds = min(_INNER_FOLDS, np.unique(data.groups).size)
    if folds < 2:
        return settings[0]
    fold = split_groups(data.groups.astype(np.str_), folds, seed)
    got = np.zeros(len(settings))
    for test_fold in range(folds):
        train, test = data.take(fold != test_fold), data.take(fold == test_fold)
        fits = chain.from_iterable(_fits(train, most, s, _DOUBTS, seed) for s in _SHAPES)
        got += [_gained(one, test) for one in fits]
    got /= len(data.groups)
    best = 0
    for at in range(1, len(settings)):
        if got[at] > got[best] + _WORTH:
            best = at
    return settings[best]


def _gained(one: Fitted, test: Measured) -> float:
    """Sum of log gains over the default; configurations without a run count as the default."""
    chosen = test.gains[np.arange(len(test.gains)), one.choose(test.features)]
    return float(np.nan_to_num(chosen, nan=0.0).sum())


#: Fewest patterns and groups for training and evaluating a rule.
_FEWEST_PATTERNS, _FEWEST_GROUPS = 8, 4
MOST_CONFIGS = 64
_FOLDS, _SEED = 5, 0
#: Reported methods, in order.
METHODS = (
    "rule",
    "default",
    "best single configuration",
    "answers of the database",
    "best of the portfolio",
    "best that ran",
)
#: Least share of patterns that have a feature for it to be used; other patterns are left out.
_KNOWN_SHARE = 0.8
#: Least share of matrices that ran a configuration for a rule to use it.
_TRIED_SHARE = 0.8


@dataclass(frozen=True, slots=True, eq=False)
class RuleData:
    """Measurements of an operation on a platform, for rules: `rows` int64[r] are the training rows
    of the bench, `used` int64[u] the features that all of them have, `configs` the c columns of
    `measured`, the default's first, `left_out` the number of patterns with too few features."""

    bench: Bench
    platform: str
    rows: NDArray[np.int64]
    configs: tuple[Config, ...]
    measured: Measured
    used: NDArray[np.int64]
    left_out: int

    def extent(self, rows: NDArray[np.int64]) -> Extent:
        """Number of patterns and machines of rows int64[q] of the bench."""
        return Extent.of(self.bench.evidence.rows[row] for row in rows)

    def fitted(self, rows: NDArray[np.int64], most: int) -> Fitted:
        """A rule trained on some rows of `measured`; its features are numbered as in `NAMES`."""
        training = self.measured.take(rows)
        one = fit(replace(training, features=training.features[:, self.used]), most, seed=_SEED)
        return replace(one, forest=replace(one.forest, feature=self.used[one.forest.feature]))

    def named(self, position: int, at: int) -> Config:
        """The configuration of a column; the first is the default of each row itself."""
        return self.configs[position] if position else self.bench.default(int(self.rows[at]))

    def folds(self, seed: int = _SEED) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Training and test rows of `measured`, whole groups held out, as `embeddb eval` does."""
        place = {int(row): at for at, row in enumerate(self.rows)}
        for train, test in self.bench.folds(_FOLDS, seed):
            parts = [[place[int(r)] for r in rows if int(r) in place] for rows in (train, test)]
            if all(parts):
                yield np.array(parts[0], dtype=np.int64), np.array(parts[1], dtype=np.int64)


def learn_rule(
    db: Lookup,
    platform: str,
    op: Op,
    most: int = 12,
    *,
    allowed: Callable[[Config], bool] | None = None,
    progress: Progress | None = None,
) -> Rule:
    """The rule among at most `most` configurations, for a platform instance or, by the bare name of
    a portable one, for the measurements of all its machines. `allowed`: filter of the
    configurations beside the default (None: all).

    Raises: UsageError for another kind of operation, or an impossible number of configurations;
    NothingFound if nothing, or too little, was measured.
    """
    if not 1 <= most <= MOST_CONFIGS:
        raise UsageError(f"a rule among {most} configurations", hint=f"1 to {MOST_CONFIGS}")
    data = rule_data(db, platform, op, allowed=allowed)
    judged, count = _held_out(data, most, progress)
    return replace(unjudged_rule(data, most), held_out=judged, judged=count)


def unjudged_rule(data: RuleData, most: int) -> Rule:
    """The rule trained on all rows, without held-out figures."""
    one = data.fitted(np.arange(len(data.rows)), most)
    return Rule(
        platform=data.platform,
        op=data.bench.op,
        configs=tuple(data.configs[at] for at in one.portfolio),
        forest=one.forest,
        used=tuple(NAMES[at] for at in data.used),
        patterns=data.extent(data.rows).patterns,
        groups=int(np.unique(data.measured.groups).size),
        left_out=data.left_out,
        environment=_environment(_machines(data.bench, data.rows)),
        simulated=data.bench.simulated,
    )


def rule_data(
    db: Lookup, platform: str, op: Op, *, allowed: Callable[[Config], bool] | None = None
) -> RuleData:
    """The training data of a rule. Raises: as `learn_rule`."""
    matrices_only([op], "a rule in C")
    where = db.platform(platform)
    scope = scope_of(where)
    if (op, scope) not in db.scopes():
        have = ", ".join(f"{o} on {s}" for o, s in db.scopes() if o.kind == "matrix")
        raise NothingFound(f"no runs of {op} on {where.id}", hint=f"there are: {have or 'none'}")
    bench = Bench(db, op, scope, instance=where.id if where.portable and where.instance else "")
    if bench.evidence.winners:
        raise NothingFound(f"{where.id} records winners and no times: no rule can be learned")
    rows = bench.counted
    evidence = bench.evidence
    features = np.array(
        [_features(db, evidence.rows[row].pattern_id) for row in rows], dtype=np.float64
    ).reshape(-1, len(NAMES))
    present = np.isfinite(features)
    used = np.flatnonzero(present.mean(axis=0) >= _KNOWN_SHARE) if rows.size else np.arange(0)
    able = present[:, used].all(axis=1)
    _, groups = np.unique(evidence.groups[rows[able]], return_inverse=True)
    able_of = Extent.of(evidence.rows[row] for row in rows[able]).patterns
    _enough(f"{op} on {where.id}", able_of if used.size else 0, groups)
    configs, gains = _with_default(bench, rows[able], allowed)
    machines = list(_machines(bench, rows[able]))
    return RuleData(
        bench,
        machines[0] if len(machines) == 1 else where.id,
        rows[able],
        configs,
        Measured(features[able], gains, groups.astype(np.int64)),
        used,
        Extent.of(evidence.rows[row] for row in rows[~able]).patterns,
    )


def _enough(what: str, patterns: int, groups: NDArray[np.intp]) -> None:
    some = np.unique(groups).size
    if patterns < _FEWEST_PATTERNS or some < _FEWEST_GROUPS:
        raise NothingFound(
            f"{what}: {plural(patterns, 'matrix', 'matrices')} in {plural(some, 'group')} ran the "
            f"default and another configuration; a rule needs {_FEWEST_PATTERNS} in "
            f"{_FEWEST_GROUPS} groups, with known sizes",
            hint="measure or index more",
        )


def _features(db: Lookup, pattern_id: str) -> NDArray[np.float64]:
    structure = db.store.structure(pattern_id)
    if structure is not None:
        return features_of(structure)
    info = db.store.pattern(pattern_id)
    return np.full(len(NAMES), np.nan) if info is None else recorded_features(info)


def _with_default(
    bench: Bench, rows: NDArray[np.int64], allowed: Callable[[Config], bool] | None
) -> tuple[tuple[Config, ...], NDArray[np.float64]]:
    """The configurations that most rows tried, the usual default first, and gains float64[r,c] over
    each row's own."""
    default = Counter(bench.default(int(row)) for row in rows).most_common(1)[0][0]
    gains = bench.evidence.gains(rows)
    tried = np.isfinite(gains).sum(axis=0) >= _TRIED_SHARE * len(rows)
    configs = bench.evidence.configs
    others = [
        at
        for at, config in enumerate(configs)
        if tried[at] and config != default and (allowed is None or allowed(config))
    ]
    gains = gains[:, others]
    zeros = np.zeros((len(rows), 1))
    return (default, *(configs[at] for at in others)), np.hstack([zeros, gains])


def _machines(bench: Bench, rows: NDArray[np.int64]) -> dict[str, Platform]:
    """The platforms that ran the rows int64[q] of the bench; others of its scope did not."""
    ids = {bench.evidence.rows[row].platform for row in rows}
    return {name: platform for name, platform in bench.platforms.items() if name in ids}


def _environment(platforms: Mapping[str, Platform]) -> dict[str, str]:
    if len(platforms) != 1:
        return {"machines": " ".join(sorted(platforms))}
    (one,) = platforms.values()
    return dict(one.environment)


def _held_out(
    data: RuleData, most: int, progress: Progress | None
) -> tuple[tuple[HeldOutRow, ...], int]:
    """Held-out figures of every method, and their number of patterns."""
    done: dict[str, list[Outcome]] = {}
    tested: list[int] = []
    for at, (train, test) in enumerate(data.folds()):
        if progress is not None:
            progress(f"{data.bench.op} on {data.platform}, held out", at, _FOLDS)
        tested += data.rows[test].tolist()
        one = data.fitted(train, most)
        outcomes = rule_outcomes(data, one, test, data.measured.features[test])
        for method, outcome in chain(outcomes, other_outcomes(data, train, test)):
            done.setdefault(method, []).append(outcome)
    rows = []
    for method in METHODS:
        figures, _ = summarise([done[method]])
        reported = (figures[name] for name in ("of_optimum@1", "slower_than_default", "speedup@1"))
        rows.append(HeldOutRow(method, *reported))
    return tuple(rows), data.extent(np.array(tested)).patterns


def rule_outcomes(
    data: RuleData, one: Fitted, test: NDArray[np.int64], features: NDArray[np.float64]
) -> Iterator[tuple[str, Outcome]]:
    """The rule's choice by features float64[q,d], and the best of its portfolio, on test rows
    int64[q] of `data.measured`."""
    for at, choice in zip(test, one.choose(features), strict=True):
        truth = data.bench.truth(int(data.rows[at]))
        pack = [data.named(position, at) for position in one.portfolio]
        pack.sort(key=lambda config: truth.times.get(config, np.inf))
        yield "rule", judge(truth, [data.named(int(choice), at)])
        yield "best of the portfolio", judge(truth, pack[:1])


def other_outcomes(
    data: RuleData, train: NDArray[np.int64], test: NDArray[np.int64]
) -> Iterator[tuple[str, Outcome]]:
    """The methods that a rule is compared with, on test rows of `data.measured`, trained on the
    training rows."""
    bench = data.bench
    means = np.nan_to_num(data.measured.gains[train], nan=0.0).mean(axis=0)
    test_groups = set(bench.evidence.groups[data.rows[test]].tolist())
    apart = np.flatnonzero([group not in test_groups for group in bench.evidence.groups])
    queries = dict(bench.queries_of(apart, data.rows[test]))
    for at in test:
        row = int(data.rows[at])
        truth = bench.truth(row)
        recommendation = answer(queries[row], 1)
        yield "default", judge(truth, [data.named(0, at)])
        yield "best single configuration", judge(truth, [data.named(int(means.argmax()), at)])
        yield (
            "answers of the database",
            judge(truth, [Config(c.config) for c in recommendation.candidates]),
        )
        yield "best that ran", judge(truth, [min(truth.times, key=lambda c: truth.times[c])])

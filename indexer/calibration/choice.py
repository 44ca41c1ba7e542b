"""Choice of the matrices, configurations and tasks of a calibration, and estimates of their
duration."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, zip_longest
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config, Op
from embeddb.core.errors import InputError, MatrixError
from embeddb.core.pattern import Pattern
from embeddb.core.timing import summarise_runs
from embeddb.index.answer_index import AnswerIndex
from embeddb.index.lookup import Lookup
from embeddb.index.pooling import Source, correlation_of
from embeddb.index.view import View, view_of
from embeddb.index.vote import plain_metric
from embeddb.matrix_files import matrix_files, matrix_names, read_pattern
from embeddb.platforms.platform import Platform
from embeddb.ranking.answer import first_answers
from embeddb.ranking.build import build_query
from indexer.campaign.plan import choose_configs
from indexer.generated import SIZES, generated

Floats = NDArray[np.float64]

#: Candidate matrices that are read ahead: each costs reading and features.
_POOL = 16
#: Configurations slower than the best by more than this mean log gain are left out of the panel.
_PLAUSIBLE = 0.7
#: Configurations drawn from a space without measurements, or ranked in another one.
_DRAWN = 64
#: Least standard deviation of a log gain between machines; variance of a measured difference.
_LEAST_SPREAD, _NOISE = 0.05, 0.01
#: Non-zeros of a matrix that is never too large.
_SMALL = 20_000


class Chooser:
    """Choose the most informative matrices first: farthest-first traversal (Gonzalez 1985) in the
    coordinates in which neighbours are looked up, from the middle outwards.

    `vector_of` returns raw features float32[d] of a pattern. A user's own matrices weigh more the
    farther they are from measured ones, since queries will be about them; others (`familiar`) weigh
    less, since without neighbours they do not compare machines.
    """

    def __init__(
        self,
        matrices: Iterator[Pattern],
        vector_of: Callable[[Pattern], NDArray[np.float32]],
        partition: AnswerIndex | None,
        *,
        done: Sequence[str] = (),
        familiar: bool = False,
    ) -> None:
        self._matrices, self._vector_of, self._partition = matrices, vector_of, partition
        self._familiar = familiar
        self._pool: list[tuple[Pattern, NDArray[np.float32]]] = []
        self._chosen: list[NDArray[np.float32]] = []
        if partition is not None:
            place = {pattern_id: at for at, pattern_id in enumerate(partition.ids)}
            self._chosen = [partition.vectors[place[i]] for i in done if i in place]

    def take(self, count: int) -> list[Pattern]:
        """The next `count` matrices or fewer, the most informative first."""
        while len(self._pool) < _POOL and (pattern := next(self._matrices, None)) is not None:
            self._pool.append((pattern, self._vector_of(pattern)))
        if not self._pool:
            return []
        raw = np.array([v for _, v in self._pool] + self._chosen, dtype=np.float32)
        metric = plain_metric(raw) if self._partition is None else self._partition.metric
        at = metric.apply(raw).astype(np.float64)
        taken = _farthest_first(at, len(self._pool), count, self._worth(raw))
        chosen = [self._pool[at] for at in taken]
        self._pool = [one for at, one in enumerate(self._pool) if at not in set(taken)]
        self._chosen += [vector for _, vector in chosen]
        return [pattern for pattern, _ in chosen]

    def _worth(self, raw: NDArray[np.float32]) -> Floats:
        """Weights float64[p] in 0.5..1.5 of the pool, by the distance from measured matrices."""
        partition, count = self._partition, len(self._pool)
        if partition is None:
            return np.ones(count)
        nearest = [partition.nearest(vector, count=1)[1] for vector in raw[:count]]
        new = np.array([partition.percentile(float(d[0])) if d.size else 1.0 for d in nearest])
        new = np.where(np.isfinite(new), new, 0.5)
        worth: Floats = 1.5 - new if self._familiar else 0.5 + new
        return worth


def _farthest_first(at: Floats, pool: int, count: int, worth: Floats) -> list[int]:
    """Positions below `pool` in `at` float64[p,d], whose later rows were chosen before."""
    far = np.sqrt(((at[:pool, None] - at[None]) ** 2).sum(axis=2))
    taken: list[int] = []
    gap = far[:, pool:].min(axis=1, initial=np.inf)
    while len(taken) < min(count, pool):
        score = gap * worth if np.isfinite(gap).any() else -far[:, :pool].mean(axis=1) / worth
        score[taken] = -np.inf
        taken.append(int(np.argmax(score)))
        gap = np.minimum(gap, far[:, taken[-1]])
    return taken


def panel_of(partition: AnswerIndex | None, here: Platform, op: Op) -> list[Config]:
    """Configurations for every matrix, the most informative first: alternately the one that
    explains most of the variance between machines, and the next of a fixed set that serves most
    patterns. Runs of this machine do not count, so that a second call resumes the first."""
    rest = None if partition is None else partition.view_input.without(here.id)
    if partition is None or rest is None or not rest.layers:
        space = here.space(op)
        return choose_configs(space, here.default(op), _DRAWN, rng=np.random.default_rng(0))
    view = view_of(rest, Source(here.id, op), partition.policy, partition.left_out)
    ran = np.isfinite(view.gains).any(axis=0)
    prior = np.where(ran, view.averages.prior, -np.inf)
    plausible = prior >= prior.max() - _PLAUSIBLE
    cover = [int(at) for at in view.averages.cover if plausible[at]][:_DRAWN]
    worth = (_between_machines(view) + _LEAST_SPREAD) * np.exp(prior - prior.max())
    spread = np.where(plausible, worth, 0.0)
    chosen = _most_informative(correlation_of(rest.configs) * np.outer(spread, spread), _DRAWN)
    order = [at for pair in zip_longest(chosen, cover) for at in pair if at is not None]
    return [rest.configs[at] for at in dict.fromkeys(order)]


def _most_informative(covariance: Floats, count: int) -> list[int]:
    """Positions that each reduce the total remaining variance most: active learning by Cohn's
    criterion (1996) under a Gaussian process with that covariance float64[c,c]."""
    left, chosen = covariance.copy(), list[int]()
    while len(chosen) < count:
        var = np.diag(left)
        reduction = (left**2).sum(axis=0) / (var + _NOISE)
        reduction[chosen] = 0.0
        if reduction.max() <= 1e-12:
            break
        at = int(np.argmax(reduction))
        chosen.append(at)
        left -= np.outer(left[:, at], left[at]) / (var[at] + _NOISE)
    return chosen


def _between_machines(view: View) -> Floats:
    """Standard deviation float64[c] of each configuration's gain between machines; with one
    machine, between patterns, beyond their own level."""
    if len(view.effects) > 1:
        spread: Floats = view.effects.std(axis=0)
        return spread
    off = view.gains - view.averages.level[:, None] - view.averages.prior
    ran = np.isfinite(off)
    square = np.where(ran, off**2, 0.0).sum(axis=0)
    varying: Floats = np.sqrt(square / np.maximum(ran.sum(axis=0), 1))
    return varying


#: Most bytes of a file per entry: a larger file has too many entries to be measured.
_BYTES_AN_ENTRY = 40.0


class Candidates:
    """Matrices of a folder in a fixed shuffled order, or generated ones without a folder, up to
    `most` non-zeros. `problems` has a line for each file that cannot be used, `too_large` counts
    those beyond the limit. The smallest generated ones are never too large.

    Raises: MatrixError if it is no folder.
    """

    def __init__(self, folder: Path | None, most: int) -> None:
        self.problems: list[str] = []
        self.too_large = 0
        self._most, self._folder = most, folder
        self._source: Iterable[Pattern]
        if folder is None:
            self._source = generated(most=max(most, *sorted(SIZES.values())[:1]))
        else:
            files = matrix_files(folder, note=self.problems.append)
            self._names = matrix_names(files, folder)
            order = np.random.default_rng(0).permutation(len(files))
            self._source = self._read([files[at] for at in order])

    def __iter__(self) -> Iterator[Pattern]:
        return iter(self._source)

    def none(self) -> InputError:
        """The error where none of them can be measured."""
        if self.too_large:
            hint = f"{self.too_large} too large for the time given: give more --minutes"
        else:
            hint = "; ".join(self.problems[:1]) or "name a folder with other matrix files"
        where = "" if self._folder is None else str(self._folder)
        return InputError("no matrix that can be measured", where=where, hint=hint)

    def _read(self, files: Iterable[Path]) -> Iterator[Pattern]:
        for path in files:
            try:
                if path.stat().st_size > _BYTES_AN_ENTRY * self._most:
                    self.too_large += 1
                    continue
                pattern = read_pattern(path, name=self._names[path])
            except (MatrixError, OSError) as e:
                self.problems.append(f"left out: {e}")
                continue
            if not pattern.nnz:
                self.problems.append(f"left out: {path}: no entries")
            elif pattern.nnz > self._most:
                self.too_large += 1
            else:
                yield pattern


#: First estimates: seconds to compile a configuration, to run one with warm-up and repeats on any
#: matrix, and to run one in addition on a matrix of `_WORK`.
_COMPILE_S, _RUN_S, _WORK_S, _WORK = 0.4, 0.005, 0.02, 8e6
#: Work is non-zeros times dense columns plus these, since the matrix itself is read too; seconds
#: grow with this power of it, since large operands leave the caches.
_COLUMNS, _POWER = 8, 1.5
#: Last tasks of an op that the next estimate rests on, and its safety factor.
_LATELY, _CAUTION = 5, 1.3


class Timer:
    """A time limit on a monotonic `clock` in seconds."""

    def __init__(self, clock: Callable[[], float], total_s: float) -> None:
        self._clock, self.total_s = clock, total_s
        self._began = clock()

    @property
    def spent_s(self) -> float:
        return self._clock() - self._began

    @property
    def left_s(self) -> float:
        return self.total_s - self.spent_s


class Pace:
    """Estimates of a task's seconds, corrected by the ratios of measured to first estimates, for
    compiling and for each op."""

    def __init__(self) -> None:
        self._compiled: list[float] = []
        self._measured: dict[Op, list[float]] = {}

    def compiled(self, configs: int, seconds: float) -> None:
        """Note the seconds of compiling so many configurations."""
        if configs:
            self._compiled.append(seconds / (configs * _COMPILE_S))

    def measured(self, op: Op, configs: int, nnz: int, seconds: float) -> None:
        """Note the seconds of running so many configurations on a matrix and storing the runs."""
        if configs:
            self._measured.setdefault(op, []).append(seconds / guessed_s(op, configs, nnz))

    def expected_s(self, op: Op, configs: int, nnz: int, *, fresh: int) -> float:
        """Seconds for `configs` on a matrix, `fresh` of them to be compiled first."""
        ratios = self._measured.get(op) or list(chain.from_iterable(self._measured.values()))
        run = guessed_s(op, configs, nnz) * _factor(ratios)
        return run + fresh * _COMPILE_S * _factor(self._compiled)


def guessed_s(op: Op, configs: int, nnz: int) -> float:
    """First estimate of the seconds to run `configs` on a matrix of any machine."""
    work = nnz * (op.width + _COLUMNS)
    return float(configs * (_RUN_S + _WORK_S * (work / _WORK) ** _POWER))


def largest_nnz(op: Op, configs: int, seconds: float) -> int:
    """Most non-zeros of a matrix for which `guessed_s` is at most `seconds`; 0 if none."""
    rest = max(seconds / configs - _RUN_S, 0.0)
    return int(_WORK * (rest / _WORK_S) ** (1 / _POWER) / (op.width + _COLUMNS))


def _factor(ratios: list[float]) -> float:
    return _CAUTION * statistics.median(ratios[-_LATELY:]) if ratios else 1.0


#: Configurations of a task: those of the panel, the first answers for the matrix, and those that
#: run again at its end, the default among them, to measure the noise.
_PANEL, _ANSWERS, AGAIN = 17, 6, 3
TASK = 1 + _PANEL + _ANSWERS + AGAIN
#: Share of a panel from which a task is done: evidence of others changes the panel meanwhile.
_DONE = 0.8


def task_configs(
    db: Lookup,
    pattern: Pattern,
    here: Platform,
    op: Op,
    panel: Sequence[Config],
    number: int = 0,
) -> list[Config]:
    """Configurations of a matrix and op that have not run here, the default first, in the pass of
    that number, which takes the next part of the panel; empty if none is missing."""
    ran = summarise_runs(db.store.runs(here.id, op, pattern.id))
    space = here.space(op, pattern.sizes)
    legal = [space.canonical(c) for c in panel if space.reason(c) is None]
    part = list(dict.fromkeys(legal))[number * _PANEL : (number + 1) * _PANEL]
    rest = [config for config in part if config not in ran]
    if (ran and len(rest) <= (1 - _DONE) * len(part)) or (number and not part):
        return []
    query = build_query(db, pattern, here, op)
    first = [query.default, *rest]
    answers = first_answers(query, _ANSWERS + len(ran) + len(first))
    new = [space.canonical(c) for c in answers]
    new = [c for c in dict.fromkeys(new) if c not in ran and c not in first]
    return list(dict.fromkeys([*first, *new[:_ANSWERS]]))


class Evidence:
    """The partition of each of the `ops` on the platform `here`, before a calibration. Neighbours
    are looked up in the one with most matrices."""

    def __init__(self, db: Lookup, here: Platform, ops: Sequence[Op]) -> None:
        self._db, self._here, self._ops = db, here, ops
        self.partitions = {op: db.partition(op, here) for op in ops}
        self._largest = max(self.partitions.values(), key=lambda p: len(p.ids) if p else 0)
        self._featurizers = {"stats", *(p.featurizer for p in self.partitions.values() if p)}

    def panels(self) -> dict[Op, list[Config]]:
        """`panel_of` each op."""
        return {op: panel_of(p, self._here, op) for op, p in self.partitions.items()}

    def candidates(self, folder: Path | None, task_s: float) -> Candidates:
        """Matrices on which a task takes about `task_s` seconds or less."""
        most = min(largest_nnz(op, TASK, task_s) for op in self._ops)
        return Candidates(folder, max(most, _SMALL))

    def chooser(self, candidates: Candidates, *, familiar: bool) -> Chooser:
        """A chooser among these matrices, which takes into account those measured here."""
        largest = self._largest
        featurizer = largest.featurizer if largest else "stats"
        return Chooser(
            iter(candidates),
            lambda pattern: self._db.vector(pattern, featurizer),
            largest,
            done=self._done(),
            familiar=familiar,
        )

    def _done(self) -> list[str]:
        """Ids of the patterns on which this instance ran all ops."""
        store = self._db.store
        partitions = [store.partition(self._here.id, op) for op in self._ops]
        members = [set(store.members(p)) for p in partitions if p is not None]
        return sorted(set.intersection(*members)) if len(members) == len(self._ops) else []

    def add(self, pattern: Pattern) -> bool:
        """Store a pattern with the features that queries use; False if it is stored already.
        Features of a network, which take seconds on busy processors, are left to `embed`."""
        if self._db.store.structure(pattern.id) is not None:
            return False
        self._db.add_pattern(pattern, only=self._featurizers)
        return True

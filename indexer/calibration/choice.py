"""What a machine is calibrated on: informative matrices and configurations, their tasks,
and the time that tasks take."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config, Op
from embeddb.core.errors import MatrixError
from embeddb.core.pattern import Pattern
from embeddb.index.answer_index import AnswerIndex
from embeddb.index.lookup import Lookup
from embeddb.index.pooling import Source, correlation_of
from embeddb.index.view import View, view_of, without
from embeddb.index.vote import Metric, plain_metric
from embeddb.matrix_files import matrix_files, matrix_names, read_pattern
from embeddb.platforms.platform import Platform
from embeddb.ranking.answer import first_answers
from embeddb.ranking.build import build_query
from indexer.campaign.plan import choose_configs
from indexer.generated import SIZES, generated

Floats = NDArray[np.float64]

#: Matrices looked at ahead of those chosen: each costs reading and features.
_POOL = 16
#: A configuration that is slower than the best on average by more than this log gain is not worth
#: asking every machine about.
_PLAUSIBLE = 0.7
#: Of a space nobody has measured, so many configurations are drawn; of another, so many are put in
#: order.
_DRAWN = 64
#: What machines may differ in any configuration, beside what they were seen to, in log gain; and
#: the variance of a measured difference.
_LEAST_SPREAD, _NOISE = 0.05, 0.01


class Chooser:
    """Matrices, those first that show most of what there is: farthest-first traversal (Gonzalez
    1985) in the coordinates in which neighbours are looked for, from the middle outwards.

    `vector_of` gives raw features float32[d] of a pattern. What nothing measured is like counts
    more among a user's own matrices, for these will be asked about, and less among others
    (`familiar`), for without neighbours they tell nothing about other machines.
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
        """At most `count` more, the first the most telling; none where no matrix is left."""
        while len(self._pool) < _POOL and (pattern := next(self._matrices, None)) is not None:
            self._pool.append((pattern, self._vector_of(pattern)))
        if not self._pool:
            return []
        raw = np.array([v for _, v in self._pool] + self._chosen, dtype=np.float32)
        metric = plain_metric(raw) if self._partition is None else self._partition.metric
        taken = _farthest_first(_coordinates(metric, raw), len(self._pool), count, self._worth(raw))
        found = [self._pool[at] for at in taken]
        self._pool = [one for at, one in enumerate(self._pool) if at not in set(taken)]
        self._chosen += [vector for _, vector in found]
        return [pattern for pattern, _ in found]

    def _worth(self, raw: NDArray[np.float32]) -> Floats:
        """float64[p] in 0.5..1.5 by how new each of the pool is."""
        partition, count = self._partition, len(self._pool)
        if partition is None:
            return np.ones(count)
        found = [partition.nearest(vector, count=1)[1] for vector in raw[:count]]
        new = np.array([partition.percentile(float(d[0])) if d.size else 1.0 for d in found])
        new = np.where(np.isfinite(new), new, 0.5)
        worth: Floats = 1.5 - new if self._familiar else 0.5 + new
        return worth


def _coordinates(metric: Metric, raw: NDArray[np.float32]) -> Floats:
    return metric.apply(raw).astype(np.float64)


def _farthest_first(at: Floats, pool: int, count: int, worth: Floats) -> list[int]:
    """Positions below `pool` in `at` float64[p,d], whose later rows are taken already."""
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
    """Configurations for every matrix, those first that tell most: in turn one from which most is
    learned of what machines differ in, and the next of a fixed set that serves most patterns. What
    this machine has measured has no say: a second call goes on where the first one stopped."""
    rest = None
    if partition is not None:
        rest = without(partition.ground, here.id)
    if partition is None or rest is None or not rest.layers:
        space = here.space(op)
        return choose_configs(space, here.default(op), _DRAWN, rng=np.random.default_rng(0))
    view = view_of(rest, Source(here.id, op), partition.policy, partition.left_out)
    known = np.isfinite(view.gains).any(axis=0)
    prior = np.where(known, view.averages.prior, -np.inf)
    plausible = prior >= prior.max() - _PLAUSIBLE
    cover = [int(at) for at in view.averages.cover if plausible[at]][:_DRAWN]
    worth = (_between_machines(view) + _LEAST_SPREAD) * np.exp(prior - prior.max())
    spread = np.where(plausible, worth, 0.0)
    telling = _most_telling(correlation_of(rest.configs) * np.outer(spread, spread), _DRAWN)
    order = [at for pair in zip_longest(telling, cover) for at in pair if at is not None]
    return [rest.configs[at] for at in dict.fromkeys(order)]


def _most_telling(covariance: Floats, count: int) -> list[int]:
    """Positions, each of which lessens most of the variance that is left in all: active learning by
    Cohn's criterion (1996) under a Gaussian process with that covariance float64[c,c]."""
    left, found = covariance.copy(), list[int]()
    while len(found) < count:
        var = np.diag(left)
        lessened = (left**2).sum(axis=0) / (var + _NOISE)
        lessened[found] = 0.0
        if lessened.max() <= 1e-12:
            break
        at = int(np.argmax(lessened))
        found.append(at)
        left -= np.outer(left[:, at], left[at]) / (var[at] + _NOISE)
    return found


def _between_machines(view: View) -> Floats:
    """float64[c] standard deviation of what machines gain by each; with one machine, of what
    patterns do, beyond their own level."""
    if len(view.effects) > 1:
        spread: Floats = view.effects.std(axis=0)
        return spread
    off = view.gains - view.averages.level[:, None] - view.averages.prior
    ran = np.isfinite(off)
    square = np.where(ran, off**2, 0.0).sum(axis=0)
    varying: Floats = np.sqrt(square / np.maximum(ran.sum(axis=0), 1))
    return varying


#: A file holds more entries than may be measured if it is larger than so many bytes for each.
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
        self._most = most
        self._source: Iterable[Pattern]
        if folder is None:
            self._source = generated(most=max(most, *sorted(SIZES.values())[:1]))
        else:
            files = matrix_files(folder, note=self.problems.append)
            self._names = matrix_names(files, folder)
            order = np.random.default_rng(0).permutation(len(files))
            self._source = self._small_enough(self._read([files[at] for at in order]))

    def __iter__(self) -> Iterator[Pattern]:
        return iter(self._source)

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
            if pattern.nnz:
                yield pattern
            else:
                self.problems.append(f"left out: {path}: no entries")

    def _small_enough(self, source: Iterable[Pattern]) -> Iterator[Pattern]:
        for pattern in source:
            if pattern.nnz <= self._most:
                yield pattern
            else:
                self.too_large += 1


#: Before anything was measured: seconds to compile a configuration; to run one, warm-up and repeats
#: together, whatever the matrix; and where a matrix of so much work more.
_COMPILE_S, _RUN_S, _WORK_S, _WORK = 0.4, 0.005, 0.02, 8e6
#: Work is non-zeros times dense columns and these, for the matrix itself is read too. What leaves
#: the caches takes longer by more than its size.
_COLUMNS, _POWER = 8, 1.5
#: The last tasks of an op that foretell the next, and the caution with which they do.
_LATELY, _CAUTION = 5, 1.3


class Timer:
    """The time given. `clock` tells seconds that never run backwards."""

    def __init__(self, clock: Callable[[], float], total_s: float) -> None:
        self._clock, self.total_s = clock, total_s
        self._began = clock()

    @property
    def spent_s(self) -> float:
        return self._clock() - self._began

    @property
    def left_s(self) -> float:
        return self.total_s - self.spent_s


class _Sample(NamedTuple):
    """`expected_s` by the first guess and `seconds` in truth."""

    expected_s: float
    seconds: float


class Pace:
    """Learns by what factor the first guess is wrong, for compiling and for each op."""

    def __init__(self) -> None:
        self._compiled: list[_Sample] = []
        self._measured: dict[Op, list[_Sample]] = {}

    def compiled(self, configs: int, seconds: float) -> None:
        """So many configurations, not compiled before, took that long."""
        if configs:
            self._compiled.append(_Sample(configs * _COMPILE_S, seconds))

    def measured(self, op: Op, configs: int, nnz: int, seconds: float) -> None:
        """As `compiled`, for running them on a matrix and keeping the runs."""
        if configs:
            guess = _Sample(guessed_s(op, configs, nnz), seconds)
            self._measured.setdefault(op, []).append(guess)

    def expected_s(self, op: Op, configs: int, nnz: int, *, fresh: int) -> float:
        """Seconds for `configs` on a matrix, `fresh` of them to be compiled first."""
        lately = self._measured.get(op) or [s for held in self._measured.values() for s in held]
        run = guessed_s(op, configs, nnz) * _factor(lately)
        return run + fresh * _COMPILE_S * _factor(self._compiled)


def guessed_s(op: Op, configs: int, nnz: int) -> float:
    """Seconds to run `configs` on a matrix, before anything is known of the machine."""
    work = nnz * (op.width + _COLUMNS)
    return float(configs * (_RUN_S + _WORK_S * (work / _WORK) ** _POWER))


def largest_nnz(op: Op, configs: int, seconds: float) -> int:
    """Non-zeros of the largest matrix for which that is guessed; 0 where there is none."""
    rest = max(seconds / configs - _RUN_S, 0.0)
    return int(_WORK * (rest / _WORK_S) ** (1 / _POWER) / (op.width + _COLUMNS))


def _factor(samples: list[_Sample]) -> float:
    if not samples:
        return 1.0
    return _CAUTION * statistics.median(s.seconds / s.expected_s for s in samples[-_LATELY:])


#: Of each task: configurations that all matrices run, the first answers for the matrix, and how
#: many run once more at its end, the default among them: for the noise.
_PANEL, _ANSWERS, AGAIN = 17, 6, 3
TASK = 1 + _PANEL + _ANSWERS + AGAIN
#: Of a panel that was measured so far a task is not begun again: evidence of others moves it.
_DONE = 0.8


def task_configs(
    db: Lookup,
    pattern: Pattern,
    here: Platform,
    op: Op,
    panel: Sequence[Config],
    *,
    number: int = 0,
    known: Collection[Config] = (),
) -> list[Config]:
    """What is missing of a matrix and op, beside the `known`, in a pass of that number, which takes
    the next part of the panel; the default first. Nothing if nothing is."""
    space = here.space(op, pattern.sizes)
    legal = [space.canonical(c) for c in panel if space.reason(c) is None]
    part = list(dict.fromkeys(legal))[number * _PANEL : (number + 1) * _PANEL]
    rest = [config for config in part if config not in known]
    if (known and len(rest) <= (1 - _DONE) * len(part)) or (number and not part):
        return []
    query = build_query(db, pattern, here, op)
    first = [query.default, *rest]
    answers = first_answers(query, _ANSWERS + len(known) + len(first))
    new = [space.canonical(c) for c in answers]
    new = [c for c in dict.fromkeys(new) if c not in known and c not in first]
    return list(dict.fromkeys([*first, *new[:_ANSWERS]]))


def measured_on_all(db: Lookup, here: Platform, ops: Sequence[Op]) -> list[str]:
    """Ids of the patterns that an instance ran all of these ops on."""
    members = [
        set(db.store.members(p)) for op in ops if (p := db.store.partition(here.id, op)) is not None
    ]
    return sorted(set.intersection(*members)) if len(members) == len(ops) else []

"""The nearest configurations of another platform, by the distance of their loop nests."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from embeddb.core.config import Config, Op
from embeddb.core.errors import SpaceError
from embeddb.core.sizes import UNKNOWN, Sizes
from embeddb.cost_model.encoders.loop_nest import homogeneous
from embeddb.cost_model.encoders.own_parameters import Layout
from embeddb.platforms.loopnest import in_words
from embeddb.platforms.platform import Platform
from embeddb.platforms.space.parts import Assignment, Part
from embeddb.platforms.space.rules import Param

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Difference of log2 splits that counts as a distance of 1: built-in splits are at most 2^16.
_SPLIT_RANGE = 16.0
#: Up to so many choices of a nest are compared whole; among more the nearest is searched for.
_ENUMERATED = 4096
#: Steps of that search from one start, beside one for each requested nest.
_ROUNDS = 20
#: Places that search starts from, at most, beside the default.
_STARTS = 32
#: Distances closer than this are ties.
_TIE = 1e-6
_PAIRS = np.array([*itertools.combinations(range(7), 2)]).T


@dataclass(frozen=True, slots=True)
class Nearest:
    """A legal configuration of the target. `distance` is how far its loop nest is from the foreign
    one (0: the same nest), or None where the two platforms have no loop nest in common: then
    `config` is the target's default and says nothing about the foreign configuration."""

    config: Config
    distance: float | None


def nearest_configs(
    target: Platform,
    source: Platform,
    op: Op,
    configs: Sequence[Mapping[str, Any]],
    *,
    k: int = 1,
    sizes: Sizes = UNKNOWN,
) -> list[list[Nearest]]:
    """For each configuration of `source`, legal ones of `target` with the k nearest loop nests by
    `nest_distances`, nearest first; fewer where the target has fewer nests.

    There is one configuration per nest, since all that share it are equally near:
    the one least different from the target's default in its own parameters (squared distance of
    `Layout.raw`), then with most values in common, then in declared order. Ties between nests are
    decided in the same way. Where both platforms declare the same space, a configuration stands
    for itself, or for `ConfigSpace.nearest`, and others follow.

    Targets with up to 4096 choices of a nest are compared whole. In others, the parts of the space
    that are independent of one another are replaced one at a time, which finds the nearest where
    no two parts decide the same split or order together; otherwise, and where a part is itself too
    large to list, nearer ones can be missed.

    Raises: SpaceError if a loop nest needs a size that is not given, or if nothing is legal;
    UsageError if a platform does not run this kernel.
    """
    m, n, nnz = sizes
    kernel, default = target.kernel(op), target.default(op, Sizes(m, n, nnz))
    itself: list[list[Nearest]] = [[] for _ in configs]
    if kernel.digest_form() == source.kernel(op).digest_form():
        space = target.space(op, Sizes(m, n, nnz))
        stand = [space.nearest(config) or default for config in configs]
        itself = [[Nearest(config, 0.0)] for config in stand]
        if k == 1 or kernel.mapping is None:
            return itself
        configs = stand
    if kernel.mapping is None or source.kernel(op).mapping is None:
        return [[Nearest(default, None)] for _ in configs]
    ranked = _Goal(target, op, sizes).nearest(homogeneous(source, op, configs, sizes=sizes), k)
    return [
        [*first, *(x for x in others if not first or (x.distance or 0.0) > _TIE)][:k]
        for first, others in zip(itself, ranked, strict=True)
    ]


def nest_distances(
    a: NDArray[np.float32], b: NDArray[np.float32], extents: tuple[int, int, int] = (-1, -1, -1)
) -> NDArray[np.float64]:
    """float64[q,c] between loop nests float32[q,53] and float32[c,53]: per split the difference of
    log2 over 16, and the share of loop pairs that run in the other order.

    `extents` are the iterations of i, j and k (rows, columns, dense columns; -1 is unknown). A
    split beyond the extent counts as the extent, and a split of the whole extent is as far from
    any other as a split of 1, which is as good as none: platforms write "not split" either way
    (SPADE's NUM_MATRIX_COLS, the CPU's absent `jtile`).

    The order is not compared by its one-hot: there, one loop moved from the front to the back
    puts all seven out of place.
    """
    total = np.zeros((len(a), len(b)))
    for split in range(4):
        x, y = a[:, split, None].astype(np.float64), b[None, :, split].astype(np.float64)
        extent = extents[split] if split < 3 else -1
        if extent >= 0:
            limit = math.log2(max(extent, 1))
            apart = np.abs(np.minimum(x, limit) - np.minimum(y, limit))
            total += np.minimum(apart, limit - apart) / _SPLIT_RANGE
        else:
            total += np.abs(x - y) / _SPLIT_RANGE
    agreement = _pair_orders(a) @ _pair_orders(b).T
    total += (_PAIRS.shape[1] - agreement) / (2 * _PAIRS.shape[1])
    return total


def _pair_orders(nests: NDArray[np.float32]) -> NDArray[np.float64]:
    """float64[c,21]: 1 where the first loop of a pair runs outside of the second, else -1."""
    places = nests[:, 4:].reshape(-1, 7, 7).argmax(axis=1)
    return np.where(places[:, _PAIRS[0]] < places[:, _PAIRS[1]], 1.0, -1.0)


class _Goal:
    """Legal configurations of a target, one for each loop nest."""

    def __init__(self, target: Platform, op: Op, sizes: Sizes) -> None:
        m, n, nnz = sizes
        self.target, self.op, self.sizes = target, op, sizes
        self.extents = (m, n, op.width)
        self.space = target.space(op, Sizes(m, n, nnz))
        self.default = target.default(op, Sizes(m, n, nnz))
        self.layout = Layout(target.kernel(op))
        mapped = target.kernel(op).homogeneous
        #: By independent part: its parameters, and its assignments that the nest can tell apart.
        self.choices: list[tuple[Sequence[str], list[Assignment]]] = []
        #: Parameters of the nest in parts with more of them than can be listed.
        self.walked: list[Param] = []
        for part in self.space.parts:
            names = [name for name in part.names if name in mapped]
            choices = self._choices(part, names) if names else []
            if choices:
                self.choices.append((part.names, choices))
            elif names:
                self.walked += [self.space.rules.by_name[name] for name in names]

    def nearest(self, nests: NDArray[np.float32], k: int) -> list[list[Nearest]]:
        """For each of float32[q,53], what `nearest_configs` returns for it."""
        if self.walked or math.prod(len(c) for _, c in self.choices) > _ENUMERATED:
            starts = self._starts()
            pools = [self._search(nest[None], starts, k) for nest in nests]
            return [self._rank([*p], np.array([*p.values()]), k) for p in pools]
        configs = [self.default]
        for names, choices in self.choices:
            configs = [_with(config, names, choice) for config in configs for choice in choices]
        apart = nest_distances(nests, self._nests(configs), self.extents)
        return [self._rank(configs, row, k) for row in apart]

    def _choices(self, part: Part, names: Sequence[str]) -> list[Assignment]:
        """Assignments that differ in these parameters, of equal ones the one most like the default;
        none where there are too many to list.

        Raises: SpaceError if there is no legal one.
        """
        if part.listed is None:
            return []
        if not part.listed:
            raise SpaceError(f"no configuration of {self.target.id} is legal on this matrix")
        alike: dict[tuple[Any, ...], list[Assignment]] = {}
        for assignment in part.listed:
            alike.setdefault(tuple(map(assignment.get, names)), []).append(assignment)
        if len(alike) > _ENUMERATED:
            return []
        rest = {n: v for n, v in self.default.items() if n not in part.names}
        return [
            same[self._usual([{**rest, **assignment} for assignment in same])]
            for same in alike.values()
        ]

    def _usual(self, configs: Sequence[Mapping[str, Any]]) -> int:
        """Index of the configuration most like the default in the platform's own parameters."""
        if len(configs) == 1:
            return 0
        own = self.layout.raw([*configs, self.default])
        strange = ((own[:-1] - own[-1]) ** 2).sum(axis=1)
        shared = [len(self.default.items() & config.items()) for config in configs]
        return min(range(len(configs)), key=lambda i: (strange[i], -shared[i], i))

    def _rank(
        self, configs: Sequence[Config], distances: NDArray[np.float64], k: int
    ) -> list[Nearest]:
        left, ranked = distances.copy(), list[Nearest]()
        nests = self._nests(configs) if k > 1 else None
        for _ in range(k):
            least = float(left.min())
            if least == math.inf:
                break
            tied = np.flatnonzero(left <= least + _TIE)
            at = int(tied[self._usual([configs[int(i)] for i in tied])])
            ranked.append(Nearest(configs[at], least))
            if nests is not None:
                left[(nests == nests[at]).all(axis=1)] = math.inf
        return ranked

    def _starts(self) -> list[Config]:
        """The default, and from it each choice that the nest depends on."""
        params = [
            self.space.rules.by_name[name] for name in self.target.kernel(self.op).homogeneous
        ]
        choices = [p for p in params if p.kind in ("choice", "bool")]
        # Only the choice is fixed, so parameters that conflict with it change and it does not.
        wishes = [{p.name: value} for p in choices for value in p.values]
        starts = [self.space.nearest(wish) or self.default for wish in wishes[:_STARTS]]
        return list(dict.fromkeys([self.default, *starts]))

    def _search(
        self, nest: NDArray[np.float32], starts: Sequence[Config], k: int
    ) -> dict[Config, float]:
        """Configurations near float32[1,53] with their distances. From each start it expands the
        nearest configuration not yet expanded, until the k nearest nests are."""
        pool: dict[Config, float] = {}
        done: set[Config] = set()
        for start in starts:
            mine = {start: float(self._distances(nest, [start])[0])}
            for _ in range(_ROUNDS + k):
                config = self._next(mine, done, k)
                if config is None:
                    break
                done.add(config)
                mine.update(self._around(nest, config, mine[config], k))
            pool.update(mine)
        return pool

    def _next(self, mine: Mapping[Config, float], done: set[Config], k: int) -> Config | None:
        """The nearest configuration not yet expanded, if it is among the k nearest nests."""
        seen: set[bytes] = set()
        for config in sorted(mine, key=mine.__getitem__):
            if config not in done:
                return config
            seen.add(self._nests([config]).tobytes())
            if len(seen) == k:
                break
        return None

    def _around(
        self, nest: NDArray[np.float32], config: Config, distance: float, k: int
    ) -> dict[Config, float]:
        """Legal configurations that differ in one part, or nearly in one parameter of a part that
        cannot be listed."""
        moved = [
            _with(config, names, choice) for names, choices in self.choices for choice in choices
        ]
        distances = dict(zip(moved, self._distances(nest, moved).tolist(), strict=True))
        nested = {n: config[n] for n in self.target.kernel(self.op).homogeneous if n in config}
        for param in self.walked:
            wishes = [{**nested, param.name: value} for value in self._values(param, config)]
            apart = self._distances(nest, wishes)
            # Repairing an illegal configuration is slow: of those that are no nearer, at most k - 1
            # are tried.
            for tried, i in enumerate(np.argsort(apart, kind="stable")):
                if apart[i] >= distance - _TIE and tried >= k - 1:
                    break
                legal = self.space.nearest(wishes[i]) or config
                distances[legal] = float(self._distances(nest, [legal])[0])
                if k == 1 and distances[legal] < distance - _TIE:
                    break
        return distances

    def _values(self, param: Param, config: Config) -> list[Any]:
        """Values a parameter can change to: any, or an order with two neighbours swapped."""
        order = config.get(param.name)
        if param.kind != "permutation":
            return list(self.space.domain(param))
        if not isinstance(order, tuple):
            return []
        at = range(len(order) - 1)
        return [(*order[:i], order[i + 1], order[i], *order[i + 2 :]) for i in at]

    def _distances(
        self, nest: NDArray[np.float32], configs: Sequence[Mapping[str, Any]]
    ) -> NDArray[np.float64]:
        distances: NDArray[np.float64] = nest_distances(nest, self._nests(configs), self.extents)[0]
        return distances

    def _nests(self, configs: Sequence[Mapping[str, Any]]) -> NDArray[np.float32]:
        """float32[c,53], with a split of the whole extent written as 1: equal rows are 0 apart."""
        nests = homogeneous(self.target, self.op, configs, sizes=self.sizes)
        for split, extent in enumerate(self.extents):
            if extent >= 0:
                whole = nests[:, split] >= math.log2(max(extent, 1)) - _TIE
                nests[whole, split] = 0.0
        return nests


def _with(config: Config, names: Sequence[str], choice: Assignment) -> Config:
    """The configuration with an independent part replaced."""
    return Config({**{n: v for n, v in config.items() if n not in names}, **choice})


def correspondence(
    source: Platform,
    target: Platform,
    op: Op,
    configs: Sequence[Config],
    *,
    k: int = 1,
    sizes: Sizes = UNKNOWN,
) -> dict[str, Any]:
    """For each configuration of `source` its loop nest and the `k` nearest of `target` with theirs,
    as plain values. `common`: both platforms have loop nests; `own` are the target's parameters
    that are not in its loop nest. `sizes` as in `nearest_configs`.

    Raises: SpaceError if a loop nest needs a size that is not given; UsageError if a platform does
    not run this kernel.
    """
    ranked_by_config = nearest_configs(target, source, op, configs, k=k, sizes=sizes)
    kernel = target.kernel(op)
    matrix_sizes = [size if size >= 0 else None for size in sizes]
    return {
        "source": source.id,
        "target": target.id,
        "op": str(op),
        "sizes": dict(zip(("m", "n", "nnz"), matrix_sizes, strict=True)),
        "common": ranked_by_config[0][0].distance is not None,
        "own": [name for name in kernel.heterogeneous if name not in kernel.homogeneous],
        "configs": [
            {
                "config": dict(config),
                "nest": _nest(source, op, config, sizes),
                "nearest": [_near(target, op, near, sizes) for near in ranked],
            }
            for config, ranked in zip(configs, ranked_by_config, strict=True)
        ],
    }


def _near(target: Platform, op: Op, near: Nearest, sizes: Sizes) -> dict[str, Any]:
    nest = _nest(target, op, near.config, sizes)
    return {"config": dict(near.config), "distance": near.distance, "nest": nest}


def _nest(platform: Platform, op: Op, config: Config, sizes: Sizes) -> dict[str, Any] | None:
    nest = platform.loopnest(op, config, sizes)
    if nest is None:
        return None
    splits = dict(zip(("I", "J", "K", "K2"), nest.splits, strict=True))
    return {
        "splits": splits,
        "order": nest.names,
        "words": in_words(nest, (sizes.m, sizes.n, op.width)),
    }

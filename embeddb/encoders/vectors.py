"""Whole configurations as vectors for the index, and the nearest configuration elsewhere."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from embeddb.config import Config, Op
from embeddb.encoders.layout import Layout
from embeddb.encoders.mapper import homogeneous
from embeddb.platform import Platform
from embeddb.space import ConfigSpace
from embeddb.space_rules import Param

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Nearest", "config_vectors", "nearest_legal", "nest_distances"]

#: What a distance of 1 is in log2 of a split: 2^16 is the largest split of the built-in platforms.
_SPLIT_RANGE = 16.0
#: Spaces up to this size are compared whole; in larger ones the nearest is searched for.
_ENUMERATED = 4096
#: Rounds of that search; each moves at least one parameter closer, so few are ever needed.
_ROUNDS = 20
#: Places that search starts from, at most, beside the default.
_STARTS = 32
#: Distances closer than this are ties.
_TIE = 1e-6
_PAIRS = np.array([*itertools.combinations(range(7), 2)]).T


def config_vectors(
    homogeneous: NDArray[np.float32], latent: NDArray[np.float32]
) -> NDArray[np.float32]:
    """float32[c,53+e] for an exact L2 index, from float32[c,53] of the mapper and float32[c,e] of
    a latent encoder. Each of the six parts (four splits, order, latent) is scaled so that two
    unlike configurations are about 1 apart in it: splits by 2^16, orders without one loop in its
    place, latents as two drawn from the platform's own space usually are.
    """
    scale = np.full(homogeneous.shape[1], 1 / math.sqrt(14), dtype=np.float32)
    scale[:4] = 1 / _SPLIT_RANGE
    spread = np.float32(1 / math.sqrt(2 * max(latent.shape[1], 1)))
    return np.hstack([homogeneous * scale, latent * spread]).astype(np.float32, copy=False)


@dataclass(frozen=True, slots=True)
class Nearest:
    """A legal configuration of the target. `distance` is how far its loop nest is from the foreign
    one (0: the same nest), or None where the two platforms have no loop nest in common: then
    `config` is the target's default and says nothing about the foreign configuration."""

    config: Config
    distance: float | None


def nearest_legal(
    target: Platform,
    source: Platform,
    op: Op,
    configs: Sequence[Mapping[str, Any]],
    *,
    sizes: tuple[int, int, int] = (-1, -1, -1),
) -> list[Nearest]:
    """For each configuration of `source`, the nearest legal one of `target` on a matrix of these
    rows, columns and non-zeros (-1 is unknown), by `nest_distances`.

    Ties go to the target's default: least different in its own parameters (squared distance of
    `Layout.raw`), then most values in common, then declared order. Where both platforms declare
    the same space, a configuration stands for itself, or for `ConfigSpace.nearest`. Spaces of more
    than 4096 configurations are searched from the default, one parameter at a time; one that is
    nearer by a joint move of several can be missed.

    Raises: SpaceError if a loop nest needs a size that is not given; UsageError if a platform
    does not run this kernel.
    """
    m, n, nnz = sizes
    kernel, space = target.kernel(op), target.space(op, m=m, n=n, nnz=nnz)
    default = target.default(op, m=m, n=n, nnz=nnz)
    if kernel.digest_form() == source.kernel(op).digest_form():
        return [Nearest(space.nearest(config) or default, 0.0) for config in configs]
    if kernel.mapping is None or source.kernel(op).mapping is None:
        return [Nearest(default, None) for _ in configs]
    there = homogeneous(source, op, configs, sizes=sizes)
    size = space.size()
    if size is not None and size <= _ENUMERATED:
        known = [*space.enumerate()]
        nests = homogeneous(target, op, known, sizes=sizes)
        extents = (m, n, op.width)
        near = nest_distances(there, nests, extents)
        return [_pick(Layout(kernel), known, row, default) for row in near]
    search = _Search(target, op, space, default, sizes)
    return [search.run(row[None]) for row in there]


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


def _pick(
    layout: Layout, known: Sequence[Config], distances: NDArray[np.float64], default: Config
) -> Nearest:
    least = float(distances.min())
    tied = [known[int(i)] for i in np.flatnonzero(distances <= least + _TIE)]
    own = layout.raw([*tied, default])
    strange = ((own[:-1] - own[-1]) ** 2).sum(axis=1)
    shared = [len(default.items() & config.items()) for config in tied]
    best = min(range(len(tied)), key=lambda i: (strange[i], -shared[i], i))
    return Nearest(tied[best], least)


class _Search:
    """Coordinate descent over the parameters of the loop nest, for spaces too large to compare
    whole: from the default, and from it with each choice that the nest depends on."""

    def __init__(
        self,
        target: Platform,
        op: Op,
        space: ConfigSpace,
        default: Config,
        sizes: tuple[int, int, int],
    ) -> None:
        self.target, self.op, self.space, self.sizes = target, op, space, sizes
        self.params = [space.rules.by_name[name] for name in target.homogeneous(op)]
        choices = [p for p in self.params if p.kind in ("choice", "bool")]
        # Nothing else is wished for, so that what is tied to the choice gives way, not the choice.
        wishes = [{p.name: value} for p in choices for value in p.values]
        found = [default, *(space.nearest(wish) or default for wish in wishes[:_STARTS])]
        self.starts = list(dict.fromkeys(found))

    def run(self, nest: NDArray[np.float32]) -> Nearest:
        """The nearest found to float32[1,53]."""
        reached = [self._descend(nest, start) for start in self.starts]
        config, distance = min(reached, key=lambda pair: pair[1])
        return Nearest(config, distance)

    def _descend(self, nest: NDArray[np.float32], start: Config) -> tuple[Config, float]:
        best, distance = start, float(self._distances(nest, [start])[0])
        for _ in range(_ROUNDS):
            before = distance
            for param in self.params:
                nested = {p.name: best[p.name] for p in self.params if p.name in best}
                wishes = [{**nested, param.name: value} for value in self._values(param, best)]
                apart = self._distances(nest, wishes)
                # Repairing an illegal wish is what costs: only those that are nearer are tried.
                for i in np.argsort(apart, kind="stable"):
                    if apart[i] >= distance - _TIE:
                        break
                    legal = self.space.nearest(wishes[i]) or best
                    reached = float(self._distances(nest, [legal])[0])
                    if reached < distance - _TIE:
                        best, distance = legal, reached
                        break
            if distance >= before:
                break
        return best, distance

    def _values(self, param: Param, config: Config) -> list[Any]:
        """What a parameter can become: any value, or an order with two neighbours swapped."""
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
        nests = homogeneous(self.target, self.op, configs, sizes=self.sizes)
        extents = (self.sizes[0], self.sizes[1], self.op.width)
        found: NDArray[np.float64] = nest_distances(nest, nests, extents)[0]
        return found

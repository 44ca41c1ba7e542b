"""Random loop nests to train on, of the kinds of "Performance Embeddings" (Section 3.3: maps,
reductions, stencils, boolean masks), and of those that dense and sparse programs add to them."""

from __future__ import annotations

import numpy as np

from embeddb.nests.nest import Nest
from indexer.training.nests import dense, irregular
from indexer.training.nests.draws import Draft, Family

#: Arrays from a part of a first cache to four times a large last one.
LEAST_BYTES, MOST_BYTES = 1 << 13, 1 << 27
LEAST_POINTS, MOST_POINTS = 1 << 11, 20_000_000

_FAMILIES: dict[str, Family] = {
    "map": dense.elementwise,
    "fused": dense.fused,
    "reduce": dense.reduction,
    "stencil": dense.stencil,
    "convolution": dense.convolution,
    "contraction": dense.contraction,
    "minplus": dense.min_plus,
    "triangular": dense.triangular,
    "pairwise": dense.pairwise,
    "recurrence": dense.recurrence,
    "mask": irregular.mask,
    "gather": irregular.gather,
    "scatter": irregular.scatter,
    "histogram": irregular.histogram,
    "spmv": irregular.spmv,
    "spmm": irregular.spmm,
    "sddmm": irregular.sddmm,
}


def families() -> tuple[str, ...]:
    """Names of the families. Seed s is of family s modulo their number."""
    return tuple(_FAMILIES)


def synthetic(seed: int) -> Nest:
    """A nest that is a function of the seed alone, of the group `synthetic/FAMILY`: at most
    `MOST_POINTS` iterations of the body, at most `MOST_BYTES` of arrays.

    Raises: ValueError for a negative seed.
    """
    rng = np.random.default_rng([seed, len(_FAMILIES)])
    family = families()[seed % len(_FAMILIES)]
    while True:
        points = int(np.exp(rng.uniform(np.log(LEAST_POINTS), np.log(MOST_POINTS))))
        draft = Draft(("f32", "f64")[int(rng.integers(2))])
        _FAMILIES[family](draft, rng, points)
        nest = draft.nest(name=f"synthetic_{family}_{seed}", group=f"synthetic/{family}")
        array_bytes = sum(array.bytes for array in nest.arrays)
        if nest.points <= MOST_POINTS and LEAST_BYTES <= array_bytes <= MOST_BYTES:
            return nest

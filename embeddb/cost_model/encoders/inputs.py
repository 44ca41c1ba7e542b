"""Matrices and configurations as a cost model reads them, in training and in a query alike."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from embeddb.core.config import Config, Op
from embeddb.core.errors import UsageError
from embeddb.core.sizes import Sizes
from embeddb.cost_model import Problem
from embeddb.cost_model.encoders.loop_nest import HOMOGENEOUS_DIM, homogeneous
from embeddb.cost_model.encoders.own_parameters import TILES_DIM, Layout, tiles
from embeddb.cost_model.gaussian import Inputs
from embeddb.platforms.derived import DerivedQuantities
from embeddb.platforms.platform import Platform

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats32 = NDArray[np.float32]

#: Standardised numbers of a matrix beyond it count as it: one strange matrix is not extrapolated.
CLIP = 4.0
#: log2 of sizes and counts is brought to the size of a one-hot.
_SPLIT_SCALE = 8.0


def nest_inputs(platform: Platform, op: Op, configs: Sequence[Config], sizes: Sizes) -> Floats32:
    """float32[c,65]: loop nests, and what their splits come to on the matrix, as the network reads
    them. Raises: as `homogeneous`."""
    nests = homogeneous(platform, op, configs, sizes=sizes)
    found = np.hstack([nests, tiles(nests, sizes, op.width) / _SPLIT_SCALE])
    found[:, :4] /= _SPLIT_SCALE
    return found


def seen_parts(
    nests: Floats32, latents: Floats32, parts: Sequence[str]
) -> tuple[Floats32, Floats32]:
    """Nests float32[c,65] and latents float32[c,e] with zeros for what a network does not see."""
    own = nests.copy()
    if "mapper" not in parts:
        own[:, :HOMOGENEOUS_DIM] = 0
    if "tiles" not in parts:
        own[:, HOMOGENEOUS_DIM:] = 0
    return own, latents if "latent" in parts else np.zeros_like(latents)


def problem(
    vectors: NDArray[Any], ops: Sequence[Op], scale: Mapping[str, NDArray[Any]]
) -> Floats32:
    """float32[r,d+1]: matrices as the network reads them, the op's width last."""
    z = (np.asarray(vectors, dtype=np.float64) - scale["center"]) / scale["scale"]
    width = np.array([[(math.log2(op.width) - 5) / 3] for op in ops])
    return np.hstack([np.clip(z, -CLIP, CLIP), width]).astype(np.float32)


@dataclass(frozen=True, slots=True)
class TreeTable:
    """The columns that boosted trees read: d = `vector` numbers of the matrix and the op's width,
    the loop nest and its tiles, one number that another model says, and h = `own` columns of the
    platform's own parameters. All are raw, since a split does not mind a scale; what is not in
    `parts` is zero. Own parameters come last: without them the other columns stay in place.
    """

    vector: int
    own: int
    parts: tuple[str, ...]

    @property
    def width(self) -> int:
        """Number of columns."""
        return int(self.blocks[-1].stop)

    @property
    def blocks(self) -> tuple[slice, ...]:
        """Columns that belong together: on one matrix each of these has few distinct rows."""
        ends = np.cumsum([0, self.vector + 1, HOMOGENEOUS_DIM + TILES_DIM, 1, self.own]).tolist()
        return tuple(slice(a, b) for a, b in pairwise(ends))

    def of(self, asked: Problem, configs: Sequence[Config], said: NDArray[Any] | None) -> Floats32:
        """float32[c,width] for one matrix; `said` float64[c] is the other model's score of these
        configurations.

        Raises: as `homogeneous`; UsageError if the platform's own parameters are not `own` columns.
        """
        matrix, nest, hint, own = self.blocks
        vector, platform, op, sizes, _ = asked
        table = np.zeros((len(configs), self.width), dtype=np.float32)
        if "featurizer" in self.parts:
            table[:, : self.vector] = vector
        table[:, matrix.stop - 1] = math.log2(max(op.width, 1))
        nests = homogeneous(platform, op, configs, sizes=sizes)
        split = nest.start + HOMOGENEOUS_DIM
        if "mapper" in self.parts:
            table[:, nest.start : split] = nests
        if "tiles" in self.parts:
            table[:, split : nest.stop] = tiles(nests, sizes, op.width)
        if said is not None:
            table[:, hint.start] = said
        if "latent" in self.parts:
            raw = Layout(platform.kernel(op)).raw(configs)
            if raw.shape[1] != self.own:
                raise UsageError(
                    f"the trees read {self.own} numbers of own parameters, not {raw.shape[1]}",
                    hint="they were trained on another platform or version of its file",
                )
            table[:, own] = raw
        return table


class ProcessColumns:
    """Configurations as a Gaussian process reads them, prepared for any number of matrices: all
    parameters of the space and the derived quantities of the platform's file."""

    def __init__(self, platform: Platform, op: Op, configs: Sequence[Config]) -> None:
        """Raises: SpaceError for a configuration that is not of the platform's space."""
        layout = Layout(platform.kernel(op), whole=True)
        self.config = layout.raw(configs).astype(np.float64)
        self._quantities = DerivedQuantities(platform, op, configs)

    def on(self, asked: Problem) -> Inputs:
        """All of them on one matrix."""
        count = len(self.config)
        matrix = np.broadcast_to(np.asarray(asked.vector, np.float64), (count, len(asked.vector)))
        derived = self._quantities.inputs(asked.sizes, asked.lengths)
        return Inputs(self.config, matrix, derived.astype(np.float64))

"""Matrices and configurations as a cost model reads them, in training and in a query alike."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
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
from embeddb.platforms.machines import fact_names
from embeddb.platforms.platform import Platform
from embeddb.platforms.space.quantity import EncodedConfigs

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats32 = NDArray[np.float32]

#: Bound of the standardised numbers of a matrix: one strange matrix is not extrapolated.
CLIP = 4.0
#: Divisor of log2 sizes and counts, which brings them to the range of a one-hot.
SPLIT_SCALE = 8.0


def nest_inputs(platform: Platform, op: Op, configs: Sequence[Config], sizes: Sizes) -> Floats32:
    """Inputs float32[c,65] of the network: loop nests, and the tiles that their splits give on the
    matrix. Raises: as `homogeneous`."""
    nests = homogeneous(platform, op, configs, sizes=sizes)
    inputs = np.hstack([nests, tiles(nests, sizes, op.width) / SPLIT_SCALE])
    inputs[:, :4] /= SPLIT_SCALE
    return inputs


def seen_parts(
    nests: Floats32, latents: Floats32, parts: Sequence[str]
) -> tuple[Floats32, Floats32]:
    """Nests float32[c,65] and latents float32[c,e], with zeros for `parts` that are left out."""
    own = nests.copy()
    if "mapper" not in parts:
        own[:, :HOMOGENEOUS_DIM] = 0
    if "tiles" not in parts:
        own[:, HOMOGENEOUS_DIM:] = 0
    return own, latents if "latent" in parts else np.zeros_like(latents)


def matrix_inputs(
    vectors: NDArray[Any], ops: Sequence[Op], scale: Mapping[str, NDArray[Any]]
) -> Floats32:
    """Inputs float32[r,d+1] of the network from matrices, the op's width last."""
    z = (np.asarray(vectors, dtype=np.float64) - scale["center"]) / scale["scale"]
    width = np.array([[(math.log2(op.width) - 5) / 3] for op in ops])
    return np.hstack([np.clip(z, -CLIP, CLIP), width]).astype(np.float32)


@dataclass(frozen=True, slots=True)
class TreeTable:
    """The columns that boosted trees read: d = `vector` numbers of the matrix and the op's width,
    the loop nest and its tiles, the score of another model, h = `own` columns of the
    platform's own parameters, q = `derived` quantities of the platform's file, and log2(1 + v) of
    the `facts` of the machine, each named with the value that stands in where the machine does not
    report it. The others are raw, since splits do not depend on the scale; what is not in `parts`
    is zero.
    """

    vector: int
    own: int
    parts: tuple[str, ...]
    derived: int = 0
    facts: tuple[tuple[str, float], ...] = ()

    @classmethod
    def from_card(cls, card: Mapping[str, Any]) -> TreeTable:
        """The columns that the trees of a card read."""
        facts = tuple((str(name), float(rest)) for name, rest in card.get("facts", ()))
        parts, derived = tuple(card["settings"]["parts"]), len(card.get("quantities", ()))
        return cls(card["vector"], len(card["layout"]), parts, derived, facts)

    @property
    def width(self) -> int:
        """Number of columns."""
        return int(self.blocks[-1].stop)

    @property
    def blocks(self) -> tuple[slice, ...]:
        """Columns that belong together: on one matrix each of these has few distinct rows."""
        sizes = [self.vector + 1, HOMOGENEOUS_DIM + TILES_DIM, 1, self.own, self.derived]
        ends = np.cumsum([0, *sizes, len(self.facts)]).tolist()
        return tuple(slice(a, b) for a, b in pairwise(ends))

    def of(
        self,
        problem: Problem,
        configs: Sequence[Config],
        source_score: NDArray[Any] | None,
        columns: ConfigColumns | None = None,
    ) -> Floats32:
        """Table float32[c,width] of configurations on one matrix. `source_score` float64[c] are the
        other model's scores of these, and `columns` theirs, if they were prepared before.

        Raises: as `homogeneous`; UsageError if the platform's own parameters are not `own` columns.
        """
        matrix, nest, hint, own, derived, machine = self.blocks
        vector, platform, op, sizes, lengths = problem
        table = np.zeros((len(configs), self.width), dtype=np.float32)
        columns = columns or ConfigColumns(platform, op, configs)
        if "featurizer" in self.parts:
            table[:, : self.vector] = vector
        table[:, matrix.stop - 1] = math.log2(max(op.width, 1))
        nests = homogeneous(platform, op, configs, sizes=sizes)
        split = nest.start + HOMOGENEOUS_DIM
        if "mapper" in self.parts:
            table[:, nest.start : split] = nests
        if "tiles" in self.parts:
            table[:, split : nest.stop] = tiles(nests, sizes, op.width)
        if source_score is not None:
            table[:, hint.start] = source_score
        if "latent" in self.parts:
            raw = columns.own
            if raw.shape[1] != self.own:
                raise UsageError(
                    f"the trees read {self.own} numbers of own parameters, not {raw.shape[1]}",
                    hint="they were trained on another platform or version of its file",
                )
            table[:, own] = raw
        if self.derived and "latent" in self.parts:
            table[:, derived] = columns.quantities.inputs(sizes, lengths)
        if self.facts:
            here = numeric_facts(platform)
            table[:, machine] = [
                math.log2(1 + here[name]) if name in here else rest for name, rest in self.facts
            ]
        return table


def numeric_facts(platform: Platform) -> dict[str, float]:
    """The facts of a machine that are numbers and count for its likeness to others."""
    numbers = {}
    for name in fact_names():
        with suppress(KeyError, ValueError):
            value = float(platform.environment[name])
            if math.isfinite(value) and value >= 0:
                numbers[name] = value
    return numbers


class ConfigColumns:
    """Columns of configurations for any number of matrices, each prepared when it is first read:
    parameters, and the derived quantities of the platform's file."""

    def __init__(self, platform: Platform, op: Op, configs: Sequence[Config]) -> None:
        self._of = platform, op, EncodedConfigs(configs)

    @cached_property
    def config(self) -> NDArray[np.float64]:
        """float64[c,a]: all parameters of the space. Raises: SpaceError for a configuration that is
        not of it."""
        platform, op, configs = self._of
        return Layout(platform.kernel(op), whole=True).raw(configs).astype(np.float64)

    @cached_property
    def own(self) -> Floats32:
        """float32[c,h]: the platform's own parameters. Raises: as `config`."""
        platform, op, configs = self._of
        return Layout(platform.kernel(op)).raw(configs)

    @cached_property
    def quantities(self) -> DerivedQuantities:
        return DerivedQuantities(*self._of)

    def on(self, problem: Problem) -> Inputs:
        """Return the inputs of a Gaussian process for one matrix."""
        count = len(self.config)
        matrix = np.broadcast_to(
            np.asarray(problem.vector, np.float64), (count, len(problem.vector))
        )
        derived = self.quantities.inputs(problem.sizes, problem.lengths)
        return Inputs(self.config, matrix, derived.astype(np.float64))

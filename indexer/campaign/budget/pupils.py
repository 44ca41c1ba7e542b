"""Models that learn from samples as they are bought: networks on vectors, and papers' models whole.

Both go on with the training that cost models have (`indexer.training.cost_model`), from the weights
that the samples before have left, on all samples so far.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config, Op
from embeddb.core.errors import UsageError
from embeddb.core.records import PatternInfo
from embeddb.core.timing import Timing
from embeddb.cost_model.model import CostModel
from embeddb.index.run_matrix import MatrixRow, join
from embeddb.platforms.platform import Platform
from indexer.campaign.budget.reward import Told
from indexer.training.cost_model.encoder import Encoder, Structures
from indexer.training.cost_model.samples import Samples, from_evidence
from indexer.training.cost_model.settings import CostSettings
from indexer.training.cost_model.train import learned, retarget
from indexer.training.cost_model.whole import Whole, load_whole, train_whole

__all__ = ["Ground", "Known", "Progress", "Pupil", "StatisticsPupil", "WholePupil"]

Floats = NDArray[np.float64]
Progress = Callable[[str, int, int], None]
#: What a model adds to its score is not calibrated on rounds: only the order is asked for.
_UNJUDGED = {"slope": 1.0, "floor": 1.0, "factor": 1.0}


class Known(NamedTuple):
    """A matrix of the pool: what is known of it, and its vector float32[d] (of no numbers where the
    model reads the structure)."""

    info: PatternInfo
    vector: NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Ground:
    """Where samples are bought: `known(at)` is a matrix of the pool, asked for once it is bought
    of; vectors are of `featurizer`, a name and a version."""

    platform: Platform
    op: Op
    known: Callable[[int], Known]
    featurizer: tuple[str, str] = ("stats", "")

    def samples(self, told: Sequence[Told], *, cut: bool = True) -> Samples:
        """What was told as a cost model learns it, all in one group: of few matrices none is held
        out. `cut` as in `from_evidence`. Raises: UsageError for too little."""
        curves: dict[int, dict[Config, Timing]] = {}
        for one in told:
            status = "ok" if math.isfinite(one.seconds) else "invalid"
            curve = Timing(one.seconds, 0.0, 0.0, 1, status)
            curves.setdefault(one.matrix, {})[one.config] = curve
        known = {at: self.known(at) for at in curves}
        rows = [
            (
                MatrixRow(known[at].info.id, self.platform.id, ""),
                self.platform.default(self.op, known[at].info.sizes),
                curve,
            )
            for at, curve in curves.items()
        ]
        found = from_evidence(
            join(self.op, rows),
            {one.info.id: one.vector for one in known.values()},
            {one.info.id: one.info for one in known.values()},
            self.platform,
            self.op,
            featurizer=self.featurizer,
            cut=cut,
        )
        found.check()
        return found


class Pupil(Protocol):
    """A model on its way. `score` gives float64[c] of configurations on a matrix of the pool; the
    higher, the faster; None as long as it has learned nothing. `taught` is the model after more
    epochs on all that was told, itself where that is too little. `save` and `load` keep it in a
    file; `load` raises ModelError for what is none."""

    def score(self, matrix: int, configs: Sequence[Config]) -> Floats | None: ...

    def taught(self, told: Sequence[Told], progress: Progress | None) -> Self: ...

    def save(self, file: Path, about: dict[str, Any]) -> None: ...

    def load(self, file: Path) -> tuple[Self, dict[str, Any]]: ...


@dataclass(frozen=True, eq=False)
class StatisticsPupil:
    """A network that reads vectors. `source` is what it starts from, made for this platform, and
    `model` what it is by now; both None: from nothing."""

    ground: Ground
    settings: CostSettings
    source: CostModel | None = None
    model: CostModel | None = None

    @classmethod
    def begin(cls, ground: Ground, settings: CostSettings, start: CostModel | None) -> Self:
        """From a model of another platform, or from nothing. Raises: UsageError as `retarget`."""
        source = None if start is None else retarget(start, ground.platform, (ground.op,))
        return cls(ground, settings, source, source)

    def score(self, matrix: int, configs: Sequence[Config]) -> Floats | None:
        if self.model is None:
            return None
        info, vector = self.ground.known(matrix)
        ground = self.ground
        return self.model.score(vector, ground.platform, ground.op, configs, info.sizes)[0]

    def taught(self, told: Sequence[Told], progress: Progress | None) -> Self:
        try:
            samples = self.ground.samples(told)
        except UsageError:
            return self
        card, tensors, _ = learned(samples, self.settings, self._start(), None, progress)
        return replace(self, model=CostModel({**card, "calibration": _UNJUDGED}, tensors))

    def _start(self) -> CostModel | None:
        """The weights as they are by now. The prior is drawn to that of the source and to nothing
        else: what a round before has found rests on the very samples it is fitted to again."""
        if self.model is None or self.source is self.model:
            return self.model
        members = {n: a for n, a in self.model.tensors.items() if n.startswith("member.")}
        if self.source is not None:
            return CostModel(self.source.card, {**self.source.tensors, **members})
        blank = {
            n: a[:0] if n.endswith((".ids", ".rest")) else np.zeros_like(a)
            for n, a in self.model.tensors.items()
            if n.startswith("prior.")
        }
        return CostModel(self.model.card, {**self.model.tensors, **blank})

    def save(self, file: Path, about: dict[str, Any]) -> None:
        if self.model is not None:
            CostModel({**self.model.card, **about}, self.model.tensors).save(file)

    def load(self, file: Path) -> tuple[Self, dict[str, Any]]:
        found = CostModel.load(file)
        return replace(self, model=found), found.card


@dataclass(frozen=True, eq=False)
class WholePupil:
    """A paper's model whole: the sparse network is trained with the rest. `structures` has those of
    the pool that were bought of, by pattern id; `model` is None before anything was learned."""

    ground: Ground
    settings: CostSettings
    encoder: Encoder
    structures: Structures
    model: CostModel | None = None

    @classmethod
    def begin(
        cls,
        ground: Ground,
        settings: CostSettings,
        start: Encoder | Whole,
        structures: Structures,
    ) -> Self:
        """From an encoder alone, or from a model whole of another platform.

        Raises: UsageError as `retarget`."""
        if isinstance(start, Encoder):
            return cls(ground, settings, start, structures)
        model = retarget(start.model, ground.platform, (ground.op,))
        return cls(ground, settings, start.encoder, structures, model)

    def score(self, matrix: int, configs: Sequence[Config]) -> Floats | None:
        if self.model is None:
            return None
        ground, info = self.ground, self.ground.known(matrix).info
        (vector,) = self.encoder.vectors(self.structures, [info.id])
        return self.model.score(vector, ground.platform, ground.op, configs, info.sizes)[0]

    def taught(self, told: Sequence[Told], progress: Progress | None) -> Self:
        try:
            samples = self.ground.samples(told, cut=False)
        except UsageError:
            return self
        made = train_whole(
            samples,
            self.settings,
            self.encoder,
            self.structures,
            start=self.model,
            progress=progress,
        )
        # The encoder has no name before it is saved; the next round finds it again by none.
        card = {**made.model.card, "featurizer": {"name": "", "version": ""}}
        return replace(self, model=CostModel(card, made.model.tensors), encoder=made.encoder)

    def save(self, file: Path, about: dict[str, Any]) -> None:
        if self.model is not None:
            whole = Whole(CostModel({**self.model.card, **about}, self.model.tensors), self.encoder)
            whole.save_encoder(file)
            whole.model.save(file)

    def load(self, file: Path) -> tuple[Self, dict[str, Any]]:
        found = load_whole(file)
        return replace(self, model=found.model, encoder=found.encoder), found.model.card

"""Training of a cost model with its sparse network on run times, judged on held-out groups: one
fifth, once, since a training takes hours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from embeddb.core.config import Op
from embeddb.core.errors import NothingFound, UsageError
from embeddb.core.reports import Progress
from embeddb.index.held_out import split_groups
from embeddb.index.lookup import Lookup
from embeddb.index.scopes import scope_of
from embeddb.platforms.platform import Platform
from tuners.evaluation.bench import Bench
from tuners.evaluation.choose_predictor import HeldOut, TrainingRequest, learned_before, new_rows
from tuners.evaluation.learned import Seen, held_out, seen_by

if TYPE_CHECKING:
    from embeddb.cost_model.model import CostModel
    from embeddb.learning.samples import Samples
    from indexer.training.cost_model.encoder import Encoder, Structures
    from indexer.training.cost_model.settings import CostSettings
    from indexer.training.cost_model.whole import Whole

#: Parts of the groups, of which one is held out.
_PARTS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeRequest:
    """Request for a whole model: `start` is the file of one to fine-tune, or of an autoencoder,
    whose sparse network is trained on (None: random weights), `matrices` the folder of structures
    that the database does not keep. `samples` is as in `TrainingRequest`."""

    settings: CostSettings
    samples: int = 0
    judged: bool = True
    start: Path | None = None
    matrices: Path | None = None


@dataclass(frozen=True)
class WholeTraining:
    """A training on the `available` samples, from the sparse network `encoder` and, if there is
    one, the cost model `start`."""

    db: Lookup
    request: WholeRequest
    available: Samples
    encoder: Encoder
    structures: Structures
    start: CostModel | None
    note: Callable[[str], None]

    @property
    def samples(self) -> Samples:
        """The training samples."""
        return self._limited(self.available)

    def _limited(self, available: Samples) -> Samples:
        request = TrainingRequest(samples=self.request.samples, seed=self.request.settings.seed)
        return request.limited(available)

    def whole(self, folder: Path, progress: Progress) -> Whole:
        """Train the model, with checkpoints in `folder`, and judge it if requested.

        Raises: UsageError for too few samples.
        """
        whole = self._trained(self.samples, folder, progress)
        if self.request.judged:
            whole.model.card["held_out"] = self._judged(progress)
        return whole

    def _trained(self, samples: Samples, folder: Path | None, progress: Progress) -> Whole:
        from indexer.training.cost_model.whole import train_whole

        return train_whole(
            samples,
            self.request.settings,
            self.encoder,
            self.structures,
            start=self.start,
            folder=folder,
            progress=progress,
        )

    def _judged(self, progress: Progress) -> HeldOut:
        """The card's `held_out`, by one more training without a fifth of the groups."""
        groups = self.available.groups
        if np.unique(groups).size < 2:
            self.note("warning: one group of matrices: it is not judged, so it will not rank")
            return {}
        fold = split_groups(groups, min(_PARTS, np.unique(groups).size), 0)
        rest = self._limited(self.available.take(np.flatnonzero(fold != 0)))
        try:
            whole = self._trained(rest, None, progress)
        except UsageError as e:
            self.note(f"warning: it is not judged, so it will not rank: {e}")
            return {}
        vectors = whole.encoder.vectors_of(self.structures, self.available)
        out = set(groups[fold == 0].tolist())
        learned, overlap = learned_before(self.start, groups[fold == 0])
        if overlap:
            self.note(overlap)
        platform, scope = self.available.platform, scope_of(self.available.platform)
        figures: HeldOut = {}
        for op in self.available.ops:
            bench = Bench(self.db, op, scope, instance=platform.id)
            bench.own_vectors = vectors
            seen = seen_by(bench, whole.model, *new_rows(bench, out, learned))
            try:
                figures[str(op)] = held_out(_halves(seen))
            except NothingFound as e:
                self.note(f"warning: {op} on {scope}: {e}")
        return figures


def _halves(seen: Sequence[Seen]) -> list[list[Seen]]:
    """Halves by group: the weight beside the vote is chosen on other groups than it is judged."""
    groups = np.array([one.query.pattern.group for one in seen], dtype=np.str_)
    if np.unique(groups).size < 2:
        return [list(seen)]
    half = split_groups(groups, 2, 0)
    return [[one for one, at in zip(seen, half, strict=True) if at == part] for part in (0, 1)]


def prepared(
    db: Lookup,
    platform: Platform,
    ops: Sequence[Op],
    request: WholeRequest,
    *,
    note: Callable[[str], None],
    progress: Progress,
) -> WholeTraining:
    """With structures read and samples chosen. Raises: as `samples_of` and `begun_from`."""
    from embeddb.learning.samples import samples_of
    from indexer.training.cost_model.encoder import StructureReader
    from indexer.training.cost_model.whole import begun_from

    encoder, start = begun_from(request.start, request.settings)
    read = StructureReader(db, encoder, request.matrices, progress)
    available = samples_of(db, platform, ops, read=read)
    return WholeTraining(db, request, available, encoder, read.structures, start, note)

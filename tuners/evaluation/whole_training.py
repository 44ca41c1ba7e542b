"""A cost model with its sparse network, trained by run times and judged on groups it never saw.

One fifth of the groups is held out once, not each in turn: every training takes hours.
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
from tuners.evaluation.choose_predictor import HeldOut, TrainingRequest
from tuners.evaluation.learned import Seen, held_out, seen_by

if TYPE_CHECKING:
    from embeddb.cost_model.model import CostModel
    from embeddb.learning.samples import Samples
    from indexer.training.cost_model.encoder import Encoder, Structures
    from indexer.training.cost_model.settings import CostSettings
    from indexer.training.cost_model.whole import Whole

#: The groups are cut into so many parts, of which one is held out.
_PARTS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeRequest:
    """How a whole model is wanted: `start` is the file of one to go on from, `weights` a
    featurizer's file to take the sparse network from (neither: random), `matrices` the folder of
    structures that the database does not keep. `samples` is as in `TrainingRequest`."""

    settings: CostSettings
    samples: int = 0
    judged: bool = True
    start: Path | None = None
    weights: Path | None = None
    matrices: Path | None = None


@dataclass(frozen=True)
class WholeTraining:
    """A training on its way: `known` is all there is to learn from, `encoder` the sparse network
    that it goes on from, and `start` the cost model if there is one."""

    db: Lookup
    scope: str
    request: WholeRequest
    known: Samples
    encoder: Encoder
    structures: Structures
    start: CostModel | None
    note: Callable[[str], None]

    @property
    def samples(self) -> Samples:
        """What is learned from."""
        asked = TrainingRequest(samples=self.request.samples, seed=self.request.settings.seed)
        return asked.limited(self.known)

    def whole(self, folder: Path, progress: Progress) -> Whole:
        """The model, judged if that was asked for; its checkpoints are in `folder`.

        Raises: UsageError for what cannot be learned from.
        """
        made = self._trained(self.samples, folder, progress)
        if self.request.judged:
            made.model.card["held_out"] = self._judged(progress)
        return made

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
        groups = self.known.groups
        if np.unique(groups).size < 2:
            self.note("warning: one group of matrices: it is not judged, so it will not rank")
            return {}
        fold = split_groups(groups, min(_PARTS, np.unique(groups).size), 0)
        asked = TrainingRequest(samples=self.request.samples, seed=self.request.settings.seed)
        rest = asked.limited(self.known.take(np.flatnonzero(fold != 0)))
        try:
            made = self._trained(rest, None, progress)
        except UsageError as e:
            self.note(f"warning: it is not judged, so it will not rank: {e}")
            return {}
        vectors = made.vectors(self.structures, self.known)
        out = set(groups[fold == 0].tolist())
        found: HeldOut = {}
        for op in self.known.ops:
            bench = self._bench(op)
            bench.own_vectors = vectors
            held = np.array([group in out for group in bench.evidence.groups], dtype=np.bool_)
            test = bench.counted[held[bench.counted]]
            seen = seen_by(bench, made.model, np.flatnonzero(~held), test)
            try:
                found[str(op)] = held_out(_halves(seen))
            except NothingFound as e:
                self.note(f"warning: {op} on {self.scope}: {e}")
        return found

    def _bench(self, op: Op) -> Bench:
        instance = self.known.platform.id
        portable = self.db.platform(instance).portable
        return Bench(self.db, op, self.scope, instance=instance if portable else "")


def _halves(seen: Sequence[Seen]) -> list[list[Seen]]:
    """By group, so that the weight beside the vote is chosen on other groups than it is judged."""
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
    """With structures read and samples chosen.

    Raises: as `samples_of`, `first_encoder` and `load_whole`; UsageError for weights and a start.
    """
    from embeddb.learning.samples import samples_of
    from indexer.training.cost_model.encoder import StructureReader
    from indexer.training.cost_model.whole import first_encoder, load_whole

    if request.start and request.weights:
        raise UsageError("a model to start from has an encoder: give --from or --encoder")
    start = load_whole(request.start) if request.start else None
    encoder = start.encoder if start else first_encoder(request.settings, request.weights)
    read = StructureReader(db, encoder, request.matrices, progress)
    known = samples_of(db, platform, ops, read=read)
    model = start.model if start else None
    scope = scope_of(known.platform)
    return WholeTraining(db, scope, request, known, encoder, read.structures, model, note)

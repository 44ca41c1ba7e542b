"""How good a cost model is on groups it never saw: what its card says, and queries go by."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from embeddb.cli.output import note
from embeddb.config import Op
from embeddb.db import Database
from embeddb.errors import NothingFound

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embeddb.costmodel import CostModel
    from embeddb.evidence import Evidence
    from embeddb.platform import Platform
    from embeddb.records import PatternInfo
    from indexer.training.costmodel import CostSettings
    from indexer.training.samples import Samples

__all__ = ["Judge", "limited"]

#: Configurations of one matrix among `--samples` (COGNATE, Section 4.1: 5 matrices x 100).
_PER_MATRIX = 100


def limited(found: Samples, asked: Mapping[str, Any]) -> Samples:
    """What `--samples` leaves of them; all without it."""
    if not asked["samples"]:
        return found
    most = int(np.diff(found.indptr).max(initial=1))
    each = min(_PER_MATRIX, most, asked["samples"])
    # Two matrices at least: one alone says nothing of what differs between matrices.
    matrices = max(2, asked["samples"] // each)
    return found.limited(matrices, min(each, asked["samples"] // 2 or 1), asked["seed"])


@dataclass(frozen=True)
class Judge:
    """Trains as the verb was asked to, in every fold anew, and judges on what was left out.

    Where several widths share a model, each is judged with a model of its own width alone: what is
    said of the shared one is said a little low.
    """

    db: Database
    scope: str
    settings: CostSettings
    start: CostModel | None
    asked: Mapping[str, Any]

    def __call__(
        self, ops: Iterable[Op], progress: Callable[[str, int, int], None]
    ) -> dict[str, dict[str, dict[str, float]]]:
        """The card's `held_out`; an op with nothing to hold out is left out, and said."""
        from tuners.evaluate import Bench
        from tuners.learned import held_out

        found = {}
        for op in ops:
            bench = Bench(self.db, op, self.scope)
            name = self.asked["featurizer"]
            bench.vectors = {name: bench.vectors.get(name, {})}
            try:
                found[str(op)] = held_out(bench, self._fit, progress=progress)
            except NothingFound as e:
                note(f"warning: not judged: {e}")
        return found

    def _fit(
        self,
        evidence: Evidence,
        vectors: Mapping[str, Mapping[str, NDArray[np.float32]]],
        infos: Mapping[str, PatternInfo],
        where: Platform,
        op: Op,
    ) -> CostModel:
        from indexer.training.costmodel import train
        from indexer.training.samples import from_evidence

        name, raw = next(iter(vectors.items()))
        known = from_evidence(
            evidence, raw, infos, where, op, featurizer=(name, self.db.featurizer_version(name))
        )
        return train(limited(known, self.asked), self.settings, start=self.start)

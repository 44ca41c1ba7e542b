"""What would change an answer, beside what every answer comes with: asked for with `deep`."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from embeddb.core.pattern import Pattern
from embeddb.core.records import PatternInfo
from embeddb.explain.counterfactuals import counterfactuals, partial_dependence
from embeddb.explain.kernel_occlusion import kernel_occlusion
from embeddb.explain.occlusion import occlusion
from embeddb.index.lookup import Lookup
from embeddb.platforms.of_subject import Content
from embeddb.ranking.alternatives import Deepen
from embeddb.ranking.diagnostics import Diagnostics, Occluded
from embeddb.ranking.fallback import Answer
from embeddb.ranking.rankers.base import posterior_of
from embeddb.tensors.computation import Computation

__all__ = ["deepening"]


def deepening(
    lookup: Lookup,
    pattern: Content | PatternInfo,
    *,
    progress: Callable[[str, int, int], None] | None = None,
) -> Deepen:
    """What adds effects, moves and attention to an answer's diagnostics (the last only where
    `pattern` or the store holds the structure); it takes up to some seconds. Moves and attention
    are of matrices, what is `occluded` of tensor kernels."""
    structure = pattern if isinstance(pattern, Pattern) else None
    kernel = pattern if isinstance(pattern, Computation) else lookup.store.tensor(pattern.id)

    def deepened(plain: Diagnostics, found: Answer) -> Diagnostics:
        ranker = found.rankers.chosen
        by, side = "", 0
        parts: list[Occluded] = []
        cells: list[float] = []
        if ranker.query.op.kind == "kernel":
            by, parts = kernel_occlusion(ranker, lookup, kernel)
        else:
            side, cells = occlusion(ranker.query, lookup, structure, progress=progress)
        return msgspec.structs.replace(
            plain,
            deep=True,
            effects=partial_dependence(posterior_of(ranker, found.source, found.first)),
            moves=counterfactuals(ranker, lookup, progress=progress),
            attention=cells,
            attention_side=side,
            occluded=parts,
            occluded_by=by,
        )

    return deepened

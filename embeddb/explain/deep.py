"""What would change an answer, beside what every answer comes with: asked for with `deep`."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from embeddb.core.records import PatternInfo
from embeddb.core.subject import Subject
from embeddb.explain.counterfactuals import counterfactuals, partial_dependence
from embeddb.index.lookup import Lookup
from embeddb.ranking.alternatives import Deepen
from embeddb.ranking.diagnostics import Diagnostics
from embeddb.ranking.fallback import Answer
from embeddb.ranking.rankers.base import posterior_of

__all__ = ["deepening"]


def deepening(
    lookup: Lookup,
    pattern: Subject | PatternInfo,
    *,
    progress: Callable[[str, int, int], None] | None = None,
) -> Deepen:
    """What adds effects, moves and attention to an answer's diagnostics (the last only where
    `pattern` or the store holds the structure); it takes up to some seconds. Moves and attention
    are of matrices, what is `occluded` of tensor kernels."""

    def deepened(plain: Diagnostics, found: Answer) -> Diagnostics:
        ranker = found.rankers.chosen
        parts = ranker.query.op.workload.occluded(ranker, lookup, pattern, progress)
        return msgspec.structs.replace(
            plain,
            deep=True,
            effects=partial_dependence(posterior_of(ranker, found.link, found.first)),
            moves=counterfactuals(ranker, lookup, progress=progress),
            **parts,
        )

    return deepened

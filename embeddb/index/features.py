"""Raw features of the measured patterns by one featurizer, and the rows that judge them where it
was trained on their runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from embeddb.featurizers import Featurizer, learned_from
from embeddb.featurizers.base import CrossFitted, Joint

if TYPE_CHECKING:
    from embeddb.store import Store

Vectors = Mapping[str, NDArray[np.float32]]
#: The space of the featurizer's own vectors; others are numbered by the fold that was held out.
WHOLE = -1


class LearnedFrom(NamedTuple):
    """The training `groups` of a featurizer, by which it is not judged unless it was cross-fitted:
    `fold_of` then has the fold of each group, and `by_fold` the vectors float32[d] by pattern id of
    the network trained without each fold."""

    groups: Collection[str] = ()
    fold_of: Mapping[str, int] = {}
    by_fold: Sequence[Vectors] = ()


def learned_by(
    store: Store, featurizers: Mapping[str, Featurizer], vectors: Mapping[str, Vectors]
) -> dict[str, LearnedFrom]:
    """Training groups of featurizers, for raw vectors by featurizer and pattern id."""
    return {name: _learned_by(store, featurizers[name], ids) for name, ids in vectors.items()}


def _learned_by(store: Store, featurizer: Featurizer, ids: Collection[str]) -> LearnedFrom:
    groups = learned_from(featurizer)
    if not (isinstance(featurizer, CrossFitted) and isinstance(featurizer, Joint)):
        return LearnedFrom(groups)
    part = featurizer.parts[0]
    inputs = store.vectors.get(part.name, part.version, ids, dim=part.dim)
    if len(inputs) < len(ids):  # imported vectors, without those of the part
        return LearnedFrom(groups)
    by_fold = featurizer.fold_vectors(np.array(list(inputs.values()), dtype=np.float32))
    held_out = [dict(zip(inputs, vectors, strict=True)) for vectors in by_fold]
    return LearnedFrom(groups, featurizer.folds, held_out)


@dataclass(frozen=True, slots=True, eq=False)
class Features:
    """Features of r rows: `raw` float32[r,d]; `by_fold` float32[f,r,d] by networks trained without
    a fold of groups each, `fold` int64[r] the one that judges a row (`WHOLE`: `raw`), and the mask
    `judged` bool[r] of the rows that are judged."""

    raw: NDArray[np.float32]
    by_fold: NDArray[np.float32]
    fold: NDArray[np.int64]
    judged: NDArray[np.bool_]

    @classmethod
    def plain(cls, raw: NDArray[np.float32], judged: NDArray[np.bool_] | None = None) -> Features:
        """Features by a featurizer that was trained on no runs; all rows are judged by default."""
        rows = len(raw)
        none = np.zeros((0, *raw.shape), dtype=np.float32)
        whole = np.full(rows, WHOLE, dtype=np.int64)
        return cls(raw, none, whole, np.ones(rows, dtype=np.bool_) if judged is None else judged)

    @classmethod
    def of(
        cls, ids: Sequence[str], vectors: Vectors, groups: NDArray[np.str_], learned: LearnedFrom
    ) -> Features:
        """Features of patterns with their groups str[r], in this order."""
        raw = np.array([vectors[i] for i in ids] or np.zeros((0, 1)), dtype=np.float32)
        if not learned.by_fold:
            return cls.plain(raw, ~np.isin(groups, sorted(learned.groups)))
        by_fold = [[of_fold[i] for i in ids] for of_fold in learned.by_fold]
        fold = np.array([learned.fold_of.get(g, WHOLE) for g in groups], dtype=np.int64)
        judged = np.ones(len(ids), dtype=np.bool_)
        return cls(raw, np.array(by_fold, dtype=np.float32), fold, judged)

    def space(self, fold: int) -> NDArray[np.float32]:
        """float32[r,d] in which rows of that fold are judged."""
        return self.raw if fold == WHOLE else self.by_fold[fold]

    def take(self, rows: NDArray[np.bool_]) -> Features:
        """Only some rows, bool[r]."""
        return Features(self.raw[rows], self.by_fold[:, rows], self.fold[rows], self.judged[rows])

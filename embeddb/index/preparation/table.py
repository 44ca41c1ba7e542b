"""What bringing a matrix into a configuration's form costs, in calls of the platform's default.

Preparation (a format, a reordering) depends on few of the parameters and hardly on the machine, so
it is predicted by itself: configurations that prepare alike are one *class*, and the neighbours
vote on the logarithm of

    ratio = conversion seconds / the default's seconds per call

of each class, over the rows of all instances and widths. Which parameters make a class is found in
the evidence: those without which conversion seconds are scattered more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config, Op, Value
from embeddb.index.preparation.entries import Entries, means, telling_parameters
from embeddb.index.run_matrix import RunMatrix

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Key = tuple[Value | None, ...]


@dataclass(frozen=True, slots=True, eq=False)
class PreparationCost:
    """The expected ratios on one matrix: `names` the parameters that make a class, `log_ratio` by
    class (-inf: nothing to prepare), `spread` the standard deviation of a log ratio. A class that
    nobody ran is taken to cost as much as the dearest."""

    names: tuple[str, ...]
    log_ratio: Mapping[Key, float]
    spread: float

    def of(self, configs: Sequence[Config]) -> Floats:
        """float64[c] conversion seconds over the default's seconds per call."""
        dearest = max(self.log_ratio.values())
        keys = (_key(config, self.names) for config in configs)
        found: Floats = np.exp(np.array([self.log_ratio.get(key, dearest) for key in keys]))
        return found


@dataclass(frozen=True, slots=True, eq=False)
class PreparationTable:
    """Log ratios by pattern and class, of p patterns, k classes and s sources (a platform instance
    at an op).

    `off` float64[p,k] is by how much a class costs more on a pattern than all classes do there
    (nan: not run), `usual` float64[k] the same over all patterns, `free` bool[k] the classes
    without preparation; `level` float64[p] (nan: nothing known) and `source` float64[s] add up to
    what all classes cost on a pattern and source.
    """

    names: tuple[str, ...]
    classes: tuple[Key, ...]
    free: NDArray[np.bool_]
    off: Floats
    usual: Floats
    level: Floats
    sources: tuple[tuple[str, str], ...]
    source: Floats

    @classmethod
    def of(cls, evidence: RunMatrix, ids: Sequence[str]) -> PreparationTable | None:
        """Over the patterns `ids`; None where no row tells a conversion and its default's time."""
        entries = Entries.of(evidence, ids)
        if not entries.row.size:
            return None
        by_row, by_config = entries.additive()
        configs = [dict(config) for config in evidence.configs]
        names = telling_parameters(configs, entries, by_row, by_config)
        places: dict[Key, int] = {}
        ran = (entries.ran > 0).tolist()
        keys = [_key(config, names) for config in configs]
        class_of = np.array(
            [places.setdefault(k, len(places)) if r else -1 for k, r in zip(keys, ran, strict=True)]
        )
        level, source = entries.levels(by_row, len(ids))
        off, usual = entries.offsets(by_row, class_of, (len(ids), len(places)))
        free = np.ones(len(places), dtype=np.bool_)
        free[class_of[entries.column]] = False
        return cls(names, tuple(places), free, off, usual, level, entries.sources, source)

    def beside(self, newer: RunMatrix, ids: Sequence[str]) -> PreparationTable:
        """With further patterns, by what classes and sources cost on those that are known."""
        entries = Entries.of(newer, ids)
        place = {key: at for at, key in enumerate(self.classes)}
        keys = [place.get(_key(config, self.names), -1) for config in newer.configs]
        source = dict(zip(self.sources, self.source.tolist(), strict=True))
        at_source = np.array([source.get(s, np.nan) for s in entries.sources])
        ratio = entries.log_ratio - at_source[entries.source[entries.row]]
        of = np.array(keys, dtype=np.int64)[entries.column]
        told = (of >= 0) & np.isfinite(ratio)
        pattern, of, ratio = entries.pattern[entries.row][told], of[told], ratio[told]
        level = means(pattern, ratio - self.usual[of], len(ids))
        level[np.bincount(pattern, minlength=len(ids)) == 0] = np.nan
        shape = len(ids), len(self.classes)
        flat = pattern * shape[1] + of
        off = means(flat, ratio - level[pattern], shape[0] * shape[1])
        off[np.bincount(flat, minlength=off.size) == 0] = np.nan
        return replace(
            self,
            off=np.vstack([self.off, off.reshape(shape)]),
            level=np.concatenate([self.level, level]),
        )

    def cost(self, rows: Ints, weights: Floats, platform: str, op: Op) -> PreparationCost | None:
        """What neighbours int64[q] with weights float64[q] expect on an instance at an op; of all
        patterns alike where none are given. None where none of them tells anything."""
        if not len(rows):
            rows, weights = np.arange(len(self.level)), np.ones(len(self.level))
        told = np.isfinite(self.level[rows]) & (weights > 0)
        if not told.any():
            return None
        rows, weights = rows[told], weights[told] / weights[told].sum()
        off = np.where(np.isfinite(self.off[rows]), self.off[rows], self.usual)
        every = self.level[rows][:, None] + off + self._at(platform, op)
        mean = weights @ every
        spread = math.sqrt(float((weights @ (every - mean) ** 2).mean()))
        found = np.where(self.free, -np.inf, mean)
        return PreparationCost(
            self.names, dict(zip(self.classes, found.tolist(), strict=True)), spread
        )

    def _at(self, platform: str, op: Op) -> float:
        """A call takes time by its width; a source that never ran is as all are."""
        asked = (platform, str(op))
        if asked in self.sources:
            known = float(self.source[self.sources.index(asked)])
        else:
            known = float(self.source.mean())
        return known - math.log(op.width)


def _key(config: Mapping[str, Value], names: Sequence[str]) -> Key:
    return tuple(config.get(name) for name in names)

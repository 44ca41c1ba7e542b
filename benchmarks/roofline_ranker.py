"""The analytical ranker under the judge: the roofline of each configuration, nothing learned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config, Op
from embeddb.core.errors import NothingFound
from embeddb.core.pattern import Pattern
from embeddb.core.records import PatternInfo
from embeddb.core.sizes import Sizes
from embeddb.dynamics.roofline import Machine, Roofline
from embeddb.index.run_matrix import RunMatrix
from embeddb.platforms.platform import Platform
from tuners.evaluation.fit import Fit

__all__ = ["RooflineScorer", "roofline_ranker"]


class RooflineScorer:
    """Ranks by modelled seconds. It knows patterns by their raw features float32[d], which is all
    that a scorer is asked with."""

    def __init__(
        self,
        patterns: Mapping[str, Pattern],
        vectors: Mapping[str, NDArray[np.float32]],
        machine: Machine,
    ) -> None:
        self._patterns = {
            vectors[i].tobytes(): pattern for i, pattern in patterns.items() if i in vectors
        }
        self._machine = machine
        self._seconds: dict[tuple[bytes, str], dict[Config, float]] = {}

    def seconds(
        self,
        vector: NDArray[np.float32],
        platform: Platform,
        op: Op,
        configs: Sequence[Config],
    ) -> NDArray[np.float64]:
        """float64[c] modelled seconds. Raises: NothingFound for features of no known pattern."""
        key = vector.tobytes()
        pattern = self._patterns.get(key)
        if pattern is None:
            raise NothingFound("the roofline needs the structure of every matrix that is judged")
        known = self._seconds.setdefault((key, str(op)), {})
        new = [config for config in configs if config not in known]
        if new:
            told = Roofline(pattern, self._machine).seconds(platform, op, new)
            known.update(zip(new, told.tolist(), strict=True))
        return np.array([known[config] for config in configs], dtype=np.float64)

    def score(
        self,
        vector: NDArray[np.float32],
        platform: Platform,
        op: Op,
        configs: Sequence[Config],
        sizes: Sizes,
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """As `Scorer.score`; how far it errs is unknown. Raises: NothingFound as `seconds`."""
        logs = -np.log(self.seconds(vector, platform, op, configs))
        return logs - logs.mean(), np.full(len(configs), np.nan)


def roofline_ranker(scorer: RooflineScorer) -> Fit:
    """What `evaluate` asks for: it learns nothing from the training groups."""

    def fit(
        evidence: RunMatrix,
        vectors: Mapping[str, Mapping[str, NDArray[np.float32]]],
        infos: Mapping[str, PatternInfo],
        where: Platform,
        op: Op,
    ) -> RooflineScorer:
        return scorer

    return fit

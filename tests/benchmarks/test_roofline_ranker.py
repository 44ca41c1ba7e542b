"""The analytical ranker as the harness asks it."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("numba")

from benchmarks.roofline_ranker import RooflineScorer
from embeddb.core.config import Config, Op
from embeddb.core.errors import NothingFound
from embeddb.core.pattern import Pattern
from embeddb.dynamics.roofline import Machine, Roofline
from embeddb.featurizers.stats import Stats
from embeddb.platforms.platform import load_platform

CPU, OP, MACHINE = load_platform("cpu"), Op("spmm", 64), Machine.of({})
CONFIGS = [
    Config({"order": "ijk", "format": "csr", "threads": threads, **more})
    for threads, more in (("one", {}), ("all", {"schedule": "static"}))
]


def test_patterns_are_known_by_their_features_and_faster_scores_higher() -> None:
    rng = np.random.default_rng(0)
    large, small = (
        Pattern.from_coo((m, m), rng.integers(0, m, 8 * m), rng.integers(0, m, 8 * m))
        for m in (8000, 30)
    )
    vectors = {p.id: Stats().embed(p) for p in (large, small)}
    scorer = RooflineScorer({p.id: p for p in (large, small)}, vectors, MACHINE)
    for pattern, winner in ((large, 1), (small, 0)):
        vector = vectors[pattern.id]
        gain, spread = scorer.score(vector, CPU, OP, CONFIGS, pattern.sizes)
        assert int(gain.argmax()) == winner and np.isnan(spread).all()
        assert gain.sum() == pytest.approx(0)
        told = Roofline(pattern, MACHINE).seconds(CPU, OP, CONFIGS)
        assert gain[0] - gain[1] == pytest.approx(np.log(told[1] / told[0]))
        assert scorer.seconds(vector, CPU, OP, CONFIGS[:1]) == pytest.approx(told[:1])
    with pytest.raises(NothingFound, match="structure"):
        scorer.score(np.zeros(3, np.float32), CPU, OP, CONFIGS, small.sizes)

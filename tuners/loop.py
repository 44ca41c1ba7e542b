"""The loop that asks, measures and tells."""

from __future__ import annotations

from embeddb.core.config import Config
from embeddb.core.records import Measurement
from embeddb.ranking.measure import Measure
from tuners.base import Tuner

__all__ = ["tune"]


def tune(
    tuner: Tuner,
    run: Measure,
    *,
    budget: int,
    batch: int = 1,
) -> list[tuple[Config, Measurement]]:
    """Ask, measure, tell until the budget is spent or the tuner has nothing more to propose.

    `run` yields (config, measurement); it may measure or replay. A budget counts measurements.
    """
    done: list[tuple[Config, Measurement]] = []
    while len(done) < budget:
        asked = tuner.ask(min(batch, budget - len(done)))
        if not asked:
            break
        for config, measurement in run([Config(c.config) for c in asked]):
            tuner.tell(config, measurement)
            done.append((config, measurement))
    return done

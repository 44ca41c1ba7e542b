"""The tuner contract, ask and tell over a prepared query, and the loop that drives a tuner."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np

from embeddb.core.config import Config
from embeddb.core.records import Measurement
from embeddb.ranking.measure import Measure
from embeddb.ranking.query import Query
from embeddb.ranking.recommendation import Candidate


@runtime_checkable
class Tuner(Protocol):
    """Proposes configurations for one query; never measures and never opens a store.

    A tuner file defines `PLUGIN`, a class with this constructor. Requirements, checked by
    `embeddb.testing.tuners.check_tuner`:

    - `ask` returns candidates that are legal in `query.space`, in the order to try them: the first
      has the least `score`, later ones may complement it as a set. It never returns a
      configuration that it returned before or was told about.
    - The same query and generator state give the same candidates.
    - `tell` may be called with any status, and with configurations that were never asked for; a
      failure never raises.
    """

    def __init__(self, query: Query, *, rng: np.random.Generator) -> None: ...

    def ask(self, count: int) -> list[Candidate]:
        """At most `count` candidates, the next to try; none when there is nothing more."""

    def tell(self, config: Config, measurement: Measurement) -> None:
        """What came out of a configuration, measured or replayed."""


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

"""The contract of tuners, which propose configurations for a query, and their driving loop."""

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
      configuration that it proposed before or has a measurement of.
    - The same query and generator state give the same candidates.
    - A measurement may be of any status and of a configuration that was never proposed; a failed
      one raises nothing.
    """

    def __init__(self, query: Query, *, rng: np.random.Generator) -> None: ...

    def ask(self, count: int) -> list[Candidate]:
        """The next candidates to try, at most `count`; none when there are no more."""

    def tell(self, config: Config, measurement: Measurement) -> None:
        """Receive the measurement of a configuration."""


def tune(
    tuner: Tuner,
    run: Measure,
    *,
    budget: int,
    batch: int = 1,
) -> list[tuple[Config, Measurement]]:
    """Let a tuner propose until `budget` measurements are done or it has no more proposals; `run`
    measures or replays."""
    done: list[tuple[Config, Measurement]] = []
    while len(done) < budget:
        candidates = tuner.ask(min(batch, budget - len(done)))
        if not candidates:
            break
        for config, measurement in run([Config(c.config) for c in candidates]):
            tuner.tell(config, measurement)
            done.append((config, measurement))
    return done

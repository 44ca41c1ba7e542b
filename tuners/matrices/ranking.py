"""In which order the configurations of a matrix are tried: by whom, and as far as is known."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from embeddb.core.config import Config
from embeddb.core.errors import NothingFound, UsageError
from embeddb.core.pattern import Pattern
from embeddb.platforms.space.space import ConfigSpace
from embeddb.ranking.query import Query
from embeddb.ranking.rankers.base import Ranker
from embeddb.ranking.rankers.choose import FEWEST_NEIGHBOURS, Rankers
from embeddb.ranking.rankers.search import Predicted, anneal, graph_search, predicted_whole

__all__ = ["HARDWARE", "RANKERS", "Ranking", "ranking"]

#: Who may be asked to rank.
RANKERS = ("neighbours", "model", "analytical")
#: Nobody ranks: annealing goes by measured seconds.
HARDWARE = "hardware"
#: Predictions after which annealing on the model looks at the clock.
_LEG = 1024
#: Configurations whose roofline is made; of a larger space so many by chance.
_MOST_ANALYSED = 2000
#: What the roofline of configurations is written for.
_ANALYSED = "cpu"

Told = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class Ranking:
    """`configs` in the order to try, chosen `by`: `neighbours`, `model`, `neighbours and model` or
    `analytical`; `hardware` where there are none. A model of this version was asked for `model_s`
    seconds (empty, 0: none was)."""

    by: str
    configs: Sequence[Config] = ()
    model: str = ""
    model_s: float = 0.0


def ranking(
    query: Query, pattern: Pattern, by: str, model_s: float, *, seed: int, told: Told
) -> Ranking:
    """By whom is asked for; with an empty `by` as a query is answered. A cost model that cannot be
    asked about the whole space at once is searched for `model_s` seconds, of which `told` hears.

    Raises: NothingFound where who is asked for knows nothing; UsageError for the analytical model
    of another platform than `cpu`; MissingDependency without numba, which it needs.
    """
    if by == "analytical":
        return _analytical(query, pattern, seed)
    rankers = Rankers(query, rng=np.random.default_rng(seed))
    near = len(query.vote.neighbours) >= FEWEST_NEIGHBOURS and bool(query.vote.configs)
    if by == "neighbours" and not near:
        what = f"fewer than {FEWEST_NEIGHBOURS} matrices near this one ran {query.op}"
        raise NothingFound(what, hint="`embeddb measure` makes runs; --by analytical needs none")
    if by == "model" and query.prediction.predict is None:
        why = query.prediction.note or f"there is no cost model of {query.op}"
        raise NothingFound(why, hint="`embeddb train costmodel` makes one")
    chosen = {"neighbours": rankers.vote, "model": rankers.model}.get(by) or rankers.chosen
    if chosen.by_model and not chosen.by_vote and not predicted_whole(query):
        return _searched(query, model_s, seed, told)
    if not (near or chosen.by_model):
        return Ranking(HARDWARE)
    return _ranked(query, chosen)


def _ranked(query: Query, ranker: Ranker) -> Ranking:
    names = (("neighbours", ranker.by_vote), ("model", ranker.by_model))
    by = " and ".join(name for name, part in names if part)
    configs = [Config(candidate.config) for candidate in ranker.candidates()]
    return Ranking(by, configs, query.prediction.version if ranker.by_model else "")


def _searched(query: Query, model_s: float, seed: int, told: Told) -> Ranking:
    """Walks over the model's predictions, and annealing from the best of them again and again."""
    begun = time.monotonic()
    rng = np.random.default_rng(seed)
    seen = Predicted(query, len(query.prediction.configs) + _LEG)
    seen.of(query.prediction.configs)
    graph_search(seen, rng=rng, most=seen.budget)
    while (spent := time.monotonic() - begun) < model_s:
        told(spent)
        before = seen.count
        seen.budget = before + _LEG
        anneal(seen, rng=rng)
        if seen.count == before:
            break
    return Ranking("model", seen.best(), query.prediction.version, time.monotonic() - begun)


def _analytical(query: Query, pattern: Pattern, seed: int) -> Ranking:
    from embeddb.dynamics.roofline import Machine, Roofline

    if query.platform.name != _ANALYSED:
        what = f"the analytical model knows no {query.platform.name}"
        raise UsageError(what, hint="choose another --by")
    configs = _some(query.space, seed)
    machine = Machine.of(query.platform.environment)
    seconds = Roofline(pattern, machine).seconds(query.platform, query.op, configs)
    order = np.argsort(seconds, kind="stable")
    return Ranking("analytical", [configs[int(at)] for at in order])


def _some(space: ConfigSpace, seed: int) -> list[Config]:
    return space.sample(_MOST_ANALYSED, rng=np.random.default_rng(seed))

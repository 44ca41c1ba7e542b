"""Edge-case queries for the contract tests of tuners."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from embeddb.core.config import Config, Op
from embeddb.core.records import WorkloadInfo
from embeddb.nests.examples import sample_nests
from embeddb.nests.nest import Nest
from embeddb.nests.schedule import designed
from embeddb.platforms.of_subject import default_of, space_of
from embeddb.platforms.platform import load_platform, parse_platform
from embeddb.ranking.query import Neighbour, Query

_PLATFORM = """
name = "contract"
version = "1"
title = "For tuner contracts"

[[space]]
kernels = ["spmm"]
constraints = ["tile <= NUM_MATRIX_ROWS"]

[space.params]
tile = { type = "int", values = [1, 4, 16, 64] }
order = { type = "choice", values = ["ij", "ji"] }
chunk = { type = "int", values = [1, 8], when = "order == 'ji'" }

[space.default]
tile = 1
order = "ij"
"""


def sample_queries() -> dict[str, Query]:
    """Queries about a matrix and about loop nests, by description."""
    return {**_of_a_matrix(), **dict(_of_nests())}


def _of_a_matrix() -> dict[str, Query]:
    platform, op = parse_platform(_PLATFORM), Op("spmm", 8)
    small = WorkloadInfo(id="0" * 32, m=20, n=20, nnz=40, name="small", group="g")
    space = platform.space(op, small.sizes)
    bare = Query(small, platform, op, space, platform.default(op))
    configs = tuple(space.enumerate())
    c = len(configs)
    rng = np.random.default_rng(0)
    gains = rng.normal(size=(5, c))
    average = _voting(
        bare,
        configs=configs,
        gains=np.zeros((0, c)),
        prior=gains.mean(axis=0) - gains.mean(),
        mean=gains.mean(axis=0),
        cover=rng.permutation(c)[: c - 1],
    )
    voted = _voting(
        average,
        gains=gains,
        levels=gains.mean(axis=1),
        weights=np.linspace(2.0, 1.0, 5),
        shrink=1.0,
        neighbours=tuple(_neighbour(i, platform.id) for i in range(5)),
        vector=np.ones(3, dtype=np.float32),
        featurizer="none",
    )
    holes = np.where(rng.random(gains.shape) < 0.6, np.nan, gains)
    holes[:, 0] = np.nan
    none = np.full(c, np.nan)
    return {
        "nothing known": bare,
        "only averages": average,
        "neighbours": voted,
        "neighbours, no trust in the average": _voting(voted, shrink=0.0),
        "neighbours, all trust in the average": _voting(voted, shrink=math.inf),
        "few runs": _voting(voted, gains=holes, mean=np.where(np.arange(c) == 0, np.nan, 0.1)),
        "nothing ran": _voting(voted, gains=np.full(gains.shape, np.nan), mean=none),
        "all alike": _voting(voted, gains=np.zeros(gains.shape), prior=np.zeros(c)),
        "the default unknown": _voting(voted, knows_default=False),
        "one configuration": _only_first(voted),
        "a cost model alone": _predicted(bare, configs),
        "a cost model and neighbours": _predicted(voted, configs),
        "a cost model, few runs": _predicted(_voting(voted, gains=holes), configs[::2]),
        "a cost model, a space too large": _predicted(voted, configs[:2]),
        "a cost model, the default unknown": _voting(
            _predicted(voted, configs), knows_default=False
        ),
        "a price for preparation": replace(voted, calls=10.0),
    }


def _of_nests() -> Iterator[tuple[str, Query]]:
    """A matrix product, and loops with few legal schedules: their spaces are too large to
    enumerate, and the nest's own rules decide on each configuration."""
    for name, nest in sample_nests(64).items():
        if name in ("matmul", "triangular"):
            yield f"a nest ({name}), nothing known", _about(nest)
            yield f"a nest ({name}), neighbours", _ran_by_others(_about(nest))


def _about(nest: Nest) -> Query:
    platform, op = load_platform("nest-cpu"), Op("nest")
    space, default = space_of(platform, op, nest), default_of(platform, op, nest)
    return Query(WorkloadInfo.of(nest), platform, op, space, default)


def _ran_by_others(query: Query) -> Query:
    """The query with gains of three neighbours by the legal ones of forty designed schedules."""
    tried = designed(query.pattern.named["DEPTH"])[:40]
    reasons = {schedule.config: query.space.reason(schedule.config) for schedule in tried}
    configs = tuple(config for config, reason in reasons.items() if reason is None)
    gains = np.random.default_rng(0).normal(size=(3, len(configs)))
    return _voting(
        query,
        configs=configs,
        rejected={config: reason for config, reason in reasons.items() if reason is not None},
        gains=gains,
        levels=gains.mean(axis=1),
        weights=np.ones(3),
        prior=gains.mean(axis=0) - gains.mean(),
        mean=gains.mean(axis=0),
        shrink=1.0,
        neighbours=tuple(_neighbour(i, query.platform.id) for i in range(3)),
    )


def _voting(query: Query, **changes: Any) -> Query:
    """The query with a changed vote."""
    return replace(query, vote=replace(query.vote, **changes))


def _predicted(query: Query, configs: Sequence[Config]) -> Query:
    """The query with predictions for some configurations: a hash of their texts."""

    def predict(queried: Sequence[Config]) -> Any:
        law = [zlib.crc32(c.json.encode()) / 2**32 for c in (query.default, *queried)]
        gain = np.array(law)
        return gain[1:] - gain[0], np.full(len(queried), 0.1)

    gain, spread = predict(configs)
    return replace(
        query,
        prediction=replace(
            query.prediction,
            configs=tuple(configs),
            gain=gain - gain.mean(),
            spread=spread,
            predict=predict,
            version="made up",
            judged={"transfer": 0.8, "rank": 0.9, "transfer+rank": 0.95},
        ),
    )


def _neighbour(i: int, platform_id: str) -> Neighbour:
    return Neighbour(f"{i}" * 32, platform_id, f"n{i}", f"g{i}", float(i), i / 5)


def _only_first(query: Query) -> Query:
    return replace(
        query,
        vote=replace(
            query.vote,
            configs=query.vote.configs[:1],
            gains=query.vote.gains[:, :1],
            prior=np.zeros(1),
            mean=np.zeros(1),
            cover=np.zeros(1, dtype=np.int64),
        ),
    )

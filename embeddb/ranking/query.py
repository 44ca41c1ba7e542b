"""`Query`: a request for configurations and the evidence on it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config, Op
from embeddb.core.records import WorkloadInfo
from embeddb.core.timing import TimingSummary
from embeddb.index.config_counts import Failures
from embeddb.index.conversion import PreparationCost
from embeddb.index.vote import VoteSettings
from embeddb.platforms.platform import Platform
from embeddb.platforms.space.space import ConfigSpace
from embeddb.ranking.recommendation import TransferredSchedule

#: The fallback chain, strongest evidence first; an answer names its link. The last is not in the
#: chain: a tuner that the user selected.
LINKS = ("measured", "other-width", "neighbours", "model", "static-best", "default", "tuner")

#: Configurations to predicted log gains float64[c] over the platform's default, higher is faster,
#: and their standard deviations float64[c]: a cost model bound to one matrix.
Predict = Callable[[Sequence[Config]], tuple[NDArray[np.float64], NDArray[np.float64]]]
#: Configurations to correlations float64[c,c] of a cost model's errors on them.
Correlate = Callable[[Sequence[Config]], NDArray[np.float64]]


class Neighbour(NamedTuple):
    """A measured pattern near the query.

    `percentile` is the share of leave-one-out nearest-neighbour distances in this partition that
    are smaller: 0.5 is a typical neighbour, 1.0 is farther than any measured one. `platform` and
    `op` are those whose runs count most there.
    """

    pattern_id: str
    platform: str
    name: str
    group: str
    distance: float
    percentile: float
    op: str = ""


class VoteQuality(NamedTuple):
    """Cross-validated quality of answers from the evidence, whole groups held out.

    `of_optimum` is the share of the optimum that they reach (nan: too few groups, or winners only),
    `groups` the number of groups, `short` the upper 90 % bound of the share of groups below 0.9,
    `judged_by` the source of the runs: `here` (this very instance), `machines` (left out whole) or
    `elsewhere`. The error of the predicted gain (log) of the first choice is `bias` on average,
    `low` and `high` at the 10th and 90th percentile (nan: too few were judged). Configurations with
    a predicted gain of at most `guard` over the default rank behind it.
    """

    of_optimum: float = math.nan
    groups: int = 0
    short: float = math.nan
    judged_by: str = "here"
    bias: float = math.nan
    low: float = math.nan
    high: float = math.nan
    guard: float = 0.0

    @classmethod
    def of(cls, policy: VoteSettings, *, winners: bool, judged_by: str) -> VoteQuality:
        share = math.nan if winners else math.exp(-policy.loss)
        judged = (share, policy.groups, policy.short, judged_by)
        return cls(*judged, policy.bias, policy.low, policy.high, policy.guard)


class VoteOrigin(NamedTuple):
    """Origin of the votes: `op` is the operation of most of the vote, of another width where the
    queried one was hardly measured (None: no votes), `machines` the share of the vote by platform
    instance, `here` the number of workloads measured on the queried instance; `elsewhere`: other
    instances have runs; `generated`: the number of generated ones measured here, which do not
    vote; `here_op`: the operation of both numbers."""

    op: Op | None = None
    machines: Mapping[str, float] = {}
    here: int = 0
    elsewhere: bool = False
    generated: int = 0
    here_op: Op | None = None


@dataclass(frozen=True, slots=True, eq=False)
class OwnTimings:
    """Timings of the very pattern, at the queried width and at another (`other_op`). `behind` are
    configurations that rank behind the others regardless of their times, with the reason
    (`embeddb.ranking.order_reason`)."""

    timings: dict[Config, TimingSummary] = field(default_factory=dict)
    behind: Mapping[Config, str] = field(default_factory=dict)
    other_width: dict[Config, TimingSummary] = field(default_factory=dict)
    other_op: Op | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Vote:
    """Votes of measured patterns on c configurations that are legal here; those that are not are in
    `rejected` with the reason.

    Shapes, for k neighbours: `gains` float64[k,c] of log(t_default/t) on each neighbour (nan: not
    run there), `levels` float64[k] each neighbour's mean gain, `weights` float64[k] of their votes;
    over the whole platform `prior` float64[c] (centred) and `mean` float64[c] gain, `shrink` the
    number of neighbours the prior counts as, `cover` int64[<=c] positions of a fixed set that
    serves most patterns, best first. `vector` float32[d] are the raw features by `featurizer` for
    the neighbour search.

    `well_tried` are those that may be first, by `embeddb.index.config_counts.well_tried` (None:
    any).

    `trust` float64[k,c] is the weight of each gain relative to a run of this very instance,
    `failing` float64[k,c] the share of its runs that failed, `failures` the counts on all measured
    patterns, `machine_effects` float64[s,c] the additional gain of a configuration on each other
    instance relative to all; `origin` describes the runs and `quality` the answers from them.

    `knows_default` is false where no pattern's default was ever run: gains are then relative to
    other runs, and useful for ranking only. `preparation` is the expected cost of bringing the
    matrix into a configuration's form (None: unknown). `transfers` are the configurations
    transferred from neighbours.
    """

    configs: tuple[Config, ...] = ()
    gains: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0)))
    levels: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    weights: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    prior: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    mean: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    shrink: float = math.inf
    cover: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    knows_default: bool = True
    noise: float = 0.0
    neighbours: tuple[Neighbour, ...] = ()
    origin: VoteOrigin = field(default_factory=VoteOrigin)
    quality: VoteQuality = field(default_factory=VoteQuality)
    trust: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0)))
    failing: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0)))
    failures: Failures = field(default_factory=Failures)
    machine_effects: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0)))
    well_tried: frozenset[Config] | None = None
    rejected: dict[Config, str] = field(default_factory=dict)
    preparation: PreparationCost | None = None
    vector: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, dtype=np.float32))
    featurizer: str = ""
    transfers: tuple[TransferredSchedule, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Prediction:
    """Predictions of a cost model for p configurations (`embeddb.ranking.prediction.MOST_PREDICTED`
    limits them): `gain` float64[p] log gains (centred; higher is faster), `spread` float64[p] their
    standard deviations, `guard` the predicted log gain over the default above which another
    configuration replaces it (`joint_guard` for vote and model together; None: `guard` times
    `weight`), `joint_width` the factor on the intervals of answers by both, and `predict` for any
    other configurations; `gains` predicts their gains alone (None: that is not faster). `correlate`
    gives correlations of its errors (None: unknown).

    `version` is the model's (empty: none) and `featurizer` its input; `own_model` names the one of
    this machine's runs that is combined with it (empty: none). `judged` is the held-out
    share of the optimum by method (`transfer`, `rank`, `transfer+rank`; empty: never judged),
    `judged_5` that of the best of the first five; `expected` the share of the best of all that ran
    (nan: unknown), where the former are of the best sample of a matrix. `weight` is that of the
    model relative to the vote, 0 to 1. `unrun_first`: judgements with hidden configurations allow
    an answer that never ran. `joins`: the model is of every machine and ranks with the vote.
    `plain`: the first few are the best predictions, not a set. `note` is the reason why an existing
    model does not rank.
    """

    configs: tuple[Config, ...] = ()
    gain: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    spread: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    guard: float = 0.0
    joint_guard: float | None = None
    joint_width: float = 1.0
    predict: Predict | None = None
    gains: Callable[[Sequence[Config]], NDArray[np.float64]] | None = None
    correlate: Correlate | None = None
    version: str = ""
    own_model: str = ""
    featurizer: str = ""
    note: str = ""
    judged: Mapping[str, float] = field(default_factory=dict)
    judged_5: Mapping[str, float] = field(default_factory=dict)
    expected: float = math.nan
    weight: float = 0.5
    unrun_first: bool = False
    joins: bool = False
    plain: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Query:
    """A request for configurations and all evidence on it; immutable.

    The request: a workload (`pattern`), a platform and an operation there; `space` holds the legal
    configurations, `default` is the platform's own, and the preparation of the matrix is shared out
    over `calls`. The evidence, empty where there is none: `own` (measured on the very workload),
    `vote` (measured on others) and `prediction` (of a model).
    """

    pattern: WorkloadInfo
    platform: Platform
    op: Op
    space: ConfigSpace
    default: Config
    calls: float = math.inf
    own: OwnTimings = field(default_factory=OwnTimings)
    vote: Vote = field(default_factory=Vote)
    prediction: Prediction = field(default_factory=Prediction)

    @property
    def configs(self) -> tuple[Config, ...]:
        """Configurations of the vote; for tuners."""
        return self.vote.configs

    @property
    def gains(self) -> NDArray[np.float64]:
        """Gains float64[k,c] of the vote; for tuners."""
        return self.vote.gains

    @property
    def failing(self) -> dict[Config, float]:
        """Share of failed runs on the very pattern, of each configuration that failed there."""
        timings = self.own.timings.items()
        return {self.space.canonical(c): one.failing for c, one in timings if one.failed}

    def with_prediction(self, **fields: Any) -> Query:
        """Return the query with these fields of its prediction replaced."""
        return replace(self, prediction=replace(self.prediction, **fields))

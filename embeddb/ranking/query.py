"""`Query`: a request for configurations and the evidence on it, as a tuner sees them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config, Op
from embeddb.core.records import WorkloadInfo
from embeddb.core.timing import TimingSummary
from embeddb.index.config_counts import Failures
from embeddb.index.conversion import PreparationCost
from embeddb.index.vote import VoteSettings
from embeddb.nests.matching.transfer import StepOutcome
from embeddb.platforms.platform import Platform
from embeddb.platforms.space.space import ConfigSpace

#: The fallback chain, strongest evidence first; an answer names the link that gave it. The last is
#: none of the chain: a tuner that the user named.
LINKS = ("measured", "other-width", "neighbours", "model", "static-best", "default", "tuner")

#: Configurations to predicted log gains float64[c] over the platform's default, higher is faster,
#: and their standard deviations float64[c]: a cost model bound to one matrix.
Predict = Callable[[Sequence[Config]], tuple[NDArray[np.float64], NDArray[np.float64]]]


class Neighbour(NamedTuple):
    """A measured pattern near the query.

    `percentile` is the share of leave-one-out nearest-neighbour distances in this partition that
    are smaller: 0.5 is a typical neighbour, 1.0 says that nothing measured was ever this far.
    `platform` and `op` are those whose runs count most there.
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

    `of_optimum` is the share of the optimum that they reach (nan: too few groups to tell, or
    winners only), `groups` the number of groups, `short` the upper 90 % bound of the part of them
    that fall short of 0.9, `judged_by` whose runs they were judged by: `here` (this very instance),
    `machines` (left out whole) or `elsewhere`. The error of the predicted gain (log) of the first
    choice is `bias` on average, `low` and `high` at the 10th and 90th percentile (nan: too few were
    judged). What is predicted to gain no more than `guard` over the default is ranked behind it.
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
    """Whose runs vote: `op` is the operation that most of the vote ran, another width where the
    queried one was hardly measured (None: nothing votes), `machines` the share of the vote by
    platform instance, `here` the number of workloads measured on the queried instance, `elsewhere`
    whether other instances have runs."""

    op: Op | None = None
    machines: Mapping[str, float] = {}
    here: int = 0
    elsewhere: bool = False


class Transferred(NamedTuple):
    """What a neighbour's schedule became on the asked nest: `config` here, `source` there, where it
    gained `gain` (log), and the steps of its recipe."""

    config: Config
    pattern_id: str
    source: Config
    gain: float
    steps: tuple[StepOutcome, ...]


@dataclass(frozen=True, slots=True, eq=False)
class OwnTimings:
    """What was measured on the very pattern: at the asked width, and at another (`other_op`).
    `behind` are configurations that rank behind the others whatever they took, with the reason
    (`embeddb.ranking.order_reason`)."""

    timings: dict[Config, TimingSummary] = field(default_factory=dict)
    behind: Mapping[Config, str] = field(default_factory=dict)
    other_width: dict[Config, TimingSummary] = field(default_factory=dict)
    other_op: Op | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Vote:
    """What measured patterns say of c configurations, all of them legal here; what was measured
    elsewhere but is not legal here is in `rejected` with the reason.

    Shapes, for k neighbours: `gains` float64[k,c] of log(t_default/t) on each neighbour (nan: not
    run there), `levels` float64[k] each neighbour's mean gain, `weights` float64[k] of their votes;
    over the whole platform `prior` float64[c] (centred) and `mean` float64[c] gain, `shrink` the
    number of neighbours the prior counts as, `cover` int64[<=c] positions of a fixed set that
    serves most patterns, best first. `vector` float32[d] holds the raw features by `featurizer`
    that the neighbours were found by.

    `well_tried` are those that may be first, by `embeddb.index.view.well_tried` (None: any).

    `trust` float64[k,c] is what each gain counts as a vote beside a run of this very instance,
    `failing` float64[k,c] what part of the runs behind it failed, `failures` how often each failed
    on all measured patterns, `machine_effects` float64[s,c] by how much more a configuration gains
    on each other instance than on all together; `origin` says whose runs these are and `quality`
    how good answers from them are.

    `knows_default` is false where no pattern's default was ever run: gains are then relative to
    whatever ran, good for ranking only. `preparation` is the expected cost of bringing the matrix
    into a configuration's form (None: unknown). `transfers` are the configurations that are
    schedules of neighbours, carried over.
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
    transfers: tuple[Transferred, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Prediction:
    """What a cost model says of p configurations (how many is stated at
    `embeddb.ranking.prediction.MOST_PREDICTED`): `gain` float64[p] log gains (centred; higher is
    faster), `spread` float64[p] their standard deviations, `guard` the log gain that must be
    promised over the default to be preferred to it (`joint_guard` by what votes and model say
    together; None: the part of `guard` with which the model counts), `joint_width` the factor on
    the intervals of answers by both, and `predict` for any other configurations.

    `version` is the model's (empty: none) and `featurizer` what it read. `judged` says what share
    of the optimum answers reached by method (`transfer`, `rank`, `transfer+rank`) when groups were
    held out; empty: never judged; `judged_5` the same of the best of the first five. `weight` is
    how far the model counts against the vote in the last, 0 to 1. `unrun_first`: hidden
    configurations have shown that one which ran nowhere may be the first. `joins`: the model is of
    every machine and ranks with the vote. `plain`: the first few are those best predicted, not a
    set. `note` says why a model that is there does not rank.
    """

    configs: tuple[Config, ...] = ()
    gain: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    spread: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    guard: float = 0.0
    joint_guard: float | None = None
    joint_width: float = 1.0
    predict: Predict | None = None
    version: str = ""
    featurizer: str = ""
    note: str = ""
    judged: Mapping[str, float] = field(default_factory=dict)
    judged_5: Mapping[str, float] = field(default_factory=dict)
    weight: float = 0.5
    unrun_first: bool = False
    joins: bool = False
    plain: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Query:
    """A request for configurations and all evidence on it; built from a database, never changed.

    The request: a workload (`pattern`), a platform and an operation there; `space` holds the legal
    configurations, `default` is the platform's own, and `calls` is how often the result is used,
    over which preparing the matrix is shared out. The evidence, empty where there is none: `own`
    (measured on the very workload), `vote` (measured on others) and `prediction` (of a model).
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
        """Those that measured patterns ran, as tuners read them: `vote.configs`."""
        return self.vote.configs

    @property
    def gains(self) -> NDArray[np.float64]:
        """float64[k,c], as tuners read them: `vote.gains`."""
        return self.vote.gains

"""What a tuner sees and says: `Query`, `Neighbour`, `Candidate`, and the stored answer."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Config, Op
from embeddb.core.records import PatternInfo
from embeddb.index.preparation import PreparationCost
from embeddb.index.run_matrix import Timing
from embeddb.index.vote import VoteSettings
from embeddb.platforms.platform import Platform
from embeddb.platforms.space.space import ConfigSpace
from embeddb.query.diagnostics import Diagnostics

__all__ = [
    "LINKS",
    "Candidate",
    "Neighbour",
    "Predict",
    "Promise",
    "Query",
    "Recommendation",
    "RecommendedNeighbour",
]

#: The fallback chain, strongest evidence first; an answer names the link that gave it.
LINKS = ("measured", "other-width", "neighbours", "model", "static-best", "default")

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


class Promise(NamedTuple):
    """What promises were worth where groups (and machines) were held out: by how much the first
    choice gained more than it was promised, on average, and the 10th and 90th percentile of that;
    log gains. nan: too few were judged. What promises no more than `guard` over the default goes
    behind it."""

    bias: float = math.nan
    low: float = math.nan
    high: float = math.nan
    guard: float = 0.0

    @classmethod
    def of(cls, policy: VoteSettings) -> Promise:
        return cls(policy.bias, policy.low, policy.high, policy.guard)


_NO_PROMISE = Promise()


@dataclass(frozen=True, slots=True, eq=False)
class Query:
    """Everything a tuner may look at; prepared by the database, never changed.

    Shapes, for k neighbours and c configurations: `gains` float64[k,c] of log(t_default/t) on each
    neighbour (nan: not run there), `levels` float64[k] each neighbour's mean gain, `weights`
    float64[k] of their votes; over the whole platform `prior` float64[c] (centred) and `mean`
    float64[c] gain, `shrink` the number of neighbours the prior counts as,
    `cover` int64[<=c] positions of a fixed set that serves most patterns, best first.

    `trust` float64[k,c] is what each gain counts as a vote beside a run of this very instance,
    `failing` float64[k,c] what part of the runs behind it failed, `machines` how much of the vote
    rests on which instance, `machine_effects` float64[s,c] by how much more a configuration gains
    on each other instance than on all together; `measured_here` counts the patterns measured on
    this one, `elsewhere` says that there are others.

    `knows_default` is false where no pattern's default was ever run: gains are then relative to
    whatever ran, good for ranking only. `evidence_op` is the operation that most of the vote ran:
    another width where this one was hardly measured. `held_out` is the share of the optimum that
    answers from this evidence reach when whole groups are held out (nan: too few to tell, or
    winners only), `judged_by` on whose runs: `here` (this very instance), `machines` (left out
    whole) or `elsewhere`, and `promise` what promises were worth there. `own` holds what was
    measured on the very pattern, `own_width` the same at another width. `configs` are legal here;
    what was measured elsewhere but is not legal here is in `rejected` with the reason.
    `preparation` is what bringing the matrix into a configuration's form is expected to cost (None:
    nothing is known of that). `vector` float32[d] holds the raw features the neighbours were found
    by.

    With a cost model there are predictions for p configurations: `predicted_configs` (how many is
    stated at `embeddb.query.build.MOST_PREDICTED`), `predicted` float64[p] log gains (centred;
    higher is faster), `predicted_spread` float64[p] their standard deviations, `predicted_guard`
    the log gain that must be promised over the default to be preferred to it, and `predict` for any
    other configurations. `model` is its version (empty: none) and `model_featurizer` what it read.
    `judged` says what share of the optimum answers reached by method (`transfer`, `rank`,
    `transfer+rank`) when groups were held out; empty: never judged. `rank_weight` is how far the
    model counts against the vote in the last, 0 to 1. `unrun_first`: hidden configurations have
    shown that one which ran nowhere may be the first. `model_note` says why a model that is there
    does not rank.
    """

    pattern: PatternInfo
    platform: Platform
    op: Op
    space: ConfigSpace
    default: Config
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
    own: dict[Config, Timing] = field(default_factory=dict)
    own_width: dict[Config, Timing] = field(default_factory=dict)
    own_width_op: Op | None = None
    evidence_op: Op | None = None
    held_out: float = math.nan
    judged_by: str = "here"
    promise: Promise = _NO_PROMISE
    trust: NDArray[np.float64] = field(default_factory=lambda: np.ones((0, 0)))
    machines: Mapping[str, float] = field(default_factory=dict)
    measured_here: int = 0
    elsewhere: bool = False
    failing: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0)))
    unrun_first: bool = False
    machine_effects: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0)))
    rejected: dict[Config, str] = field(default_factory=dict)
    calls: float = math.inf
    preparation: PreparationCost | None = None
    vector: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, dtype=np.float32))
    featurizer: str = ""
    predicted_configs: tuple[Config, ...] = ()
    predicted: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    predicted_spread: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    predicted_guard: float = 0.0
    predict: Predict | None = None
    model: str = ""
    model_featurizer: str = ""
    model_note: str = ""
    judged: Mapping[str, float] = field(default_factory=dict)
    rank_weight: float = 0.5


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """One proposal. `score` sorts (lower is better); `expected_gain` is a factor over the
    default (1.3: thirty percent faster) with an interval, None where nothing is known.

    `origin` says what it rests on; `voters` counts the neighbours that ran it. `seconds` and
    `status` are set once it was measured here. `break_even_calls` is the number of calls from which
    preparing it has paid off beside the default (0: there is nothing to prepare; None: it is not
    faster, or that is not known).
    """

    config: dict[str, Any]
    score: float
    origin: str
    expected_gain: float | None = None
    gain_low: float | None = None
    gain_high: float | None = None
    voters: int = 0
    seconds: float | None = None
    status: str | None = None
    break_even_calls: float | None = None


class RecommendedNeighbour(msgspec.Struct, frozen=True):
    """A neighbour as the stored answer keeps it."""

    pattern_id: str
    platform: str
    name: str
    distance: float
    percentile: float | None
    weight: float
    op: str = ""


class Recommendation(msgspec.Struct, frozen=True, kw_only=True):
    """A ranked answer with everything it rests on; stored, so that it can be explained later
    without the pattern, a model or a runner.

    `features` holds (value, mean, scale) by name; mean and scale are the partition's. `model` is
    the version of the cost model that ranked and `model_featurizer` what it read; empty: none did.
    `pattern` is what was known of the matrix, with its thumbnail, without its features.
    `reproducible`: configurations whose sums run in varying order were left out.
    """

    id: str
    pattern_id: str
    pattern_name: str
    platform: str
    op: str
    link: str
    tuner: str
    default: dict[str, Any]
    candidates: list[Candidate]
    neighbours: list[RecommendedNeighbour]
    confidence: str
    warnings: list[str]
    rejected: dict[str, str]
    features: dict[str, tuple[float, float, float]]
    evidence_op: str
    featurizer: str
    featurizer_version: str
    generation: int
    seed: int
    calls: float | None
    simulated: bool
    noise: float
    created: float
    default_seconds: float | None = None
    stages_s: dict[str, float] = {}
    model: str = ""
    model_featurizer: str = ""
    insight: Diagnostics = Diagnostics()
    pattern: PatternInfo | None = None
    machines: dict[str, float] = {}
    reproducible: bool = False

    def __repr__(self) -> str:
        first = self.candidates[0].config if self.candidates else self.default
        what = f"{self.op} on {self.platform}, {self.pattern_name or self.pattern_id}"
        return f"Recommendation({self.id!r}, {what}: {Config(first)}, sure: {self.confidence})"

    def _repr_html_(self) -> str:
        return str(import_module("embeddb.ui.notebook").recommendation_html(self))

    def document(self) -> dict[str, Any]:
        """The released JSON form; keys keep their meaning (docs/cli.md)."""
        candidates = [
            {"rank": rank, **msgspec.to_builtins(candidate)}
            for rank, candidate in enumerate(self.candidates, 1)
        ]
        body: dict[str, Any] = msgspec.to_builtins(self)
        body["default"] = {"config": self.default, "seconds": self.default_seconds}
        body["candidates"] = candidates
        if self.pattern is not None:
            body["pattern"] = {k: getattr(self.pattern, k) for k in ("m", "n", "nnz", "group")}
        del body["default_seconds"]
        return body

    @staticmethod
    def make_id(pattern_id: str, op: Op, platform: str, generation: int, created: float) -> str:
        text = f"{pattern_id}\0{op}\0{platform}\0{generation}\0{created!r}"
        return "r" + hashlib.blake2b(text.encode(), digest_size=6).hexdigest()

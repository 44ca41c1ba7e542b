"""Recommendations and their diagnostics, as they are stored and shown."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any

import msgspec

from embeddb.core.config import Config, Op
from embeddb.core.records import WorkloadInfo
from embeddb.core.repr_html import html_of
from embeddb.core.wording import one_of
from embeddb.ranking.kernel_view import KernelView

#: Beginning of the warning that the default has no time on the queried workload.
DEFAULT_FAILS = "the default does not run on this pattern"
#: Part of the warning on an answer that its database does not have.
NOT_STORED = "this answer was not stored"
#: Failure chance from which a configuration is ranked behind all others.
LIKELY = 0.5

#: Descriptions of featurizers.
_FEATURES = {
    "given": "given (moments of row and column lengths)",
    "rows": "rows (sizes and row lengths)",
    "scnn": "scnn (a sparse network)",
    "sizes": "sizes (rows, columns, nonzeros)",
    "stats": "stats (statistics of the structure)",
    "tower": "tower (statistics, and a vector learned from run times)",
    "stats-scnn": "stats-scnn (statistics and a sparse network)",
}


class GainTerm(msgspec.Struct, frozen=True, kw_only=True):
    """A summand `log_gain` of a predicted log gain over the default; as a factor exp(log_gain).

    `term` names it: `neighbour` (the vote of `pattern_id`, with its `weight`, a share of the vote,
    and the gain `voted`: measured there and corrected for the queried machine; None: it did not run
    there), `platform average`, `few neighbours ran it`, `mean held-out error`, `cost model`, `rest`
    (of configurations that no neighbour ran).
    """

    term: str
    log_gain: float
    pattern_id: str = ""
    weight: float | None = None
    voted: float | None = None


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """One proposal. `score` sorts (lower is better); `expected_gain` is a factor over the
    default (1.3: thirty percent faster) with an interval, None where unknown.

    `origin` names its evidence; `voters` counts the neighbours that ran it. `seconds` and `status`
    are set once it was measured here. `break_even_calls` is the number of calls that amortise its
    preparation relative to the default (0: nothing to prepare; None: not faster, or unknown).
    `failure` is the chance that it fails on the queried workload, where it failed here the share of
    its runs (None: nothing ever failed, or it was measured here without a failure); it failed on
    `failed_on` of `tried_on` measured patterns. `order_reason` is the reason why it is ranked out
    of the order of the expected gains (`embeddb.ranking.order_reason.REASONS`; empty: it is not).
    `terms` of the first candidate add up to the logarithm of its `expected_gain`. An `inexact` one
    rounds its operands to a shorter type.
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
    failure: float | None = None
    failed_on: int = 0
    tried_on: int = 0
    order_reason: str = ""
    terms: list[GainTerm] = []
    inexact: bool = False


def default_proposal(default: Mapping[str, Any]) -> Candidate:
    """The platform's default as a candidate, with gain 1."""
    return Candidate(config=dict(default), score=0.0, origin="platform default", expected_gain=1.0)


class RecommendedNeighbour(msgspec.Struct, frozen=True):
    """A neighbour in a stored answer."""

    pattern_id: str
    platform: str
    name: str
    distance: float
    percentile: float | None
    weight: float
    op: str = ""


class TransferredStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step of a neighbour's recipe: `text` there and `target_text` on the queried nest (empty: it
    was left out, or changed, with the `reason`). `matched` has pairs of matched nodes and their
    distance."""

    text: str
    target_text: str = msgspec.field(name="made")
    reason: str
    matched: list[tuple[str, str, float]]


class TransferredSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """A neighbour's transferred schedule or tile: `config` here, `source` on the neighbour, where
    it was `gain` times as fast as the default."""

    config: dict[str, Any]
    pattern_id: str
    name: str
    source: dict[str, Any]
    gain: float
    steps: list[TransferredStep]


class CountersUse(msgspec.Struct, frozen=True, kw_only=True):
    """Use of the counters of a nest on the queried platform: their `source` (`perf`, `model`; empty
    if they cannot be read), and whether the vectors of the neighbour search were `used` with
    counters, else the `reason`."""

    source: str
    used: bool
    reason: str = ""

    @property
    def words(self) -> str:
        """A sentence without its full stop."""
        by = {"perf": " by the processor", "model": " in modelled caches"}.get(self.source, "")
        if self.used:
            return f"used: neighbours are near by the code and by what was counted{by}"
        return f"what was counted{by} is not used: {self.reason}"


class SimplerAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """First choice of a simpler method: `default`, `static-best`, `nearest` (the fastest of the one
    nearest neighbour), `transfer` (the vote alone), `rank` (the cost model alone).

    `expected_gain` is a factor over the default by the evidence of the answer; `same`: it is the
    answer. `gain_there` is the measured gain of `nearest` on that neighbour, a factor over its own
    default (None: its default did not run; all other methods).
    """

    method: str
    config: dict[str, Any]
    expected_gain: float | None = None
    same: bool = False
    gain_there: float | None = None


class NextRun(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration worth measuring on this pattern. `worth` is the mean (geometric) gain from
    measuring it and then taking the faster of it and the answer (0.02: 2 %); `chance` (0..1) is the
    probability that it is faster, and `faster_by` by how much it then is (0.08: 8 %). All three are
    of one distribution: log(1 + worth) = chance * log(1 + faster_by)."""

    config: dict[str, Any]
    worth: float
    chance: float = math.nan
    faster_by: float = math.nan


class ParameterEffect(msgspec.Struct, frozen=True, kw_only=True):
    """One value of one parameter on this pattern: the best and the median gain (factors over the
    default) of the ranked configurations that have it, with every other parameter free."""

    parameter: str
    value: str
    configs: int
    best_gain: float
    median_gain: float


class Counterfactual(msgspec.Struct, frozen=True, kw_only=True):
    """The smallest tried change of one feature, all others fixed, that changes the answer.

    `start` and `end` are raw values of the feature, `deviations` their difference in standard
    deviations of the partition, `winner` the answer at `end`.
    """

    feature: str
    start: float
    end: float
    deviations: float
    winner: dict[str, Any]


class Occluded(msgspec.Struct, frozen=True, kw_only=True):
    """A left-out part of a tensor kernel: an operation by its `place` (`what` is its opcode), or
    with -1 a statistic by its name; `moved` is the change (`Diagnostics.occluded_by`)."""

    what: str
    moved: float
    place: int = -1


class Diagnostics(msgspec.Struct, frozen=True, kw_only=True):
    """`simpler` and `next` are in every answer; `answer_gain` is the gain of the answer by the same
    evidence (None: unknown). `effects`, `moves` and `attention` are computed on request (`deep`),
    by hundreds of queries. `attention` is, row by row, the distance (standard deviations of the
    partition) that the pattern's vector moves when the non-zeros of one cell of an
    `attention_side` x `attention_side` grid are left out. For a tensor kernel, `occluded` are the
    effects of leaving a part out, the largest first, measured as `occluded_by` names: `model`, the
    predicted log gain of the best tile over the default when the operation is hidden; `operations`,
    the distance that the kernel's vector then moves; `sizes`, that distance with a statistic at its
    mean.
    """

    answer_gain: float | None = None
    simpler: list[SimplerAnswer] = []
    next: list[NextRun] = []
    deep: bool = False
    effects: list[ParameterEffect] = []
    moves: list[Counterfactual] = []
    attention: list[float] = []
    attention_side: int = 0
    occluded: list[Occluded] = []
    occluded_by: str = ""


class Recommendation(msgspec.Struct, frozen=True, kw_only=True):
    """A ranked answer with its evidence; stored, so that it can be explained later without the
    pattern, a model or a runner.

    `features` holds (value, mean, scale) by name, mean and scale as usual in the partition;
    `features_by` is their featurizer and its version, `featurizer` that of the neighbours. `model`
    is the version of the cost model that ranked and `model_featurizer` its input; empty: none did.
    `own_model` names the model of this machine's own runs that was combined with it (empty: none).
    `pattern` is the information on the workload, with its thumbnail, without its features.
    `reproducible`: configurations whose sums run in varying order were left out; `exact`: those of
    reduced precision were. `transfers`: transferred schedules or tiles of neighbours that are
    candidates, and for each neighbour its fastest, first; `nest` is the text of the queried nest
    (`embeddb.nests.nest_text`), which need not be in the store, and `counters` the use of its
    counters (None: it was not counted). `kernel` is the displayed form of the queried tensor
    kernel. `time_unit`: `cycles` where all seconds are 1e-9 of a number of cycles, else `s`.
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
    own_model: str = ""
    model_featurizer: str = ""
    insight: Diagnostics = Diagnostics()
    pattern: WorkloadInfo | None = None
    features_by: tuple[str, str] = ("", "")
    machines: dict[str, float] = {}
    reproducible: bool = False
    exact: bool = False
    transfers: list[TransferredSchedule] = []
    nest: str = ""
    counters: CountersUse | None = None
    kernel: KernelView | None = None
    time_unit: str = "s"

    @property
    def first(self) -> Candidate | None:
        """The best proposal; None where there is none."""
        return self.candidates[0] if self.candidates else None

    @property
    def best(self) -> dict[str, Any]:
        """The configuration to run: the first proposal's, else the default."""
        return self.default if self.first is None else self.first.config

    @property
    def subject(self) -> str:
        """The workload's name, else its sizes, else its id."""
        if self.pattern_name or self.pattern is None or min(self.pattern.sizes[:3]) < 0:
            return self.pattern_name or self.pattern_id
        m, n, nnz = self.pattern.sizes
        return f"a {one_of(self.pattern.kind)} of {m:,} x {n:,} with {nnz:,} nonzeros"

    @property
    def found_by(self) -> str:
        """The featurizer of the neighbour search in words; empty without neighbours."""
        name, mark, _ = self.featurizer.partition("+counters@")
        name = _FEATURES.get(name, name)
        return (name + (" with counters" if mark else "")) if self.neighbours else ""

    @property
    def counters_words(self) -> str:
        """Use of counters for the answer on a nest, in words; else empty."""
        if self.counters is not None:
            return self.counters.words
        if not self.neighbours or not Op.parse(self.op).workload.counted:
            return ""
        return "none: it was not counted on this platform, so neighbours are near by the code alone"

    def __repr__(self) -> str:
        what = f"{self.op} on {self.platform}, {self.subject}"
        return f"Recommendation({self.id!r}, {what}: {Config(self.best)}, sure: {self.confidence})"

    def _repr_html_(self) -> str:
        return html_of(self)

    def document(self) -> dict[str, Any]:
        """The released JSON form; keys keep their meaning (docs/reference/json.md)."""
        candidates = [
            {"rank": rank, **msgspec.to_builtins(candidate)}
            for rank, candidate in enumerate(self.candidates, 1)
        ]
        body: dict[str, Any] = msgspec.to_builtins(self)
        body["default"] = {"config": self.default, "seconds": self.default_seconds}
        body["candidates"] = candidates
        if self.pattern is not None:
            body["pattern"] = {k: getattr(self.pattern, k) for k in ("m", "n", "nnz", "group")}
            if not self.pattern.workload.sparse:
                body["pattern"] |= {"kind": self.pattern.kind, "sizes": self.pattern.named}
        shown = set(Op.parse(self.op).workload.answer_keys)
        if not self.nest and self.kernel is None:
            shown -= {"nest", "kernel", "transfers"}
        for key in {"nest", "kernel", "transfers", "counters"} - shown:
            del body[key]
        for key in {"occluded", "occluded_by"} - shown:
            del body["insight"][key]
        del body["default_seconds"]
        return body

    @staticmethod
    def make_id(pattern_id: str, op: Op, platform: str, generation: int, created: float) -> str:
        text = f"{pattern_id}\0{op}\0{platform}\0{generation}\0{created!r}"
        return "r" + hashlib.blake2b(text.encode(), digest_size=6).hexdigest()

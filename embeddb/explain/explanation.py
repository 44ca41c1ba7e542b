"""`Explanation` and its parts, created by `embeddb.explain.explain`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from embeddb.core.config import Config, Op
from embeddb.core.kinds import kind_of
from embeddb.core.repr_html import html_of
from embeddb.core.sizes import Sizes
from embeddb.core.wording import many_of, one_of
from embeddb.explain.quantities import QuantityView
from embeddb.platforms.machines import display_name, machine_words
from embeddb.ranking.kernel_view import KernelView
from embeddb.ranking.recommendation import (
    DEFAULT_FAILS,
    Candidate,
    Recommendation,
    TransferredSchedule,
)
from embeddb.store.models import ModelFacts
from embeddb.store.provenance import Provenance

#: Links of the fallback chain as text, for `link_words`.
LINK_WORDS = {
    "measured": "measured on this very {one}",
    "other-width": "measured on this very {one}, at another width",
    "neighbours": "measured on similar {many}",
    "model": "predicted by the cost model",
    "static-best": "the platform's best fixed choice",
    "default": "the platform's default, without evidence",
    "tuner": "proposed by the requested tuner",
}
#: Runs further apart are of two sessions, in seconds.
_SESSION_S = 3600.0
#: Evidence of an answer, by link.
RESTS = {
    "measured": "rests on its own measurements",
    "other-width": "rests on its own measurements at another width",
    "neighbours": "rests on similar measured patterns",
    "model": "rests on the cost model, trained on all patterns",
    "static-best": "rests on the platform's average",
    "default": "rests on no measurement",
    "tuner": "rests on the tuner's own ranking",
}
#: Role of neighbours that did not vote, by link.
BESIDE = {
    "measured": "similar patterns, for comparison",
    "other-width": "similar patterns, for comparison",
    "model": "similar patterns, for comparison",
    "static-best": "similar patterns, too few to vote",
    "default": "similar patterns, too few to vote",
    "tuner": "similar patterns, for comparison",
}


def link_words(link: str, kind: str = "matrix", *, then_measured: bool = False) -> str:
    """A link of the fallback chain as text for a kind of workload; `then_measured`: its candidates
    were measured afterwards."""
    template = LINK_WORDS.get(link)
    text = link if template is None else template.format(one=one_of(kind), many=many_of(kind))
    return f"{text}, then measured here" if then_measured and link != "measured" else text


def preparation(calls: float | None, *, measured: bool, kind: str = "matrix") -> str:
    """One sentence on whether gains include the conversion to a configuration's format."""
    if not kind_of(kind).sparse:
        return f"gains are per call: a {one_of(kind)} has no format conversion"
    if calls is None:
        return "gains are per call, without format conversion (add --calls to amortise it)"
    text = f"format conversion is included if its cost is known, amortised over {calls:,.0f} calls"
    return text + ("; measured times exclude it" if measured else "")


def fails(candidate: Candidate) -> str:
    """Failure probability of a candidate, with failures on measured patterns, as text."""
    if candidate.failure is None:
        return "-"
    seen = f", {candidate.failed_on} of {candidate.tried_on}" if candidate.tried_on else ""
    return f"{100 * candidate.failure:.0f} %{seen}"


def paid_off(calls: float | None) -> str:
    """Calls that amortise the conversion, for a table: `at once`, `23`, `-`."""
    if calls is None:
        return "-"
    return "at once" if calls == 0 else f"{math.ceil(calls):,}"


def best_here(recommendation: Recommendation, near: NeighbourDetail) -> dict[str, Any]:
    """The fastest configuration of a neighbour as transferred here; empty if it cannot be."""
    moved = (one.config for one in recommendation.transfers if one.pattern_id == near.pattern_id)
    return next(moved, near.best if Op.parse(recommendation.op).workload.copies else {})


def _plain(document: Mapping[str, Any], *, sparse: bool) -> dict[str, Any]:
    """The document as plain values; for sparse matrices without the keys of other workloads."""
    body: dict[str, Any] = msgspec.to_builtins(document)
    if not sparse:
        return body
    del body["transfers"], body["counters"]
    del body["insight"]["occluded"], body["insight"]["occluded_by"]
    for name in ("kind", "named", "nest", "kernel"):
        del body["pattern"][name]
    for near in body["neighbours"]:
        del near["named"]
    return body


class NestView(msgspec.Struct, frozen=True, kw_only=True):
    """A loop nest as text: its original `loops` from the outermost, its `body`, and the generated
    loops of the answer."""

    loops: list[str]
    body: list[str]
    answer: list[str]


class PatternView(msgspec.Struct, frozen=True, kw_only=True):
    """The queried pattern. Sizes are -1 if unknown. `features` are the statistics of the neighbour
    search (raw values by name; empty without a search); `thumbnail` is the 32x32 density map,
    uint8[1024] row-major on a log scale, or empty. Other workloads than matrices have `named`
    sizes; `nest` is set for a stored loop nest, `kernel` for a stored tensor kernel or program."""

    id: str = ""
    name: str = ""
    group: str = ""
    m: int = -1
    n: int = -1
    nnz: int = -1
    features: dict[str, float] = {}
    thumbnail: bytes = b""
    kind: str = "matrix"
    named: dict[str, int] = {}
    nest: NestView | None = None
    kernel: KernelView | None = None

    @property
    def sizes(self) -> Sizes:
        return Sizes(self.m, self.n, self.nnz).naming(self.named)


class NeighbourDetail(msgspec.Struct, frozen=True, kw_only=True):
    """Evidence of one neighbour. Gains are factors over that neighbour's own default; None if the
    configuration or the default did not run there.

    `share` is its part of the vote on the answer, without terms of all votes, and `voted` the
    answer's gain by which it votes, corrected for the queried machine (None: it did not vote, or
    did not run the answer).

    `ratios` are the seconds of its configurations over those of its best, ascending, thinned to
    200; they include best, default and answer, the latter two at `default_at` and `answer_at`
    (None: did not run there). `failed` counts configurations by failure status. Sizes are -1 if
    unknown; `thumbnail` is uint8[1024] or empty. `provenance` has the sources of its runs, in a
    database with pushed runs.
    """

    pattern_id: str
    name: str
    platform: str
    distance: float
    percentile: float | None
    weight: float
    measured: int
    failed: dict[str, int]
    best: dict[str, Any]
    best_gain: float | None
    answer_gain: float | None
    group: str = ""
    m: int = -1
    n: int = -1
    nnz: int = -1
    thumbnail: bytes = b""
    named: dict[str, int] = {}
    op: str = ""
    ratios: list[float] = []
    default_at: int | None = None
    answer_at: int | None = None
    provenance: list[Provenance] = []
    share: float = 0.0
    voted: float | None = None

    @property
    def sizes(self) -> Sizes:
        return Sizes(self.m, self.n, self.nnz).naming(self.named)


class OwnRuns(msgspec.Struct, frozen=True, kw_only=True):
    """Stored runs of one configuration on the pattern itself, at the queried width: `runs` that are
    ok with `times` repeats in all, `seconds` their combined time (`TimingSummary`), `fastest` and
    `slowest` the extremes of all repeats, `first` and `last` the times of the runs in seconds since
    the epoch (0: unknown), `sources` the origins of the times, `provenance` the sources of the
    runs, in a database with pushed runs."""

    config: dict[str, Any]
    runs: int
    times: int
    seconds: float
    fastest: float
    slowest: float
    first: float
    last: float
    sources: list[str]
    provenance: list[Provenance] = []


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """Difference of a feature from the neighbours, in standard deviations of the partition."""

    feature: str
    query: float
    neighbours: float
    deviations: float


class MachineShare(msgspec.Struct, frozen=True, kw_only=True):
    """An instance whose runs are evidence: `share` of the vote, `facts` of its environment, `own`
    if it is the queried one."""

    platform: str
    share: float
    own: bool
    facts: dict[str, str] = {}

    @property
    def name(self) -> str:
        return display_name(self.platform, self.facts)

    @property
    def words(self) -> str:
        return machine_words(self.facts)


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """Votes of the neighbours' winners on one parameter: value (as text) to share of weight.
    `open` is true if no value has two thirds."""

    parameter: str
    votes: dict[str, float]
    answer: str
    open: bool

    @property
    def against(self) -> bool:
        """True if another value than the answer's has two thirds."""
        return not self.open and max(self.votes, key=self.votes.__getitem__) != self.answer


#: Keys of the JSON document, in order.
_KEYS = """
    id pattern_id pattern_name platform op link answer expected_gain measured_gain confidence
    neighbours differences agreement evidence near_ties rejected warnings simulated time_unit tuner
    featurizer model own_model model_featurizer learned candidates default default_seconds created
    generation evidence_op pattern novelty insight within_interval own calls noise runnable machines
    machine meaning transfers counters platform_name why quantities computed
    """.split()  # noqa: SIM905 - a table of words


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """The evidence behind one recommendation; see docs/reference/json.md for the JSON keys.

    `learned` is the training data of the cost model that ranked, also of a replaced one (None: no
    model, or its card is not registered). `novelty` is one sentence on the distance of measured
    patterns, `evidence` counts the neighbours' runs by status, `near_ties` are configurations tied
    with the answer. `measured_gain` is the answer's, a factor over the default (None: not
    measured); `within_interval` is true if it is in the predicted 10..90 % interval (None: not
    measured, or not predicted). `own` has the stored runs of the answer and of the default on this
    very pattern, `machines` the instances whose runs voted, the most first, `machine` the
    description of the queried one (empty: any of its kind), `platform_name` its display name, `why`
    one sentence on the choice and its confidence, `computed` the factors of the gain, `meaning`
    that of the answer's values by parameter, `quantities` the derived ones of the answer and the
    default, `runnable` if the platform can be measured.
    """

    recommendation: Recommendation
    neighbours: list[NeighbourDetail] = []
    differences: list[Difference] = []
    agreement: list[Agreement] = []
    evidence: dict[str, int] = {}
    near_ties: list[dict[str, Any]] = []
    learned: ModelFacts | None = None
    pattern: PatternView = PatternView()
    novelty: str = ""
    measured_gain: float | None = None
    within_interval: bool | None = None
    own: list[OwnRuns] = []
    runnable: bool = False
    machines: list[MachineShare] = []
    machine: str = ""
    platform_name: str = ""
    meaning: dict[str, str] = {}
    quantities: list[QuantityView] = []
    why: str = ""
    computed: str = ""

    @property
    def answer(self) -> dict[str, Any]:
        """The recommended configuration, its parameters in order."""
        return dict(Config(self.recommendation.best))

    @property
    def expected_gain(self) -> float | None:
        """Predicted gain of the answer, a factor over the default."""
        first = self.recommendation.first
        return None if first is None else first.expected_gain

    @property
    def compared_gain(self) -> float | None:
        """The answer's gain by the evidence that simpler methods are compared by."""
        gain = self.recommendation.insight.answer_gain
        return self.expected_gain if gain is None else gain

    @property
    def compared_by(self) -> str:
        """The evidence of `compared_gain`: a tuner's own predictions cover its proposals alone."""
        tuned = self.recommendation.link == "tuner"
        return "the database's own ranking, not by the tuner" if tuned else "the same evidence"

    @property
    def changed_quantities(self) -> list[QuantityView]:
        """The derived quantities in which the answer differs from the default."""
        return [q for q in self.quantities if q.answer != q.default]

    @property
    def evidence_ops(self) -> list[str]:
        """The neighbours' operations, the one with most votes first."""
        main = self.recommendation.evidence_op
        return list(dict.fromkeys([main, *(n.op for n in self.neighbours if n.op)]))

    @property
    def default_failed(self) -> bool:
        """True if the default failed on this very pattern, so that gains are unknown."""
        return any(w.startswith(DEFAULT_FAILS) for w in self.recommendation.warnings)

    @property
    def sessions(self) -> str:
        """A warning if answer and default ran on this very pattern in different sessions, between
        which a machine may have changed; empty if they ran within an hour, in a simulator, or at
        unknown times."""
        if len(self.own) < 2 or any(o.first <= 0.0 or o.sources == ["simulator"] for o in self.own):
            return ""
        one, other = self.own[:2]
        apart_s = max(abs(one.first - other.first), abs(one.last - other.last))
        if apart_s <= _SESSION_S:
            return ""
        return (
            f"answer and default ran in different sessions (up to {apart_s / 3600:,.0f} h "
            "apart), and the gain compares their medians: measure both again to confirm"
        )

    @property
    def voted(self) -> bool:
        """True if neighbours voted on the answer."""
        return self.recommendation.link not in BESIDE

    @property
    def link_words(self) -> str:
        return link_words(
            self.recommendation.link, self.pattern.kind, then_measured=self.then_measured
        )

    @property
    def rests(self) -> str:
        return RESTS.get(self.recommendation.link, "")

    @property
    def beside(self) -> str:
        """Role of neighbours that did not vote; empty if they voted."""
        return BESIDE.get(self.recommendation.link, "")

    @property
    def preparation(self) -> str:
        measured = self.measured_gain is not None
        return preparation(self.recommendation.calls, measured=measured, kind=self.pattern.kind)

    @property
    def gain(self) -> float | None:
        """The answer's gain over the default: measured, else expected."""
        return self.expected_gain if self.measured_gain is None else self.measured_gain

    @property
    def is_default(self) -> bool:
        return Config(self.answer) == Config(self.recommendation.default)

    @property
    def transfers(self) -> list[TransferredSchedule]:
        """Schedules of neighbours that were transferred to the answer."""
        recommendation = self.recommendation
        return [
            one
            for one in recommendation.transfers
            if Config(one.config) == Config(recommendation.best)
        ]

    @property
    def as_good(self) -> str:
        """Reason why the configurations in `near_ties` count as equal."""
        return (
            "within the noise" if self.recommendation.noise > 0.0 else "no evidence of a difference"
        )

    @property
    def then_measured(self) -> bool:
        """True if the answer was ranked by other runs and then measured on the pattern itself."""
        return self.measured_gain is not None and self.recommendation.link != "measured"

    def document(self) -> dict[str, Any]:
        """The JSON document of answer and evidence; keys are stable (docs/reference/json.md)."""
        own = {*self.__struct_fields__, "answer", "expected_gain"}
        document = {k: getattr(self if k in own else self.recommendation, k) for k in _KEYS}
        return _plain(document, sparse=kind_of(self.pattern.kind).sparse)

    def __repr__(self) -> str:
        answered = self.recommendation
        what = f"{answered.op} on {answered.platform}, {answered.subject}"
        sure = answered.confidence
        return f"Explanation({answered.id!r}, {what}: {Config(self.answer)}, sure: {sure})"

    def _repr_html_(self) -> str:
        return html_of(self)

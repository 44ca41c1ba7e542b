"""What an explanation holds: `Explanation` and its parts. Filled by `embeddb.explain.explain`."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import Any

import msgspec

from embeddb.core.config import Config, Op
from embeddb.core.kinds import kind_of
from embeddb.core.repr_html import html_of
from embeddb.core.sizes import Sizes
from embeddb.core.wording import factor, many_of, one_of
from embeddb.explain.quantities import QuantityView
from embeddb.platforms.machines import display_name, machine_words
from embeddb.ranking.kernels.view import KernelView
from embeddb.ranking.recommendation import (
    DEFAULT_FAILS,
    Candidate,
    Recommendation,
    TransferredSchedule,
)
from embeddb.store.models import ModelFacts
from embeddb.store.provenance import Provenance

#: Each link of the fallback chain in words, for `link_words`.
LINK_WORDS = {
    "measured": "measured on this very {one}",
    "other-width": "measured on this very {one}, at another width",
    "neighbours": "measured on similar {many}",
    "model": "predicted by the cost model",
    "static-best": "the platform's best fixed choice",
    "default": "the platform's default, for want of evidence",
    "tuner": "proposed by the tuner that was asked for",
}
#: Runs that are so far apart are of two sessions.
_SESSION_S = 3600.0
#: What an answer of a link rests on.
RESTS = {
    "measured": "rests on its own measurements",
    "other-width": "rests on its own measurements at another width",
    "neighbours": "rests on measured patterns near it",
    "model": "rests on the cost model, which learned from all patterns",
    "static-best": "rests on the platform's average",
    "default": "rests on nothing that was measured",
    "tuner": "rests on whatever the tuner made of the evidence",
}
#: What the neighbours are to an answer on which they did not vote.
BESIDE = {
    "measured": "patterns near it, to compare",
    "other-width": "patterns near it, to compare",
    "model": "patterns near it, to compare",
    "static-best": "patterns near it, too few to vote",
    "default": "patterns near it, too few to vote",
    "tuner": "patterns near it, to compare",
}


def link_words(link: str, kind: str = "matrix", *, then_measured: bool = False) -> str:
    """A link of the fallback chain in words, for what is tuned, and whether its proposals were
    measured then."""
    known = LINK_WORDS.get(link)
    said = link if known is None else known.format(one=one_of(kind), many=many_of(kind))
    return f"{said}, then measured here" if then_measured and link != "measured" else said


def preparation(calls: float | None, *, measured: bool, kind: str = "matrix") -> str:
    """Whether bringing a matrix into a configuration's format counts, in words."""
    if not kind_of(kind).sparse:
        return f"gains are per call: a {one_of(kind)} has no format to prepare"
    if calls is None:
        return (
            "gains are per call; preparing a format is left out (ask with --calls to share it out)"
        )
    told = f"preparing a format counts where its cost is known, shared out over {calls:,.0f} calls"
    return told + ("; the measured times leave it out" if measured else "")


def fails(candidate: Candidate) -> str:
    """The chance that a proposal fails, and on how many measured patterns it did."""
    if candidate.failure is None:
        return "-"
    seen = f", {candidate.failed_on} of {candidate.tried_on}" if candidate.tried_on else ""
    return f"{100 * candidate.failure:.0f} %{seen}"


def paid_off(calls: float | None) -> str:
    """From which call on preparing has paid off, for a table: `at once`, `23`, `-`."""
    if calls is None:
        return "-"
    return "at once" if calls == 0 else f"{math.ceil(calls):,}"


def best_here(made: Recommendation, near: NeighbourEvidence) -> dict[str, Any]:
    """The fastest configuration of a neighbour as it would run here; empty if it cannot."""
    moved = (one.config for one in made.transfers if one.pattern_id == near.pattern_id)
    return next(moved, near.best if Op.parse(made.op).workload.copies else {})


def _plain(document: Mapping[str, Any], *, sparse: bool) -> dict[str, Any]:
    """Return the document as plain values; that of a sparse matrix without the keys that other
    kinds of workload added."""
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
    """A loop nest as text: its `loops` from the outermost and its `body` as they were written, and
    the loops as the answer has them, the generated ones."""

    loops: list[str]
    body: list[str]
    answer: list[str]


class PatternView(msgspec.Struct, frozen=True, kw_only=True):
    """The pattern asked about. Sizes are -1 where unknown. `features` are its statistics as the
    neighbours were found by them (raw values by name; empty where none were needed); `thumbnail`
    is the 32x32 density map, uint8[1024] row-major on a log scale, or empty. What is no matrix has
    `named` sizes; `nest` is there for a loop nest that the store has, `kernel` for such a tensor
    kernel or program."""

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


class NeighbourEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """What one neighbour contributes. Gains are factors over that neighbour's own default; None
    where the configuration did not run there (or its default did not).

    `ratios` are the seconds of its configurations that ran over those of its best, ascending,
    thinned to 200 where there are more; best, default and answer are always among them, the latter
    two at `default_at` and `answer_at` (None: did not run there). `failed` counts configurations by
    how they failed. Sizes are -1 where unknown; `thumbnail` is uint8[1024] or empty. `provenance`
    says whose its runs are, in a database that others pushed into.
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

    @property
    def sizes(self) -> Sizes:
        return Sizes(self.m, self.n, self.nnz).naming(self.named)


class OwnRuns(msgspec.Struct, frozen=True, kw_only=True):
    """What is stored of one configuration on the very pattern, at the width asked about: `runs`
    that are ok with `times` repeats in all, `seconds` what they tell together (`TimingSummary`),
    `fastest` and `slowest` the extremes of all repeats, `first` and `last` when they ran, seconds
    since the epoch (0: not known), `sources` where their times come from, `provenance` whose they
    are, in a database that others pushed into."""

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
    """A feature in which the query stands apart, in standard deviations of the partition."""

    feature: str
    query: float
    neighbours: float
    deviations: float


class MachineShare(msgspec.Struct, frozen=True, kw_only=True):
    """An instance whose runs an answer rests on: `share` of the vote, `facts` as its environment
    has them, `own` whether it is the one asked about."""

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
    """How the neighbours' winners vote on one parameter: value (as text) to share of weight.
    `open` is true where no value has two thirds."""

    parameter: str
    votes: dict[str, float]
    answer: str
    open: bool

    @property
    def against(self) -> bool:
        """Whether two thirds go to another value than the answer's."""
        return not self.open and max(self.votes, key=self.votes.__getitem__) != self.answer


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """The evidence behind one recommendation; see docs/reference/json.md for the JSON keys.

    `learned` is what the cost model that ranked had learned from, also after it was replaced (None:
    no model, or its card was never registered). `novelty` says in one sentence how near the
    measured patterns are, `evidence` counts the neighbours' runs by status, `near_ties` are the
    configurations that cannot be told from the answer. `measured_gain` is the answer's, a factor
    over the default (None: not measured), and `within_interval` says whether it lies in the
    predicted 10..90 % interval (None: not measured, or nothing was predicted). `own` holds what is
    stored of the answer and of the default on this very pattern, where they ran, `machines` the
    instances whose runs voted, the most first, `machine` the words of the one asked about (empty:
    any of its kind), `platform_name` its name for people, `why` one sentence on what the
    answer was chosen by and how sure it is, `meaning` what the answer's values mean, by parameter,
    `quantities` the derived ones of the answer and the default, where the platform defines any,
    `runnable` whether the platform can be measured.
    """

    recommendation: Recommendation
    neighbours: list[NeighbourEvidence] = []
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

    @property
    def answer(self) -> dict[str, Any]:
        """The configuration that is answered, its parameters in order."""
        return dict(Config(self.recommendation.best))

    @property
    def expected_gain(self) -> float | None:
        """What the answer was promised to gain: a factor over the default."""
        first = self.recommendation.first
        return None if first is None else first.expected_gain

    @property
    def compared_gain(self) -> float | None:
        """The answer's gain by the evidence that simpler methods are judged by."""
        told = self.recommendation.insight.answer_gain
        return self.expected_gain if told is None else told

    @property
    def evidence_ops(self) -> list[str]:
        """The operations that the neighbours ran; the one that most of the vote ran comes first."""
        main = self.recommendation.evidence_op
        return list(dict.fromkeys([main, *(n.op for n in self.neighbours if n.op)]))

    @property
    def default_failed(self) -> bool:
        """Whether the default ran on this very pattern and failed: no gain over it is known."""
        return any(w.startswith(DEFAULT_FAILS) for w in self.recommendation.warnings)

    @property
    def sessions(self) -> str:
        """What is to be borne in mind where answer and default ran on this very pattern at other
        times, between which a machine may have changed; empty where they ran within an hour, in a
        simulator, or when is not known."""
        if len(self.own) < 2 or any(o.first <= 0.0 or o.sources == ["simulator"] for o in self.own):
            return ""
        one, other = self.own[:2]
        apart_s = max(abs(one.first - other.first), abs(one.last - other.last))
        if apart_s <= _SESSION_S:
            return ""
        return (
            f"answer and default did not always run together (up to {apart_s / 3600:,.0f} h "
            "apart), and the gain compares their medians: measure both once more to be sure"
        )

    @property
    def voted(self) -> bool:
        """Whether its neighbours had a say."""
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
        """How the neighbours relate to an answer on which they did not vote; empty where they
        did."""
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
        """The schedules of neighbours that became the answer."""
        made = self.recommendation
        return [one for one in made.transfers if Config(one.config) == Config(made.best)]

    @property
    def as_good(self) -> str:
        """What makes `near_ties` ties."""
        return "within the noise" if self.recommendation.noise > 0.0 else "no difference is known"

    @property
    def then_measured(self) -> bool:
        """Whether what others' runs proposed was then measured on the pattern itself."""
        return self.measured_gain is not None and self.recommendation.link != "measured"

    def document(self) -> dict[str, Any]:
        """The released JSON form: what was answered and the evidence for it, in one object; keys
        keep their meaning (docs/reference/json.md)."""
        made = self.recommendation
        document: dict[str, Any] = {
            "id": made.id,
            "pattern_id": made.pattern_id,
            "pattern_name": made.pattern_name,
            "platform": made.platform,
            "op": made.op,
            "link": made.link,
            "answer": self.answer,
            "expected_gain": self.expected_gain,
            "measured_gain": self.measured_gain,
            "confidence": made.confidence,
            "neighbours": self.neighbours,
            "differences": self.differences,
            "agreement": self.agreement,
            "evidence": self.evidence,
            "near_ties": self.near_ties,
            "rejected": made.rejected,
            "warnings": made.warnings,
            "simulated": made.simulated,
            "time_unit": made.time_unit,
            "tuner": made.tuner,
            "featurizer": made.featurizer,
            "model": made.model,
            "model_featurizer": made.model_featurizer,
            "learned": self.learned,
            "candidates": made.candidates,
            "default": made.default,
            "default_seconds": made.default_seconds,
            "created": made.created,
            "generation": made.generation,
            "evidence_op": made.evidence_op,
            "pattern": self.pattern,
            "novelty": self.novelty,
            "insight": made.insight,
            "within_interval": self.within_interval,
            "own": self.own,
            "calls": made.calls,
            "noise": made.noise,
            "runnable": self.runnable,
            "machines": self.machines,
            "machine": self.machine,
            "meaning": self.meaning,
            "quantities": self.quantities,
            "transfers": made.transfers,
            "counters": made.counters,
            "platform_name": self.platform_name,
            "why": self.why,
        }
        return _plain(document, sparse=kind_of(self.pattern.kind).sparse)

    def __repr__(self) -> str:
        made = self.recommendation
        what = f"{made.op} on {made.platform}, {made.subject}"
        return f"Explanation({made.id!r}, {what}: {Config(self.answer)}, sure: {made.confidence})"

    def _repr_html_(self) -> str:
        return html_of(self)


def why(e: Explanation) -> str:
    """By what the answer was chosen, what it gains, and how sure that is."""
    made = e.recommendation
    return f"{_chosen(e)} Confidence: {made.confidence}{_first_doubt(e)}."


def _chosen(e: Explanation) -> str:
    made, one, many = e.recommendation, one_of(e.pattern.kind), many_of(e.pattern.kind)
    over = "" if e.expected_gain is None else f": {factor(e.expected_gain)} over the default"
    if made.link == "default":
        return "Nothing comparable was measured, so the default is kept."
    if made.link == "measured" and Config(e.answer) == Config(made.default):
        return f"Nothing that was measured on this {one} is faster than the default."
    if made.link in ("neighbours", "model"):
        return _predicted(e)
    return {
        "measured": f"It is the fastest of all that was measured on this {one}{over}.",
        "other-width": f"It is the fastest measured on this {one} at another width{over}.",
        "static-best": f"It is the best on average over all measured {many}{over}.",
    }.get(made.link, f"The tuner {made.tuner} proposed it{over}.")


def _predicted(e: Explanation) -> str:
    made, near = e.recommendation, e.neighbours
    gain = None if e.expected_gain is None else factor(e.expected_gain)
    if not near or not e.voted:
        over = f": {gain} over the default" if gain else ""
        return f"The cost model predicts that it is the fastest{over}."
    similar = f"{len(near)} most similar measured {many_of(e.pattern.kind)}"
    if len(near) == 1:
        similar = f"most similar measured {one_of(e.pattern.kind)}"
    if Config(e.answer) == Config(made.default):
        return (
            f"By the {similar}, no other configuration is expected to gain enough over the "
            "default to replace it unmeasured."
        )
    gains = [n.answer_gain for n in near if n.answer_gain is not None]
    if not gains:
        return f"None of the {similar} ran it; what they ran speaks for it."
    faster, median = sum(gain > 1.0 for gain in gains), factor(statistics.median(gains))
    return (
        f"It beat the default on {faster} of the {len(gains)} that ran it among the {similar}; "
        f"their median gain is {median}{f', and {gain} is expected here' if gain else ''}."
    )


def _first_doubt(e: Explanation) -> str:
    made = e.recommendation
    if made.confidence == "high" or not made.warnings:
        return ""
    return f", because {made.warnings[0].partition('; ')[0].removesuffix('.')}"

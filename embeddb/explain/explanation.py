"""What an explanation holds: `Explanation` and its parts. Filled by `embeddb.explain.explain`."""

from __future__ import annotations

import math
from importlib import import_module
from typing import Any

import msgspec

from embeddb.core.config import Config
from embeddb.query.diagnostics import Diagnostics
from embeddb.query.query import Candidate
from embeddb.store.model_facts import ModelFacts

__all__ = [
    "BESIDE",
    "LINK_WORDS",
    "RESTS",
    "Agreement",
    "Difference",
    "Explanation",
    "MachineShare",
    "NeighbourEvidence",
    "OwnRuns",
    "PatternView",
    "paid_off",
    "preparation",
]

#: Each link of the fallback chain in words.
LINK_WORDS = {
    "measured": "measured on this very matrix",
    "other-width": "measured on this very matrix, at another width",
    "neighbours": "measured on similar matrices",
    "model": "predicted by the cost model",
    "static-best": "the platform's best fixed choice",
    "default": "the platform's default, for want of evidence",
}
#: What an answer of a link rests on.
RESTS = {
    "measured": "rests on its own measurements",
    "other-width": "rests on its own measurements at another width",
    "neighbours": "rests on measured patterns near it",
    "model": "rests on the cost model, which learned from all patterns",
    "static-best": "rests on the platform's average",
    "default": "rests on nothing that was measured",
}
#: What the neighbours are to an answer on which they did not vote.
BESIDE = {
    "measured": "patterns near it, to compare",
    "other-width": "patterns near it, to compare",
    "model": "patterns near it, to compare",
    "static-best": "patterns near it, too few to vote",
    "default": "patterns near it, too few to vote",
}


def preparation(calls: float | None, *, measured: bool) -> str:
    """Whether bringing a matrix into a configuration's format counts, in words."""
    if calls is None:
        return (
            "gains are per call; preparing a format is left out (ask with --calls to share it out)"
        )
    told = f"preparing a format counts where its cost is known, shared out over {calls:,.0f} calls"
    return told + ("; the measured times leave it out" if measured else "")


def paid_off(calls: float | None) -> str:
    """From which call on preparing has paid off, for a table: `at once`, `23`, `-`."""
    if calls is None:
        return "-"
    return "at once" if calls == 0 else f"{math.ceil(calls):,}"


class PatternView(msgspec.Struct, frozen=True, kw_only=True):
    """The pattern asked about. Sizes are -1 where unknown. `features` are its statistics as the
    neighbours were found by them (raw values by name; empty where none were needed); `thumbnail`
    is the 32x32 density map, uint8[1024] row-major on a log scale, or empty."""

    id: str = ""
    name: str = ""
    group: str = ""
    m: int = -1
    n: int = -1
    nnz: int = -1
    features: dict[str, float] = {}
    thumbnail: bytes = b""


class NeighbourEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """What one neighbour contributes. Gains are factors over that neighbour's own default; None
    where the configuration did not run there (or its default did not).

    `ratios` are the seconds of its configurations that ran over those of its best, ascending,
    thinned to 200 where there are more; best, default and answer are always among them, the latter
    two at `default_at` and `answer_at` (None: did not run there). `failed` counts configurations by
    how they failed. Sizes are -1 where unknown; `thumbnail` is uint8[1024] or empty.
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
    ratios: list[float] = []
    default_at: int | None = None
    answer_at: int | None = None


class OwnRuns(msgspec.Struct, frozen=True, kw_only=True):
    """What is stored of one configuration on the very pattern, at the width asked about: `runs`
    that are ok with `times` repeats in all, `seconds` the median over runs of their medians,
    `fastest` and `slowest` the extremes of all repeats, `first` and `last` when they ran, seconds
    since the epoch (0: not known), `sources` where their times come from."""

    config: dict[str, Any]
    runs: int
    times: int
    seconds: float
    fastest: float
    slowest: float
    first: float
    last: float
    sources: list[str]


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
    def words(self) -> str:
        """Processor, compiler and threads, as far as they are told."""
        told = [self.facts.get(name, "") for name in ("cpu", "compiler")]
        if threads := self.facts.get("threads"):
            told.append(f"{threads} {'thread' if threads == '1' else 'threads'}")
        march = [f for f in self.facts.get("flags", "").split() if f.startswith("-march=")]
        return ", ".join([t for t in told if t] + march)


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """How the neighbours' winners vote on one parameter: value (as text) to share of weight.
    `open` is true where no value has two thirds."""

    parameter: str
    votes: dict[str, float]
    answer: str
    open: bool


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """The evidence behind one recommendation; see docs/cli.md for the JSON keys. `tuner`,
    `featurizer` and `model` say what ranked, in which features and with which cost model (empty:
    with none); `learned` is what that model had learned from, also after it was replaced (None: no
    model, or its card was never registered).

    `novelty` says in one sentence how near the measured patterns are. `within_interval` says
    whether the answer's measured gain lies in its predicted 10..90 % interval (None: not measured,
    or nothing was predicted). `created` is seconds since the epoch, `generation` that of the store
    when the answer was given, `evidence_op` the operation the neighbours ran, `default_seconds`
    what the default took here where it was measured. `own` holds what is stored of the answer and
    of the default on this very pattern, where they ran. `calls` is the number of calls over which
    preparation was shared out (None: it was left out), `machines` are the instances whose runs
    voted, the most first, `noise` the spread between repeated runs
    (0: nothing was run twice), `runnable` whether the platform can be measured at all.
    """

    id: str
    pattern_id: str
    pattern_name: str
    platform: str
    op: str
    link: str
    answer: dict[str, Any]
    expected_gain: float | None
    measured_gain: float | None
    confidence: str
    neighbours: list[NeighbourEvidence]
    differences: list[Difference]
    agreement: list[Agreement]
    evidence: dict[str, int]
    near_ties: list[dict[str, Any]]
    rejected: dict[str, str]
    warnings: list[str]
    simulated: bool
    tuner: str = ""
    featurizer: str = ""
    model: str = ""
    model_featurizer: str = ""
    learned: ModelFacts | None = None
    candidates: list[Candidate] = []
    default: dict[str, Any] = {}
    default_seconds: float | None = None
    created: float = 0.0
    generation: int = 0
    evidence_op: str = ""
    pattern: PatternView = PatternView()
    novelty: str = ""
    insight: Diagnostics = Diagnostics()
    within_interval: bool | None = None
    own: list[OwnRuns] = []
    calls: float | None = None
    noise: float = 0.0
    runnable: bool = False
    machines: list[MachineShare] = []

    @property
    def compared_gain(self) -> float | None:
        """The answer's gain by the evidence that simpler methods are judged by."""
        told = self.insight.answer_gain
        return self.expected_gain if told is None else told

    @property
    def voted(self) -> bool:
        """Whether its neighbours had a say."""
        return self.link not in BESIDE

    @property
    def as_good(self) -> str:
        """What makes `near_ties` ties."""
        return "within the noise" if self.noise > 0.0 else "no difference is known"

    def __repr__(self) -> str:
        what = f"{self.op} on {self.platform}, {self.pattern_name or self.pattern_id}"
        return f"Explanation({self.id!r}, {what}: {Config(self.answer)}, sure: {self.confidence})"

    def _repr_html_(self) -> str:
        return str(import_module("embeddb.ui.notebook").explanation_html(self))

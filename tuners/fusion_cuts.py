"""Cuts of a tensor program: annealing steps, times predicted by a model of kernels and corrected by
measurements, the shortlist, and the outcome of tuning."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from statistics import median
from typing import Protocol

import msgspec
import numpy as np

from embeddb.core.errors import ModelError, TensorError
from embeddb.core.records import HARDWARE_S, IN_A_ROW, Measurement
from embeddb.store import Store
from embeddb.tensors.edges import CUT, Cut, edges_of
from embeddb.tensors.partition import CutJudge, near_cut, placed_kernel, random_cut
from embeddb.tensors.tensor_graph import TensorGraph
from tuners.search import finite_median, speedup

#: Weight of the median of all kernels; a kernel of the same operations would have weight 1.
_PRIOR = 0.05


class Corrections:
    """Correction factors of predicted kernel times, by the kernels' members (places in the
    program). The residuals of kernels with common operations are correlated: a convolution slower
    than predicted stays so with another operation fused to it. The factor of a kernel is the
    geometric mean of measured over predicted times, weighted by squared Jaccard similarity of the
    members, with their median as a weak prior."""

    def __init__(self) -> None:
        self._residuals: dict[int, float] = {}  # log ratio by members as bits
        self._median = 0.0

    def learn(self, members: Iterable[int], ratio: float) -> None:
        """Add a kernel that took `ratio` times as long as predicted."""
        self._residuals[_bits(members)] = math.log(ratio)
        self._median = median(self._residuals.values())

    def factor(self, members: Iterable[int]) -> float:
        """The expected ratio of time and prediction for an unmeasured kernel; 1 without data."""
        own = _bits(members)
        weight, total = _PRIOR, _PRIOR * self._median
        for bits, residual in self._residuals.items():
            if shared := (bits & own).bit_count():
                similarity = (shared / (bits | own).bit_count()) ** 2
                weight, total = weight + similarity, total + similarity * residual
        return math.exp(total / weight)


def _bits(members: Iterable[int]) -> int:
    return sum(1 << place for place in members)


@dataclass(frozen=True, slots=True)
class CutSteps:
    """`tuners.search.Steps` among the cuts of a program: one edge toggled, or any cut."""

    program: TensorGraph

    def near(self, state: Cut, rng: np.random.Generator) -> Cut:
        return near_cut(self.program, state, rng)

    def anywhere(self, rng: np.random.Generator) -> Cut:
        return random_cut(self.program, rng)


class PredictsKernels(Protocol):
    """A model of op `fused` (`embeddb.cost_model.graph_model.GraphModel`)."""

    @property
    def version(self) -> str:
        """The digest of its weights: equal versions, equal predictions."""

    def seconds(self, kernel: TensorGraph) -> float:
        """The predicted time. Raises: ModelError where it cannot predict."""


class CutPrices:
    """Times of the cuts of a program, sums of predicted kernel `seconds`. Each distinct kernel is
    predicted once. `learn` adds measured times, which change `corrected` alone. `measured` are
    seconds by kernel id, infinite for failures."""

    def __init__(self, program: TensorGraph, seconds: Callable[[TensorGraph], float]) -> None:
        self.program = program
        self.measured: dict[str, float] = {}
        self._model = seconds
        self._kernel = cache(lambda places: placed_kernel(program, places).kernel)
        self._predicted: dict[str, float] = {}
        self._corrections = Corrections()

    @property
    def kernels(self) -> int:
        """The number of distinct predicted kernels."""
        return len(self._predicted)

    def learn(self, cut: Cut, kernel_seconds: Mapping[str, float]) -> None:
        """Add a cut that ran, with the times of its kernels that are not yet in `measured`."""
        self.measured |= kernel_seconds
        for members, kernel in self._kernels_of(cut):
            took, predicted = self.measured.get(kernel.id, math.inf), self._predict(kernel)
            if 0 < took < math.inf and predicted < math.inf:
                self._corrections.learn(members, took / predicted)

    def seconds(self, cut: Cut) -> float:
        """The predicted time of a legal cut; infinite if a kernel has no prediction."""
        return sum(self._predict(kernel) for _, kernel in self._kernels_of(cut))

    def corrected(self, cut: Cut) -> float:
        """The time by measured kernels, and corrected predictions of the others."""
        return sum(
            self.measured[kernel.id]
            if kernel.id in self.measured
            else self._predict(kernel) * self._corrections.factor(members)
            for members, kernel in self._kernels_of(cut)
        )

    def _kernels_of(self, cut: Cut) -> Iterator[tuple[tuple[int, ...], TensorGraph]]:
        """The members of each kernel, places in the program, and the kernel."""
        members: dict[int, list[int]] = {}
        for place, label in enumerate(edges_of(self.program).labels(cut)):
            if label >= 0:
                members.setdefault(label, []).append(place)
        for places in map(tuple, members.values()):
            yield places, self._kernel(places)

    def _predict(self, kernel: TensorGraph) -> float:
        if kernel.id not in self._predicted:
            try:
                seconds = self._model(kernel)
            except ModelError:
                seconds = math.inf
            self._predicted[kernel.id] = seconds if 0 < seconds < math.inf else math.inf
        return self._predicted[kernel.id]


#: Neighbours from which one is chosen to run.
DRAWN = 12


class ScreenedSteps:
    """`tuners.search.Steps` to the best of `DRAWN` new neighbours by corrected price. A wrong
    prediction misleads once: then the kernel is measured.

    Beyond the paper ("A Learned Performance Model for Tensor Processing Units", Section 7.3), where
    the hardware runs the model's best cuts without learning from them.
    """

    def __init__(self, prices: CutPrices) -> None:
        self.prices = prices
        self._ran: set[Cut] = set()
        self._steps = CutSteps(prices.program)

    def learn(self, cut: Cut, kernel_seconds: Mapping[str, float]) -> None:
        """Add a cut that ran (`CutPrices.learn`)."""
        self._ran.add(cut)
        self.prices.learn(cut, kernel_seconds)

    def near(self, state: Cut, rng: np.random.Generator) -> Cut:
        """The best new neighbour; a known one if there is no other."""
        drawn = [self._steps.near(state, rng) for _ in range(DRAWN)]
        fresh = [cut for cut in dict.fromkeys(drawn) if cut not in self._ran]
        return min(fresh, key=self.prices.corrected) if fresh else drawn[0]

    def anywhere(self, rng: np.random.Generator) -> Cut:
        return self._steps.anywhere(rng)


#: Most cuts of a shortlist; ten minutes of hardware run a few hundred.
MOST_KEPT = 500
#: Longer notes are ignored.
_MOST_BYTES = 1 << 20


class _Note(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    model: str
    spent_s: float
    seen: int
    current: str
    cuts: list[str]
    seconds: list[float]


class Shortlist:
    """The best cuts by predicted `seconds` of the `model` of this version, after `spent_s` of
    annealing over `seen` cuts; `current` is the state of the walk (None: not started)."""

    def __init__(self, model: str) -> None:
        self.model = model
        self.seconds: dict[Cut, float] = {}
        self.spent_s, self.seen = 0.0, 0
        self.current: Cut | None = None

    def add(self, cut: Cut, seconds: float) -> None:
        """Add a new cut."""
        self.seen += 1
        if math.isfinite(seconds):
            self.seconds[cut] = seconds
        if len(self.seconds) > 2 * MOST_KEPT:
            self.seconds = dict(self.best())

    def best(self) -> list[tuple[Cut, float]]:
        """At most `MOST_KEPT`, the fastest first."""
        return heapq.nsmallest(MOST_KEPT, self.seconds.items(), key=lambda item: item[1])

    def save(self, store: Store, key: str) -> None:
        """Write a note to the store, unless it is read-only."""
        if store.readonly or self.current is None:
            return
        best = self.best()
        note = _Note(
            model=self.model,
            spent_s=self.spent_s,
            seen=self.seen,
            current=self.current.text,
            cuts=[cut.text for cut, _ in best],
            seconds=[seconds for _, seconds in best],
        )
        store.notes.put(key, msgspec.json.encode(note))


def stored_shortlist(store: Store, key: str, program: TensorGraph, model: str) -> Shortlist:
    """The shortlist of this program and model under the key; empty without a valid note."""
    raw = store.notes.get(key)
    if raw is None or len(raw) > _MOST_BYTES:
        return Shortlist(model)
    try:
        note = msgspec.json.decode(raw, type=_Note)
        cuts = dict(zip((_cut(program, text) for text in note.cuts), note.seconds, strict=True))
        current = _cut(program, note.current)
    except (msgspec.MsgspecError, TensorError, ValueError):
        return Shortlist(model)
    if note.model != model or not all(0 < s < math.inf for s in (*note.seconds, note.spent_s)):
        return Shortlist(model)
    shortlist = Shortlist(model)
    shortlist.seconds, shortlist.current = cuts, current
    shortlist.spent_s, shortlist.seen = note.spent_s, note.seen
    return shortlist


def _cut(program: TensorGraph, text: str) -> Cut:
    """Read a cut. Raises: TensorError for an illegal one."""
    if reason := CutJudge(program).reason({CUT: text}):
        raise TensorError(reason)
    return Cut.read(text, len(edges_of(program).pairs))


@dataclass(frozen=True, slots=True)
class Tried:
    """A cut with its predicted time (None: no model) and its measured `seconds`, infinite if it did
    not run or failed with an `error`; `in_a_row` is the processor time of its kernels called one
    after the other, if measured."""

    cut: Cut
    predicted_s: float | None = None
    seconds: float = math.inf
    kernels: int = 0
    hardware_s: float = 0.0
    in_a_row: float | None = None
    error: str = ""

    @classmethod
    def of(cls, cut: Cut, measurement: Measurement) -> Tried:
        context = measurement.context
        in_a_row = context.get(IN_A_ROW)
        return cls(
            cut,
            seconds=measurement.seconds,
            kernels=int(context.get("kernels", 0)),
            hardware_s=float(context.get(HARDWARE_S, 0.0)),
            in_a_row=in_a_row if isinstance(in_a_row, float) else None,
            error="" if measurement.ok else f"{measurement.status}: {measurement.error}",
        )


@dataclass(slots=True, kw_only=True)
class FusionTuned:
    """The outcome of tuning one program on one machine.

    `defaults` are the program whole, and the cut nearest to the compiler's. `tried` are the cuts of
    the search in the order of their runs, earlier sessions included; `shortlist` the best by the
    model. `settled` is the fastest after the fastest ran `again` (`tune_fusion.settled`), `rounds`
    are further runs of the contenders with all kernels timed anew.

    `model_s` and `hardware_s` are the spent budgets, earlier sessions included; `reference_s` is
    the cost of the defaults, `rounds_s` that of `again` and the rounds now. `fresh` cuts and
    `kernels` were measured now, without these; `predicted_cuts` were priced by the `model` of this
    version (empty: hardware alone), from `predicted_kernels` distinct kernels in this session.
    """

    program: TensorGraph
    platform: str
    model: str = ""
    defaults: list[Tried] = field(default_factory=list)
    shortlist: list[Tried] = field(default_factory=list)
    tried: list[Tried] = field(default_factory=list)
    settled: Cut | None = None
    again: list[Tried] = field(default_factory=list)
    rounds: dict[Cut, list[Tried]] = field(default_factory=dict)
    predicted_cuts: int = 0
    predicted_kernels: int = 0
    fresh: int = 0
    kernels: int = 0
    model_s: float = 0.0
    hardware_s: float = 0.0
    reference_s: float = 0.0
    rounds_s: float = 0.0

    @property
    def best_predicted(self) -> Tried | None:
        """The best cut by the model, with its measured time if it ran; None without a model."""
        if not self.shortlist:
            return None
        first = self.shortlist[0]
        ran = (one for one in (*self.defaults, *self.tried) if one.cut == first.cut)
        return next(ran, first)

    @property
    def best(self) -> Tried | None:
        """The `settled` cut, else the fastest by one run each, the defaults included; None if none
        ran."""
        ran = [one for one in self.ran if self.settled in (None, one.cut)]
        return min(ran, key=lambda one: one.seconds, default=None)

    @property
    def ran(self) -> list[Tried]:
        """The cuts with a time, the defaults included."""
        return [one for one in (*self.defaults, *self.tried) if math.isfinite(one.seconds)]

    @property
    def failed(self) -> list[Tried]:
        return [one for one in self.tried if one.error]

    @property
    def contenders(self) -> list[Tried]:
        """The defaults and the fastest, each once."""
        best = [] if self.best is None else [self.best]
        return list({one.cut: one for one in (*self.defaults, *best)}.values())

    def again_s(self, cut: Cut) -> float:
        """The median of its rounds; infinite without any."""
        return finite_median(one.seconds for one in self.rounds.get(cut, ()))

    def in_a_row_s(self, cut: Cut) -> float:
        """The median of its rounds, one kernel called after the other; infinite without any."""
        rounds = (one.in_a_row for one in self.rounds.get(cut, ()))
        return finite_median(seconds for seconds in rounds if seconds is not None)

    @property
    def default(self) -> Tried:
        """The faster of the defaults by the rounds, the base of the gain."""
        return min(self.defaults, key=lambda one: self.again_s(one.cut))

    @property
    def gain(self) -> float | None:
        """Speedup of the fastest over the default by the rounds; None without rounds."""
        if self.best is None or not self.rounds:
            return None
        return speedup(self.again_s(self.default.cut), self.again_s(self.best.cut))

"""Cuts of a tensor program: steps between them, times predicted by a model of kernels and corrected
by those that ran, the best so far, and the outcome of tuning."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Protocol

import msgspec
import numpy as np

from embeddb.core.errors import ModelError, TensorError
from embeddb.core.records import IN_A_ROW, Measurement
from embeddb.store import Store
from embeddb.tensors.edges import CUT, Cut, edges_of
from embeddb.tensors.partition import CutJudge, near_cut, placed_kernel, random_cut
from embeddb.tensors.tensor_graph import TensorGraph
from indexer.runners.base import HARDWARE_S

#: What the median of all kernels weighs beside those that share operations; a kernel of the same
#: operations would weigh 1.
_PRIOR = 0.05


class Corrections:
    """Of kernels by their members, places in the program. What a model misses of a kernel it mostly
    misses of the next one with the same operations, too: a convolution that is slower than it says
    stays so with another operation fused to it. The factor of a kernel is a mean, in logarithms, of
    what the kernels that ran took over what the model said of them, each with the square of its
    Jaccard similarity to the members as weight, and little of the median of all."""

    def __init__(self) -> None:
        self._off: dict[int, float] = {}  # by members as bits: the logarithm
        self._median = 0.0

    def learn(self, members: Iterable[int], ratio: float) -> None:
        """A kernel took `ratio` times as long as the model said."""
        self._off[_bits(members)] = math.log(ratio)
        self._median = median(self._off.values())

    def factor(self, members: Iterable[int]) -> float:
        """By which the model is off for a kernel that did not run; 1 where nothing ran."""
        own = _bits(members)
        weight, total = _PRIOR, _PRIOR * self._median
        for bits, off in self._off.items():
            if shared := (bits & own).bit_count():
                alike = (shared / (bits | own).bit_count()) ** 2
                weight, total = weight + alike, total + alike * off
        return math.exp(total / weight)


def _bits(members: Iterable[int]) -> int:
    return sum(1 << place for place in members)


@dataclass(frozen=True, slots=True)
class CutSteps:
    """Of one program: an edge turned, or any cut (`tuners.search.Steps`)."""

    program: TensorGraph

    def near(self, state: Cut, rng: np.random.Generator) -> Cut:
        return near_cut(self.program, state, rng)

    def anywhere(self, rng: np.random.Generator) -> Cut:
        return random_cut(self.program, rng)


class PredictsKernels(Protocol):
    """A model of op `fused` (`embeddb.cost_model.graph_model.GraphModel`)."""

    @property
    def version(self) -> str:
        """Of its weights: what it says of a kernel is the same under the same version."""

    def seconds(self, kernel: TensorGraph) -> float:
        """Raises: ModelError where it cannot say."""


class CutPrices:
    """Of one program. Each kernel is predicted once: neighbouring cuts share all but a few, and
    equal ones are predicted by id. Once cuts ran and are `told`, `corrected` prices go by that,
    too; what the model says does not change.
    """

    def __init__(self, program: TensorGraph, model: PredictsKernels) -> None:
        self.program, self.model = program, model
        self._kernels: dict[tuple[int, ...], TensorGraph] = {}
        self._said: dict[str, float] = {}
        self._known: dict[str, float] = {}
        self._corrections = Corrections()

    @property
    def kernels(self) -> int:
        """Different kernels that were predicted."""
        return len(self._said)

    @property
    def known(self) -> Mapping[str, float]:
        """Seconds by id of the kernels that are told; infinite for what fails."""
        return self._known

    def told(self, cut: Cut, kernel_seconds: Mapping[str, float]) -> None:
        """A cut ran. Kernels by id, of this cut those that are not known, take so long; infinite
        for what fails."""
        self._known |= kernel_seconds
        for members, kernel in self._of(cut):
            took, said = self._known.get(kernel.id, math.inf), self._predicted(kernel)
            if 0 < took < math.inf and said < math.inf:
                self._corrections.learn(members, took / said)

    def seconds(self, cut: Cut) -> float:
        """What the model says of a legal cut; infinite if it cannot say what one of its kernels
        takes."""
        return sum(self._predicted(kernel) for _, kernel in self._of(cut))

    def corrected(self, cut: Cut) -> float:
        """The same, but kernels that are known count as what they take, and others as the model
        says times how far it was off for those that share their operations."""
        return sum(
            self._known[kernel.id]
            if kernel.id in self._known
            else self._predicted(kernel) * self._corrections.factor(members)
            for members, kernel in self._of(cut)
        )

    def _of(self, cut: Cut) -> Iterator[tuple[tuple[int, ...], TensorGraph]]:
        """The members of each kernel, places in the program, and the kernel."""
        members: dict[int, list[int]] = {}
        for place, label in enumerate(edges_of(self.program).labels(cut)):
            if label >= 0:
                members.setdefault(label, []).append(place)
        for places in map(tuple, members.values()):
            if places not in self._kernels:
                self._kernels[places] = placed_kernel(self.program, places).kernel
            yield places, self._kernels[places]

    def _predicted(self, kernel: TensorGraph) -> float:
        """Asked once."""
        if kernel.id not in self._said:
            try:
                seconds = self.model.seconds(kernel)
            except ModelError:
                seconds = math.inf
            self._said[kernel.id] = seconds if 0 < seconds < math.inf else math.inf
        return self._said[kernel.id]


#: Neighbours of which one is run.
DRAWN = 12


class ScreenedSteps:
    """Of one program (`tuners.search.Steps`): of `DRAWN` neighbours that did not run,
    the one whose price, corrected by what ran, is least. Where the model is wrong about a kernel,
    that leads astray once: then the kernel is known.

    Beyond the paper ("A Learned Performance Model for Tensor Processing Units", Section 7.3), where
    the hardware runs what the model liked best and nothing is learned from that.
    """

    def __init__(self, prices: CutPrices) -> None:
        self.prices = prices
        self._ran: set[Cut] = set()
        self._steps = CutSteps(prices.program)

    def told(self, cut: Cut, kernel_seconds: Mapping[str, float]) -> None:
        """A cut ran: as `CutPrices.told`."""
        self._ran.add(cut)
        self.prices.told(cut, kernel_seconds)

    def near(self, state: Cut, rng: np.random.Generator) -> Cut:
        """One that ran where all did."""
        drawn = [self._steps.near(state, rng) for _ in range(DRAWN)]
        fresh = [cut for cut in dict.fromkeys(drawn) if cut not in self._ran]
        return min(fresh, key=self.prices.corrected) if fresh else drawn[0]

    def anywhere(self, rng: np.random.Generator) -> Cut:
        return self._steps.anywhere(rng)


#: Cuts that are kept. Ten minutes of hardware run a few hundred.
MOST_KEPT = 500
#: A note longer than this was not written here.
_MOST_BYTES = 1 << 20


class _Note(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    model: str
    spent_s: float
    seen: int
    current: str
    cuts: list[str]
    seconds: list[float]


class Shortlist:
    """`seconds` by cut; `spent_s` of annealing went into it, in which `seen` cuts were priced by
    the `model` of this version, and the walk has come to `current`, None before it begins."""

    def __init__(self, model: str) -> None:
        self.model = model
        self.seconds: dict[Cut, float] = {}
        self.spent_s, self.seen = 0.0, 0
        self.current: Cut | None = None

    def add(self, cut: Cut, seconds: float) -> None:
        """One that was not seen in this session."""
        self.seen += 1
        if math.isfinite(seconds):
            self.seconds[cut] = seconds
        if len(self.seconds) > 2 * MOST_KEPT:
            self.seconds = dict(self.best())

    def best(self) -> list[tuple[Cut, float]]:
        """At most `MOST_KEPT`, the fastest first."""
        return heapq.nsmallest(MOST_KEPT, self.seconds.items(), key=lambda told: told[1])

    def keep(self, store: Store, key: str) -> None:
        """As a note of the store, where it can be written to."""
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


def kept_shortlist(store: Store, key: str, program: TensorGraph, model: str) -> Shortlist:
    """What was kept of this program under the key by this model; an empty one where there is none,
    or none that can be believed."""
    raw = store.notes.get(key)
    if raw is None or len(raw) > _MOST_BYTES:
        return Shortlist(model)
    try:
        note = msgspec.json.decode(raw, type=_Note)
        told = dict(zip((_cut(program, text) for text in note.cuts), note.seconds, strict=True))
        current = _cut(program, note.current)
    except (msgspec.MsgspecError, TensorError, ValueError):
        return Shortlist(model)
    if note.model != model or not all(0 < s < math.inf for s in (*note.seconds, note.spent_s)):
        return Shortlist(model)
    found = Shortlist(model)
    found.seconds, found.current = told, current
    found.spent_s, found.seen = note.spent_s, note.seen
    return found


def _cut(program: TensorGraph, text: str) -> Cut:
    """Raises: TensorError for one that is not legal."""
    if reason := CutJudge(program).reason({CUT: text}):
        raise TensorError(reason)
    return Cut.read(text, len(edges_of(program).pairs))


@dataclass(frozen=True, slots=True)
class Tried:
    """A cut, what the model said of it (None: it was not asked) and what the hardware did: infinite
    `seconds` and an `error` where it failed, and where it was not run. Of a cut that ran kernel by
    kernel in a row, too, `in_a_row` are the processor's seconds of that."""

    cut: Cut
    said_s: float | None = None
    seconds: float = math.inf
    kernels: int = 0
    hardware_s: float = 0.0
    in_a_row: float | None = None
    error: str = ""

    @classmethod
    def of(cls, cut: Cut, found: Measurement) -> Tried:
        context = found.context
        in_a_row = context.get(IN_A_ROW)
        return cls(
            cut,
            seconds=found.seconds,
            kernels=int(context.get("kernels", 0)),
            hardware_s=float(context.get(HARDWARE_S, 0.0)),
            in_a_row=in_a_row if isinstance(in_a_row, float) else None,
            error="" if found.ok else f"{found.status}: {found.error}",
        )

    def predicted(self, seconds: float) -> Tried:
        """The same, with what the model says."""
        return replace(self, said_s=seconds)


@dataclass(slots=True, kw_only=True)
class FusionTuned:
    """Of one program on one machine.

    `defaults` are what there is without tuning: the program whole, and the cut nearest to the
    compiler's. `tried` are the cuts that ran, in that order, now or before; `shortlist` those that
    the model likes best. `settled` is the fastest once the fastest ran `again`
    (`settled`), `rounds` are runs of the contenders: kernels timed anew each time.

    Seconds: `model_s` and `hardware_s` count against the budgets, those of earlier sessions too;
    `reference_s` is what the defaults cost, `rounds_s` what running `again` and the rounds cost
    now. `fresh` cuts and their `kernels` were measured now, without these; `predicted_cuts` were
    priced by the `model` of this version (empty: hardware alone), of `predicted_kernels` different
    kernels in this session.
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
        """What the model likes best, as far as is known with what it took; None without a model."""
        if not self.shortlist:
            return None
        first = self.shortlist[0]
        ran = (one for one in (*self.defaults, *self.tried) if one.cut == first.cut)
        return next(ran, first)

    @property
    def best(self) -> Tried | None:
        """The fastest of all that ran, the defaults too: what is `settled`, else by one run each;
        None if nothing did."""
        ran = [one for one in self.ran if self.settled in (None, one.cut)]
        return min(ran, key=lambda one: one.seconds, default=None)

    @property
    def ran(self) -> list[Tried]:
        """What has seconds, the defaults too."""
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
        """The median of its rounds; infinite without."""
        held = [one.seconds for one in self.rounds.get(cut, ()) if math.isfinite(one.seconds)]
        return median(held) if held else math.inf

    def in_a_row_s(self, cut: Cut) -> float:
        """The median of its rounds, one kernel called after the other; infinite without."""
        held = [one.in_a_row for one in self.rounds.get(cut, ()) if one.in_a_row is not None]
        return median(held) if held else math.inf

    @property
    def default(self) -> Tried:
        """The faster of the defaults, by the rounds: what a gain is told over."""
        return min(self.defaults, key=lambda one: self.again_s(one.cut))

    @property
    def gain(self) -> float | None:
        """Of the fastest over the default, both by the rounds; None without rounds."""
        if self.best is None or not self.rounds:
            return None
        default_s, best_s = self.again_s(self.default.cut), self.again_s(self.best.cut)
        both = math.isfinite(default_s) and math.isfinite(best_s)
        return default_s / best_s if both else None

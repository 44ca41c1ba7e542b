"""What tuning the fusion of a program came to."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from statistics import median

from embeddb.core.records import IN_A_ROW, Measurement
from embeddb.tensors.computation import Computation
from embeddb.tensors.edges import Cut
from indexer.runners.base import HARDWARE_S

__all__ = ["FusionTuned", "Tried"]


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
    (`tuners.fusion.settled`), `rounds` are runs of the contenders: kernels timed anew each time.

    Seconds: `model_s` and `hardware_s` count against the budgets, those of earlier sessions too;
    `reference_s` is what the defaults cost, `rounds_s` what running `again` and the rounds cost
    now. `fresh` cuts and their `kernels` were measured now, without these; `predicted_cuts` were
    priced by the `model` of this version (empty: hardware alone), of `predicted_kernels` different
    kernels in this session.
    """

    program: Computation
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

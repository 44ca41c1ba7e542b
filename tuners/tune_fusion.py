"""Tuning of a program: cuts annealed on a model, then on hardware; the fastest run again."""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import mean
from typing import Any

import numpy as np

from embeddb.core.config import Op
from embeddb.core.errors import TensorError, UsageError
from embeddb.core.records import AGAIN, HARDWARE_S, REMEASURED, ROUNDS
from embeddb.core.reports import Progress, ignore_progress
from embeddb.core.timing import summarise_runs
from embeddb.index.lookup import Lookup
from embeddb.index.recorder import Machine
from embeddb.platforms.platform import Platform, this_machine
from embeddb.tensors.edges import CUT, MOST_EDGES, Cut, edges_of
from embeddb.tensors.partition import Partition, random_cut
from embeddb.tensors.tensor_graph import TensorGraph
from indexer.runners.base import RunOptions
from indexer.tensor_runs import CutRuns, stored_seconds
from tuners.fusion_cuts import (
    CutPrices,
    CutSteps,
    FusionTuned,
    PredictsKernels,
    ScreenedSteps,
    Shortlist,
    Tried,
    stored_shortlist,
)
from tuners.search import Annealer, anneal, check_budgets, turns

#: First state of annealing: the cut nearest to the compiler's, or a random one.
STARTS = ("default", "random")


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneRequest:
    """Budgets of tuning a program: seconds of a model and of hardware for the search; then `rounds`
    of the winner and the defaults. `seed` is for the walk and a random start.

    Raises: UsageError for invalid budgets or an unknown start.
    """

    start: str = "default"
    model_s: float = 60.0
    hardware_s: float = 60.0
    rounds: int = 3
    seed: int = 0
    options: RunOptions = field(default_factory=lambda: RunOptions(threads=1))

    def __post_init__(self) -> None:
        if self.start not in STARTS:
            raise UsageError(f"no start {self.start!r}", hint=f"there are: {', '.join(STARTS)}")
        check_budgets(self.model_s, self.hardware_s)
        if not self.model_s and not self.hardware_s:
            raise UsageError("both budgets are 0: there is nothing to tune by")


_FUSED, _FUSION = Op("fused"), Op("fusion")


#: Fastest cuts that are considered, and most of them that run again.
_MOST, MOST_AGAIN = 300, 5


def settled(
    tried: Sequence[Tried],
    kernels: Callable[[Cut], Sequence[str]],
    timings: Callable[[str], Sequence[float]],
    again: Callable[[Cut], object],
) -> Cut | None:
    """Remeasure the fastest cuts to remove the selection bias of the minimum.

    The fastest cut runs `again` with its kernels timed anew; then all cuts are ranked by the sums
    of kernel times, where remeasured `timings` replace the first one of a kernel. This repeats
    until the fastest cut is one that ran again, at most `MOST_AGAIN` times. The fastest of those
    that ran again; None if nothing ran.
    """
    first = heapq.nsmallest(_MOST, tried, key=lambda one: one.seconds)
    parts = {one.cut: kernels(one.cut) for one in first}
    seconds = {name: _seconds(timings(name)) for names in parts.values() for name in names}
    done: list[Cut] = []
    while parts and len(done) < MOST_AGAIN:
        best = _fastest(list(parts), parts, seconds)
        if best in done:
            break
        again(best)
        done.append(best)
        seconds |= {name: _seconds(timings(name)) for name in parts[best]}
    return _fastest(done, parts, seconds) if done else None


def _seconds(timings: Sequence[float]) -> float:
    first, *since = timings
    return mean(since) if since else first


def _fastest(
    cuts: Sequence[Cut], parts: Mapping[Cut, Sequence[str]], seconds: Mapping[str, float]
) -> Cut:
    return min(cuts, key=lambda cut: sum(seconds[name] for name in parts[cut]))


#: Seconds between two writes of the shortlist.
_SAVE_EVERY_S = 10.0
#: The name of the runs of the defaults, shared by all tunings.
_REFERENCE = "tune:reference"


class FusionTuning:
    """Tunes one program into `db` with a runner of `xla-cpu` on `here`, the platform's instance on
    this machine. Without a `model` of op `fused`, or seconds for it, the search anneals on measured
    times.

    With a model, the search first anneals on predictions. The walk on hardware then begins at the
    best predicted cut, if that is faster than the start, and the model chooses among neighbours
    (`ScreenedSteps`).

    Runs and the shortlist are stored at once: the same tuning continues an interrupted one.
    """

    def __init__(
        self,
        db: Lookup,
        runner: Any,
        here: Platform,
        request: TuneRequest,
        program: TensorGraph,
        *,
        model: PredictsKernels | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Raises: TensorError for a program without cuts; UsageError if neither a model nor
        hardware may be used."""
        self.db, self.runner, self.here, self.request = db, runner, here, request
        self.program = program
        self.model = model if request.model_s else None
        self._progress = progress or ignore_progress
        edges = edges_of(program)
        if not edges.pairs:
            raise TensorError(f"{program.name} has no edges: there is nothing to cut")
        if len(edges.pairs) > MOST_EDGES:
            raise TensorError(f"{len(edges.pairs):,} edges, at most {MOST_EDGES:,} are cut")
        if self.model is None and not request.hardware_s:
            raise UsageError("without a model nothing is found in 0 seconds of hardware")
        self._machine = Machine(db, runner, here, request.options)
        self._runs = CutRuns(self._machine, program)
        mode = "hardware" if self.model is None else f"model {self.model.version[:8]}"
        self.label = f"tune:{mode}/{request.start}/{request.seed}"
        self.done = FusionTuned(program=program, platform=here.id)

    def run(self) -> FusionTuned:
        """Raises: TensorError if the start is the compiler's and XLA does not compile the program;
        RunnerUnavailable if the machine fails in the middle of it."""
        done, request, whole = self.done, self.request, edges_of(self.program).whole
        compiler = self.runner.compiler_cut(self.program)
        rng = np.random.default_rng(request.seed)
        start = compiler if request.start == "default" else random_cut(self.program, rng)
        if request.hardware_s:
            self._references(whole, compiler)
        else:
            done.defaults = [Tried(whole), Tried(compiler)]
        starts, screen = [start], None
        if self.model is not None:
            prices = CutPrices(self.program, self.model.seconds)
            starts += [cut for cut, _ in self._predicted(start, prices, self.model).best()[:1]]
            screen = ScreenedSteps(prices)
        if request.hardware_s:
            self._walk(starts, screen)
            self._settle()
            self._rounds()
        return done

    def _report(self, task: str, spent_s: float, budget_s: float) -> None:
        self._progress(f"{task}, seconds", int(spent_s), math.ceil(budget_s))

    # -- by the model ------------------------------------------------------------------------------

    def _predicted(self, start: Cut, prices: CutPrices, model: PredictsKernels) -> Shortlist:
        """Anneal on the model, continuing the stored shortlist."""
        key, budget_s = f"{self.label}/{self.here.id}/{self.program.id}", self.request.model_s
        shortlist = stored_shortlist(self.db.store, key, self.program, model.version)
        rng = np.random.default_rng([self.request.seed, shortlist.seen])
        annealer = Annealer(CutSteps(self.program), shortlist.current or start, rng=rng)
        begun = time.monotonic() - shortlist.spent_s

        def spent() -> float:
            return time.monotonic() - begun

        def save(spent_s: float) -> None:
            shortlist.spent_s, shortlist.current = spent_s, annealer.current
            shortlist.save(self.db.store, key)

        saved = spent()
        try:
            for cut, seconds in anneal(annealer, prices.seconds, spent, budget_s):
                shortlist.add(cut, seconds)
                self._report("predict", spent(), budget_s)
                if spent() - saved > _SAVE_EVERY_S:
                    saved = spent()
                    save(saved)
        finally:
            save(spent())
        done = self.done
        done.model, done.model_s = model.version, shortlist.spent_s
        done.predicted_cuts, done.predicted_kernels = shortlist.seen, prices.kernels
        done.defaults = [replace(one, predicted_s=prices.seconds(one.cut)) for one in done.defaults]
        done.shortlist = [Tried(cut, seconds) for cut, seconds in shortlist.best()]
        return shortlist

    # -- by hardware -------------------------------------------------------------------------------

    def _walk(self, starts: Sequence[Cut], screen: ScreenedSteps | None) -> None:
        """Anneal on measured seconds from the fastest of the starts. Stored runs are replayed with
        their cost, so that an interrupted walk continues."""
        done, request = self.done, self.request
        before = dict(self._named(self.label))
        ran = {one.cut: one for one in done.defaults}

        def learn(cut: Cut) -> None:
            if screen is not None:
                ids = (
                    kernel
                    for kernel in self._kernels_of(cut)
                    if kernel not in screen.prices.measured
                )
                stored = {kernel: stored_seconds(self._machine, kernel) for kernel in ids}
                screen.learn(cut, {kernel: s for kernel, s in stored.items() if s is not None})

        for cut in ran:
            learn(cut)

        def price(cut: Cut) -> float:
            self._report("measure", done.hardware_s, request.hardware_s)
            if cut not in ran:
                ran[cut] = tried = before.get(cut) or self._run(cut, self.label)
                done.hardware_s += tried.hardware_s
                if screen is not None:
                    tried = replace(tried, predicted_s=screen.prices.seconds(cut))
                learn(cut)
                done.tried.append(tried)
            return ran[cut].seconds

        rng = np.random.default_rng([request.seed, 1])
        steps = screen or CutSteps(self.program)
        annealer = Annealer(steps, min(starts, key=price), rng=rng)
        for _ in anneal(annealer, price, lambda: done.hardware_s, request.hardware_s):
            pass

    def _run(self, cut: Cut, campaign: str) -> Tried:
        """Run a cut. Raises: as `CutRuns.measure`."""
        measurement, kernels = self._runs.measure(cut, campaign)
        self.done.fresh += 1
        self.done.kernels += len(kernels)
        return Tried.of(cut, measurement)

    def _run_again(self, cut: Cut, campaign: str) -> Tried:
        """Run a cut with all kernels timed anew, and in a row. Raises: as `CutRuns.measure`."""
        return Tried.of(cut, self._runs.measure(cut, campaign, chained=True, anew=True)[0])

    def _kernels_of(self, cut: Cut) -> list[str]:
        """The ids of the kernels of a cut."""
        return [placed.kernel.id for placed in Partition.of(self.program, cut).kernels]

    def _timings(self, kernel: str, again: str) -> list[float]:
        """Seconds of a kernel: those used by the search, and of each run named `again`; infinite
        for a failure. Remeasurements under other names are left out, so that the same tuning gives
        the same result after them."""
        runs = list(self.db.store.runs(self.here.id, _FUSED, kernel))
        summary = summarise_runs(run for run in runs if not run.campaign.endswith(REMEASURED))
        seconds = [timing.seconds for timing in summary.values()]
        return [*seconds, *(run.seconds for run in runs if run.campaign == again)] or [math.inf]

    def _named(self, campaign: str) -> Iterator[tuple[Cut, Tried]]:
        """Every stored run under this name."""
        count = len(edges_of(self.program).pairs)
        for run in self._machine.stored(self.program, _FUSION):
            took = run.measurement.context.get(HARDWARE_S)
            if run.campaign == campaign and isinstance(took, float):
                cut = Cut.read(str(run.config[CUT]), count)
                yield cut, Tried.of(cut, run.measurement)

    def _references(self, whole: Cut, compiler: Cut) -> None:
        """Measure the defaults, once for all tunings."""
        stored = dict(self._named(_REFERENCE))
        self._progress("measure the defaults", 0, 2)
        for cut in dict.fromkeys((whole, compiler)):
            tried = stored.get(cut) or self._run(cut, _REFERENCE)
            self.done.defaults.append(tried)
            self.done.reference_s += tried.hardware_s

    def _settle(self) -> None:
        """Run the fastest again."""
        done, label = self.done, self.label + AGAIN
        stored = dict(self._named(label))
        self._progress("run the fastest again", 0, MOST_AGAIN)

        def again(cut: Cut) -> None:
            tried = stored.get(cut) or self._run_again(cut, label)
            done.again.append(tried)
            self._progress("run the fastest again", len(done.again), MOST_AGAIN)
            done.rounds_s += 0.0 if cut in stored else tried.hardware_s

        done.settled = settled(
            done.ran, self._kernels_of, lambda name: self._timings(name, label), again
        )

    def _rounds(self) -> None:
        """Run the defaults and the winner in rounds, all kernels timed anew."""
        done, label, count = self.done, self.label + ROUNDS, self.request.rounds
        done.rounds = {one.cut: [] for one in done.contenders}
        for cut, tried in self._named(label):
            if cut in done.rounds:
                done.rounds[cut].append(tried)
        for turn in turns(done.rounds, count, lambda at: self._progress("rounds", at, count)):
            for cut in turn:
                tried = self._run_again(cut, label)
                done.rounds[cut].append(tried)
                done.rounds_s += tried.hardware_s


def tune_fusion(
    db: Lookup,
    program: TensorGraph,
    platform: Platform,
    request: TuneRequest,
    *,
    progress: Progress | None = None,
    note: Callable[[str], None],
) -> FusionTuned:
    """Tune a program on this machine; `note` receives a remark if there is no model.

    Raises: as `FusionTuning`; RunnerUnavailable if the platform cannot be measured here.
    """
    runner, here = this_machine(platform, threads=1)
    model, reason = db.graph_model(here, Op("fused")) if request.model_s else (None, "")
    if model is None and request.model_s:
        why = (
            reason or "no model of fused kernels: `embeddb train kernels DB --task fused` makes one"
        )
        note(f"{why}; hardware alone")
    tuning = FusionTuning(db, runner, here, request, program, model=model, progress=progress)
    return tuning.run()

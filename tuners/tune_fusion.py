"""Tune a program: cuts annealed on a model, then on the hardware; the fastest run again."""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean
from typing import Any

import numpy as np

from embeddb.core.config import Op
from embeddb.core.errors import TensorError, UsageError
from embeddb.core.records import AGAIN, REMEASURED, ROUNDS
from embeddb.core.reports import Progress
from embeddb.core.timing import summarise_runs
from embeddb.index.lookup import Lookup
from embeddb.platforms.platform import Platform, this_machine
from embeddb.tensors.edges import CUT, MOST_EDGES, Cut, edges_of
from embeddb.tensors.partition import Partition, random_cut
from embeddb.tensors.tensor_graph import TensorGraph
from indexer.measure import Machine
from indexer.runners.base import HARDWARE_S, RunOptions
from indexer.tensor_runs import CutRuns, stored_seconds
from tuners.fusion_cuts import (
    CutPrices,
    CutSteps,
    FusionTuned,
    PredictsKernels,
    ScreenedSteps,
    Shortlist,
    Tried,
    kept_shortlist,
)
from tuners.search import Annealer, anneal, turns

#: Where annealing begins: the cut nearest to what the compiler fuses, or one by chance.
STARTS = ("default", "random")


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneRequest:
    """So many seconds of a model and of hardware, the latter for what is tried; `rounds` of the
    winner beside the defaults come after. `seed` is that of the walk and of a start by chance.

    Raises: UsageError for budgets that are none.
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
        for budget in (self.model_s, self.hardware_s):
            if not 0 <= budget < math.inf:
                raise UsageError(f"a budget is 0 seconds or more, not {budget}")
        if not self.model_s and not self.hardware_s:
            raise UsageError("both budgets are 0: there is nothing to tune by")


_FUSED, _FUSION = Op("fused"), Op("fusion")


class KeptRuns:
    """`fresh` cuts and `kernels` were measured now; rounds of what ran do not count."""

    def __init__(self, runs: CutRuns) -> None:
        self._runs, self._machine = runs, runs.machine
        self.fresh = self.kernels = 0

    def measure(self, cut: Cut, campaign: str) -> Tried:
        """Run and kept under this name. Raises: as `CutRuns.measure`."""
        run = self._runs.measure(cut, campaign)
        self.fresh += 1
        self.kernels += len(run.fresh)
        return Tried.of(cut, run.measurement)

    def again(self, cut: Cut, campaign: str) -> Tried:
        """Run with all kernels timed anew, and in a row. Raises: as `CutRuns.measure`."""
        return Tried.of(cut, self._runs.measure(cut, campaign, chained=True, anew=True).measurement)

    def kernels_of(self, cut: Cut) -> list[str]:
        """The ids of the kernels of a cut."""
        return [placed.kernel.id for placed in Partition.of(self._runs.program, cut).kernels]

    def timings(self, kernel: str, again: str) -> list[float]:
        """Seconds of a kernel that ran: what the search went by, and of each run under the name
        `again`; infinite for one that fails. What other runs of winners say does not count, so that
        the same tuning comes out again after them."""
        held = list(self._machine.db.store.runs(self._machine.here.id, _FUSED, kernel))
        before = summarise_runs(run for run in held if not run.campaign.endswith(REMEASURED))
        known = [timing.seconds for timing in before.values()]
        return [*known, *(run.seconds for run in held if run.campaign == again)] or [math.inf]

    def kernel_seconds(self, cut: Cut, but: Container[str]) -> dict[str, float]:
        """What the kernels of a cut that ran take, by id, those left out that `but` has; infinite
        for what fails."""
        told = {
            at: stored_seconds(self._machine, at) for at in self.kernels_of(cut) if at not in but
        }
        return {at: seconds for at, seconds in told.items() if seconds is not None}

    def known(self, campaign: str) -> dict[Cut, Tried]:
        """What ran under this name."""
        return dict(self.told(campaign))

    def told(self, campaign: str) -> Iterator[tuple[Cut, Tried]]:
        """Every run under this name."""
        db, program = self._machine.db, self._runs.program
        if db.store.tensor(program.id) is None:
            return
        count = len(edges_of(program).pairs)
        for run in db.store.runs(self._machine.here.id, _FUSION, program.id):
            took = run.measurement.context.get(HARDWARE_S)
            if run.campaign == campaign and isinstance(took, float):
                cut = Cut.read(str(run.config[CUT]), count)
                yield cut, Tried.of(cut, run.measurement)


#: Cuts that are looked at, and cuts that run again at most.
_MOST, MOST_AGAIN = 300, 5


def settled(
    tried: Sequence[Tried],
    kernels: Callable[[Cut], Sequence[str]],
    told: Callable[[str], Sequence[float]],
    again: Callable[[Cut], object],
) -> Cut | None:
    """The fastest of the fastest `_MOST` that ran: it runs `again`, its kernels timed anew, and the
    sums of all cuts that have these kernels go by what is `told` of each since (seconds by kernel
    id, the first of them those that the search went by, which is what made it lucky); so on, until
    the fastest is one that ran again. Of `MOST_AGAIN` such none of which stays the fastest, the
    fastest. None where nothing ran."""
    first = heapq.nsmallest(_MOST, tried, key=lambda one: one.seconds)
    parts = {one.cut: kernels(one.cut) for one in first}
    seconds = {name: _seconds(told(name)) for names in parts.values() for name in names}
    done: list[Cut] = []
    while parts and len(done) < MOST_AGAIN:
        best = _fastest(list(parts), parts, seconds)
        if best in done:
            break
        again(best)
        done.append(best)
        seconds |= {name: _seconds(told(name)) for name in parts[best]}
    return _fastest(done, parts, seconds) if done else None


def _seconds(told: Sequence[float]) -> float:
    first, *since = told
    return mean(since) if since else first


def _fastest(
    cuts: Sequence[Cut], parts: Mapping[Cut, Sequence[str]], seconds: Mapping[str, float]
) -> Cut:
    return min(cuts, key=lambda cut: sum(seconds[name] for name in parts[cut]))


#: Seconds between two savings of what a model was asked.
_SAVE_EVERY_S = 10.0


class FusionTuning:
    """Tunes one program into `db` with a runner of `xla-cpu` on `here`, the platform as this
    machine is. Without a `model` of op `fused`, or seconds for it, the walk goes by what cuts take
    on the hardware.

    With a model, annealing on it comes first. The walk on the hardware then begins at what the
    model likes best, if that is faster than the start, and the model says which neighbour is next
    (`tuners.fusion_cuts`).

    Every run is written back at once, and what the model was asked is kept: the same tuning again
    goes on where it was stopped, and with larger budgets further.
    """

    def __init__(
        self,
        db: Lookup,
        runner: Any,
        here: Platform,
        request: TuneRequest,
        *,
        model: PredictsKernels | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.db, self.runner, self.here, self.request = db, runner, here, request
        self.model = model if request.model_s else None
        self._progress = progress or _nothing

    def run(self, program: TensorGraph) -> FusionTuned:
        """Raises: TensorError for a program without cuts, or one that XLA does not compile where
        the start is the compiler's; UsageError where neither a model nor hardware may be asked;
        RunnerUnavailable if the machine fails in the middle of it.
        """
        return _Tuning(self, program).run()

    def told(self, what: str, done_s: float, budget_s: float) -> None:
        self._progress(f"{what}, seconds", int(done_s), math.ceil(budget_s))


class _Tuning:
    """Of one program."""

    def __init__(self, job: FusionTuning, program: TensorGraph) -> None:
        """Raises: TensorError, UsageError as `FusionTuning.run`."""
        self.job, self.program, self.asked = job, program, job.request
        edges = edges_of(program)
        if not edges.pairs:
            raise TensorError(f"{program.name} has no edges: there is nothing to cut")
        if len(edges.pairs) > MOST_EDGES:
            raise TensorError(f"{len(edges.pairs):,} edges, at most {MOST_EDGES:,} are cut")
        if job.model is None and not self.asked.hardware_s:
            raise UsageError("without a model nothing is found in 0 seconds of hardware")
        runs = CutRuns(Machine(job.db, job.runner, job.here, self.asked.options), program)
        self.runs = KeptRuns(runs)
        mode = "hardware" if job.model is None else f"model {job.model.version[:8]}"
        self.label = f"tune:{mode}/{self.asked.start}/{self.asked.seed}"
        self.done = FusionTuned(program=program, platform=job.here.id)

    def run(self) -> FusionTuned:
        done, asked = self.done, self.asked
        compiler = self.job.runner.compiler_cut(self.program)
        rng = np.random.default_rng(asked.seed)
        start = compiler if asked.start == "default" else random_cut(self.program, rng)
        if asked.hardware_s:
            self._references(edges_of(self.program).whole, compiler)
        else:
            done.defaults = [Tried(edges_of(self.program).whole), Tried(compiler)]
        starts, screen = [start], None
        if self.job.model is not None:
            prices = CutPrices(self.program, self.job.model)
            starts += [cut for cut, _ in self._predicted(start, prices).best()[:1]]
            screen = ScreenedSteps(prices)
        if asked.hardware_s:
            self._walked(starts, screen)
            self._settled()
            self._rounds()
        done.fresh, done.kernels = self.runs.fresh, self.runs.kernels
        return done

    # -- by the model ------------------------------------------------------------------------------

    def _predicted(self, start: Cut, prices: CutPrices) -> Shortlist:
        """What annealing on the model comes to, going on with what was kept."""
        model = prices.model
        store, key = self.job.db.store, f"{self.label}/{self.job.here.id}/{self.program.id}"
        found = kept_shortlist(store, key, self.program, model.version)
        rng = np.random.default_rng([self.asked.seed, found.seen])
        annealer = Annealer(CutSteps(self.program), found.current or start, rng=rng)
        clock = _Clock(found.spent_s)
        saved = clock.spent()
        try:
            for cut, seconds in anneal(annealer, prices.seconds, clock.spent, self.asked.model_s):
                found.add(cut, seconds)
                self.job.told("predict", clock.spent(), self.asked.model_s)
                if clock.spent() - saved > _SAVE_EVERY_S:
                    saved = clock.spent()
                    self._save(found, annealer, saved, key)
        finally:
            self._save(found, annealer, clock.spent(), key)
        done = self.done
        done.model, done.model_s = model.version, found.spent_s
        done.predicted_cuts, done.predicted_kernels = found.seen, prices.kernels
        done.defaults = [one.predicted(prices.seconds(one.cut)) for one in done.defaults]
        done.shortlist = [Tried(cut, said) for cut, said in found.best()]
        return found

    def _save(self, found: Shortlist, annealer: Annealer[Cut], spent_s: float, key: str) -> None:
        found.spent_s, found.current = spent_s, annealer.current
        found.keep(self.job.db.store, key)

    # -- by hardware -------------------------------------------------------------------------------

    def _walked(self, starts: Sequence[Cut], screen: ScreenedSteps | None) -> None:
        """Annealing on measured seconds from the fastest of the starts, a screen's neighbours if
        there is one. What was measured before is told again, for the seconds that it took then, so
        that the walk comes to where it was stopped."""
        done, asked = self.done, self.asked
        known = self.runs.known(self.label)
        ran = {one.cut: one for one in done.defaults}
        if screen is not None:
            for cut in ran:
                self._learned(screen, cut)

        def price(cut: Cut) -> float:
            self.job.told("measure", done.hardware_s, asked.hardware_s)
            if cut not in ran:
                ran[cut] = tried = known.get(cut) or self.runs.measure(cut, self.label)
                done.hardware_s += tried.hardware_s
                if screen is not None:
                    tried = tried.predicted(screen.prices.seconds(cut))
                    self._learned(screen, cut)
                done.tried.append(tried)
            return ran[cut].seconds

        rng = np.random.default_rng([asked.seed, 1])
        steps = screen or CutSteps(self.program)
        annealer = Annealer(steps, min(starts, key=price), rng=rng)
        for _ in anneal(annealer, price, lambda: done.hardware_s, asked.hardware_s):
            pass

    def _learned(self, screen: ScreenedSteps, cut: Cut) -> None:
        screen.told(cut, self.runs.kernel_seconds(cut, screen.prices.known))

    def _references(self, whole: Cut, compiler: Cut) -> None:
        """What there is without tuning, measured once for all tunings."""
        known = self.runs.known(_REFERENCE)
        self.job._progress("measure the defaults", 0, 2)
        for cut in dict.fromkeys((whole, compiler)):
            tried = known.get(cut) or self.runs.measure(cut, _REFERENCE)
            self.done.defaults.append(tried)
            self.done.reference_s += tried.hardware_s

    def _settled(self) -> None:
        """Which is the fastest when the fastest run again."""
        done, label = self.done, self.label + AGAIN
        known = self.runs.known(label)
        self.job._progress("run the fastest again", 0, MOST_AGAIN)

        def again(cut: Cut) -> None:
            ran = known.get(cut) or self.runs.again(cut, label)
            done.again.append(ran)
            self.job._progress("run the fastest again", len(done.again), MOST_AGAIN)
            done.rounds_s += 0.0 if cut in known else ran.hardware_s

        done.settled = settled(
            done.ran, self.runs.kernels_of, lambda name: self.runs.timings(name, label), again
        )

    def _rounds(self) -> None:
        """The defaults and the winner, all kernels timed anew, in turns that begin with another one
        each time."""
        done, label = self.done, self.label + ROUNDS
        cuts = [one.cut for one in done.contenders]
        done.rounds = {cut: [] for cut in cuts}
        for cut, tried in self.runs.told(label):
            if cut in done.rounds:
                done.rounds[cut].append(tried)
        count = self.asked.rounds

        def told(at: int) -> None:
            self.job._progress("rounds", at, count)

        for turn in turns(done.rounds, count, told):
            for cut in turn:
                tried = self.runs.again(cut, label)
                done.rounds[cut].append(tried)
                done.rounds_s += tried.hardware_s


#: The name of the runs of what there is without tuning.
_REFERENCE = "tune:reference"


class _Clock:
    """Seconds since it was made, and those before."""

    def __init__(self, before_s: float) -> None:
        self._begun = time.monotonic() - before_s

    def spent(self) -> float:
        return time.monotonic() - self._begun


def _nothing(what: str, done: int, total: int) -> None: ...


def tune_fusion(
    db: Lookup,
    program: TensorGraph,
    platform: Platform,
    request: TuneRequest,
    *,
    progress: Callable[[str, int, int], None] | None = None,
    note: Callable[[str], None],
) -> FusionTuned:
    """`note` is told where there is no model, so that hardware alone is asked.

    Raises: as `FusionTuning.run`; RunnerUnavailable if the platform cannot be measured here.
    """
    runner, here = this_machine(platform, threads=1)
    model, reason = db.graph_model(here, Op("fused")) if request.model_s else (None, "")
    if model is None and request.model_s:
        why = (
            reason or "no model of fused kernels: `embeddb train kernels DB --task fused` makes one"
        )
        note(f"{why}; hardware alone")
    return FusionTuning(db, runner, here, request, model=model, progress=progress).run(program)

"""Search within a budget of seconds, shared by all tuning: simulated annealing ("A Learned
Performance Model for Tensor Processing Units", Section 7.3), a ranked order, final rounds of the
fastest, and the trials on hardware that they store."""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from embeddb.core.config import Config, Op
from embeddb.core.records import ROUNDS, Run
from embeddb.core.workload import Workload
from embeddb.platforms.space.space import ConfigSpace
from embeddb.ranking.measure import state_warning
from embeddb.store.usual_state import usual_at
from indexer.measure import Machine, Recorder
from indexer.runners.base import HARDWARE_S
from indexer.runners.harness.worker_process import Closing

S = TypeVar("S", bound=Hashable)

#: What a worse state may add with a chance of 1/e, at first and at last, to the mean change of the
#: states so far: one edge is more of a small program than of a large one.
_HOT, _COLD = 0.5, 0.02
#: States in a row that were all seen before, after which the walk goes on from one by chance, and
#: after which there is nothing more to find.
_STUCK, _STALE = 200, 1000


class Steps(Protocol[S]):
    """Where a walk can go: cuts of a program, configurations of a space."""

    def near(self, state: S, rng: np.random.Generator) -> S:
        """A legal state one step away; the same where there is none."""

    def anywhere(self, rng: np.random.Generator) -> S:
        """A legal state by chance."""


class Annealer(Generic[S]):
    """Proposes one state after the other and is told what each takes; it never measures.

    `current` is where the walk is, and `seconds` what that takes, infinite before anything is told.
    The same generator state, seconds and shares give the same states.
    """

    def __init__(self, steps: Steps[S], start: S, *, rng: np.random.Generator) -> None:
        self.current = start
        self.seconds = math.inf
        self._steps, self._rng = steps, rng
        self._begun = False
        self._changes, self._changed = 0, 0.0

    def ask(self) -> S:
        """The start, then always one step from the current state."""
        return self._steps.near(self.current, self._rng) if self._begun else self.current

    def tell(self, state: S, seconds: float, share: float) -> None:
        """Seconds (infinite for a failure) of a state that was asked for; `share` of the budget is
        spent, from 0 to 1, and cools the walk."""
        self._begun = True
        change = _change(self.seconds, seconds)
        if math.isfinite(change) and change:
            self._changes, self._changed = self._changes + 1, self._changed + abs(change)
        if change <= 0 or self._rng.random() < math.exp(-change / self._heat(share)):
            self.current, self.seconds = state, seconds

    def leap(self) -> None:
        """Go on from a state by chance."""
        self.current, self.seconds = self._steps.anywhere(self._rng), math.inf
        self._begun = False

    def _heat(self, share: float) -> float:
        mean = self._changed / max(self._changes, 1)
        return max(mean, 1e-9) * _HOT * float((_COLD / _HOT) ** min(max(share, 0.0), 1.0))


def anneal(
    annealer: Annealer[S],
    price: Callable[[S], float],
    spent: Callable[[], float],
    budget: float,
) -> Iterator[tuple[S, float]]:
    """Each state that is new, with its price in seconds, until so much is spent or nothing new
    comes. Whatever `price` raises ends it."""
    seen: dict[int, float] = {}
    stale = 0
    while spent() < budget and stale < _STALE:
        state = annealer.ask()
        key = hash(state)
        stale += 1
        if fresh := key not in seen:
            seen[key] = price(state)
            stale = 0
        elif stale % _STUCK == 0:
            annealer.leap()
            continue
        annealer.tell(state, seen[key], spent() / budget)
        if fresh:
            yield state, seen[key]


def _change(now: float, then: float) -> float:
    """Logarithm of the ratio; what fails is infinitely slower than what ran."""
    if math.isinf(now) or math.isinf(then):
        return then if now < then else -math.inf
    return math.log(then / now)


#: Seconds after which what ran is written back.
_KEEP_EVERY_S = 10.0


class Trial(NamedTuple):
    """`seconds` (infinite where it failed, with the `error`), and what having them took."""

    seconds: float
    hardware_s: float
    error: str = ""


class Trials(Closing):
    """Of one subject and operation under the name `campaign`, in parts of their own names; a
    context, which keeps what ran however it is left. `fresh` runs were made in it; `warning` says
    that the machine was in another state than usual, empty where it was not."""

    def __init__(self, machine: Machine, subject: Workload, op: Op, campaign: str) -> None:
        self.machine, self.subject, self.op = machine, subject, op
        self.campaign = campaign
        self.fresh = 0
        self.warning = ""
        self._usual = usual_at(machine.db.store, machine.here.id)
        self._recorder = Recorder(machine, subject, op, campaign)
        self._kept_at = -math.inf

    def close(self) -> None:
        self.keep()

    def known(self, part: str = "") -> dict[Config, list[Trial]]:
        """What ran under this name before, each configuration's in the order in which they ran."""
        trials: dict[Config, list[Trial]] = {}
        stored = self.machine.stored(self.subject, self.op)
        own = [run for run in stored if run.campaign == self.campaign + part]
        for run in sorted(own, key=lambda run: run.measurement.when):
            trials.setdefault(run.config, []).append(_trial(run))
        return trials

    def measure(self, configs: Sequence[Config], part: str = "") -> Iterator[tuple[Config, Trial]]:
        """Each as soon as it ran. Raises: RunnerUnavailable if the machine fails in the middle."""
        if not self._recorder.runs:
            self._kept_at = time.monotonic()
        for run in self._recorder.measure(configs, part=part, timed=True):
            self.fresh += 1
            yield run.config, _trial(run)
            if time.monotonic() - self._kept_at > _KEEP_EVERY_S:
                self.keep()

    def keep(self) -> None:
        """Write back what ran since the last time."""
        runs, self._kept_at = self._recorder.keep(), time.monotonic()
        if runs:
            context = runs[-1].measurement.context
            self.warning = state_warning(context, self._usual()) or self.warning


def middle(trials: Iterable[Trial]) -> float:
    """The median of what did not fail; infinite without."""
    held = [trial.seconds for trial in trials if math.isfinite(trial.seconds)]
    return median(held) if held else math.inf


def _trial(run: Run) -> Trial:
    m = run.measurement
    took = m.context.get(HARDWARE_S)
    error = "" if m.ok else f"{m.status}: {m.error}"
    return Trial(run.seconds, took if isinstance(took, float) else 0.0, error)


@dataclass(slots=True, kw_only=True)
class Tuned:
    """Of a kernel or a matrix. `by` says who chose what to try, of `ranked` configurations; `model`
    is the version of the one that was asked, which spent `model_s`.

    `tried` are seconds by configuration of the first turn, infinite for what `failed`, which tells
    why; `rounds` those of the default and the fastest after it, the `finalists`. Seconds:
    `hardware_s` of the first turn count against the budget, those of earlier sessions too;
    `rounds_s` is what rounds cost now. `fresh` runs were made now. `warning`: the machine was in
    another state than usual. `exact` times are the same every time, and nothing is repeated.
    """

    subject: Workload
    default: Config
    by: str
    ranked: int
    model: str = ""
    model_s: float = 0.0
    tried: dict[Config, float] = field(default_factory=dict)
    failed: dict[Config, str] = field(default_factory=dict)
    finalists: tuple[Config, ...] = ()
    rounds: dict[Config, list[float]] = field(default_factory=dict)
    fresh: int = 0
    hardware_s: float = 0.0
    rounds_s: float = 0.0
    warning: str = ""
    exact: bool = False

    @property
    def best(self) -> Config:
        """What was fastest again, of the fastest of the first turn and the default."""
        return min((*self.finalists, self.default), key=self.again_s)

    def again_s(self, config: Config) -> float:
        """The median of its rounds, else what it took at first; infinite without."""
        held = [one for one in self.rounds.get(config, ()) if math.isfinite(one)]
        return median(held) if held else self.tried.get(config, math.inf)

    @property
    def gain(self) -> float | None:
        """Of the best over the default; None where either failed."""
        default_s, best_s = self.again_s(self.default), self.again_s(self.best)
        both = math.isfinite(default_s) and math.isfinite(best_s)
        return default_s / best_s if both else None

    @property
    def apart(self) -> bool:
        """Whether the best was faster than the default in every pair of rounds, or exactly."""
        if self.exact:
            return self.best != self.default
        best, default = self.rounds.get(self.best, ()), self.rounds.get(self.default, ())
        return bool(best) and bool(default) and max(best) < min(default)


#: Told of the seconds of hardware that are spent.
Told = Callable[[float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """So many `seconds` of the first turn, in which the default runs again before every
    `default_every` others (0: once); then the default and the `finalists` fastest in so many
    `rounds`."""

    seconds: float = math.inf
    default_every: int = 0
    finalists: int = 1
    rounds: int = 3


class SpaceSteps:
    """From one legal configuration to the next (`tuners.search.Steps`); what is near is
    looked for once."""

    def __init__(self, space: ConfigSpace) -> None:
        self.space = space
        self._near: dict[Config, list[Config]] = {}

    def near(self, state: Config, rng: np.random.Generator) -> Config:
        if state not in self._near:
            self._near[state] = self.space.neighbours(state)
        near = self._near[state]
        return near[int(rng.integers(len(near)))] if near else state

    def anywhere(self, rng: np.random.Generator) -> Config:
        return next(iter(self.space.sample(1, rng=rng)))


def in_order(
    done: Tuned, trials: Trials, ranked: Sequence[Config], effort: Effort, told: Told
) -> None:
    """The default, then what is ranked, until the seconds are spent; the run in hand is finished.
    What ran before is not run again, and its seconds are counted."""
    held = trials.known()
    done.hardware_s = sum(trial.hardware_s for each in held.values() for trial in each)
    rest = [c for c in dict.fromkeys(ranked) if c not in held and c != done.default]
    every = effort.default_every or len(rest) + 1
    batches = [rest[at : at + every] for at in range(0, len(rest), every)]
    if done.default not in held:
        batches = batches or [[]]
    try:
        for at, batch in enumerate(batches):
            if done.hardware_s >= effort.seconds:
                break
            again = effort.default_every or (at == 0 and done.default not in held)
            asked = [done.default, *batch] if again else batch
            for config, trial in trials.measure(asked):
                held.setdefault(config, []).append(trial)
                done.hardware_s += trial.hardware_s
                told(done.hardware_s)
                if done.hardware_s >= effort.seconds:
                    break
    finally:
        _tell(done, {c: held[c] for c in (done.default, *ranked) if c in held})


def annealed(
    done: Tuned, trials: Trials, space: ConfigSpace, effort: Effort, *, seed: int, told: Told
) -> None:
    """Annealing from the default on measured seconds. What ran before is told again, for the
    seconds that it took then, so that the walk comes to where it was stopped; one that cools more
    slowly may go elsewhere, and what ran is known all the same."""
    before = trials.known()
    held: dict[Config, list[Trial]] = {}

    def price(config: Config) -> float:
        found = before.get(config) or [trial for _, trial in trials.measure([config])]
        held[config] = found
        done.hardware_s += sum(trial.hardware_s for trial in found)
        told(done.hardware_s)
        return middle(found)

    annealer = Annealer(SpaceSteps(space), done.default, rng=np.random.default_rng(seed))
    for _ in anneal(annealer, price, lambda: done.hardware_s, effort.seconds):
        pass
    _tell(done, before | held)


def final_rounds(done: Tuned, trials: Trials, effort: Effort, told: Callable[[int], None]) -> None:
    """The default and the fastest in turns that begin with another one each time."""
    ran = [c for c, seconds in done.tried.items() if math.isfinite(seconds)]
    done.finalists = tuple(heapq.nsmallest(effort.finalists, ran, key=done.tried.__getitem__))
    known = trials.known(ROUNDS)
    contenders = dict.fromkeys((done.default, *done.finalists))
    done.rounds = {c: [trial.seconds for trial in known.get(c, ())] for c in contenders}
    for turn in turns(done.rounds, effort.rounds, told):
        for config, trial in trials.measure(turn, ROUNDS):
            done.rounds[config].append(trial.seconds)
            done.rounds_s += trial.hardware_s


def turns(
    rounds: Mapping[S, Sequence[object]], count: int, told: Callable[[int], None]
) -> Iterator[list[S]]:
    """The contenders in the order of each round that is missing of `count`, another one first each
    time; `rounds` has the measurements of each so far."""
    contenders = list(rounds)
    for at in range(min(map(len, rounds.values())), count):
        told(at)
        first = at % len(contenders)
        yield [*contenders[first:], *contenders[:first]]


def _tell(done: Tuned, held: dict[Config, list[Trial]]) -> None:
    done.tried = {config: middle(each) for config, each in held.items()}
    failed = [c for c, seconds in done.tried.items() if math.isinf(seconds)]
    done.failed = {config: held[config][-1].error for config in failed}

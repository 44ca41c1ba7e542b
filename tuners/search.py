"""Search within a budget of seconds, shared by all tuning: simulated annealing ("A Learned
Performance Model for Tensor Processing Units", Section 7.3), a ranked order, final rounds of the
fastest, and stored trials on hardware."""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from statistics import median
from typing import Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from embeddb.core.config import Config, Op
from embeddb.core.errors import UsageError
from embeddb.core.records import HARDWARE_S, ROUNDS, Run
from embeddb.core.workload import Workload
from embeddb.index.recorder import Machine, Recorder
from embeddb.platforms.space.space import ConfigSpace
from embeddb.ranking.measure import state_warning
from indexer.runners.harness.worker_process import Closing

S = TypeVar("S", bound=Hashable)

#: First and last temperature, in units of the mean change so far: one edge matters more in a small
#: program than in a large one.
_HOT, _COLD = 0.5, 0.02
#: Consecutive known states after which the walk restarts at random, and after which it ends.
_STUCK, _STALE = 200, 1000


class Steps(Protocol[S]):
    """The states of a walk: cuts of a program, configurations of a space."""

    def near(self, state: S, rng: np.random.Generator) -> S:
        """A random legal state one step away; the same state if there is none."""

    def anywhere(self, rng: np.random.Generator) -> S:
        """A random legal state."""


class Annealer(Generic[S]):
    """Simulated annealing, driven from outside. `current` is the state of the walk, `seconds` its
    time, infinite at first. The same generator state, seconds and shares give the same states."""

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
        """Receive the seconds (infinite for a failure) of the last state of `ask`; the spent
        `share` of the budget, from 0 to 1, cools the walk."""
        self._begun = True
        change = _change(self.seconds, seconds)
        if math.isfinite(change) and change:
            self._changes, self._changed = self._changes + 1, self._changed + abs(change)
        mean = self._changed / max(self._changes, 1)
        heat = max(mean, 1e-9) * _HOT * float((_COLD / _HOT) ** min(max(share, 0.0), 1.0))
        if change <= 0 or self._rng.random() < math.exp(-change / heat):
            self.current, self.seconds = state, seconds

    def leap(self) -> None:
        """Restart at a random state."""
        self.current, self.seconds = self._steps.anywhere(self._rng), math.inf
        self._begun = False


def anneal(
    annealer: Annealer[S],
    price: Callable[[S], float],
    spent: Callable[[], float],
    budget: float,
) -> Iterator[tuple[S, float]]:
    """Generate each new state with its price in seconds, until the budget is spent or the states
    are exhausted. Exceptions of `price` end it."""
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
    """Logarithm of the ratio; a failure is infinitely slow."""
    if math.isinf(now) or math.isinf(then):
        return then if now < then else -math.inf
    return math.log(then / now)


def finite_median(seconds: Iterable[float]) -> float:
    """The median of the finite values; infinite without any."""
    finite = [one for one in seconds if math.isfinite(one)]
    return median(finite) if finite else math.inf


def speedup(default_s: float, best_s: float) -> float | None:
    """The ratio of two times; None if one is of a failure."""
    return default_s / best_s if math.isfinite(default_s) and math.isfinite(best_s) else None


def check_budgets(model_s: float, hardware_s: float) -> None:
    """Raises: UsageError for a budget that is negative or no finite number."""
    for budget in (model_s, hardware_s):
        if not 0 <= budget < math.inf:
            raise UsageError(f"a budget is 0 seconds or more, not {budget}")


#: Seconds between two writes of new runs.
_SAVE_EVERY_S = 10.0


class Trial(NamedTuple):
    """`seconds` of a configuration (infinite for a failure with an `error`), and the time that the
    run cost."""

    seconds: float
    hardware_s: float
    error: str = ""


class Trials(Closing):
    """Runs of one subject and operation under the name `campaign` and suffixes of it; a context
    manager that always stores new runs. `fresh` counts them; `warning` reports an unusual state of
    the machine, or is empty."""

    def __init__(self, machine: Machine, subject: Workload, op: Op, campaign: str) -> None:
        self.machine, self.subject, self.op = machine, subject, op
        self.campaign = campaign
        self.fresh = 0
        self.warning = ""
        self._usual = machine.db.store.usual_at(machine.here.id)
        self._recorder = Recorder(machine, subject, op, campaign)
        self._saved_at = -math.inf

    def close(self) -> None:
        self.save()

    def stored(self, part: str = "") -> dict[Config, list[Trial]]:
        """Earlier trials under this name by configuration, in the order of time."""
        trials: dict[Config, list[Trial]] = {}
        stored = self.machine.stored(self.subject, self.op)
        own = [run for run in stored if run.campaign == self.campaign + part]
        for run in sorted(own, key=lambda run: run.measurement.when):
            trials.setdefault(run.config, []).append(_trial(run))
        return trials

    def known(self) -> dict[Config, list[Trial]]:
        """Earlier trials of the search; on a simulated platform also runs under other names, which
        cost nothing here."""
        trials = self.stored()
        for config, run in self.machine.known(self.subject, self.op).items():
            if run.campaign != self.campaign:
                trials.setdefault(config, []).append(_trial(run)._replace(hardware_s=0.0))
        return trials

    def measure(self, configs: Sequence[Config], part: str = "") -> Iterator[tuple[Config, Trial]]:
        """Run configurations, yielding each trial at once. Raises: RunnerUnavailable if the machine
        fails in the middle."""
        if not self._recorder.runs:
            self._saved_at = time.monotonic()
        for run in self._recorder.measure(configs, part=part, timed=True):
            self.fresh += 1
            yield run.config, _trial(run)
            if time.monotonic() - self._saved_at > _SAVE_EVERY_S:
                self.save()

    def save(self) -> None:
        """Store new runs."""
        runs, self._saved_at = self._recorder.keep(), time.monotonic()
        if runs:
            context = runs[-1].measurement.context
            self.warning = state_warning(context, self._usual()) or self.warning


def _trial(run: Run) -> Trial:
    m = run.measurement
    took = m.context.get(HARDWARE_S)
    error = "" if m.ok else f"{m.status}: {m.error}"
    return Trial(run.seconds, took if isinstance(took, float) else 0.0, error)


@dataclass(slots=True, kw_only=True)
class Tuned:
    """The outcome of tuning a kernel or a matrix. `by` names the ranking of `ranked`
    configurations; `model` is the version of its model, which took `model_s`.

    `tried` are the seconds of the search by configuration, infinite for those in `failed`, which
    has their errors; `rounds` the final ones of the default and the fastest, the `finalists`. The
    search took `hardware_s`, earlier sessions included, and the rounds `rounds_s` now. `fresh` is
    the number of new runs, `warning` reports an unusual state of the machine. `exact` times do not
    vary, so nothing is repeated.
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
        """The fastest of the finalists and the default, by the final rounds."""
        return min((*self.finalists, self.default), key=self.again_s)

    def again_s(self, config: Config) -> float:
        """The median of its rounds, else its time in the search; infinite without either."""
        seconds = finite_median(self.rounds.get(config, ()))
        return seconds if math.isfinite(seconds) else self.tried.get(config, math.inf)

    @property
    def gain(self) -> float | None:
        """Speedup of the best over the default; None if either failed."""
        return speedup(self.again_s(self.default), self.again_s(self.best))

    @property
    def apart(self) -> bool:
        """True if the best was faster than the default in every pair of rounds."""
        if self.exact:
            return self.best != self.default
        best, default = self.rounds.get(self.best, ()), self.rounds.get(self.default, ())
        return bool(best) and bool(default) and max(best) < min(default)


#: Progress callback with the seconds spent.
Report = Callable[[float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """A search of so many `seconds`, in which the default runs again before every `default_every`
    others (0: once); then so many `rounds` of the default and the `finalists` fastest."""

    seconds: float = math.inf
    default_every: int = 0
    finalists: int = 1
    rounds: int = 3


class SpaceSteps:
    """`Steps` among the legal configurations of a space, with cached neighbours."""

    def __init__(self, space: ConfigSpace) -> None:
        self.space = space
        self._near = cache(space.neighbours)

    def near(self, state: Config, rng: np.random.Generator) -> Config:
        near = self._near(state)
        return near[int(rng.integers(len(near)))] if near else state

    def anywhere(self, rng: np.random.Generator) -> Config:
        return next(iter(self.space.sample(1, rng=rng)))


def in_order(
    done: Tuned, trials: Trials, ranked: Sequence[Config], effort: Effort, report: Report
) -> None:
    """Run the default, then the ranked configurations, until the seconds are spent; the current run
    is finished. Stored trials count and are not repeated."""
    measured = trials.known()
    done.hardware_s = sum(trial.hardware_s for each in measured.values() for trial in each)
    rest = [c for c in dict.fromkeys(ranked) if c not in measured and c != done.default]
    every = effort.default_every or len(rest) + 1
    batches = [rest[at : at + every] for at in range(0, len(rest), every)]
    if done.default not in measured:
        batches = batches or [[]]
    try:
        for at, batch in enumerate(batches):
            if done.hardware_s >= effort.seconds:
                break
            again = effort.default_every or (at == 0 and done.default not in measured)
            for config, trial in trials.measure([done.default, *batch] if again else batch):
                measured.setdefault(config, []).append(trial)
                done.hardware_s += trial.hardware_s
                report(done.hardware_s)
                if done.hardware_s >= effort.seconds:
                    break
    finally:
        _add_trials(done, {c: measured[c] for c in (done.default, *ranked) if c in measured})


def annealed(
    done: Tuned, trials: Trials, space: ConfigSpace, effort: Effort, *, seed: int, report: Report
) -> None:
    """Anneal from the default on measured seconds. Stored trials are replayed with their cost, so
    that an interrupted walk continues; one with a larger budget cools more slowly and may take
    another path, but uses them all the same."""
    before = trials.known()
    visited: dict[Config, list[Trial]] = {}

    def price(config: Config) -> float:
        own = before.get(config) or [trial for _, trial in trials.measure([config])]
        visited[config] = own
        done.hardware_s += sum(trial.hardware_s for trial in own)
        report(done.hardware_s)
        return finite_median(trial.seconds for trial in own)

    annealer = Annealer(SpaceSteps(space), done.default, rng=np.random.default_rng(seed))
    for _ in anneal(annealer, price, lambda: done.hardware_s, effort.seconds):
        pass
    _add_trials(done, before | visited)


def final_rounds(
    done: Tuned, trials: Trials, effort: Effort, report: Callable[[int], None]
) -> None:
    """Run the default and the fastest in rounds, each starting with another one."""
    ran = [c for c, seconds in done.tried.items() if math.isfinite(seconds)]
    done.finalists = tuple(heapq.nsmallest(effort.finalists, ran, key=done.tried.__getitem__))
    stored = trials.stored(ROUNDS)
    contenders = dict.fromkeys((done.default, *done.finalists))
    done.rounds = {c: [trial.seconds for trial in stored.get(c, ())] for c in contenders}
    for turn in turns(done.rounds, effort.rounds, report):
        for config, trial in trials.measure(turn, ROUNDS):
            done.rounds[config].append(trial.seconds)
            done.rounds_s += trial.hardware_s


def turns(
    rounds: Mapping[S, Sequence[object]], count: int, report: Callable[[int], None]
) -> Iterator[list[S]]:
    """The contenders of each missing round of `count`, rotated by one each time; `rounds` has the
    measurements so far."""
    contenders = list(rounds)
    for at in range(min(map(len, rounds.values())), count):
        report(at)
        first = at % len(contenders)
        yield [*contenders[first:], *contenders[:first]]


def _add_trials(done: Tuned, trials: dict[Config, list[Trial]]) -> None:
    done.tried = {c: finite_median(trial.seconds for trial in own) for c, own in trials.items()}
    failed = [c for c, seconds in done.tried.items() if math.isinf(seconds)]
    done.failed = {config: trials[config][-1].error for config in failed}

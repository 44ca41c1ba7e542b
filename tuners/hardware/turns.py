"""The turns of a tuning: what is ranked runs once, as far as the seconds go, or annealing goes by
measured seconds; then the fastest run again beside the default."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from embeddb.core.config import Config
from embeddb.core.records import ROUNDS
from embeddb.platforms.space.space import ConfigSpace
from tuners.hardware.annealing import Annealer, anneal
from tuners.hardware.outcome import Tuned
from tuners.hardware.trials import Trial, Trials, middle

__all__ = ["Effort", "SpaceSteps", "annealed", "final_rounds", "in_order"]

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
    """From one legal configuration to the next (`tuners.hardware.annealing.Steps`); what is near is
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
    turn = list(dict.fromkeys((done.default, *done.finalists)))
    done.rounds = {c: [trial.seconds for trial in known.get(c, ())] for c in turn}
    for at in range(min(map(len, done.rounds.values())), effort.rounds):
        told(at)
        first = at % len(turn)
        for config, trial in trials.measure([*turn[first:], *turn[:first]], ROUNDS):
            done.rounds[config].append(trial.seconds)
            done.rounds_s += trial.hardware_s


def _tell(done: Tuned, held: dict[Config, list[Trial]]) -> None:
    done.tried = {config: middle(each) for config, each in held.items()}
    failed = [c for c, seconds in done.tried.items() if math.isinf(seconds)]
    done.failed = {config: held[config][-1].error for config in failed}

"""Measuring an answer: its configurations run on this machine and are ranked by their times."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from embeddb.core.checked_run import exact_runs
from embeddb.core.config import Config, Op
from embeddb.core.records import Measurement, Run, failure_kinds
from embeddb.core.reports import Progress
from embeddb.core.timing import (
    APART,
    State,
    TimingSummary,
    distance,
    state_of,
    summarise_runs,
)
from embeddb.core.wording import plural
from embeddb.core.workload import Workload
from embeddb.index.lookup import Lookup
from embeddb.index.recorder import Machine, Recorder
from embeddb.platforms.platform import Platform, platform_here, runner_for
from embeddb.ranking.alternatives import Deepen, renewed
from embeddb.ranking.answers import keep
from embeddb.ranking.break_even import measured_break_even
from embeddb.ranking.confidence import SETTLED, default_fails
from embeddb.ranking.order_reason import often_failed, with_order_reasons
from embeddb.ranking.recommendation import Candidate, Recommendation, default_proposal

#: Most reasons of failed runs that are displayed.
_REASONS = 3
#: Measures configurations, or replays them, in the order given; first those with known results.
Measure = Callable[[Sequence[Config]], Iterable[tuple[Config, Measurement]]]
#: Measures candidates of an answer, and returns them.
Search = Callable[[Recommendation, Measure], list[Candidate]]


@dataclass(frozen=True, slots=True)
class Remeasurement:
    """Settings for measuring an answer: `options` of the runner, number of `rounds`.

    `platform` is the queried one, where only its file may be run; else the database's is used. A
    `search` before the `rounds` measures configurations and replaces the candidates. `deepen` is as
    in `recommend`.
    """

    options: Any
    rounds: int = 1
    platform: Platform | None = None
    search: Search | None = None
    deepen: Deepen | None = None


def measure_answer(
    lookup: Lookup,
    answer: Recommendation,
    pattern: Workload,
    how: Remeasurement,
    *,
    progress: Progress | None = None,
) -> Recommendation:
    """Run default and candidates on this machine, store the runs, rank by the measured times. On a
    simulated platform stored runs count, and nothing runs twice.

    Raises: RunnerUnavailable if the platform cannot be measured here, or the machine fails
    meanwhile: earlier measurements are stored.
    """
    options, search = how.options, how.search
    runner = runner_for(how.platform or lookup.platform(answer.platform))
    here = platform_here(runner, threads=options.threads)
    op = Op.parse(answer.op)
    usual = lookup.store.usual_at(here.id)()
    machine = Machine(lookup, runner, here, options)
    recorder, runs = Recorder(machine, pattern, op, f"query:{answer.id}"), list[Run]()
    total = len(_measured(answer)) * (how.rounds + (search is not None))
    stored = machine.known(pattern, op)

    def run(configs: Sequence[Config]) -> Iterator[tuple[Config, Measurement]]:
        yield from ((config, stored[config].measurement) for config in configs if config in stored)
        fresh = [config for config in configs if config not in stored]
        for one in recorder.measure(fresh):
            stored.update(exact_runs([one]) if here.simulated else {})
            if progress is not None:
                progress("measure", len(recorder.runs), total)
            yield one.config, one.measurement

    try:
        # A simulator is deterministic.
        answer = _candidates_run(answer, run, 1 if here.simulated else how.rounds, search)
    finally:  # measurements are stored even after an interrupt or an error of the tuner
        runs = recorder.finish() if lookup.store.readonly else recorder.keep()
    ran = {run.config for run in runs}
    runs += [stored[c] for c in _measured(answer) if c in stored and c not in ran]
    done = measured_break_even(ranked_by_time(answer, summarise_runs(runs)), runs)
    warnings = [*done.warnings, *_failures(runs)]
    warnings += filter(None, [state_warning(runs[0].measurement.context, usual)])
    done = msgspec.structs.replace(done, platform=here.id, warnings=warnings)
    if not lookup.store.readonly:
        done = keep(lookup, done)
    elif how.deepen is None:
        return done
    return renewed(lookup, done, pattern, here, deepen=how.deepen)


def _candidates_run(
    answer: Recommendation, run: Measure, rounds: int, search: Search | None
) -> Recommendation:
    """The answer, with the candidates of a search if there is one; runs all of them and the default
    once in every round, each time in another order."""
    if search is not None:
        answer = msgspec.structs.replace(answer, candidates=search(answer, run))
    configs = _measured(answer)
    for at in range(rounds):
        order = np.random.default_rng(answer.seed + at).permutation(len(configs))
        for _ in run([configs[i] for i in order]):
            pass
    return answer


def _failures(runs: Sequence[Run]) -> list[str]:
    """One line for each of the most frequent reasons of failed runs."""
    failed = (run.measurement for run in runs if run.measurement.error)
    reasons = failure_kinds(Counter((m.status, m.error) for m in failed))
    return [
        f"{plural(count, 'run')} failed ({status}): {error}"
        for (status, error), count in reasons.most_common(_REASONS)
    ]


def _measured(answer: Recommendation) -> list[Config]:
    """The default and the candidates, each once."""
    return list(
        dict.fromkeys(map(Config, [answer.default, *(c.config for c in answer.candidates)]))
    )


def state_warning(context: Mapping[str, Any], normal: State) -> str:
    """A warning if this machine's state differs from that of its stored runs."""
    far = distance(state_of(context), normal)
    if far is None or far <= APART:
        return ""
    return (
        f"this machine is not in the state its evidence is of: what it does now and did then are "
        f"{math.exp(far):.1f} times apart, so measure again when it is quiet"
    )


def _timed(candidate: Candidate, curve: TimingSummary) -> Candidate:
    """The candidate with its measured time and failures."""
    return msgspec.structs.replace(
        candidate,
        seconds=curve.seconds if math.isfinite(curve.seconds) else None,
        status=curve.status,
        failure=curve.failing if curve.failed else None,
        order_reason=often_failed(curve),
    )


def ranked_by_time(
    answer: Recommendation, curves: Mapping[Config, TimingSummary]
) -> Recommendation:
    """The answer with measured times of default and candidates, fastest first, failures last; the
    default is a candidate where it is the fastest."""
    measured = [_timed(one, curves[Config(one.config)]) for one in answer.candidates]
    calls = answer.calls or math.inf

    def cost(c: Candidate) -> float:
        """Seconds per call, with the preparation shared out over the calls."""
        return (c.seconds or 0.0) + curves[Config(c.config)].conversion_s / calls

    def key(c: Candidate) -> tuple[bool, bool, float, float]:
        return c.seconds is None, bool(c.order_reason), cost(c), c.score

    measured.sort(key=key)
    default, default_s = curves.get(Config(answer.default)), None
    warnings = [line for line in answer.warnings if not line.startswith(SETTLED)]
    if default is not None and math.isfinite(default.seconds):
        default_s = default.seconds
        own = _timed(default_proposal(answer.default), default)
        ranked = Config(answer.default) in [Config(c.config) for c in measured]
        if not ranked and min([*measured, own], key=key) is own:
            measured.insert(0, own)
    elif default is not None and (fails := default_fails(default.status)) not in warnings:
        warnings.append(fails)
    done = msgspec.structs.replace(
        answer, candidates=measured, default_seconds=default_s, warnings=warnings
    )
    return with_order_reasons(done)

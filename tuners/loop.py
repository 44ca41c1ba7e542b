"""The one loop that asks, measures, tells and records; and the query around it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from embeddb.core.config import Config, Op
from embeddb.core.errors import RunnerUnavailable
from embeddb.core.machine_state import APART, State, apart, between, state_now, state_of, usual_at
from embeddb.core.pattern import Pattern
from embeddb.core.records import Measurement, PatternInfo, Run, in_context
from embeddb.core.thumbnail import thumbnail
from embeddb.database import Database
from embeddb.index.run_matrix import Timing, timings_of
from embeddb.platforms.platform import Platform, platform_here, runner_for
from embeddb.query.alternatives import insight, renewed
from embeddb.query.break_even import measured_break_even, with_break_even
from embeddb.query.confidence import confidence_of
from embeddb.query.fallback import Answer, answer
from embeddb.query.query import Candidate, Query, Recommendation, RecommendedNeighbour

__all__ = ["local_platform", "measure_answer", "ranked_by_time", "recommend", "tune"]


def local_platform(platform: Platform) -> Platform:
    """The platform as it is on this machine, if it can be measured here; else unchanged."""
    if platform.instance or not platform.runner:
        return platform
    try:
        found: Platform = runner_for(platform).platform()
    except RunnerUnavailable:
        return platform
    return found


def recommend(
    db: Database,
    pattern: Pattern | PatternInfo,
    platform: Platform,
    op: Op,
    *,
    count: int = 5,
    calls: float = math.inf,
    seed: int = 0,
    deep: bool = False,
) -> Recommendation:
    """Rank configurations for a pattern and keep the answer in the store; with `deep` also find
    out what would change it, which costs seconds.

    Raises: UsageError if the platform has no such op; NothingFound if the pattern is known by
    name only and the evidence needs more.
    """
    stages: dict[str, float] = {}
    query = db.prepare(pattern, platform, op, calls=calls, stages_s=stages)
    started = time.perf_counter()
    found = answer(query, count, rng=np.random.default_rng(seed))
    stages["transfer"] = time.perf_counter() - started
    structure = pattern if isinstance(pattern, Pattern) else None
    about = insight(query, found, db, pattern=structure, deep=deep)
    stages["insight"] = time.perf_counter() - started - stages["transfer"]
    made = _recommendation(db, query, found, seed=seed)
    asked = _pictured(db, query.pattern, structure)
    made = msgspec.structs.replace(made, stages_s=stages, insight=about, pattern=asked)
    if db.store.readonly:
        note = "the database is read-only: this answer was not stored"
        return msgspec.structs.replace(made, warnings=[*made.warnings, note])
    db.keep(made)
    stages["store"] = time.perf_counter() - started - stages["transfer"] - stages["insight"]
    return made


def _pictured(db: Database, info: PatternInfo, structure: Pattern | None) -> PatternInfo:
    """What an explanation shows of the matrix, which need not be in the store."""
    known = db.store.pattern(info.id)
    picture = info.thumbnail or (known.thumbnail if known is not None else b"")
    if not picture and structure is not None:
        picture = thumbnail(structure)
    return msgspec.structs.replace(info, thumbnail=picture, features={}, about={})


def _recommendation(db: Database, query: Query, found: Answer, *, seed: int) -> Recommendation:
    created = time.time()
    confidence, warnings = confidence_of(found.rankers.chosen, found.link, found.first)
    warnings += db.repairs()
    if query.model_note:
        warnings.append(query.model_note)
    if query.platform.simulated:
        warnings.append("this platform is simulated or modelled: no time is of real hardware")
    own_default = query.own.get(query.default)
    generation = db.store.generation
    return Recommendation(
        id=Recommendation.make_id(
            query.pattern.id, query.op, query.platform.id, generation, created
        ),
        pattern_id=query.pattern.id,
        pattern_name=query.pattern.name,
        platform=query.platform.id,
        op=str(query.op),
        link=found.link,
        tuner=found.tuner,
        default=dict(query.default),
        candidates=with_break_even(query, found.candidates),
        neighbours=_neighbours(query),
        confidence=confidence,
        warnings=warnings,
        rejected={str(config): reason for config, reason in query.rejected.items()},
        features=db.named_features(query),
        evidence_op=str(query.evidence_op or query.op),
        featurizer=query.featurizer,
        featurizer_version=db.featurizer_version(query.featurizer),
        generation=generation,
        seed=seed,
        calls=query.calls if math.isfinite(query.calls) else None,
        simulated=query.platform.simulated,
        noise=query.noise,
        created=created,
        default_seconds=own_default.seconds
        if own_default is not None and math.isfinite(own_default.seconds)
        else None,
        model=found.model,
        reproducible=query.platform.kernel(query.op).reproducible,
        model_featurizer=query.model_featurizer if found.model else "",
        machines={name: share for name, share in query.machines.items() if share > 0.0},
    )


def _neighbours(query: Query) -> list[RecommendedNeighbour]:
    return [
        RecommendedNeighbour(
            n.pattern_id,
            n.platform,
            n.name,
            n.distance,
            n.percentile if math.isfinite(n.percentile) else None,
            float(w),
            n.op,
        )
        for n, w in zip(query.neighbours, query.weights, strict=True)
    ]


def tune(
    tuner: Any,
    run: Callable[[Sequence[Config]], Any],
    *,
    budget: int,
    batch: int = 1,
) -> list[tuple[Config, Measurement]]:
    """Ask, measure, tell until the budget is spent or the tuner has nothing more to propose.

    `run` yields (config, measurement); it may measure or replay. A budget counts measurements.
    """
    done: list[tuple[Config, Measurement]] = []
    while len(done) < budget:
        asked = tuner.ask(min(batch, budget - len(done)))
        if not asked:
            break
        for config, measurement in run([Config(c.config) for c in asked]):
            tuner.tell(config, measurement)
            done.append((config, measurement))
    return done


def measure_answer(
    db: Database,
    made: Recommendation,
    pattern: Pattern,
    *,
    options: Any,
    rounds: int = 1,
    platform: Platform | None = None,
    progress: Callable[[str], None] | None = None,
) -> Recommendation:
    """Run default and candidates on this machine, write the runs back, rank by what was measured.

    `platform` is the one asked about, where only its file may be run; else the database's is taken.

    Raises: RunnerUnavailable if the platform cannot be measured here.
    """
    runner = runner_for(platform or db.platform(made.platform))
    here = platform_here(runner, threads=options.threads)
    op = Op.parse(made.op)
    configs = list(
        dict.fromkeys([Config(made.default), *(Config(c.config) for c in made.candidates)])
    )
    before = state_now(runner, threads=options.threads)
    runs = []
    for at in range(rounds):
        order = np.random.default_rng(made.seed + at).permutation(len(configs))
        for config, m in runner.run(pattern, op, [configs[i] for i in order], options=options):
            runs.append(Run(pattern.id, op, here.id, config, m, f"query:{made.id}"))
            if progress is not None:
                progress(f"{config}: {m.status}")
    state = between(before, state_now(runner, threads=options.threads))
    runs = [replace(run, measurement=in_context(run.measurement, state)) for run in runs]
    done = measured_break_even(ranked_by_time(made, timings_of(runs)), runs)
    done = msgspec.structs.replace(done, platform=here.id)
    if warning := _state_warning(state, usual_at(db.store, here.id)()):
        done = msgspec.structs.replace(done, warnings=[*done.warnings, warning])
    if not db.store.readonly:
        db.record(runs, pattern, here)
    if db.store.readonly:
        return done
    db.keep(done)
    return renewed(db, done, pattern, here, deep=made.insight.deep)


def _state_warning(context: Mapping[str, float], normal: State) -> str:
    """One sentence where this machine is not in the state its stored runs were made in."""
    far = apart(state_of(context), normal)
    if far is None or far <= APART:
        return ""
    return (
        f"this machine is not in the state its evidence is of: what it does now and did then are "
        f"{math.exp(far):.1f} times apart, so measure again when it is quiet"
    )


def ranked_by_time(made: Recommendation, curves: Mapping[Config, Timing]) -> Recommendation:
    """The answer with what its default and candidates took, fastest first, failures last."""
    measured = []
    for candidate in made.candidates:
        curve = curves[Config(candidate.config)]
        seconds = curve.seconds if math.isfinite(curve.seconds) else None
        measured.append(msgspec.structs.replace(candidate, seconds=seconds, status=curve.status))
    calls = made.calls or math.inf

    def cost(c: Candidate) -> float:
        """Per call, with preparation shared out as it was where the answer was ranked."""
        return (c.seconds or 0.0) + curves[Config(c.config)].conversion_s / calls

    measured.sort(key=lambda c: (c.seconds is None, cost(c), c.score))
    default = curves.get(Config(made.default))
    known = default is not None and math.isfinite(default.seconds)
    return msgspec.structs.replace(
        made, candidates=measured, default_seconds=default.seconds if default and known else None
    )

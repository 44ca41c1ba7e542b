"""The default and other configurations of one matrix, run on this machine and written back."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from embeddb.core.config import Config, Op
from embeddb.core.machine_state import between, state_now
from embeddb.core.records import Measurement, Run, in_context
from embeddb.core.reports import Progress
from embeddb.core.subject import Subject
from embeddb.core.timing import Timing, timings_of
from embeddb.index.lookup import Lookup
from embeddb.platforms.of_subject import default_of, space_of
from embeddb.platforms.platform import Platform
from embeddb.platforms.space.space import ConfigSpace
from indexer.campaign.plan import choose_configs
from indexer.runners.base import RunOptions

__all__ = ["MeasureJob", "MeasureRequest", "Measured"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureRequest:
    """What is run of each matrix, beside the default: the `given` configurations, or a sample of so
    many `configs`; `seed` is that of the sample and of the order. With `baselines` other libraries
    are timed too."""

    op: Op
    given: Sequence[str] = ()
    configs: int = 10
    seed: int = 0
    baselines: bool = False
    options: RunOptions = field(default_factory=RunOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What was measured on one matrix: by configuration, and by the name of a library. `errors` are
    the reasons of the configurations that failed."""

    pattern: Subject
    platform: Platform
    op: Op
    default: Config
    timings: dict[Config, Timing]
    errors: dict[Config, str]
    baselines: dict[str, Measurement]

    def document(self) -> dict[str, Any]:
        """As plain values, the fastest configuration first; `gain` is over the default. `failures`
        counts the failed configurations by status and reason, the most frequent first."""
        base = self.timings[self.default].seconds if self.default in self.timings else math.inf
        ranked = sorted(self.timings.items(), key=lambda pair: (pair[1].seconds, pair[0].json))
        return {
            "pattern_id": self.pattern.id,
            "name": self.pattern.name,
            "platform": self.platform.id,
            "op": str(self.op),
            "time_unit": self.platform.time_unit,
            "default": {"config": dict(self.default), **_outcome(base, "")},
            "configs": [
                {
                    "config": dict(config),
                    **_outcome(timing.seconds, timing.status, self.errors.get(config, "")),
                    "gain": base / timing.seconds if base < math.inf else None,
                }
                for config, timing in ranked
            ],
            "failures": self._failures(),
            "baselines": {name: _baseline(m) for name, m in self.baselines.items()},
        }

    def _failures(self) -> list[dict[str, Any]]:
        reasons = Counter(
            (timing.status, self.errors.get(config, ""))
            for config, timing in self.timings.items()
            if not math.isfinite(timing.seconds)
        )
        return [
            {"status": status, "error": error, "configs": count}
            for (status, error), count in reasons.most_common()
        ]


def _baseline(m: Measurement) -> dict[str, Any]:
    apart = {"conversion_s": m.conversion_s, "compile_s": m.compile_s}
    return {**_outcome(m.seconds, m.status), **apart}


def _outcome(seconds: float, status: str, error: str = "") -> dict[str, Any]:
    outcome: dict[str, Any] = {"seconds": seconds if math.isfinite(seconds) else None}
    words = {"status": status, "error": error}
    return {**outcome, **{name: text for name, text in words.items() if text}}


@dataclass(frozen=True, slots=True)
class MeasureJob:
    """Measures into `db` with a runner on `here`, the platform as this machine is."""

    db: Lookup
    runner: Any
    here: Platform
    request: MeasureRequest

    @property
    def has_baselines(self) -> bool:
        """Whether there is anything to compare with."""
        return hasattr(self.runner, "baselines")

    def run(self, pattern: Subject, progress: Progress | None = None) -> Measured:
        """Writes back what was measured, also when it is interrupted.

        Raises: SpaceError, UsageError for a configuration that is not legal here; RunnerUnavailable
        if the machine fails in the middle of it.
        """
        asked = self.request
        default = default_of(self.here, asked.op, pattern)
        configs = self._configs(pattern, default)
        runs: list[Run] = []
        before, after = self._state(), {}
        try:
            for config, measured in self.runner.run(
                pattern, asked.op, configs, options=asked.options
            ):
                runs.append(Run(pattern.id, asked.op, self.here.id, config, measured, "measure"))
                if progress is not None:
                    progress(f"measure {pattern.name}", len(runs), len(configs))
            after = self._state()
        finally:
            if runs:
                state = between(before, after)
                runs = [replace(r, measurement=in_context(r.measurement, state)) for r in runs]
                self.db.record(runs, pattern, self.here)
        return Measured(
            pattern=pattern,
            platform=self.here,
            op=asked.op,
            default=default,
            timings=timings_of(runs),
            errors={r.config: r.measurement.error for r in runs if not r.measurement.ok},
            baselines=self._baselines(pattern),
        )

    def _state(self) -> dict[str, float]:
        return state_now(self.runner, threads=self.request.options.threads)

    def _configs(self, pattern: Subject, default: Config) -> list[Config]:
        """The default and what was asked for, in a shuffled order."""
        asked = self.request
        rng = np.random.default_rng(asked.seed)
        space = space_of(self.here, asked.op, pattern)
        if asked.given:
            chosen = list(dict.fromkeys([default, *_legal(space, asked.given)]))
        else:
            chosen = choose_configs(space, default, asked.configs + 1, rng=rng)
        return [chosen[i] for i in rng.permutation(len(chosen))]

    def _baselines(self, pattern: Subject) -> dict[str, Measurement]:
        if not (self.request.baselines and self.has_baselines):
            return {}
        found: dict[str, Measurement] = self.runner.baselines(
            pattern, self.request.op, options=self.request.options
        )
        return found


def _legal(space: ConfigSpace, texts: Sequence[str]) -> list[Config]:
    """Raises: SpaceError, UsageError for one that is not."""
    configs = [space.canonical(Config.parse(text)) for text in texts]
    for config in configs:
        space.check(config)
    return configs

"""How good a cost model is on groups it never saw: what its card says, queries go by, and the
predictor is chosen by."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from embeddb.core.config import Config, Op
from embeddb.core.errors import NothingFound, UsageError
from embeddb.database import Database
from embeddb.ui.cli.output import note

if TYPE_CHECKING:
    from embeddb.cost_model.model import CostModel
    from indexer.training.cost_model.samples import Samples
    from indexer.training.cost_model.train import CostSettings
    from tuners.evaluation.bench import Bench
    from tuners.evaluation.learned import Seen

__all__ = ["HeldOut", "Hidden", "Judge", "better", "candidates", "hidden_configs", "limited"]

#: By op and method, `of_optimum@1` and `@5`.
HeldOut = dict[str, dict[str, dict[str, float]]]

#: By op, figures of answers among which hidden configurations were.
Hidden = dict[str, dict[str, float | bool]]

#: Share of the configurations that are hidden, and in how many folds of families.
_HIDDEN, _HIDDEN_FOLDS = 0.25, 2
#: Configurations of one matrix among `--samples` (COGNATE, Section 4.1: 5 matrices x 100).
_PER_MATRIX = 100
_FOLDS = 5


def limited(found: Samples, asked: Mapping[str, Any]) -> Samples:
    """What `--samples` leaves of them; all without it."""
    if not asked["samples"]:
        return found
    most = int(np.diff(found.indptr).max(initial=1))
    each = min(_PER_MATRIX, most, asked["samples"])
    # Two matrices at least: one alone says nothing of what differs between matrices.
    matrices = max(2, asked["samples"] // each)
    return found.limited(matrices, min(each, asked["samples"] // 2 or 1), asked["seed"])


def candidates(
    asked: Mapping[str, Any], samples: Samples, start: CostModel | None
) -> tuple[tuple[str, ...], str]:
    """The predictors that may become the model, the likeliest first, and why it is these; empty
    where one was asked for."""
    from indexer.training.cost_model.train import LEAST_GROUPS
    from indexer.training.cost_model.trees import available

    if asked["predictor"] != "auto":
        return (asked["predictor"],), ""
    groups = np.unique(samples.groups).size
    if start is not None and start.card["settings"]["predictor"] == "trees":
        return ("trees",), "trees: that is what the model to start from is of"
    if not available():
        return ("mlp",), "mlp: for trees, lightgbm is missing (extra `learn`)"
    if groups < LEAST_GROUPS:
        return ("trees",), f"trees: from {groups} groups they learn more than networks"
    if asked["no_judge"]:
        return ("mlp",), "mlp: with --no-judge, trees are not tried beside it"
    return ("mlp", "trees"), ""


def better(found: Mapping[str, HeldOut]) -> tuple[str, str]:
    """The predictor with the largest mean share of the optimum at 1, alone, and the line that says
    so; of equal ones the first."""
    shares = {
        name: [methods["rank"]["of_optimum@1"] for methods in held.values()]
        for name, held in found.items()
    }
    means = {name: float(np.mean(s)) if s else 0.0 for name, s in shares.items()}
    best = max(means, key=lambda name: means[name])
    told = ", ".join(f"{name} {mean:.3f}" for name, mean in means.items())
    return best, f"{best}: of the optimum at 1 on held-out groups, {told}"


@dataclass(frozen=True)
class Judge:
    """Trains as the verb was asked to, in every fold anew, and asks about what was left out.

    The folds are those of all ops together, so that a model of several widths never saw a held-out
    matrix at another width.
    """

    db: Database
    scope: str
    settings: CostSettings
    start: CostModel | None
    asked: Mapping[str, Any]
    instance: str

    def __call__(self, samples: Samples, progress: Callable[[str, int, int], None]) -> HeldOut:
        """The card's `held_out`; an op with nothing to hold out is left out, and said."""
        from indexer.training.cost_model.train import train
        from tuners.evaluation.learned import held_out, seen_by
        from tuners.evaluation.splits import split_groups

        groups = samples.groups
        fold = split_groups(groups, min(_FOLDS, np.unique(groups).size), 0)
        parts = [samples.take(np.flatnonzero(fold != at)) for at in range(int(fold.max()) + 1)]
        if not all(_teaches(limited(part, self.asked)) for part in parts):
            note("warning: too few runs to hold any out: it is not judged, so it will not rank")
            return {}
        fold_of = dict(zip(groups.tolist(), fold.tolist(), strict=True))
        benches = {op: self._bench(op) for op in samples.ops}
        seen: dict[Op, list[list[Seen]]] = {op: [] for op in benches}
        for at in range(int(fold.max()) + 1):
            known = limited(parts[at], self.asked)
            told = _Part(progress, at, int(fold.max()) + 1)
            scorer = train(known, self.settings, start=self.start, progress=told)
            for op, bench in benches.items():
                held = np.array([fold_of.get(g, -1) == at for g in bench.evidence.groups])
                test = bench.counted[held[bench.counted]]
                seen[op].append(seen_by(bench, scorer, np.flatnonzero(~held), test))
        found = {}
        for op, by_fold in seen.items():
            try:
                found[str(op)] = held_out(by_fold)
            except NothingFound as e:
                note(f"warning: {op} on {self.scope}: {e}")
        return found

    def hidden(self, samples: Samples, progress: Callable[[str, int, int], None]) -> Hidden:
        """The card's `hidden`, by op: what share of the optimum the first answer reaches where
        `_HIDDEN` of the configurations were hidden from training as well as families, if it is
        any (`all`) and if it is one that ran (`known`), and whether the former is surely better.
        Empty where every legal configuration ran: then there is nothing it could say."""
        from indexer.training.cost_model.train import train
        from tuners.evaluation.learned import hidden_figures, seen_by
        from tuners.evaluation.splits import split_groups

        benches = {op: self._bench(op) for op in samples.ops if self._has_unrun(op, samples)}
        if not benches or np.unique(samples.groups).size < _HIDDEN_FOLDS:
            return {}
        fold = split_groups(samples.groups, _HIDDEN_FOLDS, 1)
        fold_of = dict(zip(samples.groups.tolist(), fold.tolist(), strict=True))
        seen: dict[Op, list[tuple[list[Seen], set[Config]]]] = {op: [] for op in benches}
        for at in range(_HIDDEN_FOLDS):
            out = hidden_configs(samples, at)
            known = limited(samples.take(np.flatnonzero(fold != at)), self.asked).without(out)
            if not _teaches(known):
                return {}
            told = _Part(progress, at, _HIDDEN_FOLDS)
            scorer = train(known, self.settings, start=self.start, progress=told)
            for op, bench in benches.items():
                held = np.array([fold_of.get(g, -1) == at for g in bench.evidence.groups])
                test = bench.counted[held[bench.counted]]
                asked = seen_by(bench, scorer, np.flatnonzero(~held), test)
                seen[op].append((asked, out))
        return {str(op): hidden_figures(parts) for op, parts in seen.items()}

    def _has_unrun(self, op: Op, samples: Samples) -> bool:
        space = samples.platform.space(op)
        size, ran = space.size(), sum(space.reason(c) is None for c in samples.configs)
        return size is None or ran < size

    def _bench(self, op: Op) -> Bench:
        from tuners.evaluation.bench import Bench

        instance = self.instance if self.db.platform(self.instance).portable else ""
        bench = Bench(self.db, op, self.scope, instance=instance)
        name = self.asked["featurizer"]
        bench.vectors = {name: bench.vectors.get(name, {}), **bench.vectors}
        return bench


def _teaches(samples: Samples) -> bool:
    """Whether anything can be learned from them."""
    try:
        samples.check()
    except UsageError:
        return False
    return True


def hidden_configs(samples: Samples, fold: int) -> set[Config]:
    """A share of what ran, never a default: that always runs."""
    defaults = {
        samples.platform.default(row.op, m=m, n=n, nnz=nnz)
        for row in samples.rows
        for m, n, nnz in [row.sizes]
    }
    able = [config for config in samples.configs if config not in defaults]
    order = np.random.default_rng([fold, 7]).permutation(len(able))
    return {able[i] for i in order[: int(_HIDDEN * len(able))]}


@dataclass(frozen=True)
class _Part:
    """Progress of one of several trainings, as part of the whole."""

    told: Callable[[str, int, int], None]
    at: int
    of: int

    def __call__(self, what: str, done: int, of: int) -> None:
        self.told("judge", self.at * of + done, self.of * of)

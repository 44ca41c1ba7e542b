"""A cost model of the better predictor, and how good it is on groups it never saw: what its card
says, queries go by, and the predictor is chosen by."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from embeddb.core.config import Config, Op
from embeddb.core.errors import NothingFound, UsageError
from embeddb.core.reports import Progress
from embeddb.core.sizes import Sizes
from embeddb.core.wording import plural
from embeddb.index.lookup import Lookup
from embeddb.index.scopes import scope_of

if TYPE_CHECKING:
    from embeddb.cost_model.model import CostModel
    from embeddb.learning.samples import Samples
    from indexer.training.cost_model.settings import CostSettings
    from tuners.evaluation.bench import Bench
    from tuners.evaluation.learned import Seen

#: By op and method, `of_optimum@1` and `@5`.
HeldOut = dict[str, dict[str, dict[str, float]]]

#: By op, figures of answers among which hidden configurations were.
Hidden = dict[str, dict[str, float | bool]]

#: Share of the configurations that are hidden, and in how many folds of families.
_HIDDEN, _HIDDEN_FOLDS = 0.25, 2
#: Configurations of one matrix among `--samples`: 25 x 20 is steadier than the 5 x 100 of COGNATE,
#: Section 4.1 (docs/results/few-samples.md).
_PER_MATRIX = 20
_FOLDS = 5
#: With less than this share of the runs that `--samples` asks for, it is noted.
_FEWER = 0.9
#: Of fewer runs only the Gaussian process is tried: from 500 it reaches 0.86 to 0.95 of the optimum
#: at 1, stock trees 0.71 to 0.82, networks 0.61 to 0.68 (docs/results/few-samples.md).
_FEW_RUNS = 5000


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRequest:
    """How a cost model is wanted; the defaults are those of `embeddb train costmodel`.

    `predictor` "auto" leaves the choice to what is better on held-out groups. `samples` is how many
    runs of each op are learned from (0: all), `members` how many networks or trees vote (0: as many
    as is usual). Without `judged` nothing is held out, and queries do not rank by the model.
    `network` are settings of a network in the place of the usual ones, of its predictor.
    """

    predictor: str = "auto"
    featurizer: str = "stats"
    samples: int = 0
    judged: bool = True
    network: CostSettings | None = None
    members: int = 0
    epochs: int = 60
    lr: float = 1e-3
    seed: int = 0

    def limited(self, found: Samples) -> Samples:
        """What `samples` leaves of them; all where it is 0."""
        if not self.samples:
            return found
        runs = np.diff(found.indptr)
        each = min(_PER_MATRIX, int(runs.max(initial=1)), self.samples)
        # Matrices with fewer runs make room for others. Two at least: one alone says nothing of
        # what differs between matrices.
        usual = float(np.minimum(runs, each).mean()) if runs.size else 1.0
        matrices = max(2, int(self.samples / usual))
        return found.limited(matrices, min(each, self.samples // 2 or 1), self.seed)

    def settings(self, predictor: str) -> CostSettings:
        """Those of a predictor."""
        from indexer.training.cost_model.settings import CostSettings, forest

        members: dict[str, Any] = {"members": self.members} if self.members else {}
        if predictor == "trees":
            return forest(seed=self.seed, **members)
        if predictor == "gp":
            return CostSettings(predictor="gp", members=1, seed=self.seed)
        return replace(
            self.network or CostSettings(predictor=predictor),
            epochs=self.epochs,
            few_epochs=min(CostSettings().few_epochs, self.epochs),
            lr=self.lr,
            seed=self.seed,
            **members,
        )


@dataclass(frozen=True)
class Training:
    """A cost model of a scope on its way: `known` is all there is to learn from, `start` what it
    goes on from, `folder` where its checkpoints are; `note` is told what was decided, and why."""

    db: Lookup
    known: Samples
    request: TrainingRequest
    start: CostModel | None
    folder: Path
    note: Callable[[str], None]

    def model(self, progress: Progress) -> CostModel:
        """Of the predictor asked for or of the better one, with how it was judged.

        Raises: UsageError for what cannot be learned from, or not with these settings.
        """
        from indexer.training.cost_model.train import train

        samples = self.request.limited(self.known)
        self._tell_of_few(samples)
        names, why = candidates(self.request, samples, self.start)
        if why:
            self.note(f"predictor {why}")
        settings = {name: self.request.settings(name) for name in names}
        steps = _Steps(progress, 2 * len(names) + 1 if self.request.judged else 1)
        models: dict[str, CostModel] = {}
        for name, own in settings.items():
            # The network is the first: it is what a stopped training goes on with.
            folder = None if models else self.folder
            told = steps.next(f"train {name}")
            models[name] = train(samples, own, start=self.start, folder=folder, progress=told)
        if not self.request.judged:
            return models[names[0]]
        judges = {name: self._judge(settings[name], model) for name, model in models.items()}
        held = {
            name: judge(self.known, steps.next(f"judge {name}")) for name, judge in judges.items()
        }
        best, why = better(held)
        if len(names) > 1:
            self.note(f"predictor {why}")
        model = models[best]
        model.card["held_out"] = held.pop(best)
        hidden = steps.next("judge hidden configurations")
        model.card["hidden"] = judges[best].hidden(self.known, hidden)
        for name, figures in held.items():
            own_figures = {op: methods["rank"] for op, methods in figures.items()}
            model.card["others"] = {**model.card.get("others", {}), name: own_figures}
        return model

    def _tell_of_few(self, samples: Samples) -> None:
        """Note it where there are fewer runs than were asked for."""
        wanted, runs = self.request.samples * len(samples.ops), len(samples.gain)
        if runs < _FEWER * wanted:
            matrices = len({row.pattern_id for row in samples.rows})
            self.note(
                f"warning: {runs:,} runs of {plural(matrices, 'matrix', 'matrices')} are learned "
                f"from, where --samples asks for {wanted:,}: there are no more"
            )

    def _judge(self, settings: CostSettings, model: CostModel) -> Judge:
        """Trees that left the source out are judged without it, as they answer."""
        instance = self.known.platform.id
        scope = scope_of(self.known.platform)
        left_out = settings.predictor == "trees" and "source" not in model.card
        start = None if left_out else self.start
        return Judge(self.db, scope, settings, start, self.request, instance, note=self.note)


def candidates(
    request: TrainingRequest, samples: Samples, start: CostModel | None
) -> tuple[tuple[str, ...], str]:
    """The predictors that may become the model, the likeliest first, and why it is these; empty
    where one was asked for."""
    from embeddb.learning.calibration import LEAST_GROUPS

    if request.predictor != "auto":
        return (request.predictor,), ""
    groups = np.unique(samples.groups).size
    if start is not None and start.card["settings"]["predictor"] == "trees":
        return ("trees",), "trees: that is what the model to start from is of"
    runs = len(samples.gain)
    if groups < LEAST_GROUPS or runs < _FEW_RUNS:
        few = f"from {runs:,} runs of {groups} groups it learns most"
        if start is None:
            return ("gp",), f"gp: {few}"
        return ("trees",), f"trees: {few} that goes on from a source"
    if not request.judged:
        return ("mlp",), "mlp: with --no-judge, no other is tried beside it"
    others = ("trees", *["gp"] * (start is None))
    return ("mlp", *others), ""


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
    """Trains as it was asked to, in every fold anew, and asks about what was left out.

    The folds are those of all ops together, so that a model of several widths never saw a held-out
    matrix at another width.
    """

    db: Lookup
    scope: str
    settings: CostSettings
    start: CostModel | None
    request: TrainingRequest
    instance: str
    note: Callable[[str], None]

    def __call__(self, samples: Samples, progress: Progress) -> HeldOut:
        """The card's `held_out`; an op with nothing to hold out is left out, and said."""
        from embeddb.index.held_out import split_groups
        from indexer.training.cost_model.train import train
        from tuners.evaluation.learned import held_out, seen_by

        groups = samples.groups
        fold = split_groups(groups, min(_FOLDS, np.unique(groups).size), 0)
        parts = [samples.take(np.flatnonzero(fold != at)) for at in range(int(fold.max()) + 1)]
        if not all(_teaches(self.request.limited(part)) for part in parts):
            self.note(
                "warning: too few runs to hold any out: it is not judged, so it will not rank"
            )
            return {}
        fold_of = dict(zip(groups.tolist(), fold.tolist(), strict=True))
        benches = {op: self._bench(op) for op in samples.ops}
        seen: dict[Op, list[list[Seen]]] = {op: [] for op in benches}
        for at in range(int(fold.max()) + 1):
            known = self.request.limited(parts[at])
            told = _Part(progress, at, int(fold.max()) + 1)
            scorer = train(known, self.settings, start=self.start, progress=told)
            for op, bench in benches.items():
                held = np.array([fold_of.get(g, -1) == at for g in bench.evidence.groups], bool)
                test = bench.counted[held[bench.counted]]
                seen[op].append(seen_by(bench, scorer, np.flatnonzero(~held), test))
        found = {}
        for op, by_fold in seen.items():
            try:
                found[str(op)] = held_out(by_fold)
            except NothingFound as e:
                self.note(f"warning: {op} on {self.scope}: {e}; {e.hint}")
        return found

    def hidden(self, samples: Samples, progress: Progress) -> Hidden:
        """The card's `hidden`, by op: what share of the optimum the first answer reaches where
        `_HIDDEN` of the configurations were hidden from training as well as families, if it is
        any (`all`) and if it is one that ran (`known`), and whether the former is surely better.
        Empty where every legal configuration ran: then there is nothing it could say."""
        from embeddb.index.held_out import split_groups
        from indexer.training.cost_model.train import train
        from tuners.evaluation.learned import hidden_figures, seen_by

        benches = {op: self._bench(op) for op in samples.ops if self._has_unrun(op, samples)}
        if not benches or np.unique(samples.groups).size < _HIDDEN_FOLDS:
            return {}
        fold = split_groups(samples.groups, _HIDDEN_FOLDS, 1)
        fold_of = dict(zip(samples.groups.tolist(), fold.tolist(), strict=True))
        seen: dict[Op, list[tuple[list[Seen], set[Config]]]] = {op: [] for op in benches}
        for at in range(_HIDDEN_FOLDS):
            out = hidden_configs(samples, at)
            part = samples.take(np.flatnonzero(fold != at))
            known = self.request.limited(part).without(out)
            if not _teaches(known):
                return {}
            told = _Part(progress, at, _HIDDEN_FOLDS)
            scorer = train(known, self.settings, start=self.start, progress=told)
            for op, bench in benches.items():
                held = np.array([fold_of.get(g, -1) == at for g in bench.evidence.groups], bool)
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
        name = self.request.featurizer
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
        samples.platform.default(row.op, Sizes(m, n, nnz))
        for row in samples.rows
        for m, n, nnz in [row.sizes]
    }
    able = [config for config in samples.configs if config not in defaults]
    order = np.random.default_rng([fold, 7]).permutation(len(able))
    return {able[i] for i in order[: int(_HIDDEN * len(able))]}


class _Steps:
    """One thing after the other, each told as `judge trees, step 3 of 4`."""

    def __init__(self, progress: Progress, count: int) -> None:
        self._progress, self._count, self._at = progress, count, 0

    def next(self, what: str) -> Progress:
        self._at += 1
        name = f"{what}, step {self._at} of {self._count}"
        return lambda _, done, total: self._progress(name, done, total)


@dataclass(frozen=True)
class _Part:
    """Progress of one of several trainings, as part of the whole."""

    told: Progress
    at: int
    of: int

    def __call__(self, what: str, done: int, of: int) -> None:
        self.told("judge", self.at * of + done, self.of * of)

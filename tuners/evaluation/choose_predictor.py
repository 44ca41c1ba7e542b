"""Training of a cost model with the best predictor by held-out groups; the held-out figures are in
its card, and decide whether queries use it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
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
    from numpy.typing import NDArray

    from embeddb.cost_model.model import CostModel
    from embeddb.learning.samples import Samples
    from indexer.training.cost_model.settings import CostSettings
    from tuners.evaluation.bench import Bench
    from tuners.evaluation.learned import Seen

#: `of_optimum@1` and `@5` by op and method.
HeldOut = dict[str, dict[str, dict[str, float]]]

#: Figures of answers with configurations hidden from training, by op.
Hidden = dict[str, dict[str, float | bool]]

#: Share of hidden configurations, and number of folds of families.
_HIDDEN, _HIDDEN_FOLDS = 0.25, 2
#: Configurations of one matrix among `--samples`: 25 x 20 is steadier than the 5 x 100 of COGNATE,
#: Section 4.1 (docs/results/few-samples.md).
_PER_MATRIX = 20
_FOLDS = 5
#: A smaller share of the runs of `--samples` is reported.
_FEWER = 0.9
#: With fewer runs only the Gaussian process is tried: from 500 it reaches 0.86 to 0.95 of the
#: optimum at 1, stock trees 0.71 to 0.82, networks 0.61 to 0.68 (docs/results/few-samples.md).
_FEW_RUNS = 5000


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRequest:
    """Options of training a cost model, with the defaults of `embeddb train costmodel`.

    `predictor` "auto" chooses by held-out groups. `samples` is about the number of runs of each
    op (0: all), `members` the number of networks or trees (0: the default of the predictor).
    Without `judged` nothing is held out, and queries do not rank by the model. `network` replaces
    the default settings of networks.
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

    def limited(self, available: Samples) -> Samples:
        """A sample of `samples` runs for each op; all if it is 0."""
        if not self.samples:
            return available
        runs = np.diff(available.indptr)
        each = min(_PER_MATRIX, int(runs.max(initial=1)), self.samples)
        # Matrices with fewer runs make room for others; at least two, to learn their differences.
        usual = float(np.minimum(runs, each).mean()) if runs.size else 1.0
        matrices = max(2, int(self.samples / usual))
        return available.limited(matrices, min(each, self.samples // 2 or 1), self.seed)

    def settings(self, predictor: str) -> CostSettings:
        """The settings of a predictor."""
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
    """A training of a cost model on the `available` samples of a scope, from `start` if there is
    one, with checkpoints in `folder`; `note` receives decisions and their reasons."""

    db: Lookup
    available: Samples
    request: TrainingRequest
    start: CostModel | None
    folder: Path
    note: Callable[[str], None]

    def model(self, progress: Progress) -> CostModel:
        """Train and judge a model of the requested predictor, or of the better one.

        Raises: UsageError for too few samples or unsuitable settings.
        """
        from indexer.training.cost_model.train import train

        samples = self.request.limited(self.available)
        self._note_few(samples)
        learned, overlap = learned_before(self.start, self.available.groups)
        if self.request.judged and overlap:
            self.note(overlap)
        names, why = candidates(self.request, samples, self.start)
        if why:
            self.note(f"predictor {why}")
        settings = {name: self.request.settings(name) for name in names}
        step = _steps(progress, 2 * len(names) + 1 if self.request.judged else 1)
        models: dict[str, CostModel] = {}
        for name, own in settings.items():
            # The network is the first: an interrupted training continues it.
            folder = None if models else self.folder
            models[name] = train(
                samples, own, start=self.start, folder=folder, progress=step(f"train {name}")
            )
        if not self.request.judged:
            return models[names[0]]
        judges = {
            name: self._judge(settings[name], model, learned) for name, model in models.items()
        }
        held_out = {name: judge(step(f"judge {name}")) for name, judge in judges.items()}
        best, why = better(held_out)
        if len(names) > 1:
            self.note(f"predictor {why}")
        model = models[best]
        model.card["held_out"] = held_out.pop(best)
        model.card["hidden"] = judges[best].hidden(step("judge hidden configurations"))
        for name, figures in held_out.items():
            own_figures = {op: methods["rank"] for op, methods in figures.items()}
            model.card["others"] = {**model.card.get("others", {}), name: own_figures}
        return model

    def _note_few(self, samples: Samples) -> None:
        """Report fewer runs than were requested."""
        wanted, runs = self.request.samples * len(samples.ops), len(samples.gain)
        if runs < _FEWER * wanted:
            matrices = len({row.pattern_id for row in samples.rows})
            self.note(
                f"warning: {runs:,} runs of {plural(matrices, 'matrix', 'matrices')} are learned "
                f"from, where --samples asks for {wanted:,}: there are no more"
            )

    def _judge(self, settings: CostSettings, model: CostModel, learned: frozenset[str]) -> Judge:
        """The judge of a model, without its source if it is of trees that do not use it."""
        left_out = settings.predictor == "trees" and "source" not in model.card
        if left_out:
            return Judge(self, settings, None, frozenset())
        return Judge(self, settings, self.start, learned)


def learned_before(
    start: CostModel | None, judging: NDArray[np.str_]
) -> tuple[frozenset[str], str]:
    """The groups among `judging` str[r] that do not judge, since the model to start from learned
    their run times, and a note; where fewer than `LEAST_GROUPS` others are left, none and a
    warning."""
    if start is None:
        return frozenset(), ""
    from embeddb.learning.calibration import LEAST_GROUPS
    from indexer.training.cost_model.train import learned_groups

    learned, of = learned_groups(start), "groups that its file does not name"
    if learned is not None:
        groups = frozenset(np.unique(judging).tolist())
        both, new = groups & learned, groups - learned
        if not both:
            return frozenset(), ""
        if len(new) >= LEAST_GROUPS:
            return both, f"judged by the {len(new)} groups that the model to start from never saw"
        of = f"{len(both)} of the {plural(len(groups), 'group')} that judge this one"
    return frozenset(), (
        f"warning: the model to start from learned run times of {of}: held-out shares may be too "
        "high for matrices that are new to both"
    )


def new_rows(
    bench: Bench, out: Collection[str], learned: Collection[str]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Training rows without the groups `out`, and the counted rows of these less the `learned`."""
    rest, test = bench.split(out)
    return rest, test[~np.isin(bench.evidence.groups[test], sorted(learned))]


def candidates(
    request: TrainingRequest, samples: Samples, start: CostModel | None
) -> tuple[tuple[str, ...], str]:
    """The predictors to try, the likeliest first, and the reason; empty if one was requested."""
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


def better(held_out: Mapping[str, HeldOut]) -> tuple[str, str]:
    """The predictor with the largest mean share of the optimum at 1 alone, the first of equal ones,
    and the reason."""
    shares = {
        name: [methods["rank"]["of_optimum@1"] for methods in figures.values()]
        for name, figures in held_out.items()
    }
    means = {name: float(np.mean(s)) if s else 0.0 for name, s in shares.items()}
    best = max(means, key=lambda name: means[name])
    listed = ", ".join(f"{name} {mean:.3f}" for name, mean in means.items())
    return best, f"{best}: of the optimum at 1 on held-out groups, {listed}"


@dataclass(frozen=True)
class Judge:
    """Cross-validation of a training: a model for every fold, judged on the fold's groups less the
    `learned` ones of `start`. The folds are common to all ops, so that a model of several widths
    is not trained on a held-out matrix at another width."""

    training: Training
    settings: CostSettings
    start: CostModel | None
    learned: frozenset[str]

    def __call__(self, progress: Progress) -> HeldOut:
        """The card's `held_out`; an op without groups to hold out is left out, with a note."""
        from tuners.evaluation.learned import held_out

        samples, note = self.training.available, self.training.note
        folds = min(_FOLDS, np.unique(samples.groups).size)
        seen = self._seen(samples.ops, folds, 0, progress)
        if seen is None:
            note("warning: too few runs to hold any out: it is not judged, so it will not rank")
            return {}
        figures = {}
        for op, by_fold in seen.items():
            try:
                figures[str(op)] = held_out([rows for rows, _ in by_fold])
            except NothingFound as e:
                note(f"warning: {op} on {scope_of(samples.platform)}: {e}; {e.hint}")
        return figures

    def hidden(self, progress: Progress) -> Hidden:
        """The card's `hidden`, by op: `hidden_figures` of models trained without `_HIDDEN` of the
        configurations, and families held out. Empty if every legal configuration ran."""
        from tuners.evaluation.learned import hidden_figures

        samples = self.training.available
        ops = [op for op in samples.ops if _has_unrun(op, samples)]
        if not ops or np.unique(samples.groups).size < _HIDDEN_FOLDS:
            return {}
        seen = self._seen(ops, _HIDDEN_FOLDS, 1, progress, hide=True) or {}
        return {str(op): hidden_figures(parts) for op, parts in seen.items()}

    def _seen(
        self, ops: Sequence[Op], folds: int, seed: int, progress: Progress, *, hide: bool = False
    ) -> dict[Op, list[tuple[list[Seen], set[Config]]]] | None:
        """The rows of each fold, by op, with the predictions of a model trained without its groups,
        and the configurations hidden from that model; None if a rest is too small to train on."""
        from embeddb.index.held_out import split_groups
        from indexer.training.cost_model.train import train
        from tuners.evaluation.learned import seen_by

        samples, request = self.training.available, self.training.request
        fold = split_groups(samples.groups, folds, seed)
        parts = []
        for at in range(int(fold.max()) + 1):
            part = request.limited(samples.take(np.flatnonzero(fold != at)))
            hidden = hidden_configs(samples, at) if hide else set()
            parts.append((part.without(hidden) if hide else part, hidden))
        if not all(_can_train(part) for part, _ in parts):
            return None
        benches = {op: self._bench(op) for op in ops}
        seen: dict[Op, list[tuple[list[Seen], set[Config]]]] = {op: [] for op in ops}
        for at, (part, hidden) in enumerate(parts):
            out = set(samples.groups[fold == at].tolist())
            step = _part(progress, at, len(parts))
            scorer = train(part, self.settings, start=self.start, progress=step)
            for op, bench in benches.items():
                rows = seen_by(bench, scorer, *new_rows(bench, out, self.learned))
                seen[op].append((rows, hidden))
        return seen

    def _bench(self, op: Op) -> Bench:
        from tuners.evaluation.bench import Bench

        db, platform = self.training.db, self.training.available.platform
        bench = Bench(db, op, scope_of(platform), instance=platform.id)
        name = self.training.request.featurizer
        bench.vectors = {name: bench.vectors.get(name, {}), **bench.vectors}
        return bench


def _has_unrun(op: Op, samples: Samples) -> bool:
    """True if some legal configuration never ran."""
    space = samples.platform.space(op)
    size, ran = space.size(), sum(space.reason(c) is None for c in samples.configs)
    return size is None or ran < size


def _can_train(samples: Samples) -> bool:
    try:
        samples.check()
    except UsageError:
        return False
    return True


def hidden_configs(samples: Samples, fold: int) -> set[Config]:
    """A share of the configurations that ran, without defaults, which always run."""
    defaults = {
        samples.platform.default(row.op, Sizes(m, n, nnz))
        for row in samples.rows
        for m, n, nnz in [row.sizes]
    }
    able = [config for config in samples.configs if config not in defaults]
    order = np.random.default_rng([fold, 7]).permutation(len(able))
    return {able[i] for i in order[: int(_HIDDEN * len(able))]}


def _steps(progress: Progress, total: int) -> Callable[[str], Progress]:
    """Progress of consecutive steps, as `judge trees, step 3 of 4`."""
    numbers = count(1)

    def step(task: str) -> Progress:
        name = f"{task}, step {next(numbers)} of {total}"
        return lambda _, done, of: progress(name, done, of)

    return step


def _part(progress: Progress, at: int, parts: int) -> Progress:
    """Progress of one of several trainings, as part of the whole."""
    return lambda _, done, of: progress("judge", at * of + done, parts * of)

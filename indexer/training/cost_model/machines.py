"""One model for every machine of a portable platform: boosted trees whose inputs include the facts
of the machine, evaluated with whole machines held out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from embeddb.core.errors import UsageError
from embeddb.core.reports import Progress, ignore_progress
from embeddb.cost_model.encoders.inputs import TreeTable, numeric_facts
from embeddb.cost_model.model import CostModel
from embeddb.index.held_out import split_groups
from embeddb.learning.boosting import EVERY_MACHINE
from embeddb.learning.calibration import calibrated
from embeddb.learning.samples import Samples
from embeddb.platforms.machines import same_machine
from indexer.training.cost_model.settings import CostSettings
from indexer.training.cost_model.train import tree_card
from indexer.training.cost_model.trees import fit_member, tables

#: Most runs of a matrix on a machine: a complete grid would outweigh the other machines.
_PER_ROW = 60
#: Parts of the families, each held out together with a machine.
_PARTS = 3
_LEAST_MACHINES = 2

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


class LeftOut(NamedTuple):
    """A model without the runs of some `machines` (platform instances) and of some `groups` of
    matrices on any machine, evaluated on these groups on these machines."""

    model: CostModel
    machines: frozenset[str]
    groups: frozenset[str]


class _Trial(NamedTuple):
    """Masks bool[r] of the rows that a member does not learn from, and is evaluated on."""

    out: Mask
    judged: Mask


def train_for_machines(
    samples: Samples, settings: CostSettings, *, progress: Progress = ignore_progress
) -> tuple[CostModel, list[LeftOut]]:
    """A model for any machine of the samples' platform, from `samples_of_machines`, and the models
    of its calibration.

    Each member learns from all machines but one, and their mean is the prediction. Each model of
    the calibration is evaluated on a third of the families on one machine, and has seen neither the
    machine nor these families.

    Raises: UsageError for fewer than two machines or too few samples; MissingDependency without
    LightGBM.
    """
    samples.check()
    machine = machine_of(samples)
    if np.unique(machine).size < _LEAST_MACHINES:
        raise UsageError("all runs are of one machine", hint="leave out --every-machine")
    samples = samples.thinned(_PER_ROW, settings.seed)
    facts = mean_facts(samples)
    card = tree_card(samples, settings, facts=facts)
    rows = tables(samples, TreeTable.from_card(card), None)
    none = np.zeros(len(machine), dtype=np.bool_)
    trials = [_Trial(machine == one, none) for one in np.unique(machine)]
    members = len(trials)
    trials += _judges(samples, machine, settings.seed)
    tensors: dict[str, NDArray[Any]] = {}
    apart: list[tuple[_Trial, dict[str, NDArray[Any]]]] = []
    scores: dict[int, Floats] = {}
    for at, trial in enumerate(trials):
        progress("trees, machines left out", at, len(trials))
        fitted = fit_member(samples, rows, trial.out, settings.seed * 1000 + at, EVERY_MACHINE)
        if at < members:
            tensors |= {f"member.{at}.{name}": array for name, array in fitted.weights.items()}
        else:
            scores |= {row: s for row, s in fitted.scores.items() if trial.judged[row]}
            apart.append((trial, {f"member.0.{n}": array for n, array in fitted.weights.items()}))
    card["settings"]["members"] = members
    card["machines"] = sorted({one.id for one in samples.machines})
    model = calibrated({**card, "metrics": {}}, tensors, samples, [scores])
    single = {**model.card, "settings": {**card["settings"], "members": 1}}
    return model, [_left_out(samples, trial, CostModel(single, own)) for trial, own in apart]


def _left_out(samples: Samples, trial: _Trial, model: CostModel) -> LeftOut:
    rows = np.flatnonzero(trial.judged).tolist()
    machines = frozenset(samples.machines[row].id for row in rows)
    groups = frozenset(samples.rows[row].group for row in rows)
    return LeftOut(model, machines, groups)


def machine_of(samples: Samples) -> NDArray[np.int64]:
    """int64[r]: a number of each row's machine; builds for one processor have the same."""
    facts = {one.id: one.environment for one in samples.machines}
    names = sorted(facts)
    first = {name: next(n for n in names if same_machine(n, name, facts)) for name in names}
    return np.array([names.index(first[one.id]) for one in samples.machines], dtype=np.int64)


def mean_facts(samples: Samples) -> list[tuple[str, float]]:
    """The numeric facts that two or more instances report, and the mean of log2(1 + v) over those,
    which stands in on a machine that does not report it."""
    reported = [numeric_facts(one) for one in {m.id: m for m in samples.machines}.values()]
    means = []
    for name in sorted({name for facts in reported for name in facts}):
        values = [facts[name] for facts in reported if name in facts]
        if len(values) > 1:
            means.append((name, float(np.log2(1 + np.array(values)).mean())))
    return means


def _judges(samples: Samples, machine: NDArray[np.int64], seed: int) -> Iterator[_Trial]:
    part = split_groups(samples.groups, min(_PARTS, np.unique(samples.groups).size), seed)
    for one in np.unique(machine):
        for families in np.unique(part):
            here, family = machine == one, part == families
            if (~here & ~family).any():
                yield _Trial(here | family, here & family)

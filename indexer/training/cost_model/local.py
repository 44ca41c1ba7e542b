"""The model of every machine, trained anew for one machine whose own runs count more."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import Any

import numpy as np

from embeddb.core.config import Op
from embeddb.core.errors import UsageError
from embeddb.core.reports import Progress, ignore_progress
from embeddb.cost_model.model import CostModel
from embeddb.index.lookup import Lookup
from embeddb.learning.samples import Samples, join, samples_of_machines
from embeddb.platforms.platform import Platform
from indexer.training.cost_model import trees
from indexer.training.cost_model.model_place import model_file, save_model

#: Weight of a run of this machine, others' having 1, and of the model against the neighbours' vote.
#: Both were chosen by replays on five machines (docs/results/machines.md).
OWN_WEIGHT, JOINED_WEIGHT = 8.0, 0.75
#: Runs of a matrix on a machine at a width that this machine ran, and at others.
_PER_ROW, _PER_OTHER_ROW = 60, 20
_FEWEST_MATRICES = 2
#: Seconds per matrix, machine and width.
_ROW_S = 0.015


def source_of(lookup: Lookup, machine: Platform, op: Op) -> CostModel:
    """The model of every machine that answers for an op on a machine, as it was before it learned
    there.

    Raises: UsageError where there is none, or a model of this machine alone answers.
    """
    model, _ = lookup.usable_model(machine, op)
    if model is not None and not model.machines:
        raise UsageError(
            f"{op} on {machine.id}: cost model {model.version} of this machine alone is in use",
            hint="leave out --every-machine",
        )
    source, _ = lookup.usable_model(replace(machine, instance=""), op)
    if source is None or not source.machines:
        raise UsageError(
            f"{op} on {machine.id}: no model of every machine is in use",
            hint=f"train it first, with --platform {machine.name}",
        )
    return source


def samples_for(lookup: Lookup, machine: Platform, source: CostModel) -> Samples:
    """The training data of a model for a machine: some runs of every machine at the widths of
    `source`.

    Raises: UsageError where the machine ran fewer than two matrices at any of them.
    """
    name = str(source.card["featurizer"]["name"])
    parts, most = list[Samples](), 0
    for op in source.ops:
        with suppress(UsageError):  # a width that only one machine ran
            samples = samples_of_machines(lookup, machine, [op], featurizer=name)
            own = sum(one.id == machine.id for one in samples.machines)
            parts.append(samples.thinned(_PER_ROW if own else _PER_OTHER_ROW, 0))
            most = max(most, own)
    if most < _FEWEST_MATRICES:
        raise UsageError(
            f"{machine.id} ran fewer than {_FEWEST_MATRICES} matrices of {source.card['kernel']}",
            hint="measure more: `embeddb calibrate`",
        )
    return replace(join(parts), platform=machine)


def trained_for(machine: Platform, source: CostModel, samples: Samples) -> CostModel:
    """Trees like those of `source` from the runs of all machines, of which those of `machine` count
    more. Its card has the source's figures, which were judged on machines left out, before any of
    their runs was known.

    Raises: MissingDependency without LightGBM; UsageError for numbers that are not finite.
    """
    own = np.array([one.id == machine.id for one in samples.machines])
    weight = np.repeat(np.where(own, OWN_WEIGHT, 1.0), np.diff(samples.indptr))
    table = np.concatenate(trees.tables(samples, source.table, None))
    settings = {**trees.SETTINGS, "min_data_in_leaf": trees.LEAF, "seed": 0}
    booster = trees.boosted(table, trees.levelled(samples), settings, weight)
    tensors = {f"member.0.{name}": array for name, array in trees.weights(booster).items()}
    return CostModel(_card(machine, source, samples, int(own.sum())), tensors)


def _card(machine: Platform, source: CostModel, samples: Samples, own: int) -> dict[str, Any]:
    held = {
        op: {
            method: {**figures, "weight": JOINED_WEIGHT} if "weight" in figures else figures
            for method, figures in methods.items()
        }
        for op, methods in source.card["held_out"].items()
    }
    return {
        **source.card,
        "platform": {**source.card["platform"], "id": machine.id},
        "settings": {**source.card["settings"], "members": 1},
        "machines": sorted({one.id for one in samples.machines}),
        "data": samples.hash,
        "patterns": len({row.pattern_id for row in samples.rows}),
        "groups": int(np.unique(samples.groups).size),
        "samples": len(samples.gain),
        "own_rows": own,
        "held_out": held,
        "parent": source.version,
    }


def expected_s(lookup: Lookup, machine: Platform, ops: Sequence[Op]) -> float:
    """Seconds that `learn_from_runs` takes, roughly."""
    widths = set[Op]()
    for op in ops:
        with suppress(UsageError):
            widths |= {*source_of(lookup, machine, op).ops}
    rows = sum(
        len(lookup.store.members(p))
        for p in lookup.store.partitions()
        if p.op in widths and p.platform.partition("@")[0] == machine.name
    )
    return _ROW_S * rows


def learn_from_runs(
    lookup: Lookup, machine: Platform, ops: Sequence[Op], progress: Progress = ignore_progress
) -> list[Op]:
    """Train the models of every machine anew for a machine that ran `ops`, and put them into use on
    it; returns the ops that they answer for. A model of this machine alone stays.

    Raises: MissingDependency without LightGBM; ModelError if a file cannot be written.
    """
    learned: list[Op] = []
    for at, op in enumerate(ops):
        progress("learn from these runs", at, len(ops))
        if op in learned:
            continue
        with suppress(UsageError):  # no such model, too few runs, or a database in memory
            source = source_of(lookup, machine, op)
            samples = samples_for(lookup, machine, source)
            file = model_file(lookup.store, samples)
            model = trained_for(machine, source, samples)
            save_model(model, file, lookup.store.path, lambda: nullcontext(lookup))
            learned += [one for one in ops if one in source.ops]
    return learned

"""The model of every machine, trained anew for one machine whose own runs count more, and the
process of these runs alone that queries combine with it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from embeddb.core.config import Op
from embeddb.core.errors import EmbeddbError, ModelError, UsageError
from embeddb.core.reports import Progress, ignore_progress
from embeddb.cost_model.model import CostModel
from embeddb.index.lookup import Lookup
from embeddb.learning import boosting
from embeddb.learning.few_samples import learned_model
from embeddb.learning.samples import Samples, join, samples_of_machines
from embeddb.platforms.platform import Platform
from indexer.training.cost_model import trees
from indexer.training.cost_model.model_place import own_file, save_model
from indexer.training.folder import origin_card

#: Weight of a run of this machine (1 for those of others), and of the model in its mean with the
#: neighbours' vote. Both were chosen by replays on five machines (docs/results/machines.md).
OWN_WEIGHT, JOINED_WEIGHT = 8.0, 0.75
#: Runs of a matrix on a machine at a width that this machine ran, and at others.
_PER_ROW, _PER_OTHER_ROW = 60, 20
_FEWEST_MATRICES = 2
#: Seconds of the trees per matrix, machine and width, and of the process of an op.
_ROW_S, _PROCESS_S = 0.015, 3.0


def source_of(lookup: Lookup, machine: Platform, op: Op) -> CostModel:
    """The model of every machine for an op, not the one that was trained for this machine.

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
            f"{machine.id} ran fewer than {_FEWEST_MATRICES} matrices of any of "
            f"{', '.join(map(str, source.ops))}",
            hint="measure more: `embeddb calibrate`",
        )
    joined = join(parts)
    if joined.platform.digest != machine.digest:
        raise UsageError(
            f"{machine.id} has an earlier version of the platform's file than other machines",
            hint="measure on it with the present file first",
        )
    return replace(joined, platform=machine)


def trained_for(machine: Platform, source: CostModel, samples: Samples) -> CostModel:
    """Trees with the inputs of `source`, trained on the runs of all machines, those of `machine`
    with a larger weight. The held-out figures of its card are those of the source: of machines left
    out, none of whose runs were known.

    Raises: MissingDependency without LightGBM; UsageError for numbers that are not finite.
    """
    own = np.array([one.id == machine.id for one in samples.machines])
    weight = np.repeat(np.where(own, OWN_WEIGHT, 1.0), np.diff(samples.indptr))
    table = np.concatenate(trees.tables(samples, source.table, None))
    settings = {**boosting.EVERY_MACHINE, "seed": 0}
    booster = boosting.boosted(table, boosting.levelled(samples), settings, weight)
    tensors = {f"member.0.{name}": array for name, array in boosting.weights(booster).items()}
    return CostModel(_card(machine, source, samples, int(own.sum())), tensors)


def _card(machine: Platform, source: CostModel, samples: Samples, own: int) -> dict[str, Any]:
    held_out = {
        op: {
            method: {**figures, "weight": JOINED_WEIGHT} if "weight" in figures else figures
            for method, figures in methods.items()
        }
        for op, methods in (source.card.get("held_out") or {}).items()
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
        "held_out": held_out,
        "parent": source.version,
        **origin_card(0),
    }


def expected_s(lookup: Lookup, machine: Platform, ops: Sequence[Op]) -> float:
    """Seconds that `learn_from_runs` takes, roughly."""
    widths = set[Op]()
    for op in ops:
        with suppress(UsageError):
            every = source_of(lookup, machine, op).ops
            widths |= {*every} if op in every else set()
    rows = sum(
        len(lookup.store.members(p))
        for p in lookup.store.partitions()
        if p.op in widths and p.platform.partition("@")[0] == machine.name
    )
    return _ROW_S * rows + _PROCESS_S * len(widths & {*ops})


class Learned(NamedTuple):
    """Ops whose model of every machine learned from a machine's runs, and why others did not."""

    ops: list[Op]
    problems: list[str]


def learn_from_runs(
    lookup: Lookup, machine: Platform, ops: Sequence[Op], progress: Progress = ignore_progress
) -> Learned:
    """Train the models of every machine anew for a machine that ran `ops`, and put them into use on
    it, with the processes of its own runs. A model of this machine alone stays, and so does one
    that learned from the same runs."""
    learned = Learned([], [])
    kernels = list(dict.fromkeys((op.name, op.dtype) for op in ops))
    for at, kernel in enumerate(kernels):
        progress("learn from these runs", at, len(kernels))
        own = [op for op in ops if (op.name, op.dtype) == kernel]
        try:
            source = source_of(lookup, machine, own[0])
        except UsageError:
            continue
        widths = [op for op in own if op in source.ops]
        if not widths:  # it learns at its own widths alone; the vote has these runs
            continue
        try:
            learned.problems.extend(_learn(lookup, machine, source))
            learned.ops.extend(widths)
        except EmbeddbError as e:
            hint = f": {e.hint}" if e.hint else ""
            why = f"the cost model of {own[0].name} did not learn from these runs: {e}{hint}"
            learned.problems.append(why)
    for at, op in enumerate(learned.ops):  # else the first query would
        progress("learn from these runs alone", at, len(learned.ops))
        if (partition := lookup.answering(op, machine)) is not None:
            learned_model(lookup, partition, machine, partition.op)
    return learned


def _learn(lookup: Lookup, machine: Platform, source: CostModel) -> list[str]:
    """Train and save; why the file is not registered, where it could not be.

    Raises: as `samples_for`, `own_file` and `trained_for`; ModelError if the file is of a model
    of this machine alone, or cannot be read or written.
    """
    samples = samples_for(lookup, machine, source)
    file = own_file(lookup.store, "costmodel", machine, samples.ops[0])
    if file.exists():
        card = CostModel.load(file).card
        if not card.get("machines"):
            raise ModelError(f"{file.name} is a model of this machine alone")
        if (card["data"], card["parent"]) == (samples.hash, source.version):
            return []
    model = trained_for(machine, source, samples)
    return save_model(model, file, lookup.store.path, lambda: nullcontext(lookup))[1]

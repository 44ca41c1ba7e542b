"""Evaluation of the choice among cuts of programs by models of kernels, with model families held
out, by replay from the store.

The choice is among the cuts of a program that ran. The price of a cut is the sum of its kernels'
times by the roofline, or by sums over operations trained on fused kernels of other families ("A
Learned Performance Model for Tensor Processing Units", Section 7.3, without its search).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from embeddb.core.config import Config, Op
from embeddb.core.errors import NothingFound
from embeddb.core.reports import Progress
from embeddb.core.timing import summarise_runs
from embeddb.index.held_out import split_groups
from embeddb.index.lookup import Lookup
from embeddb.platforms.platform import Platform, default_of
from embeddb.tensors.edges import CUT, Cut, edges_of
from embeddb.tensors.roofline.analysis import fused_seconds
from embeddb.tensors.roofline.machine import Machine
from embeddb.tensors.tensor_graph import TensorGraph
from indexer.training.tensors.samples import KernelSample, runs_of
from tuners.evaluation.figures import (
    EvalRow,
    Outcome,
    Truth,
    averaged,
    judge,
    with_ordering,
)
from tuners.fusion_cuts import CutPrices

_FUSED, _FUSION = Op("fused"), Op("fusion")
_DRAWS = 20
_K = 5
#: Pairs of cuts with closer times are not compared: two processes that time the same kernel differ
#: by as much (`benchmarks/results/fusion_noise.json`).
_NOISE = 0.05
#: The least time of a call of a kernel.
_LEAST_S = 1e-6

#: A model of kernels: predicted seconds.
_Model = Callable[[TensorGraph], float]


@dataclass(frozen=True, slots=True)
class _Program:
    """A program, and its cuts that ran."""

    program: TensorGraph
    truth: Truth
    default: Config


def judged_fusions(
    db: Lookup,
    instance: str,
    seeds: Sequence[int],
    folds: int,
    progress: Progress | None,
    note: Callable[[str], None],
    *,
    learned: bool,
) -> list[EvalRow]:
    """The rows of `tuners.evaluation.evaluate` for one instance of a platform; none if programs of
    fewer than two families ran their default and another cut. With `learned` also of sums over
    operations; `note` receives the reason if they have no row.
    """
    platform = db.store.platform(instance)
    programs = list(_programs(db, platform)) if platform is not None else []
    groups = np.array([one.program.group or one.program.name for one in programs], dtype=np.str_)
    if platform is None or len(set(groups)) < 2:
        return []
    kernels = _kernels(db, instance, note) if learned else []
    machine = Machine.of(platform.environment)

    def roofline(kernel: TensorGraph) -> float:
        return max(fused_seconds(kernel, machine), _LEAST_S)

    by_roofline = [_ordered(one, roofline) for one in programs]
    done: dict[str, list[list[Outcome]]] = {}
    for turn, seed in enumerate(seeds):
        of_seed: dict[str, list[Outcome]] = {}
        fold = split_groups(groups, min(folds, len(set(groups))), seed)
        for number in range(folds):
            if progress is not None:
                progress(f"{_FUSION} on {instance}", turn * folds + number, len(seeds) * folds)
            places = np.flatnonzero(fold == number)
            out = set(groups[places].tolist())
            sums = _sums([s for s in kernels if s.group not in out])
            for at in places:
                for method, outcome in _methods(programs[at], by_roofline[at], sums, seed):
                    of_seed.setdefault(method, []).append(outcome)
        for method, outcomes in of_seed.items():
            done.setdefault(method, []).append(outcomes)
    return [
        EvalRow.of((platform.id, str(_FUSION), name), by_seed, simulated=platform.simulated)
        for name, by_seed in done.items()
    ]


def _programs(db: Lookup, platform: Platform) -> Iterator[_Program]:
    """The programs that ran their default and another cut."""
    partition = db.store.partition(platform.id, _FUSION)
    usual = db.store.usual_at(platform.id)
    for member in sorted(db.store.members(partition)) if partition else ():
        program = db.store.tensor(member)
        if program is None:
            continue
        timings = summarise_runs(db.store.runs(platform.id, _FUSION, member), usual)
        times = {config: timing.seconds for config, timing in timings.items()}
        default = default_of(platform, _FUSION, program)
        if len(times) > 1 and math.isfinite(times.get(default, math.inf)):
            yield _Program(program, Truth(times, times[default]), default)


def _kernels(db: Lookup, instance: str, note: Callable[[str], None]) -> list[KernelSample]:
    """The training data of sums over operations; empty, with a note, without any."""
    try:
        return runs_of(db.store, _FUSED, instance).samples
    except NothingFound as error:
        note(f"{_FUSION} on {instance}: no sums: {error}")
        return []


def _sums(train: Sequence[KernelSample]) -> _Model | None:
    if not train:
        return None
    from indexer.training.tensors.operations import summed  # loads torch

    return summed(train).seconds


def _methods(
    one: _Program, by_roofline: Outcome, sums: _Model | None, seed: int
) -> Iterator[tuple[str, Outcome]]:
    truth, configs = one.truth, list(one.truth.times)
    rng = np.random.default_rng(seed)
    draws = ([configs[at] for at in rng.permutation(len(configs))[:_K]] for _ in range(_DRAWS))
    yield "default", judge(truth, [one.default])
    yield "random", averaged([judge(truth, drawn) for drawn in draws])
    yield "single", judge(truth, [Config({CUT: "single"})])
    yield "roofline", by_roofline
    if sums is not None:
        yield "kernel-sums", _ordered(one, sums)
    yield "oracle", judge(truth, sorted(configs, key=lambda c: truth.times[c]))


def _ordered(one: _Program, model: _Model) -> Outcome:
    """The outcome of cuts in the order of their prices."""
    prices, edges = CutPrices(one.program, model), len(edges_of(one.program).pairs)
    configs = list(one.truth.times)
    predicted = np.array([prices.seconds(Cut.read(str(c[CUT]), edges)) for c in configs])
    order = [configs[at] for at in np.argsort(predicted, kind="stable")]
    return with_ordering(judge(one.truth, order[:_K]), one.truth, configs, predicted, _NOISE)

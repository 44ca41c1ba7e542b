"""How well cuts of programs are chosen by what is known of kernels, model families held out:
replayed from the store, nothing is compiled.

Each program is asked among the cuts that ran of it. Prices of cuts are sums of their kernels'
seconds: as the roofline says, or as sums over operations do that learned from fused kernels of
other families ("A Learned Performance Model for Tensor Processing Units", Section 7.3, without its
search).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from embeddb.core.config import Config, Op
from embeddb.core.errors import NothingFound
from embeddb.core.reports import Progress
from embeddb.core.timing import summarise_runs
from embeddb.cost_model.operation_sums import OperationSums
from embeddb.index.held_out import split_groups
from embeddb.index.lookup import Lookup
from embeddb.platforms.of_subject import default_of
from embeddb.platforms.platform import Platform
from embeddb.store.usual_state import usual_at
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
    ordering,
    speedups_of,
    summarise,
)
from tuners.fusion_cuts import CutPrices, PredictsKernels

_FUSED, _FUSION = Op("fused"), Op("fusion")
_DRAWS = 20
_K = 5
#: Cuts whose times are closer are no pair to be ordered: two processes that time the same kernel
#: differ by as much (`benchmarks/results/fusion_noise.json`).
_NOISE = 0.05
#: A kernel is not called in less.
_LEAST_S = 1e-6


@dataclass(frozen=True, slots=True)
class _Asked:
    """A program, and the cuts that ran of it."""

    program: TensorGraph
    truth: Truth
    default: Config

    @property
    def configs(self) -> list[Config]:
        return list(self.truth.times)


@dataclass(frozen=True, slots=True)
class _Roofline:
    """Seconds of kernels by bytes, flops and functions, for `CutPrices`."""

    machine: Machine
    version: str = "roofline"

    def seconds(self, kernel: TensorGraph) -> float:
        return max(fused_seconds(kernel, self.machine), _LEAST_S)


@dataclass(frozen=True, slots=True)
class _Learned:
    """Sums over operations, for `CutPrices`."""

    sums: OperationSums
    version: str = "sums"

    def seconds(self, kernel: TensorGraph) -> float:
        return self.sums.seconds(kernel)


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
    """Rows of one instance of a platform, as `tuners.evaluation.evaluate` has them; none where
    programs of fewer than two families ran their default and another cut. With `learned` also of
    sums; `note` is told why these have no row.
    """
    platform = db.store.platform(instance)
    asked = list(_programs(db, platform)) if platform is not None else []
    groups = np.array([one.program.group or one.program.name for one in asked], dtype=np.str_)
    if platform is None or len(set(groups)) < 2:
        return []
    kernels = _kernels(db, instance, note) if learned else []
    roofline = _Roofline(Machine.of(platform.environment))
    priced = [_ordered(one, roofline) for one in asked]
    done: dict[str, list[list[Outcome]]] = {}
    for turn, seed in enumerate(seeds):
        found: dict[str, list[Outcome]] = {}
        fold = split_groups(groups, min(folds, len(set(groups))), seed)
        for number in range(folds):
            if progress is not None:
                progress(f"{_FUSION} on {instance}", turn * folds + number, len(seeds) * folds)
            places = np.flatnonzero(fold == number)
            out = set(groups[places].tolist())
            sums = _sums([s for s in kernels if s.group not in out])
            for at in places:
                for method, outcome in _methods(asked[at], priced[at], sums, seed):
                    found.setdefault(method, []).append(outcome)
        for method, outcomes in found.items():
            done.setdefault(method, []).append(outcomes)
    return [_row(platform, method, by_seed) for method, by_seed in done.items()]


def _programs(db: Lookup, platform: Platform) -> Iterator[_Asked]:
    """Those that ran their default and something else."""
    partition = db.store.partition(platform.id, _FUSION)
    usual = usual_at(db.store, platform.id)
    for member in sorted(db.store.members(partition)) if partition else ():
        program = db.store.tensor(member)
        if program is None:
            continue
        timings = summarise_runs(db.store.runs(platform.id, _FUSION, member), usual)
        times = {config: timing.seconds for config, timing in timings.items()}
        default = default_of(platform, _FUSION, program)
        if len(times) > 1 and math.isfinite(times.get(default, math.inf)):
            yield _Asked(program, Truth(times, times[default]), default)


def _kernels(db: Lookup, instance: str, note: Callable[[str], None]) -> list[KernelSample]:
    """What sums can be learned from; none, and why is told, where they cannot."""
    try:
        return runs_of(db.store, _FUSED, instance).samples
    except NothingFound as error:
        note(f"{_FUSION} on {instance}: no sums: {error}")
        return []


def _sums(train: Sequence[KernelSample]) -> PredictsKernels | None:
    """None where nothing can be learned."""
    if not train:
        return None
    from indexer.training.tensors.operations import summed  # loads torch

    return _Learned(summed(train))


def _methods(
    asked: _Asked, by_roofline: Outcome, sums: PredictsKernels | None, seed: int
) -> Iterator[tuple[str, Outcome]]:
    truth, configs = asked.truth, asked.configs
    rng = np.random.default_rng(seed)
    draws = ([configs[at] for at in rng.permutation(len(configs))[:_K]] for _ in range(_DRAWS))
    yield "default", judge(truth, [asked.default])
    yield "random", averaged([judge(truth, drawn) for drawn in draws])
    yield "single", judge(truth, [Config({CUT: "single"})])
    yield "roofline", by_roofline
    if sums is not None:
        yield "kernel-sums", _ordered(asked, sums)
    yield "oracle", judge(truth, sorted(configs, key=lambda c: truth.times[c]))


def _ordered(asked: _Asked, model: PredictsKernels) -> Outcome:
    """Cuts in the order of their prices, the default among them."""
    prices, edges = CutPrices(asked.program, model), len(edges_of(asked.program).pairs)
    configs = asked.configs
    told = np.array([prices.seconds(Cut.read(str(c[CUT]), edges)) for c in configs])
    order = [configs[at] for at in np.argsort(told, kind="stable")]
    seconds = np.array([asked.truth.times[config] for config in configs])
    opa, tau = ordering(told, seconds, _NOISE)
    return replace(judge(asked.truth, order[:_K]), opa=opa, tau=tau)


def _row(platform: Platform, method: str, by_seed: Sequence[Sequence[Outcome]]) -> EvalRow:
    figures, spread = summarise(by_seed)
    return EvalRow(
        platform.id,
        str(_FUSION),
        method,
        len(by_seed[0]),
        figures,
        spread,
        platform.simulated,
        speedups_of(by_seed[0]),
    )

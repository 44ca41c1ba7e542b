"""Seconds of fused kernels as sums over their operations, learned by boosted trees and a network:
what `embeddb.cost_model.operation_sums` asks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.core.reports import Progress
from embeddb.cost_model.operation_sums import NETWORK, TREES, OperationSums
from embeddb.tensors.encoding.operation_rows import operations_version
from indexer.training.cost_model.trees import available
from indexer.training.tensors.operations.missed import FAR
from indexer.training.tensors.operations.network import NetworkTraining, network_weights
from indexer.training.tensors.operations.trees import SETTINGS, TREE_COUNT, tree_weights
from indexer.training.tensors.samples import KernelSample

Tensors = dict[str, NDArray[Any]]
#: What may tell of operations, and together does.
MEMBERS = ("trees", "network")


def summed_weights(
    train: Sequence[KernelSample],
    seed: int = 0,
    members: Sequence[str] = MEMBERS,
    *,
    folder: Path | None = None,
    progress: Progress = lambda *_: None,
) -> Tensors:
    """Tensors of the members; families count the same. An unfinished training of the network in
    `folder` goes on.

    Raises: MissingDependency for trees without LightGBM; ModelError as `network_weights`.
    """
    made: Mapping[str, Callable[[], Tensors]] = {
        NETWORK: lambda: network_weights(train, seed, folder=folder, progress=progress),
        TREES: lambda: tree_weights(train, seed, progress=progress),
    }
    asked = [begin for begin in made if begin.rstrip(".") in members]
    return {begin + name: array for begin in asked for name, array in made[begin]().items()}


def summed_card(members: Sequence[str] = MEMBERS) -> dict[str, Any]:
    """What of a card tells of such a model."""
    how: Mapping[str, Mapping[str, Any]] = {
        "trees": {"trees": TREE_COUNT, **SETTINGS},
        "network": asdict(NetworkTraining()),
    }
    alone = tuple(members) == ("trees",)
    told = {name: dict(how[name]) for name in members}
    return {
        "kernel": OperationSums.task,
        "network": {"task": OperationSums.task, "operations": operations_version()},
        "settings": {"predictor": "trees" if alone else "operations", "far": FAR, **told},
    }


def members_here() -> tuple[str, ...]:
    """Those that can be learned here: trees need LightGBM."""
    return MEMBERS if available() else ("network",)


def summed_said(model: OperationSums, samples: Sequence[KernelSample]) -> list[NDArray[np.float64]]:
    """float64[1] what it says of each, log seconds."""
    first = np.cumsum([0, *(len(sample.operations) for sample in samples[:-1])])
    parts = model.parts(np.concatenate([sample.operations for sample in samples]))
    return list(np.log(np.add.reduceat(parts, first))[:, None])


def summed(
    train: Sequence[KernelSample], seed: int = 0, members: Sequence[str] = MEMBERS
) -> OperationSums:
    """Learned from these kernels, ready to be asked.

    Raises: MissingDependency for trees without LightGBM.
    """
    return OperationSums(summed_card(members), summed_weights(train, seed, members))

"""Seconds of fused kernels as sums over their operations, by boosted trees and a network: the
training of `embeddb.cost_model.operation_sums`."""

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
from indexer.training.tensors.operations.network import NetworkTraining, network_weights
from indexer.training.tensors.operations.residuals import FAR
from indexer.training.tensors.operations.trees import SETTINGS, TREE_COUNT, tree_weights
from indexer.training.tensors.samples import KernelSample

Tensors = dict[str, NDArray[Any]]
#: Members of the ensemble; the default has both.
MEMBERS = ("trees", "network")


def summed_weights(
    train: Sequence[KernelSample],
    seed: int = 0,
    members: Sequence[str] = MEMBERS,
    *,
    folder: Path | None = None,
    progress: Progress = lambda *_: None,
) -> Tensors:
    """Tensors of the members; families have the same weight. Resumes an unfinished training of the
    network in `folder`.

    Raises: MissingDependency for trees without LightGBM; ModelError as `network_weights`.
    """
    train_member: Mapping[str, Callable[[], Tensors]] = {
        NETWORK: lambda: network_weights(train, seed, folder=folder, progress=progress),
        TREES: lambda: tree_weights(train, seed, progress=progress),
    }
    chosen = [begin for begin in train_member if begin.rstrip(".") in members]
    return {
        begin + name: array for begin in chosen for name, array in train_member[begin]().items()
    }


def summed_card(members: Sequence[str] = MEMBERS) -> dict[str, Any]:
    """A card's entries about such a model."""
    how: Mapping[str, Mapping[str, Any]] = {
        "trees": {"trees": TREE_COUNT, **SETTINGS},
        "network": asdict(NetworkTraining()),
    }
    alone = tuple(members) == ("trees",)
    member_settings = {name: dict(how[name]) for name in members}
    return {
        "kernel": OperationSums.task,
        "network": {"task": OperationSums.task, "operations": operations_version()},
        "settings": {
            "predictor": "trees" if alone else "operations",
            "far": FAR,
            **member_settings,
        },
    }


def members_here() -> tuple[str, ...]:
    """Members that can be trained here: trees need LightGBM."""
    return MEMBERS if available() else ("network",)


def summed_predictions(
    model: OperationSums, samples: Sequence[KernelSample]
) -> list[NDArray[np.float64]]:
    """float64[1] predicted log seconds of each sample."""
    first = np.cumsum([0, *(len(sample.operations) for sample in samples[:-1])])
    parts = model.parts(np.concatenate([sample.operations for sample in samples]))
    return list(np.log(np.add.reduceat(parts, first))[:, None])


def summed(
    train: Sequence[KernelSample], seed: int = 0, members: Sequence[str] = MEMBERS
) -> OperationSums:
    """Model trained on these kernels.

    Raises: MissingDependency for trees without LightGBM.
    """
    return OperationSums(summed_card(members), summed_weights(train, seed, members))

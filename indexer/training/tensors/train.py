"""Training of the performance model of kernels: a graph network, or trees and sums on plain rows
where these are better on held-out programs or families.

Source: "A Learned Performance Model for Tensor Processing Units", Sections 3.3, 4 and Appendix B.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.core.errors import UsageError
from embeddb.core.reports import Progress
from embeddb.cost_model.graph_model import KernelTrees
from embeddb.cost_model.operation_sums import OperationSums
from embeddb.tensors.roofline.analysis import Analysis
from embeddb.tensors.tensor_graph import is_probe
from indexer.training.folder import folder_of, forget, origin_card
from indexer.training.tensors.figures import figures_of
from indexer.training.tensors.fitting import KernelTraining, fitted_network, predictions_of
from indexer.training.tensors.grown_trees import (
    calibration,
    tree_predictions,
    tree_weights,
    trees_card,
)
from indexer.training.tensors.operations import (
    MEMBERS,
    summed_card,
    summed_predictions,
    summed_weights,
)
from indexer.training.tensors.samples import KernelSample, content_of, split
from indexer.training.trainer import Fitted, fitted_card, saved

#: Additional card entries from a card, the weights by name and the families outside of the
#: training.
Judge = Callable[[dict[str, Any], dict[str, NDArray[Any]], Sequence[str]], dict[str, Any]]


@dataclass(frozen=True, slots=True, eq=False)
class _Parts:
    """The training part, and the evaluation parts by name."""

    train: Sequence[KernelSample]
    judged: Mapping[str, Sequence[KernelSample]]


@dataclass(frozen=True, slots=True, eq=False)
class _Candidate:
    """Its part of the card, its weights, and its predictions float64[c] by part and sample."""

    card: dict[str, Any]
    weights: dict[str, NDArray[Any]]
    predictions: Mapping[str, list[NDArray[np.float64]]]

    def figures(self, task: str, parts: _Parts, **least: float) -> dict[str, dict[str, float]]:
        return {
            n: figures_of(task, part, self.predictions[n], **least)
            for n, part in parts.judged.items()
        }


@dataclass(frozen=True, slots=True, eq=False)
class KernelData:
    """Training and test data of kernels' models.

    `tests` are kernels outside of the training, for the card's figures; `about` joins the card, and
    so does the result of `judge` for a model of tiles. With the `analysis` of the samples, trees
    are trained on its residuals.
    """

    samples: Sequence[KernelSample]
    tests: Sequence[KernelSample] = ()
    about: Mapping[str, Any] = field(default_factory=dict)
    analysis: Analysis | None = None
    judge: Judge | None = None


def train_kernels(
    data: KernelData, how: KernelTraining, out: Path, *, progress: Progress
) -> dict[str, Any]:
    """Train on all samples except for the held-out ones, write the model to `out`; returns its card
    with `version` and, of a network, `curve`. The predictor `auto` is the one with the lower loss
    or error there; `others` are then the other's figures. Resumes an unfinished training of `out`.

    Raises: InputError for too few programs or families; UsageError for a loss or a predictor that
    does not fit the task; ModelError as `fit` and `save` do; MissingDependency for trees without
    LightGBM.
    """
    task, samples, judge = how.task, data.samples, data.judge
    if task == "fused" and how.recipe.loss_name != "squared":
        raise UsageError("models of fused kernels need the loss `squared`")
    if task == "tile" and how.predictor == "operations":
        raise UsageError("sums of operations predict seconds of fused kernels and rank no tiles")
    train, valid = split(samples, how.by, how.seed)
    parts = _Parts(train, {"valid": valid} | ({"tests": list(data.tests)} if data.tests else {}))
    models = {
        name: _candidate(name, parts, how, out, data.analysis, progress)
        for name in _candidates(how)
    }
    best = _better(task, parts, models)
    own, others = models.pop(best), {name: one.figures(task, parts) for name, one in models.items()}
    card = {
        **own.card,
        **data.about,
        "data": content_of(samples),
        "samples": sum(len(sample.seconds) for sample in samples),
        "patterns": len(samples),
        "groups": len({sample.group for sample in samples if not is_probe(sample.group)}),
        "parts": {
            name: {"kernels": len(part), "families": sorted({s.group for s in part})}
            for name, part in {"train": train, **parts.judged}.items()
        },
        "parameters": sum(array.size for array in own.weights.values()),
        "figures": own.figures(task, parts),
        "calibration": calibration(valid, own.predictions["valid"]),
        **({"others": others} if others else {}),
    }
    if task == "tile" and judge is not None:
        unseen = {sample.group for sample in valid} - {sample.group for sample in train}
        card |= judge(card, own.weights, sorted(unseen))
    card = saved(out, own.weights, card)
    forget(_operations(out))
    if best != "network":
        del card["curve"]
    return card


def _candidates(how: KernelTraining) -> tuple[str, ...]:
    """Predictors to train, the network first, since an interrupted training resumes with it."""
    if how.predictor != "auto":
        return (how.predictor,)
    return ("network", "operations" if how.task == "fused" else "trees")


def _operations(out: Path) -> Path:
    """Checkpoint folder of a network of operations, apart from that of graphs."""
    return folder_of(out) / "operations"


def _better(task: str, parts: _Parts, models: Mapping[str, _Candidate]) -> str:
    """The predictor with the least loss or error on the held-out part, programs having the same
    weight; the first of equal ones."""
    name = "ape" if task == "tile" else "mape"

    def missed(one: _Candidate) -> float:
        figures = one.figures(task, parts)["valid"]
        if name not in figures:  # all kernels are short
            figures = one.figures(task, parts, least_s=0.0)["valid"]
        return figures[name]

    if len(models) == 1:
        return next(iter(models))
    return min(models, key=lambda which: missed(models[which]))


def _candidate(
    name: str,
    parts: _Parts,
    how: KernelTraining,
    out: Path,
    analysis: Analysis | None,
    progress: Progress,
) -> _Candidate:
    if name == "network":
        network, fitted = fitted_network(
            parts.train, parts.judged["valid"], how, out, progress=progress
        )
        weights = {name: array.numpy() for name, array in network.state_dict().items()}
        predictions = {name: predictions_of(network, part) for name, part in parts.judged.items()}
        return _Candidate(_network_card(how, fitted), weights, predictions)
    if how.task == "tile":
        analysed = analysis is not None
        model_card = trees_card(analysis)
        weights = tree_weights(parts.train, how.seed, analysed=analysed)
        trees = KernelTrees(model_card, weights)
        predictions = {
            name: [tree_predictions(trees, sample, analysed=analysed) for sample in part]
            for name, part in parts.judged.items()
        }
    else:
        members = ("trees",) if name == "trees" else MEMBERS
        model_card, folder = summed_card(members), _operations(out)
        weights = summed_weights(parts.train, how.seed, members, folder=folder, progress=progress)
        sums = OperationSums(model_card, weights)
        predictions = {n: summed_predictions(sums, part) for n, part in parts.judged.items()}
    figures = figures_of(how.task, parts.judged["valid"], predictions["valid"], least_s=0.0)
    card = {
        **_card(how),
        **model_card,
        "settings": {**model_card["settings"], "by": how.by},
        "metrics": {f"valid_{name}": value for name, value in figures.items()},
    }
    return _Candidate(card, weights, predictions)


def _card(how: KernelTraining) -> dict[str, Any]:
    return {
        "kind": "kernels",
        "kernel": how.task,
        "ops": [how.task],
        **origin_card(how.seed),
    }


def _network_card(how: KernelTraining, fitted: Fitted) -> dict[str, Any]:
    network = how.recipe.spec.card
    return {
        **_card(how),
        "network": network,
        **fitted_card(fitted),
        "settings": {
            **how.recipe.settings_card,
            **{name: getattr(how, name) for name in ("kernels", "tiles", "by")},
            "predictor": f"{network['gnn']}-{network['reduction']}",
        },
    }

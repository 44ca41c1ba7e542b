"""The learned performance model of kernels from measured ones: a network of graphs, or what reads
plain rows where that is better on programs or families that are held out.

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
from indexer.training.cost_model.trees import available
from indexer.training.tensors.calibration import calibration
from indexer.training.tensors.fitting import fitted_network
from indexer.training.tensors.grown_trees import said_by, tree_weights, trees_card
from indexer.training.tensors.how import KernelTraining
from indexer.training.tensors.judging import figures_of, said_of
from indexer.training.tensors.operations.sums import (
    members_here,
    summed_card,
    summed_said,
    summed_weights,
)
from indexer.training.tensors.samples import KernelSample, content_of, split
from indexer.training.trainer import (
    Fitted,
    fitted_card,
    folder_of,
    forget,
    origin_card,
    saved,
)

__all__ = ["KernelData", "KernelTraining", "train_kernels"]


#: From a card, the weights by name and the families of which nothing was learned: what joins the
#: card.
Judge = Callable[[dict[str, Any], dict[str, NDArray[Any]], Sequence[str]], dict[str, Any]]


@dataclass(frozen=True, slots=True, eq=False)
class _Parts:
    """What is learned from, and by name what is judged by."""

    train: Sequence[KernelSample]
    judged: Mapping[str, Sequence[KernelSample]]


@dataclass(frozen=True, slots=True, eq=False)
class _Made:
    """A model that may be kept: its own part of the card, its weights, and what it says float64[c]
    of each sample, by part."""

    card: dict[str, Any]
    weights: dict[str, NDArray[Any]]
    said: Mapping[str, list[NDArray[np.float64]]]

    def figures(self, task: str, parts: _Parts, **least: float) -> dict[str, dict[str, float]]:
        return {
            n: figures_of(task, part, self.said[n], **least) for n, part in parts.judged.items()
        }


@dataclass(frozen=True, slots=True, eq=False)
class KernelData:
    """What models of kernels learn from and are judged by.

    `tests` are kernels of which nothing is learned, for the card's figures; `about` joins the card,
    and so does the result of `judge` for a model of tiles. With the `analysis` that samples are
    made with, trees learn its residuals.
    """

    samples: Sequence[KernelSample]
    tests: Sequence[KernelSample] = ()
    about: Mapping[str, Any] = field(default_factory=dict)
    analysis: Analysis | None = None
    judge: Judge | None = None


def train_kernels(
    data: KernelData, how: KernelTraining, out: Path, *, progress: Progress
) -> dict[str, Any]:
    """Train on all samples but those held out, write the model to `out`; returns its card with
    `version` and, of a network, `curve`. The predictor `auto` is the one with the lower loss or
    error there; `others` are then the other's figures. Resumes an unfinished training of `out`.

    Raises: InputError for too few programs or families; UsageError for a loss or a predictor that
    does not fit the task; ModelError as `fit` and `save` do; MissingDependency for trees without
    LightGBM.
    """
    task, samples, judge = how.task, data.samples, data.judge
    if task == "fused" and how.recipe.loss_name != "squared":
        raise UsageError("seconds of fused kernels are learned by `squared` errors alone")
    if task == "tile" and how.predictor == "operations":
        raise UsageError("sums of operations tell seconds of fused kernels, they rank no tiles")
    train, valid = split(samples, how.by, how.seed)
    parts = _Parts(train, {"valid": valid} | ({"tests": list(data.tests)} if data.tests else {}))
    made = {
        name: _made(name, parts, how, out, data.analysis, progress) for name in _candidates(how)
    }
    best = _better(task, parts, made)
    own, others = made.pop(best), {name: one.figures(task, parts) for name, one in made.items()}
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
        "calibration": calibration(valid, own.said["valid"]),
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
    """The network first: it is what a stopped training goes on with."""
    if how.predictor != "auto":
        return (how.predictor,)
    if how.task == "fused":
        return ("network", "operations")
    return ("network", "trees") if available() else ("network",)


def _operations(out: Path) -> Path:
    """Where the checkpoint of a network of operations is: that of graphs is not in its way."""
    return folder_of(out) / "operations"


def _better(task: str, parts: _Parts, made: Mapping[str, _Made]) -> str:
    """The one that loses or errs least on what was held out, programs counting the same; of equal
    ones the first."""
    name = "ape" if task == "tile" else "mape"

    def missed(one: _Made) -> float:
        found = one.figures(task, parts)["valid"]
        if name not in found:  # all kernels are short
            found = one.figures(task, parts, least_s=0.0)["valid"]
        return found[name]

    return min(made, key=lambda which: missed(made[which])) if len(made) > 1 else next(iter(made))


def _made(
    name: str,
    parts: _Parts,
    how: KernelTraining,
    out: Path,
    analysis: Analysis | None,
    progress: Progress,
) -> _Made:
    if name == "network":
        return _network(parts, how, out, progress)
    if how.task == "tile":
        return _tile_trees(parts, how, analysis)
    members = ("trees",) if name == "trees" else members_here()
    return _sums(parts, how, members, out, progress)


def _network(parts: _Parts, how: KernelTraining, out: Path, progress: Progress) -> _Made:
    network, fitted = fitted_network(
        parts.train, parts.judged["valid"], how, out, progress=progress
    )
    weights = {name: array.numpy() for name, array in network.state_dict().items()}
    said = {name: said_of(network, part) for name, part in parts.judged.items()}
    return _Made(_network_card(how, fitted), weights, said)


def _tile_trees(parts: _Parts, how: KernelTraining, analysis: Analysis | None) -> _Made:
    analysed = analysis is not None
    told, trees = trees_card(analysis), tree_weights(parts.train, how.seed, analysed=analysed)
    grown = KernelTrees(told, trees)
    said = {
        name: [said_by(grown, sample, analysed=analysed) for sample in part]
        for name, part in parts.judged.items()
    }
    return _of_rows(told, trees, said, parts, how)


def _sums(
    parts: _Parts, how: KernelTraining, members: Sequence[str], out: Path, progress: Progress
) -> _Made:
    told, folder = summed_card(members), _operations(out)
    weights = summed_weights(parts.train, how.seed, members, folder=folder, progress=progress)
    model = OperationSums(told, weights)
    said = {name: summed_said(model, part) for name, part in parts.judged.items()}
    return _of_rows(told, weights, said, parts, how)


def _of_rows(
    told: dict[str, Any],
    weights: dict[str, NDArray[Any]],
    said: Mapping[str, list[NDArray[np.float64]]],
    parts: _Parts,
    how: KernelTraining,
) -> _Made:
    task = how.task
    figures = figures_of(task, parts.judged["valid"], said["valid"], least_s=0.0)
    card = {**_card(how), **told}
    card["settings"] = {**card["settings"], "by": how.by}
    return _Made({**card, "metrics": {f"valid_{n}": v for n, v in figures.items()}}, weights, said)


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
            **how.recipe.told,
            **{name: getattr(how, name) for name in ("kernels", "tiles", "steps", "by")},
            "predictor": f"{network['gnn']}-{network['reduction']}",
        },
    }

"""Settings of a kernels' model, and the losses of its network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from embeddb.tensors.encoding.predictor import NetworkSpec
from indexer.training.tensors.network import TrainedNetwork
from indexer.training.trainer import Settings

#: The scalar to be minimised, of predictions float32[b] (lower is faster), standardised log
#: seconds float32[b] and which kernel each is of, int64[b].
Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


def wrong_orders(each: Callable[[Tensor], Tensor]) -> Loss:
    """The rank loss of the paper's Eq. 1: `each` of y'_i - y'_j for each pair of tiles of one
    kernel where i is slower than j, divided by the number of such pairs."""

    def loss(scores: Tensor, logs: Tensor, owner: Tensor) -> Tensor:
        slower = (logs[:, None] > logs[None]) & (owner[:, None] == owner[None])
        apart = scores[:, None] - scores[None]
        return torch.where(slower, each(apart), 0).sum() / slower.sum().clamp(min=1)

    return loss


def _squared(predicted: Tensor, logs: Tensor, owner: Tensor) -> Tensor:
    """Squared error, for absolute seconds."""
    return (predicted - logs).square().mean()


_HINGE = wrong_orders(lambda apart: functional.relu(1 - apart))


@dataclass(frozen=True, slots=True)
class Recipe:
    """A network and its training: the loss and its name, the learning rate and its decay per epoch,
    the gradient clipping (0: none), and the constructor of the network from a spec and a
    dropout."""

    spec: NetworkSpec
    loss_name: str = "hinge"
    loss: Loss = _HINGE
    lr: float = 1e-3
    decay: float = 0.98
    clip: float = 1.0
    dropout: float = 0.1
    name: str = "default"
    network: Callable[[NetworkSpec, float], TrainedNetwork] = TrainedNetwork

    @property
    def settings_card(self) -> dict[str, object]:
        """Settings in the model's card."""
        names = ("name", "lr", "decay", "clip", "dropout")
        return {**{name: getattr(self, name) for name in names}, "loss": self.loss_name}


def recipe(task: str, hidden: int = 0, lr: float = 0.0) -> Recipe:
    """Default recipe, for two cores; 0 stands for the defaults of `hidden` and `lr`."""
    spec = NetworkSpec(task, hidden) if hidden else NetworkSpec(task)
    if task == "fused":
        return Recipe(spec, "squared", _squared, lr=lr or 1e-3)
    return Recipe(spec, lr=lr or 1e-3)


@dataclass(frozen=True, slots=True)
class KernelTraining:
    """Settings of a kernels' model.

    A batch has `tiles` tiles of each of `kernels` kernels; an epoch shows each kernel about once.
    `by`, one of `SPLITS`, is the unit held out for early stopping and for the choice of
    `predictor`: `auto` (the better one for the task), `network`, `trees` or `operations`.
    """

    recipe: Recipe = field(default_factory=lambda: recipe("tile"))
    epochs: int = 60
    patience: int = 10
    kernels: int = 8
    tiles: int = 16
    by: str = "family"
    seed: int = 0
    predictor: str = "network"

    @property
    def task(self) -> str:
        return self.recipe.spec.task

    @property
    def settings(self) -> Settings:
        own = self.recipe
        return Settings(
            self.epochs, own.lr, self.patience, seed=self.seed, decay=own.decay, clip=own.clip
        )

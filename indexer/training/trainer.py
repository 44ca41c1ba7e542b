"""One training loop for every model: Adam, early stopping, a curve, and a checkpoint per epoch.

A training that is killed and resumed ends with the same weights as an uninterrupted one: batches
are a function of the epoch, and the checkpoint has weights, optimizer moments, the state of the
random generator and the best weights so far. It is a safetensors file written by rename, so a kill
leaves the epoch before. Weights are bit-identical for the same machine, torch and thread count.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from embeddb.core.errors import InputError, ModelError
from embeddb.core.files import model_file
from embeddb.core.files.safe_read import refusing
from embeddb.core.files.safe_write import OwnFolder
from embeddb.core.reports import Progress
from indexer.training.folder import (
    Line,
    checkpoint_of,
    curve_of,
    folder_of,
    forget,
    read_curve,
    write_curve,
)

_MOMENTS = ("step", "exp_avg", "exp_avg_sq")
#: Exceptions of restoring an invalid checkpoint.
_UNSOUND = (ArithmeticError, AttributeError, KeyError, RuntimeError, TypeError, ValueError)


@dataclass(frozen=True, slots=True)
class Settings:
    """Length and learning rate of a training; `run` identifies the data and the network.

    A checkpoint is resumed only with the same `run`, `lr` and `seed`; `epochs` and `patience` may
    change. Training stops early after `patience` epochs without a lower validation figure `watch`;
    without such a figure it runs all epochs and ends with the last weights. `decay` is the factor
    of the rate per epoch; gradients are clipped to the norm `clip` (0: not clipped).
    """

    epochs: int = 100
    lr: float = 1e-3
    patience: int = 15
    watch: str = "valid_loss"
    seed: int = 0
    run: str = ""
    decay: float = 1.0
    clip: float = 0.0


@dataclass(frozen=True, slots=True)
class Job:
    """Batches, loss and validation of a training.

    `batches(epoch)` always returns the same `steps` batches for an epoch (1, 2, …); `loss(batch)`
    is a scalar with a gradient; `validate()` returns the figures of an epoch by name, lower is
    better, and is called with the module in evaluation mode and without gradients. `stepped()` is
    called after each step.
    """

    steps: int
    batches: Callable[[int], Iterable[Any]]
    loss: Callable[[Any], Tensor]
    validate: Callable[[], dict[str, float]]
    stepped: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True)
class Fitted:
    """Epochs run, the best of them, its figures, and whether patience ended the training."""

    epochs: int
    best_epoch: int
    figures: Mapping[str, float]
    stopped_early: bool


def run_name(*parts: Any) -> str:
    """16 hex digits for `Settings.run`: all that a checkpoint depends on beside `lr` and `seed`."""
    text = json.dumps(parts, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def fitted_card(fitted: Fitted) -> dict[str, Any]:
    """Entries of a card about the course of a training."""
    return {
        "metrics": {name: round(value, 6) for name, value in fitted.figures.items()},
        "epochs": fitted.epochs,
        "best_epoch": fitted.best_epoch,
        "stopped_early": fitted.stopped_early,
    }


def saved(
    out: Path, tensors: Mapping[str, Tensor | NDArray[Any]], card: Mapping[str, Any]
) -> dict[str, Any]:
    """Write a trained network and remove its checkpoint; returns the card with `version` and
    `curve`.

    Raises: ModelError if it cannot be written.
    """
    version = model_file.save(out, tensors, card)
    forget(folder_of(out))
    return {**card, "version": version, "curve": str(curve_of(folder_of(out)))}


def fit(
    module: nn.Module, job: Job, *, settings: Settings, folder: Path, progress: Progress
) -> Fitted:
    """Train `module` in place; it ends with the best weights, or the last, and in evaluation mode.

    Resumes from the checkpoint in `folder` if there is one. Ctrl-C loses the current epoch only.
    The global random state is restored.

    Raises: ModelError if the loss or a figure is not finite, or the checkpoint is damaged or of
    another run.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with refusing(ModelError, where=str(folder)):
        OwnFolder(folder.parent, folder.name).make()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        state = _State(module, settings)
        if checkpoint_of(folder).exists():
            state.load(checkpoint_of(folder))
        curve = _finished_lines(curve_of(folder), state.epoch)
        while not state.over:
            curve.append(_epoch(state, job, progress))
            # The curve first: after a kill in between, its surplus line is removed above.
            write_curve(curve_of(folder), curve)
            state.save(checkpoint_of(folder))
    module.load_state_dict(state.best_weights)
    module.eval()
    return Fitted(state.epoch, state.best_epoch, state.best, state.epoch < settings.epochs)


def _finished_lines(file: Path, epochs: int) -> list[Line]:
    """The lines of finished epochs; none of a damaged curve, which is only for plots."""
    try:
        lines = read_curve(file) if epochs and file.exists() else []
    except InputError:
        return []
    return [line for line in lines if line["epoch"] <= epochs]


def _epoch(state: _State, job: Job, progress: Progress) -> Line:
    """Train and validate for an epoch; returns its line of the curve."""
    began, epoch = time.monotonic(), state.epoch + 1
    loss = _train(state, job, progress)
    state.module.eval()
    with torch.no_grad():
        figures = {name: _finite(value, name, epoch) for name, value in job.validate().items()}
    state.finish(figures)
    seconds = round(time.monotonic() - began, 3)
    return {"epoch": epoch, "train_loss": loss, **figures, "seconds": seconds}


def _train(state: _State, job: Job, progress: Progress) -> float:
    """Train on all batches of an epoch; returns their mean loss."""
    state.module.train()
    total, epoch, settings = 0.0, state.epoch + 1, state.settings
    for group in state.optimizer.param_groups:
        group["lr"] = settings.lr * settings.decay ** (epoch - 1)
    done, batches = state.epoch * job.steps, settings.epochs * job.steps
    for step, batch in enumerate(job.batches(epoch), start=1):
        state.optimizer.zero_grad(set_to_none=True)
        loss = job.loss(batch)
        total += _finite(loss.item(), "loss", epoch)
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        if settings.clip:
            nn.utils.clip_grad_norm_(state.module.parameters(), settings.clip)
        state.optimizer.step()
        job.stepped()
        progress("train", done + step, batches)
    return total / max(job.steps, 1)


def _finite(value: float, what: str, epoch: int) -> float:
    if not math.isfinite(value):
        raise ModelError(
            f"training failed: {what} is {value} in epoch {epoch}", hint="try a smaller --lr"
        )
    return float(value)


@dataclass
class _State:
    """State that the next epoch depends on."""

    module: nn.Module
    settings: Settings
    epoch: int = 0
    best_epoch: int = 0
    best: dict[str, float] = field(default_factory=dict)
    best_weights: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.optimizer = torch.optim.Adam(self.module.parameters(), lr=self.settings.lr)
        self.best_weights = _copied(self.module.state_dict())

    @property
    def over(self) -> bool:
        waited = self.epoch - self.best_epoch
        return self.epoch >= self.settings.epochs or waited >= self.settings.patience

    def finish(self, figures: dict[str, float]) -> None:
        self.epoch += 1
        watch = self.settings.watch
        if not watch or not self.best or figures[watch] < self.best[watch]:
            self.best, self.best_epoch = figures, self.epoch
            self.best_weights = _copied(self.module.state_dict())

    def save(self, file: Path) -> None:
        tensors = {"rng": torch.get_rng_state()}
        tensors |= {f"weights/{k}": v for k, v in self.module.state_dict().items()}
        tensors |= {f"best/{k}": v for k, v in self.best_weights.items()}
        for name, parameter in self.module.named_parameters():
            moments = self.optimizer.state.get(parameter, {})
            tensors |= {f"{key}/{name}": moments[key] for key in _MOMENTS if key in moments}
        card = {
            "kind": "checkpoint",
            "run": _run(self.settings),
            "epoch": self.epoch,
            "best_epoch": self.best_epoch,
            "best": self.best,
        }
        model_file.save(file, _copied(tensors), card)

    def load(self, file: Path) -> None:
        """Raises: ModelError if the file is damaged or belongs to another training."""
        tensors, card = model_file.load(file, kind="checkpoint")
        if card.get("run") != _run(self.settings):
            raise ModelError(
                "the training begun there has other data, another network or other settings",
                where=str(file),
                hint="give the same options, or remove that file to begin anew",
            )
        try:
            self._restore(tensors, card)
        except _UNSOUND as e:
            reason = " ".join(str(e).split())[:200]
            raise ModelError(
                f"not a whole checkpoint: {reason}", where=str(file), hint="remove it"
            ) from None

    def _restore(self, tensors: Mapping[str, Tensor], card: Mapping[str, Any]) -> None:
        self.epoch, self.best_epoch = int(card["epoch"]), int(card["best_epoch"])
        self.best = {str(k): float(v) for k, v in card["best"].items()}
        watch = self.settings.watch
        if not 0 < self.best_epoch <= self.epoch or (watch and watch not in self.best):
            raise ValueError("epochs that do not fit together")
        best, own = (
            {n.removeprefix(part): t for n, t in tensors.items() if n.startswith(part)}
            for part in ("best/", "weights/")
        )
        for weights in (best, own):
            self.module.load_state_dict(weights)  # refuses what does not fit
        self.best_weights = best
        for name, parameter in self.module.named_parameters():
            if f"step/{name}" in tensors:
                moments = {key: tensors[f"{key}/{name}"] for key in _MOMENTS}
                self.optimizer.state[parameter] = _fitting(moments, parameter)
        torch.set_rng_state(tensors["rng"])


def _fitting(moments: dict[str, Tensor], parameter: Tensor) -> dict[str, Tensor]:
    for key in ("exp_avg", "exp_avg_sq"):
        if moments[key].shape != parameter.shape:
            raise ValueError(f"{key} is of another shape than its weights")
        moments[key] = moments[key].to(parameter)
    if moments["step"].ndim or moments["step"] < 1:
        raise ValueError("step counts no steps")
    return moments


def _run(settings: Settings) -> str:
    parts = [settings.run, settings.lr, settings.seed, settings.watch]
    changed = [settings.decay, settings.clip]
    # Checkpoints from before these two settings stay valid.
    return json.dumps(parts if changed == [1.0, 0.0] else parts + changed)


def _copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies on the CPU: training overwrites the originals."""
    return {name: value.detach().to("cpu", copy=True) for name, value in tensors.items()}

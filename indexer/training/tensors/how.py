"""How a model of kernels is trained."""

from __future__ import annotations

from dataclasses import dataclass, field

from indexer.training.tensors.presets import Preset, preset
from indexer.training.trainer import Settings

__all__ = ["PREDICTORS", "KernelTraining"]

#: What a model is of: the better of what there is for its task (`auto`), or what is asked for.
PREDICTORS = ("auto", "network", "trees", "operations")


@dataclass(frozen=True, slots=True)
class KernelTraining:
    """What is trained, and the network how. A batch has `tiles` tiles of each of `kernels` kernels;
    an epoch has `steps` batches (0: as many as show each kernel once); `by` is what is held out for
    early stopping and for choosing between `PREDICTORS`, one of `SPLITS`."""

    preset: Preset = field(default_factory=lambda: preset("tile"))
    epochs: int = 60
    patience: int = 10
    kernels: int = 8
    tiles: int = 16
    steps: int = 0
    by: str = "family"
    seed: int = 0
    predictor: str = "network"

    @property
    def settings(self) -> Settings:
        own = self.preset
        return Settings(
            self.epochs, own.lr, self.patience, seed=self.seed, decay=own.decay, clip=own.clip
        )

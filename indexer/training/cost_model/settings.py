"""Settings of cost models: our defaults, and COGNATE's."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from embeddb.core.errors import UsageError
from embeddb.cost_model.encoders.latent import KINDS, READERS
from embeddb.cost_model.network_numpy import FORMS, FUSIONS

#: Losses by name (`indexer.training.cost_model.losses`, which imports torch), a list because
#: `reproductions.cost_networks` adds one.
LOSSES = ["listwise", "margin"]
#: Sparse networks that can be trained within a cost model.
ENCODERS = ("cognate", "waco")


@dataclass(frozen=True, slots=True)
class CostSettings:
    """Settings of a cost model; the defaults are the best networks in the replays
    (docs/explanation/cost-model.md).

    With the `predictor` "trees", only `parts`, `members` and `seed` apply, with "gp" (a Gaussian
    process) only `seed`; else it is one of `embeddb.cost_model.network_numpy.FORMS`.
    `latent` is a kind of `embeddb.cost_model.encoders.latent`. `parts` are those of
    `embeddb.cost_model.network_numpy.PARTS` that the model sees. A batch is `batch` matrices with
    `configs` configurations each, and an epoch shows every matrix `passes` times. `average` is the
    decay of the running mean of the weights, which is saved (0: no averaging).

    With an `encoder` (one of `ENCODERS`) the matrix side is that sparse network, trained together
    with the rest on the pattern's own coordinates, in cells of which at most `sites` squared are
    occupied; `binary`: with their positions alone. `every_pair` is the papers' loss: all pairs of
    a batch, of measured gains. `plain`: the first five answers are the five best predicted ones.
    """

    predictor: str = "mlp"
    fusion: str = "concat"
    latent: str = "ae"
    parts: tuple[str, ...] = ("featurizer", "mapper", "tiles", "latent")
    loss: str = "listwise"
    residual: bool = True
    bilinear: bool = True
    members: int = 3
    epochs: int = 60
    few_epochs: int = 30
    patience: int = 15
    lr: float = 1e-3
    batch: int = 16
    configs: int = 128
    passes: int = 1
    dropout: float = 0.1
    noise: float = 0.05
    average: float = 0.98
    seed: int = 0
    encoder: str = ""
    sites: int = 64
    binary: bool = False
    every_pair: bool = False
    plain: bool = False

    def __post_init__(self) -> None:
        """Raises: UsageError for a predictor, latent, loss or encoder that is not known, or for
        parts that do not fit together."""
        legal = {
            "predictor": (*FORMS, "trees", "gp"),
            "latent": (*KINDS, *READERS),
            "fusion": FUSIONS,
            "loss": LOSSES,
        }
        for name, values in legal.items():
            if getattr(self, name) not in values:
                raise UsageError(f"no {name} {getattr(self, name)!r}", hint=", ".join(values))
        if not self.encoder:
            return
        if self.encoder not in ENCODERS:
            raise UsageError(f"no encoder {self.encoder!r}", hint=", ".join(ENCODERS))
        if self.members != 1 or self.residual or "featurizer" not in self.parts:
            raise UsageError(
                "an encoder is trained with one network that sees it, without a prior",
                hint="members 1, residual off, the part featurizer",
            )


def paper(**changes: Any) -> CostSettings:
    """COGNATE's hyper-parameters (Table 3): Adam 1e-4, 100 epochs, margin loss, 32 configurations
    of a matrix in a batch; one network, without our additions."""
    plain = CostSettings(
        parts=("featurizer", "mapper", "latent"),
        fusion="add",
        loss="margin",
        residual=False,
        bilinear=False,
        members=1,
        epochs=100,
        few_epochs=100,
        patience=100,
        lr=1e-4,
        batch=1,
        configs=32,
        passes=3,
        dropout=0.0,
        noise=0.0,
        average=0.0,
    )
    return replace(plain, **changes)


#: COGNATE whole: its sparse network trained by run times together with the rest. `cognate-tiles` is
#: ours: with tile features and ten times the learning rate (docs/explanation/cost-model.md).
PRESETS: dict[str, dict[str, Any]] = {
    "cognate": {},
    "cognate-tiles": {"parts": ("featurizer", "mapper", "tiles", "latent"), "lr": 1e-3},
}


def preset(name: str, **changes: Any) -> CostSettings:
    """One of `PRESETS`, with changes. Raises: UsageError for any other name."""
    if name not in PRESETS:
        raise UsageError(
            f"no preset {name!r}",
            hint=f"{', '.join(PRESETS)}; reproductions/ has the models of other papers",
        )
    whole = {"encoder": "cognate", "every_pair": True, "plain": True}
    return paper(**{**whole, **PRESETS[name], **changes})


def forest(**changes: Any) -> CostSettings:
    """Boosted trees, the best from few groups of matrices."""
    return CostSettings(**{"predictor": "trees", "residual": False, "members": 2, **changes})

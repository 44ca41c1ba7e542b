"""How a cost model is made: ours, and those that the papers describe."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from embeddb.core.errors import UsageError
from embeddb.cost_model.encoders.latent import KINDS
from indexer.training.cost_model.losses import LOSSES

__all__ = ["PRESETS", "CostSettings", "forest", "paper", "preset", "waco_fa", "waco_fm"]

#: Sparse networks that can be trained within a cost model.
ENCODERS = ("cognate", "waco")


@dataclass(frozen=True, slots=True)
class CostSettings:
    """How a cost model is made; the defaults are the best networks that were found
    (docs/models.md).

    With the `predictor` "trees", only `every`, `parts`, `members` and `seed` mean something.
    `latent` is a kind of `embeddb.cost_model.encoders.latent`; with `every`, all parameters enter
    it and not only the platform's own. `parts` are those of
    `embeddb.cost_model.network_torch.PARTS` that the model sees. A batch is `batch` matrices with
    `configs` configurations each, and an epoch shows every matrix `passes` times. `average` is how
    slowly the weights that are kept follow those that are trained (0: they are the same).

    With an `encoder` (one of `ENCODERS`) the matrix side is that sparse network, trained together
    with the rest on the pattern's own coordinates, in cells of which at most `sites` squared are
    occupied; `binary`: it sees only where they are. An `embedder` is WACO's, in place of mapper and
    latent. `every_pair` is the papers' loss: all pairs of a batch, of gains as they were measured.
    `plain`: the first five are the five best predicted.
    """

    predictor: str = "mlp"
    fusion: str = "concat"
    latent: str = "ae"
    every: bool = False
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
    embedder: bool = False
    every_pair: bool = False
    plain: bool = False

    def __post_init__(self) -> None:
        """Raises: UsageError for a latent, a loss or an encoder that is not known, or for parts
        that do not fit together."""
        if self.latent not in KINDS:
            raise UsageError(f"no latent encoder {self.latent!r}", hint=", ".join(KINDS))
        if self.loss not in LOSSES:
            raise UsageError(f"no loss {self.loss!r}", hint=", ".join(LOSSES))
        if self.embedder and (self.latent, self.predictor) != ("fa", "mlp"):
            raise UsageError("a program embedder goes with the latent fa and the predictor mlp")
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
    of a matrix in a batch; one network, and nothing of ours."""
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


def waco_fa(**changes: Any) -> CostSettings:
    """WACO's model with feature augmentation: every parameter of every platform has a place of its
    own, and there is no common loop nest (COGNATE, Section 4.1, "WACO+FA")."""
    own = {"latent": "fa", "every": True, "fusion": "concat", "parts": ("featurizer", "latent")}
    return paper(**{**own, **changes})


def waco_fm(**changes: Any) -> CostSettings:
    """WACO's model with feature mapping: the common loop nest, and the platform's own parameters
    augmented instead of encoded ("WACO+FM")."""
    return paper(**{"latent": "fa", "fusion": "concat", **changes})


def _whole(encoder: str, **more: Any) -> dict[str, Any]:
    """What makes of COGNATE's settings the model as its authors wrote it."""
    return {"encoder": encoder, "every_pair": True, "plain": True, **more}


#: The papers' models whole: their sparse network trained by run times together with the rest.
#: DASH is the earlier form of COGNATE: parts and tables are the same. `cognate-tiles` is ours: told
#: what tiles come to on the matrix, at ten times the rate (docs/models.md).
PRESETS: dict[str, dict[str, Any]] = {
    "cognate": _whole("cognate"),
    "cognate-tiles": _whole("cognate", parts=("featurizer", "mapper", "tiles", "latent"), lr=1e-3),
    "dash": _whole("cognate"),
    "waco-fa": _whole(
        "waco",
        embedder=True,
        latent="fa",
        every=True,
        fusion="concat",
        parts=("featurizer", "latent"),
    ),
    "waco-fm": _whole("waco", embedder=True, latent="fa", fusion="concat"),
}


def preset(name: str, **changes: Any) -> CostSettings:
    """One of `PRESETS`, with changes. Raises: UsageError for any other name."""
    if name not in PRESETS:
        raise UsageError(f"no preset {name!r}", hint=", ".join(PRESETS))
    return paper(**{**PRESETS[name], **changes})


def forest(**changes: Any) -> CostSettings:
    """Boosted trees, the best from few groups of matrices."""
    plain = CostSettings(predictor="trees", residual=False, members=5)
    return replace(plain, **changes)

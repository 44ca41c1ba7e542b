"""A cost model from samples: pre-training, fine-tuning on another platform, zero-shot.

The network learns what a matrix changes about a platform's prior, which is what a configuration
gains on average. The prior is two things: a ridge regression on loop nest and latent, which also
speaks of configurations nobody ran, and the mean of each measured one beyond it.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb import __version__
from embeddb.config import Op
from embeddb.costmodel import CostModel, layout_of, space_digest
from embeddb.encoders.latent import KINDS, Augmented, LatentEncoder, fit, space_rows
from embeddb.errors import UsageError
from embeddb.platform import Platform
from indexer.training.calibration import calibrated, trust
from indexer.training.losses import LOSSES
from indexer.training.members import FittedMember, Member, fit_member
from indexer.training.prior import Prior, fit_priors
from indexer.training.samples import Samples
from indexer.training.tables import Tables
from indexer.training.trainer import checkpoint_of, curve_of
from indexer.training.trainer import forget as forget_member

__all__ = [
    "CostSettings",
    "curves",
    "forget",
    "paper",
    "retarget",
    "train",
    "unfinished",
    "waco_fa",
    "waco_fm",
]

Progress = Callable[[str, int, int], None]

#: One group in so many is held out of a member, another one of each member.
_FOLDS = 10
#: With fewer groups none is held out, and training ends after `few_epochs`.
_LEAST_GROUPS = 8
#: Rows of the vector that all platforms share under feature augmentation.
_AUGMENTED = 256
_SPACE_ROWS = 4096


@dataclass(frozen=True, slots=True)
class CostSettings:
    """How a cost model is made; the defaults are the best that were found (docs/models.md).

    `latent` is a kind of `embeddb.encoders.latent`; with `every`, all parameters enter it and not
    only the platform's own. `parts` are those of `embeddb.models.costmodel.PARTS` that the model
    sees. A batch is `batch` matrices with `configs` configurations each, and an epoch shows every
    matrix `passes` times. `average` is how slowly the weights that are kept follow those that are
    trained (0: they are the same).
    """

    predictor: str = "mlp"
    fusion: str = "concat"
    latent: str = "ae"
    every: bool = False
    parts: tuple[str, ...] = ("featurizer", "mapper", "latent")
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

    def __post_init__(self) -> None:
        """Raises: UsageError for a latent or a loss that is not known."""
        if self.latent not in KINDS:
            raise UsageError(f"no latent encoder {self.latent!r}", hint=", ".join(KINDS))
        if self.loss not in LOSSES:
            raise UsageError(f"no loss {self.loss!r}", hint=", ".join(LOSSES))


def paper(**changes: Any) -> CostSettings:
    """COGNATE's hyper-parameters (Table 3): Adam 1e-4, 100 epochs, margin loss, 32 configurations
    of a matrix in a batch; one network, and nothing of ours."""
    plain = CostSettings(
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


def train(
    samples: Samples,
    settings: CostSettings,
    *,
    start: CostModel | None = None,
    folder: Path | None = None,
    progress: Progress | None = None,
) -> CostModel:
    """Learn from samples; with `start`, from where that model stands (fine-tuning): matrix side,
    mapper and predictor go on, latent encoder and prior are the samples' platform's own. What the
    network is made of is then taken from `start`.

    With 8 groups or more each member holds out a tenth of them, another one each, ends early by
    them, and the spread is calibrated on them; with fewer, training ends after `few_epochs`, the
    spread is what the members differ by, and what the network adds to the prior counts as far as it
    was right about groups left out once. A training in `folder` that was stopped goes on.

    Raises: UsageError if there is too little to learn from (`Samples.check`) or `start` is of
    another kernel or featurizer; ModelError if training fails.
    """
    samples.check()
    card, tensors, scores = _learned(samples, settings, start, folder, progress)
    model = calibrated(card, tensors, samples, scores)
    if card["settings"]["residual"] and np.unique(samples.groups).size < _LEAST_GROUPS:
        single = replace(settings, members=1)
        model.card["calibration"]["trust"] = trust(
            samples, lambda rest: _learned(rest, single, start, None, None)[:2]
        )
    return model


def _learned(
    samples: Samples,
    settings: CostSettings,
    start: CostModel | None,
    folder: Path | None,
    progress: Progress | None,
) -> tuple[dict[str, Any], dict[str, NDArray[Any]], list[Mapping[int, NDArray[np.float64]]]]:
    """Card and tensors of a model that is not yet calibrated, and what each member says of the
    rows it did not learn from."""
    if start is not None:
        settings = _inherited(settings, start)
        _check_start(samples, start)
    encoder = _encoder(samples.platform, samples.ops, settings, start)
    scale = start.below("scale.") if start is not None else _scale(samples.vectors)
    tables = Tables.of(samples, encoder, scale, settings.parts, every=settings.every)
    priors, of_entry = _priors(samples, tables, settings, start)
    tensors = _common(encoder, scale, priors)
    named, groups = _named(samples, settings, start), samples.groups
    made: list[FittedMember] = []
    with ExitStack() as stack:
        place = folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for i in range(settings.members):
            held = _held_out(groups, i, settings.seed)
            member = Member(tables, of_entry, settings, held, index=i, run=named)
            first = start.below(f"member.{i % start.members}.") if start is not None else None
            told = _within(progress, i, settings.members)
            made.append(fit_member(member, first, place / f"member-{i}", told))
    for i, fitted in enumerate(made):
        tensors |= {f"member.{i}.{name}": a for name, a in fitted.weights.items()}
    card = _card(samples, settings, start)
    card["metrics"] = _mean([fitted.figures for fitted in made])
    card["epochs"] = [fitted.epochs for fitted in made]
    return card, tensors, [fitted.scores for fitted in made]


def _priors(
    samples: Samples, tables: Tables, settings: CostSettings, start: CostModel | None
) -> tuple[dict[Op, Prior], NDArray[np.float64]]:
    if not settings.residual:
        return {}, np.zeros(len(samples.gain))
    return fit_priors(samples, tables, start)


def retarget(model: CostModel, platform: Platform, ops: tuple[Op, ...]) -> CostModel:
    """The model on a platform it has no samples of (zero-shot): the latent encoder is the
    platform's own, and of the prior only what it says of loop nests is kept.

    Raises: UsageError if the platform does not run the kernel, or for no op.
    """
    if not ops or {op.kernel for op in ops} != {model.card["kernel"]}:
        raise UsageError(f"the model is for {model.card['kernel']} and needs an op of it")
    settings = _inherited(CostSettings(), model)
    encoder = _encoder(platform, ops, settings, model)
    kept = {f"member.{n}": a for n, a in model.below("member.").items()}
    tensors = {**kept, **_common(encoder, model.below("scale."), {})}
    for op in ops if settings.residual else ():
        near = min(model.ops, key=lambda o: abs(math.log2(o.width / op.width)))
        tensors[f"prior.{op}.nest"] = model.tensors[f"prior.{near}.nest"]
        tensors[f"prior.{op}.latent"] = np.zeros(encoder.dim, dtype=np.float32)
        tensors[f"prior.{op}.ids"] = np.zeros((0, 16), dtype=np.uint8)
        tensors[f"prior.{op}.rest"] = np.zeros(0, dtype=np.float32)
    card = {
        **model.card,
        "ops": [str(op) for op in sorted(ops)],
        "platform": _platform(platform, ops[0]),
        "parent": model.version,
        "samples": 0,
        "metrics": {},
        "held_out": {},
    }
    return CostModel(card, tensors)


def curves(folder: Path) -> list[Path]:
    """The curve of each member, as `embeddb train plot` draws it."""
    return [curve_of(member) for member in sorted(folder.glob("member-*"))]


def unfinished(folder: Path) -> bool:
    """Whether a training was stopped there."""
    return any(checkpoint_of(member).exists() for member in folder.glob("member-*"))


def forget(folder: Path) -> None:
    """Drop the checkpoints of a training whose model is saved; the curves stay."""
    for member in folder.glob("member-*"):
        forget_member(member)


def _within(progress: Progress | None, i: int, members: int) -> Progress:
    """One bar over all members."""

    def told(what: str, done: int, total: int) -> None:
        if progress is not None:
            progress(what, i * total + done, members * total)

    return told


def _inherited(settings: CostSettings, start: CostModel) -> CostSettings:
    kept = start.card["settings"]
    own = ("predictor", "fusion", "latent", "every", "residual", "bilinear")
    return replace(settings, parts=tuple(kept["parts"]), **{name: kept[name] for name in own})


def _check_start(samples: Samples, start: CostModel) -> None:
    card = start.card
    if card["kernel"] != samples.ops[0].kernel:
        raise UsageError(
            f"the model to start from is for {card['kernel']}, the samples are of "
            f"{samples.ops[0].kernel}"
        )
    made = (card["featurizer"]["name"], card["featurizer"]["version"])
    own = (samples.featurizer, samples.featurizer_version)
    if made != own:
        raise UsageError(
            f"the model to start from reads vectors of {' '.join(made)}, these are of "
            f"{' '.join(own)}",
            hint="train the source again with this featurizer, or give --featurizer",
        )


def _encoder(
    platform: Platform, ops: tuple[Op, ...], settings: CostSettings, start: CostModel | None
) -> LatentEncoder:
    """Fitted to this platform and kernel. Under feature augmentation its parameters come after
    those of the platforms before it."""
    width = layout_of(platform.kernel(ops[0]), every=settings.every).width
    if settings.latent == "fa":
        same = start is not None and start.card["platform"]["space"] == space_digest(
            platform, ops[0]
        )
        at = 0
        if start is not None:
            place = start.encoder.to_tensors()["place"]
            at = int(place[1] if same else place[0] + place[1])
        if at + width > _AUGMENTED:
            raise UsageError(f"feature augmentation has {_AUGMENTED} places, not {at + width}")
        return Augmented(width, at, _AUGMENTED)
    rng = np.random.default_rng(settings.seed)
    if settings.every:
        layout = layout_of(platform.kernel(ops[0]), every=True)
        drawn = [platform.space(op).sample(_SPACE_ROWS, rng=rng) for op in ops]
        raw = np.concatenate([layout.raw(configs) for configs in drawn])
    else:
        raw = np.concatenate([space_rows(platform, op, rng=rng) for op in ops])
    return fit(settings.latent, raw, seed=settings.seed)


def _scale(vectors: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
    """Centre and scale float32[d]; a number that does not vary is only centred."""
    x = vectors.astype(np.float64)
    scale = x.std(axis=0)
    return {
        "center": x.mean(axis=0).astype(np.float32),
        "scale": np.where(scale > 1e-6, scale, 1.0).astype(np.float32),
    }


def _common(
    encoder: LatentEncoder,
    scale: Mapping[str, NDArray[Any]],
    priors: Mapping[Op, Mapping[str, NDArray[Any]]],
) -> dict[str, NDArray[Any]]:
    """The tensors that all members share."""
    found = {f"scale.{name}": array for name, array in scale.items()}
    found |= {f"latent.{name}": array for name, array in encoder.to_tensors().items()}
    for op, prior in priors.items():
        found |= {f"prior.{op}.{n}": a for n, a in prior.items() if n != "gain"}
    return found


def _held_out(groups: NDArray[np.str_], member: int, seed: int) -> NDArray[np.bool_]:
    """bool[r]: the rows a member does not learn from."""
    names, of = np.unique(groups, return_inverse=True)
    if len(names) < _LEAST_GROUPS:
        return np.zeros(len(groups), dtype=np.bool_)
    place = np.random.default_rng([seed, 1]).permutation(len(names))
    folds = min(_FOLDS, len(names))
    held: NDArray[np.bool_] = place[of] % folds == member % folds
    return held


def _named(samples: Samples, settings: CostSettings, start: CostModel | None) -> str:
    """All that a checkpoint depends on; epochs and patience may change."""
    made = asdict(settings)
    del made["epochs"], made["few_epochs"], made["patience"], made["members"]
    return json.dumps([samples.hash, made, _origin(start)], sort_keys=True)


def _origin(start: CostModel | None) -> str:
    if start is None:
        return ""
    return start.version or str(start.card["data"])


def _mean(figures: list[dict[str, float]]) -> dict[str, float]:
    names = [n for n in (figures[0] if figures else {}) if n != "epochs_left"]
    return {n: round(float(np.mean([f[n] for f in figures])), 6) for n in names}


def _platform(platform: Platform, op: Op) -> dict[str, str]:
    return {
        "name": platform.name,
        "version": platform.version,
        "space": space_digest(platform, op),
    }


def _card(samples: Samples, settings: CostSettings, start: CostModel | None) -> dict[str, Any]:
    op = samples.ops[0]
    layout = layout_of(samples.platform.kernel(op), every=settings.every)
    return {
        "kind": "costmodel",
        "kernel": op.kernel,
        "ops": [str(o) for o in samples.ops],
        "platform": _platform(samples.platform, op),
        "layout": list(layout.names),
        "featurizer": {"name": samples.featurizer, "version": samples.featurizer_version},
        "settings": {**asdict(settings), "parts": list(settings.parts)},
        "data": samples.hash,
        "patterns": len({row.pattern_id for row in samples.rows}),
        "groups": int(np.unique(samples.groups).size),
        "samples": len(samples.gain),
        "simulated": samples.platform.simulated,
        "held_out": {},
        "seed": settings.seed,
        "code": __version__,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "parent": start.version if start is not None else "",
    }

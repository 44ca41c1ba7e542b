"""A cost model from samples: pre-training, fine-tuning on another platform, zero-shot.

The network learns what a matrix changes about a platform's prior, which is what a configuration
gains on average. The prior is two things: a ridge regression on loop nest and latent, which also
speaks of configurations nobody ran, and the mean of each measured one beyond it.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Op
from embeddb.core.errors import ModelError, UsageError
from embeddb.core.reports import Progress
from embeddb.cost_model.encoders.inputs import TreeTable
from embeddb.cost_model.encoders.latent import LatentEncoder
from embeddb.cost_model.encoders.own_parameters import Layout
from embeddb.cost_model.model import CostModel, space_digest
from embeddb.cost_model.network_numpy import FORMS
from embeddb.learning.calibration import (
    FOLDS,
    LEAST_GROUPS,
    calibrated,
    held_out,
    judged_only,
    trust,
)
from embeddb.learning.few_samples import process_card
from embeddb.learning.process import learn
from embeddb.learning.samples import Samples
from embeddb.platforms.platform import Platform
from indexer.training.cost_model.encoder import Reading
from indexer.training.cost_model.latent_fit import FITTERS
from indexer.training.cost_model.members import FittedMember, Member, fit_member
from indexer.training.cost_model.prior import Prior, fit_priors
from indexer.training.cost_model.settings import CostSettings, forest, paper
from indexer.training.cost_model.tables import Tables
from indexer.training.cost_model.trees import Grown, grow, tables
from indexer.training.trainer import checkpoint_of, curve_of, origin_card
from indexer.training.trainer import forget as forget_member

__all__ = [
    "LEAST_GROUPS",
    "CostSettings",
    "curves",
    "forest",
    "forget",
    "learned",
    "paper",
    "retarget",
    "train",
    "unfinished",
]


#: What is trained of networks only to be judged leaves out one part in so many: they cost more than
#: trees, of which `FOLDS` are grown.
_PARTS = 4
#: Settings that a card has had; no network that ships needs them.
_ONCE = {"every": False, "embedder": False}
#: Parts in which the training of one member is told.
_PARTS_TOLD = 100


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
    network is made of is then taken from `start`. Trees do not go on from it: they read what it
    says of this platform's configurations, zero-shot, and the model holds it as its source.

    With 8 groups or more each member holds out a tenth of them, another one each, ends early by
    them, and the spread is calibrated on them; with fewer, training ends after `few_epochs`, the
    spread is what the members differ by, and what the network adds to the prior counts as far as it
    was right about groups left out once. A training in `folder` that was stopped goes on.

    Raises: UsageError if there is too little to learn from (`Samples.check`) or `start` is of
    another kernel or featurizer, or cannot be started from; ModelError if training fails;
    MissingDependency for trees without LightGBM.
    """
    samples.check()
    if settings.encoder:
        raise UsageError(
            f"the encoder {settings.encoder} learns from structures",
            hint="indexer.training.cost_model.whole.train_whole",
        )
    if settings.predictor == "gp":
        if start is not None:
            raise UsageError(
                "a Gaussian process does not go on from a model", hint="choose another predictor"
            )
        card = _card(samples, settings, None) | process_card(samples)
        return learn(samples, card, seed=settings.seed, progress=progress)
    if settings.predictor == "trees":
        card, tensors, scores = _grown(samples, settings, start, progress)
        return calibrated(card, tensors, samples, scores)
    card, tensors, scores = learned(samples, settings, start, folder, progress)
    model = calibrated(card, tensors, samples, scores)
    if card["settings"]["residual"] and np.unique(samples.groups).size < LEAST_GROUPS:
        single = replace(settings, members=1)
        model.card["calibration"] |= trust(
            samples, lambda rest: learned(rest, single, start, None, None)[:2]
        )
    return model


def _grown(
    samples: Samples, settings: CostSettings, start: CostModel | None, progress: Progress | None
) -> tuple[dict[str, Any], dict[str, NDArray[Any]], list[Mapping[int, NDArray[np.float64]]]]:
    """What `learned` gives, of trees. The source counts only where trees that read it were nearer
    to the rows they had not seen than trees that do not."""
    settings = replace(settings, residual=False)
    source = None
    if start is not None:
        _check_start(samples, start)
        source = retarget(start, samples.platform, samples.ops)
    card = tree_card(samples, settings, start)
    columns = tree_columns(card)
    held = [held_out(samples.groups, i, settings.seed) for i in range(settings.members)]
    apart = judged_only(samples.groups, held, settings.seed, FOLDS)
    tried: list[Grown] = []
    for one in dict.fromkeys((None, source)):
        if progress is not None:
            progress("trees", len(tried), 1 + (source is not None))
        tried.append(grow(samples, tables(samples, columns, one), held, apart, settings.seed))
    # Without anything left out nothing speaks against the source that was asked for.
    made = tried[-1]
    if source is not None and tried[0].loss <= made.loss:
        source, made = None, tried[0]
    tensors = {
        f"member.{i}.{n}": a for i, m in enumerate(made.members) for n, a in m.weights.items()
    }
    if start is not None and math.isfinite(made.loss):
        card["squared_error"] = {"alone": tried[0].loss, "with_source": tried[-1].loss}
    if source is not None:
        tensors |= {f"source.{name}": array for name, array in source.tensors.items()}
        card["source"] = source.card
    card["metrics"] = _mean([fitted.figures for fitted in made.judged])
    return card, tensors, [fitted.scores for fitted in made.judged]


def tree_card(
    samples: Samples,
    settings: CostSettings,
    start: CostModel | None = None,
    facts: Sequence[tuple[str, float]] = (),
) -> dict[str, Any]:
    """The card of trees, but for what judging adds: with the `quantities` of the platform's file,
    their `derived` digest, and `facts` of the machine as `TreeTable` has them."""
    quantities = samples.platform.quantities(samples.ops[0])
    return {
        **_card(samples, settings, start),
        "quantities": list(quantities.names),
        "derived": quantities.digest if quantities.names else "",
        "facts": [list(one) for one in facts],
    }


def tree_columns(card: Mapping[str, Any]) -> TreeTable:
    """The columns that the trees of a card read."""
    facts = tuple((name, rest) for name, rest in card["facts"])
    own, parts = len(card["layout"]), tuple(card["settings"]["parts"])
    return TreeTable(card["vector"], own, parts, len(card["quantities"]), facts)


def learned(
    samples: Samples,
    settings: CostSettings,
    start: CostModel | None,
    folder: Path | None,
    progress: Progress | None,
    *,
    reading: Reading | None = None,
) -> tuple[dict[str, Any], dict[str, NDArray[Any]], list[Mapping[int, NDArray[np.float64]]]]:
    """Card and tensors of a model that is not yet calibrated, and what each member says of the
    rows it did not learn from. With `reading` a member's tensors are those of a `WholeNetwork`, and
    none is trained only to be judged: each costs hours.

    Raises: as `train`.
    """
    if start is not None:
        _check_start(samples, start)
        if start.card["settings"]["predictor"] == "trees":
            raise UsageError("a network cannot go on from trees", hint="choose the predictor trees")
        settings = _inherited(settings, start)
    encoder = _encoder(samples.platform, samples.ops, settings, start)
    scale = start.below("scale.") if start is not None else _scale(samples.vectors)
    if reading is not None:
        scale = dict(reading.scale)
    layout = _layout(samples.platform, samples.ops[0], settings)
    tables = Tables.of(samples, encoder, scale, settings.parts, layout)
    priors, of_entry = _priors(samples, tables, settings, start)
    tensors = _common(encoder, scale, priors)
    named, groups = _named(samples, settings, start), samples.groups
    held = [held_out(groups, i, settings.seed) for i in range(settings.members)]
    # With fewer groups, `trust` leaves them out.
    enough = np.unique(groups).size >= LEAST_GROUPS and reading is None
    apart = judged_only(groups, held, settings.seed, _PARTS) if enough else []
    if folder is not None and folder.is_symlink():
        raise ModelError("a link where a folder of ours would be", where=str(folder))
    fits: list[FittedMember] = []
    with ExitStack() as stack:
        passing = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for i, out in enumerate([*held, *apart]):
            stops = i < len(held)
            member = Member(
                tables, of_entry, settings, out, index=i, run=named, stops=stops, reading=reading
            )
            first = start.below(f"member.{i % start.members}.") if start is not None else None
            told = _within(progress, i, len(held) + len(apart))
            place = folder if folder is not None and stops else passing
            fits.append(fit_member(member, first, place / f"member-{i}", told))
    made, judged = fits[: len(held)], fits[len(held) :]
    for i, fitted in enumerate(made):
        tensors |= {f"member.{i}.{name}": a for name, a in fitted.weights.items()}
    card = _card(samples, settings, start)
    card["metrics"] = _mean([fitted.figures for fitted in made])
    card["epochs"] = [fitted.epochs for fitted in made]
    return card, tensors, [fitted.scores for fitted in judged or made]


def _priors(
    samples: Samples, tables: Tables, settings: CostSettings, start: CostModel | None
) -> tuple[dict[Op, Prior], NDArray[np.float64]]:
    if not settings.residual:
        return {}, np.zeros(len(samples.gain))
    return fit_priors(samples, tables, start)


def retarget(model: CostModel, platform: Platform, ops: tuple[Op, ...]) -> CostModel:
    """The model on a platform it has no samples of (zero-shot): the latent encoder is the
    platform's own, and of the prior only what it says of loop nests is kept. All is kept where
    both have the same configurations, as devices that run the same programs do. Trees of another
    space are asked as if no configuration had parameters of its own.

    Raises: UsageError if the platform does not run the kernel, for no op, or if the model has a
    source itself.
    """
    if not ops or {op.name for op in ops} != {model.card["kernel"]}:
        raise UsageError(f"the model is for {model.card['kernel']} and needs an op of it")
    if model.source is not None:
        raise UsageError(
            "the model reads what another one says, which no third one can start from",
            hint="start from the model that it was started from",
        )
    settings = _inherited(CostSettings(), model)
    same = model.card["platform"]["space"] == space_digest(platform, ops[0])
    if settings.predictor == "trees":
        parts = [p for p in settings.parts if same or p != "latent"]
        card = {**model.card, "settings": {**model.card["settings"], "parts": parts}}
        if not same:  # nor quantities of the source's platform file
            card["derived"] = ""
        return CostModel(_moved(card, model.version, platform, ops), model.tensors)
    encoder = _encoder(platform, ops, settings, model)
    kept = {f"member.{n}": a for n, a in model.below("member.").items()}
    tensors = {**kept, **_common(encoder, model.below("scale."), {})}
    for op in ops if settings.residual else ():
        near = min(model.ops, key=lambda o: abs(math.log2(o.width / op.width)))
        if same:
            tensors |= {f"prior.{op}.{n}": a for n, a in model.below(f"prior.{near}.").items()}
            continue
        tensors[f"prior.{op}.nest"] = model.tensors[f"prior.{near}.nest"]
        tensors[f"prior.{op}.latent"] = np.zeros(encoder.dim, dtype=np.float32)
        tensors[f"prior.{op}.ids"] = np.zeros((0, 16), dtype=np.uint8)
        tensors[f"prior.{op}.rest"] = np.zeros(0, dtype=np.float32)
    return CostModel(_moved(model.card, model.version, platform, ops), tensors)


def _moved(
    card: Mapping[str, Any], parent: str, platform: Platform, ops: tuple[Op, ...]
) -> dict[str, Any]:
    there = _platform(platform, ops[0])
    fit = dict(card["calibration"])
    if there["space"] != card["platform"]["space"]:
        fit.pop("guard", None)  # it was about another default
    return {
        **card,
        "ops": [str(op) for op in sorted(ops)],
        "platform": there,
        "calibration": fit,
        "parent": parent,
        "samples": 0,
        "metrics": {},
        "held_out": {},
    }


def curves(folder: Path) -> list[Path]:
    """The curve of each member, as `embeddb plot training` draws it."""
    return [curve_of(member) for member in sorted(folder.glob("member-*"))]


def unfinished(folder: Path) -> bool:
    """Whether a training was stopped there."""
    return any(checkpoint_of(member).exists() for member in folder.glob("member-*"))


def forget(folder: Path) -> None:
    """Drop the checkpoints of a training whose model is saved; the curves stay."""
    for member in folder.glob("member-*"):
        forget_member(member)


def _within(progress: Progress | None, i: int, members: int) -> Progress:
    """One bar over all members, some of which are trained for fewer epochs than others."""

    def told(what: str, done: int, total: int) -> None:
        if progress is not None:
            part = _PARTS_TOLD * done // max(total, 1)
            progress(what, i * _PARTS_TOLD + part, members * _PARTS_TOLD)

    return told


def _inherited(settings: CostSettings, start: CostModel) -> CostSettings:
    kept = start.card["settings"]
    own = ("predictor", "fusion", "latent", "residual", "bilinear")
    later = {name: kept[name] for name in ("encoder", "plain") if name in kept}
    parts = tuple(kept["parts"])
    members = 1 if later.get("encoder") else settings.members
    same = {name: kept[name] for name in own}
    return replace(settings, parts=parts, members=members, **same, **later)


def _check_start(samples: Samples, start: CostModel) -> None:
    card = start.card
    if card["kernel"] != samples.ops[0].name:
        raise UsageError(
            f"the model to start from is for {card['kernel']}, the samples are of "
            f"{samples.ops[0].name}"
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
    """Fitted to this platform and kernel; that of `start` where it is for the same space."""
    if start is not None and start.card["platform"]["space"] == space_digest(platform, ops[0]):
        return start.encoder
    return FITTERS[settings.latent](platform, ops, settings, start)


def _layout(platform: Platform, op: Op, settings: CostSettings) -> Layout:
    """The columns of the platform's own parameters, as the predictor reads them."""
    form = FORMS.get(settings.predictor)  # trees have none
    kernel = platform.kernel(op)
    return form.layout(kernel) if form else Layout(kernel)


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


def _collected(samples: Samples, start: CostModel | None) -> float:
    """Data collection expense of all samples, the start's too, in samples of the cheapest platform
    (COGNATE, Appendix A.2)."""
    before = float(start.card.get("dce", start.card["samples"])) if start is not None else 0.0
    return before + samples.platform.cost_per_sample * len(samples.gain)


def _platform(platform: Platform, op: Op) -> dict[str, str]:
    return {
        "name": platform.name,
        "version": platform.version,
        "id": platform.id,
        "space": space_digest(platform, op),
    }


def _card(samples: Samples, settings: CostSettings, start: CostModel | None) -> dict[str, Any]:
    op = samples.ops[0]
    layout = _layout(samples.platform, op, settings)
    return {
        "kind": "costmodel",
        "kernel": op.name,
        "ops": [str(o) for o in samples.ops],
        "platform": _platform(samples.platform, op),
        "layout": list(layout.names),
        "vector": int(samples.vectors.shape[1]),
        "featurizer": {"name": samples.featurizer, "version": samples.featurizer_version},
        "settings": {**_ONCE, **asdict(settings), "parts": list(settings.parts)},
        "data": samples.hash,
        "patterns": len({row.pattern_id for row in samples.rows}),
        "groups": int(np.unique(samples.groups).size),
        "samples": len(samples.gain),
        "dce": _collected(samples, start),
        "simulated": samples.platform.simulated,
        "held_out": {},
        **origin_card(settings.seed),
        "parent": start.version if start is not None else "",
    }

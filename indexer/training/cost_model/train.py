"""A cost model from samples: pre-training, fine-tuning on another platform, zero-shot.

The network learns the difference of a matrix from a platform's prior, the mean gain of a
configuration. The prior is a ridge regression on loop nest and latent, which also covers
configurations that never ran, plus the mean residual of each measured one.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Op
from embeddb.core.errors import ModelError, UsageError
from embeddb.core.reports import Progress, ignore_progress
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
from indexer.training.cost_model.latent_fit import FITTERS
from indexer.training.cost_model.prior import Prior, fit_priors, without_rows
from indexer.training.cost_model.settings import CostSettings
from indexer.training.cost_model.tables import Tables
from indexer.training.cost_model.trees import FittedMember, Grown, grow, tables
from indexer.training.folder import checkpoint_of, curve_of, origin_card
from indexer.training.folder import forget as forget_member

if TYPE_CHECKING:
    from indexer.training.cost_model.encoder import Reading

#: Folds of networks for evaluation alone: they take longer than trees, which have `FOLDS`.
_FOLDS = 4
#: Former settings in cards.
_FORMER = {"every": False, "embedder": False}
#: Steps of progress for each member.
_STEPS = 100


def train(
    samples: Samples,
    settings: CostSettings,
    *,
    start: CostModel | None = None,
    folder: Path | None = None,
    progress: Progress = ignore_progress,
) -> CostModel:
    """Train on samples; with `start` fine-tune that model: matrix side, mapper and predictor
    continue, with the structure of `start`, while latent encoder and prior are those of the
    samples' platform. Trees read its zero-shot predictions instead, and include it as their source.

    With 8 groups or more each member holds out another tenth of them for early stopping and the
    calibration of the spread; with fewer, training ends after `few_epochs`, the spread is that of
    the members, and the network's part of a score is weighted by its accuracy on groups held out
    once. Resumes a stopped training in `folder`.

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
        model.card["calibration"] |= trust(samples, lambda rest: learned(rest, single, start)[:2])
    return model


def _grown(
    samples: Samples, settings: CostSettings, start: CostModel | None, progress: Progress
) -> tuple[dict[str, Any], dict[str, NDArray[Any]], list[Mapping[int, NDArray[np.float64]]]]:
    """`learned` for trees. The source is used only if trees with it have a lower error on unseen
    rows than trees without."""
    settings = replace(settings, residual=False)
    source = None
    if start is not None:
        _check_start(samples, start)
        source = retarget(start, samples.platform, samples.ops)
    card = tree_card(samples, settings, start)
    columns = TreeTable.from_card(card)
    unseen = [held_out(samples.groups, i, settings.seed) for i in range(settings.members)]
    apart = judged_only(samples.groups, unseen, settings.seed, FOLDS)
    tried: list[Grown] = []
    for one in dict.fromkeys((None, source)):
        progress("trees", len(tried), 1 + (source is not None))
        tried.append(grow(samples, tables(samples, columns, one), unseen, apart, settings.seed))
    # Without held-out rows the requested source is used.
    best = tried[-1]
    if source is not None and tried[0].loss <= best.loss:
        source, best = None, tried[0]
    tensors = {
        f"member.{i}.{n}": a for i, m in enumerate(best.members) for n, a in m.weights.items()
    }
    if start is not None and math.isfinite(best.loss):
        card["squared_error"] = {"alone": tried[0].loss, "with_source": tried[-1].loss}
    if source is not None:
        tensors |= {f"source.{name}": array for name, array in source.tensors.items()}
        card["source"] = source.card
    card["metrics"] = _mean([fitted.figures for fitted in best.judged])
    return card, tensors, [fitted.scores for fitted in best.judged]


def tree_card(
    samples: Samples,
    settings: CostSettings,
    start: CostModel | None = None,
    facts: Sequence[tuple[str, float]] = (),
) -> dict[str, Any]:
    """The card of trees before their evaluation: with the `quantities` of the platform's file,
    their `derived` digest, and `facts` of the machine as in `TreeTable`."""
    quantities = samples.platform.quantities(samples.ops[0])
    return {
        **_card(samples, settings, start),
        "quantities": list(quantities.names),
        "derived": quantities.digest if quantities.names else "",
        "facts": [list(one) for one in facts],
    }


def learned(
    samples: Samples,
    settings: CostSettings,
    start: CostModel | None,
    folder: Path | None = None,
    progress: Progress = ignore_progress,
    *,
    reading: Reading | None = None,
) -> tuple[dict[str, Any], dict[str, NDArray[Any]], list[Mapping[int, NDArray[np.float64]]]]:
    """Card and tensors of a model before calibration, and the scores of each member for its unseen
    rows. With `reading` a member's tensors are those of a `WholeNetwork`, and none is trained for
    evaluation alone, since each takes hours.

    Raises: as `train`.
    """
    from indexer.training.cost_model.members import Member  # imports torch

    if start is not None:
        _check_start(samples, start)
        if start.card["settings"]["predictor"] == "trees":
            raise UsageError("a network cannot go on from trees", hint="choose the predictor trees")
        settings = _inherited(settings, start)
    encoder = _encoder(samples.platform, samples.ops, settings, start)
    scale = start.below("scale.") if start is not None else _scale(samples.vectors)
    scale = scale if reading is None else dict(reading.scale)
    layout = _layout(samples.platform, samples.ops[0], settings)
    tables = Tables.of(samples, encoder, scale, settings.parts, layout)
    priors: dict[Op, Prior] = {}
    of_entry = np.zeros(len(samples.gain))
    if settings.residual:
        priors, of_entry = fit_priors(samples, tables, start)
    tensors = _common(encoder, scale, priors)
    named, groups = _named(samples, settings, start), samples.groups
    unseen = [held_out(groups, i, settings.seed) for i in range(settings.members)]
    # With fewer groups, `trust` holds them out.
    enough = np.unique(groups).size >= LEAST_GROUPS and reading is None
    apart = judged_only(groups, unseen, settings.seed, _FOLDS) if enough else []
    if folder is not None and folder.is_symlink():
        raise ModelError("a link where a folder of ours would be", where=str(folder))
    fits: list[FittedMember] = []
    with tempfile.TemporaryDirectory() as temporary:
        for i, out in enumerate([*unseen, *apart]):
            stops = i < len(unseen)
            prior = without_rows(samples, tables, start, out, of_entry) if priors else of_entry
            member = Member(tables, prior, settings, out, i, named, stops, reading)
            first = start.below(f"member.{i % start.members}.") if start is not None else None
            shown = _within(progress, i, len(unseen) + len(apart))
            place = folder if folder is not None and stops else Path(temporary)
            fits.append(member.fit(first, place / f"member-{i}", shown))
    members, judged = fits[: len(unseen)], fits[len(unseen) :]
    for i, fitted in enumerate(members):
        tensors |= {f"member.{i}.{name}": a for name, a in fitted.weights.items()}
    card = _card(samples, settings, start)
    card["metrics"] = _mean([fitted.figures for fitted in members])
    card["epochs"] = [fitted.epochs for fitted in members]
    return card, tensors, [fitted.scores for fitted in judged or members]


def retarget(model: CostModel, platform: Platform, ops: tuple[Op, ...]) -> CostModel:
    """The model on a platform without samples (zero-shot): the latent encoder is the platform's
    own, and only the part of the prior on loop nests remains, unless both have the same
    configurations, like devices that run the same programs. Trees of another space ignore a
    configuration's own parameters.

    Raises: UsageError if the platform does not run the kernel, for no op, or if the model has a
    source itself.
    """
    if not ops or {op.name for op in ops} != {model.card["kernel"]}:
        raise UsageError(f"the model is for {model.card['kernel']} and needs an op of it")
    if model.source is not None:
        raise UsageError(
            "the model reads predictions of another one, and cannot be a start itself",
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
    members = {f"member.{n}": a for n, a in model.below("member.").items()}
    tensors = {**members, **_common(encoder, model.below("scale."), {})}
    for op in ops if settings.residual else ():
        near = model.nearest_op(op)
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
        fit.pop("guard", None)  # for another default
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
    """Files of the curves of all members."""
    return [curve_of(member) for member in sorted(folder.glob("member-*"))]


def unfinished(folder: Path) -> bool:
    """True if a stopped training is in the folder."""
    return any(checkpoint_of(member).exists() for member in folder.glob("member-*"))


def forget(folder: Path) -> None:
    """Remove the checkpoints of a finished training; the curves stay."""
    for member in folder.glob("member-*"):
        forget_member(member)


def _within(progress: Progress, i: int, members: int) -> Progress:
    """Progress over all members, some of which train for fewer epochs than others."""

    def show(what: str, done: int, total: int) -> None:
        progress(what, i * _STEPS + _STEPS * done // max(total, 1), members * _STEPS)

    return show


def _inherited(settings: CostSettings, start: CostModel) -> CostSettings:
    theirs = start.card["settings"]
    own = ("predictor", "fusion", "latent", "residual", "bilinear")
    later = {name: theirs[name] for name in ("encoder", "plain") if name in theirs}
    parts = tuple(theirs["parts"])
    members = 1 if later.get("encoder") else settings.members
    same = {name: theirs[name] for name in own}
    return replace(settings, parts=parts, members=members, **same, **later)


def _check_start(samples: Samples, start: CostModel) -> None:
    card = start.card
    if card["kernel"] != samples.ops[0].name:
        raise UsageError(
            f"the model to start from is for {card['kernel']}, the samples are of "
            f"{samples.ops[0].name}"
        )
    theirs = (card["featurizer"]["name"], card["featurizer"]["version"])
    own = (samples.featurizer, samples.featurizer_version)
    if theirs != own:
        raise UsageError(
            f"the model to start from reads vectors of {' '.join(theirs)}, these are of "
            f"{' '.join(own)}",
            hint="train the source again with this featurizer, or give --featurizer",
        )


def _encoder(
    platform: Platform, ops: tuple[Op, ...], settings: CostSettings, start: CostModel | None
) -> LatentEncoder:
    """The encoder of `start` if it is for the same space, else one fitted to this platform."""
    if start is not None and start.card["platform"]["space"] == space_digest(platform, ops[0]):
        return start.encoder
    return FITTERS[settings.latent](platform, ops, settings, start)


def _layout(platform: Platform, op: Op, settings: CostSettings) -> Layout:
    """Columns of the platform's own parameters for the predictor."""
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
    tensors = {f"scale.{name}": array for name, array in scale.items()}
    tensors |= {f"latent.{name}": array for name, array in encoder.to_tensors().items()}
    for op, prior in priors.items():
        tensors |= {f"prior.{op}.{n}": a for n, a in prior.items()}
    return tensors


def _named(samples: Samples, settings: CostSettings, start: CostModel | None) -> str:
    """Everything that a checkpoint depends on; epochs and patience may change."""
    own = asdict(settings)
    del own["epochs"], own["few_epochs"], own["patience"], own["members"]
    origin = "" if start is None else start.version or str(start.card["data"])
    return json.dumps([samples.hash, own, origin], sort_keys=True)


def _mean(figures: list[dict[str, float]]) -> dict[str, float]:
    names = [n for n in (figures[0] if figures else {}) if n != "epochs_left"]
    return {n: round(float(np.mean([f[n] for f in figures])), 6) for n in names}


def _collected(samples: Samples, start: CostModel | None) -> float:
    """Data collection expense of all samples, including the start's, in samples of the cheapest
    platform (COGNATE, Appendix A.2)."""
    before = float(start.card.get("dce", start.card["samples"])) if start is not None else 0.0
    return before + samples.platform.cost_per_sample * len(samples.gain)


def _platform(platform: Platform, op: Op) -> dict[str, str]:
    return {
        "name": platform.name,
        "version": platform.version,
        "id": platform.id,
        "space": space_digest(platform, op),
    }


def learned_groups(model: CostModel) -> frozenset[str] | None:
    """The groups whose run times a model and its source learned; None where its card, as those of
    earlier versions, does not name them."""
    listed = model.card.get("learned_from")
    if not isinstance(listed, list):
        return None
    return frozenset(group for group in listed if isinstance(group, str))


def _learned_from(samples: Samples, start: CostModel | None) -> list[str] | None:
    """The groups of the samples and those that `start` learned from; None if these are unknown."""
    earlier = frozenset[str]() if start is None else learned_groups(start)
    return None if earlier is None else sorted(earlier.union(samples.groups.tolist()))


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
        "settings": {**_FORMER, **asdict(settings), "parts": list(settings.parts)},
        "data": samples.hash,
        "patterns": len({row.pattern_id for row in samples.rows}),
        "groups": int(np.unique(samples.groups).size),
        "learned_from": _learned_from(samples, start),
        "samples": len(samples.gain),
        "dce": _collected(samples, start),
        "simulated": samples.platform.simulated,
        "held_out": {},
        **origin_card(settings.seed),
        "parent": start.version if start is not None else "",
    }

"""The papers' models as a whole: sparse network, mapper, latent encoder and predictor, trained
together on the order of run times (COGNATE, Section 3 and Appendix A.4; WACO).

The result is two files. The sparse network is a featurizer like any other; the rest is a cost model
that reads this featurizer's vectors.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from embeddb.core import __version__
from embeddb.core.errors import ModelError, UsageError
from embeddb.core.files import model_file
from embeddb.core.nn_numpy import below
from embeddb.core.reports import Progress, ignore_progress
from embeddb.cost_model.encoders.inputs import CLIP
from embeddb.cost_model.model import CostModel
from embeddb.featurizers.scnn import RUN_TIMES, TRAINED
from embeddb.learning.calibration import calibrated
from embeddb.learning.samples import Samples
from indexer.training.cost_model.encoder import Encoder, Reading, Structures, one_scale
from indexer.training.cost_model.settings import CostSettings
from indexer.training.cost_model.train import learned

Arrays = dict[str, NDArray[Any]]

#: Distance from the mean, over the largest one in training, at which
#: `embeddb.cost_model.encoders.inputs.CLIP` clips vectors.
_ROOM = 1.25


@dataclass(frozen=True, eq=False)
class Whole:
    """A model in two parts; the cost model's card names the featurizer once both are saved."""

    model: CostModel
    encoder: Encoder

    def save_encoder(self, file: Path) -> None:
        """Write the encoder beside the file of the cost model, which then names it.

        Raises: ModelError if it cannot be written; UsageError for a name that no featurizer has.
        """
        beside = encoder_file(file)
        card = self.model.card
        names = ("kernel", "ops", "platform", "data", "patterns", "seed")
        about = {
            **{n: card[n] for n in names},
            "settings": {"method": RUN_TIMES},
            "code": __version__,
        }
        version = self.encoder.save(beside, about)
        card["featurizer"] = {"name": beside.stem, "version": version}


def encoder_file(file: Path) -> Path:
    """File of the encoder beside that of a cost model; its stem is the featurizer's name.

    Raises: UsageError for an invalid name.
    """
    stem = file.stem.removeprefix("costmodel-")
    if not re.fullmatch(r"[A-Za-z0-9_.@-]{1,100}", stem):
        raise UsageError(
            f"{file.name}: a featurizer is named after it",
            hint="use letters, digits, _, ., @ and - only",
        )
    return file.with_name(f"{TRAINED}{stem}.safetensors")


def load_whole(file: Path) -> Whole:
    """A cost model and the encoder beside it. Raises: ModelError if either cannot be read, or the
    model was trained with another encoder."""
    model = CostModel.load(file)
    name = str(model.card["featurizer"]["name"])
    if not name.startswith(TRAINED) or Path(name).name != name:
        raise ModelError("it has no encoder of its own", where=str(file))
    encoder = Encoder.load(file.with_name(f"{name}.safetensors"))
    if encoder.version != model.card["featurizer"]["version"]:
        raise ModelError(f"{name} is of another version than the model", where=str(file))
    return Whole(model, encoder)


def begun_from(file: Path | None, settings: CostSettings) -> tuple[Encoder, CostModel | None]:
    """The sparse network that a training starts from, and the cost model that it goes on with, if
    any: of a whole model, of an autoencoder (with the reduction that it read), or initial weights.

    Raises: ModelError as `load_whole` and `Encoder.load`, and for another network.
    """
    if file is None:
        return Encoder.drawn(settings), None
    if model_file.read_card(file)["kind"] != "featurizer":
        whole = load_whole(file)
        return whole.encoder, whole.model
    encoder = Encoder.load(file)
    if encoder.spec["name"] != settings.encoder:
        raise ModelError(
            f"its network is {encoder.spec['name']}, not {settings.encoder}",
            where=str(file),
            hint=f"train one with `embeddb train featurizer --network {settings.encoder}`",
        )
    return encoder, None


def train_whole(
    samples: Samples,
    settings: CostSettings,
    encoder: Encoder,
    structures: Structures,
    *,
    start: CostModel | None = None,
    folder: Path | None = None,
    progress: Progress = ignore_progress,
) -> Whole:
    """Train on samples (`samples_of` with `read`) and the structures of their matrices, from the
    weights of `encoder`; with `start`, its cost model, fine-tune as
    `indexer.training.cost_model.train.train`. Resumes a stopped training in `folder`.

    Raises: as `train`; UsageError for settings without an encoder or a start of another one.
    """
    if not settings.encoder:
        raise UsageError("nothing in these settings reads structures", hint="a preset does")
    samples = _seen(samples, encoder, structures)
    samples.check()
    scale = start.below("scale.") if start is not None else one_scale(samples.vectors)
    reading = Reading(encoder, structures, scale)
    card, tensors, scores = learned(samples, settings, start, folder, progress, reading=reading)
    trained = below(tensors, "member.0.encoder.")
    weights = {name: torch.from_numpy(a) for name, a in trained.items()}
    version = encoder.version  # of an autoencoder, or of a whole model
    earlier, own = encoder.learned_from, frozenset(row.group for row in samples.rows)
    groups = None if earlier is None else earlier | own
    encoder = replace(encoder, weights=weights, name="", version="", learned_from=groups)
    samples = _seen(samples, encoder, structures)
    head, scale = _rescaled(below(tensors, "member.0.head."), scale, samples.vectors)
    arrays = {n: a for n, a in tensors.items() if not n.startswith(("member.", "scale."))}
    arrays |= {f"member.0.{n}": a for n, a in head.items()}
    arrays |= {f"scale.{n}": a for n, a in scale.items()}
    card |= {"vector": int(samples.vectors.shape[1]), "data": samples.hash}
    card["parent"] = card["parent"] or version
    return Whole(calibrated(card, arrays, samples, scores), encoder)


def _seen(samples: Samples, encoder: Encoder, structures: Structures) -> Samples:
    """The samples with the vectors of an encoder."""
    by_id = encoder.vectors_of(structures, samples)
    ids = [row.pattern_id for row in samples.rows]
    vectors = np.array([by_id[i] for i in ids], dtype=np.float32).reshape(len(ids), -1)
    return replace(
        samples, vectors=vectors, featurizer=encoder.name, featurizer_version=encoder.version
    )


def _rescaled(
    head: Arrays, scale: Mapping[str, NDArray[Any]], vectors: NDArray[np.float32]
) -> tuple[Arrays, Arrays]:
    """Head and scale of the same function, rescaled so that `problem` clips no vector of the
    training at `CLIP`: the encoder has changed since the scale was computed."""
    center = vectors.mean(axis=0)
    far = float(np.abs(vectors - center).max(initial=0.0))
    size = max(_ROOM * far / CLIP, 1e-6)
    weight, bias = head["matrix.0.weight"].copy(), head["matrix.0.bias"]
    d = vectors.shape[1]
    # (v - c) / s = (size / s) z + (center - c) / s for z = (v - center) / size.
    moved = weight[:, :d] @ ((center - scale["center"]) / scale["scale"])
    weight[:, :d] *= size / scale["scale"]
    head = {**head, "matrix.0.weight": weight, "matrix.0.bias": (bias + moved).astype(np.float32)}
    full = np.full(d, size, dtype=np.float32)
    return head, {"center": center.astype(np.float32), "scale": full}

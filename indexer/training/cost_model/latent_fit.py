"""Fitting a latent encoder to the configurations of one kernel space (COGNATE, Section 3.3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from embeddb.core.config import Op
from embeddb.core.errors import UsageError
from embeddb.core.extras import needing
from embeddb.cost_model.encoders.latent import (
    KINDS,
    LATENT_DIM,
    Fitted,
    LatentEncoder,
    Layer,
    Layers,
    forward,
    space_rows,
)
from embeddb.platforms.platform import Platform

if TYPE_CHECKING:
    from embeddb.cost_model.model import CostModel
    from indexer.training.cost_model.settings import CostSettings


def _fitted(
    platform: Platform, ops: Sequence[Op], settings: CostSettings, start: CostModel | None
) -> LatentEncoder:
    """An encoder of the space of these ops; `start` is unused."""
    rng = np.random.default_rng(settings.seed)
    raw = np.concatenate([space_rows(platform, op, rng=rng) for op in ops])
    return fit(settings.latent, raw, seed=settings.seed)


#: By kind.
FITTERS = dict.fromkeys(KINDS, _fitted)


def fit(kind: str, raw: NDArray[np.float32], *, seed: int) -> LatentEncoder:
    """An encoder fitted to raw float32[r,h] (as of `space_rows`; repeated rows count once). The
    same rows and seed give the same encoder. h may be 0; latents are 0 if all rows are equal.

    Raises: UsageError for an unknown kind, no rows or a number that is not finite;
    MissingDependency for `ae` or `vae` without torch.
    """
    if kind not in KINDS:
        raise UsageError(f"no latent encoder {kind!r}", hint=f"kinds: {', '.join(KINDS)}")
    if raw.ndim != 2 or not len(raw):
        raise UsageError("a latent encoder needs at least one configuration to be fitted to")
    if not np.isfinite(raw).all():
        raise UsageError("a configuration has a number that is not finite")
    rows = np.unique(np.asarray(raw, dtype=np.float32), axis=0)
    if len(rows) == 1 or not rows.shape[1]:
        return Fitted(kind, (_zeros(rows.shape[1]),))
    if kind == "pca":
        return Fitted(kind, _scaled(rows, (_principal(rows),)))
    with needing("training an autoencoder (the kind pca does without)"):
        from indexer.training.cost_model.latent_autoencoder import train
    encoder, _ = train(rows, LATENT_DIM, seed=seed, variational=kind == "vae")
    return Fitted(kind, _scaled(rows, encoder))


def _zeros(width: int) -> Layer:
    """Latents of 0."""
    weight = np.zeros((width, LATENT_DIM), dtype=np.float32)
    return weight, np.zeros(LATENT_DIM, dtype=np.float32)


def _principal(rows: NDArray[np.float32]) -> Layer:
    """The first 64 principal components, padded with 0."""
    mean = rows.mean(axis=0, dtype=np.float64)
    _, _, axes = np.linalg.svd(rows - mean, full_matrices=False)
    axes = axes[:LATENT_DIM]
    # The sign of a component is arbitrary: the largest entry is made positive.
    largest = np.abs(axes).argmax(axis=1)
    axes *= np.sign(axes[np.arange(len(axes)), largest])[:, None]
    inward = np.zeros((rows.shape[1], LATENT_DIM))
    inward[:, : len(axes)] = axes.T
    return inward.astype(np.float32), (-mean @ inward).astype(np.float32)


def _scaled(rows: NDArray[np.float32], encoder: Layers) -> Layers:
    """The same map with latents centred and scaled over `rows`, within the weights themselves."""
    latents = forward(encoder, rows).astype(np.float64)
    mean = latents.mean(axis=0)
    scale = float(np.sqrt(np.mean((latents - mean) ** 2))) or 1.0
    weight, bias = encoder[-1]
    last = ((weight / scale).astype(np.float32), ((bias - mean) / scale).astype(np.float32))
    return *encoder[:-1], last

"""Made-up runs in which matrices differ in what suits them, for the tests of the cost model."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from embeddb.config import Op
from embeddb.encoders.layout import Layout
from embeddb.encoders.mapper import homogeneous
from embeddb.evidence import Curve, Evidence, EvidenceRow, join
from embeddb.platform import load_platform
from embeddb.records import PatternInfo
from indexer.training.costmodel import CostSettings
from indexer.training.samples import Samples, from_evidence

DIM = 6


def quick(**changes: Any) -> CostSettings:
    """Settings that train in a second."""
    settings = {"latent": "pca", "members": 1, "epochs": 6, "few_epochs": 6, "configs": 32}
    return CostSettings(**{**settings, "lr": 3e-3, **changes})


def infos(matrices: int) -> dict[str, PatternInfo]:
    """Sizes over all row bins."""
    found = {}
    for i in range(matrices):
        m = (2_000, 20_000, 50_000, 100_000, 300_000)[i % 5]
        found[f"p{i:03d}"] = PatternInfo(id=f"p{i:03d}", m=m, n=m, nnz=m * (2 + i))
    return found


def vectors(matrices: int) -> dict[str, Any]:
    rng = np.random.default_rng(4)
    raw = rng.normal(size=(matrices, DIM)).astype(np.float32)
    return {f"p{i:03d}": raw[i] for i in range(matrices)}


@lru_cache
def evidence(platform: str, op: str, matrices: int, configs: int, *, seed: int = 0) -> Evidence:
    """log seconds = prior(config) - x(matrix) . y(config), and a row's own level."""
    where, what = load_platform(platform), Op.parse(op)
    known, raw = infos(matrices), vectors(matrices)
    rng = np.random.default_rng(seed)
    rows = []
    for i, (pattern_id, info) in enumerate(known.items()):
        space = where.space(what, m=info.m, n=info.n, nnz=info.nnz)
        default = where.default(what, m=info.m, n=info.n, nnz=info.nnz)
        chosen = list(dict.fromkeys([default, *space.sample(configs, rng=rng)]))
        sizes = (info.m, info.n, info.nnz)
        nests = homogeneous(where, what, chosen, sizes=sizes) / 8
        own = Layout(where.kernel(what)).raw(chosen)
        x = raw[pattern_id]
        logs = -0.3 * nests[:, 0] + own[:, 0] * x[0] + (own[:, 1] - nests[:, 2]) * x[1]
        curve = {
            c: Curve(float(np.exp(t + i % 3) * 1e-3), 0.02, 0.0, 1, "ok")
            for c, t in zip(chosen, logs, strict=True)
        }
        rows.append((EvidenceRow(pattern_id, where.id, f"g{i // 2}"), default, curve))
    return join(what, rows)


def samples(
    platform: str = "spade", op: str = "spmm:32", *, matrices: int = 24, configs: int = 40
) -> Samples:
    return from_evidence(
        evidence(platform, op, matrices, configs),
        vectors(matrices),
        infos(matrices),
        load_platform(platform),
        Op.parse(op),
        featurizer=("stats", "1"),
    )

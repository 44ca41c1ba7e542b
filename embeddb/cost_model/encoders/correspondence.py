"""What configurations of one platform correspond to on another, and why: their loop nests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from embeddb.core.config import Config, Op
from embeddb.core.sizes import UNKNOWN, Sizes
from embeddb.cost_model.encoders.nearest import Nearest, nearest_configs
from embeddb.platforms.loopnest import in_words
from embeddb.platforms.platform import Platform


def correspondence(
    source: Platform,
    target: Platform,
    op: Op,
    configs: Sequence[Config],
    *,
    k: int = 1,
    sizes: Sizes = UNKNOWN,
) -> dict[str, Any]:
    """For each configuration of `source` its loop nest and the `k` nearest of `target` with theirs,
    as plain values; `common` is whether the platforms have a loop nest in common at all, `own` are
    the target's parameters that no loop nest says. `sizes` as in `nearest_configs`.

    Raises: SpaceError if a loop nest needs a size that is not given; UsageError if a platform does
    not run this kernel.
    """
    found = nearest_configs(target, source, op, configs, k=k, sizes=sizes)
    kernel = target.kernel(op)
    known = [size if size >= 0 else None for size in sizes]
    return {
        "source": source.id,
        "target": target.id,
        "op": str(op),
        "sizes": dict(zip(("m", "n", "nnz"), known, strict=True)),
        "common": found[0][0].distance is not None,
        "own": [name for name in kernel.heterogeneous if name not in kernel.homogeneous],
        "configs": [
            {
                "config": dict(config),
                "nest": _nest(source, op, config, sizes),
                "nearest": [_near(target, op, near, sizes) for near in ranked],
            }
            for config, ranked in zip(configs, found, strict=True)
        ],
    }


def _near(target: Platform, op: Op, near: Nearest, sizes: Sizes) -> dict[str, Any]:
    nest = _nest(target, op, near.config, sizes)
    return {"config": dict(near.config), "distance": near.distance, "nest": nest}


def _nest(platform: Platform, op: Op, config: Config, sizes: Sizes) -> dict[str, Any] | None:
    nest = platform.loopnest(op, config, sizes)
    if nest is None:
        return None
    splits = dict(zip(("I", "J", "K", "K2"), nest.splits, strict=True))
    return {
        "splits": splits,
        "order": nest.names,
        "words": in_words(nest, (sizes.m, sizes.n, op.width)),
    }

"""Parity vectors: what MinkowskiEngine computes on small patterns, in float64.

    python tools/minkowski_vectors.py tests/golden/minkowski

Needs MinkowskiEngine (`make minkowski`). Only its own modules compute here, with none of our maps,
so that the files hold its conventions and not what we take them for. One `.npz` per pattern, with
rows sorted by (batch, row, column):

- `coords` int32[n,3], `coords2`, `coords4`: the sites, and those left at stride 2 and 4;
- `<layer>/weight` float64[k*k,c,c'], `<layer>/bias` float64[1,c'];
- `<features>/x` float64[n,2] for ones and random features;
- `<features>/<op>/out`, and the gradients of sum(out^2)/2: `<features>/<op>/grad x`,
  `<features>/<op>/grad <layer>/weight`, `... bias`.

Ones have equal maxima everywhere, and which of them gets the gradient is nobody's promise: ops that
take a maximum have no gradients there. The global maximum of a single pattern has none at all:
MinkowskiEngine gives them to the wrong sites (docs/howto/train.md).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from minkowski import engine

#: Layer: kernel, channels in, channels out, stride.
LAYERS = {
    "conv3": (3, 2, 3, 1),
    "conv5": (5, 2, 3, 1),
    "conv3s2": (3, 2, 3, 2),
    "conv5s2": (5, 2, 3, 2),
    "second": (3, 3, 3, 1),
    "third": (5, 3, 2, 2),
}


def banded(size: int) -> np.ndarray:
    rows = np.repeat(np.arange(size), 4)
    cols = rows + np.tile([-2, 0, 1, 3], size)
    return np.stack([rows, cols], axis=1)[(cols >= 0) & (cols < size)]


def power_law(rng: np.random.Generator, size: int, nnz: int) -> np.ndarray:
    return (size * rng.random((nnz, 2)) ** 3).astype(np.int64)


def scattered(rng: np.random.Generator, size: int, nnz: int) -> np.ndarray:
    return rng.integers(0, size, (nnz, 2))


def blocked(rng: np.random.Generator, size: int, blocks: int) -> np.ndarray:
    corners = 4 * rng.integers(0, size // 4, (blocks, 1, 2))
    inside = np.stack(np.divmod(np.arange(16), 4), axis=1)
    return (corners + inside).reshape(-1, 2)


def patterns() -> dict[str, np.ndarray]:
    """Sites int32[n,3] by name, unique and sorted by (batch, row, column)."""
    rng = np.random.default_rng(20260101)
    single = {
        "banded": banded(30),
        "power-law": power_law(rng, 48, 160),
        "random": scattered(rng, 24, 120),
        "blocked": blocked(rng, 32, 9),
        # The largest coordinate is 2^24 - 1: above, MinkowskiEngine loses sites.
        "far": (1 << 24) - 1 - scattered(rng, 9, 36),
    }
    batches = {name: [sites] for name, sites in single.items()}
    batches["batch"] = [banded(8), scattered(rng, 7, 20), blocked(rng, 12, 2)]
    return {name: _sites(parts) for name, parts in batches.items()}


def _sites(parts: list[np.ndarray]) -> np.ndarray:
    rows = [np.insert(part, 0, entry, axis=1) for entry, part in enumerate(parts)]
    return np.unique(np.concatenate(rows), axis=0).astype(np.int32)


def layers(me: Any, rng: np.random.Generator) -> dict[str, Any]:
    """MinkowskiEngine's layers with random weights of a size that keeps outputs near 1."""
    made = {}
    for name, (kernel, cin, cout, stride) in LAYERS.items():
        layer = me.MinkowskiConvolution(cin, cout, kernel, stride, bias=True, dimension=2).double()
        weight = rng.standard_normal((kernel * kernel, cin, cout)) / np.sqrt(kernel * cin)
        layer.kernel.data = torch.from_numpy(weight)
        layer.bias.data = torch.from_numpy(rng.standard_normal((1, cout)))
        made[name] = layer
    return made


def ops(me: Any, made: Mapping[str, Any]) -> dict[str, Callable[[Any], Any]]:
    """Op by name; those whose name says `max` take a maximum."""
    pool, relu = me.MinkowskiMaxPooling(2, 2, dimension=2), me.MinkowskiReLU()
    # Its default mode gives the means of a batch to the wrong entries (docs/howto/train.md).
    mean = me.MinkowskiGlobalAvgPooling(me.PoolingMode.GLOBAL_AVG_POOLING_KERNEL)

    def stack(x: Any) -> Any:
        x = pool(relu(made["conv3"](x)))
        return mean(made["third"](relu(made["second"](x))))

    singles = {name: made[name] for name in ("conv3", "conv5", "conv3s2", "conv5s2")}
    return {
        **singles,
        "twice": lambda x: made["third"](made["conv3s2"](x)),
        "max-pool": pool,
        "global-mean": mean,
        "global-max": me.MinkowskiGlobalMaxPooling(),
        "max-stack": stack,
    }


def vectors(me: Any, coords: np.ndarray) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    made = layers(me, rng)
    out = {"coords": coords}
    for name, layer in made.items():
        out[f"{name}/weight"] = layer.kernel.detach().numpy()
        out[f"{name}/bias"] = layer.bias.detach().numpy()
    features = {
        "ones": np.ones((len(coords), 2)),
        "random": rng.standard_normal((len(coords), 2)),
    }
    for kind, values in features.items():
        out[f"{kind}/x"] = values
        for op, apply in ops(me, made).items():
            answer = _run(me, made, apply, coords, values)
            stride, sites = answer.pop("stride"), answer.pop("sites")
            if stride > 1:
                out[f"coords{stride}"] = sites
            ties = kind == "ones" and "max" in op
            if ties or (op == "global-max" and not coords[:, 0].any()):
                answer = {"out": answer["out"]}
            out |= {f"{kind}/{op}/{part}": value for part, value in answer.items()}
    return out


def _run(
    me: Any, made: Mapping[str, Any], apply: Any, coords: np.ndarray, values: np.ndarray
) -> dict[str, Any]:
    """One op forward and backward; rows sorted, gradients of every layer that took part."""
    for layer in made.values():
        layer.zero_grad()
    x = torch.from_numpy(values).requires_grad_()
    y = apply(me.SparseTensor(x, coordinates=torch.from_numpy(coords)))
    (y.F**2).sum().div(2).backward()
    sites = y.C.numpy()
    order = np.lexsort(sites.T[::-1])
    answer = {
        "out": y.F.detach().numpy()[order],
        "grad x": x.grad.numpy(),
        "stride": int(y.tensor_stride[0]),  # 0 after global pooling
        "sites": sites[order],
    }
    for name, layer in made.items():
        if layer.kernel.grad is not None:
            answer[f"grad {name}/weight"] = layer.kernel.grad.numpy()
            answer[f"grad {name}/bias"] = layer.bias.grad.numpy()
    return answer


def main(folder: Path) -> None:
    me = engine()
    torch.set_num_threads(1)  # sums in one order: the same file on every run
    folder.mkdir(parents=True, exist_ok=True)
    for name, coords in patterns().items():
        made = vectors(me, coords)
        np.savez_compressed(folder / f"{name}.npz", **made)
        print(f"{name}: {len(coords)} sites, {len(made)} arrays")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

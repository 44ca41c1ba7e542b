"""Samples as the network's numbers: every distinct configuration is encoded once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from embeddb.cost_model.encoders.inputs import matrix_inputs, nest_inputs, seen_parts
from embeddb.cost_model.encoders.latent import LatentEncoder
from embeddb.cost_model.encoders.own_parameters import Layout
from embeddb.learning.samples import Samples

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Tables:
    """Inputs of r rows with x entries over u distinct configurations (a loop nest may depend on
    the matrix: then one configuration is several).

    Shapes: `x` float32[r,d+1]; `nests` float32[u,65]; `latents` float32[u,e]; `at` int64[x], which
    of the u an entry is; `seen` the nests and latents that the network sees, in which left out
    parts are zero.
    """

    samples: Samples
    x: Floats
    nests: Floats
    latents: Floats
    at: NDArray[np.int64]
    seen: tuple[Floats, Floats]

    @classmethod
    def of(
        cls,
        samples: Samples,
        encoder: LatentEncoder,
        scale: Mapping[str, Floats],
        parts: Sequence[str],
        layout: Layout,
    ) -> Tables:
        x = matrix_inputs(samples.vectors, [row.op for row in samples.rows], scale)
        if "featurizer" not in parts:
            x[:, :-1] = 0
        distinct, nest_of = _nests(samples)
        keys = samples.column.astype(np.int64) * max(len(distinct), 1) + nest_of
        used, at = np.unique(keys, return_inverse=True)
        column, place = np.divmod(used, max(len(distinct), 1))
        ran = np.unique(column)
        encoded = encoder.encode(layout.raw([samples.configs[i] for i in ran]))
        nests, latents = distinct[place], encoded[np.searchsorted(ran, column)]
        seen = seen_parts(nests, latents, parts)
        return cls(samples, x, nests, latents, at.astype(np.int64), seen)


def _nests(samples: Samples) -> tuple[Floats, NDArray[np.int64]]:
    """Distinct loop nests float32[n,65], and which of them each entry has, int64[x]."""
    places: dict[bytes, int] = {}
    distinct: list[Floats] = []
    nest_of = np.empty(len(samples.column), dtype=np.int64)
    for i, row in enumerate(samples.rows):
        part = samples.part(i)
        configs = [samples.configs[c] for c in samples.column[part]]
        own, which = np.unique(
            nest_inputs(samples.platform, row.op, configs, row.sizes), axis=0, return_inverse=True
        )
        for nest in own:
            if places.setdefault(nest.tobytes(), len(distinct)) == len(distinct):
                distinct.append(nest)
        table = np.array([places[nest.tobytes()] for nest in own], dtype=np.int64)
        nest_of[part] = table[which.reshape(-1)]
    return np.array(distinct, dtype=np.float32), nest_of

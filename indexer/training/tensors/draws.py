"""Kernels and tiles of an epoch: examples are drawn evenly from each model family (Section 4,
"Imbalances"), so that a family with many kernels does not count for more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from indexer.training.tensors.samples import KernelSample


class Drawn(NamedTuple):
    """Index of a kernel, and indices int64[t] of some of its tiles."""

    place: int
    tiles: NDArray[np.int64]


def drawn_batches(
    samples: Sequence[KernelSample],
    *,
    kernels: int,
    tiles: int,
    steps: int,
    rng: np.random.Generator,
) -> Iterator[list[Drawn]]:
    """`steps` batches of `kernels` kernels with at most `tiles` tiles each. Families alternate;
    kernels of one family come in a random order, reshuffled after each pass."""
    by_family: dict[str, list[int]] = {}
    for at, sample in enumerate(samples):
        by_family.setdefault(sample.group, []).append(at)
    families = [_endless(places, rng) for _, places in sorted(by_family.items())]
    turns = _endless(range(len(families)), rng)
    for _ in range(steps):
        places = [next(families[next(turns)]) for _ in range(kernels)]
        yield [Drawn(at, _some(len(samples[at].seconds), tiles, rng)) for at in places]


def _endless(of: Sequence[int], rng: np.random.Generator) -> Iterator[int]:
    while True:
        yield from rng.permutation(np.asarray(of)).tolist()


def _some(count: int, most: int, rng: np.random.Generator) -> NDArray[np.int64]:
    return rng.permutation(count)[:most]

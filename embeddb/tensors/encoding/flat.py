"""Kernels and tiles as rows of numbers without edges, for boosted trees."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from embeddb.tensors.encoding.features import NODE, STATIC, TILE
from embeddb.tensors.encoding.graph import KernelGraph
from embeddb.tensors.encoding.operation_rows import OPCODES

Floats = NDArray[np.float32]
_SHAPE = slice(NODE.index("shape_1"), NODE.index("shape_sum"))
_SIDES = slice(TILE.index("tile_1"), TILE.index("tile_sum"))
#: Length of `statistics`, and of a row of `flat_rows`.
STATISTICS = len(STATIC) + len(OPCODES) + 3 * len(NODE) + 1
TILED = STATISTICS + len(TILE) + _SIDES.stop - _SIDES.start


def statistics(graph: KernelGraph) -> Floats:
    """float32[f]: static features, number of operations by opcode, the largest output, and maximum
    and sum of every feature of the operations."""
    counts = np.bincount(graph.opcodes, minlength=len(OPCODES)).astype(np.float32)
    features, root = graph.features, graph.features[_root(graph)]
    parts = (graph.static, np.log2(1 + counts), root, features.max(axis=0), features.sum(axis=0))
    return np.concatenate([*parts, [np.log2(1 + len(graph))]]).astype(np.float32)


def flat_rows(graph: KernelGraph, tiles: Floats) -> Floats:
    """float32[c,f] under tiles float32[c,t]: statistics of the kernel, its tile, and the number of
    tiles along each dimension, as logarithms."""
    own = statistics(graph)
    blocks = graph.features[_root(graph), _SHAPE] - tiles[:, _SIDES]
    shared = np.broadcast_to(own, (len(tiles), len(own)))
    return np.concatenate([shared, tiles, blocks], axis=1)


def _root(graph: KernelGraph) -> int:
    """Position of the largest output."""
    features = graph.features
    return int(np.argmax(features[:, 0] * (1 + features[:, NODE.index("shape_product")])))

"""Probes: some fourteen thousand synthetic kernels for training.

Kernels of real programs are similar: a slow operation occurs in few sizes, and mostly beside
others. Probes have each kind of operation by itself and with few others, in sizes and forms drawn
over all that a program may have. They are the same on every machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

import numpy as np

from embeddb.tensors.tensor_graph import PROBE, TensorGraph
from indexer.programs.tensors.probes import convolutions, loops, moves, products, sums
from indexer.programs.tensors.probes.draft import Case, Draft

__all__ = ["probes"]

_KINDS: Mapping[str, ModuleType] = {
    "loops": loops,
    "sums": sums,
    "products": products,
    "convolutions": convolutions,
    "moves": moves,
}


def probes() -> list[TensorGraph]:
    """All probes, each once, of groups `probe.KIND.CASE`."""
    kernels: dict[str, TensorGraph] = {}
    for kind, module in _KINDS.items():
        cases: Mapping[str, tuple[int, Case]] = module.CASES
        for case, (count, drawn) in cases.items():
            group = f"{PROBE}{kind}.{case}"
            for number in range(count):
                draft = Draft(np.random.default_rng([*group.encode(), number]))
                drawn(draft)
                kernel = draft.kernel(f"{group}/{number}", group)
                kernels.setdefault(kernel.id, kernel)
    return list(kernels.values())

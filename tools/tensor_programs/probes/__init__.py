"""Probes: some fourteen thousand synthetic kernels for training.

Kernels of real programs are similar: a slow operation occurs in few sizes, and mostly beside
others. Probes have each kind of operation by itself and with few others, in sizes and forms drawn
over all that a program may have. `python -m tools.tensor_programs.probes` writes the file that
ships.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

import numpy as np

from embeddb.tensors.tensor_graph import PROBE, TensorGraph
from tools.tensor_programs.probes import convolutions, loops, moves, products, sums
from tools.tensor_programs.probes.draft import Case, Draft

_KINDS: Mapping[str, ModuleType] = {
    "loops": loops,
    "sums": sums,
    "products": products,
    "convolutions": convolutions,
    "moves": moves,
}


def generate_probes() -> list[TensorGraph]:
    """All probes, each once, of groups `probe.KIND.CASE`."""
    kernels: dict[str, TensorGraph] = {}
    for kind, module in _KINDS.items():
        cases: Mapping[str, tuple[int, Case]] = module.CASES
        for case, (count, draw) in cases.items():
            group = f"{PROBE}{kind}.{case}"
            for number in range(count):
                draft = Draft(np.random.default_rng([*group.encode(), number]))
                draw(draft)
                kernel = draft.kernel(f"{group}/{number}", group)
                kernels.setdefault(kernel.id, kernel)
    return list(kernels.values())

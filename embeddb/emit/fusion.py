"""A fusion plan of a tensor program as HLO: its files by name."""

from __future__ import annotations

from embeddb.core.config import Config
from embeddb.emit.library import filled
from embeddb.tensors.computation import Computation
from embeddb.tensors.edges import CUT
from embeddb.tensors.partition import Partition
from indexer.frontends.hlo.printer import fused_text, hlo_text

__all__ = ["fusion_files"]


def fusion_files(program: Computation, config: Config, made_from: str = "") -> dict[str, str]:
    """The program, the program with a fusion for each kernel of the plan, and each kernel as a
    module, in order; `made_from`, for the README: what the plan comes from.

    Raises: TensorError for a plan of another program, and for operations that cannot be written.
    """
    partition = Partition.of(program, str(config[CUT]))
    kernels = {
        f"kernel_{number:03}.hlo": hlo_text(placed.kernel)
        for number, placed in enumerate(partition.kernels)
    }
    marks = {
        "FROM": f" from {made_from}" if made_from else "",
        "NAME": program.name or program.id,
        "KERNELS": str(len(kernels)),
        "CONFIG": str(config),
    }
    return {
        "program.hlo": hlo_text(program),
        "fused.hlo": fused_text(partition),
        **kernels,
        "README.md": filled("fusion_README.md", marks),
    }

"""Statistics of a tensor kernel: size of its result, arithmetic and traffic, and number of
operations by class. For the untiled kernel; nothing is learned."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embeddb.core.sizes import log_size
from embeddb.featurizers.base import Exported, Travelling
from embeddb.tensors.analysis import TRANSCENDENTAL, work_of
from embeddb.tensors.tensor_graph import DTYPES, Shape, TensorGraph

_MOST_DIMS = 6
#: Opcodes by class; transcendental ones are `function`, unlisted ones `arithmetic`.
_CLASSES = {
    "input": ("parameter", "constant", "iota", "rng", "rng-bit-generator"),
    "product": ("dot", "convolution"),
    "window": ("reduce-window", "select-and-scatter"),
    "reduction": ("reduce", "sort", "topk"),
    "spread": ("broadcast", "pad"),
    "order": ("transpose", "reverse", "copy", "reshape", "bitcast", "concatenate"),
    "part": ("slice", "dynamic-slice", "dynamic-update-slice"),
    "lookup": ("gather", "scatter"),
    "choice": ("compare", "select", "clamp", "and", "or", "not", "xor", "is-finite"),
    "conversion": ("convert", "bitcast-convert", "reduce-precision"),
    "function": tuple(TRANSCENDENTAL),
    "arithmetic": (),
}
_CLASS_OF = {opcode: name for name, opcodes in _CLASSES.items() for opcode in opcodes}

_NAMES = (
    *("log_rank", "log_columns", "log_lines", "log_batch"),
    *(f"log_dim_{at + 1}" for at in range(_MOST_DIMS)),
    *("log_elements", "log_reduced", "columns_first"),
    *("log_flops", "log_calls", "log_bytes_in", "log_bytes_out"),
    *("log_flops_a_byte", "log_in_over_out"),
    *("log_given", "log_results", "log_nodes"),
    *(f"log_{name}_nodes" for name in _CLASSES),
    *("element_bytes", "floats"),
)


class KernelStats(Exported):
    """Statistics of a kernel as a raw vector, float32[d]; standardise before comparing.

    `log_` is log2(1 + x), or log2 of a ratio (`in_over_out`). The root's dimensions by role:
    `columns` is contiguous in memory, `lines` next, `batch` is the product of all others; and by
    position, `dim_K`, in the numbering of tile parameters. `columns_first`: 1 if the last dimension
    is contiguous. flops, calls of transcendental functions and bytes are those of
    `embeddb.tensors.analysis`; `nodes` are operations, also by class; `element_bytes` and `floats`
    are of the root's element.
    """

    name = "kernel-stats"
    version = "1"
    kinds = ("kernel",)
    names: tuple[str, ...] = _NAMES
    dim = len(_NAMES)

    def embed(self, pattern: Any) -> NDArray[np.float32]:
        """float32[d] of a `TensorGraph` of kind `kernel`; its names and group do not enter."""
        kernel: TensorGraph = pattern
        values = _root(kernel.root) | _dims(kernel) | _work(kernel) | _made_of(kernel)
        return np.array([values.get(name, 0.0) for name in self.names], dtype=np.float32)


PLUGIN: type[Travelling] = KernelStats


def _root(root: Shape) -> dict[str, float]:
    """Log sizes by the role of a dimension in memory."""
    outwards = [root.dims[d] for d in root.layout]
    columns, lines = [*outwards, 1, 1][:2]
    return {
        "log_rank": log_size(root.rank),
        "log_columns": log_size(columns),
        "log_lines": log_size(lines),
        "log_batch": log_size(math.prod(outwards[2:])),
        "log_elements": log_size(root.elements),
        "columns_first": not root.dims or root.layout[0] == root.rank - 1,
        "element_bytes": DTYPES[root.dtype],
        "floats": root.dtype.startswith(("f", "bf", "c")),
    }


def _dims(kernel: TensorGraph) -> dict[str, float]:
    """Log sizes by position: for more than six dimensions the first are merged."""
    sizes = kernel.sizes.symbols
    lengths = {at: sizes.get(f"DIM_{at}", 0) for at in range(1, _MOST_DIMS + 1)}
    return {
        **{f"log_dim_{at}": log_size(dim) for at, dim in lengths.items()},
        "log_reduced": log_size(kernel.reduced),
    }


def _work(kernel: TensorGraph) -> dict[str, float]:
    work = work_of(kernel)
    return {
        "log_flops": log_size(work.flops),
        "log_calls": log_size(work.transcendentals),
        "log_bytes_in": log_size(work.bytes_read),
        "log_bytes_out": log_size(work.bytes_written),
        "log_flops_a_byte": log_size((work.flops + work.transcendentals) / max(work.bytes, 1)),
        "log_in_over_out": log_size(work.bytes_read) - log_size(work.bytes_written),
    }


def _made_of(kernel: TensorGraph) -> dict[str, float]:
    classes = Counter(_CLASS_OF.get(op.opcode, "arithmetic") for op in kernel.operations)
    return {
        "log_given": log_size(len(kernel.parameters)),
        "log_results": log_size(len(kernel.outputs)),
        "log_nodes": log_size(len(kernel.operations)),
        **{f"log_{name}_nodes": log_size(classes[name]) for name in _CLASSES},
    }

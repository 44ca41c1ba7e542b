"""Tensor kernels, the units of execution and tiling, and the programs that they are cut from.

The unit of "A Learned Performance Model for Tensor Processing Units" (Section 2): an acyclic graph
of operations. Only the outputs of a kernel are written to memory; a program is the graph before a
compiler decides on fusion.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from embeddb.core.repr_html import html_of
from embeddb.core.sizes import UNKNOWN, Sizes

#: Size of an element in bytes, by HLO's name of the type.
DTYPES = {
    **dict.fromkeys(("pred", "s8", "u8", "f8e4m3fn", "f8e5m2"), 1),
    **dict.fromkeys(("s16", "u16", "f16", "bf16"), 2),
    **dict.fromkeys(("s32", "u32", "f32"), 4),
    **dict.fromkeys(("s64", "u64", "f64", "c64"), 8),
    "c128": 16,
    "token": 0,
}
MOST_RANK = 16

#: An integer, several, or a word.
Attribute = int | tuple[int, ...] | str


@dataclass(frozen=True, slots=True)
class Shape:
    """An array: `dims` in logical order, `layout` the dimensions from minor to major; row-major is
    (rank - 1, ..., 0), also the meaning of an empty `layout`."""

    dtype: str
    dims: tuple[int, ...] = ()
    layout: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.layout:
            object.__setattr__(self, "layout", tuple(reversed(range(len(self.dims)))))

    @property
    def rank(self) -> int:
        return len(self.dims)

    @property
    def elements(self) -> int:
        return math.prod(self.dims)

    @property
    def bytes(self) -> int:
        return self.elements * DTYPES[self.dtype]

    def __str__(self) -> str:
        plain = f"{self.dtype}[{','.join(map(str, self.dims))}]"
        return f"{plain}{{{','.join(map(str, self.layout))}}}" if self.dims else plain


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation. `operands` are positions in the graph, all before its own; `results` are
    several for a tuple. `attributes` by name, sorted:

    - `dot`: lhs_contracting, rhs_contracting, lhs_batch, rhs_batch, precision (of the operands) and
      algorithm, where they are not the default
    - `convolution`: precision; size, stride, low, high, lhs_dilate, rhs_dilate (of the window, per
      spatial dimension), reversal (for a reversed window), labels (`b01f_01io->b01f`),
      feature_groups, batch_groups
    - `reduce`: dimensions, combine (`add`, `multiply`, `minimum`, `maximum`, `and`, `or`, or
      `other`, with the body as `region`, see `embeddb.tensors.analysis`, where it is short);
      `reduce-window`: combine and a window over all dimensions; `select-and-scatter` also select;
      `scatter`, `sort`, `map`: combine and raw
    - `broadcast`, `transpose`, `reverse`: dimensions; `concatenate`, `iota`: dimension
    - `slice`: start, limit, stride; `pad`: low, high, interior; `dynamic-slice`: sizes
    - `compare`: direction, with `.TOTALORDER` where reals are in total order; `custom-call`: target
    - `constant`: value, where all of it is one number, else raw, where it is short
    - `parameter`: number; `get-tuple-element`: index
    - all others: raw, HLO's text, truncated

    An empty attribute is omitted.
    """

    opcode: str
    results: tuple[Shape, ...]
    operands: tuple[int, ...] = ()
    attributes: Mapping[str, Attribute] = field(default_factory=dict, hash=False)

    @property
    def shape(self) -> Shape:
        """Shape of the first result."""
        return self.results[0]

    def dims(self, name: str) -> tuple[int, ...]:
        """An attribute of several numbers; empty where it is absent or of another kind."""
        value = self.attributes.get(name, ())
        return value if isinstance(value, tuple) else ()

    def number(self, name: str, default: int = 1) -> int:
        """An attribute of one number; `default` where it is absent or of another kind."""
        value = self.attributes.get(name, default)
        return value if isinstance(value, int) else default


def reduced(operation: Operation, operands: Sequence[Shape]) -> int:
    """Number of terms of one result element of a contraction, a convolution or a reduction; 1 for
    all others. `operands`: their shapes, in order."""
    if not operands:
        return 1
    match operation.opcode:
        case "dot":
            return _along(operands[0], operation.dims("lhs_contracting"))
        case "convolution":
            return math.prod(operation.dims("size")) * _input_features(operation, operands)
        case "reduce":
            return _along(operands[0], operation.dims("dimensions"))
        case "reduce-window":
            return max(math.prod(operation.dims("size")), 1)
    return 1


def _along(shape: Shape, dimensions: Sequence[int]) -> int:
    return math.prod(shape.dims[d] for d in dimensions if 0 <= d < shape.rank)


def _input_features(operation: Operation, operands: Sequence[Shape]) -> int:
    """Input features of one group: the dimension `i` of the kernel's labels."""
    labels = str(operation.attributes.get("labels", ""))
    kernel = labels.partition("_")[2].partition("->")[0]
    at = kernel.find("i")
    return operands[1].dims[at] if len(operands) > 1 and 0 <= at < operands[1].rank else 1


KINDS = ("kernel", "program")
#: Number of dimensions that a platform file can name.
_MOST_DIMS = 6
#: End of the name of a kernel of a partition, before its id: an operation.
_OPERATION = re.compile(r"\.[\w-]+(\.\d+)?$")


@dataclass(frozen=True, slots=True)
class Signature:
    """Parameters and outputs of the module that a graph was read from, in the module's order,
    tuples as their elements. A parameter is the position of its operation, or the shape of one that
    no output depends on; an output may be there twice."""

    parameters: tuple[int | Shape, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class TensorGraph:
    """Operations, operands first, and the positions of the outputs.

    Built by `computation` (`embeddb.tensors.check`), which checks it and brings it into canonical
    order. `id` is the blake2b-128 hex digest of kind and code; `name`, `group`, `names` (of the
    operations) and `signature` (None: the graph's own order, or unknown) do not enter. `group` is
    the model family: its kernels, at all sizes, are held out together in every evaluation.
    """

    operations: tuple[Operation, ...]
    outputs: tuple[int, ...]
    kind: str = "kernel"
    name: str = ""
    group: str = ""
    names: tuple[str, ...] = ()
    signature: Signature | None = None

    @cached_property
    def id(self) -> str:
        code = json.dumps(code_of(self), separators=(",", ":"), sort_keys=True)
        return hashlib.blake2b(f"{self.kind}\0{code}".encode(), digest_size=16).hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TensorGraph) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"TensorGraph({self.name or self.id[:12]!r}, {self.kind}, {self.sizes})"

    def _repr_html_(self) -> str:
        return html_of(self)

    def label(self, taken: Container[str]) -> str:
        """Its name, with the beginning of its id where the name is empty or in `taken`."""
        short = self.id[:12]
        return f"{self.name} ({short})" if self.name in taken else self.name or short

    def operand_shapes(self, at: int) -> tuple[Shape, ...]:
        """Shapes of the operands of the operation at a position, the first result of each."""
        return tuple(self.operations[o].shape for o in self.operations[at].operands)

    @property
    def parameters(self) -> tuple[int, ...]:
        """Positions of the parameters."""
        return tuple(at for at, op in enumerate(self.operations) if op.opcode == "parameter")

    @cached_property
    def users(self) -> tuple[tuple[int, ...], ...]:
        """Consumers of each operation."""
        consumers: list[list[int]] = [[] for _ in self.operations]
        for at, operation in enumerate(self.operations):
            for operand in dict.fromkeys(operation.operands):
                consumers[operand].append(at)
        return tuple(map(tuple, consumers))

    @property
    def root(self) -> Shape:
        """Shape of the largest output, the first among equals."""
        return max((self.operations[at].shape for at in self.outputs), key=lambda s: s.elements)

    @cached_property
    def sizes(self) -> Sizes:
        """Sizes under the names of expressions in a platform file: for a kernel `RANK` and `DIM_1`,
        ... of its root (a scalar counts as one element, dimensions before the last six are merged)
        and `REDUCED`, the number of terms of the longest sum; for a program `OPERATIONS`."""
        if self.kind == "program":
            return UNKNOWN.naming({"OPERATIONS": len(self.operations)})
        dims = self.root.dims or (1,)
        head = len(dims) - min(len(dims), _MOST_DIMS - 1)
        if len(dims) > _MOST_DIMS:
            dims = (math.prod(dims[:head]), *dims[head:])
        named = {"RANK": len(dims)} | {f"DIM_{at + 1}": dim for at, dim in enumerate(dims)}
        return UNKNOWN.naming({**named, "REDUCED": self.reduced})

    @cached_property
    def reduced(self) -> int:
        terms = (reduced(op, self.operand_shapes(at)) for at, op in enumerate(self.operations))
        return max(terms, default=1)


def program_of(name: str, kernel_id: str) -> str:
    """Program of a kernel, from its name: the part before the last `/`, or before the operation in
    names of `embeddb.tensors.partition`."""
    if name.endswith(f".{kernel_id[:8]}"):
        return _OPERATION.sub("", name[:-9]) or name
    return name.rpartition("/")[0] or name


def code_of(graph: TensorGraph) -> dict[str, Any]:
    """Operations and outputs as plain JSON values, as `embeddb.tensors.tensor_text` describes."""
    return {
        "operations": [
            [
                op.opcode,
                [[s.dtype, list(s.dims), list(s.layout)] for s in op.results],
                list(op.operands),
                {
                    name: list(value) if isinstance(value, tuple) else value
                    for name, value in sorted(op.attributes.items())
                },
            ]
            for op in graph.operations
        ],
        "outputs": list(graph.outputs),
    }


#: Prefix of the groups of probes.
PROBE = "probe."


def is_probe(group: str) -> bool:
    """Return true if a group contains probe kernels."""
    return group.startswith(PROBE)

"""A kernel of TpuGraphs from its arrays: 140 numbers, an opcode and edges of each operation.

The columns are those of the dataset's description ("Node Features"): lists are cut after six
entries and filled up with 0, then follow their sum and product. So not all of a kernel is there:

- Operands are a set in the order of the operations. Which is the filter of a convolution and which
  is reduced, sliced or padded is told by the shapes; of an operation with itself, one is left.
- A `dot` has no dimension numbers: those that fit the shapes are taken, if any do.
- Slices and pads are told of the first two dimensions, so they are left out of larger arrays.
- Comparisons, constants and bodies of reductions have no words; a body whose root is there as an
  operand names what is combined.
- What gives a tuple has no shape and counts as nothing.
- Sizes are 32-bit floats: above 16,777,216 they are rounded.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from embeddb.core.errors import TensorError
from embeddb.tensors.check import computation
from embeddb.tensors.computation import Attribute, Computation, Operation, Shape
from indexer.readers.tensors.tpu_attributes import attributes_of, called_combiner, in_order
from indexer.readers.tensors.tpu_columns import Row
from indexer.readers.tensors.tpu_opcodes import opcode_of

_NOTHING = Shape("token")
#: Their operands may have the root of a body among them.
_WITH_BODY = frozenset(
    ("reduce", "reduce-window", "select-and-scatter", "scatter", "sort", "map", "all-reduce")
)


def kernel_of_graph(
    features: NDArray[Any], opcodes: NDArray[Any], edges: NDArray[Any], *, name: str, group: str
) -> Computation:
    """`features`: float[n,140], `opcodes`: int[n], `edges`: int[e,2], each from an operation to one
    whose result it takes.

    Raises: TensorError for edges that lead nowhere or in a circle, sizes that are none, and
    layouts that do not fit.
    """
    if not len(features):
        raise TensorError("a kernel that has no operations")
    rows = [Row(at, line) for at, line in enumerate(features.tolist())]
    words = [opcode_of(int(number)) for number in opcodes.tolist()]
    shapes = [row.shape() or _NOTHING for row in rows]
    operands = _operands(edges, len(rows))
    taken = {at for own in operands for at in own}
    bodies = {at for at in taken if rows[at].is_root}
    operations = [
        _operation(row, words, shapes, operands[at], bodies) for at, row in enumerate(rows)
    ]
    outputs = _outputs(rows, words, operands, taken)
    return computation(operations, outputs, name=name, group=group)


def _operands(edges: NDArray[Any], count: int) -> list[list[int]]:
    found: list[list[int]] = [[] for _ in range(count)]
    for taker, giver in edges.tolist():
        if not (0 <= taker < count and 0 <= giver < count):
            raise TensorError(f"an edge from {taker} to {giver}: there are {count} operations")
        found[taker].append(giver)
    return found


def _operation(
    row: Row, words: Sequence[str], shapes: Sequence[Shape], operands: list[int], bodies: set[int]
) -> Operation:
    opcode, attributes = words[row.at], dict[str, Attribute]()
    if opcode in _WITH_BODY:
        body = [at for at in operands if at in bodies and math.prod(shapes[at].dims) == 1]
        if body and len(body) < len(operands):
            attributes = called_combiner(words[body[0]])
            operands = [at for at in operands if at not in body]
    places = in_order(opcode, row, [shapes[at] for at in operands], shapes[row.at])
    ordered = tuple(operands[place] for place in places)
    taken = [shapes[at] for at in ordered]
    attributes |= attributes_of(opcode, row, taken, shapes[row.at])
    return Operation(opcode, (shapes[row.at],), ordered, attributes)


def _outputs(
    rows: Sequence[Row], words: Sequence[str], operands: Sequence[list[int]], taken: set[int]
) -> list[int]:
    """The root that nobody takes, or what it is a tuple of; without a root what nobody takes."""
    unused = [row.at for row in rows if row.at not in taken]
    roots = [at for at in unused if rows[at].is_root] or unused
    if not roots:
        raise TensorError("every operation is taken by another: the graph has a cycle")
    found = [one for at in roots for one in (operands[at] if words[at] == "tuple" else [at])]
    return list(dict.fromkeys(found)) or roots


def notes_on(kernel: Computation) -> dict[str, str]:
    """About a kernel with opcodes that are not known: which, and how many."""
    counts = Counter(op.opcode for op in kernel.operations if op.opcode.startswith("unknown-"))
    told = ", ".join(f"{word} ({count})" for word, count in sorted(counts.items()))
    return {"unknown_opcodes": told} if told else {}

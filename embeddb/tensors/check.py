"""Construction of tensor graphs from untrusted input: checked, in the canonical order of the id."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from embeddb.core.errors import TensorError
from embeddb.tensors.analysis import ELEMENTWISE
from embeddb.tensors.tensor_graph import (
    DTYPES,
    KINDS,
    MOST_RANK,
    Operation,
    Shape,
    Signature,
    TensorGraph,
)

MOST_OPERATIONS = 200_000
#: Limits on the elements of an array, and on the attributes and results of one operation.
_LARGEST = 1 << 40
_MOST_PARTS = 1024
_WORD = re.compile(r"[a-z][a-z0-9_-]{0,63}")
_TYPE = re.compile(r"[a-z][a-z0-9]{0,19}")


def computation(
    operations: Sequence[Operation],
    outputs: Sequence[int],
    *,
    kind: str = "kernel",
    name: str = "",
    group: str = "",
    names: Sequence[str] = (),
    signature: Signature | None = None,
) -> TensorGraph:
    """A graph of the operations that the outputs depend on, operands first, with parameters
    numbered in order; positions in `signature` are those of `operations`. Raises: TensorError, one
    line that names the operation."""
    if kind not in KINDS:
        raise TensorError(f"{kind!r} is neither a kernel nor a program")
    if not outputs:
        raise TensorError("no output: at least one operation must be an output")
    if len(operations) > MOST_OPERATIONS:
        raise TensorError(f"{len(operations):,} operations, at most {MOST_OPERATIONS:,} are read")
    for at, operation in enumerate(operations):
        called = names[at] if at < len(names) else str(at)
        check_operation(operation, len(operations), called)
        check_fit(operation, [operations[o].results for o in operation.operands], called)
    if any(not 0 <= at < len(operations) for at in outputs):
        raise TensorError("an output is not an operation of the graph")
    order = _operands_first(operations, outputs)
    place = {old: new for new, old in enumerate(order)}
    ordered = [
        replace(operations[old], operands=tuple(place[o] for o in operations[old].operands))
        for old in order
    ]
    graph = TensorGraph(
        tuple(_numbered(ordered)),
        tuple(place[at] for at in outputs),
        kind=kind,
        name=name,
        group=group,
        names=tuple(names[old] for old in order) if len(names) == len(operations) else (),
    )
    return graph if signature is None else _signed(graph, signature, operations, place)


def _signed(
    graph: TensorGraph,
    signature: Signature,
    operations: Sequence[Operation],
    place: Mapping[int, int],
) -> TensorGraph:
    """The graph with a signature, unless that is its own order; `place` is the position in the
    graph of each operation. Raises: TensorError for a signature that is not the graph's."""
    if max(len(signature.parameters), len(signature.outputs)) > MOST_OPERATIONS:
        raise TensorError(f"signature: more than {MOST_OPERATIONS:,} parameters or outputs")
    parameters: list[int | Shape] = []
    for one in signature.parameters:
        if isinstance(one, Shape):
            _check_unused(one)
        elif not 0 <= one < len(operations) or operations[one].opcode != "parameter":
            raise TensorError(f"signature: {one} is not a parameter of the graph")
        parameters.append(one if isinstance(one, Shape) else place.get(one, operations[one].shape))
    used = sorted(one for one in parameters if isinstance(one, int))
    outputs = [place.get(at, -1) for at in signature.outputs]
    if used != list(graph.parameters) or set(outputs) != set(graph.outputs):
        raise TensorError("signature: must have each parameter once, and all outputs")
    if (tuple(parameters), tuple(outputs)) == (graph.parameters, graph.outputs):
        return graph
    return replace(graph, signature=Signature(tuple(parameters), tuple(outputs)))


def _check_unused(shape: Shape) -> None:
    """Check the shape of an unused parameter, which may be of any type and without elements."""
    ordered = sorted(shape.layout) == list(range(min(shape.rank, MOST_RANK)))
    if not (_TYPE.fullmatch(shape.dtype) and ordered and min(shape.dims, default=0) >= 0):
        raise TensorError(f"signature: a parameter cannot have the shape {str(shape)[:60]}")


def check_operation(operation: Operation, count: int, name: str) -> None:
    """Check an operation that may take `count` others. Raises: TensorError."""
    where = f"operation {name}"
    if not _WORD.fullmatch(operation.opcode):
        raise TensorError(f"{where}: {operation.opcode[:40]!r} is not an opcode")
    if not 1 <= len(operation.results) <= _MOST_PARTS:
        raise TensorError(f"{where}: has no result, or more than {_MOST_PARTS}")
    if len(operation.attributes) > _MOST_PARTS:
        raise TensorError(f"{where}: has more than {_MOST_PARTS} attributes")
    for operand in operation.operands:
        if not 0 <= operand < count:
            raise TensorError(f"{where}: operand {operand} is not an operation of the graph")
    for shape in operation.results:
        _check_shape(where, shape)


def _check_shape(where: str, shape: Shape) -> None:
    if shape.dtype not in DTYPES:
        raise TensorError(f"{where}: no type {shape.dtype[:20]!r}", hint=", ".join(DTYPES))
    if shape.rank > MOST_RANK:
        raise TensorError(f"{where}: {shape.rank} dimensions, at most {MOST_RANK} are read")
    if any(dim < 1 for dim in shape.dims):
        raise TensorError(f"{where}: an array of shape {shape} has no element")
    if sorted(shape.layout) != list(range(shape.rank)):
        raise TensorError(f"{where}: layout {shape.layout} does not fit the shape {shape.dims}")
    if shape.elements > _LARGEST:
        raise TensorError(f"{where}: an array of shape {shape} is too large")


def check_fit(operation: Operation, operands: Sequence[Sequence[Shape]], name: str) -> None:
    """Check shapes: element-wise operations take arrays of their result's shape, or scalars where
    HLO allows them: the predicate of a select, and the bounds of a clamp. Raises: TensorError."""
    opcode, results = operation.opcode, operation.results
    if opcode not in ELEMENTWISE or len(results) != 1:
        return
    scalar = {"select": (0,), "clamp": (0, 2)}.get(opcode, ())
    for number, (shape, *_) in enumerate(operands):
        if shape.dims != results[0].dims and not (number in scalar and not shape.dims):
            shapes = " and ".join(str(shape) for shape, *_ in operands)
            raise TensorError(
                f"operation {name}: {opcode} of {shapes} cannot have the result {results[0]}"
            )


def _operands_first(operations: Sequence[Operation], outputs: Sequence[int]) -> list[int]:
    """Positions on which outputs depend, without recursion. Raises: TensorError for a cycle."""
    done: dict[int, None] = {}
    for output in outputs:
        open_, stack = {output}, [(output, 0)]
        while stack:
            at, next_ = stack.pop()
            operands = operations[at].operands
            if at in done or next_ == len(operands):
                done[at] = None
                open_.discard(at)
                continue
            stack.append((at, next_ + 1))
            below = operands[next_]
            if below in open_:
                raise TensorError(f"operation {below} depends on itself: the graph has a cycle")
            if below not in done:
                open_.add(below)
                stack.append((below, 0))
    return list(done)


def _numbered(operations: Sequence[Operation]) -> list[Operation]:
    """Number parameters in order, and drop empty attributes: an absent one means the same."""
    numbered, count = [], 0
    for operation in operations:
        if operation.opcode == "parameter":
            operation = replace(operation, attributes={"number": count})
            count += 1
        elif () in operation.attributes.values():
            present = {k: v for k, v in operation.attributes.items() if v != ()}
            operation = replace(operation, attributes=present)
        numbered.append(operation)
    return numbered

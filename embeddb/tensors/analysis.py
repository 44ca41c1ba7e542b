"""Static analysis of a tensor graph: arithmetic and memory traffic.

The four numbers that "A Learned Performance Model for Tensor Processing Units" (Section 3.1) adds
to a kernel's features, counted as in XLA's `HloCostAnalysis`; docs/howto/tensor-kernels.md
lists the differences.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from embeddb.core.errors import TensorError
from embeddb.tensors.edges import ConvolutionLabels, spatial_meeting
from embeddb.tensors.tensor_graph import Attribute, Operation, Shape, TensorGraph, reduced

#: Names of bodies that are one operation on their two parameters.
COMBINES = ("add", "multiply", "minimum", "maximum", "and", "or")
_WORDS = {"parameter": "number", "constant": "value", "compare": "direction"}
_FFT_LENGTH = re.compile(r"fft_length=\{([1-9]\d{0,17}(?:,[1-9]\d{0,17}){0,2})\}")
_PART = re.compile(r"([a-z][a-z0-9-]*+)\.([a-z0-9]++)\(([\d,]*+)\)([\w.+-]*+)")


@dataclass(frozen=True, slots=True)
class Region:
    """Scalar operations, operands first, and the positions of the outputs."""

    operations: tuple[Operation, ...]
    outputs: tuple[int, ...]


def region_text(region: Region) -> str | None:
    """Text of a region; None where it cannot be expressed: arrays, other attributes."""
    parts: list[str] = []
    for op in region.operations:
        word = _WORDS.get(op.opcode)
        if op.shape.rank or len(op.results) > 1 or set(op.attributes) != ({word} - {None}):
            return None
        value = "" if word is None else str(op.attributes[word])
        operands = ",".join(map(str, op.operands))
        parts.append(f"{op.opcode}.{op.shape.dtype}({operands}){value}")
        if not _PART.fullmatch(parts[-1]):
            return None
    return f"{' '.join(parts)} => {','.join(map(str, region.outputs))}"


@lru_cache(1024)
def region_of(text: str) -> Region:
    """Parse the text of a region. Raises: TensorError for an invalid text."""
    body, _, results = text.partition(" => ")
    operations: list[Operation] = []
    for part in body.split():
        match = _PART.fullmatch(part)
        operands = _places(match[3], len(operations)) if match else None
        if match is None or operands is None:
            raise TensorError(f"a region cannot have {part[:40]!r}")
        opcode, dtype, value = match[1], match[2], match[4]
        word = _WORDS.get(opcode)
        attributes = {} if word is None else {word: int(value) if word == "number" else value}
        operations.append(Operation(opcode, (Shape(dtype),), operands, attributes))
    outputs = _places(results, len(operations))
    if not outputs:
        raise TensorError(f"a region has no output: {text[:40]!r}")
    return Region(tuple(operations), outputs)


def _places(text: str, count: int) -> tuple[int, ...] | None:
    """Positions in a list; None where one is not an earlier position."""
    parts = text.split(",") if text else []
    if not all(part.isdecimal() and len(part) < 9 and int(part) < count for part in parts):
        return None
    return tuple(map(int, parts))


def combine_of(region: Region) -> str | None:
    """The single operation of a region, computed in the parameters' type or in a wider one; None
    for all others."""
    ops = region.operations
    types = [op.shape.dtype for op in ops if op.opcode == "parameter"]
    if any(not _holds(op.shape.dtype, dtype) for op in ops for dtype in types):
        return None

    def plain(at: int) -> int:
        while ops[at].opcode == "convert":
            at = ops[at].operands[0]
        return at

    if len(region.outputs) != 1:
        return None
    root = ops[plain(region.outputs[0])]
    below: Sequence[Operation] = [ops[plain(at)] for at in root.operands]
    numbers = sorted(str(op.attributes.get("number")) for op in below if op.opcode == "parameter")
    return root.opcode if root.opcode in COMBINES and numbers == ["0", "1"] else None


#: Bits of exponent and of mantissa.
_FLOATS = {
    "f8e4m3fn": (4, 3),
    "f8e5m2": (5, 2),
    "f16": (5, 10),
    "bf16": (8, 7),
    "f32": (8, 23),
    "f64": (11, 52),
}


def _holds(wide: str, dtype: str) -> bool:
    """True if arithmetic in a type, rounded or wrapped to another, is that of the other."""
    if wide == dtype or (wide, dtype) == ("c128", "c64"):
        return True
    if wide in _FLOATS and dtype in _FLOATS:
        return all(a >= b for a, b in zip(_FLOATS[wide], _FLOATS[dtype], strict=True))
    if wide[0] not in "su":
        return False
    if dtype == "pred":
        return True
    bits = int(wide[1:]) - int(dtype[1:]) if dtype[0] in "su" else 0
    return bits > 0 and (wide[0] == "s" or dtype[0] == "u")


#: One function call per element, not counted as flops.
TRANSCENDENTAL = frozenset(
    """
    acos acosh asin asinh atan2 atanh cbrt cosh cosine erf exponential exponential-minus-one log
    log-plus-one logistic power rsqrt sine sinh sqrt tan tanh
    """.split()  # noqa: SIM905 - a table of words
)
#: Operations whose elements depend on those of their operands at the same index.
ELEMENTWISE = frozenset(
    """
    abs add and atan2 cbrt ceil clamp compare convert copy cosine divide erf exponential
    exponential-minus-one floor is-finite log log-plus-one logistic maximum minimum multiply negate
    not or power remainder round-nearest-afz round-nearest-even rsqrt select sign sine sqrt subtract
    tan tanh xor
    """.split()  # noqa: SIM905 - a table of words
)
#: Operations that move or generate elements without arithmetic.
MOVING = frozenset(
    """
    bitcast broadcast concatenate constant copy dynamic-reshape dynamic-slice dynamic-update-slice
    gather get-tuple-element iota pad parameter reshape reverse slice topk transpose tuple
    """.split()  # noqa: SIM905 - a table of words
)
#: Operations whose work the stored attributes do not determine.
_UNKNOWN = frozenset(("while", "conditional", "custom-call", "rng-bit-generator", "rng"))
#: Free operations: other names of existing data.
FREE = frozenset(("parameter", "constant", "bitcast", "get-tuple-element", "tuple"))
_PARTS = frozenset(("slice", "dynamic-slice", "gather"))


@dataclass(frozen=True, slots=True)
class Work:
    """Arithmetic operations (a multiply-add is two), calls of transcendental functions, and bytes
    read and written, each counted once."""

    flops: int = 0
    transcendentals: int = 0
    bytes_read: int = 0
    bytes_written: int = 0

    @property
    def bytes(self) -> int:
        return self.bytes_read + self.bytes_written


def work_of(graph: TensorGraph) -> Work:
    """Work of all operations as one kernel: parameters are read and outputs written once;
    intermediate values stay out of memory.

    If only slices and gathers read a parameter, only their bytes count; an in-place update writes
    only its part. Loops, branches and custom calls count only for their reads and writes.
    """
    flops = calls = 0
    for at, op in enumerate(graph.operations):
        counts = _computed(op, graph.operand_shapes(at))
        flops += counts[0]
        calls += counts[1]
    read = sum(_read(graph, at) for at in graph.parameters)
    written = sum(_written(graph, at) for at in graph.outputs)
    return Work(flops, calls, read, written)


def operation_work(operation: Operation, operands: Sequence[Shape]) -> Work:
    """Work of one operation by itself, with operands read from memory and results written."""
    flops, calls = _computed(operation, operands)
    results = sum(shape.bytes for shape in operation.results)
    opcode = operation.opcode
    if opcode in FREE or (opcode == "transpose" and _stays(operation, operands)):
        return Work(flops, calls)
    if opcode in _PARTS:
        return Work(flops, calls, results + sum(s.bytes for s in operands[1:]), results)
    if opcode == "dynamic-update-slice" and len(operands) > 1:
        part = operands[1].bytes
        return Work(flops, calls, part + sum(s.bytes for s in operands[2:]), part)
    if opcode == "scatter" and len(operands) == 3:
        part = operands[2].bytes
        return Work(flops, calls, 2 * part + operands[1].bytes, part)
    return Work(flops, calls, sum(shape.bytes for shape in operands), results)


def _stays(op: Operation, operands: Sequence[Shape]) -> bool:
    """Return true if the result has the memory layout of the operand."""
    order = op.dims("dimensions")
    if not operands or sorted(order) != list(range(operands[0].rank)):
        return False
    return operands[0].layout == tuple(order[d] for d in op.shape.layout)


def _computed(op: Operation, operands: Sequence[Shape]) -> tuple[int, int]:
    """Number of flops and of transcendental calls."""
    elements = op.shape.elements
    if op.opcode in MOVING or op.opcode in _UNKNOWN:
        return 0, 0
    if op.opcode in TRANSCENDENTAL:
        return 0, elements
    match op.opcode:
        case "dot":
            return 2 * elements * reduced(op, operands), 0
        case "convolution":
            return _convolution(op, operands), 0
        case "reduce" | "reduce-window" | "select-and-scatter" | "scatter" | "map" | "all-reduce":
            times = max(_times(op, operands), 0)
            flops, calls = _region(op.attributes, "combine", "region")
            return times * flops + _selected(op, operands), times * calls
        case "sort":
            largest = operands[0].elements if operands else 0
            return largest * max(largest - 1, 0).bit_length(), 0
        case "fft":
            count = operands[0].elements if operands else 0
            return 8 * count * math.prod(n.bit_length() - 1 for n in _fft_length(op)), 0
        case "cholesky":
            return elements * (op.shape.dims[-1] if op.shape.rank else 1) // 3, 0
        case "triangular-solve":
            return 2 * elements * (operands[0].dims[-1] if operands and operands[0].rank else 1), 0
    return elements, 0


def _fft_length(op: Operation) -> list[int]:
    """Lengths of the transformed dimensions; of the last alone where the text has none."""
    match = _FFT_LENGTH.search(str(op.attributes.get("raw", "")))
    return [int(length) for length in match[1].split(",")] if match else [*op.shape.dims[-1:]]


def _convolution(op: Operation, operands: Sequence[Shape]) -> int:
    """Two flops for every pair of elements that meet: padding and holes are not multiplied."""
    try:
        labels = ConvolutionLabels.of(op)
        image, weights = operands[:2]
        sizes = tuple(image.dims[d] for d in labels.spatial)
        outs = tuple(op.shape.dims[d] for d in labels.out_spatial)
        meets = spatial_meeting(op, sizes, outs)
        batch = image.dims[labels.batch] // max(op.number("batch_groups"), 1)
        features = op.shape.dims[labels.out_feature] * weights.dims[labels.weights_in]
        return 2 * meets * batch * features
    except (TensorError, IndexError, ValueError):
        return 2 * op.shape.elements * reduced(op, operands)


def _times(op: Operation, operands: Sequence[Shape]) -> int:
    """Number of pairs of elements that are combined."""
    if op.opcode == "reduce":
        return (operands[0].elements if operands else 0) - op.shape.elements
    if op.opcode == "reduce-window":
        return op.shape.elements * (math.prod(op.dims("size")) - 1)
    if op.opcode == "select-and-scatter":
        return operands[1].elements if len(operands) > 1 else 0
    if op.opcode == "scatter":
        return operands[-1].elements if len(operands) > 2 else 0
    return op.shape.elements


def _selected(op: Operation, operands: Sequence[Shape]) -> int:
    """Comparisons in each window of `select-and-scatter`."""
    if op.opcode != "select-and-scatter" or len(operands) < 2:
        return 0
    flops, _ = _region(op.attributes, "select", "select_region")
    return operands[1].elements * (math.prod(op.dims("size")) - 1) * flops


def _region(attributes: Mapping[str, Attribute], word: str, text: str) -> tuple[int, int]:
    """Flops and transcendental calls for one pair; an unknown body counts as one flop."""
    if attributes.get(word, "other") != "other" or text not in attributes:
        return 1, 0
    try:
        body = region_of(str(attributes[text])).operations
    except TensorError:
        return 1, 0
    work = [_computed(op, [body[at].shape for at in op.operands]) for op in body]
    return sum(flops for flops, _ in work), sum(calls for _, calls in work)


def _read(graph: TensorGraph, at: int) -> int:
    """Bytes that are read of a parameter."""
    whole = sum(shape.bytes for shape in graph.operations[at].results)
    if at in graph.outputs:
        return whole
    needed = 0
    for user in graph.users[at]:
        op = graph.operations[user]
        first = op.operands[0] == at and at not in op.operands[1:]
        if op.opcode in _PARTS and first:
            needed += op.shape.bytes
        elif op.opcode == "dynamic-update-slice" and first and user in graph.outputs:
            continue
        else:
            return whole
    return min(needed, whole)


def _written(graph: TensorGraph, at: int) -> int:
    op = graph.operations[at]
    in_place = op.opcode == "dynamic-update-slice" and len(op.operands) > 1
    if in_place and graph.operations[op.operands[0]].opcode == "parameter":
        return graph.operations[op.operands[1]].shape.bytes
    return sum(shape.bytes for shape in op.results)

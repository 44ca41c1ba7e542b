"""Features of a kernel by operation: one row for its call and one for each operation that takes
time, so that a model of operations transfers between kernels."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from embeddb.core.sizes import log_size
from embeddb.tensors.analysis import FREE, TRANSCENDENTAL, Work, operation_work, work_of
from embeddb.tensors.encoding.forms import FORM, form_of, halvings, rough_seconds
from embeddb.tensors.tensor_graph import DTYPES, Operation, Shape, TensorGraph

#: Opcodes of HLO that a kernel may have; 0 stands for all others.
OPCODES: tuple[str, ...] = (
    "",
    *"""
    abs acos acosh add all-gather all-reduce all-to-all and asin asinh atan2 atanh
    batch-norm-grad batch-norm-inference batch-norm-training bitcast bitcast-convert broadcast
    call cbrt ceil cholesky clamp collective-permute compare complex concatenate conditional
    constant convert convolution copy cosine cosh count-leading-zeros custom-call divide dot
    dynamic-reshape dynamic-slice dynamic-update-slice erf exponential exponential-minus-one fft
    floor fusion gather get-dimension-size get-tuple-element imag iota is-finite log log-plus-one
    logistic map maximum minimum multiply negate not or pad parameter partition-id popcnt power
    ragged-dot real reduce reduce-precision reduce-scatter reduce-window remainder replica-id
    reshape reverse rng rng-bit-generator rng-get-and-update-state round-nearest-afz
    round-nearest-even rsqrt scatter select select-and-scatter set-dimension-size shift-left
    shift-right-arithmetic shift-right-logical sign sine sinh slice sort sqrt
    stochastic-convert subtract tan tanh topk transpose triangular-solve tuple while xor
    """.split(),  # noqa: SIM905 - a table of words
)

_NUMBERS = {opcode: number for number, opcode in enumerate(OPCODES)}


def opcode_number(opcode: str) -> int:
    """Index in `OPCODES`, 0 for others."""
    return _NUMBERS.get(opcode, 0)


_SHAPE = (
    *("elements", "element_bytes", "floating", "rank", "side_1", "side_2", "side_3", "standard"),
    "side_1_even",
    *("given", "given_bytes", "largest_given", "flops", "functions"),
)
#: Kinds of operations, by the first set that has the opcode.
_KINDS: tuple[tuple[str, frozenset[str]], ...] = (
    ("product", frozenset(("dot", "convolution"))),
    ("sum", frozenset(("reduce", "reduce-window", "select-and-scatter"))),
    ("function", TRANSCENDENTAL | {"divide", "remainder"}),
    ("picked", frozenset(("gather", "scatter", "dynamic-slice", "dynamic-update-slice", "sort"))),
    ("moved", frozenset(("transpose", "reverse", "concatenate", "pad", "slice", "reshape"))),
    ("repeated", frozenset(("broadcast", "iota"))),
    ("given", frozenset(("parameter", "get-tuple-element"))),
    ("constant", frozenset(("constant",))),
)
_OTHER = "computed"
_WORDS = (*(name for name, _ in _KINDS), _OTHER)
_PLACE = (
    *("output", "users", "above", "below", "of_largest", "share"),
    *(f"from_{word}" for word in _WORDS),
    *(f"into_{word}" for word in _WORDS),
)
_KERNEL = (
    *("kernel_flops", "kernel_functions", "kernel_read", "kernel_written", "kernel_largest"),
    *("kernel_operations", "kernel_parameters", "kernel_arrays", "kernel_outputs", "kernel_usual"),
    *(f"kernel_{word}" for word in _WORDS if word not in ("given", "constant")),
)
#: Columns: natural logarithm of the rough estimate in seconds, flag of the call, opcode, and
#: features of the operation by itself, of its position in the kernel, and of the kernel.
OPERATION: tuple[str, ...] = (
    "usual",
    "call",
    *(f"is_{opcode or 'unknown'}" for opcode in OPCODES),
    *_SHAPE,
    *FORM,
    *_PLACE,
    *_KERNEL,
)
USUAL, CALL = OPERATION.index("usual"), OPERATION.index("call")
_AT = {name: at for at, name in enumerate(OPERATION)}
_BOUNDS = (0, *(_AT[part[0]] for part in (FORM, _PLACE, _KERNEL)), len(OPERATION))
#: Blocks of columns that often repeat within a kernel: operation by itself, form, position, kernel.
BLOCKS = tuple(slice(*ends) for ends in itertools.pairwise(_BOUNDS))
_FIRST_OPCODE = _AT["is_unknown"]
#: Rough estimates in seconds for the call of a kernel, and for each array passed.
_CALL_S, _ARRAY_S = 2e-6, 1e-7


def operations_version() -> str:
    """8 hex digits that identify all columns; models fit one version only. The number before them
    changes with the meaning of the columns, estimates included."""
    text = "\n".join(("2", *OPERATION))
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


def operation_places(kernel: TensorGraph) -> tuple[int, ...]:
    """Positions of the operations with a row: those that take time."""
    return tuple(at for at, op in enumerate(kernel.operations) if op.opcode not in FREE)


def operation_rows(kernel: TensorGraph) -> NDArray[np.float32]:
    """float32[1+n,f] in the order of `OPERATION`: the call, then the n operations at
    `operation_places`."""
    places = operation_places(kernel)
    rows = np.zeros((1 + len(places), len(OPERATION)))
    usual = [_CALL_S + _ARRAY_S * len((*kernel.parameters, *kernel.outputs))]
    for row, at in zip(rows[1:], places, strict=True):
        op, shapes = kernel.operations[at], kernel.operand_shapes(at)
        work = operation_work(op, shapes)
        usual.append(rough_seconds(op, work))
        row[_FIRST_OPCODE + opcode_number(op.opcode)] = 1
        _put(row, _shape(op, shapes, work))
        _put(row, form_of(op, shapes))
    rows[:, USUAL] = np.log(usual)
    rows[0, _AT["call"]] = 1
    words = [_word(op.opcode) for op in kernel.operations]
    largest = max((kernel.operations[at].shape.elements for at in kernel.outputs), default=1)
    total = sum(usual)
    _put(rows.T, _of_kernel(kernel, words, places, largest, total))
    above, below = _depths(kernel)
    for row, at in zip(rows[1:], places, strict=True):
        shape = kernel.operations[at].shape
        row[_AT["output"]] = at in kernel.outputs
        row[_AT["users"]] = log_size(len(kernel.users[at]))
        row[_AT["above"]], row[_AT["below"]] = log_size(above[at]), log_size(below[at])
        row[_AT["of_largest"]] = math.log2(max(shape.elements, 1) / max(largest, 1))
        row[_AT["share"]] = math.exp(row[USUAL]) / total
        for way, others in (("from", kernel.operations[at].operands), ("into", kernel.users[at])):
            for other in others:
                row[_AT[f"{way}_{words[other]}"]] += 1
    return rows.astype(np.float32)


def _put(row: NDArray[np.float64], features: Mapping[str, float]) -> None:
    for name, value in features.items():
        row[_AT[name]] = value


def _shape(op: Operation, operands: Sequence[Shape], work: Work) -> dict[str, float]:
    shape = op.shape
    sides = [shape.dims[d] for d in shape.layout[:3]]
    return {
        "elements": log_size(shape.elements),
        "element_bytes": float(DTYPES[shape.dtype]),
        "floating": float("f" in shape.dtype or shape.dtype.startswith("c")),
        "rank": float(shape.rank),
        **{f"side_{number}": log_size(side) for number, side in enumerate(sides, start=1)},
        "side_1_even": halvings(sides[0]) if sides else 0.0,
        "standard": float(shape.layout == tuple(reversed(range(shape.rank)))),
        "given": float(len(op.operands)),
        "given_bytes": log_size(sum(one.bytes for one in operands)),
        "largest_given": log_size(max((one.elements for one in operands), default=0)),
        "flops": log_size(work.flops),
        "functions": log_size(work.transcendentals),
    }


def _of_kernel(
    kernel: TensorGraph, words: list[str], places: tuple[int, ...], largest: int, usual: float
) -> dict[str, float]:
    work = work_of(kernel)
    elements = [kernel.operations[at].shape.elements for at in kernel.parameters]
    counts = {f"kernel_{word}": 0 for word in set(_WORDS) - {"given", "constant"}}
    for at in places:
        counts[f"kernel_{words[at]}"] += 1
    return {
        "kernel_flops": log_size(work.flops),
        "kernel_functions": log_size(work.transcendentals),
        "kernel_read": log_size(work.bytes_read),
        "kernel_written": log_size(work.bytes_written),
        "kernel_largest": log_size(largest),
        "kernel_operations": log_size(len(places)),
        "kernel_parameters": log_size(len(kernel.parameters)),
        "kernel_arrays": float(sum(size >= largest for size in elements)),
        "kernel_outputs": log_size(len(kernel.outputs)),
        "kernel_usual": math.log(usual),
        **{name: log_size(count) for name, count in counts.items()},
    }


def _word(opcode: str) -> str:
    return next((name for name, opcodes in _KINDS if opcode in opcodes), _OTHER)


def _depths(kernel: TensorGraph) -> tuple[list[int], list[int]]:
    """Length of the longest path to and from every operation."""
    above, below = [0] * len(kernel.operations), [0] * len(kernel.operations)
    for at, op in enumerate(kernel.operations):
        own = op.opcode not in FREE
        above[at] = max((above[o] + own for o in op.operands), default=0)
    for at in reversed(range(len(kernel.operations))):
        own = kernel.operations[at].opcode not in FREE
        below[at] = max((below[u] + own for u in kernel.users[at]), default=0)
    return above, below

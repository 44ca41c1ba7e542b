"""Shape inference for HLO: the dimensions of an opcode's results from those of its operands.

The rules are those of XLA's `ShapeInference` and `ShapeVerifier`. A rule takes an `Applied` and
returns the dimensions of each result; it raises TensorError, with the reason alone, where no result
fits. Opcodes that move control or whole tuples are checked in `verify`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from embeddb.core.errors import TensorError
from embeddb.tensors.analysis import ELEMENTWISE
from embeddb.tensors.tensor_graph import DTYPES, Operation, Shape
from embeddb.tensors.tiling.forms import number_of
from indexer.frontends.hlo.attributes import numbers_of

Dims = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Applied:
    """An operation with the shapes of its operands, and its attributes as the text has them:
    tokens by name."""

    op: Operation
    operands: tuple[Shape, ...]
    raw: Mapping[str, Sequence[str]]

    def numbers(self, name: str) -> Dims:
        """The numbers of an attribute as the text has it, () where it is absent."""
        return numbers_of(self.raw.get(name, ()), name)

    def take(self, count: int) -> tuple[Shape, ...]:
        """The operands, if there are `count`."""
        if len(self.operands) != count:
            raise TensorError(f"it takes {count} operands, not {len(self.operands)}")
        return self.operands


Rule = Callable[[Applied], list[Dims]]


def check_axes(axes: Sequence[int], rank: int, name: str) -> None:
    """Raises: TensorError unless `axes` are different dimensions of an array of this rank."""
    if len(set(axes)) != len(axes) or any(not 0 <= axis < rank for axis in axes):
        raise TensorError(f"{name}={{{_by(axes)}}} does not fit {rank} dimensions")


def _by(dims: Sequence[int]) -> str:
    return ",".join(map(str, dims))


def _equal(a: Sequence[int], b: Sequence[int], what: str) -> None:
    if tuple(a) != tuple(b):
        raise TensorError(f"{what} [{_by(a)}] and [{_by(b)}] differ")


#: Operands that may be a scalar beside larger ones.
_SCALARS = {"select": (0,), "clamp": (0, 2)}
_COUNTS = {
    **dict.fromkeys(("select", "clamp"), 3),
    **dict.fromkeys(
        """
        add and atan2 compare complex divide maximum minimum multiply or power remainder shift-left
        shift-right-arithmetic shift-right-logical stochastic-convert subtract xor
        """.split(),  # noqa: SIM905 - a table of words
        2,
    ),
}


def _elementwise(call: Applied) -> list[Dims]:
    operands = call.take(_COUNTS.get(call.op.opcode, 1))
    main = operands[1 if call.op.opcode in _SCALARS else 0]
    for at, shape in enumerate(operands):
        if at not in _SCALARS.get(call.op.opcode, ()) or shape.rank:
            _equal(main.dims, shape.dims, "the sizes")
    return [main.dims]


def _each(call: Applied) -> list[Dims]:
    """Result i has the shape of operand i."""
    return [shape.dims for shape in call.operands]


def _first(call: Applied) -> list[Dims]:
    if not call.operands:
        raise TensorError("it takes an operand")
    return [call.operands[0].dims]


def _broadcast(call: Applied) -> list[Dims]:
    (operand,) = call.take(1)
    out, axes = call.op.results[0].dims, call.op.dims("dimensions")
    check_axes(axes, len(out), "dimensions")
    _equal([out[axis] for axis in axes], operand.dims, "the sizes of the dimensions kept")
    return [out]


def _transpose(call: Applied) -> list[Dims]:
    (operand,) = call.take(1)
    axes = call.op.dims("dimensions")
    check_axes(axes, operand.rank, "dimensions")
    if len(axes) != operand.rank:
        raise TensorError(f"dimensions={{{_by(axes)}}} leaves one of {operand.rank} out")
    return [tuple(operand.dims[axis] for axis in axes)]


def _reverse(call: Applied) -> list[Dims]:
    (operand,) = call.take(1)
    check_axes(call.op.dims("dimensions"), operand.rank, "dimensions")
    return [operand.dims]


def _reshape(call: Applied) -> list[Dims]:
    operand = call.operands[0] if call.op.opcode == "dynamic-reshape" else call.take(1)[0]
    result = call.op.results[0]
    if operand.elements != result.elements:
        raise TensorError(f"{operand.elements:,} elements are not {result.elements:,}")
    return [result.dims]


def _bitcast(call: Applied) -> list[Dims]:
    """The same bytes, and the same number of elements unless the type changes."""
    (operand,) = call.take(1)
    result = call.op.results[0]
    if operand.dtype == result.dtype:
        return _reshape(call)
    old, new = _width(operand), _width(result)
    if old and new and operand.elements * old != result.elements * new:
        raise TensorError(f"{operand.elements * old:,} bytes are not {result.elements * new:,}")
    return [result.dims]


def _width(shape: Shape) -> int:
    """Bytes of an element, 0 for an unsupported type."""
    return DTYPES.get(shape.dtype, 0)


def _bitcast_convert(call: Applied) -> list[Dims]:
    """Smaller elements add a last dimension, larger ones remove it."""
    (operand,) = call.take(1)
    old, new = _width(operand), _width(call.op.results[0])
    if old > new > 0:
        return [(*operand.dims, old // new)]
    if new > old > 0:
        if operand.dims[-1:] != (new // old,):
            raise TensorError(f"the last dimension must be {new // old}")
        return [operand.dims[:-1]]
    return [operand.dims]


def _concatenate(call: Applied) -> list[Dims]:
    first, axis = _first(call)[0], call.op.number("dimension", 0)
    check_axes([axis], len(first), "dimensions")
    for shape in call.operands:
        if shape.rank != len(first):
            raise TensorError("the operands differ in rank")
        for one in range(len(first)):
            if one != axis and shape.dims[one] != first[one]:
                raise TensorError(f"the operands differ in dimension {one}")
    total = sum(shape.dims[axis] for shape in call.operands)
    return [(*first[:axis], total, *first[axis + 1 :])]


def by_dimension(call: Applied, names: Sequence[str], rank: int, does: str) -> list[Dims]:
    """Canonical attributes of a number for each dimension. Raises: TensorError for other ones."""
    parts = [call.op.dims(name) for name in names]
    if any(len(part) != rank for part in parts):
        raise TensorError(f"{does} {len(parts[0])} of {rank} dimensions")
    return parts


def check_within(part: Dims, whole: Dims, what: str) -> None:
    if len(part) != len(whole) or any(a > b for a, b in zip(part, whole, strict=True)):
        raise TensorError(f"a {what} of [{_by(part)}] is larger than [{_by(whole)}]")


def _slice(call: Applied) -> list[Dims]:
    (operand,) = call.take(1)
    parts = by_dimension(call, ("start", "limit", "stride"), operand.rank, "it slices")
    out = []
    for size, start, limit, stride in zip(operand.dims, *parts, strict=True):
        if not 0 <= start <= limit <= size or stride < 1:
            raise TensorError(f"[{start}:{limit}:{stride}] is no part of a dimension of {size}")
        out.append(-(-(limit - start) // stride))
    return [tuple(out)]


def _pad(call: Applied) -> list[Dims]:
    operand, value = call.take(2)
    if value.rank:
        raise TensorError("the value that is padded with is no scalar")
    parts = by_dimension(call, ("low", "high", "interior"), operand.rank, "it pads")
    return [
        tuple(
            low + high + size + inner * max(size - 1, 0)
            for size, low, high, inner in zip(operand.dims, *parts, strict=True)
        )
    ]


def _starts(starts: Sequence[Shape], rank: int) -> None:
    """Check the start indices of a slice: a scalar for each dimension, or one vector of them."""
    scalars = len(starts) == rank and not any(shape.rank for shape in starts)
    if not scalars and [shape.dims for shape in starts] != [(rank,)]:
        raise TensorError(f"it starts at {len(starts)} places of {rank} dimensions")


def _dynamic_slice(call: Applied) -> list[Dims]:
    dims, sizes = _first(call)[0], call.op.dims("sizes")
    _starts(call.operands[1:], len(dims))
    check_within(sizes, dims, "slice")
    return [sizes]


def _dynamic_update_slice(call: Applied) -> list[Dims]:
    if len(call.operands) < 2:
        raise TensorError("it takes an array and its new part")
    operand, part = call.operands[:2]
    _starts(call.operands[2:], operand.rank)
    check_within(part.dims, operand.dims, "part")
    return [operand.dims]


def _iota(call: Applied) -> list[Dims]:
    call.take(0)
    check_axes([call.op.number("dimension", 0)], call.op.results[0].rank, "iota_dimension")
    return [call.op.results[0].dims]


def _dot(call: Applied) -> list[Dims]:
    lhs, rhs = call.take(2 if call.op.opcode == "dot" else 4)[:2]
    free: list[int] = []
    batches, sums = [], []
    for shape, side in ((lhs, "lhs"), (rhs, "rhs")):
        batch, summed = call.op.dims(f"{side}_batch"), call.op.dims(f"{side}_contracting")
        if call.op.opcode != "dot":
            batch = call.numbers(f"{side}_batch_dims")
            summed = call.numbers(f"{side}_contracting_dims")
        check_axes((*batch, *summed), shape.rank, f"{side}_dims")
        batches.append([shape.dims[axis] for axis in batch])
        sums.append([shape.dims[axis] for axis in summed])
        free += [n for axis, n in enumerate(shape.dims) if axis not in (*batch, *summed)]
    _equal(sums[0], sums[1], "the contracted sizes")
    _equal(batches[0], batches[1], "the batch sizes")
    return [(*batches[0], *free)]


def reduced_arrays(call: Applied) -> Sequence[Shape]:
    """The arrays of a reduction: of one size, followed by as many scalars, their initial values."""
    count, odd = divmod(len(call.operands), 2)
    if odd or not count:
        raise TensorError("it takes arrays and as many starting values")
    arrays, starts = call.operands[:count], call.operands[count:]
    for shape in arrays:
        _equal(arrays[0].dims, shape.dims, "the sizes")
    if any(shape.rank for shape in starts):
        raise TensorError("a starting value is no scalar")
    return arrays


def _reduce(call: Applied) -> list[Dims]:
    arrays = reduced_arrays(call)
    axes = call.op.dims("dimensions")
    check_axes(axes, arrays[0].rank, "dimensions")
    return [tuple(n for at, n in enumerate(arrays[0].dims) if at not in axes)] * len(arrays)


def _map(call: Applied) -> list[Dims]:
    for shape in call.operands[1:]:
        _equal(call.operands[0].dims, shape.dims, "the sizes")
    return _first(call)


def _sort(call: Applied) -> list[Dims]:
    axes = call.numbers("dimensions")
    check_axes(axes, len(_map(call)[0]), "dimensions")
    return _each(call)


def _fft(call: Applied) -> list[Dims]:
    dims, lengths = _first(call)[0], call.numbers("fft_length")
    word = "".join(call.raw.get("fft_type", ())).upper()
    wanted = lengths
    if word == "IRFFT" and lengths:
        wanted = (*lengths[:-1], lengths[-1] // 2 + 1)
    batches = dims[: len(dims) - len(lengths)]
    if len(lengths) > len(dims):
        raise TensorError(f"fft_length={{{_by(lengths)}}} of {len(dims)} dimensions")
    _equal(dims[len(batches) :], wanted, "the lengths")
    if word == "RFFT" and lengths:
        return [(*dims[:-1], lengths[-1] // 2 + 1)]
    return [(*batches, *lengths)]


def _square(dims: Dims) -> int:
    if len(dims) < 2 or dims[-1] != dims[-2]:
        raise TensorError(f"[{_by(dims)}] are no square matrices")
    return dims[-1]


def _cholesky(call: Applied) -> list[Dims]:
    _square(call.take(1)[0].dims)
    return _each(call)


def _triangular_solve(call: Applied) -> list[Dims]:
    a, b = (shape.dims for shape in call.take(2))
    side = -2 if "".join(call.raw.get("left_side", ("true",))) == "true" else -1
    if len(a) != len(b) or a[:-2] != b[:-2] or b[side] != _square(a):
        raise TensorError(f"matrices of [{_by(a)}] do not fit [{_by(b)}]")
    return [b]


def _batch_norm(call: Applied) -> list[Dims]:
    """An array, vectors with an entry per feature, and, for `grad`, the array's gradient."""
    grad = call.op.opcode == "batch-norm-grad"
    operands = call.take(3 if call.op.opcode == "batch-norm-training" else 5)
    axis = (*call.numbers("feature_index"), 0)[0]
    check_axes([axis], operands[0].rank, "feature_index")
    feature = (operands[0].dims[axis],)
    for shape in operands[1:4] if grad else operands[1:]:
        _equal(shape.dims, feature, "the numbers of features")
    if grad:
        _equal(operands[4].dims, operands[0].dims, "the sizes")
    return [operands[0].dims] * 1 + [feature] * (0 if "inference" in call.op.opcode else 2)


def _topk(call: Applied) -> list[Dims]:
    dims, most = call.take(1)[0].dims, call.numbers("k")
    if not dims or len(most) != 1 or most[0] > dims[-1]:
        raise TensorError(f"k={_by(most)} does not fit [{_by(dims)}]")
    return [(*dims[:-1], most[0])] * 2


def _scaled(call: Applied) -> list[Dims]:
    """`all-gather` and `reduce-scatter`: one dimension is larger, or smaller, by the number of
    devices; all results by the same."""
    axis = (*call.numbers("dimensions"), 0)[0]
    if len(call.operands) != len(call.op.results):
        raise TensorError(f"{len(call.operands)} operands give {len(call.op.results)} results")
    for operand, result in zip(call.operands, call.op.results, strict=True):
        check_axes([axis], operand.rank, "dimensions")
        small, large = operand.dims, result.dims
        if call.op.opcode == "reduce-scatter":
            small, large = large, small
        rest = [(*d[:axis], *d[axis + 1 :]) for d in (small, large)]
        if len(small) != len(large) or rest[0] != rest[1] or large[axis] % max(small[axis], 1):
            raise TensorError(f"dimension {axis} alone may be a multiple")
    return [shape.dims for shape in call.op.results]


def _ragged_all_to_all(call: Applied) -> list[Dims]:
    if len(call.operands) < 2:
        raise TensorError("it takes an array and its target")
    return [call.operands[1].dims]


def _scalar(call: Applied) -> list[Dims]:
    return [()]


#: Types whose elements a literal does not separate by one comma each.
_UNSEPARATED = frozenset(("pred", "c64", "c128"))
#: Numbers from here on round to infinity.
_F32_END = (2.0 - 2.0**-24) * 2.0**127
_SEPARATED = str.maketrans("{},", "   ")


def _constant(call: Applied) -> list[Dims]:
    """Check that numbers fit their type, and that there is one for each element, where all are
    written."""
    text, shape = "".join(call.raw.get("literal", ())), call.op.results[0]
    if "..." not in text and shape.dtype not in _UNSEPARATED:
        numbers = text.translate(_SEPARATED).split()
        if text.startswith("{") and len(numbers) != shape.elements:
            raise TensorError(f"it has {len(numbers):,} numbers for {shape.elements:,} elements")
        for number in dict.fromkeys(numbers):
            if not _fits(number, shape.dtype):
                raise TensorError(f"{number[:40]!r} is no number of type {shape.dtype}")
    return [one.dims for one in call.op.results]


def _fits(number: str, dtype: str) -> bool:
    """True if a literal is a number of a real or integer type, or the type is another one."""
    whole = dtype[:1] in ("s", "u") and dtype[1:].isdecimal()
    if not whole and not dtype.startswith(("f", "bf")):
        return True
    if not whole and number.lower().removeprefix("-").startswith("nan("):  # with its bits
        return True
    try:
        value = number_of(number, dtype if whole else "f64")
    except ValueError:
        return False
    return dtype != "f32" or not math.isfinite(value) or abs(value) < _F32_END


_WORDS_ELEMENTWISE = frozenset(
    """
    acos acosh asin asinh atanh complex cosh count-leading-zeros imag logistic popcnt real
    reduce-precision shift-left shift-right-arithmetic shift-right-logical sinh stochastic-convert
    """.split()  # noqa: SIM905 - a table of words
)
#: Rules by opcode; windows, gathers and scatters are in `verify`.
RULES: dict[str, Rule] = {
    **dict.fromkeys(ELEMENTWISE | _WORDS_ELEMENTWISE, _elementwise),
    **dict.fromkeys(("all-reduce", "all-reduce-start", "all-to-all"), _each),
    **dict.fromkeys(("collective-permute", "collective-broadcast", "set-dimension-size"), _first),
    **dict.fromkeys(("dot", "scaled-dot"), _dot),
    **dict.fromkeys(("reshape", "dynamic-reshape"), _reshape),
    **dict.fromkeys(("all-gather", "reduce-scatter"), _scaled),
    **dict.fromkeys(("partition-id", "replica-id", "get-dimension-size"), _scalar),
    **dict.fromkeys(
        ("batch-norm-grad", "batch-norm-inference", "batch-norm-training"), _batch_norm
    ),
    "bitcast": _bitcast,
    "bitcast-convert": _bitcast_convert,
    "broadcast": _broadcast,
    "cholesky": _cholesky,
    "concatenate": _concatenate,
    "constant": _constant,
    "dynamic-slice": _dynamic_slice,
    "dynamic-update-slice": _dynamic_update_slice,
    "fft": _fft,
    "iota": _iota,
    "map": _map,
    "pad": _pad,
    "ragged-all-to-all": _ragged_all_to_all,
    "reduce": _reduce,
    "reverse": _reverse,
    "slice": _slice,
    "sort": _sort,
    "topk": _topk,
    "transpose": _transpose,
    "triangular-solve": _triangular_solve,
}
_OF_TWO_TYPES = frozenset(
    "abs compare complex convert imag is-finite real select stochastic-convert".split()  # noqa: SIM905
)
#: Opcodes whose arrays are all of one type, floating types of any width counting as one.
SAME_TYPE = ((ELEMENTWISE | _WORDS_ELEMENTWISE) - _OF_TWO_TYPES) | frozenset(
    "broadcast concatenate pad reshape reverse slice transpose".split()  # noqa: SIM905
)

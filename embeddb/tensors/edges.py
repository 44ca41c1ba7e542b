"""Fusible edges of a program; a cut is the set of edges along which a compiler must not fuse."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from embeddb.core.errors import TensorError
from embeddb.tensors.tensor_graph import Operation, TensorGraph

#: Parameter of a configuration whose value is a cut.
CUT = "cut"
#: Largest number of edges whose cut fits into a configuration.
MOST_EDGES = 4000
#: The cuts of no edge and of every edge.
WHOLE, SINGLE = "whole", "single"
_HEX = "0123456789abcdef"
#: Operations that are copied into every kernel if all their operands are constants.
_COPIED = frozenset(("broadcast", "reshape", "bitcast", "convert", "transpose", "copy"))


@dataclass(frozen=True, slots=True)
class Cut:
    """One flag per edge, in the order of `Edges.pairs`: true if it is cut.

    Text form: `whole`, `single`, or the number of edges, a colon, and one hexadecimal digit for
    four edges, the first edge as the highest bit: `6:a4` cuts the first, the third and the sixth of
    six.
    """

    bits: tuple[bool, ...]

    @property
    def text(self) -> str:
        if not any(self.bits):
            return WHOLE
        if all(self.bits):
            return SINGLE
        count = -(-len(self.bits) // 4)
        padded = "".join("01"[bit] for bit in self.bits).ljust(4 * count, "0")
        return f"{len(self.bits)}:{int(padded, 2):0{count}x}"

    @classmethod
    def read(cls, text: str, count: int) -> Cut:
        """Parse the cut of a program with so many edges. Raises: TensorError."""
        if text in (WHOLE, SINGLE):
            return cls((text == SINGLE,) * count)
        number, colon, digits = text.partition(":")
        if not colon or not number.isascii() or not number.isdigit() or len(number) > 9:
            raise TensorError(
                f"{text[:40]!r} is not a cut",
                hint=f"write {WHOLE}, {SINGLE} or a text such as 6:a4",
            )
        if int(number) != count:
            raise TensorError(
                f"is the cut of another program: it has {int(number)} edges, not {count}"
            )
        if len(digits) != -(-count // 4) or not set(digits) <= set(_HEX):
            raise TensorError(f"a cut of {count} edges has {-(-count // 4)} hexadecimal digits")
        bits = [bool(int(digit, 16) >> at & 1) for digit in digits for at in (3, 2, 1, 0)]
        if any(bits[count:]):
            raise TensorError(f"a cut of {count} edges has more bits than edges")
        return cls(tuple(bits[:count]))


class Edges:
    """Edges of one program. `pairs` are positions of a producer and a consumer, without duplicates,
    in the order of consumers and of their operands. Parameters are in no kernel; `copied` are
    constants, iotas and views of these, which every kernel computes itself. An operation that
    extracts one of several results stays with their producer (`_tied`)."""

    def __init__(self, program: TensorGraph) -> None:
        """Find the edges. Raises: TensorError for a program with an output of several results."""
        operations = program.operations
        for place in program.outputs:
            if len(operations[place].results) > 1:
                raise TensorError("an output has several results: make its parts the outputs")
        copied: set[int] = set()
        pairs: dict[tuple[int, int], None] = {}
        self._tied: list[tuple[int, int]] = []
        for place, op in enumerate(operations):
            if op.opcode in ("constant", "iota") or (
                op.opcode in _COPIED and op.operands and copied.issuperset(op.operands)
            ):
                copied.add(place)
                continue
            for below in op.operands:
                if below in copied or operations[below].opcode == "parameter":
                    continue
                if len(operations[below].results) > 1:
                    self._tied.append((below, place))
                else:
                    pairs[below, place] = None
        self.copied = frozenset(copied)
        self.pairs = tuple(pairs)
        self._count = len(operations)
        parameters = {at for at, op in enumerate(operations) if op.opcode == "parameter"}
        self.computing = tuple(at for at in range(self._count) if at not in parameters | copied)

    @property
    def whole(self) -> Cut:
        """The cut that fuses all connected operations."""
        return Cut((False,) * len(self.pairs))

    @property
    def single(self) -> Cut:
        """The cut that fuses nothing."""
        return Cut((True,) * len(self.pairs))

    def labels(self, cut: Cut) -> list[int]:
        """First position of the kernel of each operation, also for cyclic kernels; -1 for
        operations in no kernel. Raises: TensorError for a cut of another program."""
        if len(cut.bits) != len(self.pairs):
            raise TensorError(f"the cut has {len(cut.bits)} edges, the program {len(self.pairs)}")
        fused = (pair for pair, bit in zip(self.pairs, cut.bits, strict=True) if not bit)
        first = _firsts(self._count, (*self._tied, *fused))
        labels = [-1] * self._count
        for place in self.computing:
            labels[place] = first[place]
        return labels

    def strong(self, labels: Sequence[int]) -> list[int]:
        """Number of the strongly connected component of each label: kernels that depend on each
        other have the same number."""
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import connected_components

        between = [(labels[a], labels[b]) for a, b in self.pairs if labels[a] != labels[b]]
        rows, columns = np.array(between, np.int64).reshape(-1, 2).T
        shape = (self._count, self._count)
        graph = csr_array((np.ones(len(between), np.int8), (rows, columns)), shape=shape)
        components: list[int] = connected_components(graph, connection="strong")[1].tolist()
        return components

    def mended(self, cut: Cut) -> Cut:
        """The cut with kernels that depend on each other merged, and no edge inside a kernel."""
        labels = self.labels(cut)
        strong = self.strong(labels)
        return self.between([-1 if at < 0 else strong[at] for at in labels])

    def between(self, labels: Sequence[int]) -> Cut:
        """The cut of all edges between different labels."""
        return Cut(tuple(labels[a] != labels[b] for a, b in self.pairs))


@lru_cache(maxsize=64)
def edges_of(program: TensorGraph) -> Edges:
    """Edges of a program, cached. Raises: TensorError as `Edges`."""
    return Edges(program)


def _firsts(count: int, pairs: Iterable[tuple[int, int]]) -> list[int]:
    """First member of each connected component, by position. (Annealing calls this for every cut,
    mostly with some dozen edges, for which scipy is slower.)"""
    above = list(range(count))

    def first(place: int) -> int:
        while above[place] != place:
            above[place] = place = above[above[place]]
        return place

    for one, other in pairs:
        a, b = first(one), first(other)
        above[max(a, b)] = min(a, b)
    return [first(place) for place in range(count)]


#: Number of positions on both sides above which padding is negligible.
_MOST_COUNTED = 1 << 16


@dataclass(frozen=True, slots=True)
class ConvolutionLabels:
    """Dimension numbers of input, weights and result: `b01f_01io->b01f`. The spatial ones are in
    the order of the window."""

    batch: int
    feature: int
    spatial: tuple[int, ...]
    weights_in: int
    weights_out: int
    weights_spatial: tuple[int, ...]
    out_batch: int
    out_feature: int
    out_spatial: tuple[int, ...]

    @classmethod
    def of(cls, operation: Operation) -> ConvolutionLabels:
        """Parse the labels. Raises: TensorError if they are invalid or do not fit the window."""
        text = str(operation.attributes.get("labels", ""))
        operands, _, out = text.partition("->")
        lhs, _, weights = operands.partition("_")
        rank = len(operation.dims("size"))
        digits = tuple(str(at) for at in range(rank))
        wanted = ((lhs, "bf"), (weights, "io"), (out, "bf"))
        if rank > 8 or any(sorted(part) != sorted((*digits, *ends)) for part, ends in wanted):
            raise TensorError(f"invalid labels of a convolution: {text[:60]!r}")
        return cls(
            lhs.index("b"),
            lhs.index("f"),
            tuple(map(lhs.index, digits)),
            weights.index("i"),
            weights.index("o"),
            tuple(map(weights.index, digits)),
            out.index("b"),
            out.index("f"),
            tuple(map(out.index, digits)),
        )


def spatial_meeting(operation: Operation, sizes: tuple[int, ...], outs: tuple[int, ...]) -> int:
    """Number of pairs of a result position and a window position that meet an element, not padding
    or a hole of a dilation; the window moves over dimensions of these sizes with so many result
    positions in each."""
    parts = [operation.dims(n) for n in ("size", "stride", "low", "lhs_dilate", "rhs_dilate")]
    if any(len(part) != len(sizes) for part in parts):
        raise TensorError("the window and its operand have different numbers of dimensions")
    by_dimension = zip(sizes, outs, *parts, strict=True)
    return math.prod(meeting(*one) for one in by_dimension)


def meeting(
    size: int, out: int, window: int, stride: int, low: int, lhs_dilate: int, rhs_dilate: int
) -> int:
    """`spatial_meeting` for one dimension: pairs (o, k) with o below `out` and k below `window` for
    which o * stride + k * rhs_dilate - low is a multiple of `lhs_dilate` and, divided by it, below
    `size`."""
    if min(out, window) > _MOST_COUNTED:
        return out * window
    many, step, few, few_step = out, stride, window, rhs_dilate
    if few > many:
        many, step, few, few_step = few, few_step, many, step
    last = (size - 1) * max(lhs_dilate, 1)
    return sum(
        _multiples(at * few_step - low, max(step, 1), many, last, max(lhs_dilate, 1))
        for at in range(few)
    )


def _multiples(start: int, step: int, count: int, last: int, of: int) -> int:
    """Number of multiples from 0 to `last` among the `count` numbers from `start` by `step`."""
    lowest = max(0, -(start // step))
    highest = min(count - 1, (last - start) // step)
    common = math.gcd(step, of)
    if start % common or highest < lowest:
        return 0
    period = of // common
    first = -start // common * pow(step // common, -1, period) % period if period > 1 else 0
    lowest += (first - lowest) % period
    return 0 if lowest > highest else (highest - lowest) // period + 1

"""The edges of a program along which a compiler may fuse; a cut: those along which it must not."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from embeddb.core.errors import TensorError
from embeddb.tensors.tensor_graph import Operation, TensorGraph

#: The parameter of a configuration that is a cut.
CUT = "cut"
#: As many as the text of a cut has room for in a configuration.
MOST_EDGES = 4000
#: The cuts of no edge and of every edge.
WHOLE, SINGLE = "whole", "single"
_HEX = "0123456789abcdef"
#: What computes nothing where all its operands are constants: every kernel has it for itself.
_COPIED = frozenset(("broadcast", "reshape", "bitcast", "convert", "transpose", "copy"))


@dataclass(frozen=True, slots=True)
class Cut:
    """By edge, in the order of `Edges.pairs`, whether it is cut.

    As text: `whole`, `single`, or how many edges there are, a colon, and the bits of four edges in
    a row as one hexadecimal digit, the first edge as the highest: `6:a4` cuts the first, the third
    and the sixth of six.
    """

    bits: tuple[bool, ...]

    @property
    def text(self) -> str:
        if not any(self.bits):
            return WHOLE
        if all(self.bits):
            return SINGLE
        padded = (*self.bits, *(False,) * (-len(self.bits) % 4))
        fours = [padded[at : at + 4] for at in range(0, len(padded), 4)]
        digits = [_HEX[8 * a + 4 * b + 2 * c + d] for a, b, c, d in fours]
        return f"{len(self.bits)}:{''.join(digits)}"

    @classmethod
    def read(cls, text: str, count: int) -> Cut:
        """Of a program with so many edges. Raises: TensorError for all else."""
        if text in (WHOLE, SINGLE):
            return cls((text == SINGLE,) * count)
        told, colon, digits = text.partition(":")
        if not colon or not told.isascii() or not told.isdigit() or len(told) > 9:
            raise TensorError(
                f"{text[:40]!r} is no cut", hint=f"write {WHOLE}, {SINGLE} or 6:a4, six edges"
            )
        if int(told) != count:
            raise TensorError(
                f"is a cut of {int(told)} edges, the program has {count}: it is another's"
            )
        if len(digits) != -(-count // 4) or not set(digits) <= set(_HEX):
            raise TensorError(f"a cut of {count} edges has {-(-count // 4)} hexadecimal digits")
        bits = [bool(int(digit, 16) >> at & 1) for digit in digits for at in (3, 2, 1, 0)]
        if any(bits[count:]):
            raise TensorError(f"a cut of {count} edges cuts one that is not there")
        return cls(tuple(bits[:count]))


class Edges:
    """Of one program. `pairs` are places of a maker and a user of its value, each once, in the
    order of users and of their operands. No kernel computes parameters; `copied` are constants,
    iotas and what is made of these alone by moving: no value is worth handing on. What takes one of
    several results out is always with what makes them (`_tied`)."""

    def __init__(self, program: TensorGraph) -> None:
        """Raises: TensorError for a program that gives several results out as one."""
        operations = program.operations
        for place in program.outputs:
            if len(operations[place].results) > 1:
                raise TensorError("an output has several results: give its parts out")
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
        given = {at for at, op in enumerate(operations) if op.opcode == "parameter"}
        self.computing = tuple(at for at in range(self._count) if at not in given | copied)

    @property
    def whole(self) -> Cut:
        """Fuses all that is connected."""
        return Cut((False,) * len(self.pairs))

    @property
    def single(self) -> Cut:
        """Fuses nothing."""
        return Cut((True,) * len(self.pairs))

    def labels(self, cut: Cut) -> list[int]:
        """By place, the first place of the kernel that it is in, whether or not kernels then need
        each other; -1 for what is in none. Raises: TensorError for a cut of another program."""
        if len(cut.bits) != len(self.pairs):
            raise TensorError(
                f"is a cut of {len(cut.bits)} edges, the program has {len(self.pairs)}"
            )
        fused = (pair for pair, bit in zip(self.pairs, cut.bits, strict=True) if not bit)
        first = _firsts(self._count, (*self._tied, *fused))
        labels = [-1] * self._count
        for place in self.computing:
            labels[place] = first[place]
        return labels

    def strong(self, labels: Sequence[int]) -> list[int]:
        """By place (of which those that are labels count), which kernels need each other: they have
        the same number."""
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import connected_components

        between = [(labels[a], labels[b]) for a, b in self.pairs if labels[a] != labels[b]]
        rows, columns = np.array(between, np.int64).reshape(-1, 2).T
        shape = (self._count, self._count)
        graph = csr_array((np.ones(len(between), np.int8), (rows, columns)), shape=shape)
        found: list[int] = connected_components(graph, connection="strong")[1].tolist()
        return found

    def mended(self, cut: Cut) -> Cut:
        """With kernels that need each other made one, and nothing cut inside a kernel."""
        labels = self.labels(cut)
        strong = self.strong(labels)
        return self.between([-1 if at < 0 else strong[at] for at in labels])

    def between(self, labels: Sequence[int]) -> Cut:
        """The cut of the edges between what has different labels, by place."""
        return Cut(tuple(labels[a] != labels[b] for a, b in self.pairs))


@lru_cache(maxsize=64)
def edges_of(program: TensorGraph) -> Edges:
    """Raises: TensorError as `Edges`."""
    return Edges(program)


def _firsts(count: int, pairs: Iterable[tuple[int, int]]) -> list[int]:
    """By place, the first of those that pairs join it to. (Annealing asks for each cut it looks at,
    of some dozen edges mostly: scipy takes longer to see that they are a graph.)"""
    above = list(range(count))

    def first(place: int) -> int:
        while above[place] != place:
            above[place] = place = above[above[place]]
        return place

    for one, other in pairs:
        a, b = first(one), first(other)
        above[max(a, b)] = min(a, b)
    return [first(place) for place in range(count)]


#: Above so many positions on both sides, padding no longer matters.
_MOST_COUNTED = 1 << 16


@dataclass(frozen=True, slots=True)
class ConvolutionLabels:
    """`b01f_01io->b01f`: which dimension of the input, the weights and the result is what. The
    spatial ones are in the order of the window."""

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
        """Raises: TensorError where the labels are none, or not those of the window."""
        text = str(operation.attributes.get("labels", ""))
        given, _, out = text.partition("->")
        lhs, _, weights = given.partition("_")
        rank = len(operation.dims("size"))
        digits = tuple(str(at) for at in range(rank))
        wanted = ((lhs, "bf"), (weights, "io"), (out, "bf"))
        if rank > 8 or any(sorted(part) != sorted((*digits, *ends)) for part, ends in wanted):
            raise TensorError(f"a convolution with the labels {text[:60]!r} is not known")
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
    """Of a window over dimensions of these sizes, with so many positions of the result in each: the
    pairs of a position of the result and one of the window that meet an element, not padding and
    not a hole of a dilation."""
    parts = [operation.dims(n) for n in ("size", "stride", "low", "lhs_dilate", "rhs_dilate")]
    if any(len(part) != len(sizes) for part in parts):
        raise TensorError("the window has not as many dimensions as what it goes over")
    by_dimension = zip(sizes, outs, *parts, strict=True)
    return math.prod(meeting(*one) for one in by_dimension)


def meeting(
    size: int, out: int, window: int, stride: int, low: int, lhs_dilate: int, rhs_dilate: int
) -> int:
    """As `spatial_meeting`, of one dimension: pairs (o, k) with o below `out` and k below `window`
    for which o * stride + k * rhs_dilate - low is a multiple of `lhs_dilate` and, divided by it, a
    place below `size`."""
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
    """How many of the `count` numbers from `start` by `step` are multiples from 0 to `last`."""
    lowest = max(0, -(start // step))
    highest = min(count - 1, (last - start) // step)
    common = math.gcd(step, of)
    if start % common or highest < lowest:
        return 0
    period = of // common
    first = -start // common * pow(step // common, -1, period) % period if period > 1 else 0
    lowest += (first - lowest) % period
    return 0 if lowest > highest else (highest - lowest) // period + 1

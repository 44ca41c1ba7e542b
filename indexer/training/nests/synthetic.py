"""Random loop nests to train on, of the kinds of "Performance Embeddings" (Section 3.3: maps,
reductions, stencils, boolean masks), and of those that dense and sparse programs add to them.
"""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import numpy as np

from embeddb.nests.nest import Nest
from indexer.training.nests.draws import (
    ArrayRef,
    At,
    Draft,
    Family,
    Value,
    chance,
    expression,
    order,
    pick,
    size,
    split,
    total,
)

#: Products of tensors, letters of the result first: how the letters of each operand are ordered
#: decides which loop walks along its rows.
_PRODUCTS = (
    "ij=ik*kj", "ij=ki*kj", "ij=ik*jk", "ij=ki*jk", "ji=ik*kj", "i=ij*j", "i=ji*j", "bij=bik*bkj",
    "bij=bik*bjk", "bij=ik*bkj", "ijk=ijl*lk", "ijk=il*ljk", "ij=ikl*klj", "ij=ikl*lkj",
    "ijkl=ij*kl", "ij=i*j", "abij=abik*abkj", "ij=ikl*jkl", "ijk=iljm*lmk",
)  # fmt: skip


def elementwise(draft: Draft, rng: np.random.Generator, points: int) -> None:
    """Element-wise function of one to four operands, some constant along a few loops."""
    rank = int(rng.integers(1, 5))
    sizes = split(rng, points, rank)
    loops = draft.loops(sizes, order(rng, rank, rank))
    result = draft.array(*sizes, fill="zero")[loops]
    terms = [_operand(draft, rng, sizes, loops) for _ in range(rng.integers(1, 5))]
    if chance(rng, 0.15):
        terms.append(result)
    draft.let(result, "=", expression(rng, terms))


def _operand(draft: Draft, rng: np.random.Generator, sizes: list[int], loops: list[At]) -> Value:
    places = list(range(len(sizes)))
    if chance(rng, 0.2) and len(places) > 1:
        places = sorted(rng.permutation(places)[: rng.integers(1, len(places))].tolist())
    elif chance(rng, 0.3):
        places = rng.permutation(places).tolist()
    stride = 2 if chance(rng, 0.1) else 1
    shape = [sizes[at] for at in places]
    shape[-1] *= stride
    return draft.array(*shape)[[*(loops[at] for at in places[:-1]), loops[places[-1]] * stride]]


def fused(draft: Draft, rng: np.random.Generator, points: int) -> None:
    """Two to four statements, of which later ones read the results of earlier ones."""
    rank = int(rng.integers(1, 4))
    sizes = split(rng, points, rank)
    loops = draft.loops(sizes, order(rng, rank, rank))
    shared = [_operand(draft, rng, sizes, loops) for _ in range(rng.integers(1, 4))]
    for _ in range(rng.integers(2, 5)):
        result = draft.array(*sizes, fill="zero")[loops]
        terms = [pick(rng, shared) for _ in range(rng.integers(1, 4))]
        draft.let(result, "=", expression(rng, terms))
        shared.append(result)


def reduction(draft: Draft, rng: np.random.Generator, points: int) -> None:
    """Reduction over any of the dimensions, or all of them."""
    rank = int(rng.integers(1, 5))
    outer = int(rng.integers(0, rank))
    sizes = split(rng, points, rank)
    loops = draft.loops(sizes, order(rng, outer, rank))
    result = draft.array(*sizes[:outer] or [1], fill="zero")[loops[:outer] or 0]
    value = _operand(draft, rng, sizes, loops)
    if chance(rng, 0.4):
        value = expression(rng, [value, _operand(draft, rng, sizes, loops)])
    draft.let(result, pick(rng, ("+=", "+=", "+=", "max=", "min=")), value)


def stencil(draft: Draft, rng: np.random.Generator, points: int) -> None:
    """A star or a box of radius 1 to 4, with the same weights everywhere or a field of them."""
    rank = int(rng.integers(1, 4))
    radius = int(rng.integers(1, 5))
    sizes = [n + 2 * radius for n in split(rng, points, rank)]
    at = [draft.loop(radius, n - radius) for n in sizes]
    before, after = draft.array(*sizes), draft.array(*sizes, fill="zero")
    if chance(rng, 0.5) and (2 * radius + 1) ** rank <= 50:
        steps = list(product(range(-radius, radius + 1), repeat=rank))
    else:
        alone = [(d, r) for d in range(rank) for r in range(-radius, radius + 1) if r]
        steps = [(0,) * rank, *(tuple(r if d == e else 0 for e in range(rank)) for d, r in alone)]
    terms = [before[_moved(at, step)] for step in steps]
    if chance(rng, 0.5):
        terms = [term * round(float(rng.uniform(0.05, 0.5)), 3) for term in terms]
    value = total(terms) * (1 / len(terms))
    if chance(rng, 0.3):
        value = value * draft.array(*sizes)[at]
    draft.let(after[at], "=", value)


def _moved(at: list[At], by: tuple[int, ...]) -> list[At]:
    return [one + step for one, step in zip(at, by, strict=True)]


def convolution(draft: Draft, rng: np.random.Generator, points: int) -> None:
    """Convolution with a small window in one or two dimensions, often over channels."""
    rank, wide = int(rng.integers(1, 3)), int(rng.integers(2, 8))
    channels = [size(rng, 2, 24), size(rng, 2, 24)] if chance(rng, 0.5) else []
    stride = 2 if chance(rng, 0.2) else 1
    places = points / wide**rank / np.prod(channels or [1])
    field = split(rng, max(float(places), 16.0), rank)
    window = [wide] * rank
    out, inner = channels[:1], channels[1:]
    outer = len(out) + rank
    sizes = [*out, *field, *inner, *window]
    loops = draft.loops(sizes, order(rng, outer, len(sizes)))
    o, at, c, w = loops[: len(out)], loops[len(out) : outer], loops[outer:-rank], loops[-rank:]
    shape = [stride * (n - 1) + wide for n in field]
    result = draft.array(*out, *field, fill="zero")[[*o, *at]]
    reads = [x * stride + y for x, y in zip(at, w, strict=True)]
    weight = draft.array(*out, *inner, *window)[[*o, *c, *w]]
    draft.let(result, "+=", draft.array(*inner, *shape)[[*c, *reads]] * weight)


def contraction(draft: Draft, rng: np.random.Generator, points: int) -> None:
    """A product of two tensors, summed over the letters that the result lacks."""
    result, one, other = _tensors(draft, rng, points)
    draft.let(result, "+=", one * other)


def min_plus(draft: Draft, rng: np.random.Generator, points: int) -> None:
    """A contraction in another semiring, as for shortest or widest paths."""
    result, one, other = _tensors(draft, rng, points)
    combine, op = pick(rng, (("min=", "+"), ("max=", "+"), ("max=", "*"), ("max=", "min")))
    draft.let(result, combine, one.call(op, other))


def _tensors(draft: Draft, rng: np.random.Generator, points: int) -> tuple[Value, Value, Value]:
    result, one, other = pick(rng, _PRODUCTS).replace("*", "=").split("=")
    result_letters = sorted(result)
    letters = [*result_letters, *sorted({*one, *other} - {*result_letters})]
    sizes = dict(zip(letters, split(rng, points, len(letters)), strict=True))
    drawn_loops = draft.loops(list(sizes.values()), order(rng, len(result_letters), len(letters)))
    loops = dict(zip(letters, drawn_loops, strict=True))

    def element(array: str, fill: str) -> Value:
        operand = draft.array(*(sizes[letter] for letter in array), fill=fill)
        return operand[[loops[letter] for letter in array]]

    return element(result, "zero"), element(one, "uniform"), element(other, "uniform")


def triangular(draft: Draft, rng: np.random.Generator, points: int) -> None:
    """Nest in which one loop ends, or begins, at the index of an outer one."""
    inner = split(rng, points ** (1 / 3), 1) if chance(rng, 0.6) else []
    n = split(rng, (2 * points / np.prod(inner or [1])) ** 0.5, 1)[0] + 2
    i = draft.loop(0, n)
    j = draft.loop(0, i + 1) if chance(rng, 0.6) else draft.loop(i, n)
    square = draft.array(n, n)
    if inner:
        k = draft.loop(0, *inner)
        rows = draft.array(n, *inner)
        if chance(rng, 0.5):
            draft.let(draft.array(n, n, fill="zero")[i, j], "+=", rows[i, k] * rows[j, k])
        else:
            draft.let(draft.array(n, *inner, fill="zero")[i, k], "+=", square[i, j] * rows[j, k])
    elif chance(rng, 0.5):
        value = expression(rng, [square[i, j], draft.array(n, n)[j, i]])
        draft.let(draft.array(n, n, fill="zero")[i, j], "=", value)
    else:
        draft.let(draft.array(n, fill="zero")[i], "+=", square[i, j] * draft.array(n)[j])


def pairwise(draft: Draft, rng: np.random.Generator, points: int) -> None:
    """Every point against every other: forces, kernels, distances."""
    n, m = split(rng, points, 2)
    i, j = draft.loops([n, m], order(rng, 1, 2))
    axes = int(rng.integers(1, 4))
    apart = []
    for _ in range(axes):
        here, there = draft.array(n), draft.array(m)
        apart.append(there[j] - here[i])
    squared = total([d * d for d in apart])
    if chance(rng, 0.4):
        value = (squared + 1e-3).call(pick(rng, ("sqrt", "log", "neg")))
        draft.let(draft.array(n, m, fill="zero")[i, j], "=", value)
        return
    near = (squared * -1.0).call("exp")
    for d in apart:
        force = d * near if chance(rng, 0.5) else d / (squared + 0.01).call("sqrt")
        draft.let(draft.array(n, fill="zero")[i], "+=", force)


def recurrence(draft: Draft, rng: np.random.Generator, points: int) -> None:
    """One loop reads the result of its last iteration; the others do not."""
    rank = int(rng.integers(2, 4))
    sizes = split(rng, points, rank)
    along = int(rng.integers(rank)) if chance(rng, 0.3) else int(rng.integers(1, rank))
    reach = int(rng.integers(1, 3))
    skipped = [reach if d == along else 0 for d in range(rank)]
    shape = [n + skip for n, skip in zip(sizes, skipped, strict=True)]
    at = [draft.loop(skip, n) for skip, n in zip(skipped, shape, strict=True)]
    state = draft.array(*shape)
    before = _moved(at, tuple(-skip for skip in skipped))
    value = state[before] * 0.5 + draft.array(*shape)[at]
    draft.let(state[at], "=", value.call("max", state[at]) if chance(rng, 0.3) else value)


def mask(draft: Draft, rng: np.random.Generator, points: int) -> None:
    """A statement under a condition: a mask of 0 and 1, or a comparison."""
    rank = int(rng.integers(1, 4))
    sizes = split(rng, points, rank)
    outer = rank if chance(rng, 0.7) else int(rng.integers(rank))
    at = draft.loops(sizes, order(rng, outer, rank))
    result = draft.array(*sizes[:outer] or [1], fill="zero")[at[:outer] or 0]
    terms = [draft.array(*sizes)[at] for _ in range(rng.integers(1, 4))]
    depth = rank if chance(rng, 0.7) else 1
    if chance(rng, 0.5):
        where = draft.array(*sizes[:depth], fill=f"below:{pick(rng, (2, 2, 3, 8))}")[at[:depth]]
    else:
        where = draft.array(*sizes[:depth])[at[:depth]] < round(float(rng.uniform(0.05, 0.95)), 2)
    draft.let(result, "=" if outer == rank else "+=", expression(rng, terms), where)


def gather(draft: Draft, rng: np.random.Generator, points: int) -> None:
    """Elements or rows at indices in an array: its own, a permutation, or any."""
    n, *row = split(rng, points, int(rng.integers(1, 3)))
    i, *at = draft.loops([n, *row])
    places, source = _places(draft, rng, n)
    value = draft.array(source, *row)[[places[i], *at]]
    if chance(rng, 0.4):
        value = value * draft.array(n, *row)[[i, *at]]
    draft.let(draft.array(n, *row, fill="zero")[[i, *at]], "=", value)


def scatter(draft: Draft, rng: np.random.Generator, points: int) -> None:
    """Writes or additions at indices in an array."""
    n, *row = split(rng, points, int(rng.integers(1, 3)))
    i, *at = draft.loops([n, *row])
    places, target = _places(draft, rng, n)
    value = draft.array(n, *row)[[i, *at]]
    draft.let(draft.array(target, *row, fill="zero")[[places[i], *at]], "+=", value * 0.5)


def _places(draft: Draft, rng: np.random.Generator, n: int) -> tuple[ArrayRef, int]:
    """`n` indices, and the number of elements that they may name."""
    kind = pick(rng, ("range", "permutation", "permutation", "below"))
    if kind != "below":
        return draft.array(n, fill=kind), n
    among = size(rng, max(n / 16, 2), 2 * n)
    return draft.array(n, fill=f"below:{among}"), among


def histogram(draft: Draft, rng: np.random.Generator, points: int) -> None:
    """Counts or sums of weights by bin, over one dimension or two."""
    sizes = split(rng, points, int(rng.integers(1, 3)))
    at = draft.loops(sizes)
    bins = size(rng, 8, min(points, 1 << 18))
    bin_of = draft.array(*sizes, fill=f"below:{bins}")[at]
    count = draft.array(bins, fill="zero")[bin_of]
    if chance(rng, 0.5):
        draft.let(count, "+=", draft.array(*sizes)[at])
    else:
        draft.let(count, pick(rng, ("max=", "+=")), draft.array(sizes[0])[at[0]] + 1.0)


class _Sparse(NamedTuple):
    """A matrix in compressed rows: where each begins, and the column of every entry."""

    rows: int
    columns: int
    entries: int
    begins: ArrayRef
    column: ArrayRef


def _sparse(draft: Draft, rng: np.random.Generator, entries: int) -> _Sparse:
    rows = size(rng, max(entries / 200, 4), max(entries / 3, 8))
    columns = rows if chance(rng, 0.6) else size(rng, max(rows / 8, 4), rows * 8)
    uneven = pick(rng, ("0", "1", "1", "2", "4", "10"))
    begins = draft.array(rows + 1, fill=f"offsets:{entries}:{uneven}")
    return _Sparse(rows, columns, entries, begins, draft.array(entries, fill=f"below:{columns}"))


def spmv(draft: Draft, rng: np.random.Generator, points: int) -> None:
    """y = A x with a sparse A; or the largest product of a row, or the row's sum."""
    a = _sparse(draft, rng, points)
    i = draft.loop(0, a.rows)
    k = draft.loop(a.begins[i], a.begins[i + 1])
    value = draft.array(a.entries)[k]
    if chance(rng, 0.8):
        value = value * draft.array(a.columns)[a.column[k]]
    draft.let(draft.array(a.rows, fill="zero")[i], pick(rng, ("+=", "+=", "max=")), value)


def spmm(draft: Draft, rng: np.random.Generator, points: int) -> None:
    """C = A B with a sparse A and a dense B; B's columns innermost, or outside the entries."""
    width = size(rng, 4, 256)
    a = _sparse(draft, rng, max(points // width, 64))
    i = draft.loop(0, a.rows)
    if chance(rng, 0.75):
        k = draft.loop(a.begins[i], a.begins[i + 1])
        j = draft.loop(0, width)
    else:
        j = draft.loop(0, width)
        k = draft.loop(a.begins[i], a.begins[i + 1])
    value = draft.array(a.entries)[k] * draft.array(a.columns, width)[a.column[k], j]
    draft.let(draft.array(a.rows, width, fill="zero")[i, j], "+=", value)


def sddmm(draft: Draft, rng: np.random.Generator, points: int) -> None:
    """At the entries of a sparse A, the product of two dense matrices."""
    width = size(rng, 4, 256)
    a = _sparse(draft, rng, max(points // width, 64))
    i = draft.loop(0, a.rows)
    k = draft.loop(a.begins[i], a.begins[i + 1])
    j = draft.loop(0, width)
    value = draft.array(a.rows, width)[i, j] * draft.array(a.columns, width)[a.column[k], j]
    if chance(rng, 0.4):
        value = value * draft.array(a.entries)[k]
    draft.let(draft.array(a.entries, fill="zero")[k], "+=", value)


#: Arrays from a part of a first cache to four times a large last one.
LEAST_BYTES, MOST_BYTES = 1 << 13, 1 << 27
LEAST_POINTS, MOST_POINTS = 1 << 11, 20_000_000

_FAMILIES: dict[str, Family] = {
    "map": elementwise,
    "fused": fused,
    "reduce": reduction,
    "stencil": stencil,
    "convolution": convolution,
    "contraction": contraction,
    "minplus": min_plus,
    "triangular": triangular,
    "pairwise": pairwise,
    "recurrence": recurrence,
    "mask": mask,
    "gather": gather,
    "scatter": scatter,
    "histogram": histogram,
    "spmv": spmv,
    "spmm": spmm,
    "sddmm": sddmm,
}


def families() -> tuple[str, ...]:
    """Names of the families. Seed s is of family s modulo their number."""
    return tuple(_FAMILIES)


def synthetic(seed: int) -> Nest:
    """A nest that is a function of the seed alone, of the group `synthetic/FAMILY`: at most
    `MOST_POINTS` iterations of the body, at most `MOST_BYTES` of arrays. Raises: ValueError for a
    negative seed."""
    rng = np.random.default_rng([seed, len(_FAMILIES)])
    family = families()[seed % len(_FAMILIES)]
    while True:
        points = int(np.exp(rng.uniform(np.log(LEAST_POINTS), np.log(MOST_POINTS))))
        draft = Draft(("f32", "f64")[int(rng.integers(2))])
        _FAMILIES[family](draft, rng, points)
        nest = draft.nest(name=f"synthetic_{family}_{seed}", group=f"synthetic/{family}")
        array_bytes = sum(array.bytes for array in nest.arrays)
        if nest.points <= MOST_POINTS and LEAST_BYTES <= array_bytes <= MOST_BYTES:
            return nest

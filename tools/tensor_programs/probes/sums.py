"""Reductions: over rows, columns, windows, and normalisations by them."""

from __future__ import annotations

from collections.abc import Mapping

from tools.tensor_programs.probes.draft import Case, Draft
from tools.tensor_programs.probes.loops import chained

_OVER = {
    1: ((0,),),
    2: ((1,), (1,), (0,), (0, 1)),
    3: ((2,), (2,), (0, 1), (1,), (0,), (0, 2)),
    4: ((3,), (0, 1, 2), (0, 1, 2), (1, 2), (2,), (1,)),
}


def _rank(draft: Draft) -> int:
    return draft.one(1, 2, 2, 2, 3, 3, 4)


def _plain(draft: Draft) -> int:
    rank = _rank(draft)
    data = draft.given(*draft.dims(rank, 4e4, 3e6))
    return draft.sum(data, draft.one(*_OVER[rank]), draft.one("add", "add", "maximum"))


def _computed(draft: Draft) -> int:
    rank = _rank(draft)
    data = chained(draft, draft.given(*draft.dims(rank, 2e4, 8e5)), 4)
    return draft.sum(data, draft.one(*_OVER[rank]), draft.one("add", "add", "maximum"))


def _narrow(draft: Draft) -> int:
    """Few terms in each sum, or few sums."""
    minor = draft.one(1, 2, 3, 4, 6, 8, 12)
    data = draft.given(*draft.dims(3, 5e4, 1e6, minor=minor))
    over = draft.one((2,), (0, 1), (1,), (0,))
    return chained(draft, draft.sum(data, over), 2)


def _narrow_computed(draft: Draft) -> int:
    """Few terms in each sum, computed for it."""
    rank = draft.one(2, 3, 3)
    dims = draft.dims(rank, 2e4, 1e6, minor=draft.size(1, 24))
    return draft.sum(chained(draft, draft.given(*dims), 3), (rank - 1,))


def _softmax(draft: Draft) -> int:
    rank = draft.one(2, 3, 4)
    dims = draft.dims(rank, 5e3, 5e5)
    rows = tuple(range(rank - 1))
    data = draft.given(*dims)
    if draft.chance(0.4):
        data = draft.each("multiply", data, draft.wide(draft.number("0.125"), dims))
    top = draft.wide(draft.sum(data, (rank - 1,), "maximum"), dims, rows)
    each = draft.each("exponential", draft.each("subtract", data, top))
    return draft.each("divide", each, draft.wide(draft.sum(each, (rank - 1,)), dims, rows))


def _norm(draft: Draft) -> int:
    rank = draft.one(2, 3)
    dims = draft.dims(rank, 1e4, 1e6)
    rows, last = tuple(range(rank - 1)), (rank - 1,)
    data = draft.given(*dims)
    share = draft.number("0.001")

    def mean(of: int) -> int:
        total = draft.sum(of, last)
        return draft.each("multiply", total, draft.wide(share, draft.shape(total).dims))

    away = draft.each("subtract", data, draft.wide(mean(data), dims, rows))
    spread = mean(draft.each("multiply", away, away))
    least = draft.wide(draft.number("1e-05"), draft.shape(spread).dims)
    scale = draft.each("rsqrt", draft.each("add", spread, least))
    scaled = draft.each("multiply", away, draft.wide(scale, dims, rows))
    return draft.each("multiply", scaled, draft.wide(draft.given(dims[-1]), dims, last))


def _norm_of_features(draft: Draft) -> int:
    """Sums over all but the features, subtracted from all elements."""
    dims = draft.dims(4, 1e4, 1e6, minor=draft.size(3, 256))
    data = draft.given(*dims)
    total = draft.sum(data, (0, 1, 2))
    return draft.each("subtract", data, draft.wide(total, dims, (3,)))


def _pooled(draft: Draft) -> int:
    batch, channels = draft.size(1, 8), draft.size(3, 256)
    side, window = draft.size(8, 64), draft.one(2, 2, 3, 3, 5, 7)
    stride = draft.one(1, 2, 2, window)
    low = draft.one(0, 0, window // 2)
    out = (side + 2 * low - window) // stride + 1
    combine = draft.one("maximum", "add")
    data = draft.given(batch, side, side, channels)
    start = draft.number("-inf" if combine == "maximum" else "0")
    return draft.add(
        "reduce-window",
        (batch, out, out, channels),
        data,
        start,
        combine=combine,
        size=(1, window, window, 1),
        stride=(1, stride, stride, 1),
        low=(0, low, low, 0),
        high=(0, low, low, 0),
        lhs_dilate=(1,) * 4,
        rhs_dilate=(1,) * 4,
    )


def _unpooled(draft: Draft) -> int:
    batch, side, channels = draft.size(1, 4), 2 * draft.size(2, 16), draft.size(4, 128)
    data = draft.given(batch, side, side, channels)
    source = draft.given(batch, side // 2, side // 2, channels)
    return draft.add(
        "select-and-scatter",
        (batch, side, side, channels),
        data,
        source,
        draft.number("0"),
        combine="add",
        select="other",
        select_region="parameter.f32()0 parameter.f32()1 compare.pred(0,1)GE => 2",
        size=(1, 2, 2, 1),
        stride=(1, 2, 2, 1),
        low=(0,) * 4,
        high=(0,) * 4,
        lhs_dilate=(1,) * 4,
        rhs_dilate=(1,) * 4,
    )


CASES: Mapping[str, tuple[int, Case]] = {
    "plain": (350, _plain),
    "computed": (350, _computed),
    "narrow": (200, _narrow),
    "narrow_computed": (200, _narrow_computed),
    "softmax": (180, _softmax),
    "norm": (180, _norm),
    "features": (120, _norm_of_features),
    "pooled": (120, _pooled),
    "unpooled": (30, _unpooled),
}

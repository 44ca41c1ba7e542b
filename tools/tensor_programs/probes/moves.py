"""Data movement: transposes, slices, concatenations, padding, gathers and scatters."""

from __future__ import annotations

from collections.abc import Mapping

from tools.tensor_programs.probes.draft import Case, Dims, Draft
from tools.tensor_programs.probes.loops import chained

_ORDERS: tuple[Dims, ...] = (
    *((1, 0), (1, 0), (0, 2, 1), (2, 0, 1), (1, 0, 2), (2, 1, 0), (0, 3, 1, 2), (0, 3, 1, 2)),
    *((0, 2, 1, 3), (0, 2, 3, 1), (3, 0, 1, 2), (0, 1, 3, 2), (0, 1, 2, 4, 3), (0, 1, 3, 2, 4)),
)


def _transposed(draft: Draft) -> int:
    order = draft.one(*_ORDERS)
    minor = draft.one(0, 0, 0, 1, 2, 3, 4, 8, 16)
    dims = draft.dims(len(order), 2e4, 1e6, minor=minor)
    data = draft.given(*dims)
    if draft.chance(0.3):
        data = chained(draft, data, 2)
    return draft.add("transpose", tuple(dims[d] for d in order), data, dimensions=order)


def _transposed_inside(draft: Draft) -> int:
    """Transposes with short inner dimensions: tiled pictures, heads of attention."""
    few, other, outer = draft.one(1, 2, 3, 4, 8), draft.one(2, 3, 4, 8, 16), draft.size(1, 4)
    side = draft.size(8, max(9, (6e5 / few / other / outer) ** 0.5))
    dims = (outer, side, side, other, few)
    order = draft.one((0, 1, 3, 2, 4), (0, 1, 3, 2, 4), (0, 1, 4, 2, 3), (0, 3, 1, 2, 4))
    data = draft.given(*dims)
    if draft.chance(0.3):
        data = chained(draft, data, 2)
    return draft.add("transpose", tuple(dims[d] for d in order), data, dimensions=order)


def _sliced(draft: Draft) -> int:
    dims = draft.dims(draft.one(2, 3, 4), 1e5, 3e6)
    start, limit, stride = [], [], []
    for dim in dims:
        first = draft.size(1, dim) - 1 if draft.chance(0.4) else 0
        start.append(first)
        limit.append(first + draft.size(1 + (dim - first) // 2, dim - first))
        stride.append(2 if draft.chance(0.1) else 1)
    sides = zip(start, limit, stride, strict=True)
    out = tuple(-(-(last - first) // step) for first, last, step in sides)
    bounds = {"start": tuple(start), "limit": tuple(limit), "stride": tuple(stride)}
    part = draft.add("slice", out, draft.given(*dims), **bounds)
    return chained(draft, part, 2)


def _padded(draft: Draft) -> int:
    dims = draft.dims(draft.one(2, 3, 4), 2e4, 8e5)
    low, high, interior = (
        tuple(draft.size(1, 8) - 1 if draft.chance(share) else 0 for _ in dims)
        for share in (0.3, 0.3, 0.05)
    )
    out = tuple(
        dim + a + b + (dim - 1) * c for dim, a, b, c in zip(dims, low, high, interior, strict=True)
    )
    data, zero = draft.given(*dims), draft.number("0")
    padded = draft.add("pad", out, data, zero, low=low, high=high, interior=interior)
    return chained(draft, padded, 2)


def _joined(draft: Draft) -> int:
    rank = draft.one(2, 3, 4)
    at = int(draft.size(1, rank)) - 1
    count = draft.one(2, 2, 3, 4, 8)
    dims = list(draft.dims(rank, 3e4, 8e5))
    if draft.chance(0.3):
        dims[at] = 1
    parts = [draft.given(*dims) for _ in range(count)]
    if draft.chance(0.3):
        parts[0] = chained(draft, parts[0], 1)
    dims[at] *= count
    return draft.add("concatenate", tuple(dims), *parts, dimension=at)


def _reversed(draft: Draft) -> int:
    rank = draft.one(2, 3, 4)
    data = draft.given(*draft.dims(rank, 5e4, 1e6))
    return draft.each("reverse", data, dimensions=draft.one((0,), (0, 1), (rank - 1,)))


def _picked(draft: Draft) -> int:
    """Rows of a table, one for each of many indices."""
    table, width = draft.size(64, 8192), draft.one(1, draft.size(2, 16), draft.size(16, 256))
    count = draft.size(1024, max(1025, min(131072, 3e6 / width)))
    numbers = draft.given(count, 1, dtype="s32")
    raw = (
        "collapsed_slice_dims={0}, index_vector_dim=1, offset_dims={1}, "
        f"slice_sizes={{1,{width}}}, start_index_map={{0}}"
    )
    rows = draft.given(table, width)
    return draft.add("gather", (count, width), rows, numbers, raw=raw)


def _picked_sums(draft: Draft) -> int:
    """Sums of some rows each: words of a sentence, neighbours of a node."""
    rows = _picked(draft)
    count, width = draft.shape(rows).dims
    each = draft.one(2, 4, 6, 8, 16)
    rows = draft.add("slice", (count // each * each, width), rows, **_first(count, width, each))
    parts = draft.add("reshape", (count // each, each, width), rows)
    if draft.chance(0.4):
        parts = draft.each("multiply", parts, draft.given(*draft.shape(parts).dims))
    return draft.sum(parts, (1,))


def _first(count: int, width: int, each: int) -> dict[str, Dims]:
    """Slice bounds of as many rows as make whole parts."""
    return {"start": (0, 0), "limit": (count // each * each, width), "stride": (1, 1)}


def _put(draft: Draft) -> int:
    table, width = draft.size(64, 8192), draft.one(1, draft.size(2, 16), draft.size(16, 256))
    count = draft.size(128, max(129, min(16384, 1e6 / width)))
    raw = (
        "index_vector_dim=1, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, "
        "update_window_dims={1}"
    )
    target, numbers = draft.given(table, width), draft.given(count, 1, dtype="s32")
    rows = draft.given(count, width)
    return draft.add("scatter", (table, width), target, numbers, rows, combine="add", raw=raw)


def _at_places(draft: Draft) -> int:
    """A slice at a computed place: read, or written."""
    width, part = draft.size(64, 1024), draft.one(4, 16, 64, 256)
    rows = draft.size(part + 1, 4096)
    data, where = draft.given(rows, width), [draft.given(dtype="s32") for _ in range(2)]
    if draft.chance(0.5):
        dims = (part, width)
        return chained(draft, draft.add("dynamic-slice", dims, data, *where, sizes=dims), 1)
    new = draft.given(part, width)
    return draft.add("dynamic-update-slice", (rows, width), data, new, *where)


def _reshaped(draft: Draft) -> int:
    dims = draft.dims(3, 3e4, 1e6)
    flat = draft.add("reshape", (dims[0] * dims[1], dims[2]), draft.given(*dims))
    return chained(draft, flat, 3)


def _counted(draft: Draft) -> int:
    dims = draft.dims(draft.one(1, 2, 3), 3e4, 1e6)
    numbers = draft.add("iota", dims, dtype="s32", dimension=len(dims) - 1)
    return chained(draft, draft.add("convert", dims, numbers, dtype="f32"), 2)


CASES: Mapping[str, tuple[int, Case]] = {
    "transposed": (500, _transposed),
    "inside": (200, _transposed_inside),
    "sliced": (150, _sliced),
    "padded": (150, _padded),
    "joined": (200, _joined),
    "reversed": (50, _reversed),
    "picked": (150, _picked),
    "picked_sums": (80, _picked_sums),
    "put": (60, _put),
    "places": (50, _at_places),
    "reshaped": (80, _reshaped),
    "counted": (30, _counted),
}

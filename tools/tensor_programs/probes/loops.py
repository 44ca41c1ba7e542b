"""Element-wise probes: arithmetic, functions, comparisons, and broadcasts on the way."""

from __future__ import annotations

from collections.abc import Mapping

from tools.tensor_programs.probes.draft import Case, Dims, Draft

_PAIRS = ("add", "subtract", "multiply", "maximum", "minimum", "divide")
_SINGLE = ("negate", "abs", "sign", "floor")
_USUAL = ("exponential", "tanh", "rsqrt", "sqrt", "log", "logistic")
_RARE = (
    *("sine", "cosine", "exponential-minus-one", "log-plus-one", "cbrt", "atan2", "power", "erf"),
    *("tan", "remainder"),
)
_BOTH = frozenset(("atan2", "power", "remainder"))


def _function(draft: Draft, at: int, names: tuple[str, ...]) -> int:
    name = draft.one(*names)
    if name in _BOTH:
        return draft.each(name, at, draft.given(*draft.shape(at).dims))
    if name in ("rsqrt", "sqrt", "log") and draft.chance(0.6):  # of what is positive, mostly
        at = draft.each("add", draft.each("multiply", at, at), _number(draft, at, "0.001"))
    return draft.each(name, at)


def _number(draft: Draft, at: int, value: str) -> int:
    return draft.wide(draft.number(value), draft.shape(at).dims)


def _other(draft: Draft, dims: Dims) -> int:
    """An array, a number, or a row or a column of numbers that are repeated."""
    kind = draft.one("array", "number", "row", "column", "part")
    if kind == "array" or len(dims) < 2:
        return draft.given(*dims)
    if kind == "number":
        return draft.wide(draft.number(draft.one("0.5", "2", "-1")), dims)
    last = len(dims) - 1
    own = {"row": (last,), "column": tuple(range(last)), "part": (0, last)}[kind]
    return draft.wide(draft.given(*(dims[d] for d in own)), dims, own)


def chained(draft: Draft, at: int, most: int) -> int:
    """Append at most so many consecutive operations."""
    for _ in range(draft.size(1, most)):
        kind = draft.one("pair", "pair", "pair", "single", "function", "choice", "same")
        if kind == "pair":
            at = draft.each(draft.one(*_PAIRS), at, _other(draft, draft.shape(at).dims))
        elif kind == "single":
            at = draft.each(draft.one(*_SINGLE), at)
        elif kind == "function":
            at = _function(draft, at, _USUAL)
        elif kind == "choice":
            at = _chosen(draft, at)
        else:
            at = draft.each("multiply", at, at)
    return at


def followed(draft: Draft, at: int) -> int:
    """Sometimes add a bias row and a ReLU."""
    dims = draft.shape(at).dims
    if dims and draft.chance(0.4):
        row = draft.wide(draft.given(dims[-1]), dims, (len(dims) - 1,))
        at = draft.each("add", at, row)
    if draft.chance(0.3):
        at = draft.each("maximum", at, _number(draft, at, "0"))
    elif draft.chance(0.2):
        at = draft.each(draft.one("tanh", "logistic", "exponential"), at)
    return at


def _chosen(draft: Draft, at: int) -> int:
    dims = draft.shape(at).dims
    other = draft.wide(draft.number("0"), dims) if draft.chance(0.7) else draft.given(*dims)
    way = draft.one("GT", "LT", "GE", "EQ")
    larger = draft.add("compare", dims, at, other, dtype="pred", direction=way)
    return draft.add("select", dims, larger, at, other, dtype="f32")


def _plain(draft: Draft, least: float = 2e4, most: float = 2e6) -> int:
    return draft.given(*draft.dims(draft.one(1, 2, 2, 3, 4), least, most))


def _narrow(draft: Draft) -> int:
    dims = draft.dims(draft.one(2, 3, 4), 3e4, 8e5, minor=draft.one(1, 2, 3, 3, 4, 5, 6, 7, 9))
    return draft.given(*dims)


def _minor(draft: Draft) -> int:
    """Arrays whose minor dimension may be any small number: vectors are filled or not."""
    data = draft.given(*draft.dims(draft.one(2, 3, 4), 2e4, 5e5, minor=draft.size(1, 64)))
    dims = draft.shape(data).dims
    other = draft.given(*dims) if draft.chance(0.6) else _other(draft, dims)
    return chained(draft, draft.each(draft.one(*_PAIRS), data, other), 3)


def _waves(draft: Draft) -> int:
    """Functions of arguments beyond one period, which take a slower path."""
    data = _plain(draft, 1e4, 4e5)
    if draft.chance(0.4):
        data = draft.each("add", data, _other(draft, draft.shape(data).dims))
    scaled = draft.each("multiply", data, _number(draft, data, draft.one("1", "6", "30", "200")))
    return draft.each(draft.one("sine", "sine", "cosine"), scaled)


def _all_pairs(draft: Draft) -> int:
    """Every row with every other: differences of points, sums over them."""
    width = draft.one(1, 2, 3, 3, 4, draft.size(5, 64))
    rows = draft.size(32, max(33, (1e6 / width) ** 0.5))
    dims = (rows, rows, width)
    sides = [draft.wide(draft.given(rows, width), dims, own) for own in ((0, 2), (1, 2))]
    combined = chained(draft, draft.each(draft.one("subtract", "add", "multiply"), *sides), 2)
    return draft.sum(combined, (2,)) if draft.chance(0.4) else combined


def _masked(draft: Draft) -> int:
    dims = draft.dims(2, 3e4, 1e6)
    sides = [draft.add("iota", dims, dtype="s32", dimension=d) for d in (0, 1)]
    inside = draft.add("compare", dims, *sides, dtype="pred", direction="GE")
    none = draft.wide(draft.number("-1e+09"), dims)
    return draft.add("select", dims, inside, draft.given(*dims), none, dtype="f32")


def _converted(draft: Draft) -> int:
    dims = draft.dims(draft.one(1, 2, 3), 3e4, 1e6)
    whole = draft.given(*dims, dtype="s32")
    if draft.chance(0.5):
        return chained(draft, draft.add("convert", dims, whole, dtype="f32"), 2)
    real = draft.each("multiply", draft.given(*dims), draft.given(*dims))
    return draft.add("convert", dims, real, dtype=draft.one("s32", "f16", "bf16", "f64"))


def _repeated(draft: Draft) -> int:
    dims = draft.dims(draft.one(2, 3, 4), 3e4, 2e6)
    return draft.each(draft.one(*_PAIRS), _other(draft, dims), _other(draft, dims))


CASES: Mapping[str, tuple[int, Case]] = {
    "pair": (300, lambda d: d.each(d.one(*_PAIRS), one := _plain(d), _other(d, d.shape(one).dims))),
    "single": (80, lambda d: d.each(d.one(*_SINGLE), _plain(d))),
    "function": (350, lambda d: _function(d, _plain(d, 1e4, 1e6), _USUAL)),
    "rare": (250, lambda d: _function(d, _plain(d, 5e3, 2e5), _RARE)),
    "chain": (600, lambda d: chained(d, _plain(d, 1e4, 1e6), 8)),
    "narrow": (300, lambda d: chained(d, _narrow(d), 4)),
    "minor": (600, _minor),
    "waves": (100, _waves),
    "pairs": (150, _all_pairs),
    "masked": (30, _masked),
    "converted": (80, _converted),
    "repeated": (200, _repeated),
}

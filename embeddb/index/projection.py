"""The 2-D map of a partition: patterns that are near for the vote are near on the map.

Derived data: stored as a note, and computed again when the vectors change.
"""

from __future__ import annotations

import hashlib
import math
from contextlib import suppress

import msgspec
import numpy as np
from numpy.typing import NDArray

from embeddb.core.errors import StoreCorrupt, StoreError
from embeddb.index.answer_index import AnswerIndex
from embeddb.store import Store
from embeddb.store.tables import decoded

Floats = NDArray[np.float64]

#: Raised when the same vectors get other places.
_LAYOUT = 2
_COLUMNS = ("ids", "x", "y", "winners", "names", "groups")
#: Fewer points than that are on their principal components already; for more the pairwise
#: distances would take longer than a map is worth.
_FEWEST, _MOST = 4, 30_000
#: Edges a point starts, and pairwise distances computed at once (rows).
_NEIGHBOURS, _BLOCK = 15, 512
#: Steps of the refinement, the first's length (the last's is zero), others a point is pushed from
#: in a step, and how much pushing counts against pulling.
_STEPS, _STRIDE, _OTHERS, _PUSH = 500, 0.4, 10, 3.0
#: No single push is longer, and the first places spread so far (standard deviations).
_LONGEST, _SPREAD = 4.0, 5.0
#: The share of the points, along the longer axis, within whose places all of them start.
_MOST_OF_THEM = 0.9


class Projection(msgspec.Struct, frozen=True, kw_only=True):
    """Every indexed pattern of an op in a scope, in the order of `ids`.

    `x`, `y` lie in 0..1 with y upwards; distances are those of the metric as far as two dimensions
    can show them, so axes have no meaning. `winners` holds the canonical JSON of each pattern's
    fastest configuration ("" where nothing ran), `digest` that of the vectors laid out and how.
    """

    op: str
    scope: str
    featurizer: str
    generation: int
    ids: list[str]
    x: list[float]
    y: list[float]
    winners: list[str]
    names: list[str]
    groups: list[str]
    digest: str = ""


def projection_of(store: Store, partition: AnswerIndex, *, again: bool = False) -> Projection:
    """The stored map of a partition if it is current (and not `again`), else a new one, which is
    stored if possible. Places stay as long as the vectors are the same; the rest is updated."""
    key = f"atlas/{partition.op}/{partition.scope}"
    vectors = partition.metric.apply(partition.vectors)
    digest = _digest(partition, vectors)
    stored = None if again else _read(store.derived.get(key))
    if stored is not None and (stored.digest != digest or stored.ids != list(partition.ids)):
        stored = None
    if stored is not None and stored.generation == partition.generation:
        return stored
    if stored is None:
        places = layout(vectors)
        x, y = (np.round(places[:, axis].astype(float), 5).tolist() for axis in (0, 1))
    else:
        x, y = stored.x, stored.y
    infos = [store.pattern(pattern_id) for pattern_id in partition.ids]
    projection = Projection(
        op=str(partition.op),
        scope=partition.scope,
        featurizer=partition.featurizer,
        generation=partition.generation,
        ids=list(partition.ids),
        x=x,
        y=y,
        winners=_winners(partition),
        names=["" if info is None else info.name for info in infos],
        groups=["" if info is None else info.group for info in infos],
        digest=digest,
    )
    if store.keeps_derived:
        with suppress(StoreError):  # busy or full: it can be computed again
            store.derived.put(key, msgspec.json.encode(projection))
    return projection


def _read(raw: bytes | None) -> Projection | None:
    """The map in a note; None if it is missing, damaged or of another version."""
    try:
        stored = None if raw is None else decoded(raw, Projection, "a map")
    except StoreCorrupt:
        return None
    if stored is None or len({len(getattr(stored, name)) for name in _COLUMNS}) != 1:
        return None
    return stored if all(0.0 <= at <= 1.0 for at in (*stored.x, *stored.y)) else None


def _digest(partition: AnswerIndex, vectors: NDArray[np.float32]) -> str:
    h = hashlib.blake2b(f"{_LAYOUT}\0{partition.featurizer}\0".encode(), digest_size=16)
    h.update("\0".join(partition.ids).encode())
    h.update(vectors.tobytes())
    return h.hexdigest()


def _winners(partition: AnswerIndex) -> list[str]:
    evidence = partition.evidence
    columns = (evidence.winner(partition.row_of(pattern_id, "")) for pattern_id in partition.ids)
    return ["" if column is None else evidence.configs[column].json for column in columns]


def layout(vectors: NDArray[np.float32], *, seed: int = 0) -> NDArray[np.float32]:
    """float32[n,2] places in the unit square for float32[n,d], near ones near each other.

    Principal components, then refined: attraction along the edges of a weighted graph of nearest
    neighbours, repulsion from random others (McInnes, Healy and Melville 2018, UMAP), with the
    curve 1 / (1 + distance^2) (Tang et al. 2016, LargeVis). The same vectors and seed give the
    same places. A value that is not finite counts as its column's mean. Time grows with n^2 d for
    the neighbours and n for the rest.
    """
    x = _finite(vectors)
    places = _principal(x)
    if _FEWEST <= len(x) <= _MOST:
        places = _refined(_gathered(places), _graph(x), np.random.default_rng(seed))
    return _fitted(places)


def _finite(vectors: NDArray[np.float32]) -> Floats:
    """float64[n,d], centred, of largest magnitude one; values that are not finite become 0."""
    x = np.array(vectors, dtype=np.float64)
    finite = np.isfinite(x)
    counts = np.maximum(finite.sum(axis=0), 1)
    x -= np.where(finite, x, 0.0).sum(axis=0) / counts
    x[~finite] = 0.0
    largest = np.abs(x).max(initial=0.0)
    return x / largest if largest > 0 else x


def _principal(x: Floats) -> Floats:
    """float64[n,2]: the first two principal components, each with its heaviest loading positive."""
    n, d = x.shape
    if n < 2 or d < 1:
        return np.zeros((n, 2))
    _, axes = np.linalg.eigh(x.T @ x)
    axes = axes[:, ::-1][:, :2]
    heaviest = np.abs(axes).argmax(axis=0)
    axes = axes * np.where(axes[heaviest, np.arange(axes.shape[1])] < 0, -1.0, 1.0)
    places = np.zeros((n, 2))
    places[:, : axes.shape[1]] = x @ axes
    return places


def _gathered(places: Floats) -> Floats:
    """float64[n,2] with outliers moved to the border of the others: attraction fades with distance,
    so a few far points would stay far and leave all others a corner of the map."""
    reach = float(np.quantile(np.abs(places), _MOST_OF_THEM, axis=0).max())
    return places.clip(-reach, reach)


#: Undirected edges: int64[e] of one end and the other, and float64[e] weights in 0..1.
_Edges = tuple[NDArray[np.int64], NDArray[np.int64], Floats]


def _graph(x: Floats) -> _Edges:
    """UMAP's fuzzy neighbourhood of float64[n,d]: the nearest has weight one, the weights of each
    point sum to log2(k), and those of both directions are united (a + b - ab)."""
    from scipy.sparse import csr_array

    n, k = len(x), min(_NEIGHBOURS, len(x) - 1)
    who, far = _nearest(x, k)
    gap = far - far[:, :1]
    fade = _fades(gap, math.log2(k) if k > 1 else 1.0)
    weight = np.exp(-gap / np.maximum(fade, 1e-3 * far.mean() + 1e-12)[:, None])
    rows = np.repeat(np.arange(n), k)
    directed = csr_array((weight.ravel(), (rows, who.ravel())), shape=(n, n))
    reverse = directed.T.tocsr()
    both = (directed + reverse - directed * reverse).tocoo()
    one, other = both.coords
    half = one < other
    return one[half].astype(np.int64), other[half].astype(np.int64), both.data[half]


def _nearest(x: Floats, k: int) -> tuple[NDArray[np.int64], Floats]:
    """The k nearest others of each of float64[n,d], nearest first: int64[n,k], float64[n,k]."""
    small = x.astype(np.float32)
    n, squares = len(x), (small * small).sum(axis=1)
    who, far = np.empty((n, k), dtype=np.int64), np.empty((n, k))
    for start in range(0, n, _BLOCK):
        part = slice(start, start + _BLOCK)
        gaps = squares - 2.0 * (small[part] @ small.T)
        gaps[np.arange(len(gaps)), np.arange(start, start + len(gaps))] = np.inf
        close = np.argpartition(gaps, k - 1, axis=1)[:, :k]
        square = np.take_along_axis(gaps, close, 1) + squares[part, None]
        order = np.argsort(square, axis=1, kind="stable")
        who[part] = np.take_along_axis(close, order, 1)
        far[part] = np.sqrt(np.maximum(np.take_along_axis(square, order, 1), 0.0))
    return who, far


def _fades(gap: Floats, total: float) -> Floats:
    """float64[n] lengths s with sum(exp(-gap / s)) = total for each row of float64[n,k]."""
    n = len(gap)
    low, high, fade = np.zeros(n), np.full(n, np.inf), np.full(n, gap.mean() + 1e-12)
    for _ in range(40):
        over = np.exp(-gap / np.maximum(fade, 1e-300)[:, None]).sum(axis=1) > total
        high, low = np.where(over, fade, high), np.where(over, low, fade)
        fade = np.where(np.isinf(high), 2.0 * fade, (low + high) / 2)
    return fade


def _refined(places: Floats, edges: _Edges, rng: np.random.Generator) -> Floats:
    """float64[n,2] after the steps. All points step at once, so the pull of each is divided by the
    weight of its edges: otherwise many edges together would move it past its neighbours."""
    n = len(places)
    one, other, weight = edges
    share = 1.0 / np.maximum(np.bincount(one, weight, n) + np.bincount(other, weight, n), 1e-9)
    start = places * (_SPREAD / max(float(places.std(axis=0).max()), 1e-12))
    x, y = start[:, 0].copy(), start[:, 1].copy()
    for step in range(_STEPS):
        stride = _STRIDE * (1.0 - step / _STEPS)
        dx, dy = x[other] - x[one], y[other] - y[one]
        pull = 2.0 * weight / (1.0 + dx * dx + dy * dy)
        dx *= pull
        dy *= pull
        random = rng.integers(0, n, (_OTHERS, n))
        ax, ay = x - x[random], y - y[random]
        near = ax * ax + ay * ay
        push = 2.0 / ((1e-3 + near) * (1.0 + near))
        for at, pulls, pushes in ((x, dx, ax * push), (y, dy, ay * push)):
            pulled = np.bincount(one, pulls, n) - np.bincount(other, pulls, n)
            pushed = pushes.clip(-_LONGEST, _LONGEST).mean(axis=0)
            at += stride * (share * pulled + _PUSH * pushed)
    return np.column_stack((x, y))


def _fitted(places: Floats) -> NDArray[np.float32]:
    """Scaled and centred in the unit square, with the same aspect."""
    if not len(places):
        return np.zeros((0, 2), dtype=np.float32)
    low, high = places.min(axis=0), places.max(axis=0)
    side = float((high - low).max())
    if side <= 0:
        return np.full(places.shape, 0.5, dtype=np.float32)
    scaled: NDArray[np.float32] = ((places - (low + high) / 2) / side + 0.5).astype(np.float32)
    return scaled.clip(0.0, 1.0)

"""Generated sparse patterns of the kinds that sparse kernels meet, used to calibrate a machine
without matrices of its user.

Each is a function of family, size and seed alone, on every machine. None is in a public data set,
and none is one of the demo's four, so that these remain a test of a calibrated machine.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from embeddb.core.errors import UsageError
from embeddb.core.pattern import Pattern

Ints = NDArray[np.int64]

#: Non-zeros by size name; a generated pattern is within a third of them.
SIZES = {"15k": 15_000, "60k": 60_000, "250k": 250_000, "900k": 900_000}


class _Entries(NamedTuple):
    """Zero-based coordinates int64[e] in any order; duplicates count once."""

    shape: tuple[int, int]
    rows: Ints
    cols: Ints


_Make = Callable[[int, np.random.Generator], _Entries]


def generate(family: str, size: str, *, seed: int = 0) -> Pattern:
    """The pattern `generated_FAMILY_SIZE` of the group `generated-FAMILY`; seeds other than 0 are
    part of the name.

    Raises: UsageError for an unknown family or size.
    """
    if family not in FAMILIES:
        raise UsageError(f"no family {family!r}", hint=f"families: {', '.join(FAMILIES)}")
    if size not in SIZES:
        raise UsageError(f"no size {size!r}", hint=f"sizes: {', '.join(SIZES)}")
    rng = np.random.default_rng([seed, SIZES[size], zlib.crc32(family.encode())])
    shape, rows, cols = FAMILIES[family](SIZES[size], rng)
    name = f"generated_{family}_{size}" + (f"_{seed}" if seed else "")
    return Pattern.from_coo(shape, rows, cols, name=name, group=f"generated-{family}")


def generated(*, most: int = max(SIZES.values())) -> Iterator[Pattern]:
    """All patterns of at most `most` non-zeros, ordered such that each prefix mixes families and
    sizes."""
    sizes = [size for size, count in SIZES.items() if count <= most]
    for turn in range(len(sizes)):
        for at, family in enumerate(FAMILIES):
            yield generate(family, sizes[(at + turn) % len(sizes)], seed=0)


# -- meshes and bands ------------------------------------------------------------------------------


def _banded(nnz: int, rng: np.random.Generator) -> _Entries:
    """About 15 entries a row within 24 of the diagonal."""
    n = nnz // 15
    rows = np.repeat(np.arange(n), 18)
    cols = rows + rng.integers(-24, 25, rows.size)
    inside = (cols >= 0) & (cols < n)
    return _Entries((n, n), rows[inside], cols[inside])


def _stencil(side: int, dimensions: int) -> _Entries:
    """9 points of a square, or 27 of a cube."""
    at = np.stack(np.meshgrid(*[np.arange(side)] * dimensions, indexing="ij")).reshape(
        dimensions, -1
    )
    steps = np.stack(np.meshgrid(*[np.arange(-1, 2)] * dimensions, indexing="ij"))
    to = at[:, :, None] + steps.reshape(dimensions, 1, -1)
    inside = ((to >= 0) & (to < side)).all(axis=0)
    scale = side ** np.arange(dimensions)[::-1]
    n = side**dimensions
    rows = np.broadcast_to((scale @ at)[:, None], inside.shape)
    return _Entries((n, n), rows[inside], np.tensordot(scale, to, axes=1)[inside])


def _road(nnz: int, rng: np.random.Generator) -> _Entries:
    """A road network: the edges of a grid, a third of them missing, towns numbered piece by
    piece."""
    side = round((nnz / 3.67) ** 0.5)
    n = side * side
    at = np.arange(n)
    right = at[at % side < side - 1]
    down = at[at < n - side]
    ends = np.vstack([np.stack([right, right + 1], 1), np.stack([down, down + side], 1)])
    ends = ends[rng.random(len(ends)) < 2 / 3]
    # Neighbours keep near numbers without being a stencil's.
    label = np.argsort(np.argsort(at + rng.normal(0.0, side / 2, n), kind="stable"), kind="stable")
    return _mirrored(n, label[ends[:, 0]], label[ends[:, 1]])


def _mesh_unordered(nnz: int, rng: np.random.Generator) -> _Entries:
    """A mesh of a square, its nodes in random order."""
    shape, rows, cols = _stencil(round((nnz / 9) ** 0.5), 2)
    label = rng.permutation(shape[0])
    return _Entries(shape, label[rows], label[cols])


# -- graphs ----------------------------------------------------------------------------------------


def _uniform(nnz: int, rng: np.random.Generator) -> _Entries:
    """Ten entries a row, anywhere."""
    n = nnz // 10
    return _Entries((n, n), np.repeat(np.arange(n), 10), rng.integers(0, n, 10 * n))


def _rmat(nnz: int, rng: np.random.Generator) -> _Entries:
    """Rows and columns of power-law lengths: R-MAT (Chakrabarti et al. 2004) with the parameters
    of Graph 500."""
    bits = int(np.log2(nnz / 8))
    count = round(1.3 * nnz)
    rows, cols = np.zeros((2, count), dtype=np.int64)
    for _ in range(bits):
        part = np.searchsorted(np.cumsum([0.57, 0.19, 0.19]), rng.random(count))
        rows, cols = 2 * rows + (part >= 2), 2 * cols + part % 2
    return _Entries((1 << bits, 1 << bits), rows, cols)


def _communities(nnz: int, rng: np.random.Generator) -> _Entries:
    """Groups of 64 that know each other, and one acquaintance in five from anywhere."""
    n = nnz // 14 // 64 * 64
    rows = np.repeat(np.arange(n), 15)
    inside = rng.random(rows.size) < 0.8
    cols = np.where(
        inside, rows // 64 * 64 + rng.integers(0, 64, rows.size), rng.integers(0, n, rows.size)
    )
    return _Entries((n, n), rows, cols)


def _nearest(nnz: int, rng: np.random.Generator) -> _Entries:
    """The ten nearest neighbours of points in five dimensions, the points in random order."""
    from scipy.spatial import cKDTree

    n = nnz // 10
    points = rng.normal(size=(n, 5)) + 4.0 * rng.normal(size=(40, 5))[rng.integers(0, 40, n)]
    near = cKDTree(points).query(points, k=11)[1][:, 1:]
    return _Entries((n, n), np.repeat(np.arange(n), 10), near.ravel().astype(np.int64))


def _collaboration(nnz: int, rng: np.random.Generator) -> _Entries:
    """A collaboration graph: cliques of two to five people, mostly of one field of 60, in random
    order."""
    n = nnz // 7
    count = round(0.62 * n)
    size = rng.integers(2, 6, count)
    team = np.repeat(np.arange(count), size)
    field = rng.integers(0, n // 60, count)[team]
    inside = rng.random(team.size) < 0.95
    colleague = 60 * field + rng.integers(0, 60, team.size)
    person = np.where(inside, colleague, rng.integers(0, n, team.size))
    # Everyone of a team with everyone of it: the members at each distance in the list of a team.
    pairs = [(person[:-off], person[off:], team[:-off] == team[off:]) for off in range(1, 5)]
    rows = np.concatenate([one[same] for one, _, same in pairs])
    cols = np.concatenate([other[same] for _, other, same in pairs])
    label = rng.permutation(n)
    return _mirrored(n, label[rows], label[cols])


def _power_rows(nnz: int, rng: np.random.Generator) -> _Entries:
    """A few rows hold most entries."""
    n = nnz // 12
    lengths = np.minimum(3.0 * (1 + rng.pareto(1.3, n)), n / 8)
    lengths = np.maximum(1, np.round(lengths * nnz / lengths.sum())).astype(np.int64)
    rows = np.repeat(np.arange(n), lengths)
    return _Entries((n, n), rows, rng.integers(0, n, rows.size))


def _power_columns(nnz: int, rng: np.random.Generator) -> _Entries:
    """Rows alike, a few columns in nearly all of them: words in texts."""
    n = nnz // 12
    rows = np.repeat(np.arange(n), 14)
    cols = rng.permutation(n)[(n * rng.random(rows.size) ** 2.5).astype(np.int64)]
    return _Entries((n, n), rows, cols)


# -- blocks ----------------------------------------------------------------------------------------


def _blocks(nnz: int, rng: np.random.Generator) -> _Entries:
    """Dense blocks of 8 x 8, four in a row of blocks, anywhere."""
    across = nnz // (4 * 64)
    at = np.repeat(np.arange(across), 4)
    to = rng.integers(0, across, at.size)
    inner_row, inner_col = np.divmod(np.arange(64), 8)
    rows, cols = (8 * at[:, None] + inner_row).ravel(), (8 * to[:, None] + inner_col).ravel()
    return _Entries((8 * across, 8 * across), rows, cols)


def _block_diagonal(nnz: int, rng: np.random.Generator) -> _Entries:
    """Dense blocks of 4 to 64 rows along the diagonal."""
    sizes = rng.integers(4, 65, nnz // 1450 + 1)
    starts = np.cumsum(sizes) - sizes
    lengths, first = np.repeat(sizes, sizes), np.repeat(starts, sizes)
    n = int(sizes.sum())
    return _Entries((n, n), np.repeat(np.arange(n), lengths), _ranges(first, lengths))


def _pruned(nnz: int, rng: np.random.Generator) -> _Entries:
    """A layer of a network of which a tenth of the weights is left, unevenly by row."""
    m = round((nnz / 0.2) ** 0.5)
    n = 2 * m
    keep = np.clip(rng.gamma(4.0, 0.1 / 4, m), 0.01, 0.6)
    rows, cols = np.nonzero(rng.random((m, n), dtype=np.float32) < keep[:, None])
    return _Entries((m, n), rows, cols)


# -- other shapes ----------------------------------------------------------------------------------


def _tall(nnz: int, rng: np.random.Generator) -> _Entries:
    """Many short rows over few columns."""
    m = nnz // 5
    rows = np.repeat(np.arange(m), rng.integers(1, 10, m))
    n = m // 40
    return _Entries((m, n), rows, rng.integers(0, n, rows.size))


def _wide(nnz: int, rng: np.random.Generator) -> _Entries:
    """A few hundred long rows."""
    m = 64 + nnz // 5000
    n = 80 * m
    rows = np.repeat(np.arange(m), nnz // m)
    return _Entries((m, n), rows, rng.integers(0, n, rows.size))


def _arrow(nnz: int, rng: np.random.Generator) -> _Entries:
    """A tridiagonal matrix with two full rows and two full columns."""
    n = nnz // 7
    at = np.arange(n)
    rows = np.concatenate([at, at[1:], at[:-1], *(np.full(n, k) for k in (0, 1)), at, at])
    cols = np.concatenate([at, at[:-1], at[1:], at, at, *(np.full(n, k) for k in (0, 1))])
    return _Entries((n, n), rows, cols)


def _staircase(nnz: int, rng: np.random.Generator) -> _Entries:
    """A linear program over periods: each has rows over its own columns and the next period's, and
    some rows run through all."""
    height, width = 40, 100
    periods = nnz // (height * 16)
    m, n = height * periods + 8, width * (periods + 1)
    rows = np.repeat(np.arange(height * periods), 14)
    cols = rows // height * width + rng.integers(0, 2 * width, rows.size)
    through = np.repeat(np.arange(m - 8, m), n // 8)
    return _Entries(
        (m, n), np.append(rows, through), np.append(cols, rng.integers(0, n, through.size))
    )


def _circuit(nnz: int, rng: np.random.Generator) -> _Entries:
    """Nodes wired to a few others, mostly near, and some rails that reach everywhere."""
    n = nnz // 6
    rows = np.repeat(np.arange(n), 2)
    near = rows + np.round(rng.laplace(0.0, 30.0, rows.size)).astype(np.int64)
    rails = rng.integers(0, n, 12)
    to = rng.choice(rails, n // 4)
    inside = (near >= 0) & (near < n)
    ends = np.append(rows[inside], rng.integers(0, n, to.size))
    return _mirrored(n, ends, np.append(near[inside], to))


def _mirrored(n: int, rows: Ints, cols: Ints) -> _Entries:
    """Symmetric, with a diagonal."""
    at = np.arange(n)
    return _Entries((n, n), np.concatenate([rows, cols, at]), np.concatenate([cols, rows, at]))


def _ranges(first: Ints, lengths: Ints) -> Ints:
    """first[0] .. first[0] + lengths[0] - 1, and so on."""
    ends = np.cumsum(lengths)
    indices: Ints = np.arange(ends[-1]) + np.repeat(first - (ends - lengths), lengths)
    return indices


#: Family to maker; neighbours in this order are of different kinds.
FAMILIES: dict[str, _Make] = {
    "stencil-3d": lambda nnz, _: _stencil(round((nnz / 27) ** (1 / 3)) + 1, 3),
    "rmat": _rmat,
    "banded": _banded,
    "nearest": _nearest,
    "tall": _tall,
    "blocks": _blocks,
    "uniform": _uniform,
    "staircase": _staircase,
    "road": _road,
    "collaboration": _collaboration,
    "pruned": _pruned,
    "power-rows": _power_rows,
    "stencil-2d": lambda nnz, _: _stencil(round((nnz / 9) ** 0.5), 2),
    "communities": _communities,
    "block-diagonal": _block_diagonal,
    "mesh-unordered": _mesh_unordered,
    "power-columns": _power_columns,
    "circuit": _circuit,
    "wide": _wide,
    "arrow": _arrow,
}

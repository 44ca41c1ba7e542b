"""Four sparse matrices of different kinds, generated: what the demo asks about.

python examples/patterns.py FOLDER

writes them as Matrix Market and scipy files. All are seeded, so every machine gets the same four
patterns (up to the version of qhull behind the mesh), and none is part of the starter database.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.io
from numpy.typing import NDArray
from scipy import sparse
from scipy.spatial import Delaunay

__all__ = ["EXAMPLES", "fem_blocks", "poisson3d", "scale_free", "tall", "write_examples"]


def poisson3d(side: int = 40) -> Any:
    """The 7-point stencil of a cube: csr_array[side^3, side^3], up to 7 entries a row."""
    line = sparse.diags_array([np.ones(side - 1), np.ones(side - 1)], offsets=[-1, 1])
    one = sparse.eye_array(side)
    plane = sparse.kron(line, one) + sparse.kron(one, line)
    cube = sparse.kron(plane, one) + sparse.kron(sparse.eye_array(side * side), line)
    return _ones(cube + sparse.eye_array(side**3))


def fem_blocks(nodes: int = 6000, block: int = 3, *, seed: int = 0) -> Any:
    """Finite elements with `block` unknowns per node of a random triangle mesh.

    csr_array[nodes*block, nodes*block]; every pair of nodes that share an edge, and every node
    with itself, is one dense block. Nodes are numbered by reverse Cuthill-McKee, as solvers do.
    """
    rng = np.random.default_rng(seed)
    corners = Delaunay(rng.random((nodes, 2))).simplices
    ends = np.vstack([corners[:, [0, 1]], corners[:, [1, 2]], corners[:, [2, 0]]])
    mesh = _from_pairs(ends[:, 0], ends[:, 1], (nodes, nodes))
    mesh = _ones(mesh + mesh.T + sparse.eye_array(nodes))
    order = sparse.csgraph.reverse_cuthill_mckee(mesh, symmetric_mode=True)
    return _ones(sparse.kron(mesh[order][:, order], np.ones((block, block))))


def scale_free(nodes: int = 25_000, edges: int = 160_000, *, seed: int = 0) -> Any:
    """An undirected graph with power-law degrees (Chung-Lu): csr_array[nodes, nodes].

    Both ends of each of `edges` draws are chosen with a probability that falls with rank^-0.7;
    repeated draws and loops fall away, so there are fewer edges than draws.
    """
    rng = np.random.default_rng(seed)
    weight = np.arange(1, nodes + 1, dtype=np.float64) ** -0.7
    ends = _draw(weight, 2 * edges, rng=rng).reshape(2, edges)
    label = rng.permutation(nodes)  # hubs anywhere, as in a crawl
    source, target = label[ends[0]], label[ends[1]]
    kept = source != target
    half = _from_pairs(source[kept], target[kept], (nodes, nodes))
    return _ones(half + half.T)


def tall(rows: int = 60_000, cols: int = 2000, *, seed: int = 0) -> Any:
    """A term-document table: csr_array[rows, cols], 1 to 12 entries a row, few popular columns."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 13, size=rows)
    weight = 1.0 / (np.arange(cols) + 10.0)
    row = np.repeat(np.arange(rows), lengths)
    return _from_pairs(row, _draw(weight, row.size, rng=rng), (rows, cols))


def _draw(weight: NDArray[Any], count: int, *, rng: np.random.Generator) -> NDArray[np.int64]:
    """int64[count] positions, each with a probability in proportion to its weight."""
    steps = np.cumsum(weight)
    found: NDArray[np.int64] = np.searchsorted(steps, rng.random(count) * steps[-1], side="right")
    return found


def _from_pairs(rows: NDArray[Any], cols: NDArray[Any], shape: tuple[int, int]) -> Any:
    ones = np.ones(rows.size, dtype=np.float32)
    return _ones(sparse.coo_array((ones, (rows, cols)), shape=shape))


def _ones(matrix: Any) -> Any:
    """The same pattern as a sorted csr_array without duplicates; only the structure matters."""
    out = sparse.csr_array(matrix)
    out.sum_duplicates()
    out.sort_indices()
    out.data = np.ones(out.nnz, dtype=np.float32)
    return out


#: File name to generator; both formats are shown.
EXAMPLES: dict[str, Callable[[], Any]] = {
    "poisson3d.mtx": poisson3d,
    "fem_blocks.npz": fem_blocks,
    "scale_free.npz": scale_free,
    "tall.npz": tall,
}


def write_examples(folder: Path) -> list[Path]:
    """Generate what is not there yet; the paths of all."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, make in EXAMPLES.items():
        if not (folder / name).exists():
            _write(folder / name, make())
    return [folder / name for name in EXAMPLES]


def _write(path: Path, matrix: Any) -> None:
    """Under a temporary name first, so that a file that is there is whole."""
    part = path.with_name(f"part-{path.name}")
    if path.suffix == ".mtx":
        scipy.io.mmwrite(part, matrix, field="pattern", symmetry="general")
    else:
        sparse.save_npz(part, matrix)
    part.replace(path)


if __name__ == "__main__":
    for written in write_examples(Path(sys.argv[1] if len(sys.argv) > 1 else ".")):
        print(written)

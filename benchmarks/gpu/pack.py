"""Patterns packed small for a machine without a network.

    pack.py pack FOLDER OUT NAME…
    pack.py unpack OUT FOLDER
    pack.py shapes OUT TABLE      a CSV line per pattern: rows, columns, entries, longest row

A packed pattern is xz over the byte planes of int32: rows, columns, entries, symmetric (1: only
the lower triangle is stored), the lengths of the rows, the columns (differences within a row; a
row's first one against that of the row before). Unpacked: int32 rows, columns, entries, ptr, idx.
"""

from __future__ import annotations

import csv
import lzma
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import scipy.sparse as sp


def pack(a: sp.csr_array) -> bytes:
    m, n = a.shape
    symmetric = m == n and (a != a.T).nnz == 0
    kept = sp.csr_array(sp.tril(a)) if symmetric else a
    kept.sort_indices()
    lengths = np.diff(kept.indptr)
    steps = np.diff(kept.indices.astype(np.int64), prepend=0)
    starts = kept.indptr[:-1][lengths > 0]
    steps[starts] = np.diff(kept.indices[starts].astype(np.int64), prepend=0)
    raw = np.concatenate([[m, n, kept.nnz, symmetric], lengths, steps]).astype(np.int32)
    planes = raw.view(np.uint8).reshape(-1, 4).T
    return lzma.compress(planes.tobytes(), preset=6 | lzma.PRESET_EXTREME)


def unpack(data: bytes) -> sp.csr_array:
    planes = np.frombuffer(lzma.decompress(data), np.uint8).reshape(4, -1)
    raw = np.ascontiguousarray(planes.T).view(np.int32).ravel()
    m, n, nnz, symmetric = (int(x) for x in raw[:4])
    lengths, steps = raw[4 : 4 + m], raw[4 + m :].astype(np.int64)
    ptr = np.concatenate([[0], np.cumsum(lengths)])
    starts = ptr[:-1][lengths > 0]
    total = np.cumsum(steps)
    first = np.cumsum(steps[starts])
    idx = total - np.repeat(total[starts] - first, lengths[lengths > 0])
    a = sp.csr_array((np.ones(nnz, np.int8), idx.astype(np.int32), ptr.astype(np.int32)), (m, n))
    if symmetric:
        a = sp.csr_array(a + sp.triu(a.T, 1))
    a.sort_indices()
    return a


def _pack_file(source: Path, target: Path) -> int:
    a = sp.csr_array(sp.load_npz(source))
    a.sort_indices()
    a.data = np.ones(a.nnz, np.int8)
    data = pack(a)
    back = unpack(data)
    if not (np.array_equal(back.indptr, a.indptr) and np.array_equal(back.indices, a.indices)):
        raise ValueError(f"{source}: packing changes the pattern")
    target.write_bytes(data)
    return len(data)


def _unpack_file(source: Path, target: Path) -> None:
    a = unpack(source.read_bytes())
    head = np.array([*a.shape, a.nnz], np.int32)
    parts = (head, a.indptr.astype(np.int32), a.indices.astype(np.int32))
    target.write_bytes(np.concatenate(parts).tobytes())


def _shape(source: Path) -> tuple[object, ...]:
    a = unpack(source.read_bytes())
    return (source.stem, *a.shape, a.nnz, int(np.diff(a.indptr).max(initial=0)))


def write_shapes(source: Path, target: Path) -> None:
    with target.open("w", newline="") as f:
        table = csv.writer(f, lineterminator="\n")
        table.writerow(("matrix", "rows", "columns", "entries", "longest_row"))
        table.writerows(_shape(file) for file in sorted(source.glob("*.xz")))


def main(verb: str, source: str, target: str, *names: str) -> None:
    if verb == "shapes":
        write_shapes(Path(source), Path(target))
        return
    folder = Path(target)
    folder.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor() as pool:
        if verb == "pack":
            jobs = [(Path(source) / f"{n}.npz", folder / f"{n}.xz") for n in names]
            done = pool.map(_pack_file, *zip(*jobs, strict=True))
        else:
            files = sorted(Path(source).glob("*.xz"), key=lambda f: -f.stat().st_size)
            done = pool.map(_unpack_file, files, [folder / f"{f.stem}.bin" for f in files])
        list(done)


if __name__ == "__main__":
    main(*sys.argv[1:])
